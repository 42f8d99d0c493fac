"""Time of a step by phase: operations over a device's speed. Always an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memalpha.config import LearnerConfig
from memalpha.train.plan.devices import Device
from memalpha.train.plan.memory import Batch, MemoryPlan, sampler_of
from memalpha.train.plan.model import ModelPlan
from memalpha.train.plan.workload import Row, Workload

OPTIMIZER_BYTES = 28
"""Bytes that Adam reads and writes for a trained weight: weight, gradient and two averages."""


def plan_time(
    config: LearnerConfig, model: ModelPlan, work: Workload, memory: MemoryPlan, device: Device, processes: int = 1
) -> dict[str, float]:
    """Return the seconds of a step by phase.

    Waiting for endpoints, embedding and evaluations are not in it. A server (`sampler`) is taken to sample on one
    device like the run's.

    Args:
        config: Settings of the run.
        model: Shape of the start policy.
        work: Work of a step.
        memory: How the step is cut into batches.
        device: Speed of the device.
        processes: Processes that share the work.
    """
    rows = work.expected or work.rows
    phases: dict[str, float] = {}
    if memory.sampling is not None:
        samplers = processes if sampler_of(config) is None else 1
        phases["sampling"] = _decoding_seconds(model, rows, memory.sampling, device, work.shared) / samplers
    if memory.reading is not None:
        reader_rows = [Row(row.prompt, max(1, row.completion // 2)) for row in work.reader.rows]
        phases["reading"] = _decoding_seconds(model, reader_rows, memory.reading, device, 1) / processes
    if work.scorings:
        phases["scoring"] = work.scorings * _forward_flops(model, rows) / device.flops / processes
    passes = 2.0 if config.lora is not None else 3.0  # no gradients of frozen weights
    passes += config.compute.gradient_checkpointing
    if config.lora is not None and config.lora.layers is not None:
        passes = 1 + (passes - 1) * config.lora.layers / model.layers
    iterations = getattr(config.optimizer, "num_iterations", 1)
    learning = passes * work.trained * iterations * _forward_flops(model, rows) / device.flops / processes
    optimizer = work.updates * OPTIMIZER_BYTES * model.trained_parameters / device.bandwidth
    phases["learning"] = learning + optimizer
    return phases


def step_seconds(config: LearnerConfig, phases: Mapping[str, float]) -> float:
    """Return the seconds of a step: the sum, or with `staleness` and a server the longer of sampling and the rest."""
    total, sampling = sum(phases.values()), phases.get("sampling", 0.0)
    if sampler_of(config) is None or not getattr(getattr(config, "sampling", None), "staleness", 0):
        return total
    return max(sampling, total - sampling)


def _forward_flops(model: ModelPlan, rows: Sequence[Row]) -> float:
    """Return the operations of a forward pass over rows, with logits of their replies."""
    tokens = sum(row.length for row in rows)
    pairs = sum(row.length**2 for row in rows) / 2
    replies = sum(row.completion for row in rows)
    attention = 4 * pairs * model.attention_width * model.layers
    return 2 * model.active_parameters * tokens + attention + 2 * model.head_parameters * replies


def _decoding_seconds(model: ModelPlan, rows: Sequence[Row], batch: Batch, device: Device, shared: int) -> float:
    """Return the seconds to prefill and decode rows in batches of `batch.rows`."""
    prompts = rows[::shared]
    tokens = sum(row.prompt for row in prompts)
    pairs = sum(row.prompt**2 for row in prompts) / 2
    prefill = (2 * model.active_parameters * tokens + 4 * pairs * model.attention_width * model.layers) / device.flops
    steps = sum(row.completion for row in rows) / batch.rows
    weights = model.layer_parameters + model.head_parameters
    active = model.active_parameters + model.head_parameters
    size = model.policy.model.dtype.itemsize
    context = sum(row.prompt + row.completion / 2 for row in rows) / len(rows)
    cache = batch.rows * model.cache_bytes(str(model.policy.model.dtype).removeprefix("torch."), round(context))
    if device.weights_per_second is not None:
        step = weights / device.weights_per_second + cache / device.bandwidth
    else:
        step = max((weights * size + cache) / device.bandwidth, 2 * active * batch.rows / device.flops)
    return prefill + steps * max(step, device.layer_seconds * model.layers)
