"""Compare `ERLTrainer` with TRL's `GRPOTrainer` on word problems, on equal sampled tokens.

    python eval/learning/trl_erl.py     # three seeds of both, 7 CPU-minutes: eval/results/trl-erl.json, a table

Both start from the shipped `tiny-text`, with the same settings and a constant learning rate, and sample until the
budget is used up: completion tokens of all roles. ERL's feedback names the first wrong line of a reply, not what is
right (`memalpha.tasks.synthetic.arithmetic.feedback`). Accuracy is that of greedy first attempts at held-out problems.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from memalpha import load_policy
from memalpha.config.rewards import MathPart
from memalpha.integrations.trl import ERLConfig, ERLTrainer
from memalpha.policy.transformers import TransformersPolicy
from memalpha.rewards.base import reply_text
from memalpha.rewards.environments import load_rewards
from memalpha.tasks.synthetic import arithmetic
from memalpha.types import SampleRequest, TextTask

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_interval, make_parser, write_json

HELD_OUT = 300
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_completion_length": 40,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "constant",
    "loss_type": "dapo",
    "max_steps": 10_000,
    "logging_steps": 1,
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def rows(tasks: list[TextTask]) -> Dataset:
    """Return the tasks as a data set of TRL."""
    return Dataset.from_list([{"prompt": messages(task), **task.columns} for task in tasks])


def messages(task: TextTask) -> list[dict[str, str]]:
    """Return a task's prompt as messages."""
    if isinstance(task.prompt, str):
        return [{"role": "user", "content": task.prompt}]
    return [dict(message) for message in task.prompt]


def feedback(completions: list[Any], **columns: Any) -> list[str]:
    """Return the first wrong line of each reply."""
    return arithmetic.feedback(completions=[reply_text(completion) for completion in completions], **columns)


class CountingMixin:
    """Count sampled completion tokens."""

    budget = 0
    every = 0

    def _generate(self, prompts: Any) -> Any:
        result = super()._generate(prompts)  # type: ignore[misc]
        if self.rollout_func is None:  # type: ignore[attr-defined]
            self.sampled = getattr(self, "sampled", 0) + sum(map(len, result[1]))
        return result


class GRPO(CountingMixin, GRPOTrainer):
    pass


class ERL(CountingMixin, ERLTrainer):
    pass


class BudgetCallback(TrainerCallback):
    """Evaluate every `every` sampled tokens and stop at the budget."""

    def __init__(self, policy: TransformersPolicy, tasks: list[TextTask], budget: int, every: int) -> None:
        self.policy, self.tasks, self.budget, self.every = policy, tasks, budget, every
        self.trainer: Any = None
        self.curve: list[dict[str, float]] = []

    def evaluate(self) -> None:
        self.policy.model.eval()
        [math] = load_rewards([MathPart(kind="math")])
        requests = [SampleRequest(tuple(messages(item)), max_new_tokens=40) for item in self.tasks]
        replies = [item.text for item in self.policy.sample(requests)]
        scores = math(
            [messages(item) for item in self.tasks], replies, answer=[item.columns["answer"] for item in self.tasks]
        )
        point = {"sampled": getattr(self.trainer, "sampled", 0), "steps": self.trainer.state.global_step}
        self.curve.append({**point, "accuracy": sum(s or 0.0 for s in scores) / len(scores)})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        sampled = self.trainer.sampled
        if sampled >= self.budget or sampled >= self.every * len(self.curve):
            self.evaluate()
            self.policy.model.train()
        control.should_training_stop = sampled >= self.budget
        return control


def run(name: str, seed: int, budget: int, every: int, **changes: Any) -> dict[str, Any]:
    """Train one arm and return its curve of accuracy and its metrics.

    Args:
        name: `grpo` or `erl`.
        seed: Seed of trainer and data.
        budget: Sampled completion tokens after which the run ends.
        every: Sampled tokens between evaluations.
        changes: Overrides of `SETTINGS`.
    """
    policy = load_policy("tiny-text")
    assert isinstance(policy, TransformersPolicy)
    watch = BudgetCallback(policy, arithmetic.tasks("test", 0, 0, HELD_OUT), budget, every)
    kind, config = (GRPO, GRPOConfig) if name == "grpo" else (ERL, ERLConfig)
    kwargs = {"feedback_func": feedback} if kind is ERL else {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        trainer = kind(
            policy.model,
            load_rewards([MathPart(kind="math")]),
            config(folder, seed=seed, **{**SETTINGS, **changes}),
            train_dataset=rows(arithmetic.tasks("train", seed, 0, 2000)),
            processing_class=policy.tokenizer,
            callbacks=[watch],
            **kwargs,
        )
        watch.trainer = trainer
        watch.evaluate()
        trainer.train()
    lines = [line for line in trainer.state.log_history if "reward" in line]
    metrics = (
        "erl/gated",
        "erl/retry_reward",
        "erl/retry_gain",
        "erl/memory",
        "erl/internalized",
        "erl/empty_reflections",
    )
    return {
        "name": name,
        "seed": seed,
        "cpu_seconds": round(time.process_time() - start, 1),
        "curve": watch.curve,
        "last_fifth": {
            key: statistics.mean(values)
            for key in ("reward", *metrics)
            if (values := [line[key] for line in lines[-len(lines) // 5 :] if line.get(key) is not None])
        },
        "first": {key: lines[0].get(key) for key in ("reward", *metrics)},
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Format mean ± half of a 95 % interval over seeds (Student's t), by share of the budget."""
    lines = []
    for name, label in (("grpo", "GRPOTrainer"), ("erl", "ERLTrainer")):
        arm = [run for run in runs if run["name"] == name]
        cells = [format_interval([run["curve"][at]["accuracy"] for run in arm]) for at in range(1, 5)]
        steps = statistics.mean(run["curve"][-1]["steps"] for run in arm)
        cpu = statistics.mean(run["cpu_seconds"] for run in arm) / 60
        lines.append(f"| {label} | {' | '.join(cells)} | {steps:.0f} | {cpu:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run both arms, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=50_000)
    parser.add_argument("--arms", default="grpo,erl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for seed in range(arguments.seeds):
        for name in arguments.arms.split(","):
            runs.append(run(name, seed, arguments.budget, arguments.budget // 4))
            print(json.dumps(runs[-1]), flush=True)
            write_json(arguments.results / "trl-erl.json", {"settings": SETTINGS, "runs": runs})
    print(table(runs))


if __name__ == "__main__":
    main()
