"""Checkpoints of a run, its lock, and atomic writes into its directory.

`checkpoints/step-N` holds the weights after N steps and everything that resuming needs. Plain transformers loads the
directory (config, safetensors weights, tokenizer). If only adapters train, it holds `adapter_config.json`, which names
the base, and the adapters; peft loads it. In addition there are `value_head.safetensors` (if the algorithm has a value
head), `optimizer.safetensors` and `state.json` (step, position, algorithm state, best validation). Nothing is pickled.

A checkpoint is written to a temporary name and then renamed, so a kill never leaves a partial one. The main process
writes whole tensors, so checkpoints of several processes equal those of one.
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
    """Raise `ConfigError` if `run` cannot be a run directory; creates nothing."""
    try:
        existing = next(path for path in (run, *run.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"out: {run} cannot be a run directory ({error.strerror}): name another") from error
    if not existing.is_dir():
        raise ConfigError(f"out: {existing} is a file: {run} cannot be a run directory, name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"out: no right to write in {existing}: {run} cannot be a run directory, name another")


@contextmanager
def lock_run_directory(run: Path, world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Lock the run directory for one process, or for one `world` of them; create it if missing.

    Raises:
        CheckpointError: Another process holds the lock.
        ConfigError: The directory cannot be created.
    """
    with ExitStack() as stack:
        world.run_on_main(lambda: stack.enter_context(_lock(run)))
        yield


@contextmanager
def _lock(run: Path) -> Iterator[None]:
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / ".lock").open("a")  # never deleted: two processes could lock two files
    except OSError as error:
        raise ConfigError(f"out: {run} cannot be a run directory ({error.strerror}): name another") from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{run} is in use by another training process: wait for it, or name another out"
            ) from error
        yield


def checkpoint_path(run: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` steps."""
    return run / "checkpoints" / f"step-{step}"


def saved_steps(run: Path) -> list[int]:
    """Return the steps with a complete checkpoint, ascending."""
    names = [path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def save_checkpoint(
    run: Path, step: int, policy: TransformersPolicy, engine: BaseEngine, state: Mapping[str, Any]
) -> Path:
    """Write `checkpoints/step-N` unless it exists. Every process must call this; the main one writes.

    Args:
        run: Run directory.
        step: Number of steps done.
        policy: Policy whose tokenizer is saved with the weights.
        engine: Engine with the weights, optimizer and value head.
        state: Additional state for `state.json`; must be JSON.

    Returns:
        Path of the checkpoint.
    """
    path = checkpoint_path(run, step)
    if engine.world.run_on_main(path.exists):
        return path
    tensors = {**engine.optimizer_tensors(), RNG: torch.get_rng_state()}
    value_head = {name: full_tensor(parameter.detach()).cpu() for name, parameter in engine.value_head.items()}

    def write() -> None:
        temporary = path.with_name(f".{path.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        engine.write(temporary)
        if value_head:
            save_file(value_head, temporary / VALUE_HEAD)
        policy.tokenizer.save_pretrained(temporary)
        save_file(tensors, temporary / "optimizer.safetensors")
        write_json(temporary / "state.json", {"format": FORMAT, "step": step, **state})
        for file in temporary.iterdir():
            _flush(file)
        temporary.replace(path)
        _flush(path.parent)

    engine.world.run_on_main(write)
    return path


def load_checkpoint(path: Path, engine: BaseEngine) -> dict[str, Any]:
    """Restore weights, optimizer and RNG from a checkpoint and return its saved state.

    Raises:
        CheckpointError: The checkpoint cannot be read or has another format.
    """
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
        raise CheckpointError(f"cannot resume from {path}: {error}; delete it to resume from an earlier one") from error
    return state


def load_weights(path: Path, engine: BaseEngine) -> None:
    """Copy a checkpoint's weights into the engine's model and value head, in place.

    Every process must call this; sharded parameters are filled, too.

    Raises:
        CheckpointError: The checkpoint is missing or does not fit the model.
    """
    model = engine.model
    config_name = ADAPTER_CONFIG if isinstance(model, PeftModel) else "config.json"
    if not (path / config_name).is_file():  # otherwise transformers takes the path for a hub repository
        raise CheckpointError(f"{path} is not there or holds no weights: put it back, or start again in another out")
    try:
        engine.read(path)
        value_head = load_file(path / VALUE_HEAD) if engine.value_head else {}
        with torch.no_grad():
            for name, parameter in engine.value_head.items():
                parameter.copy_(shard_like(value_head[name], parameter))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the weights of {path} cannot be loaded: {error}") from error
    scatter_weights(model, engine.trainable)


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a short hash of the weights, the same on every device: sums over each tensor's bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        digest.update(f"{name} {tuple(tensor.shape)} {int(bits.sum(dtype=torch.int64))}\n".encode())
    return digest.hexdigest()[:16]


def prune_checkpoints(run: Path, newest: int, also: Iterable[int] = ()) -> None:
    """Delete old checkpoints.

    Each is renamed before it is deleted, so a kill leaves no partial checkpoint. The next call deletes what remained.

    Args:
        run: Run directory.
        newest: Number of newest checkpoints to keep.
        also: Steps whose checkpoints are kept, too.
    """
    steps = saved_steps(run)
    for step in set(steps[:-newest]) - set(also):
        path = checkpoint_path(run, step)
        path.replace(path.with_name(f".{path.name}.old"))
    for renamed in (run / "checkpoints").glob(".step-*.old"):
        shutil.rmtree(renamed)


def link_best(run: Path, step: int) -> None:
    """Point the link `checkpoints/best` to `step-N` atomically."""
    link = run / "checkpoints" / "best"
    temporary = link.with_name(".best.part")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(f"step-{step}")
    temporary.replace(link)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, as ASCII: model output may contain lone surrogates, which UTF-8 cannot encode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Load a JSON object that `write_json` wrote.

    Raises:
        CheckpointError: The file is missing or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): put it back to resume, or start again in another out"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): mend or delete it to resume") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: mend or delete it to resume")
    return value


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line for each value (ASCII, as in `write_json`)."""
    with path.open("a", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value) + "\n")


def truncate_lines(path: Path, step: int) -> None:
    """Remove lines of step `step` and later, and a last line that a kill left incomplete.

    Raises:
        CheckpointError: Another line is not a JSON object with a step.
    """
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")  # bytes: an incomplete line may end within a character
    while lines and not lines[-1]:
        lines.pop()
    kept_lines = []
    for number, line in enumerate(lines, start=1):
        try:
            line_step = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise CheckpointError(
                f"{path}:{number}: not a line this run wrote (a JSON object with a step): mend or delete it to resume"
            ) from error
        if line_step < step:
            kept_lines.append(line + b"\n")
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(b"".join(kept_lines))
    temporary.replace(path)


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
