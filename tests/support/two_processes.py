"""Work of each of two processes for `test_distributed`: `python two_processes.py FOLDER` in a launcher's environment.

`plan.pickle` in FOLDER lists the runs; the main process writes its results to `results.pickle`.
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
from tiny import VOCABULARY, tiny_model, tiny_policy

from memalpha.config import LoraConfig, TrainConfig
from memalpha.errors import CheckpointError, TrainingError
from memalpha.train import api as loop
from memalpha.train.algorithms.erl import ERL
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, full_tensor, join_world
from memalpha.train.learner.engine import Engine, normalize
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import load_checkpoint, write_checkpoint


def rows(lengths: list[tuple[int, int]], entropy: float) -> list[TrainingSample]:
    """Return random rows of (prompt, completion) lengths with log-probs near the tiny model's."""
    noise = np.random.default_rng(3)
    result = []
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
        result.append(replace(row, ent=ones * np.float32(entropy)) if entropy else row)
    old = Engine(tiny_model(), TrainConfig(out=Path("unused"))).forward(result)
    return [
        replace(row, logprobs=values + noise.normal(scale=0.1, size=len(values)).astype(np.float32))
        for row, values in zip(result, old, strict=True)
    ]


UNEVEN = [(3 + 7 * (i % 6), 1 + 4 * (i % 5)) for i in range(11)]
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"microbatch_tokens": 128},
    "ddp, one micro-batch": {"microbatch_tokens": 10**6, "lengths": UNEVEN[:2]},
    "fsdp": {"sharding": "fsdp", "microbatch_tokens": 128},
    "fsdp, sharded only": {"sharding": "fsdp", "microbatch_tokens": 128, "beta": 0.3, "keeps_whole": False},
    "fsdp, KL, entropy, recomputing": {
        "sharding": "fsdp",
        "microbatch_tokens": 128,
        "beta": 0.3,
        "entropy_coef": 0.1,
        "gradient_checkpointing": True,
    },
    "ddp, LoRA and KL": {"microbatch_tokens": 128, "lora": {"r": 3}, "beta": 0.3},
    "fsdp, LoRA and KL": {"sharding": "fsdp", "microbatch_tokens": 128, "lora": {"r": 3}, "beta": 0.3},
    "ddp, values": {"microbatch_tokens": 128, "values": True},
    "fsdp, values, LoRA, bfloat16": {
        "sharding": "fsdp",
        "microbatch_tokens": 128,
        "values": True,
        "lora": {"r": 3},
        "dtype": "bfloat16",
    },
    "ddp, rows without weight": {"microbatch_tokens": 128, "flat": 8},
    "fsdp, rows without weight": {"sharding": "fsdp", "microbatch_tokens": 10**6, "flat": 10},
    "fsdp, KL, bfloat16": {"sharding": "fsdp", "microbatch_tokens": 128, "beta": 0.3, "dtype": "bfloat16"},
}


def measure(case: dict[str, Any], world: World = SINGLE_PROCESS) -> dict[str, Any]:
    """Return log-probs, gradient and metrics, and the weights and optimizer state after one step.

    A second step, of rows without any weight, must change nothing.
    """
    changes = {key: value for key, value in case.items() if key not in ("lengths", "values", "flat", "keeps_whole")}
    config = TrainConfig(out=Path("unused"), learning_rate=1e-2, **changes)
    model: Any = tiny_model()
    if config.lora is not None:
        model = add_lora(model, LoraConfig(r=config.lora.r), "tiny")
        torch.manual_seed(7)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.3 * torch.randn_like(parameter)
    rate = 3e-3 if "values" in case else None
    engine = Engine(
        model,
        config,
        LossSettings.from_config(config.loss, 16),
        reference=config.loss.beta > 0,
        value_learning_rate=rate,
        world=world,
        keeps_whole=case.get("keeps_whole", True),
    )
    samples = rows(case.get("lengths", UNEVEN), config.loss.entropy_coef)
    if "values" in case:
        samples = [replace(row, values=0 * row.pg, returns=row.advantages + 1, vf=row.pg) for row in samples]
    flat_rows = [replace(row, advantages=0 * row.advantages, ent=None, vf=None) for row in samples]
    samples = [*flat_rows[: case.get("flat", 0)], *samples[case.get("flat", 0) :]]
    result: dict[str, Any] = {"forward": engine.forward(samples)}
    if config.loss.beta:
        result["reference"] = engine.forward(samples, reference=True)
        samples = [
            replace(row, reference=values, kl=row.pg * np.float32(config.loss.beta))
            for row, values in zip(samples, result["reference"], strict=True)
        ]
    result["stats"] = engine.forward_backward(normalize(samples, "constant"))
    result["gradient"] = {name: full_tensor(p.grad).clone() for name, p in engine.trainable.items()}
    result["norm"] = engine.optim_step(1e-2)
    result["weights"] = {name: full_tensor(p.detach()).clone() for name, p in engine.model.named_parameters()}
    result["optimizer"] = {name: value.clone() for name, value in engine.optimizer_tensors().items()}
    assert engine.update(flat_rows, 1e-2)["rows_without_weight"] == len(flat_rows)
    assert all(torch.equal(full_tensor(p), result["weights"][name]) for name, p in engine.model.named_parameters())
    assert all(torch.equal(value, result["optimizer"][name]) for name, value in engine.optimizer_tensors().items())
    result["after_step"] = engine.forward(samples)
    if "values" in case:
        result["values"] = engine.values(samples)
    saved = {name: value.clone() for name, value in result["optimizer"].items()}
    engine.load_optimizer_tensors(saved)
    assert all(torch.equal(value, saved[name]) for name, value in engine.optimizer_tensors().items())
    return result


def step_and_save(folder: Path, world: World) -> tuple[Engine, list[np.ndarray]]:
    """Take a step, shard the weights over the processes without a whole copy, and save a checkpoint in `folder`.

    Returns:
        The engine, and the log-probs of rows after the step.
    """
    config = TrainConfig(out=Path("unused"), sharding="fsdp", microbatch_tokens=128, learning_rate=1e-2)
    engine = Engine(tiny_model(), config, world=world, keeps_whole=False, value_learning_rate=1e-2)
    samples = rows(UNEVEN, 0.0)
    engine.update([replace(row, values=0 * row.pg, returns=row.advantages + 1, vf=row.pg) for row in samples], 1e-2)
    write_checkpoint(folder, tiny_policy(), engine, {"step": 1})
    return engine, engine.forward(samples)


def tensors_of(engine: Engine) -> dict[str, torch.Tensor]:
    """Return weights and optimizer states, whole."""
    weights = {name: full_tensor(p.detach()).clone() for name, p in engine.model.named_parameters()}
    return {**weights, **engine.optimizer_tensors()}


def exchange(folder: Path, world: World) -> dict[str, Any]:
    """Return the tensors of a checkpoint of two processes, and of one of a single process that both have loaded."""
    engine, logprobs = step_and_save(folder / "saved by two", world)
    result = {"two": tensors_of(engine), "logprobs": logprobs}
    load_checkpoint(folder / "saved by one", engine)
    result["one"] = tensors_of(engine)
    load_checkpoint(folder / "saved by two", engine)
    result["again"] = tensors_of(engine)
    return result


def watch() -> tuple[list[int], list[dict[str, Any]]]:
    """Record the groups per call of `sample` and ERL's state after each step in the returned lists."""
    counts: list[int] = []
    states: list[dict[str, Any]] = []
    sample, finish_step = RolloutWorker.sample, ERL.finish_step

    def sample_and_count(self: RolloutWorker, *args: Any, **kwargs: Any) -> Any:
        groups = sample(self, *args, **kwargs)
        counts.append(len(groups))
        return groups

    def finish_and_record(self: ERL, metrics: dict[str, Any]) -> None:
        finish_step(self, metrics)
        states.append(self.state)

    RolloutWorker.sample, ERL.finish_step = sample_and_count, finish_and_record
    return counts, states


def press_in_step(interrupted_step: int) -> None:
    """Send this process a Ctrl-C while it collects step `interrupted_step`."""
    collect_attempts = RolloutWorker.collect_attempts

    def collect_and_press(self: RolloutWorker, tasks: Any, step: int) -> Any:
        if step == interrupted_step:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # a launcher passes on its own too
        return collect_attempts(self, tasks, step)

    RolloutWorker.collect_attempts = collect_and_press


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    plan = pickle.loads((folder / "plan.pickle").read_bytes())
    world = join_world("cpu")
    results: dict[str, Any] = {"cases": {name: measure(case, world) for name, case in CASES.items()}}
    results["exchanged"] = exchange(folder, world)
    results["ranks"] = world.gather([world.rank])
    results["shards"] = world.gather([world.shard(range(size)) for size in (0, 1, 3, 8)])
    try:
        world.run_on_main(lambda: (_ for _ in ()).throw(CheckpointError("raised in the main process")))
    except CheckpointError as error:
        results["refused"] = world.gather([str(error)])
    sampled, advice = watch()
    results |= {"sampled": {}, "advice": {}}
    for run in plan["runs"]:
        loop.train(run)
        results["sampled"][run.out.name] = world.gather([list(sampled)])
        results["advice"][run.out.name] = world.gather([list(advice)])
        sampled.clear()
        advice.clear()
    if world.rank == 1:
        press_in_step(0)
    try:
        loop.train(plan["interrupted"])
    except KeyboardInterrupt:
        results["interrupted"] = world.gather([world.rank])
    if world.is_main:
        (folder / "results.pickle").write_bytes(pickle.dumps(results))
    if world.rank == 1:
        raise TrainingError("only here")
    world.gather([])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
