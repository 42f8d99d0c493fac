"""Named reward functions: values by row, weights, what is refused and how it is named, async in one loop."""

import asyncio
import functools
import inspect
import math
import os
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.config.rewards import PythonPart, SchemaPart
from memalpha.errors import ConfigError, PolicyError, RewardError
from memalpha.rewards.base import RewardFunction, check_columns, close_loop, named, reply_text, score_texts
from memalpha.rewards.environments import load_rewards


def length(prompts, completions, **columns):
    return [float(len(reply)) for reply in completions]


def same(completions, answer, **columns):
    return [float(reply == truth) for reply, truth in zip(completions, answer, strict=True)]


class Awarder:
    name = "awarder"
    maximum = 3

    def __init__(self, worth=3.0):
        self.worth = worth

    def __call__(self, prompts, completions, **columns):
        return [self.worth] * len(completions)


def scored(*functions, replies=("a", "bb"), columns=None):
    made = [named(function) for function in functions]
    return score_texts(made, ["p"] * len(replies), list(replies), columns or {})


def test_a_reward_is_one_turn_with_components_and_their_weighted_sum():
    functions = [named(length, weight=0.5), named(same, "right", 2.0)]
    one, two = score_texts(functions, ["p", "q"], ["a", "bb"], {"answer": ["x", "bb"]})
    assert one.components == {"length": (1.0,), "right": (0.0,)} and one.total == 0.5
    assert two.weights == {"length": 0.5, "right": 2.0} and two.total == 3.0 and two.turns == (3.0,)


def test_what_does_not_apply_is_left_out():
    def first_only(completions):
        return [4.0, None]

    one, two = scored(length, first_only)
    assert one.components == {"length": (1.0,), "first_only": (4.0,)} and one.total == 5.0
    assert two.components == {"length": (2.0,)} and two.weights == {"length": 1.0} and two.total == 2.0
    with pytest.raises(RewardError, match=r"row 1: no reward function applies \(None from first_only\)"):
        scored(first_only)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "gave 1 values for 2 rows"),
        ([1.0, math.nan], "row 1: nan is not a finite number"),
        ([-math.inf, 1], "row 0: -inf is not a finite number"),
        (["1", 1], "row 0: '1' is not a finite number"),
        ([{}, 1], "row 0: {} is not a finite number"),
        ([np.ones(2), 1], r"row 0: array.* is not a finite number"),
        ([1, 10**400], "row 1: 1000.* is not a finite number"),
        (1.0, "gave 1.0: a list of 2 numbers"),
        ("12", "gave '12': a list of 2 numbers"),
        (None, "gave None: a list of 2 numbers"),
        (np.array(1.0), r"gave array\(1.\): a list of 2 numbers"),
        ({1.0, 0.0}, "gave .*: a list of 2 numbers"),  # has no order
    ],
)
def test_values_that_are_none_name_function_and_row(values, said):
    def mine(**columns):
        return values

    with pytest.raises(RewardError, match=f"'mine'.*{said}"):
        scored(mine)


def test_numbers_of_other_libraries_and_truth_values_count():
    assert [one.total for one in scored(lambda **columns: np.array([0.25, 1]))] == [0.25, 1.0]
    assert [one.total for one in scored(lambda **columns: [True, False])] == [1.0, 0.0]


def test_an_error_names_the_function_and_is_no_score():
    def broken(completions):
        raise KeyError("x")

    def unpaid(completions):
        raise PolicyError("the judge is away")

    with pytest.raises(RewardError, match="reward 'broken' raised KeyError: 'x'"):
        scored(length, broken)
    with pytest.raises(PolicyError, match=r"^reward 'unpaid': the judge is away"):
        scored(unpaid)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reply_that_is_executed_and_exits_ends_no_run(is_async):
    def runs(completions):
        exec(completions[0])

    async def awaited(completions):
        runs(completions)

    with pytest.raises(RewardError, match=r"reward '\w+'.* raised SystemExit: 3"):
        scored(awaited if is_async else runs, replies=("exit(3)",))


def test_columns_are_checked_before_and_at_the_call():
    functions = [named(length), named(same)]
    assert functions[0].columns == () and functions[1].columns == ("answer",)
    check_columns(functions, ["answer", "level"])
    with pytest.raises(ConfigError, match=r"'same' needs the column 'answer'; the tasks have level, question"):
        check_columns(functions, ["question", "level"])
    with pytest.raises(ConfigError, match="column 'prompts'"):
        check_columns(functions, ["answer", "prompts"])
    with pytest.raises(RewardError, match="'same' needs the column 'answer', and the rows have none"):
        scored(same)
    with pytest.raises(RewardError, match="column 'answer' has 1 values for 2 rows"):
        scored(same, columns={"answer": ["a"]})
    with pytest.raises(RewardError, match="1 prompts and 2 completions"):
        score_texts(functions, ["p"], ["a", "b"], {})


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("place", ["prompts", "completions", "completion_ids", "answer", "nested", "table"])
def test_a_function_that_changes_what_it_gets_changes_nothing_for_others(place, is_async):
    def empty(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                empty(item)
            value.clear()
        else:
            value *= 0  # an array

    def vandal(**columns):
        empty(columns[place])
        return [0.0, 0.0]

    async def async_vandal(**columns):
        return vandal(**columns)

    def witness(prompts, completions, completion_ids, answer, nested, table):
        seen.append([prompts, completions, completion_ids, answer, nested, [row.tolist() for row in table]])
        return [1.0, 1.0]

    message = [{"role": "user", "content": "p"}]
    columns = {
        "completion_ids": [[1, 2], [3]],
        "answer": ["x", "y"],
        "nested": [{"a": [1]}, {"b": {"c": [2]}}],
        "table": [np.ones(2), np.ones(2)],
    }
    seen: list = []
    functions = [named(async_vandal if is_async else vandal, "vandal"), named(witness)]
    if place == "table":
        functions[0] = named(lambda table: empty(table[0]) or [0.0, 0.0], "vandal")
    for order in (functions, functions[::-1]):
        score_texts(order, [message, message], ["a", "b"], columns)
    assert seen[0] == seen[1] and all(seen[0])
    assert (message[0]["content"], columns["answer"], columns["nested"][1]) == ("p", ["x", "y"], {"b": {"c": [2]}})
    assert columns["table"][0].tolist() == [1.0, 1.0]


def test_token_ids_are_given_or_refused_by_name():
    def count(completions, completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    check_columns([named(count)], [])
    assert [one.total for one in scored(count, columns={"completion_ids": [[1], [2, 3]]})] == [1.0, 2.0]
    with pytest.raises(ConfigError, match="'count' needs completion_ids, and the policy records no token ids"):
        scored(count)


@pytest.mark.parametrize("name", ["trainer_state", "log_extra", "log_metric", "environments"])
def test_what_only_trls_trainers_give_is_refused_at_the_start_unless_it_has_a_default(name):
    scope: dict = {}
    exec(f"def mine(completions, {name}, **columns): return [1.0] * len(completions)", scope)
    exec(f"def easy(completions, {name}=None, **columns): return [1.0] * len(completions)", scope)
    check_columns([named(scope["easy"])], [])
    with pytest.raises(ConfigError, match=f"'mine' needs {name}, which TRL's trainers alone give"):
        check_columns([named(scope["mine"])], [])
    assert named(scope["mine"])(["p"], ["a"], **{name: object()}) == [1.0], "as TRL calls it"


OVERFLOWS = [
    ((1e308,), (10,)), ((1.7e308,) * 2, (1, 1)), ((1e300, -1e300), (1e300,) * 2), ((1e39,), (1,)), ((-1e39,), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("values", "weights"), OVERFLOWS)
def test_a_sum_that_overflows_names_the_functions(values, weights):
    functions = [
        named(lambda completions, value=value: [value] * 2, f"part{at}", weight)
        for at, (value, weight) in enumerate(zip(values, weights, strict=True))
    ]
    with pytest.raises(RewardError, match=r"reward 'part0': .*row 0: the sum is beyond 3\.4e\+38"):
        score_texts(functions, ["p", "q"], ["a", "b"], {})


def test_a_function_without_keywords_gets_what_it_names():
    def strict(completions, level=3):
        return [float(one) for one in level]

    assert [one.total for one in scored(strict, columns={"level": [5, 6], "answer": ["x", "y"]})] == [5.0, 6.0]


def test_replies_are_messages_where_prompts_are():
    seen = []

    def mine(prompts, completions, **columns):
        seen.extend(completions)
        return [1.0] * len(prompts)

    message = [{"role": "user", "content": "p"}]
    made = [{"role": "assistant", "content": "b"}]
    score_texts([named(mine)], [message, message, "text"], ["a", made, "c"], {})
    assert seen == [[{"role": "assistant", "content": "a"}], made, "c"]
    assert [reply_text(one) for one in seen] == ["a", "b", "c"]
    assert reply_text([{"role": "assistant", "content": [{"type": "text", "text": "d"}]}]) == "d"
    assert reply_text([{"role": "assistant", "content": None}]) == "" and reply_text([]) == ""
    assert reply_text("<think>5</think>6", thinking=False) == "6"


# ------------------------------------------------------------------------------------------------------------ async


def gate(count):
    """An async function that goes on when `count` of its kind are under way, and fails when they never are."""
    waiting = []

    async def mine(completions, **columns):
        waiting.append(asyncio.get_running_loop())
        for _ in range(400):
            if len(waiting) >= count:
                return [1.0] * len(completions)
            await asyncio.sleep(0.005)
        raise AssertionError("alone")

    return mine, waiting


def test_async_functions_run_together_in_one_loop_that_stays():
    mine, waiting = gate(2)
    one, two = named(mine, "one"), named(mine, "two")
    assert score_texts([one, named(length), two], ["p"], ["abc"], {})[0].total == 5.0
    score_texts([one, two], ["p"], ["abc"], {})
    assert len({id(loop) for loop in waiting}) == 1 and len(waiting) == 4


def test_async_objects_partials_and_lambdas_are_awaited():
    class Judge:
        async def __call__(self, completions, **columns):
            return [2.0] * len(completions)

    async def bonus(completions, worth):
        return [worth] * len(completions)

    assert scored(Judge())[0].components == {"Judge": (2.0,)}
    assert scored(functools.partial(bonus, worth=0.5))[0].components == {"bonus": (0.5,)}
    assert scored(lambda completions: bonus(completions, 0.25))[0].total == 0.25


def test_an_async_error_is_named_and_ends_the_others():
    ended = threading.Event()

    async def slow(completions):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def broken(completions):
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(RewardError, match="reward 'broken' raised ValueError: no"):
        scored(broken, slow)
    assert ended.wait(5)


def test_an_async_function_that_scores_again_is_an_error_and_no_deadlock():
    inner, _ = gate(1)

    async def outer(completions):
        return [one.total for one in scored(inner)]

    with pytest.raises(RewardError, match=r"'outer'.*await them"):
        scored(outer)


def test_the_loop_is_closed_and_made_anew():
    mine, waiting = gate(1)
    scored(mine)
    close_loop()
    assert waiting[0].is_closed()
    assert not [thread for thread in threading.enumerate() if thread.name == "memalpha rewards"]
    scored(mine)
    assert not waiting[1].is_closed()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_a_loop_of_its_own():
    mine, _ = gate(1)
    scored(mine)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if scored(mine)[0].total == 1.0 else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---------------------------------------------------------------------------------------------------------- loading


def test_callables_and_parts_are_loaded_in_order():
    found = load_rewards([length, named(same, weight=2.0), Awarder(), {"kind": "format", "pattern": "a+", "weight": 3}])
    expected = [("length", 1.0, 1.0), ("same", 2.0, 1.0), ("awarder", 1.0, 3.0), ("format", 3.0, 1.0)]
    assert [(one.name, one.weight, one.maximum) for one in found] == expected


def test_a_reward_function_is_trls(monkeypatch):
    """As `GRPOTrainer` calls it: by keyword, with more than the columns."""
    function = named(gate(1)[0], "judge")
    assert function.__name__ == "judge" and not inspect.iscoroutinefunction(function)
    more = {"completion_ids": [[1]], "trainer_state": object(), "log_extra": print, "log_metric": print}
    assert function(prompts=["p"], completions=["a"], answer=["b"], **more) == [1.0]


def test_a_python_part_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(
        "def short(completions, most=3):\n    return [float(len(one) <= most) for one in completions]\n"
        "class Fixed:\n    def __init__(self, worth): self.worth = worth\n"
        "    def __call__(self, completions, **columns): return [self.worth] * len(completions)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [*before])
    parts = [
        PythonPart(kind="python", function="own_rewards:short", name="a"),
        PythonPart(kind="python", function="own_rewards:short", arguments={"most": 5}, name="b"),
        PythonPart(kind="python", function="own_rewards:Fixed", arguments={"worth": 0.25}),
    ]
    [reward] = score_texts(load_rewards(parts), ["p"], ["abcd"], {})
    assert reward.components == {"a": (0.0,), "b": (1.0,), "Fixed": (0.25,)}
    assert sys.path == [*before, str(tmp_path)], "for what its functions import later, and behind all else"
    for function in ("nowhere_at_all:f", "own_rewards:missing"):
        with pytest.raises(ConfigError, match=rf"rewards\.0: function: '{function}' cannot be found"):
            load_rewards([PythonPart(kind="python", function=function)])
    with pytest.raises(ConfigError, match=r"arguments: 'own_rewards:Fixed' does not take \{\}"):
        load_rewards([PythonPart(kind="python", function="own_rewards:Fixed")])
    with pytest.raises(ConfigError, match=r"rewards\.0: reward 3 is not callable"):
        load_rewards([PythonPart(kind="python", function="own_rewards:number")])
    sys.modules.pop("own_rewards")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "empty"),
        ([length, length], "'length' names 2 parts"),
        ([Awarder], "is a class"),
        ([length, {"kind": "math", "weight": "much"}], r"rewards\.1: weight: Input should be a valid number"),
        ([{"kind": "llm"}], r"rewards\.0: kind 'llm' is none of math, code, format"),
        ([{"column": "answer"}], r"rewards\.0: has no kind, which says what it is"),
        ([PythonPart(kind="python", function="own_rewards")], "write module:name"),
    ],
)
def test_what_cannot_be_a_list_of_rewards_is_refused(parts, said):
    with pytest.raises(ConfigError, match=said):
        load_rewards(parts)


def test_two_functions_of_one_name_and_a_weight_without_a_number_are_refused():
    with pytest.raises(ConfigError, match="'length' names 2 parts"):
        scored(length, length)
    with pytest.raises(ValueError, match="finite"):
        SchemaPart(kind="schema", json_schema={}, weight=math.nan)


@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.floats(-10, 10), min_size=4, max_size=4),
)
def test_the_total_is_the_weighted_sum_of_what_applies(table, weights):
    functions = [
        RewardFunction(f"f{number}", lambda values=values, **columns: values, weight)
        for number, (values, weight) in enumerate(zip(table, weights, strict=False))
    ]
    applies = [[values[row] for values in table if values[row] is not None] for row in range(3)]
    if not all(applies):
        with pytest.raises(RewardError, match=f"row {applies.index([])}"):
            score_texts(functions, ["p"] * 3, ["c"] * 3, {})
        return
    for row, reward in enumerate(score_texts(functions, ["p"] * 3, ["c"] * 3, {})):
        expected = [
            weight * values[row] for values, weight in zip(table, weights, strict=False) if values[row] is not None
        ]
        assert reward.total == pytest.approx(sum(expected), rel=1e-9, abs=1e-6)
        assert len(reward.components) == len(reward.weights) == len(expected)
