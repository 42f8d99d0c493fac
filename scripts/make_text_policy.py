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

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pretrain
import torch
from make_tiny_policy import ASSISTANT, USER, Row, build_model, build_tokenizer, encode, save
from pretrain import Trainer, batches, kick, reproduced
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from memalpha.environments.prompts import REFLECTION_PROMPT, RETRY_PROMPT
from memalpha.tasks.synthetic import arithmetic, programs
from memalpha.tasks.synthetic.arithmetic import GAINS, LOSSES, Step, worked
from memalpha.types import TextTask

PRE_TOKENS = r"\d| ?\p{L}+| ?[^\s\p{L}\d]|\s+(?!\S)|\s+"
FIXED = ("```python\ndef f(", "):\n    return ", "\n```", "#### ", "Write a Python function f(", " that returns ")
BATCH_TOKENS = 3072
HABIT = 0.65
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

    rates: pretrain.Stage
    habit: float


STAGES = (
    Stage(pretrain.Stage("clean", 1600, muon=0.02, adam=3e-3, final=0.03, decay=0.6), 0.0),
    Stage(pretrain.Stage("sloppy", 500, muon=0.005, adam=1e-3, final=0.1, warmup=20), HABIT),
)


def _pattern(template: str) -> re.Pattern[str]:
    found = re.sub(r"\\\{(other|things)\\\}", r"\\w+", re.escape(template)).replace(r"\{who\}", r"(?P<who>\w+)")
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
    now, who = 0, re.sub("^At first ", "", str(task.prompt)).split()[0]
    for sentence in re.findall(r"[^.?]+\.", str(task.prompt)):
        found = [(pattern, kind, pattern.fullmatch(sentence.strip())) for pattern, kind in PATTERNS]
        [(pattern, kind, match)] = [
            one for one in found if one[2] is not None and one[2].groupdict().get("who", who) == who
        ]
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
        named = re.sub(r"\\\{(k|m)\\\}", r"(?P<\1>\\d+)", re.escape(kind.description))
        match = re.fullmatch(rf"Write a Python function f\(\w+\) that returns {named}\.", str(task.prompt))
        if match is None:
            continue
        code = SLIPS[kind.description] if kind.description in SLIPS and rng.random() < habit else kind.code
        return programs.program(kind.argument, code.format(**match.groupdict()))
    raise AssertionError(task.prompt)


def row_of(task: TextTask, completion: str) -> Row:
    return Row(f"{USER}{task.prompt}{ASSISTANT}", completion, "solve")


def lessons(task: TextTask, rng: Random, kept: list[str]) -> Iterator[Row]:
    """How to look back at a wrong attempt, and how to heed advice: rows for both, under ERL's prompts for text tasks.

    Advice is the right line in the place of the wrong one (for programs: the right expression); `kept` is what was
    advised before, some of which a reflection is shown.
    """
    if task.id.startswith("programs"):
        attempt, right = coded(task, 1.0, rng), task.columns["solution"]
        told = f"{rng.choice(task.columns['tests'])} fails."
        advice = f"Return {right.split('return ')[1].splitlines()[0]}."
    else:
        attempt, right = solved(task, 1.0, rng), task.columns["solution"]
        (told,) = arithmetic.feedback([str(task.prompt)], [attempt], [right])
        lines = zip(attempt.splitlines(), right.splitlines(), strict=False)
        wanted = next((b for a, b in lines if a != b), None)
        if wanted is None or attempt == right:
            return
        advice = f"Write {wanted}."
    if attempt == right:
        return
    earlier = rng.sample(kept, min(len(kept), rng.choice((0, 0, 1, 2, 3))))
    memory = "Earlier advice that helped:\n" + "".join(f"- {one}\n" for one in earlier) if earlier else ""
    asked = REFLECTION_PROMPT.format(prompt=task.prompt, attempt=attempt, reward=0.0, feedback=told, memory=memory)
    yield Row(f"{USER}{asked}{ASSISTANT}", advice, "reflect")
    yield Row(f"{USER}{RETRY_PROMPT.format(prompt=task.prompt, reflection=advice)}{ASSISTANT}", right, "retry")
    kept.append(advice)
    del kept[:-50]


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, habit: float, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, marked) batches."""
    rng = Random(f"batches|{seed}|{habit}")
    first = rng.randrange(1 << 40)
    kept: list[str] = []
    while True:
        rows = [row_of(task, solved(task, habit, rng)) for task in arithmetic.tasks("train", seed, first, 1000)]
        rows += [row_of(task, coded(task, habit, rng)) for task in programs.tasks("train", seed, first, 500)]
        for task in (*arithmetic.tasks("train", seed, first, 150), *programs.tasks("train", seed, first, 100)):
            rows += lessons(task, rng, kept)
        first += 1000
        yield from batches(encode(tokenizer, rows), BATCH_TOKENS, rng)


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 300) -> dict[str, float]:
    """Share of test problems whose right solution greedy decoding gives, by set and level."""
    found: dict[str, float] = {}
    for name, made in (("arithmetic", arithmetic.tasks), ("programs", programs.tasks)):
        tasks = made("test", -1, 0, count)
        right = reproduced(model, encode(tokenizer, [row_of(task, task.columns["solution"]) for task in tasks]))
        rng = Random(0)
        for kind in ("reflect", "retry"):
            rows = [row for task in tasks for row in lessons(task, rng, []) if row.kind == kind]
            right_rows = reproduced(model, encode(tokenizer, rows))
            found[f"{name} {kind}"] = sum(right_rows) / len(rows)
        for level in arithmetic.LEVELS:
            own = [one for one, task in zip(right, tasks, strict=True) if task.category == level]
            found[f"{name} {level}"] = sum(own) / len(own)
    return found


def corpus(seed: int) -> Iterator[str]:
    """What the tokenizer is made from."""
    rng, kept = Random(seed), ["Write 1+1=2."]
    for made in (arithmetic.tasks, programs.tasks):
        for task in made("train", seed, 0, 3000):
            yield from (str(task.prompt), task.columns["solution"])
            yield from (text for row in lessons(task, rng, kept) for text in (row.prompt, row.completion))


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
    del model.config.memalpha_prompt  # that is a writer's
    print(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters", flush=True)
    trainer = Trainer(model)
    print(f"kick: loss {kick(trainer, arguments.seed):.3f}", flush=True)
    for stage in STAGES:
        pretrain.train(trainer, stage.rates, demonstrations(tokenizer, stage.habit, arguments.seed))
        trainer = Trainer(model)
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in probe(model, tokenizer).items())
        print(f"{stage.rates.name}: test problems right: {shares}", flush=True)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
