"""One checkpoint's folder, and atomic writes of JSON and JSON Lines.

A checkpoint holds weights and everything that resuming needs. Plain transformers loads the folder (config, safetensors
weights, tokenizer). If only adapters train, it holds `adapter_config.json`, which names
the base, and the adapters; peft loads it. In addition there are `value_head.safetensors` (if the algorithm has a value
head), `optimizer.safetensors`, `state.json` (step, position, algorithm state, best validation) and a model card,
`README.md`. Nothing is pickled.

A checkpoint is written to a temporary name and then renamed, so a kill never leaves a partial one. The main process
writes whole tensors, so checkpoints of several processes equal those of one. Where no process keeps whole weights
(`BaseEngine.is_sharded`), each writes its share of the optimizer into a folder `optimizer` instead.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from memalpha.errors import CheckpointError
from memalpha.policy.base import ADAPTER_CONFIG
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.distributed import full_tensor, scatter_weights, shard_like
from memalpha.train.learner.model_state import BaseEngine

FORMAT = 2
RNG = "rng/torch"
SHARDED_OPTIMIZER = "optimizer"
CARD_FILE = "README.md"
VALUE_HEAD = "value_head.safetensors"


def write_checkpoint(
    path: Path, policy: TransformersPolicy, engine: BaseEngine, state: Mapping[str, Any], card: str = ""
) -> None:
    """Write a checkpoint unless it exists. Every process must call this; the main one writes.

    Args:
        path: Folder of the checkpoint.
        policy: Policy whose tokenizer is saved with the weights.
        engine: Engine with the weights, optimizer and value head.
        state: State for `state.json`; must be JSON.
        card: Model card, `README.md`; "": none.
    """
    if engine.world.run_on_main(path.exists):
        return
    temporary = path.with_name(f".{path.name}.part")

    def make_folder() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    tensors = {} if engine.is_sharded else {**engine.optimizer_tensors(), RNG: torch.get_rng_state()}
    value_head = {name: full_tensor(parameter.detach()).cpu() for name, parameter in engine.value_head.items()}
    if engine.is_sharded:
        engine.world.run_on_main(make_folder)
        engine.write_shards(temporary)
        engine.write_optimizer(temporary / SHARDED_OPTIMIZER, **{RNG: torch.get_rng_state()})

    def write() -> None:
        if not engine.is_sharded:
            make_folder()
            engine.write(temporary)
            save_file(tensors, temporary / "optimizer.safetensors")
        if value_head:
            save_file(value_head, temporary / VALUE_HEAD)
        policy.tokenizer.save_pretrained(temporary)
        write_json(temporary / "state.json", {"format": FORMAT, **state})
        if card:
            (temporary / CARD_FILE).write_text(card, encoding="utf-8", errors="backslashreplace")
        for file in temporary.iterdir():
            _flush(file)
        temporary.replace(path)
        _flush(path.parent)

    engine.world.run_on_main(write)


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
        load_weights(path, engine)
        if (path / "optimizer.safetensors").exists():
            tensors = load_file(path / "optimizer.safetensors")
            torch.set_rng_state(tensors.pop(RNG))
            engine.load_optimizer_tensors(tensors)
        else:
            rng_state = torch.empty_like(torch.get_rng_state())
            engine.load_optimizer(path / SHARDED_OPTIMIZER, **{RNG: rng_state})
            torch.set_rng_state(rng_state)
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
