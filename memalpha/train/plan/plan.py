"""`plan_run`: everything that can be said of a run before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memalpha.config import LearnerConfig
from memalpha.config.training import AnyTraining
from memalpha.train.plan.allocation import explain_failures
from memalpha.train.plan.devices import Device, is_present, measure_device, published_gpu
from memalpha.train.plan.memory import MemoryPlan, Phase, plan_memory, sampler_of
from memalpha.train.plan.model import ModelPlan, plan_model
from memalpha.train.plan.timing import plan_time, step_seconds
from memalpha.train.plan.workload import Row, Workload, plan_workload
from memalpha.train.trainers.start import resolve_init_from

FULL = 0.92
"""Share of a device's memory that a plan may fill: caches of freed blocks and other processes need the rest."""


def plan_run(config: AnyTraining, *, gpu: str | None = None, processes: int | None = None) -> dict[str, Any]:
    """Return tokens, memory, time and disk of a training run; nothing is trained or written.

    The model's weights are not loaded: config.json and the tokenizer suffice.

    Args:
        config: Settings of the run.
        gpu: Name of a GPU to plan for (`devices.GPUS`); default: the run's device, if it is here.
        processes: Processes that share the work; default: those of the launcher, else 1.

    Returns:
        `kind`, `policy`, `model`, `step`, `memory`, `time`, `disk`, `notes`. Sizes are bytes, times seconds.

    Raises:
        ConfigError: The settings do not fit, or the GPU is not known.
        DataError: The data are missing or do not fit.
        PolicyError: The policy's config.json is not here, writes no text, or cannot be planned.
    """
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    config = resolve_init_from(config)
    if gpu is not None and torch.device(config.compute.device).type == "cpu":
        config = config.replace(device="cuda")
    model = plan_model(config)
    work = plan_workload(config, model.policy)
    with explain_failures(model.trained):
        memory = plan_memory(config, model, work, processes)
        device = _choose_device(config, model, memory, gpu)
        seconds = None if device is None else plan_time(config, model, work, memory, device, processes)
    capacity = device.memory if device is not None else None
    notes = [*model.notes, *work.notes, *_server_notes(config)]
    if device is None:
        notes.append(f"device {config.compute.device!r} is not here: --gpu NAME gives its memory and speed")
    return {
        "kind": work.kind,
        "policy": config.policy,
        "processes": processes,
        "model": {
            "parameters": model.parameters,
            "trained": model.trained_parameters,
            "bytes": dict(model.bytes_by_dtype),
        },
        "step": _step(work, memory),
        "memory": _memory(config, memory, capacity),
        "time": _time(config, work, seconds, device),
        "disk": _disk(config, model),
        "notes": notes,
    }


def _server_notes(config: LearnerConfig) -> list[str]:
    if (sampler := sampler_of(config)) is None:
        return []
    notes = [
        f"{sampler.address} samples: its memory is not in this plan, and its time is that of one device like the "
        "run's (vLLM has a loop of its own)"
    ]
    if getattr(getattr(config, "sampling", None), "staleness", 0):
        notes.append("it samples while the learner learns: a step takes the longer of sampling and all the rest")
    return notes


def _choose_device(config: LearnerConfig, model: ModelPlan, memory: MemoryPlan, gpu: str | None) -> Device | None:
    if gpu is not None:
        return published_gpu(gpu, config.compute.dtype)
    if not is_present(config.compute.device):
        return None
    settings, rows = model.config, memory.sampling.rows if memory.sampling is not None else 8
    inner = getattr(settings, "intermediate_size", None) or 4 * settings.hidden_size
    compute = config.compute
    return measure_device(compute.device, compute.dtype, compute.threads, settings.hidden_size, int(inner), rows)


def _step(work: Workload, memory: MemoryPlan) -> dict[str, Any]:
    return {
        "prompts": len(work.rows),
        "prompt_tokens": _most_and_expected(work, "prompt"),
        "completion_tokens": _most_and_expected(work, "completion"),
        "sampled": bool(work.rollouts),
        "batch_rows": memory.sampling.rows if memory.sampling is not None else None,
        "reader": {"policy": work.reader.policy, **_calls(work.reader.rows)},
        "judge": {"policy": work.judge.policy, **_calls(work.judge.rows)},
        "rows": round(len(work.rows) * work.trained),
        "updates": work.updates,
        "microbatches": memory.microbatches,
        "scoring_passes": work.scorings,
    }


def _most_and_expected(work: Workload, name: str) -> dict[str, int | None]:
    expected = None if work.expected is None else sum(getattr(row, name) for row in work.expected)
    return {"most": sum(getattr(row, name) for row in work.rows), "expected": expected}


def _calls(rows: Sequence[Row]) -> dict[str, int]:
    return {
        "calls": len(rows),
        "prompt_tokens": sum(row.prompt for row in rows),
        "completion_tokens": sum(row.completion for row in rows),
    }


def _memory(config: LearnerConfig, memory: MemoryPlan, capacity: int | None) -> dict[str, Any]:
    peak = memory.peak
    fits = None if capacity is None else peak.bytes <= FULL * capacity
    return {
        "phases": [{"name": phase.name, "bytes": phase.bytes, "parts": dict(phase.parts)} for phase in memory.phases],
        "peak": {"phase": peak.name, "bytes": peak.bytes},
        "device_bytes": capacity,
        "fits": fits,
        "advice": advise(config, peak) if fits is False else None,
    }


def advise(config: LearnerConfig, phase: Phase) -> str:
    """Return what to change so that this phase needs less memory.

    Args:
        config: Settings of the run.
        phase: Phase with the peak.
    """
    parts = dict(phase.parts)
    compute = config.compute
    largest = max(parts, key=lambda name: parts[name])
    trained = parts.get("optimizer", 0) + parts.get("gradients", 0)
    if largest in ("keys and values", "passes") and phase.name in ("sampling", "reading"):
        return f"{phase.name} needs most, for its batch: lower sampling.batch_tokens"
    if largest == "activations":
        if not compute.gradient_checkpointing:
            return "learning needs most, for activations: set compute.gradient_checkpointing=true"
        return f"learning needs most, for activations: lower compute.microbatch_tokens ({compute.microbatch_tokens})"
    if config.lora is None and trained >= parts["weights"]:
        return "gradients and optimizer need most: train adapters (lora={r: 16}), or shard them over several GPUs"
    if compute.dtype == "float32":
        return f"{phase.name} needs most, for {largest}: set compute.dtype=bfloat16"
    return f"{phase.name} needs most, for {largest}: take a smaller policy or a device with more memory"


def _time(
    config: LearnerConfig, work: Workload, seconds: Mapping[str, float] | None, device: Device | None
) -> dict[str, Any]:
    step = None if seconds is None else step_seconds(config, seconds)
    return {
        "device": None if device is None else device.name,
        "basis": None if device is None else device.basis,
        "phases": seconds,
        "step_seconds": step,
        "steps": work.steps,
        "run_seconds": None if step is None else step * work.steps,
    }


def _disk(config: LearnerConfig, model: ModelPlan) -> dict[str, int]:
    """Return the bytes of a checkpoint, of all that are kept, and of the weights on their way to a server.

    A checkpoint has the trained weights and two float32 averages of each. The server's last weights stay until it has
    the next ones.
    """
    weights = 4 * model.trained_parameters if config.lora is not None else model.bytes
    checkpoint = weights + 8 * model.trained_parameters
    keeps_all = getattr(getattr(config, "sampling", None), "keep_tokens", False)
    steps = config.max_steps or config.optimizer.schedule_steps
    count = steps if keeps_all else config.checkpoint.save_total_limit + 1  # and the best one
    handed_over = 0 if sampler_of(config) is None else 2 * weights
    total = checkpoint * count + handed_over
    return {"checkpoint_bytes": checkpoint, "checkpoints": count, "sampler_bytes": handed_over, "bytes": total}
