"""Memory of a run by phase: weights, gradients, optimizer, caches, activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from memalpha.config import LearnerConfig, RewardModelConfig
from memalpha.config.sampling import SamplerConfig
from memalpha.policy.flat_qwen3 import PACK_TOKENS
from memalpha.policy.kv_cache import ROOM
from memalpha.train.data.samples import balance_micro_batches, padded_tokens, split_micro_batches
from memalpha.train.learner.token_logprobs import (
    checkpointed_layers,
    find_trunk,
    recompute_activations,
    unwrap_peft,
)
from memalpha.train.plan.allocation import (
    count_learning,
    count_prefill,
    count_training,
    extrapolate_layers,
    extrapolate_width,
)
from memalpha.train.plan.devices import GPU_PROCESS_BYTES
from memalpha.train.plan.model import ModelPlan, build_shape
from memalpha.train.plan.workload import Row, Workload

ADAM_BYTES = 8
"""Two float32 averages per trained weight."""
DRAWN_UPDATES = 16
"""Updates whose rows are drawn as a run draws them; the largest of their micro-batches gives the peak."""
JOIN_SHARE = 0.25
"""Share of a batch that enters at once while others run (`policy.decoding.JOIN_SHARE`)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of a phase, at its peak, by part."""

    name: str
    parts: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are decoded side by side: their number, their longest prompt, and prompt and reply together."""

    rows: int
    prompts: int
    prompt: int
    longest: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of all phases, and how a step is cut into batches.

    Attributes:
        phases: In the order of a step.
        microbatches: Micro-batches of all updates of a step.
        sampling: Rows that are sampled side by side, here or on a server; None if nothing is sampled.
        reading: Rows that the reader answers side by side; None without a reading policy.
    """

    phases: Sequence[Phase]
    microbatches: int
    sampling: Batch | None
    reading: Batch | None

    @property
    def peak(self) -> Phase:
        """Phase that needs most."""
        return max(self.phases, key=lambda phase: phase.bytes)


def plan_memory(config: LearnerConfig, model: ModelPlan, work: Workload, processes: int = 1) -> MemoryPlan:
    """Return the memory of a process of the run by phase.

    Args:
        config: Settings of the run.
        model: Shape of the start policy.
        work: Work of a step.
        processes: Processes that share the work.
    """
    is_gpu = torch.device(config.compute.device).type != "cpu"
    is_sharded = processes > 1 and config.compute.sharding == "fsdp"
    sampler = sampler_of(config)
    is_nowhere_whole = is_sharded and sampler is not None and config.lora is None
    process = {"process": GPU_PROCESS_BYTES} if is_gpu else {}
    shard = processes if is_sharded else 1
    base = process | {"weights": model.bytes // shard if is_nowhere_whole else model.bytes}
    if is_sharded and not is_nowhere_whole:
        base["shard of the weights"] = model.bytes // processes
    if work.has_reference and config.lora is None:
        base["reference"] = _reference_bytes(config, model) // shard
    readers = _frozen_models(config, work)
    frozen = sum(reader.bytes for reader in readers.values())
    if frozen:
        base["frozen policies"] = frozen
    copy = _copy_bytes(config, model)
    if work.rollouts and copy and sampler is None:
        base["sampler's copy"] = copy
    if not (is_gpu and config.compute.offload_optimizer):
        base["optimizer"] = ADAM_BYTES * model.trained_parameters // shard
    phases: list[Phase] = []
    sampling = reading = None
    if work.rollouts and sampler is not None:
        rows = min(work.rollouts, sampler.concurrency)
        sampling = Batch(
            rows, -(-rows // work.shared), max(row.prompt for row in work.rows), max(row.length for row in work.rows)
        )
        phases.append(Phase("handing over weights", base | _handed_over(config, model, is_nowhere_whole, is_gpu)))
    elif work.rollouts:
        sampling = _decoding_batch(model, work.rows, -(-work.rollouts // processes), work.shared)
        dtype = getattr(config, "sampling").dtype or _dtype_name(model)  # noqa: B009  # only runs that sample have it
        phases.append(Phase("sampling", base | _decoding_parts(model, sampling, dtype, config.compute.device)))
    if work.reader.policy in readers:
        reader = readers[work.reader.policy]
        reading = _decoding_batch(reader, work.reader.rows, len(work.reader.rows), 1)
        parts = _decoding_parts(reader, reading, _dtype_name(reader), config.compute.device)
        phases.append(Phase("reading", base | parts))
    draws = _update_batches(config, work, processes)
    phases.append(Phase("learning", base | _learning_parts(config, model, work, draws, shard, is_sharded)))
    if is_nowhere_whole:
        phases.append(Phase("loading the policy", process | {"whole weights": model.bytes}))
    elif config.lora is None:
        phases.append(Phase("loading the best weights", base | ({} if is_gpu else {"loaded weights": model.bytes})))
    if not is_gpu and model.mapped_bytes:
        phases.append(Phase("loading the policy", {"weights": model.bytes, "mapped file": model.mapped_bytes}))
    return MemoryPlan(phases, len(draws[0]) * work.updates, sampling, reading)


def sampler_of(config: LearnerConfig) -> SamplerConfig | None:
    """Return the server that samples the run's rollouts; None if the run's processes sample, or nothing is sampled."""
    return getattr(getattr(config, "sampling", None), "sampler", None)


def _handed_over(config: LearnerConfig, model: ModelPlan, is_nowhere_whole: bool, is_gpu: bool) -> dict[str, int]:
    """Return what writing weights for the server takes on the device.

    Sharded weights are gathered tensor by tensor, and the main process keeps those of a file in host memory.
    """
    largest = 4 * model.head_parameters
    if is_gpu:
        return {"gathered tensor": largest} if is_nowhere_whole else {}
    written = 4 * model.trained_parameters
    return {"written weights": min(written, max((1 << 30), largest)) if is_nowhere_whole else written}


def _dtype_name(model: ModelPlan) -> str:
    return str(model.policy.model.dtype).removeprefix("torch.")


def _frozen_models(config: LearnerConfig, work: Workload) -> dict[str, ModelPlan]:
    """Return the shapes of the policies that the run loads and does not train, by name."""
    name = work.reader.policy
    if name is None or name.startswith(("openai:", "http://", "https://", "scripted:")):
        return {}
    batching = getattr(config, "sampling", None)
    return {name: build_shape(name, config.compute.dtype, config.compute, batching=batching)}


def _reference_bytes(config: LearnerConfig, model: ModelPlan) -> int:
    """Return the bytes of a frozen copy: with bfloat16 its linear layers are cast, the embeddings are not."""
    if config.compute.dtype != "bfloat16":
        return model.bytes
    return model.bytes - 2 * model.linear_parameters


def _copy_bytes(config: LearnerConfig, model: ModelPlan) -> int:
    """Return the bytes of the sampler's own copy of the weights."""
    dtype = getattr(getattr(config, "sampling", None), "dtype", None) or _dtype_name(model)
    is_flat = config.lora is None and model.uses_flat_sampler(dtype, config.compute.device)
    if is_flat or dtype != _dtype_name(model):
        return sum(parameter.numel() for parameter in model.trained.parameters()) * getattr(torch, dtype).itemsize
    return 0


def _decoding_batch(model: ModelPlan, rows: Sequence[Row], most: int, shared: int) -> Batch:
    """Return the largest batch that the sampler takes of these rows."""
    longest = max(row.length for row in rows)
    count = max(1, min(most, model.policy.batch_rows, model.policy.batch_tokens // longest))
    return Batch(count, -(-count // shared), max(row.prompt for row in rows), longest)


def _decoding_parts(model: ModelPlan, batch: Batch, dtype: str, device: str) -> dict[str, int]:
    """Return keys and values, and what a prefill or a step needs beside them at most."""
    kind: torch.dtype = getattr(torch, dtype)
    columns = -(-batch.longest // ROOM) * ROOM
    if batch.rows * columns > model.policy.batch_tokens:
        columns = batch.longest
    slots = batch.rows * model.cache_bytes(dtype, columns)
    vocabulary = int(model.config.vocab_size)
    # Logits, their float32 copy and log-softmax, and two float64 arrays of the cumulative sum.
    drawing = batch.rows * vocabulary * ((kind.itemsize if kind.itemsize < 4 else 0) + 4 + 4 + 16)
    if model.uses_flat_sampler(dtype, device):
        inner = getattr(model.config, "intermediate_size", 4 * model.config.hidden_size)
        prefill = PACK_TOKENS * (4 * int(model.config.hidden_size) + 3 * int(inner)) * kind.itemsize
        return {"keys and values": slots, "passes": max(prefill, drawing)}
    base = model.policy.model

    def count(width: int) -> int:
        return extrapolate_layers(base, lambda: count_prefill(base, model.mode, rows=batch.prompts, width=width))

    peak = extrapolate_width(base, count, batch.prompt)
    cached = batch.prompts * model.cache_bytes(_dtype_name(model), batch.prompt + ROOM)
    factor = kind.itemsize / model.policy.model.dtype.itemsize
    peak, cached = int(factor * peak), int(factor * cached)
    beside = max(peak - slots, cached, drawing, int(JOIN_SHARE * peak))
    return {"keys and values": slots, "passes": beside}


def _update_batches(config: LearnerConfig, work: Workload, processes: int) -> list[list[tuple[int, int, int]]]:
    """Return (rows, padded length, completion tokens) of each micro-batch of several updates.

    Which rows come together decides how they are cut: the first update takes them evenly, the others as they are drawn.
    """
    minibatches = work.updates // getattr(config.optimizer, "num_iterations", 1)
    count = max(1, round(len(work.rows) * work.trained / minibatches))
    rows = list(work.rows)
    updates = [(rows[::minibatches] if work.trained == 1 else rows)[:count]]
    if count < len(rows):
        updates += [Random(seed).sample(rows, count) for seed in range(DRAWN_UPDATES)]
    return [_cut(update, config.compute.microbatch_tokens, processes)[::processes] for update in updates]


def _cut(rows: Sequence[Row], tokens: int, processes: int = 1) -> list[tuple[int, int, int]]:
    shapes: Any = [
        SimpleNamespace(length=row.length, prompt_ids=(index,), completion_ids=()) for index, row in enumerate(rows)
    ]
    parts = balance_micro_batches(split_micro_batches(shapes, tokens), processes, partial(padded_tokens, shapes))
    return [
        (len(part), max(rows[index].length for index in part) - 1, sum(rows[index].completion for index in part))
        for part in parts
    ]


def _learning_parts(
    config: LearnerConfig,
    model: ModelPlan,
    work: Workload,
    draws: Sequence[Sequence[tuple[int, int, int]]],
    shard: int,
    is_sharded: bool,
) -> dict[str, int]:
    """Return gradients, activations of the largest micro-batch of all drawn updates, and kept hidden states."""
    # The first micro-batch of an update finds no gradients yet.
    turns = [([update[0] for update in draws], False), ([batch for update in draws for batch in update[1:]], True)]
    largest = {
        (max(batches, key=key), accumulated)
        for batches, accumulated in turns
        if batches
        for key in (lambda batch: (batch[0] * batch[1], batch[2]), lambda batch: (batch[2], batch[0] * batch[1]))
    }
    with_entropy = bool(getattr(getattr(config, "loss", None), "entropy_coef", 0.0))
    gradients = sum(parameter.nbytes for parameter in model.trained.parameters() if parameter.requires_grad)

    def count_activations(rows: int, targets: int, accumulated: bool, width: int) -> int:
        if isinstance(config, RewardModelConfig):
            peak, before = _count_reward(config, model, rows, width, accumulated)
        else:
            peak, before = count_learning(
                model.trained,
                model.mode,
                config.compute,
                rows=rows,
                width=width,
                targets=targets,
                accumulated=accumulated,
                values=work.has_values,
                entropy=with_entropy,
            )
        return peak - before

    last = None if config.lora is None else config.lora.layers

    def count_batch(rows: int, targets: int, accumulated: bool, width: int) -> int:
        count = partial(count_activations, rows, targets, accumulated, width)
        return extrapolate_layers(model.trained, count, last)

    activations = max(  # negative: fewer than the gradients
        extrapolate_width(model.policy.model, partial(count_batch, rows, targets, accumulated), width)
        for (rows, width, targets), accumulated in largest
    )
    peak = max(gradients, gradients + activations)
    parts = {"gradients": gradients // shard, "activations": peak - gradients}
    if is_sharded:
        parts["gathered weights"] = _gathered_bytes(config, model)
    return parts


def _gathered_bytes(config: LearnerConfig, model: ModelPlan) -> int:
    """Return what FSDP2 holds whole at a time in the backward pass.

    A layer that is computed and its gradients; the next one as shard, as received and as copied; the gradients of the
    last one as they are, as sent and as a shard; and what is in no layer, with its gradients. Frozen weights have no
    gradients.
    """
    layer = 4 * model.layer_parameters // max(1, model.layers)
    outside = 4 * (model.parameters - model.layer_parameters)
    return round(3.5 * layer) + outside if config.lora is not None else 7 * layer + 2 * outside


def _count_reward(
    config: RewardModelConfig, model: ModelPlan, rows: int, width: int, accumulated: bool
) -> tuple[int, int]:
    """Count a micro-batch of a reward model: the trunk, and a head of a few outputs."""
    layers = checkpointed_layers(model.trained) if config.compute.gradient_checkpointing else []
    trunk = find_trunk(unwrap_peft(model.trained))

    def passes() -> None:
        ids = torch.zeros(rows, width, dtype=torch.long)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=config.compute.dtype == "bfloat16"),
            recompute_activations(layers),
        ):
            hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state
        hidden[:, -1].float().sum().backward()

    return count_training(model.trained, model.mode, passes, accumulated=accumulated)
