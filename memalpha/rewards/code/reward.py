"""The reward of a program that passes its tests.

The program is the reply's last fenced block marked python, else its last fenced block, else the whole reply (without a
leading `<think>` part). It runs in a sandbox (`sandbox`), and never without one. Its tests are the column's: a list of
`assert` statements or other Python (one test each), or of standard input with the output that is right.

The program never sees a test. With assert lines, these run in a sandbox of their own in which the program's functions
stand in for those in the other: a call carries the arguments over as plain data, and the value back, and the comparison
is Python's own on built-in types, where nothing of the program is. With input and output, the program reads the one and
what it printed is compared here. So there is no verdict to print, no result with an `__eq__` of its own, no file to
read, and a program that ends itself (`sys.exit`, `os._exit`, a signal) fails its tests.

What follows for tests: arguments and results are compared by value (None, truth values, numbers, texts, bytes, lists,
tuples, sets, dictionaries, ranges, nested); a list, dictionary or set that a function which gives None has changed is
changed for the test too; any other object (of a class of the program's, a date, a Fraction) can be called, asked for
attributes, items and its length, and equals only itself. Functions of the test cannot be arguments. A test imports what
it uses itself: a name that it neither defines nor imports, and that is no built-in, is the program's, also where the
test takes it for a helper. A name under test that is a built-in's needs the column `entry_point`. `failing_solutions`
finds the rows whose own solution does not pass: best before a run.

What remains: a test decides what it decides. Answers that can be guessed (True or False) are guessed, answers that were
in the training data may be known by heart, a test that calls the program's helper believes it; none of that is seen.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import select
import subprocess
import symtable
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from memalpha.errors import RewardError
from memalpha.rewards.code import child as inside
from memalpha.rewards.code.sandbox import Limits, check_sandbox, end, start
from memalpha.rewards.reply import column_of, reply_text

KEPT = 20_000
"""Programs whose outcomes are remembered."""
LONGEST = 100_000
"""Characters of a program; a longer one is not run."""

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = ("python", "python3", "py")
_RUNNING_TEXT = ("eval", "exec", "compile", "__import__")


@dataclass(frozen=True, slots=True)
class Asserted:
    """A test in Python: its source, the names that are the program's, and modules that it uses without importing."""

    source: str
    names: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Printed:
    """A test by standard input and the output that is right (but for white space at the ends of lines)."""

    given: str
    right: str


Test = Asserted | Printed
Outcomes = tuple[str, ...]
"""By test: "" where it passed, else what went wrong."""
_Job = tuple[str, tuple[Test, ...]]


class CodeReward:
    """The share of tests that the reply's program passes, or (`score` "all") 1 where it passes all and else 0.

    None where the column is None. `concurrency` programs run at once (0: as many as there are cores). Raises
    `ConfigError` where there is no sandbox, `RewardError` for a column that holds no tests.
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
        """A number from 0 to 1, or None, for each completion."""
        return [None if one is None else self._score(one) for one in self.outcomes(completions, columns)]

    def outcomes(self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> list[Outcomes | None]:
        """What became of each test of each completion: "" where it passed, else what went wrong."""
        jobs = [self._read_row(row, reply, columns) for row, reply in enumerate(completions)]
        todo = [job for job in dict.fromkeys(jobs) if job is not None and (*job, self.limits) not in _KNOWN]
        with ThreadPoolExecutor(self.concurrency) as pool:
            done = list(pool.map(lambda job: run(job[0], job[1], self.limits), todo))
        if len(_KNOWN) > KEPT:
            _KNOWN.clear()
        new = {(*job, self.limits): found for job, found in zip(todo, done, strict=True)}
        found = [None if job is None else new.get((*job, self.limits)) or _KNOWN[*job, self.limits] for job in jobs]
        _KNOWN.update(new)
        for row, (job, outcomes) in enumerate(zip(jobs, found, strict=True)):
            for test, outcome in zip(job[1] if job else (), outcomes or (), strict=True):
                if outcome.startswith("unsent "):
                    raise RewardError(
                        f"row {row}: column {self.column!r}: {_shown(test)!r} cannot be run: "
                        f"{outcome.removeprefix('unsent ')}; rewrite the test (docs/rewards.md), or leave the row out"
                    )
        return found

    def _read_row(self, row: int, reply: Any, columns: Mapping[str, Sequence[Any]]) -> _Job | None:
        tests = column_of(columns, self.column)[row]
        if tests is None:
            return None
        try:
            return program_of(reply_text(reply, thinking=False)), suite(tests, _entry(columns, row))
        except ValueError as error:
            raise RewardError(f"row {row}: column {self.column!r}: {error}") from error

    def _score(self, outcomes: Outcomes) -> float:
        passed = sum(not outcome for outcome in outcomes)
        return passed / len(outcomes) if self.score == "share" else float(passed == len(outcomes))


_KNOWN: dict[tuple[str, tuple[Test, ...], Limits], Outcomes] = {}


def feedback(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[str]:
    """The first test of column `tests` that each completion fails, in a line; "" where it passes all.

    For reflection (`feedback_func`): it shows the test, which the program itself never sees. What a `CodeReward` with
    the same limits has run is not run again.
    """
    lines = []
    for row, outcomes in enumerate(CodeReward().outcomes(completions, columns)):
        tests = (
            () if outcomes is None else suite(columns["tests"][row], (columns.get("entry_point") or {row: None})[row])
        )
        lines.append(next((_line(test, what) for test, what in zip(tests, outcomes or (), strict=True) if what), ""))
    return lines


def failing_solutions(
    columns: Mapping[str, Sequence[Any]], *, tests: str = "tests", solution: str = "solution"
) -> dict[int, str]:
    """Row → which test its own solution fails, or why its tests cannot be run. Empty: all is well.

    Rows without a solution or tests are passed over. Raises `ConfigError` where there is no sandbox.
    """
    reward, found = CodeReward(tests), {}
    for row, (answer, given) in enumerate(zip(columns[solution], columns[tests], strict=True)):
        if answer is None or given is None:
            continue
        one = {tests: [given], **({"entry_point": [_entry(columns, row)]} if "entry_point" in columns else {})}
        try:
            [outcomes] = reward.outcomes([answer], one)
        except RewardError as error:
            found[row] = str(error).removeprefix("row 0: ")
            continue
        wrong = [
            (test, what) for test, what in zip(suite(given, _entry(columns, row)), outcomes or (), strict=True) if what
        ]
        found |= {row: _line(*wrong[0])} if wrong else {}
    return found


def _entry(columns: Mapping[str, Sequence[Any]], row: int) -> str | None:
    return columns["entry_point"][row] if "entry_point" in columns else None


def _line(test: Test, outcome: str) -> str:
    if outcome.startswith("does not run: "):
        return f"The code does not run: {outcome.removeprefix('does not run: ')}."
    if outcome in ("out of time", "ended"):
        return "Out of time." if outcome == "out of time" else "The program ends itself."
    return f"{_shown(test)} {outcome}."


def _shown(test: Test) -> str:
    text = " ".join(test.source.split()) if isinstance(test, Asserted) else f"Input {test.given.strip()!r}:"
    return text if len(text) <= 200 else f"{text[:197]}..."


# ---------------------------------------------------------------------------------------------------------- reading


def program_of(reply: str) -> str:
    """The program in a reply: its last block marked python, else its last block, else all of it.

    A last block that is not closed ends with the reply.
    """
    blocks = [(found[1].casefold(), found[2]) for found in _FENCE.finditer(reply)]
    marked = [text for language, text in blocks if language in _PYTHON]
    return (marked or [text for _, text in blocks] or [reply])[-1]


def suite(tests: Any, entry_point: str | None = None) -> tuple[Test, ...]:
    """The tests in a column's value. Raises `ValueError` saying what is wrong with it.

    A list of texts (Python, a test each), one such text, a list of {"input", "output"} or of [input, output], or
    {"inputs": [...], "outputs": [...]}; or JSON of these.
    """
    return _suite(tests if isinstance(tests, str) else json.dumps(tests), isinstance(tests, str), entry_point)


@lru_cache(4096)
def _suite(text: str, is_text: bool, entry_point: str | None) -> tuple[Test, ...]:
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
    found = [_test(number, test, entry_point) for number, test in enumerate(tests)]
    if len({type(test) for test in found}) > 1:
        raise ValueError("assert lines and inputs with outputs are mixed: take one kind")
    return tuple(found)


def _test(number: int, test: Any, entry_point: str | None) -> Test:
    if isinstance(test, str):
        try:
            return _asserted(test, entry_point)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ValueError(f"test {number}: {error}") from error
    if isinstance(test, dict) and {"input", "output"} <= set(test):
        test = [test["input"], test["output"]]
    if isinstance(test, list) and len(test) == 2 and all(isinstance(part, str) for part in test):
        return Printed(*test)
    raise ValueError(f"test {number}: {test!r:.80} is neither Python nor an input with an output, both texts")


def _asserted(source: str, entry_point: str | None) -> Asserted:
    tree = ast.parse(source)
    if not tree.body:
        raise ValueError("empty")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if wrong := sorted(used.intersection(_RUNNING_TEXT)):
        raise ValueError(f"it uses {wrong[0]}, by which a program could run text of its own among the tests")
    free = _free(symtable.symtable(source, "test", "exec"))
    modules = {name for name in free & sys.stdlib_module_names if _is_module(tree, name) and name != entry_point}
    names = {name for name in free - modules if not hasattr(builtins, name)}
    if entry_point is not None and entry_point in used:
        names.add(entry_point)
    if not names:
        raise ValueError(
            "it uses no name of the program's, and any program would pass; a function that has a built-in's name is "
            "named by the column entry_point"
        )
    return Asserted(source, tuple(sorted(names)), tuple(sorted(modules)))


def _is_module(tree: ast.AST, name: str) -> bool:
    """Whether it is used by its attributes alone: a function may have a module's name."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    bases = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return all(node in bases for node in nodes)


def _free(table: symtable.SymbolTable) -> set[str]:
    """Names that a test reads and does not define."""
    top = table.get_type() == "module"
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or top) and not (top and _is_defined(symbol))
    }
    for child in table.get_children():
        found |= _free(child)
    return found - {symbol.get_name() for symbol in table.get_symbols() if top and _is_defined(symbol)}


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


# ---------------------------------------------------------------------------------------------------------- running


def run(program: str, tests: tuple[Test, ...], limits: Limits) -> Outcomes:
    """What became of each test of a program: "" where it passed."""
    if not program.strip() or len(program) > LONGEST:
        return ("does not run: there is no program" if program.strip() == "" else "does not run: too long",) * len(
            tests
        )
    source = program.encode("utf-8", "surrogatepass")
    if isinstance(tests[0], Printed):
        outcomes = []
        for test in tests:
            late = outcomes[-1:] == ["out of time"]  # one that loops would take its time for every test
            outcomes.append("out of time" if late or not isinstance(test, Printed) else _printed(source, test, limits))
        return tuple(outcomes)
    return _asserts(source, [test for test in tests if isinstance(test, Asserted)], limits)


def _asserts(source: bytes, tests: list[Asserted], limits: Limits) -> Outcomes:
    """Two sandboxes and two pipes between them: the tests ask, the program answers."""
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + limits.clock
    try:
        try:
            children.append(start("serve", source, limits, (asked, answer)))
            plain = inside.dump([(test.source, test.names, test.modules) for test in tests], _never)
            children.append(start("check", plain, limits, (ask, answered), output=True))
        finally:
            for fd in (asked, ask, answered, answer):
                os.close(fd)
        outcomes = _verdicts(children[1], len(tests), until)
        if len(outcomes) < len(tests) or "gone" in outcomes:
            what = _why(children[0], until)
            outcomes = [what if outcome == "gone" else outcome for outcome in outcomes]
            outcomes += [what] * (len(tests) - len(outcomes))
        return tuple(outcomes)
    finally:
        for child in children:
            end(child)


def _never(value: object) -> int:
    raise TypeError(f"{type(value)} in a test")


def _verdicts(child: subprocess.Popen[bytes], count: int, until: float) -> list[str]:
    """The messages of `inside.check`, as far as they came."""
    outcomes: list[str] = []
    got = b""
    while len(outcomes) < count:
        length = int(got[:8], 16) if len(got) >= 8 else 0
        if len(got) >= 8 + length and len(got) >= 8:
            outcomes.append(got[8 : 8 + length].decode("utf-8", "replace"))
            got = got[8 + length :]
            continue
        if not (part := _read(child, until)):
            break
        got += part
    return outcomes


def _read(child: subprocess.Popen[bytes], until: float) -> bytes:
    """What it says next; nothing where it has ended or the time is over."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
        return b""
    return os.read(child.stdout.fileno(), 65536)


def _why(child: subprocess.Popen[bytes], until: float) -> str:
    """Why a program answers no more."""
    if time.monotonic() >= until:
        return "out of time"
    try:
        status = child.wait(1)
    except subprocess.TimeoutExpired:
        return "ended"
    return "out of time" if status in (128 + 9, 128 + 24, -9) else "ended"


def _printed(source: bytes, test: Printed, limits: Limits) -> str:
    until = time.monotonic() + limits.clock
    child = start("script", source, limits, given=test.given.encode("utf-8", "surrogatepass"), output=True)
    said = b""
    try:
        while part := _read(child, until):
            said += part
            if len(said) > limits.output_bytes:
                return "prints too much"
        if time.monotonic() >= until:
            return "out of time"
        try:
            status = child.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "out of time"
    finally:
        end(child)
    if status:
        return "out of time" if status in (128 + 9, 128 + 24) else f"ends with status {status}"
    return "" if _lines(said.decode("utf-8", "replace")) == _lines(test.right) else "gives another output"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
