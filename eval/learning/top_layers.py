"""Adapters on the last layers against adapters on all, after the same CPU time.

    python eval/learning/top_layers.py MODEL [--arms 15 30] [--minutes 20]

`MODEL` is a transformers directory, such as the one that `memalpha fetch smol` prints. Each arm learns gold rows of the
demo world under the compact prompt in the line form, from the same rows in the same order, until it has used --minutes
of CPU time of one thread; the learning rate warms up and decays by that time. The arms take turns of a few minutes, so
that other work on the machine slows them alike. `15` adapts the last 15 layers and keeps the hidden states below them,
`30` adapts all. Then each arm writes memories over held-out conversations of the demo world, greedily. Evaluations are
not in the CPU time. Writes top-layers.json and top-layers.md to --results.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning_speed import gold_rows

from memalpha import evaluate
from memalpha.agent.prompts import prompted_config
from memalpha.config import AgentConfig, LoraConfig, ReaderConfig, SFTConfig
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.reader import load_reader
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.epochs import shuffled_item
from memalpha.types import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_interval, make_parser, opening, save
from smol_writer import VIEW, tasks_of

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

    def evaluate(self, tasks: Sequence[Task], held_out: Sequence[TrainingSample]) -> dict[str, Any]:
        """Return figures of the writer, by task too, and its loss on held-out rows.

        Args:
            tasks: Conversations with questions.
            held_out: Gold rows of other conversations.
        """
        reader = load_reader(ReaderConfig(conflicts="refuse"))
        agent = prompted_config(AgentConfig.model_validate(VIEW), self.policy)
        report = evaluate(self.policy, tasks, reader, config=agent, check_reader=False)
        by_task = {task.id: [record.correct for record in report.records if record.task == task.id] for task in tasks}
        return {
            **{key: report.summary[key] for key in FIGURES},
            "by_task": [statistics.mean(answers) for answers in by_task.values()],
            "held_out_loss": -float(np.concatenate(self.engine.forward(held_out)).mean()),
            "train_loss": statistics.mean(self.losses[-10:]),
            "rows": self.steps * BATCH,
            "epochs": self.steps * BATCH / len(self.rows),
            "minutes": self.seconds / 60,
        }


def arm_of_layers(model: str, layers: int, rows: Sequence[TrainingSample], dtype: str, seed: int) -> Arm:
    """Return an arm with adapters on the last layers; it keeps the hidden states below them.

    Args:
        model: Transformers directory.
        layers: Number of last layers with adapters.
        rows: Rows to learn.
        dtype: Precision of the passes.
        seed: Seed of adapters and order.
    """
    policy = TransformersPolicy.from_pretrained(model, dtype=dtype)
    policy.set_prompt_style("compact", "lines")
    is_top = layers < policy.model.config.num_hidden_layers
    lora = LoraConfig(r=16, layers=layers, frozen_cache_gb=4.0) if is_top else LoraConfig(r=16)
    return Arm(policy, lora, rows, dtype, seed)


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Format the figures of both arms, that of fewer layers first."""
    lines = [
        "| adapted layers | CPU-minutes | rows seen (epochs) | loss on held-out rows | valid calls | update_hit "
        "| delete_hit | accuracy |",
        "|---" * 8 + "|",
    ]
    for arm, figures in results.items():
        cells = [f"{figures['minutes']:.1f}", f"{figures['rows']:,} ({figures['epochs']:.1f})"]
        cells += ["-" if figures[key] is None else f"{figures[key]:.3f}" for key in ("held_out_loss", *FIGURES[:3])]
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {figures['accuracy']:.3f} ± {figures['se']:.3f} |")
    (top, top_figures), (whole, whole_figures) = results.items()
    pairs = zip(top_figures["by_task"], whole_figures["by_task"], strict=True)
    gain = format_interval([value - base for value, base in pairs])
    return [*lines, "", f"Accuracy of the {top} layers over that of the {whole}, paired by conversation: {gain}."]


def main() -> None:
    """Train and evaluate the arms and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--arms", type=int, nargs=2, default=[15, 30], help="numbers of last layers with adapters")
    parser.add_argument("--minutes", type=float, default=20, help="CPU-minutes of each arm")
    parser.add_argument("--turns", type=int, default=4, help="turns that the arms take")
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--count", type=int, default=30, help="held-out conversations")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples = gold_rows(TransformersPolicy.from_pretrained(arguments.model), arguments.rows + 64)
    rows, held_out = samples[: arguments.rows], samples[arguments.rows :]
    tasks, budget = tasks_of("demo", arguments.count), 60 * arguments.minutes
    arms = {
        layers: arm_of_layers(arguments.model, layers, rows, arguments.dtype, arguments.seed)
        for layers in arguments.arms
    }
    for turn in range(1, arguments.turns + 1):
        for layers, arm in arms.items():
            arm.learn(budget * turn / arguments.turns, budget)
            print(layers, turn, arm.steps, f"{arm.seconds:.0f} s", arm.losses[-4:], file=sys.stderr, flush=True)
    results: dict[str, dict[str, Any]] = {}
    for layers, arm in arms.items():
        results[f"last {layers}"] = arm.evaluate(tasks, held_out) | {"losses": arm.losses}
        print(results[f"last {layers}"], file=sys.stderr, flush=True)
    page = [*opening("Adapters on the last layers and on all, after the same CPU time"), "", *table(results)]
    save(arguments.results / "top-layers", results, "\n".join(page))


if __name__ == "__main__":
    main()
