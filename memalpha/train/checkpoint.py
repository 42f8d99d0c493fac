"""Checkpoints of a run: `checkpoints/step-N` holds the weights after N steps and all that resuming needs.

Plain transformers reads the directory (config, safetensors weights, tokenizer). Beside it lie `optimizer.safetensors`
and `state.json` (step, sampler position, algorithm state, best validation). Nothing is pickled. A checkpoint is written
aside and renamed, so one that has its name is whole, whenever the process was killed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from memalpha.errors import CheckpointError
from memalpha.policy.transformers_ import TransformersPolicy, without_bars
from memalpha.train.learner import Learner

FORMAT = 1
RNG = "rng/torch"


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run / "checkpoints" / f"step-{step}"


def saved_steps(run: Path) -> list[int]:
    """Steps with a whole checkpoint, ascending."""
    names = [path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def save_checkpoint(
    run: Path, step: int, policy: TransformersPolicy, learner: Learner, state: Mapping[str, Any]
) -> Path:
    """Write `step-N` unless it is there; `state` must be JSON."""
    path = checkpoint_path(run, step)
    if path.exists():
        return path
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with without_bars():
        policy.model.save_pretrained(aside)
    policy.tokenizer.save_pretrained(aside)
    tensors = {**learner.optimizer_tensors(), RNG: torch.get_rng_state()}
    save_file(tensors, aside / "optimizer.safetensors")
    write_json(aside / "state.json", {"format": FORMAT, "step": step, **state})
    for file in aside.iterdir():
        _flush(file)
    aside.replace(path)
    _flush(path.parent)
    return path


def load_checkpoint(path: Path, policy: TransformersPolicy, learner: Learner) -> dict[str, Any]:
    """Put weights, optimizer and RNG back in place; returns the saved state. Raises `CheckpointError`."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state.get("format") != FORMAT:
            raise CheckpointError(f"{path}: checkpoint format {state.get('format')!r}, this version reads {FORMAT}")
        tensors = load_file(path / "optimizer.safetensors")
        load_weights(path, policy)
        torch.set_rng_state(tensors.pop(RNG))
        learner.load_optimizer_tensors(tensors)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"cannot resume from {path}: {error}; delete it to go on from an earlier one") from error
    return state


def load_weights(path: Path, policy: TransformersPolicy) -> None:
    """Copy the weights of a checkpoint into the policy's model, in place."""
    with without_bars():
        saved: Any = AutoModelForCausalLM.from_pretrained(path, dtype=policy.model.dtype)
    policy.model.load_state_dict(saved.state_dict())


def prune_checkpoints(run: Path, newest: int, also: Iterable[int] = ()) -> None:
    """Delete all but the `newest` checkpoints and those of the steps in `also`."""
    steps = saved_steps(run)
    for step in set(steps[:-newest]) - set(also):
        shutil.rmtree(checkpoint_path(run, step))


def point_best(run: Path, step: int) -> None:
    """Let `checkpoints/best` link to `step-N`, in one rename."""
    link = run / "checkpoints" / "best"
    aside = link.with_name(".best.part")
    aside.unlink(missing_ok=True)
    aside.symlink_to(f"step-{step}")
    aside.replace(link)


def write_json(path: Path, value: Any) -> None:
    """Write JSON aside, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line each."""
    with path.open("a", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


def cut_lines(path: Path, step: int) -> None:
    """Drop the lines of steps from `step` on, and a last line that a kill left half-written."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            break
        if value["step"] < step:
            kept.append(line + "\n")
    aside = path.with_name(f".{path.name}.part")
    aside.write_text("".join(kept), encoding="utf-8")
    aside.replace(path)


def _flush(path: Path) -> None:
    """Have the kernel write a file or a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
