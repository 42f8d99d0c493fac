"""Checkpoints of a run: `checkpoints/step-N` holds the weights after N steps and all that resuming needs.

Plain transformers reads the directory (config, safetensors weights, tokenizer); peft does where adapters alone train,
and nothing else is kept (adapter_config.json, which names the base, and the adapters). Beside it lie
`value_head.safetensors` where there is one, `optimizer.safetensors` and `state.json` (step, sampler position, algorithm
state, best validation). Nothing is pickled.
A checkpoint is written aside and renamed, so one that has its name is whole, whenever the process was killed. Several
processes make the same one as a single process: the main one writes, whole tensors.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from memalpha.errors import CheckpointError, ConfigError
from memalpha.policy.base import ADAPTER_CONFIG
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, full_tensor, scatter_weights, shard_like
from memalpha.train.learner.model_state import BaseEngine

FORMAT = 2
RNG = "rng/torch"
VALUE_HEAD = "value_head.safetensors"


def check_run_directory(run: Path) -> None:
    """Raise `ConfigError` where `run` can be no run directory; makes nothing."""
    try:
        place = next(path for path in (run, *run.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"out: {run} cannot be a run directory ({error.strerror}): name another") from error
    if not place.is_dir():
        raise ConfigError(f"out: {place} is a file: {run} cannot be a run directory, name another")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"out: no right to write in {place}: {run} cannot be a run directory, name another")


@contextmanager
def lock_run_directory(run: Path, world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Hold the run directory (made where it is missing) for one process, or for one `world` of them.

    Raises `CheckpointError` if another has it, `ConfigError` where there can be none.
    """
    with ExitStack() as stack:
        world.run_on_main(lambda: stack.enter_context(_lock(run)))
        yield


@contextmanager
def _lock(run: Path) -> Iterator[None]:
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / ".lock").open("a")  # stays: a lock file that is deleted can be held twice
    except OSError as error:
        raise ConfigError(f"out: {run} cannot be a run directory ({error.strerror}): name another") from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{run} is in use by another training process: wait for it, or give another out"
            ) from error
        yield


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run / "checkpoints" / f"step-{step}"


def saved_steps(run: Path) -> list[int]:
    """Steps with a whole checkpoint, ascending."""
    names = [path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def save_checkpoint(
    run: Path, step: int, policy: TransformersPolicy, engine: BaseEngine, state: Mapping[str, Any]
) -> Path:
    """Write `step-N` unless it is there; `state` must be JSON. Every process must call this, the main one writes."""
    path = checkpoint_path(run, step)
    if engine.world.run_on_main(path.exists):
        return path
    tensors = {**engine.optimizer_tensors(), RNG: torch.get_rng_state()}
    head = {name: full_tensor(part.detach()).cpu() for name, part in engine.value_head.items()}

    def write() -> None:
        aside = path.with_name(f".{path.name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        engine.write(aside)
        if head:
            save_file(head, aside / VALUE_HEAD)
        policy.tokenizer.save_pretrained(aside)
        save_file(tensors, aside / "optimizer.safetensors")
        write_json(aside / "state.json", {"format": FORMAT, "step": step, **state})
        for file in aside.iterdir():
            _flush(file)
        aside.replace(path)
        _flush(path.parent)

    engine.world.run_on_main(write)
    return path


def load_checkpoint(path: Path, engine: BaseEngine) -> dict[str, Any]:
    """Put weights, optimizer and RNG back in place; returns the saved state. Raises `CheckpointError`."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError("state.json holds no JSON object")
        if state.get("format") != FORMAT:
            raise CheckpointError(f"{path}: checkpoint format {state.get('format')!r}, this version reads {FORMAT}")
        tensors = load_file(path / "optimizer.safetensors")
        load_weights(path, engine)
        torch.set_rng_state(tensors.pop(RNG))
        engine.load_optimizer_tensors(tensors)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"cannot resume from {path}: {error}; delete it to go on from an earlier one") from error
    return state


def load_weights(path: Path, engine: BaseEngine) -> None:
    """Copy the weights of a checkpoint into the engine's model and value head, in place, and into shards.

    Every process must call this. Raises `CheckpointError`.
    """
    model = engine.model
    named = ADAPTER_CONFIG if isinstance(model, PeftModel) else "config.json"
    if not (path / named).is_file():  # transformers would take the path for the name of a hub repository
        raise CheckpointError(f"{path} is not there or holds no weights: put it back, or start again in another out")
    try:
        engine.read(path)
        head = load_file(path / VALUE_HEAD) if engine.value_head else {}
        with torch.no_grad():
            for name, part in engine.value_head.items():
                part.copy_(shard_like(head[name], part))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the weights of {path} cannot be loaded: {error}") from error
    scatter_weights(model, engine.trainable)


def weights_fingerprint(model: torch.nn.Module) -> str:
    """What tells one set of weights from another, whatever device they are on: a sum over each tensor's bits."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        found.update(f"{name} {tuple(tensor.shape)} {int(bits.sum(dtype=torch.int64))}\n".encode())
    return found.hexdigest()[:16]


def prune_checkpoints(run: Path, newest: int, also: Iterable[int] = ()) -> None:
    """Delete all but the `newest` checkpoints and those of the steps in `also`.

    Each is renamed first, so that a kill in between leaves no half of one under its name, and the next call sweeps up.
    """
    steps = saved_steps(run)
    for step in set(steps[:-newest]) - set(also):
        path = checkpoint_path(run, step)
        path.replace(path.with_name(f".{path.name}.old"))
    for old in (run / "checkpoints").glob(".step-*.old"):
        shutil.rmtree(old)


def link_best(run: Path, step: int) -> None:
    """Let `checkpoints/best` link to `step-N`, in one rename."""
    link = run / "checkpoints" / "best"
    aside = link.with_name(".best.part")
    aside.unlink(missing_ok=True)
    aside.symlink_to(f"step-{step}")
    aside.replace(link)


def write_json(path: Path, value: Any) -> None:
    """Write JSON aside, then rename. ASCII only: a model's text may hold half a surrogate pair, which UTF-8 cannot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises `CheckpointError` for a file that is missing or holds no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): put it back to go on, or start again in another out"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): mend or delete it to go on") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: mend or delete it to go on")
    return value


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line each (ASCII, as in `write_json`)."""
    with path.open("a", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value) + "\n")


def truncate_lines(path: Path, step: int) -> None:
    """Drop the lines of steps from `step` on, and a last line that a kill left half-written.

    Raises `CheckpointError` for any other line that is no JSON object with a step.
    """
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")  # not splitlines(), nor text: half a character is a half-written line too
    while lines and not lines[-1]:
        lines.pop()
    kept = []
    for number, line in enumerate(lines, start=1):
        try:
            at = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise CheckpointError(
                f"{path}:{number}: not a line this run wrote (a JSON object with a step): mend or delete it to go on"
            ) from error
        if at < step:
            kept.append(line + b"\n")
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(b"".join(kept))
    aside.replace(path)


def _flush(path: Path) -> None:
    """Have the kernel write a file or a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
