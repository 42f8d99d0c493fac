"""Reward of a program that passes its tests.

The program is the reply's last fenced block marked python, else its last fenced block, else the whole reply. A leading
`<think>` part is ignored. It always runs in a sandbox (`sandbox`). Its tests come from a column: Python code such as
`assert` statements (one test each), or standard inputs with their expected outputs.

The program never sees a test. Assert tests run in a second sandbox, where stand-ins forward calls to the program's
functions. Arguments and results cross as plain data, and Python's `==` compares built-in types outside the program's
reach. For inputs and outputs, the program reads the input and its output is compared here. A program therefore cannot
print a verdict, override `__eq__` or read the tests. One that ends itself (`sys.exit`, a signal) fails its tests.

Tests compare None, booleans, numbers, texts, bytes, lists, tuples, sets, dictionaries and ranges by value. A list,
dictionary or set that a function returning None changes in place is changed for the test too. Any other object can be
called, indexed and iterated, but equals only itself. Functions of the test cannot be arguments. A name that a test
neither defines nor imports, and that is no built-in, is the program's. A function under test with a built-in's name
needs the column `entry_point`. `failing_solutions` lists rows whose own solution fails: run it before training.

Limits: a policy can guess answers such as True or False, or know them from its training data. A test that calls the
program's helper trusts it. None of this is detected.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import subprocess
import symtable
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from memalpha.errors import RewardError
from memalpha.rewards.base import read_column, reply_text
from memalpha.rewards.sandbox import OUT_OF_TIME, Limits, check_sandbox, read_output, start_process
from memalpha.rewards.sandbox_child import GONE, UNSENT

CACHE_SIZE = 20_000  # programs whose outcomes are cached
MAX_CHARACTERS = 100_000  # longest program that is run

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_LATE = "out of time"
_EVALUATORS = ("eval", "exec", "compile", "__import__")


@dataclass(frozen=True, slots=True)
class AssertTest:
    """A test in Python: source, names of the program, and modules used without an import."""

    source: str
    names: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputTest:
    """A test by standard input and expected output; white space at line ends is ignored."""

    stdin: str
    stdout: str


Test = AssertTest | OutputTest
Outcomes = tuple[str, ...]
"""Outcome of each test: "" if passed, else the failure."""


class CodeReward:
    """Share of tests that the reply's program passes; None if the column is None.

    Args:
        column: Column with the tests.
        score: "share" for the share of passed tests, "all" for 1 only if all pass.
        limits: Limits of one program (default: `Limits()`).
        concurrency: Programs that run at once (0: one per core).

    Raises:
        ConfigError: There is no sandbox.
        RewardError: A column value holds no valid tests.
    """

    name = "code"

    def __init__(
        self,
        column: str = "tests",
        *,
        score: Literal["share", "all"] = "share",
        limits: Limits | None = None,
        concurrency: int = 0,
    ) -> None:
        check_sandbox()
        self.column, self.score, self.limits = column, score, limits or Limits()
        self.concurrency = concurrency or len(os.sched_getaffinity(0))
        self.columns = (column,)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return a number from 0 to 1, or None, for each completion.

        Args:
            prompts: Ignored.
            completions: Texts or lists of messages.
            columns: Lists as long as `completions`; the column with the tests is required.
        """
        rows = ([not failure for failure in outcomes or ()] for outcomes in self.outcomes(completions, columns))
        if self.score == "all":
            return [float(all(passed)) if passed else None for passed in rows]
        return [sum(passed) / len(passed) if passed else None for passed in rows]

    def outcomes(self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> list[Outcomes | None]:
        """Return each completion's test outcomes; raise `RewardError` for tests that cannot be run."""
        jobs: list[tuple[str, tuple[Test, ...]] | None] = []
        for row, reply in enumerate(completions):
            tests = read_column(columns, self.column)[row]
            try:
                parsed = None if tests is None else parse_tests(tests, _entry_point(columns, row))
            except ValueError as error:
                raise RewardError(f"row {row}: column {self.column!r}: {error}") from error
            jobs.append(None if parsed is None else (extract_program(reply_text(reply, thinking=False)), parsed))
        distinct = [job for job in dict.fromkeys(jobs) if job is not None]
        with ThreadPoolExecutor(self.concurrency) as pool:
            done = list(pool.map(lambda job: run_tests(*job, self.limits), distinct))
        results = [None if job is None else done[distinct.index(job)] for job in jobs]
        for row, (job, outcomes) in enumerate(zip(jobs, results, strict=True)):
            for test, outcome in zip(job[1] if job else (), outcomes or (), strict=True):
                if outcome.startswith(f"{UNSENT} "):
                    why = f"{_test_text(test)!r} cannot be run: {outcome.removeprefix('unsent ')}"
                    advice = "rewrite the test (docs/guides/rewards.md), or leave the row out"
                    raise RewardError(f"row {row}: column {self.column!r}: {why}; {advice}")
        return results


def feedback(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[str]:
    """Return the first failed test of column `tests` for each completion, in one line.

    Use it as `feedback_func` for reflection: it shows the test, which the program never sees. Programs that a
    `CodeReward` with the same limits has run are not run again.

    Args:
        prompts: Ignored.
        completions: Texts or lists of messages.
        columns: `tests`, optionally `entry_point`, each as long as `completions`. "" is returned if all tests pass.
    """
    lines = []
    for row, outcomes in enumerate(CodeReward().outcomes(completions, columns)):
        tests = () if outcomes is None else parse_tests(columns["tests"][row], _entry_point(columns, row))
        lines.append(next((_line(test, what) for test, what in zip(tests, outcomes or (), strict=True) if what), ""))
    return lines


def failing_solutions(columns: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """Find rows whose own solution fails its tests; rows without solution or tests are skipped.

    Args:
        columns: Columns of the data set, all of one length, `solution` and `tests` among them.

    Returns:
        Row index → the first failed test, or the reason why the tests cannot be run. Empty if all pass.

    Raises:
        ConfigError: There is no sandbox.
    """
    problems = {}
    for row, (answer, row_tests) in enumerate(zip(columns["solution"], columns["tests"], strict=True)):
        if answer is None or row_tests is None:
            continue
        entry_points = {name: [columns[name][row]] for name in ("entry_point",) if name in columns}
        try:
            [line] = feedback([None], [answer], tests=[row_tests], **entry_points)
        except RewardError as error:
            line = str(error).removeprefix("row 0: ")
        problems |= {row: line} if line else {}
    return problems


def _entry_point(columns: Mapping[str, Sequence[Any]], row: int) -> str | None:
    return columns["entry_point"][row] if "entry_point" in columns else None


def _line(test: Test, outcome: str) -> str:
    if outcome.startswith("does not run: "):
        return f"The code does not run: {outcome.removeprefix('does not run: ')}."
    if outcome in (_LATE, "ended"):
        return "Out of time." if outcome == _LATE else "The program ends itself."
    return f"{_test_text(test)} {outcome}."


def _test_text(test: Test) -> str:
    text = " ".join(test.source.split()) if isinstance(test, AssertTest) else f"Input {test.stdin.strip()!r}:"
    return text if len(text) <= 200 else f"{text[:197]}..."


# ---------------------------------------------------------------------------------------------------------- reading


def extract_program(reply: str) -> str:
    """Return the program in a reply: its last python block, else its last block, else everything.

    An unclosed last block ends with the reply.
    """
    blocks = [(match[1].casefold(), match[2]) for match in _FENCE.finditer(reply)]
    marked = [text for language, text in blocks if language in ("python", "python3", "py")]
    return (marked or [text for _, text in blocks] or [reply])[-1]


def parse_tests(tests: Any, entry_point: str | None = None) -> tuple[Test, ...]:
    """Parse the tests in a column's value; raise `ValueError` if it has another form.

    A list of Python texts (one test each), one such text, a list of {"input", "output"} or of [input, output], or
    {"inputs": [...], "outputs": [...]}; or JSON of these. `entry_point` names the function under test.
    """
    return _parse_tests(tests if isinstance(tests, str) else json.dumps(tests), isinstance(tests, str), entry_point)


@lru_cache(4096)
def _parse_tests(text: str, is_text: bool, entry_point: str | None) -> tuple[Test, ...]:
    tests: Any = text
    if not is_text or text.lstrip()[:1] in ("[", "{"):
        try:
            tests = json.loads(text)
        except ValueError as error:
            raise ValueError(f"no JSON ({error})") from error
    if isinstance(tests, str):
        tests = [tests]
    if isinstance(tests, dict) and isinstance(tests.get("inputs"), list) and isinstance(tests.get("outputs"), list):
        if len(tests["inputs"]) != len(tests["outputs"]):
            raise ValueError(f"{len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs: one each is needed")
        tests = [list(pair) for pair in zip(tests["inputs"], tests["outputs"], strict=True)]
    if not isinstance(tests, list) or not tests:
        raise ValueError("a list of tests is needed: assert lines, or inputs with outputs")
    parsed = [_test(number, test, entry_point) for number, test in enumerate(tests)]
    if len({type(test) for test in parsed}) > 1:
        raise ValueError("assert lines and inputs with outputs are mixed: take one kind")
    return tuple(parsed)


def _test(number: int, test: Any, entry_point: str | None) -> Test:
    if isinstance(test, str):
        try:
            return _assert_test(test, entry_point)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ValueError(f"test {number}: {error}") from error
    if isinstance(test, dict) and {"input", "output"} <= set(test):
        test = [test["input"], test["output"]]
    if isinstance(test, list) and len(test) == 2 and all(isinstance(part, str) for part in test):
        return OutputTest(*test)
    raise ValueError(f"test {number}: {test!r:.80} is neither Python nor an input with an output, both texts")


def _assert_test(source: str, entry_point: str | None) -> AssertTest:
    tree = ast.parse(source)
    if not tree.body:
        raise ValueError("empty")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if wrong := sorted(used.intersection(_EVALUATORS)):
        raise ValueError(f"it uses {wrong[0]}, by which a program could run text of its own among the tests")
    free = _free_names(symtable.symtable(source, "test", "exec"))
    bases = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # a function may share a module's name: a module is only used by its attributes
    bare = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in bases}
    modules = free.intersection(sys.stdlib_module_names) - bare - {entry_point}
    names = {name for name in free - modules if name not in vars(builtins)}
    if entry_point is not None and entry_point in used:
        names.add(entry_point)
    if not names:
        raise ValueError(
            "it uses no name of the program's, and any program would pass; a function that has a built-in's name is "
            "named by the column entry_point"
        )
    return AssertTest(source, tuple(sorted(names)), tuple(sorted(modules)))


def _free_names(table: symtable.SymbolTable) -> set[str]:
    """Return names that a test reads and does not define."""
    top, symbols = table.get_type() == "module", table.get_symbols()
    names = {symbol.get_name() for symbol in symbols if symbol.is_referenced() and (symbol.is_global() or top)}
    names = names.union(*map(_free_names, table.get_children()))
    defined = (symbol for symbol in symbols if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())
    return names.difference(symbol.get_name() for symbol in defined if top)


# ---------------------------------------------------------------------------------------------------------- running


@lru_cache(CACHE_SIZE)
def run_tests(program: str, tests: tuple[Test, ...], limits: Limits) -> Outcomes:
    """Run a program's tests in sandboxes.

    Args:
        program: Source code.
        tests: Tests of one kind, at least one.
        limits: Limits of the program.

    Returns:
        One outcome per test: "" if passed, else the failure.
    """
    if not program.strip() or len(program) > MAX_CHARACTERS:
        problem = "too long" if program.strip() else "there is no program"
        return (f"does not run: {problem}",) * len(tests)
    if isinstance(tests[0], AssertTest):
        return _run_assert_tests(program, tests, limits)
    outcomes: list[str] = []
    for test in tests:  # an endless loop would use up the time of every test
        is_late = outcomes[-1:] == [_LATE]
        outcomes.append(_LATE if is_late else _run_output_test(program, test, limits))
    return tuple(outcomes)


def _run_assert_tests(program: str, tests: tuple[Any, ...], limits: Limits) -> Outcomes:
    """Run program and tests in two sandboxes, connected by two pipes for requests and replies."""
    deadline = time.monotonic() + limits.clock
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    plain = [(test.source, test.names, test.modules) for test in tests]
    with ExitStack() as children:
        try:
            child = children.enter_context(start_process(limits, (request_read, reply_write), source=program))
            checker = children.enter_context(start_process(limits, (request_write, reply_read), tests=plain))
        finally:
            for fd in (request_read, request_write, reply_read, reply_write):
                os.close(fd)
        verdicts = read_output(checker, deadline).decode("utf-8", "replace").split("\n")[:-1]
        verdicts += [GONE] * (len(tests) - len(verdicts))
        ending = "ended"  # why the program no longer answers
        with suppress(subprocess.TimeoutExpired):
            if GONE in verdicts and (time.monotonic() >= deadline or child.wait(1) in OUT_OF_TIME):
                ending = _LATE
        return tuple(ending if verdict == GONE else verdict for verdict in verdicts)


def _run_output_test(program: str, test: Any, limits: Limits) -> str:
    deadline = time.monotonic() + limits.clock
    with start_process(limits, source=program, stdin=test.stdin.encode("utf-8", "surrogatepass")) as child:
        output = read_output(child, deadline, limits.output_bytes)
        if len(output) > limits.output_bytes:
            return "prints too much"
        try:
            status = child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return _LATE
    if status:
        return _LATE if status in OUT_OF_TIME else f"ends with status {status}"
    return "" if _lines(output.decode("utf-8", "replace")) == _lines(test.stdout) else "gives another output"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
