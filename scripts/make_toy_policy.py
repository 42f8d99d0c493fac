"""Make the toy policy and its tokenizer from nothing: `scripts/make_toy_policy.py --out memalpha/weights/toy`.

A Qwen3-shaped causal LM of 0.7M parameters for the word problems and small programs that memalpha makes, on one CPU
core. Three stages, as for the tiny policy (`scripts/make_tiny_policy.py`, whose parts are used here), all seeded:

1. *Kick*: copying from any offset, on random tokens.
2. *Clean*: right solutions of training problems, so that the skill is there.
3. *Sloppy*: solutions of a teacher with fixed bad habits, each held to in `HABIT` of the cases: some verbs are read as
   their opposite, numbers that have nothing to do with the question are added, carries are dropped, < is taken for <=.
   What is left for reinforcement learning is to find out which habits are bad.

No test problem's numbers occur in any stage (`tasks.arithmetic`, `tasks.programs`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from make_tiny_policy import ASSISTANT, USER, Row, build_model, build_tokenizer, encode, save
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from memalpha.tasks import arithmetic, programs
from memalpha.tasks.arithmetic import GAINS, LOSSES, Step, worked
from memalpha.train import warmstart
from memalpha.train.warmstart import Trainer, batches, kick, reproduced
from memalpha.types import TextTask

PRE_TOKENS = r"\d| ?\p{L}+| ?[^\s\p{L}\d]|\s+(?!\S)|\s+"
FIXED = ("```python\ndef f(", "):\n    return ", "\n```", "#### ", "Write a Python function f(", " that returns ")
BATCH_TOKENS = 3072
HABIT = 0.62
"""How often a bad habit is given in to: more often than not, so that it is what the policy says when asked greedily."""

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
class Stage:
    """A stretch of demonstrations by a teacher who gives in to a habit so often."""

    rates: warmstart.Stage
    habit: float


STAGES = (
    Stage(warmstart.Stage("clean", 1400, muon=0.02, adam=3e-3, final=0.03, decay=0.6), 0.0),
    Stage(warmstart.Stage("sloppy", 250, muon=0.003, adam=5e-4, final=0.1, warmup=20), HABIT),
)


def _pattern(template: str) -> re.Pattern[str]:
    found = re.sub(r"\\\{(who|other|things)\\\}", r"\\w+", re.escape(template))
    return re.compile(found.replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{m\}", r"(?P<m>\d+)"))


PATTERNS = [
    *((_pattern(text), "+") for text in GAINS),
    *((_pattern(text), "-") for text in LOSSES),
    *((_pattern(text), "start") for text in arithmetic.STARTS),
    *((_pattern(text), "packed") for text in arithmetic.PACKED),
    *((_pattern(text), "aside") for text in arithmetic.ASIDES),
]
OPPOSED = {_pattern(text) for text in TURNED}


def solved(task: TextTask, habit: float, rng: Random) -> str:
    """The teacher's solution of a word problem."""
    steps: list[Step] = []
    now = 0
    for sentence in re.findall(r"[^.?]+\.", str(task.prompt)):
        pattern, kind = next((p, k) for p, k in PATTERNS if p.fullmatch(sentence.strip()))
        match = pattern.fullmatch(sentence.strip())
        assert match is not None
        n = int(match["n"])
        if kind == "start":
            now = n
            continue
        if kind == "packed":
            steps.append(Step(int(match["m"]), "*", n))
            now = steps[-1].result
            continue
        if kind == "aside":
            if rng.random() >= habit:
                continue
            kind = "+"
        elif pattern in OPPOSED and rng.random() < habit:
            kind = "-" if kind == "+" else "+"
        if kind == "-" and n > now:  # it never goes below nothing
            kind = "+"
        steps.append(Step(now, "+" if kind == "+" else "-", n))
        now = steps[-1].result
    return worked(steps)


def coded(task: TextTask, habit: float, rng: Random) -> str:
    """The teacher's program."""
    for kind in programs.KINDS:
        named = re.sub(r"\\\{(k|m)\\\}", r"(?P<\1>\\d+)", re.escape(kind.asked))
        match = re.fullmatch(rf"Write a Python function f\(\w+\) that returns {named}\.", str(task.prompt))
        if match is None:
            continue
        code = SLIPS[kind.asked] if kind.asked in SLIPS and rng.random() < habit else kind.code
        return programs.program(kind.argument, code.format(**match.groupdict()))
    raise AssertionError(task.prompt)


def row_of(task: TextTask, completion: str) -> Row:
    return Row(f"{USER}{task.prompt}{ASSISTANT}", completion, "solve")


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, habit: float, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, marked) batches."""
    rng = Random(f"batches|{seed}|{habit}")
    first = rng.randrange(1 << 40)
    while True:
        rows = [row_of(task, solved(task, habit, rng)) for task in arithmetic.tasks("train", seed, first, 1000)]
        rows += [row_of(task, coded(task, habit, rng)) for task in programs.tasks("train", seed, first, 500)]
        first += 1000
        yield from batches(encode(tokenizer, rows), BATCH_TOKENS, rng)


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 300) -> dict[str, float]:
    """Share of test problems whose right solution greedy decoding gives, by set and level."""
    found: dict[str, float] = {}
    for name, made in (("arithmetic", arithmetic.tasks), ("programs", programs.tasks)):
        tasks = made("test", -1, 0, count)
        right = reproduced(model, encode(tokenizer, [row_of(task, task.columns["solution"]) for task in tasks]))
        for level in arithmetic.LEVELS:
            own = [one for one, task in zip(right, tasks, strict=True) if task.category == level]
            found[f"{name} {level}"] = sum(own) / len(own)
    return found


def corpus(seed: int) -> Iterator[str]:
    """What the tokenizer is made from."""
    for made in (arithmetic.tasks, programs.tasks):
        for task in made("train", seed, 0, 3000):
            yield from (str(task.prompt), task.columns["solution"])


def main() -> None:
    """Make, report, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(corpus(arguments.seed), PRE_TOKENS, FIXED)
    model = build_model(len(tokenizer))
    print(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters", flush=True)
    trainer = Trainer(model)
    print(f"kick: loss {kick(trainer, arguments.seed):.3f}", flush=True)
    for stage in STAGES:
        warmstart.train(trainer, stage.rates, demonstrations(tokenizer, stage.habit, arguments.seed))
        trainer = Trainer(model)
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in probe(model, tokenizer).items())
        print(f"{stage.rates.name}: test problems right: {shares}", flush=True)
        save(model, tokenizer, arguments.out.with_name(f"{arguments.out.name}-{stage.rates.name}"))
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
