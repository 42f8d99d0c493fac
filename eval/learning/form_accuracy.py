"""Accuracy of a writer in each form of calls after the same training time.

    python eval/learning/form_accuracy.py smol --model "$(memalpha fetch smol)" [--minutes 11]
    python eval/learning/form_accuracy.py tiny [--minutes 6] [--seeds 3]

`smol` is SmolLM2-135M with adapters of rank 16 on all layers, from its published weights. Its arms: Hermes, Hermes
with the fixed parts of a call as trained added tokens (`lora.trainable_tokens`), and the line form. A native call is
Hermes in both models. `tiny` is the tiny policy's model and tokenizer from random weights, taught to copy as
`scripts/make_tiny_policy.py` does (that time is common and not counted), then all its weights by that script's rates.
Its tokenizer has the fixed parts of Hermes calls as tokens from the start.

Each arm learns gold rows of the demo world, the same conversations in the same order, under the compact prompt, until
it has used --minutes of CPU time of one thread; rates decay by that time. Then it writes memories over held-out
conversations, greedily. Arms of smol take turns, so that other work slows them alike. Writes
form-accuracy-MODEL.json and .md to --results.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from learning_speed import gold_rows

from memalpha import evaluate, load_policy
from memalpha.agent.prompts import prompted_config
from memalpha.config import AgentConfig, LoraConfig, ReaderConfig, SFTConfig
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.reader import load_reader
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import shuffled_item
from memalpha.types import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2] / "scripts"))
import pretrain
from common import format_interval, make_parser, opening, save
from make_tiny_policy import BATCH_TOKENS, STAGES, build_model, call_fragments
from smol_writer import VIEW, tasks_of

SMOL_ARMS = {"hermes": "hermes", "hermes, added tokens": "hermes", "lines": "lines"}
TINY_ARMS = ("hermes", "lines")
TINY_ROWS = 12_000
BATCH, WARMUP, DECAY, PEAK_RATE = 8, 0.05, 0.4, 1e-3
FIGURES = ("valid_calls", "update_hit", "delete_hit", "accuracy", "se", "memory_tokens")


class Arm:
    """One set of adapters and what it has learnt.

    Args:
        policy: Policy that gets the adapters, in the style of the rows.
        lora: Adapters; tokens that they train are added to the policy before rows are made (`token_ids`).
        rows: Rows to learn.
        dtype: Precision of the passes.
        seed: Seed of adapters and order.
        token_ids: Trained tokens.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        lora: LoraConfig,
        rows: Sequence[TrainingSample],
        dtype: str,
        seed: int,
        token_ids: Sequence[int] = (),
    ) -> None:
        self.policy = policy
        self.rows, self.seed, self.seconds, self.steps = rows, seed, 0.0, 0
        self.losses: list[float] = []
        compute = {"microbatch_tokens": 2048, "dtype": dtype}
        optimizer = {"learning_rate": PEAK_RATE}
        config = SFTConfig.model_validate({"out": "unused", "lora": lora, "compute": compute, "optimizer": optimizer})
        adapted = add_lora(policy.model, lora, "model", seed, token_ids=token_ids)
        self.engine = Engine(adapted, config, LossSettings(normalizer="token"))

    def learn(self, until: float, budget: float) -> None:
        """Take optimizer steps until `until` of `budget` CPU seconds are used."""
        while self.seconds < until:
            started, share = time.process_time(), self.seconds / budget
            rate = PEAK_RATE * min(1.0, (share + 0.002) / WARMUP, (1.0 - share) / DECAY)
            first = self.steps * BATCH
            batch = [shuffled_item(self.rows, first + offset, str(self.seed)) for offset in range(BATCH)]
            self.losses.append(self.engine.update(batch, rate)["loss"])
            self.steps += 1
            self.seconds += time.process_time() - started


def figures_of(policy: TransformersPolicy, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the figures of a writer, its accuracy by task, and the tokens of its replies."""
    agent = prompted_config(AgentConfig.model_validate(VIEW), policy)
    report = evaluate(policy, tasks, load_reader(ReaderConfig(conflicts="refuse")), config=agent, check_reader=False)
    by_task = {task.id: [record.correct for record in report.records if record.task == task.id] for task in tasks}
    turns = [turn for group in report.groups for rollout in group.trajectories for turn in rollout.turns]
    return {
        **{key: report.summary[key] for key in FIGURES},
        "by_task": [statistics.mean(answers) for answers in by_task.values()],
        "reply_tokens": statistics.mean(len(turn.completion.completion_ids) for turn in turns),
    }


def smol_results(model: str, minutes: float, turns: int, count: int, tasks: Sequence[Task]) -> dict[str, Any]:
    """Train and evaluate the arms of smol.

    Args:
        model: Transformers directory.
        minutes: CPU-minutes of each arm.
        turns: Turns that the arms take.
        count: Gold rows.
        tasks: Held-out conversations.
    """
    arms: dict[str, Arm] = {}
    for name, form in SMOL_ARMS.items():
        policy = TransformersPolicy.from_pretrained(model, dtype="bfloat16")
        policy.set_prompt_style("compact", form)
        lora = LoraConfig(r=16, trainable_tokens=tuple(call_fragments()) if "added" in name else ())
        token_ids = add_tokens(policy, lora.trainable_tokens)
        arms[name] = Arm(policy, lora, gold_rows(policy, count, form), "bfloat16", 0, token_ids)
    for turn in range(1, turns + 1):
        for name, arm in arms.items():
            arm.learn(60 * minutes * turn / turns, 60 * minutes)
            print(name, turn, arm.steps, f"{arm.seconds:.0f} s", arm.losses[-3:], file=sys.stderr, flush=True)
    return {
        name: [{"rows": 8 * arm.steps, "minutes": arm.seconds / 60, **figures_of(arm.policy, tasks)}]
        for name, arm in arms.items()
    }


def train_tiny(policy: TransformersPolicy, rows: Sequence[TrainingSample], minutes: float, seed: int) -> dict[str, Any]:
    """Train all weights of `policy` on rows for some CPU-minutes; return rows and minutes.

    Args:
        policy: Policy that has learnt to copy.
        rows: Rows to learn.
        minutes: CPU-minutes.
        seed: Seed of the order.
    """
    trainer, rates = pretrain.Trainer(policy.model), STAGES[0].rates
    encoded = [(list(row.prompt_ids), list(row.completion_ids)) for row in rows]
    budget, seen, rng, used = 60 * minutes, 0, Random(seed), 0.0
    while used < budget:
        for ids, marked in pretrain.batches(encoded, BATCH_TOKENS, rng):
            started = time.process_time()
            left = min(1.0, (1 - used / budget) / rates.decay)
            scale = rates.final + (1 - rates.final) * left
            trainer.step(ids, marked, rates.muon * scale, rates.adam * scale)
            seen, used = seen + len(ids), used + time.process_time() - started
            if used >= budget:
                break
    return {"rows": seen, "minutes": used / 60}


def tiny_results(minutes: float, seeds: int, tasks: Sequence[Task]) -> dict[str, Any]:
    """Train and evaluate the arms of tiny.

    Args:
        minutes: CPU-minutes of each arm and seed.
        seeds: Number of seeds.
        tasks: Held-out conversations.
    """
    results: dict[str, Any] = {form: [] for form in TINY_ARMS}
    for seed in range(seeds):
        torch.manual_seed(seed)
        start = build_model(load_policy("tiny").model.config.vocab_size)  # type: ignore[attr-defined]
        print(f"seed {seed}, copying: {pretrain.kick(pretrain.Trainer(start), seed):.3f}", file=sys.stderr, flush=True)
        for form in TINY_ARMS:
            policy = load_policy("tiny")
            assert isinstance(policy, TransformersPolicy)
            policy.model.load_state_dict(copy.deepcopy(start.state_dict()))
            policy.set_prompt_style("compact", form)
            learnt = train_tiny(policy, gold_rows(policy, TINY_ROWS, form), minutes, seed)
            results[form].append({**learnt, **figures_of(policy, tasks)})
            print(form, results[form][-1], file=sys.stderr, flush=True)
    return results


def table(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Format the figures of all arms, and the gain of lines over Hermes."""
    lines = [
        "| form | CPU-minutes | rows seen | tokens a reply | valid calls | update_hit | delete_hit | accuracy |",
        "|---" * 8 + "|",
    ]
    for name, runs in results.items():
        mean = partial(_mean, runs)
        cells = [f"{mean('minutes'):.1f}", f"{mean('rows'):,.0f}", f"{mean('reply_tokens'):.1f}"]
        cells += [f"{mean(key):.3f}" for key in FIGURES[:3]]
        accuracy = (
            f"{runs[0]['accuracy']:.3f} ± {runs[0]['se']:.3f}"
            if len(runs) == 1
            else format_interval([run["accuracy"] for run in runs])
        )
        lines.append(f"| {name} | " + " | ".join([*cells, accuracy]) + " |")
    for name, runs in results.items():
        if name != "hermes":
            differences = [
                value - base
                for run, other in zip(runs, results["hermes"], strict=True)
                for value, base in zip(run["by_task"], other["by_task"], strict=True)
            ]
            lines += ["", f"Accuracy of {name} over hermes, paired by conversation: {format_interval(differences)}."]
    return lines


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.mean(run[key] or 0.0 for run in runs)


def main() -> None:
    """Train and evaluate the arms of one model and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("name", choices=["smol", "tiny"])
    parser.add_argument("--model", help="transformers directory of SmolLM2, for smol")
    parser.add_argument("--minutes", type=float, default=6, help="CPU-minutes of each arm")
    parser.add_argument("--turns", type=int, default=3, help="turns that the arms of smol take")
    parser.add_argument("--rows", type=int, default=1200, help="gold rows for smol")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of tiny")
    parser.add_argument("--count", type=int, default=30, help="held-out conversations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tasks = tasks_of("demo", arguments.count)
    if arguments.name == "tiny":
        results = tiny_results(arguments.minutes, arguments.seeds, tasks)
    elif arguments.model is None:
        parser.error("smol needs --model, such as the directory that `memalpha fetch smol` prints")
    else:
        results = smol_results(arguments.model, arguments.minutes, arguments.turns, arguments.rows, tasks)
    page = [*opening(f"Forms of calls after the same training time: {arguments.name}"), "", *table(results)]
    save(arguments.results / f"form-accuracy-{arguments.name}", results, "\n".join(page))


if __name__ == "__main__":
    main()
