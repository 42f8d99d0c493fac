"""Credit per call: what telescopes, what a call without effect gets, orders and names that change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import lines

from memalpha.agent.reader import ExtractiveReader
from memalpha.agent.replies import act
from memalpha.config import CreditConfig, ReaderConfig, RewardConfig, WorldConfig
from memalpha.environments.memory_writing import ask_at_every_chunk, memory_engine, roll_out_chunks
from memalpha.policy.chat.text import format_call
from memalpha.policy.load import load_policy
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import load_embedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic import worlds
from memalpha.train.algorithms.credit import (
    CreditScorer,
    StateAnswer,
    call_sources,
    centred_costs,
    compare_turns,
    question_advantages,
    route,
)
from memalpha.train.api import train
from memalpha.types import (
    Chunk,
    Completion,
    Question,
    SpeakerTurn,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)
from tests.environments.test_chunk_groups import AGENT

EMBEDDER = load_embedder("hash")
SETTINGS = CreditConfig(share=0.25, gamma=0.5, failed=0.5, duplicate=0.25, end=0.5)
answers = st.builds(StateAnswer, st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from(["Oslo", "Rome", "unknown"]))


@st.composite
def grids(draw, same_start=False):
    """Answers as [rollout][state][question]."""
    rollouts, states, questions = (draw(st.integers(1, most)) for most in (4, 4, 3))
    start = [draw(answers) for _ in range(questions)]
    return [
        [
            start if same_start and state == 0 else [draw(answers) for _ in range(questions)]
            for state in range(states + 1)
        ]
        for _ in range(rollouts)
    ]


def slowly(grid, gamma):
    """Return the advantages by their definition, each sum written out."""
    result = []
    for states in grid:
        turns = []
        for t in range(len(states) - 1):
            values = []
            for q in range(len(states[0])):

                def later(other, t=t, q=q):
                    steps = range(t, len(other) - 1)
                    return sum(gamma ** (k - t) * (other[k + 1][q].score - other[k][q].score) for k in steps)

                class_of = [other for other in grid if other[t][q] == states[t][q]]
                values.append(later(states) - sum(map(later, class_of)) / len(class_of))
            turns.append(values)
        result.append(turns)
    return np.array(result, dtype=np.float64)


@settings(max_examples=200, deadline=None)
@given(grids(), st.sampled_from([0.0, 0.5, 1.0]))
def test_advantages_are_those_of_the_definition(grid, gamma):
    assert np.allclose(question_advantages(grid, gamma), slowly(grid, gamma), atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(grids(same_start=True))
def test_at_gamma_1_the_first_turn_s_sum_is_the_gain_over_the_group(grid):
    first = np.array(question_advantages(grid, 1.0))[:, 0].sum(axis=-1)
    gains = np.array([sum(b.score - a.score for a, b in zip(states[0], states[-1], strict=True)) for states in grid])
    assert np.allclose(first, gains - gains.mean(), atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(grids(), st.randoms(use_true_random=False))
def test_the_order_of_rollouts_changes_nothing(grid, random):
    order = random.sample(range(len(grid)), len(grid))
    values, moved = question_advantages(grid, 0.5), question_advantages([grid[g] for g in order], 0.5)
    assert np.allclose([values[g] for g in order], moved, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_question_s_advantage_goes_to_calls_that_its_answer_depends_on(data):
    questions, operations = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    advantages = [data.draw(st.sampled_from([-0.5, 0.25, 1.0])) for _ in range(questions)]
    after = [data.draw(answers) for _ in range(questions)]
    without = [[data.draw(answers) for _ in range(questions)] for _ in range(operations)]
    of_operations, of_end = route(advantages, after, without)
    for i, chosen in enumerate(of_operations):
        number = sum(advantages[q] for q in chosen)
        of_this = [advantages[q] for q in range(questions) if without[i][q] != after[q]]
        assert of_this or number == 0, "no answer depends on it"
        assert abs(number) <= sum(map(abs, of_this)) + 1e-12
    alone = [q for q in range(questions) if all(row[q] == after[q] for row in without)]
    assert of_end == alone


def result(code: str) -> ToolResult:
    return ToolResult(ToolCall("memory_insert", {}), code in ("inserted", "duplicate", "skipped"), code)


@given(st.lists(st.lists(st.sampled_from(["inserted", "duplicate", "skipped", "malformed"]), max_size=4), min_size=1))
def test_costs_are_centred_over_the_group_and_a_skip_has_none(codes):
    results = [[result(code) for code in of_rollout] for of_rollout in codes]
    costs = centred_costs(results, SETTINGS)
    pairs = [pair for rows in zip(codes, costs, strict=True) for pair in zip(*rows, strict=True)]
    assert sum(cost for _, cost in pairs) == pytest.approx(0, abs=1e-12)
    assert all(cost == 0 for code, cost in pairs if code == "skipped")
    by_code = dict(pairs)
    if by_code.keys() >= {"inserted", "malformed", "duplicate"}:
        assert by_code["malformed"] - by_code["inserted"] == pytest.approx(SETTINGS.failed)
        assert by_code["duplicate"] - by_code["inserted"] == pytest.approx(SETTINGS.duplicate)


def test_a_call_s_sources_stand_where_its_number_does():
    results = [result(code) for code in ("inserted", "malformed", "skipped", "inserted")]
    first, second, end = [("q", 1.0)], [("r", -0.5), ("q", 0.25)], [("s", 2.0)]
    expected = (tuple(first), (), tuple(end), tuple(second), tuple(end))
    assert call_sources(results, [first, second], end) == expected


TASK = Task(
    id="t",
    chunks=(Chunk(turns=(SpeakerTurn(speaker="user", text="I live in Porto. It rains."),), index=0),),
    questions=(Question(id="q", question="Where does the user live?", answers=("Porto",)),),
)
CITY = format_call("memory_insert", {"category": "semantic", "content": "user: I live in Porto."})
RAIN = format_call("memory_insert", {"category": "episodic", "content": "user: It rains."})
WRONG = format_call("memory_delete", {"id": "nobody"})


def trajectory(rollout: int, text: str) -> Trajectory:
    memory = WorkingMemory(MemoryState.empty(MEM_ALPHA), EMBEDDER)
    turn = act(memory, TASK.chunks[0], Completion(text), strict=True)
    return Trajectory(TASK, rollout, (turn,), (memory.state,))


def scorer() -> CreditScorer:
    rewards = MemoryReward(RewardConfig(metric="contains"), len)
    return CreditScorer(ExtractiveReader(ReaderConfig()), rewards, EMBEDDER, SETTINGS)


def test_the_call_that_an_answer_depends_on_gets_its_advantage():
    texts = [CITY + RAIN, RAIN, RAIN + WRONG, ""]
    group = TrajectoryGroup(TASK, tuple(trajectory(g, text) for g, text in enumerate(texts)))
    [scored], records = scorer().score([group])
    numbers = [one.reward.calls[0] for one in scored.trajectories]
    assert [record.correct for record in records] == [True, False, False, False]
    cost = 0.5 / 5  # one of five calls failed
    # Without the rain the second and third would not have answered at all, so their wrong answer hangs on it.
    expected = [(0.75 + cost, cost, 0.0), (cost - 0.25, 0.0), (cost - 0.25, cost - 0.5, 0.0), (-0.125,)]
    for of_rollout, values in zip(numbers, expected, strict=True):
        assert of_rollout == pytest.approx(values)


def test_a_skip_gets_the_number_of_the_end():
    skip = format_call("memory_skip", {})
    group = TrajectoryGroup(TASK, tuple(trajectory(g, text) for g, text in enumerate((CITY, skip))))
    [scored], _ = scorer().score([group])
    wrote, skipped = (one.reward.calls[0] for one in scored.trajectories)
    assert wrote == pytest.approx((0.5, 0.0))
    assert skipped == pytest.approx((SETTINGS.end * -0.5, SETTINGS.end * -0.5))


@pytest.mark.parametrize("kind", ["conversations", "chunk groups"])
def test_real_rollouts_are_credited_in_any_order(kind):
    engine = memory_engine(load_policy("tiny"), AGENT, EMBEDDER)
    tasks = worlds.tasks(WorldConfig(preset="demo", pseudo_values=0.6), 3, 0, 2)
    if kind == "chunk groups":
        groups = roll_out_chunks(engine, [ask_at_every_chunk(task) for task in tasks], range(2), 4, 1.0, seed=5, step=2)
    else:
        groups = engine.roll_out(tasks, 4, 1.0, seed=5, step=2)
    compared = [states for group in groups for comparison in compare_turns(group) for states in comparison.states]
    assert all(state.unique_contents for states in compared for state in states)
    one, _ = scorer().score(groups)
    turned = [replace(group, trajectories=group.trajectories[::-1]) for group in groups]
    other, _ = scorer().score(turned)
    numbers = [[one.reward.calls for one in group.trajectories] for group in one]
    assert [[one.reward.calls for one in group.trajectories[::-1]] for group in other] == [
        [tuple(pytest.approx(turn) for turn in of_rollout) for of_rollout in group] for group in numbers
    ]
    for group, of_group in zip(groups, numbers, strict=True):
        for rollout, calls in zip(group.trajectories, of_group, strict=True):
            assert [len(turn) for turn in calls] == [len(turn.calls) + 1 for turn in rollout.turns]
    assert any(number for group in numbers for rollout in group for turn in rollout for number in turn)


def test_a_written_advantage_is_the_turn_s_without_its_calls_also_of_a_reply_that_was_cut(tmp_path):
    short = {"max_steps": 1, "tasks_per_step": 1, "group_size": 4, "eval_tasks": 1, "validation_tasks": 1}
    train("demo", out=tmp_path / "run", reward={"credit": "calls"}, agent={"max_new_tokens": 12}, **short)
    of_turns: dict[tuple[str, int], list[float]] = {}
    rollouts = lines(tmp_path / "run" / "trajectories.jsonl")
    turns = [(line["task"], turn) for line in rollouts for turn in line["turns"]]
    assert any("malformed" in turn["results"] for _, turn in turns), "some are cut within a call"
    for task, turn in turns:
        of_turns.setdefault((task, turn["chunk"]), []).append(turn["advantage"])
        assert len(turn["credit"]) == len(turn["credit_from"]) == len(turn["results"]) + 1
    sums = [sum(values) for values in of_turns.values() if None not in values]
    assert sums and sums == pytest.approx([0.0] * len(sums), abs=1e-5), "they are centred over the group"
