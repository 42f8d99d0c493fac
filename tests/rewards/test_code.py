"""Programs and their tests: what is read from replies and columns, what passes, and what cannot be a test."""

import json
import math
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.config.rewards import CodePart
from memalpha.errors import RewardError
from memalpha.rewards import code, sandbox
from memalpha.rewards import sandbox_child as inside
from memalpha.rewards.base import score_texts
from memalpha.rewards.code import CodeReward, OutputTest, extract_program, feedback, parse_tests, run_tests
from memalpha.rewards.environments import load_rewards
from memalpha.rewards.sandbox import Limits

WHY = sandbox._find_problem(shutil.which("bwrap"), os.environ.get("PATH", ""))
contained = pytest.mark.skipif(bool(WHY), reason=f"no sandbox here: {WHY}")


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("x = 1", "x = 1"),
        ("a\n```python\nx = 1\n```\nb", "x = 1\n"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\ngives\n```text\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```\n```\nx = 2\n```", "x = 2\n"),
        ("```python\nx = '''\n  ``\n'''\n", "x = '''\n  ``\n'''\n"),
        ("  ```Python title=a\n  x = 1\n  ```", "  x = 1\n"),
        ("", ""),
    ],
)
def test_the_program_of_a_reply(reply, program):
    assert extract_program(reply) == program


LINES = st.lists(st.text(alphabet="abc =()#`'\"", max_size=12).filter(lambda line: "```" not in line), max_size=6)


@given(LINES, st.sampled_from(["", "Here:\n", "```python\nold = 1\n```\n"]), st.sampled_from(["", "\n", "\nDone."]))
def test_a_program_comes_back_from_its_block(lines, before, after):
    program = "".join(line + "\n" for line in lines)
    assert extract_program(f"{before}```python\n{program}```{after}") == program


@given(st.text(alphabet="`python\n \t~x", max_size=60))
def test_no_reply_raises(reply):
    assert extract_program(reply) in reply


def test_names_of_tests_are_the_programs_unless_known():
    [one] = parse_tests(
        "import operator\nn = 3\nassert operator.eq(f(math.floor(2.5)), calendar(n)) and len([x for x in f(1)])"
    )
    assert one.names == ("calendar", "f") and one.modules == ("math",)
    [two] = parse_tests("def check(candidate):\n    assert candidate(2) == g()\ncheck(f)")
    assert two.names == ("f", "g")
    with pytest.raises(ValueError, match=r"test 0: it uses no name of the program's.*entry_point"):
        parse_tests("assert sum(1, 2) == 3")
    assert parse_tests("assert sum(1, 2) == 3", "sum")[0].names == ("sum",)


def test_forms_of_tests():
    pairs = (OutputTest("1\n", "2\n"), OutputTest("3", "4"))
    for form in (
        [["1\n", "2\n"], ["3", "4"]],
        [{"input": "1\n", "output": "2\n"}, {"input": "3", "output": "4"}],
        {"inputs": ["1\n", "3"], "outputs": ["2\n", "4"]},
    ):
        assert parse_tests(form) == parse_tests(json.dumps(form)) == pairs
    assert parse_tests(["assert f(1)"]) == parse_tests("assert f(1)") == parse_tests('["assert f(1)"]')


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([], "a list of tests is needed"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        (["assert f("], "test 0: '\\(' was never closed"),
        (["assert f(1)", ["1", "2"]], "mixed"),
        ([["1", 2]], r"test 0: \['1', 2\] is neither"),
        ([3], "test 0: 3 is neither"),
        ("[nothing", "no JSON"),
        (["# nothing"], "test 0: empty"),
        (["assert eval(f(1)) == 2"], "test 0: it uses eval, by which a program could run"),
        (3, "a list of tests is needed"),
    ],
)
@contained
def test_what_cannot_be_a_test_names_the_row(tests, said):
    with pytest.raises(RewardError, match=rf"reward 'code': row 1: column 'tests': .*{said}"):
        load_rewards([CodePart(kind="code")])[0](["p"] * 2, ["x", "x"], tests=["assert f(1)", tests])


SQUARE = "def f(x):\n    return x * x"


@contained
def test_rewards_are_shares_or_all_or_nothing():
    tests = ["assert f(2) == 4", "assert f(-3) == 9", "assert f(1) == 1"]
    replies = [f"```python\n{SQUARE}\n```", "```python\ndef f(x):\n    return abs(x) + 2\n```", "def f(x) return", ""]
    columns = {"tests": [tests] * 4}
    rewards = score_texts(load_rewards([CodePart(kind="code", weight=2)]), ["p"] * 4, replies, columns)
    assert [one.total for one in rewards] == pytest.approx([2, 2 / 3, 0, 0])
    everything = load_rewards([CodePart(kind="code", score="all", name="solved")])
    assert everything[0](["p"] * 4, replies, **columns) == [1, 0, 0, 0]
    assert everything[0](["p"] * 2, replies[:2], tests=[None, tests]) == [None, 0]
    lines = feedback(["p"] * 4, replies, **columns)
    broken = "The code does not run: "
    assert lines == ["", "assert f(-3) == 9 fails.", f"{broken}SyntaxError.", f"{broken}there is no program."]


@contained
def test_a_program_is_run_once(monkeypatch):
    ran = []
    monkeypatch.setattr(code, "_run_assert_tests", lambda text, tests, limits: ran.append(text) or ("",) * len(tests))
    function = CodeReward()
    tests = {"tests": [["assert f(77) == 77"]] * 3}
    assert function(["p"] * 3, ["a = 1", "a = 1", "a = 2"], **tests) == [1, 1, 1]
    assert feedback(["p"] * 3, ["a = 1", "a = 1", "a = 2"], **tests) == ["", "", ""]
    assert sorted(ran) == ["a = 1", "a = 2"]


VALUES = (
    "None",
    "[True, 1, 1.5, -0.0, 10**400, -1, 'é\\ud800', b'\\x00', 1j]",
    "({1, 2}, frozenset('a'), {'a': (1, [2])}, range(3, 9, 2))",
    "[float('inf'), float('-inf')]",
)


@contained
def test_values_cross_as_they_are():
    program = """
def f(x): return x
def kind(x): return repr(x)
def order(values): values.sort()
def note(found, seen, x): found.setdefault(x, []).append(x); seen.add(x)
def empty(values): values.clear(); return []
"""
    tests = [f"assert f({value}) == {value} and kind({value}) == repr({value})" for value in VALUES]
    tests += [
        "assert all(type(one) is type(two) for one, two in zip(f([True, 1, 1.0]), [True, 1, 1.0]))",
        "assert isinstance(f((1,)), tuple)",
        "x = f(float('nan'))\nassert x != x",
        "assert f(x=3) == 3",
        "values = [3, 1]\nf(values).append(2)\nassert values == [3, 1]",
        "values = [3, 1]\nassert order(values) is None and values == [1, 3]",
        "found, seen = {}, set()\nnote(found, seen, 4)\nassert found == {4: [4]} and seen == {4}",
        "assert empty([3, 1]) == []\nvalues = [3, 1]\nassert empty(values) != sorted(values)",
    ]
    assert run_tests(program, parse_tests(tests), Limits()) == ("",) * len(tests)


@contained
def test_classes_exceptions_callbacks_and_helpers():
    program = """
from collections import Counter, namedtuple
import threading, sys
LIMIT = 3
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, item):
        if len(self.items) == LIMIT: raise OverflowError("full")
        self.items.append(item)
        return self
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
    def __iter__(self): return iter(self.items)
    def __str__(self): return "stack"
class Own(Exception): pass
def own(): raise Own("x")
def count(text): return Counter(text)
def squares(n):
    for i in range(n): yield i * i
def point(): return namedtuple("P", "x y")(1, 2)
def apply(function, value): return function(value)
def twice(x): return 2 * x
def made(n):
    def inner(x): return x + n
    return inner
def deep():
    found = []
    def main(): found.append(1)
    threading.stack_size(1 << 26)
    thread = threading.Thread(target=main); thread.start(); thread.join()
    return found
def leave(): exit()
from dataclasses import dataclass
@dataclass
class Place:
    x: int
def place(x): return Place(x)
"""
    tests = [
        "s = Stack([1])\nassert len(s) == 1 and s.push(2).push(3) is s\nassert s.items == [1, 2, 3] == list(s)",
        "s = Stack()\nassert s.push(5)[0] == 5 and str(s) == 'stack' and LIMIT == 3",
        "s = Stack([1, 2, 3])\ntry:\n    s.push(4)\nexcept OverflowError as e:\n    e = str(e)\n    assert e == 'full'",
        "assert not Stack() and Stack([0]) and twice",
        "try:\n    own()\n    assert False\nexcept RuntimeError as error:\n    assert str(error) == 'Own: x'",
        "assert count('abca') == {'a': 2, 'b': 1, 'c': 1}",
        "assert list(squares(4)) == [0, 1, 4, 9] and sum(squares(3)) == 5",
        "assert point() == (1, 2)",
        "assert apply(twice, 4) == 8 and made(3)(4) == 7",
        "def check(candidate):\n    for n in range(3):\n        assert candidate(n) == 2 * n\ncheck(twice)",
        "assert deep() == [1]",
        "assert place(2).x == 2 and next(squares(3)) == 0",
        "s = Stack()\ns.items = [9]\nassert s[0] == 9",
    ]
    assert run_tests(program, parse_tests(tests), Limits()) == ("",) * len(tests)
    calls = ("Stack() == Stack()", "missing(1)", "own()", "leave()", "squares(1) == [0]")
    outcomes = run_tests(program, parse_tests([f"assert {call}" for call in calls]), Limits())
    assert outcomes == ("fails", "raises NameError", "raises Own", "raises SystemExit", "fails")


@contained
def test_only_a_call_that_returns_nothing_changes_its_arguments():
    """A program that writes answers itself cannot empty the list with which the test compares."""
    program = """
import os
def f(values):
    for fd in range(3, 64):
        try:
            os.write(fd, b"['value',[],[[]]]\\n")
        except OSError:
            pass
    os._exit(0)
"""
    tests = parse_tests("values = [3, 1]\nassert f(values) == sorted(values)")
    assert run_tests(program, tests, Limits()) == ("fails",)
    honest = "def f(values):\n    values.sort()"
    assert run_tests(honest, parse_tests("v = [3, 1]\nassert f(v) is None and v == [1, 3]"), Limits()) == ("",)


@contained
def test_a_test_that_cannot_be_run_is_no_nought():
    function = CodeReward()
    for test, said in {
        "assert f(lambda x: x) == 1": "gives the program a function, which is no plain data",
        "import numpy\nassert f(1) == 1": "No module named 'numpy'",
    }.items():
        with pytest.raises(RewardError, match=rf"row 0: column 'tests': .* cannot be run: .*{said}; rewrite the test"):
            function(["p"], [SQUARE], tests=[[test]])


@contained
def test_what_is_printed_for_an_input_is_compared():
    program = "import sys\nn = int(input())\nrest = sys.stdin.read().split()\nprint(n * 2, *rest)\nprint()\nexit()"
    long = "a " * 200_000
    pairs = [["2\na b\n", "4 a b"], ["3\n", "6  \n\n"], ["3\n", "7"], ["x\n", "0"], [f"5\n{long}", f"10 {long}"]]
    outcomes = run_tests(program, parse_tests(pairs), Limits())
    assert outcomes == ("", "", "gives another output", "ends with status 1", "")
    flood, loop = "while True: print('x' * 1000)", "while True: pass"
    short = Limits(seconds=1)
    assert run_tests(flood, parse_tests([["", "x"]]), short) == ("prints too much",)
    assert run_tests(loop, parse_tests([["", "x"]]), short) == ("out of time",)
    assert run_tests("print(open(0).read())", parse_tests([["a\nb", "a\nb"]]), short) == ("",)
    assert feedback(["p"], ["print(3)"], tests=[[["2", "4"]]]) == ["Input '2': gives another output."]


@contained
def test_a_loop_costs_its_time_once(monkeypatch):
    ran = []
    monkeypatch.setattr(code, "_run_output_test", lambda source, test, limits: ran.append(test) or "out of time")
    assert run_tests("while True: pass", parse_tests([["1", "1"]] * 9), Limits()) == ("out of time",) * 9
    assert len(ran) == 1


@contained
def test_rows_whose_own_solution_fails_are_found():
    tests = ["assert f(2) == 4"]
    columns = {
        "tests": [tests, tests, None, ["assert f(int) == 4"], ["assert f("]],
        "solution": [SQUARE, "def f(x): return x", SQUARE, SQUARE, SQUARE],
    }
    found = code.failing_solutions(columns)
    assert found.keys() == {1, 3, 4} and found[1] == "assert f(2) == 4 fails."
    assert "gives the program a type, which is no plain data" in found[3] and "was never closed" in found[4]


# ---------------------------------------------------------------------------------------------------- plain data

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    | st.frozensets(st.integers() | st.text()) | st.sets(st.booleans() | st.integers(2)),
    max_leaves=15,
)  # fmt: skip


def no_other(value):
    raise AssertionError(value)


@settings(max_examples=60)
@given(PLAIN)
def test_data_comes_back_with_its_types(value):
    back = inside.decode(inside.encode(value, no_other), no_other)
    assert back == value and repr(type(back)) == repr(type(value))
    assert inside.encode(back, no_other) == inside.encode(value, no_other) or isinstance(
        value, set | frozenset | list | tuple | dict
    )


class Handle:
    def __init__(self, number):
        self.number = number


PIECES = ("set(", "tuple(", "object(", "range(", "complex(", "open(", "__import__(", "x.", "lambda", "[", "]", "{", "}")
PIECES += ("(", ")", ":", ",", "-", "1", "'a'", "inf", "nan", "None", "*")
LITERALS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(st.text(max_size=40) | LITERALS)
def test_no_text_makes_anything_but_data(text):
    try:
        value = inside.decode(text, Handle)
    except inside.Outcome:
        return
    known = (type(None), bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, Handle)
    assert type(value) in (*known, type(...))


def test_texts_that_are_too_deep_or_no_literals_are_no_values():
    assert math.isnan(inside.decode(inside.encode(math.nan, no_other), no_other))
    code = ("__import__('os')", "().__class__", "[x for x in 'ab']", "(lambda: 1)()", "f'{1}'", "1 if 1 else 2")
    for text in ("[" * 500 + "]" * 500, "-" * 100_000 + "1", "set([[]])", "", "1 2", "object()", "\0", "{**{}}", *code):
        with pytest.raises(inside.Outcome):
            inside.decode(text, Handle)
    nested = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(inside.Outcome):
        inside.decode(inside.encode(nested, no_other), no_other)


def test_exceptions_that_end_loops_are_not_raised_among_tests():
    """Else `all(map(check, cases))` would be true of a program that raises StopIteration."""
    ends = ("StopIteration", "StopAsyncIteration", "SystemExit", "KeyboardInterrupt", "GeneratorExit")
    for name in (*ends, "print", "Own"):
        error = inside.make_exception(name, "x")
        assert type(error) is RuntimeError and error.of_program == name
    assert type(inside.make_exception("KeyError", "x")) is KeyError
