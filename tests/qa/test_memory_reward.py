"""The reward: every perverse case that the default preset repairs, as it is there and as it was published."""

from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout import broken, delete, gold, insert, roll, skip, update

from memalpha.config import MemoryFunction, RewardConfig
from memalpha.errors import RewardError
from memalpha.qa.memory_reward import BESIDE, IDLE, GoldFacts, MemoryReward
from memalpha.qa.scoring.judge import ContentVerdicts
from memalpha.store.values import is_copied
from memalpha.types import Chunk, Task

# chunk 0 states two facts, chunk 1 changes one and retracts the other, chunk 2 is small talk
GOLD = (
    gold("insert", 0, "city: Oslo"),
    gold("insert", 0, "pet: cat"),
    gold("update", 1, "city: Rome", "city: Oslo"),
    gold("delete", 1, replaces="pet: cat"),
)
TASK = Task(id="t", chunks=tuple(Chunk(text="word " * 30) for _ in range(3)), gold_operations=GOLD)

STAYS = TASK.model_copy(update={"gold_operations": GOLD[:2]})


TOO_LARGE = r"gave .*: its weight .* below 1\.7e\+38"


async def _later(*_):
    return 1.0


def components(*turns, preset="default", scores=(), task=TASK):
    records = [SimpleNamespace(score=score) for score in scores]
    model = MemoryReward(RewardConfig(preset=preset), lambda text: len(text.split()))
    reward = model.reward(roll(task, *turns), records)
    assert reward.total == pytest.approx(sum(reward.turns) / len(reward.turns))
    for index, total in enumerate(reward.turns):
        parts = {name: values[index] for name, values in reward.components.items()}
        assert total == pytest.approx(sum(reward.weights[name] * value for name, value in parts.items()))
    return reward


def r2(*turns, preset="default"):
    return components(*turns, preset=preset).components["r2"]


def r4(*turns, preset="default"):
    return components(*turns, preset=preset).components["r4"]


published_r2, published_r4 = partial(r2, preset="published"), partial(r4, preset="published")


BOTH = [insert("city: Oslo"), insert("pet: cat")]


def test_a_perfect_writer_has_all_of_it():
    reward = components(BOTH, [update("city: Oslo", "city: Rome"), delete("pet: cat")], [skip], scores=(1.0, 1.0))
    assert reward.components["r1"] == reward.components["r2"] == reward.components["r4"] == (1.0, 1.0, 1.0)
    assert reward.components["r3"] == pytest.approx((1 - 2 / 90,) * 3)
    assert reward.weights == {"r1": 1.0, "r2": 1.0, "r3": 0.05, "r4": 0.1}
    assert reward.total == pytest.approx(1 + 1 + 0.05 * (1 - 2 / 90) + 0.1)


COPIED = (
    ("pet: Biscuit", "got a puppy, his name is Biscuit!", True),
    ("pet: Rex", "got a puppy, his name is Biscuit!", False),
    ("dentist: Tuesday, 8:50", "dentist on tuesday at 9:30, no wait, 8:50", True),
    ("dentist: 8:55", "dentist on tuesday at 9:30, no wait, 8:50", False),
    ("Ana moved to Porto on 2025-01-09.", "Ana: I moved to Porto yesterday.", True),
    ("Ana moved to Braga.", "Ana: I moved to Porto yesterday.", False),
    ("She runs 5 km a day", "i run 15 km a day", False),
    ("Likes walks by the sea", "i love walking by the sea", True),
)


@pytest.mark.parametrize(("content", "source", "expected"), COPIED)
def test_an_invented_value_is_no_copy(content, source, expected):
    assert is_copied(content, source) == expected


def test_copies_are_valid_without_gold_operations():
    chunks = tuple(Chunk(text=text) for text in ("My city is Oslo, my pet a cat.", "Rome is my city now.", "Nice day."))
    task = Task(id="t", chunks=chunks)
    reward = MemoryReward(RewardConfig(content="copied"), len)
    second = [update("city: Oslo", "city: Rome"), insert("pet: cat"), insert("job: nurse")]
    rollout = roll(task, BOTH, second, [skip])
    scored = reward.reward(rollout, [])
    assert scored.components["r4"] == pytest.approx((1.0, 1 / 3, 1.0)) and scored.weights["r4"] == 0.1
    assert reward.notes([task]) == []
    assert MemoryReward(RewardConfig(), len).reward(rollout, []).weights["r4"] == 0.0


STATED = [insert("I live in Oslo, for now"), insert("got a cat")]


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ([update("I live in Oslo, for now", "Rome it is"), delete("got a cat")], 1.0),
        ([update("I live in Oslo, for now", "from Oslo to Rome"), delete("got a cat")], 1.0),
        ([insert("Rome it is"), delete("got a cat")], (BESIDE + 1) / 2),
        ([insert("Rome it is")], BESIDE / 2),
        ([update("got a cat", "Rome it is")], (BESIDE + 1) / 2),  # both are changes of this chunk
        ([skip], 0.0),
        ([insert("nice weather"), insert("no more cat")], -2 * IDLE / 2),
    ],
)
def test_the_state_counts_in_any_words(changes, value):
    reward = MemoryReward(RewardConfig(content="state"), len)
    scored = reward.reward(roll(TASK, STATED, changes), [])
    assert scored.components["r4"] == pytest.approx((1.0, value, 0.0)) and scored.weights["r4"] == 0.1


def test_a_fact_that_is_lost_costs_what_it_gave():
    reward = MemoryReward(RewardConfig(content="state"), len)
    scored = reward.reward(roll(STAYS, STATED, [skip], [delete("I live in Oslo, for now")]), [])
    assert scored.components["r4"] == (1.0, 0.0, -1.0)
    goldless = TASK.model_copy(update={"gold_operations": ()})
    assert reward.reward(roll(goldless, STATED), []).weights["r4"] == 0.0


MEETINGS = (
    gold("insert", 0, "meeting: Monday"),
    gold("update", 1, "meeting: Tuesday", "meeting: Monday"),
    gold("update", 1, "meeting: Friday", "meeting: Tuesday"),
)
CORRECTED = TASK.model_copy(update={"gold_operations": MEETINGS})


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ([update("it is on Monday", "on Friday")], 1.0),
        ([insert("on Friday")], BESIDE),
        ([update("it is on Monday", "on Tuesday")], -IDLE),
    ],
)
def test_of_what_is_corrected_in_one_chunk_the_last_counts(changes, value):
    rollout = roll(CORRECTED, [insert("it is on Monday")], changes)
    scored = MemoryReward(RewardConfig(content="state"), len).reward(rollout, [])
    assert scored.components["r4"] == pytest.approx((1.0, value, 0.0))


@given(
    st.lists(st.sampled_from(["Oslo", "a cat", "Rome", "Oslo and Rome", "weather"]), max_size=5),
    st.lists(st.sampled_from(["Oslo", "a cat", "Rome"]), max_size=3),
    st.randoms(),
)
def test_the_state_does_not_depend_on_ids_or_order(first, second, rng):
    reward = MemoryReward(RewardConfig(content="state"), len)
    turns = [[insert(text) for text in dict.fromkeys(texts)] for texts in (first, second)]
    scored = reward.reward(roll(TASK, *turns), []).components["r4"]
    assert all(-1.0 <= value <= 1.0 for value in scored)
    for calls in turns:
        rng.shuffle(calls)
    assert reward.reward(roll(TASK, *turns), []).components["r4"] == scored


CITIES = (gold("insert", 0, "city: Oslo"), GOLD[2], gold("update", 2, "city: Lima", "city: Rome"))
MOVES = TASK.model_copy(update={"gold_operations": CITIES})


@pytest.mark.parametrize(
    ("turns", "default", "published"),
    [
        (([], [update("city: Oslo", "city: Rome")], []), 1.0, 1.0),
        (([], [insert("city: Rome")], []), 0.0, 1.0),
        (([], [insert("city: Rome"), delete("city: Oslo")], []), 1.0, 0.5),
        (([], [delete("city: Oslo"), insert("city: Rome")], []), 1.0, 0.5),
        (([], [], [insert("city: Lima")]), 0.0, 1.0),  # beside a value that was replaced twice
        (([], [], [update("city: Oslo", "city: Lima")]), 1.0, 1.0),
        (([], [update("city: Oslo", "city: Rome")], [insert("city: Lima")]), 0.0, 1.0),
    ],
)
def test_a_new_value_beside_the_one_that_it_replaces_is_not_valid(turns, default, published):
    turns = ([insert("city: Oslo")], *turns[1:])
    chunk = max(index for index, turn in enumerate(turns) if turn)
    for preset, share in (("default", default), ("published", published)):
        assert components(*turns, preset=preset, task=MOVES).components["r4"][chunk] == share


JUNK, MOVE = "note: the weather is nice", [update("city: Oslo", "city: Rome")]
OSLO = [insert("city: Oslo")]


@pytest.mark.parametrize(
    ("component", "turns", "index", "value"),
    [
        (r4, (BOTH, [delete("pet: cat")]), 1, 1.0),  # a delete is judged like any write
        (r4, (BOTH, [delete("city: Oslo")]), 1, 1.0),  # no longer true either: clumsy, not wrong
        (r4, (BOTH, [], [delete("city: Oslo"), delete("pet: cat")]), 2, 1.0),  # late is still right
        (r4, (OSLO, MOVE, [delete("city: Rome")]), 2, 0.0),
        (r4, ([insert(JUNK)], [delete(JUNK)]), slice(2), (0.0, 0.0)),  # tidying up own junk earns nothing
        (r4, (BOTH, [], [delete("city: Oslo"), insert(JUNK), delete(JUNK)]), 2, 0.5),
        (r4, (BOTH, [], [delete("city: Oslo"), insert(JUNK)]), 2, 0.5),
        (r2, ([delete("nothing")],), 0, 0.0),
        (r2, (BOTH, [*MOVE, insert("pet: cat")]), 1, 1.0),  # an exact duplicate neither fails nor earns
        (r4, (BOTH, [*MOVE, insert("pet: cat")]), 1, 0.5),
        (r2, (BOTH, [insert("pet: cat"), broken]), 1, 0.0),  # nor does it dilute a failure
        (r2, (BOTH, [], [skip]), slice(3), (1.0, 1.0, 1.0)),
        (r4, (BOTH, [skip], []), slice(3), (1.0, 0.0, 1.0)),  # there is nothing to remember in the last chunk
        (r4, (BOTH, [], [insert("small talk")]), 2, 0.0),
        (r2, ([broken, skip, skip],), 0, 0.0),
        (r2, ([*OSLO, broken, skip],), 0, 0.5),
        (r4, ([insert("City: oslo.")],), 0, 1.0),  # case and punctuation aside
        (r4, ([insert("city: Rome")],), 0, 0.0),  # not yet
        (r4, ([], OSLO), 1, 0.0),  # no longer
        (r4, ([], [], [insert("city: Rome")]), 2, 1.0),  # late is still right
        (r4, ([insert("city: Oslo", "episodic")],), 0, 0.0),
        (r4, ([*OSLO, insert("the weather is lovely")],), 0, 0.5),
        (r4, ([insert("word " * 30)],), 0, 0.0),  # the chunk itself
        (r4, (BOTH, MOVE), 1, 1.0),
        (r4, (OSLO, [update("city: Oslo", "city: Paris")]), 1, 0.0),
        (r4, ([*OSLO, insert("city: Oslo.")],), 0, 0.0),  # the same fact in two spellings
        (r4, ([*OSLO, broken],), 0, 1.0),  # the failed call is r2's business
        (published_r4, ([*OSLO, broken],), 0, 0.5),
        (published_r4, (BOTH, [delete("pet: cat")]), 1, 0.0),
        (published_r4, (BOTH, [], [skip]), slice(1, 3), (0.0, 0.0)),
        (published_r2, (BOTH, [], [skip]), slice(1, 3), (0.0, 0.0)),
        (published_r2, ([delete("nothing")],), 0, 1.0),
        (published_r2, ([update("nothing", "x")],), 0, 0.0),
        (published_r2, (BOTH, [*MOVE, insert("pet: cat")]), 1, 0.5),
        (published_r2, ([*OSLO, skip],), 0, 1.0),  # a skip is no call there
    ],
)
def test_what_a_turn_earns(component, turns, index, value):
    assert component(*turns)[index] == value


def test_an_update_must_replace_what_is_no_longer_true():
    task = TASK.model_copy(update={"gold_operations": (*GOLD, gold("insert", 2, "job: nurse"))})
    wrong = components(OSLO, MOVE, [update("city: Rome", "job: nurse")], task=task)
    assert wrong.components["r4"][2] == 0.0  # true, but the city still held
    assert components(OSLO * 4).turns[0] < components(OSLO).turns[0], "duplicates never raise a turn"


def test_r1_is_the_mean_score_and_r3_is_clamped_in_the_default_only():
    assert components(scores=(1.0, 0.0, 0.5)).components["r1"] == (0.5,) * 3
    assert components().components["r1"] == (0.0,) * 3
    long = [insert("word " * 200)]
    assert components(long).components["r3"] == (0.0,) * 3
    assert components(long, preset="published").components["r3"][0] == pytest.approx(1 - 200 / 90)


def test_without_gold_r4_is_off_and_the_run_says_so():
    task = TASK.model_copy(update={"gold_operations": ()})
    for preset in ("default", "published"):
        reward = components([insert("city: Oslo")], task=task, preset=preset)
        assert reward.weights["r4"] == 0.0 and set(reward.components["r4"]) == {0.0}
    model = MemoryReward(RewardConfig(), len)
    assert model.notes([TASK]) == []
    assert "1 of 2 tasks" in model.notes([TASK, task])[0]


def test_every_write_needs_a_verdict():
    """A judge's verdicts are paired with all results of a turn: one too few is an error, never a share of the rest."""
    trajectory, reward = roll(TASK, BOTH), MemoryReward(RewardConfig(), len)
    silent = [ContentVerdicts((), 1.0)] * (len(TASK.chunks) - 1)
    assert reward.reward(trajectory, [], [ContentVerdicts((1.0, 0.0)), *silent]).components["r4"][0] == 0.5
    for writes in ((1.0,), (1.0, 0.0, 1.0)):
        with pytest.raises(ValueError, match="zip"):
            reward.reward(trajectory, [], [ContentVerdicts(writes), *silent])


CALLS = st.lists(
    st.sampled_from(
        [*BOTH, insert("noise"), update("city: Oslo", "city: Rome"), delete("pet: cat"), delete("x"), skip, broken]
    ),
    max_size=4,
)


@given(
    CALLS, CALLS, CALLS, st.lists(st.sampled_from([0.0, 1.0]), max_size=4), st.sampled_from(["default", "published"])
)
def test_bounds_and_that_the_order_of_questions_does_not_matter(turn_reward, two, three, scores, preset):
    reward = components(turn_reward, two, three, scores=scores, preset=preset)
    for name, values in reward.components.items():
        assert len(values) == 3 and all(value <= 1.0 for value in values)
        assert name == "r3" or all(value >= 0.0 for value in values)
    assert components(turn_reward, two, three, scores=scores[::-1], preset=preset).turns == pytest.approx(reward.turns)


def test_gold_knows_when_a_fact_holds():
    facts = GoldFacts(TASK)
    assert [facts.holds("semantic", "city: Oslo", chunk) for chunk in range(3)] == [True, False, False]
    assert [facts.holds("semantic", "CITY: Rome", chunk) for chunk in range(3)] == [False, True, True]
    again = TASK.model_copy(update={"gold_operations": (*GOLD, gold("update", 2, "city: Oslo", "city: Rome"))})
    assert [GoldFacts(again).holds("semantic", "city: Oslo", chunk) for chunk in range(3)] == [True, False, True]
    twice = TASK.model_copy(update={"gold_operations": (gold("insert", 0, "pet: cat"), *GOLD)})
    assert [GoldFacts(twice).holds("semantic", "pet: cat", chunk) for chunk in range(3)] == [
        facts.holds("semantic", "pet: cat", chunk) for chunk in range(3)
    ]


@pytest.mark.parametrize(
    ("value", "weight", "message"),
    [
        (1e308, 10.0, TOO_LARGE), (1e39, 1.0, TOO_LARGE), (-1e30, 1e10, TOO_LARGE),
        (float("nan"), 1.0, "gave nan: a finite number is needed$"), ("1", 1.0, "gave '1': a finite number is needed$"),
        (10**400, 1.0, "a finite number"), (np.zeros(1), 1.0, r"gave array\(\[0\.\]\): a finite number"),
        (_later, 1.0, "is async"), (None, 1.0, r"raised KeyError: 'x' \(.*test_memory_reward\.py, line \d+\)$"),
    ],
)  # fmt: skip
def test_a_function_that_raises_or_whose_value_is_unusable_is_named(value, weight, message):
    reward = MemoryReward(RewardConfig(), len)
    part = MemoryFunction(name="mine", function="os:getcwd", weight=weight)
    reward.functions = [
        (part, value if callable(value) else lambda trajectory, records: {}["x"] if value is None else value)
    ]
    with pytest.raises(RewardError, match=rf"reward\.functions\.mine: os:getcwd .*{message}"):
        reward.reward(roll(TASK, BOTH), [])


@pytest.mark.parametrize("value", [np.float32(1), np.bool_(True), np.array(1.0), True, Fraction(1)])
def test_a_function_may_give_a_number_of_any_kind(value):
    reward = MemoryReward(RewardConfig(), len)
    reward.functions = [(MemoryFunction(name="mine", function="os:getcwd"), lambda trajectory, records: value)]
    assert set(reward.reward(roll(TASK, BOTH), []).components["mine"]) == {1.0}
