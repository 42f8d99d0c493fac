"""Small programming problems by number: a function is described in a line, tests decide.

What is asked for, a program that does it and its tests all follow from one drawn expression; expected values are
computed from the expression, not from a model. A test problem has constants that no training problem of its kind has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from memalpha.tasks.synthetic.phrases import LEVELS, Level, Split, is_held_out
from memalpha.types import TextTask

TESTS = 5
"""Tests of a problem."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Describe a kind of problem in terms of constants `k` and `m`.

    Attributes:
        level: "easy": one operation on a number; "medium": two; "hard": an operation on a list.
        description: Words for the expression.
        code: Python expression; it computes the expected values, too.
    """

    level: Level
    description: str
    code: str

    @property
    def argument(self) -> str:
        """Name of the argument: `xs` for a list, else `x`."""
        return "xs" if self.level == "hard" else "x"


KINDS = (
    ProblemKind("easy", "x plus {k}", "x + {k}"),
    ProblemKind("easy", "x minus {k}", "x - {k}"),
    ProblemKind("easy", "{k} minus x", "{k} - x"),
    ProblemKind("easy", "{k} times x", "{k} * x"),
    ProblemKind("easy", "the larger of x and {k}", "max(x, {k})"),
    ProblemKind("easy", "the smaller of x and {k}", "min(x, {k})"),
    ProblemKind("medium", "{k} times x, plus {m}", "{k} * x + {m}"),
    ProblemKind("medium", "{k} times x, minus {m}", "{k} * x - {m}"),
    ProblemKind("medium", "x squared, plus {k}", "x * x + {k}"),
    ProblemKind("medium", "the rest of x divided by {k}", "x % {k}"),
    ProblemKind("medium", "x divided by {k}, rounded down", "x // {k}"),
    ProblemKind("medium", "whether x is at least {k}", "x >= {k}"),
    ProblemKind("hard", "the sum of xs, plus {k}", "sum(xs) + {k}"),
    ProblemKind("hard", "the largest of xs, minus {k}", "max(xs) - {k}"),
    ProblemKind("hard", "the smallest of xs, times {k}", "min(xs) * {k}"),
    ProblemKind("hard", "a list of each of xs plus {k}", "[x + {k} for x in xs]"),
    ProblemKind("hard", "a list of those of xs above {k}", "[x for x in xs if x > {k}]"),
    ProblemKind("hard", "how many of xs are below {k}", "sum(x < {k} for x in xs)"),
)


def tasks(split: Split, seed: int, start: int, count: int, level: Level | None = None) -> list[TextTask]:
    """Generate programming problems `start` to `start + count - 1` of a split.

    Args:
        split: "train" or "test"; a kind with its constants belongs to one of them.
        seed: Seed of the problems.
        start: Number of the first problem.
        count: Number of problems.
        level: One level for all; default: the three levels in turn.

    Returns:
        Tasks with the columns `tests` (assert lines), `level` and `solution` (a program in a fenced block).
    """
    numbers = range(start, start + count)
    return [generate(split, seed, number, level or LEVELS[number % len(LEVELS)]) for number in numbers]


def generate(split: Split, seed: int, number: int, level: Level) -> TextTask:
    """Generate one problem as a pure function of its arguments.

    Args:
        split: "train" or "test".
        seed: Seed of the problems.
        number: Number of the problem.
        level: "easy", "medium" or "hard".
    """
    rng = Random(f"programs|{split}|{seed}|{number}|{level}")
    kind = rng.choice([kind for kind in KINDS if kind.level == level])
    while True:
        k, m = rng.randint(2, 30), rng.randint(2, 30)
        if is_held_out(f"{kind.description}|{k}") == (split == "test"):
            break
    description, code = kind.description.format(k=k, m=m), kind.code.format(k=k, m=m)
    near = [k, k - 1, k + 1, -k, 0, 3 * k + 1]  # a slip (< for <=, max for min) shows around the constants
    inputs: Sequence[Any] = (
        [rng.sample(near, rng.randint(2, 5)) for _ in range(TESTS)]
        if kind.argument == "xs"
        else rng.sample(near, TESTS)
    )
    tests = [f"assert f({value!r}) == {eval(code, {kind.argument: value})!r}" for value in inputs]
    return TextTask(
        id=f"programs-{split}-{seed}-{number}-{level}",
        prompt=f"Write a Python function f({kind.argument}) that returns {description}.",
        columns={"tests": tests, "level": level, "solution": program(kind.argument, code)},
        category=level,
    )


def program(argument: str, expression: str) -> str:
    """Return a reply that defines `f` by an expression."""
    return f"```python\ndef f({argument}):\n    return {expression}\n```"
