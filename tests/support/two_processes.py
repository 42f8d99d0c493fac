"""What each of two processes does for `test_distributed`: `python two_processes.py FOLDER`, twice, with a launcher's
environment. `plan.pickle` in FOLDER says what; results of the main process go to `found.pickle`.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny import VOCABULARY, tiny_model

from memalpha.config import LoraConfig, TrainConfig
from memalpha.errors import CheckpointError, TrainingError
from memalpha.train import api as loop
from memalpha.train.algorithms.erl import ERL
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, full_tensor, join_world
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.loss_weights import normalize
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.memory import MemoryCollector
from memalpha.train.trainers.checkpoint import load_weights


def rows(lengths: list[tuple[int, int]], entropy: float) -> list[TrainingSample]:
    """Random rows of (prompt, completion) lengths, with log-probs near the tiny model's."""
    noise = np.random.default_rng(3)
    found = []
    for number, (prompt, count) in enumerate(lengths):
        ones = np.ones(count, dtype=np.float32)
        row = TrainingSample(
            prompt_ids=tuple(noise.integers(3, VOCABULARY, prompt).tolist()),
            completion_ids=tuple(noise.integers(3, VOCABULARY, count).tolist()),
            logprobs=ones,
            advantages=ones * np.float32(noise.normal()),
            pg=ones,
            ce=ones * 0,
            kl=ones * 0,
            temperature=0.8,
            task=str(number),
        )
        found.append(replace(row, ent=ones * np.float32(entropy)) if entropy else row)
    old = Engine(tiny_model(), TrainConfig(out=Path("unused"))).forward(found)
    return [
        replace(row, logprobs=values + noise.normal(scale=0.1, size=len(values)).astype(np.float32))
        for row, values in zip(found, old, strict=True)
    ]


UNEVEN = [(3 + 7 * (i % 6), 1 + 4 * (i % 5)) for i in range(11)]
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"microbatch_tokens": 128},
    "ddp, one micro-batch": {"microbatch_tokens": 10**6, "lengths": UNEVEN[:2]},
    "fsdp": {"sharding": "fsdp", "microbatch_tokens": 128},
    "fsdp, one micro-batch": {"sharding": "fsdp", "microbatch_tokens": 10**6, "lengths": UNEVEN[:2]},
    "fsdp, KL, entropy, recomputing": {
        "sharding": "fsdp",
        "microbatch_tokens": 128,
        "beta": 0.3,
        "entropy_coef": 0.1,
        "gradient_checkpointing": True,
    },
    "ddp, LoRA and KL": {"microbatch_tokens": 128, "lora": {"r": 3}, "beta": 0.3},
    "fsdp, LoRA and KL": {"sharding": "fsdp", "microbatch_tokens": 128, "lora": {"r": 3}, "beta": 0.3},
    "fsdp, LoRA, bfloat16": {"sharding": "fsdp", "microbatch_tokens": 128, "lora": {"r": 3}, "dtype": "bfloat16"},
    "ddp, values": {"microbatch_tokens": 128, "values": True},
    "fsdp, values, LoRA, bfloat16": {
        "sharding": "fsdp",
        "microbatch_tokens": 128,
        "values": True,
        "lora": {"r": 3},
        "dtype": "bfloat16",
    },
    "fsdp, values, one micro-batch": {
        "sharding": "fsdp",
        "microbatch_tokens": 10**6,
        "values": True,
        "lengths": UNEVEN[:2],
    },
    "fsdp, KL, bfloat16": {"sharding": "fsdp", "microbatch_tokens": 128, "beta": 0.3, "dtype": "bfloat16"},
}


def measure(case: dict[str, Any], world: World = SINGLE_PROCESS) -> dict[str, Any]:
    """Log-probs, gradient, statistics, and after one optimizer step the weights and the optimizer's state."""
    changes = {key: value for key, value in case.items() if key not in ("lengths", "values")}
    config = TrainConfig(out=Path("unused"), learning_rate=1e-2, **changes)
    model: Any = tiny_model()
    if config.lora is not None:
        model = add_lora(model, LoraConfig(r=config.lora.r), "tiny")
        torch.manual_seed(7)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.3 * torch.randn_like(parameter)
    rate = 3e-3 if "values" in case else None
    learner = Engine(
        model,
        config,
        LossSettings.from_config(config),
        reference=config.loss.beta > 0,
        value_learning_rate=rate,
        world=world,
    )
    samples = rows(case.get("lengths", UNEVEN), config.loss.entropy_coef)
    if "values" in case:
        samples = [replace(row, values=0 * row.pg, returns=row.advantages + 1, vf=row.pg) for row in samples]
    found: dict[str, Any] = {"forward": learner.forward(samples)}
    if config.loss.beta:
        found["reference"] = learner.forward(samples, reference=True)
        samples = [
            replace(row, reference=values, kl=row.pg * np.float32(config.loss.beta))
            for row, values in zip(samples, found["reference"], strict=True)
        ]
    found["stats"] = learner.forward_backward(normalize(samples, "constant"))
    found["gradient"] = {name: full_tensor(p.grad).clone() for name, p in learner.trainable.items()}
    found["norm"] = learner.optim_step(1e-2)
    found["weights"] = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    found["optimizer"] = learner.optimizer_tensors()
    found["again"] = learner.forward(samples)
    if "values" in case:
        found["values"] = learner.values(samples)
    saved = {name: value.clone() for name, value in found["optimizer"].items()}
    learner.load_optimizer_tensors(saved)
    assert all(torch.equal(value, saved[name]) for name, value in learner.optimizer_tensors().items())
    return found


def load_after_a_step(place: Path, world: World) -> list[list[np.ndarray]]:
    """Log-probs under FSDP at the start, after a step, and with the start's weights loaded again."""
    config = TrainConfig(out=Path("unused"), sharding="fsdp", microbatch_tokens=128)
    model: Any = tiny_model()
    if world.is_main:
        model.save_pretrained(place)
    world.gather([])
    learner = Engine(model, config, world=world)
    samples = rows(UNEVEN, 0.0)
    found = [learner.forward(samples)]
    learner.update(samples, 1e-2)
    found.append(learner.forward(samples))
    load_weights(place, learner)
    return [*found, learner.forward(samples)]


def watch() -> tuple[list[int], list[dict[str, Any]]]:
    """How many tasks this process samples at a time, and what ERL has learnt after each step: both lists are filled."""
    counts: list[int] = []
    states: list[dict[str, Any]] = []
    build, learnt = MemoryCollector.sample, ERL.finish_step

    def counted(self: MemoryCollector, *args: Any, **more: Any) -> Any:
        groups = build(self, *args, **more)
        counts.append(len(groups))
        return groups

    def noted(self: ERL, line: dict[str, Any]) -> None:
        learnt(self, line)
        states.append(self.state)

    MemoryCollector.sample, ERL.finish_step = counted, noted
    return counts, states


def press_in_step(at: int) -> None:
    """Let this process get a Ctrl-C while it collects step `at`."""
    attempts = MemoryCollector.collect_attempts

    def pressed(self: MemoryCollector, tasks: Any, step: int) -> Any:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # a launcher passes its own on
        return attempts(self, tasks, step)

    MemoryCollector.collect_attempts = pressed


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    plan = pickle.loads((folder / "plan.pickle").read_bytes())
    world = join_world("cpu")
    found: dict[str, Any] = {"cases": {name: measure(case, world) for name, case in CASES.items()}}
    found["loaded"] = load_after_a_step(folder / "loaded", world)
    found["everybody"] = world.gather([world.rank])
    found["blocks"] = world.gather([world.shard(range(size)) for size in (0, 1, 3, 8)])
    try:
        world.run_on_main(lambda: (_ for _ in ()).throw(CheckpointError("told by the main one")))
    except CheckpointError as error:
        found["refused"] = world.gather([str(error)])
    sampled, advice = watch()
    found |= {"sampled": {}, "advice": {}}
    for run in plan["runs"]:
        loop.train(run)
        found["sampled"][run.out.name] = world.gather([list(sampled)])
        found["advice"][run.out.name] = world.gather([list(advice)])
        sampled.clear()
        advice.clear()
    if world.rank == 1:
        press_in_step(0)
    try:
        loop.train(plan["interrupted"])
    except KeyboardInterrupt:
        found["interrupted"] = world.gather([world.rank])
    if world.is_main:
        (folder / "found.pickle").write_bytes(pickle.dumps(found))
    if world.rank == 1:
        raise TrainingError("only here")
    world.gather([])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
