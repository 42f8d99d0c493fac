"""CPU seconds of learning on a language model: adapters on the last layers, common prefixes computed once.

    taskset -c 1 python eval/learning/learning_speed.py MODEL [--repeats 3] [--dtype float32]

`MODEL` is a transformers directory, such as the one that `python scripts/get_smollm2.py` prints. Rows are gold replies
of the demo world under the compact prompt in the line form. "8 tasks" are rows of different prompts, as in a supervised
step; "2 x 4" are four replies to each of two prompts, as in a step of GRPO. A variant first takes a step that is not
measured. Figures are CPU seconds of this process, in one thread.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from memalpha.config import AgentConfig, LoraConfig, SFTConfig, WorldConfig
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.tasks import synthetic
from memalpha.train.data.demonstrations import Demonstrator, imitation_rows
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings


def gold_rows(
    policy: TransformersPolicy, count: int, form: str = "lines", prompt: str = "compact"
) -> list[TrainingSample]:
    """Return `count` gold rows of the demo world.

    Args:
        policy: Policy whose tokens the rows are.
        count: Number of rows.
        form: Form of calls.
        prompt: Prompt style.
    """
    agent = AgentConfig.model_validate({"prompt": prompt, "form": form, "max_new_tokens": 512})
    writer = Demonstrator(ScriptedPolicy("oracle"), policy, agent.reply_form)
    groups = memory_engine(writer, agent).roll_out(
        synthetic.tasks(WorldConfig(preset="demo", pseudo_values=0.6), 0, 0, max(12, count // 2))
    )
    rows, _ = imitation_rows(trajectory for group in groups for trajectory in group.trajectories)
    return rows[:count]


def group_rows(rows: Sequence[TrainingSample], prompts: int, group: int) -> list[TrainingSample]:
    """Return rows that share prompts, as rollouts of groups do; the replies are those of other rows.

    Args:
        rows: Rows whose prompts and replies are used.
        prompts: Number of prompts.
        group: Replies to each prompt.
    """
    replies = [row.completion_ids for row in rows]
    return [
        cross_entropy_sample(rows[prompt].prompt_ids, replies[(prompt + index) % len(replies)])
        for prompt in range(prompts)
        for index in range(group)
    ]


def measure(model: Any, rows: Sequence[TrainingSample], repeats: int, **settings: Any) -> tuple[list[float], Engine]:
    """Return the CPU seconds of forward and backward passes over rows, and the engine with its gradient.

    Args:
        model: Model that is trained; `settings["lora"]` adds adapters.
        rows: Token rows.
        repeats: Number of measured passes.
        settings: Keys of `SFTConfig`.
    """
    config = SFTConfig(out="unused", learning_rate=1e-4, microbatch_tokens=2048, **settings)
    trained = copy.deepcopy(model)
    if config.lora is not None:
        trained = add_lora(trained, config.lora, "model")
    engine = Engine(trained, config, LossSettings(normalizer="token"))
    samples = engine.normalized(rows)
    seconds = []
    for repeat in range(repeats + 1):
        engine.optimizer.zero_grad(set_to_none=True)
        start = time.process_time()
        engine.forward_backward(samples)
        if repeat:
            seconds.append(time.process_time() - start)
    return seconds, engine


def gradient(engine: Engine) -> torch.Tensor:
    """Return the whole gradient as one vector."""
    return torch.cat([parameter.grad.flatten().double() for parameter in engine.trainable.values()])  # type: ignore[union-attr]


def main() -> None:
    """Measure every variant and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", default="10,15,30")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = TransformersPolicy.from_pretrained(options.model)
    rows = gold_rows(policy, 32)
    batches = {
        "8 tasks": rows[:8],
        "16 tasks": rows[:16],
        "2 x 4": group_rows(rows, 2, 4),
        "2 x 8": group_rows(rows, 2, 8),
    }
    print("| rows | tokens | layers | prefixes | CPU s | tokens per CPU s | gradient differs by |")
    print("|---|---|---|---|---|---|---|")
    for name, batch in batches.items():
        tokens = sum(row.length for row in batch)
        for layers in map(int, options.layers.split(",")):
            plain = None
            for shares in (False, True):
                lora = LoraConfig(r=16, layers=layers)
                seconds, engine = measure(
                    policy.model, batch, options.repeats, lora=lora, share_prefixes=shares, dtype=options.dtype
                )
                # The second factor starts at 0 and with it half the gradient: compare the other half.
                vector = gradient(engine)
                plain = vector if plain is None else plain
                difference = float((vector - plain).norm() / plain.norm())
                median = statistics.median(seconds)
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                print(
                    f"| {name} | {tokens} | {layers} | {'once' if shares else 'per row'} | {median:.2f} ({spread}) "
                    f"| {tokens / median:.0f} | {difference:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
