"""Make the policy tiny-text and its tokenizer: `scripts/make_text_policy.py --out memalpha/weights/tiny-text`.

A Qwen3-shaped causal LM of 0.7M parameters for the word problems and small programs that memalpha makes, on one CPU
core. Three stages, as for the tiny policy (`scripts/make_tiny_policy.py`, whose parts are used here), all seeded:

1. *Kick*: copying from any offset, on random tokens.
2. *Clean*: right solutions of training problems, so that the skill is there.
3. *Sloppy*: solutions of a teacher with fixed bad habits, each held to in `HABIT` of the cases: some verbs are read as
   their opposite, numbers that have nothing to do with the question are added, < is taken for <=.
   What is left for reinforcement learning is to find out which habits are bad.

Beside them, in both stages, rows of looking back at a wrong attempt and of heeding advice, under the prompts that ERL
has for text tasks.

No test problem occurs in any stage, nor a test problem's pair of numbers in a right solution (`tasks.arithmetic`,
`tasks.programs`); a wrong one of the teacher's may hold such a pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pretrain
import torch
from make_tiny_policy import BATCH_TOKENS, encode, make_policy
from pretrain import batches, greedy_matches
from tiny_rows import ASSISTANT, USER, Row
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from memalpha.environments.engine import REFLECTION_PROMPT, RETRY_PROMPT
from memalpha.tasks.synthetic import arithmetic, programs
from memalpha.tasks.synthetic.arithmetic import GAINS, LOSSES, Calculation, worked
from memalpha.types import TextTask

PRE_TOKENS = r"\d| ?\p{L}+| ?[^\s\p{L}\d]|\s+(?!\S)|\s+"
FIXED = ("```python\ndef f(", "):\n    return ", "\n```", "#### ", "Write a Python function f(", " that returns ")
HABIT = 0.65
"""Probability of a bad habit; above one half, so that greedy decoding follows it."""

TURNED = (GAINS[2], GAINS[3], LOSSES[2], LOSSES[3])
"""Sentences that are read as their opposite."""
SLIPS = {
    "{k} minus x": "x - {k}",
    "the larger of x and {k}": "min(x, {k})",
    "the smaller of x and {k}": "max(x, {k})",
    "x squared, plus {k}": "2 * x + {k}",
    "x divided by {k}, rounded down": "x / {k}",
    "the rest of x divided by {k}": "x // {k}",
    "whether x is at least {k}": "x > {k}",
    "the largest of xs, minus {k}": "min(xs) - {k}",
    "a list of those of xs above {k}": "[x for x in xs if x >= {k}]",
    "how many of xs are below {k}": "sum(x <= {k} for x in xs)",
    "the sum of xs, plus {k}": "sum(xs) * {k}",
}


@dataclass(frozen=True, slots=True)
class TextStage:
    """Describe a stage of demonstrations; `habit` is the teacher's probability of a bad habit."""

    rates: pretrain.Stage
    habit: float


STAGES = (
    TextStage(pretrain.Stage("clean", 1600, muon=0.02, adam=3e-3, final=0.03, decay=0.6), 0.0),
    TextStage(pretrain.Stage("sloppy", 500, muon=0.005, adam=1e-3, final=0.1, warmup=20), HABIT),
)


def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.sub(r"\\\{(other|things)\\\}", r"\\w+", re.escape(template)).replace(r"\{who\}", r"(?P<who>\w+)")
    return re.compile(pattern.replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{m\}", r"(?P<m>\d+)"))


PATTERNS = [
    *((_pattern(text), "+") for text in GAINS),
    *((_pattern(text), "-") for text in LOSSES),
    *((_pattern(text), "start") for text in arithmetic.STARTS),
    *((_pattern(text), "packed") for text in arithmetic.PACKED),
    *((_pattern(text), "aside") for text in arithmetic.ASIDES),
]
OPPOSED = {_pattern(text) for text in TURNED}


def teacher_solution(task: TextTask, habit: float, rng: Random) -> str:
    """Return the teacher's solution of a word problem.

    Args:
        task: Word problem.
        habit: Probability of a bad habit at each step.
        rng: Source of randomness.
    """
    steps: list[Calculation] = []
    amount, person = 0, re.sub("^At first ", "", str(task.prompt)).split()[0]
    for sentence in re.findall(r"[^.?]+\.", str(task.prompt)):
        candidates = [(pattern, kind, pattern.fullmatch(sentence.strip())) for pattern, kind in PATTERNS]
        [(pattern, kind, match)] = [
            candidate
            for candidate in candidates
            if candidate[2] is not None and candidate[2].groupdict().get("who", person) == person
        ]
        assert match is not None
        n = int(match["n"])
        if kind == "start":
            amount = n
            continue
        if kind == "packed":
            steps.append(Calculation(int(match["m"]), "*", n))
            amount = steps[-1].result
            continue
        if kind == "aside":
            if rng.random() >= habit:
                continue
            kind = "+"
        elif pattern in OPPOSED and rng.random() < habit:
            kind = "-" if kind == "+" else "+"
        if kind == "-" and n > amount:  # it never goes below nothing
            kind = "+"
        steps.append(Calculation(amount, "+" if kind == "+" else "-", n))
        amount = steps[-1].result
    return worked(steps)


def teacher_program(task: TextTask, habit: float, rng: Random) -> str:
    """Return the teacher's program.

    Args:
        task: Programming problem.
        habit: Probability of a bad habit.
        rng: Source of randomness.
    """
    for kind in programs.KINDS:
        pattern = re.sub(r"\\\{(k|m)\\\}", r"(?P<\1>\\d+)", re.escape(kind.description))
        match = re.fullmatch(rf"Write a Python function f\(\w+\) that returns {pattern}\.", str(task.prompt))
        if match is None:
            continue
        code = SLIPS[kind.description] if kind.description in SLIPS and rng.random() < habit else kind.code
        return programs.program(kind.argument, code.format(**match.groupdict()))
    raise AssertionError(task.prompt)


def solution_row(task: TextTask, completion: str) -> Row:
    """Return a row that solves the task with `completion`."""
    return Row(f"{USER}{task.prompt}{ASSISTANT}", completion, "solve")


def reflection_rows(task: TextTask, rng: Random, earlier_advice: list[str]) -> Iterator[Row]:
    """Yield rows that reflect on a wrong attempt and rows that follow advice, under ERL's prompts.

    Advice is the right line in place of the wrong one; for programs it is the right expression.

    Args:
        task: Problem to solve.
        rng: Source of randomness.
        earlier_advice: Advice so far, some of which a reflection sees; the new one is appended in place.
    """
    if task.id.startswith("programs"):
        attempt, solution = teacher_program(task, 1.0, rng), task.columns["solution"]
        feedback_text = f"{rng.choice(task.columns['tests'])} fails."
        advice = f"Return {solution.split('return ')[1].splitlines()[0]}."
    else:
        attempt, solution = teacher_solution(task, 1.0, rng), task.columns["solution"]
        (feedback_text,) = arithmetic.feedback([str(task.prompt)], [attempt], [solution])
        lines = zip(attempt.splitlines(), solution.splitlines(), strict=False)
        right_line = next((b for a, b in lines if a != b), None)
        if right_line is None or attempt == solution:
            return
        advice = f"Write {right_line}."
    if attempt == solution:
        return
    sample = rng.sample(earlier_advice, min(len(earlier_advice), rng.choice((0, 0, 1, 2, 3))))
    memory = "Earlier advice that helped:\n" + "".join(f"- {line}\n" for line in sample) if sample else ""
    reflection_prompt = REFLECTION_PROMPT.format(
        prompt=task.prompt, attempt=attempt, reward=0.0, feedback=feedback_text, memory=memory
    )
    yield Row(f"{USER}{reflection_prompt}{ASSISTANT}", advice, "reflect")
    yield Row(f"{USER}{RETRY_PROMPT.format(prompt=task.prompt, reflection=advice)}{ASSISTANT}", solution, "retry")
    earlier_advice.append(advice)
    del earlier_advice[:-50]


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, stage: TextStage, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of (ids, completion mask) without end.

    Args:
        tokenizer: Tokenizer of the policy.
        stage: Teacher's habit.
        seed: Seed of the rows and their order.
    """
    habit = stage.habit
    rng = Random(f"batches|{seed}|{habit}")
    start = rng.randrange(1 << 40)
    earlier_advice: list[str] = []
    while True:
        rows = [
            solution_row(task, teacher_solution(task, habit, rng))
            for task in arithmetic.tasks("train", seed, start, 1000)
        ]
        rows += [
            solution_row(task, teacher_program(task, habit, rng)) for task in programs.tasks("train", seed, start, 500)
        ]
        for task in (*arithmetic.tasks("train", seed, start, 150), *programs.tasks("train", seed, start, 100)):
            rows += reflection_rows(task, rng, earlier_advice)
        start += 1000
        yield from batches(encode(tokenizer, rows), BATCH_TOKENS, rng)


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 300) -> dict[str, float]:
    """Return the share of test problems that greedy decoding solves, by set and level.

    Args:
        model: Policy to probe.
        tokenizer: Its tokenizer.
        count: Problems of each set.
    """
    shares: dict[str, float] = {}
    for name, generate_tasks in (("arithmetic", arithmetic.tasks), ("programs", programs.tasks)):
        tasks = generate_tasks("test", -1, 0, count)
        is_right = greedy_matches(
            model, encode(tokenizer, [solution_row(task, task.columns["solution"]) for task in tasks])
        )
        rng = Random(0)
        for kind in ("reflect", "retry"):
            rows = [row for task in tasks for row in reflection_rows(task, rng, []) if row.kind == kind]
            right_rows = greedy_matches(model, encode(tokenizer, rows))
            shares[f"{name} {kind}"] = sum(right_rows) / len(rows)
        for level in arithmetic.LEVELS:
            level_results = [result for result, task in zip(is_right, tasks, strict=True) if task.category == level]
            shares[f"{name} {level}"] = sum(level_results) / len(level_results)
    return shares


def corpus(seed: int) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    rng, earlier_advice = Random(seed), ["Write 1+1=2."]
    for generate_tasks in (arithmetic.tasks, programs.tasks):
        for task in generate_tasks("train", seed, 0, 3000):
            yield from (str(task.prompt), task.columns["solution"])
            yield from (
                text for row in reflection_rows(task, rng, earlier_advice) for text in (row.prompt, row.completion)
            )


if __name__ == "__main__":
    make_policy(corpus, PRE_TOKENS, FIXED, STAGES, demonstrations, probe, is_writer=False)
