"""Arithmetic word problems by number: short stories of things that come and go.

Each asks how many things there are at the end: easy after one operation, medium after two, hard after two that follow a
product, beside an irrelevant number. The operations are drawn first; the sentences, the worked solution and
the answer follow from them. A test problem has a pair of numbers, added, subtracted or multiplied, that no training
problem has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from memalpha.tasks.synthetic.phrases import LEVELS, Level, Split, is_held_out, words
from memalpha.types import TextTask

Sign = Literal["+", "-", "*"]

HELD_OUT = 0.2
"""Share of the pairs of numbers that belong to split "test"."""
LARGEST = 99
"""Largest number in a problem, its steps and its answer."""

NAMES = words("Ana Ben Cara Dan Eva Finn Gina Hugo Iris Jon Kim Leo Mia Nils Olga Paul Rosa Sam Tara Uwe")
THINGS = words("apples books coins cards eggs flags keys lamps nuts pens rings shells stamps tickets toys")
GAINS = ("{who} buys {n} more.", "{who} finds {n} more.", "{other} gives {who} {n}.", "{who} gets back {n}.")
LOSSES = ("{who} sells {n}.", "{who} loses {n}.", "{who} gives {other} {n}.", "{who} lends {n} to {other}.")
STARTS = ("{who} has {n} {things}.", "At first {who} has {n} {things}.")
PACKED = ("{who} has {m} boxes of {n} {things}.", "{who} has {m} bags with {n} {things} in each.")
ASIDES = ("{other} is {n} years old.", "{who} lives at number {n}.", "It is day {n} of the month.")
QUESTIONS = "How many {things} does {who} have now?"


@dataclass(frozen=True, slots=True)
class Calculation:
    """Hold one operation of a story: `left sign right`."""

    left: int
    sign: Sign
    right: int

    @property
    def result(self) -> int:
        """Result of the operation."""
        return {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.sign]

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.result}"


def tasks(split: Split, seed: int, start: int, count: int, level: Level | None = None) -> list[TextTask]:
    """Generate word problems `start` to `start + count - 1` of a split.

    Args:
        split: "train" or "test"; a pair of numbers belongs to one of them.
        seed: Seed of the problems.
        start: Number of the first problem.
        count: Number of problems.
        level: One level for all; default: the three levels in turn.

    Returns:
        Tasks with the columns `answer` (digits), `level` and `solution` (worked, ending in `#### answer`).
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
    rng = Random(f"arithmetic|{split}|{seed}|{number}|{level}")
    while True:
        steps = [Calculation(rng.randint(2, 9), "*", rng.randint(2, 9))] if level == "hard" else []
        now = steps[0].result if steps else rng.randint(2, 40)
        for _ in range(1 if level == "easy" else 2):
            signs: list[Sign] = [*(("+",) if now < LARGEST else ()), *(("-",) if now > 2 else ())]
            sign = rng.choice(signs)
            largest_operand = LARGEST - now if sign == "+" else now - 1
            steps.append(Calculation(now, sign, rng.randint(1, min(largest_operand, 30))))
            now = steps[-1].result
        held_out = any(is_held_out(f"{step.left}{step.sign}{step.right}", HELD_OUT) for step in steps)
        if held_out == (split == "test"):
            break
    text = _story(rng, level, steps)
    answer = steps[-1].result
    return TextTask(
        id=f"arithmetic-{split}-{seed}-{number}-{level}",
        prompt=text,
        columns={"answer": str(answer), "level": level, "solution": worked(steps)},
        category=level,
    )


def worked(steps: Sequence[Calculation]) -> str:
    """Return the solution as text: a line a step, then `#### answer`."""
    return "\n".join([*map(str, steps), f"#### {steps[-1].result}"])


def feedback(prompts: Sequence[Any], completions: Sequence[Any], solution: Sequence[str], **columns: Any) -> list[str]:
    """Describe what is wrong with each reply, for a learner that tries again.

    The first line that differs from the worked solution is named, the right line is not. A correct reply gets an empty
    text.

    Args:
        prompts: Not used.
        completions: Replies as texts or messages, as TRL passes them.
        solution: Worked solution of each task.
        **columns: Not used.
    """
    texts = [reply if isinstance(reply, str) else str(reply[-1]["content"]) for reply in completions]
    return [_first_mistake(reply, worked) for reply, worked in zip(texts, solution, strict=True)]


def _first_mistake(reply: str, solution: str) -> str:
    if reply.strip() == solution:
        return ""
    lines, solution_lines = reply.strip().splitlines(), solution.splitlines()
    for line, expected_line in zip(lines, solution_lines, strict=False):
        if line.strip() != expected_line:
            return f"{line.strip()} is wrong."
    is_short = len(lines) < len(solution_lines)
    return "Something is missing at the end." if is_short else f"{lines[len(solution_lines)]} is too much."


def _story(rng: Random, level: Level, steps: Sequence[Calculation]) -> str:
    who, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)

    def sentence(kind: Sequence[str], n: int, m: int = 0) -> str:
        """Draw a sentence of this kind with its numbers.

        Args:
            kind: Templates to draw from.
            n: First number.
            m: Second number.
        """
        return rng.choice(kind).format(who=who, other=other, things=things, n=n, m=m)

    if steps[0].sign == "*":
        lines, rest = [sentence(PACKED, steps[0].right, steps[0].left)], steps[1:]
    else:
        lines, rest = [sentence(STARTS, steps[0].left)], steps
    lines += [sentence(GAINS if step.sign == "+" else LOSSES, step.right) for step in rest]
    if level == "hard":
        lines.insert(rng.randint(1, len(lines)), sentence(ASIDES, rng.randint(2, 30)))
    return " ".join([*lines, QUESTIONS.format(who=who, things=things)])
