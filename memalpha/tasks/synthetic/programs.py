"""Small programming problems by number: a function is described in a line, tests decide.

What is asked for, a program that does it and its tests all follow from one drawn expression; expected values are
computed from the expression, not from a model. A test problem has constants that no training problem of its kind has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from memalpha.tasks.synthetic.value_pools import Split, is_held_out
from memalpha.types import TextTask

Level = Literal["easy", "medium", "hard"]

LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")
"""One operation on a number; two; something done to a list."""
TESTS = 5
"""Tests a problem has."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its description and expression in terms of constants `k` and `m`, and what computes it."""

    level: Level
    asked: str
    code: str
    call: Callable[[Any, int, int], Any]

    @property
    def argument(self) -> str:
        """`xs` where it takes a list."""
        return "xs" if self.level == "hard" else "x"


KINDS = (
    Kind("easy", "x plus {k}", "x + {k}", lambda x, k, m: x + k),
    Kind("easy", "x minus {k}", "x - {k}", lambda x, k, m: x - k),
    Kind("easy", "{k} minus x", "{k} - x", lambda x, k, m: k - x),
    Kind("easy", "{k} times x", "{k} * x", lambda x, k, m: k * x),
    Kind("easy", "the larger of x and {k}", "max(x, {k})", lambda x, k, m: max(x, k)),
    Kind("easy", "the smaller of x and {k}", "min(x, {k})", lambda x, k, m: min(x, k)),
    Kind("medium", "{k} times x, plus {m}", "{k} * x + {m}", lambda x, k, m: k * x + m),
    Kind("medium", "{k} times x, minus {m}", "{k} * x - {m}", lambda x, k, m: k * x - m),
    Kind("medium", "x squared, plus {k}", "x * x + {k}", lambda x, k, m: x * x + k),
    Kind("medium", "the rest of x divided by {k}", "x % {k}", lambda x, k, m: x % k),
    Kind("medium", "x divided by {k}, rounded down", "x // {k}", lambda x, k, m: x // k),
    Kind("medium", "whether x is at least {k}", "x >= {k}", lambda x, k, m: x >= k),
    Kind("hard", "the sum of xs, plus {k}", "sum(xs) + {k}", lambda xs, k, m: sum(xs) + k),
    Kind("hard", "the largest of xs, minus {k}", "max(xs) - {k}", lambda xs, k, m: max(xs) - k),
    Kind("hard", "the smallest of xs, times {k}", "min(xs) * {k}", lambda xs, k, m: min(xs) * k),
    Kind("hard", "a list of each of xs plus {k}", "[x + {k} for x in xs]", lambda xs, k, m: [x + k for x in xs]),
    Kind(
        "hard",
        "a list of those of xs above {k}",
        "[x for x in xs if x > {k}]",
        lambda xs, k, m: [x for x in xs if x > k],
    ),
    Kind("hard", "how many of xs are below {k}", "sum(x < {k} for x in xs)", lambda xs, k, m: sum(x < k for x in xs)),
)


def tasks(split: Split, seed: int, first: int, count: int, level: Level | None = None) -> list[TextTask]:
    """Problems number `first` to `first + count - 1` of a split; without a level the three take turns.

    Columns: `tests` (assert lines), `level`, `solution` (a program in a fenced block).
    """
    return [
        generate(split, seed, number, level or LEVELS[number % len(LEVELS)]) for number in range(first, first + count)
    ]


def generate(split: Split, seed: int, number: int, level: Level) -> TextTask:
    """One problem; a pure function of its arguments."""
    rng = Random(f"programs|{split}|{seed}|{number}|{level}")
    kind = rng.choice([kind for kind in KINDS if kind.level == level])
    while True:
        k, m = rng.randint(2, 30), rng.randint(2, 30)
        if is_held_out(f"{kind.asked}|{k}") == (split == "test"):
            break
    asked, code = kind.asked.format(k=k, m=m), kind.code.format(k=k, m=m)
    return TextTask(
        id=f"programs-{split}-{seed}-{number}-{level}",
        prompt=f"Write a Python function f({kind.argument}) that returns {asked}.",
        columns={"tests": _tests(rng, kind, k, m), "level": level, "solution": program(kind.argument, code)},
        category=level,
    )


def program(argument: str, expression: str) -> str:
    """The reply that defines f as an expression."""
    return f"```python\ndef f({argument}):\n    return {expression}\n```"


def _tests(rng: Random, kind: Kind, k: int, m: int) -> list[str]:
    """Inputs around the constants, where a slip (< for <=, max for min) shows; outputs by `kind.call`."""
    near = [k, k - 1, k + 1, -k, 0, 3 * k + 1]
    inputs: Sequence[Any]
    if kind.argument == "xs":
        inputs = [rng.sample(near, rng.randint(2, 5)) for _ in range(TESTS)]
    else:
        inputs = rng.sample(near, TESTS)
    return [f"assert f({given!r}) == {kind.call(given, k, m)!r}" for given in inputs]
