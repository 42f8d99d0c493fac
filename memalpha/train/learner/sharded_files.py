"""Files of sharded weights and optimizer states, written and read without a whole copy in any process.

Weights are gathered tensor by tensor; the main process writes a plain transformers directory, file by file. Optimizer
states are not gathered: each process writes the rows that it holds, and any number of processes reads them back. Only
safetensors and JSON are used, because torch.distributed.checkpoint pickles its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from memalpha.errors import CheckpointError
from memalpha.train.learner.distributed import World, full_tensor, shard_like

FILE_BYTES = 1 << 30
"""Most bytes of tensors in a file of weights, unless a single tensor is larger."""

INDEX = "model.safetensors.index.json"
ROWS = "rows"
"""Key of a file's metadata: the first row of each tensor in the whole one."""


def write_weights(model: Any, folder: Path, world: World) -> None:
    """Write a sharded transformers model as a plain model directory. Every process must call this.

    Args:
        model: Model whose parameters may be `DTensor`s.
        folder: Existing folder, which the main process sees.
        world: Processes that share the weights.
    """
    tensors = _tensors(model)
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.numel() * tensor.element_size()
        if files[-1] and size > FILE_BYTES:
            files.append([])
            size = tensor.numel() * tensor.element_size()
        files[-1].append(name)
    names = (
        ["model.safetensors"]
        if len(files) == 1
        else [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    )
    for file, members in zip(names, files, strict=True):
        gathered: dict[str, torch.Tensor] = {}
        for name in members:
            full = full_tensor(tensors[name].detach())
            if world.is_main:
                gathered[name] = full.cpu().contiguous()
            del full
        if world.is_main:
            save_file(gathered, folder / file, metadata={"format": "pt"})
    if world.is_main:
        if len(files) > 1:
            weight_map = {name: file for file, members in zip(names, files, strict=True) for name in members}
            total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
        if not model.config.architectures:  # FSDP's own class stands for the model's
            model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        model.config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)


def read_weights(model: Any, folder: Path) -> None:
    """Load a model directory into sharded parameters in place, one tensor at a time. Every process must call this.

    Raises:
        KeyError: The files lack a tensor of the model.
        RuntimeError: A tensor has another shape.
    """
    index = folder / INDEX
    weight_map: Mapping[str, str] = {}
    if index.exists():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            file = folder / (weight_map[name] if weight_map else "model.safetensors")
            with safe_open(file, "pt") as opened:
                if name not in opened.keys():  # noqa: SIM118  # not a mapping
                    raise KeyError(f"{file} lacks {name}")
                tensor.copy_(shard_like(opened.get_tensor(name), tensor))


def write_rows(tensors: Mapping[str, torch.Tensor], folder: Path, world: World, **main_tensors: torch.Tensor) -> None:
    """Write this process's rows of sharded tensors; every process must call this.

    Args:
        tensors: Tensors by name, sharded over their first dimension or the same in all processes.
        folder: Existing folder that every process sees.
        world: Processes that share the tensors.
        main_tensors: Further tensors of the main process, by name.
    """
    local: dict[str, torch.Tensor] = {}
    first_rows: dict[str, int] = {}
    for name, tensor in tensors.items():
        first, rows = _local_rows(tensor)
        if rows is not None and (world.is_main or hasattr(tensor, "to_local")):
            local[name], first_rows[name] = rows.detach().cpu().contiguous(), first
    if world.is_main:
        local |= {name: tensor.contiguous() for name, tensor in main_tensors.items()}
    save_file(
        local, folder / f"optimizer-{world.rank:05}-of-{world.size:05}.safetensors", {ROWS: json.dumps(first_rows)}
    )


class RowFiles:
    """Tensors in files of `write_rows`, whatever number of processes wrote them.

    Args:
        folder: Folder of the files.

    Attributes:
        names: Names of the tensors.

    Raises:
        ValueError: A file is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("optimizer-*-of-*.safetensors"))
        counts = {int(file.stem.rpartition("-")[2]) for file in self.files}
        if len(counts) != 1 or len(self.files) != next(iter(counts)):
            raise ValueError(f"it lacks optimizer.safetensors, or some of its {sorted(counts)} parts")
        self._parts: dict[str, list[tuple[int, Path]]] = {}
        for file in self.files:
            with safe_open(file, "pt") as opened:
                first_rows = json.loads((opened.metadata() or {}).get(ROWS, "{}"))
                for name in opened.keys():  # noqa: SIM118  # not a mapping
                    self._parts.setdefault(name, []).append((first_rows.get(name, 0), file))
        self.names = tuple(self._parts)

    def read(self, name: str, first: int = 0, count: int | None = None) -> torch.Tensor:
        """Return rows `first` to `first + count` of a tensor; the whole one without `count`.

        Raises:
            KeyError: There is no such tensor.
            CheckpointError: Rows are missing.
        """
        pieces = []
        position = first
        for start, file in sorted(self._parts[name], key=lambda part: part[0]):
            with safe_open(file, "pt") as opened:
                part = opened.get_slice(name)
                shape = part.get_shape()
                if not shape:
                    return opened.get_tensor(name)
                end = start + shape[0] if count is None else min(first + count, start + shape[0])
                if start <= position < end:
                    pieces.append(part[position - start : end - start])
                    position = end
                elif not pieces and count == 0:
                    return part[0:0]
        if count is not None and position != first + count:
            raise CheckpointError(f"{self.files[0].parent}: rows of {name} are missing")
        return torch.cat(pieces)

    def read_like(self, name: str, parameter: Any) -> torch.Tensor:
        """Return a tensor of a parameter's shape, sharded as the parameter is; a number as it is."""
        if not hasattr(parameter, "to_local"):
            return self.read(name).to(parameter.device)
        from torch.distributed.tensor import DTensor

        first, rows = _local_rows(parameter)
        assert rows is not None
        local = self.read(name, first, len(rows))
        if local.dim() == 0:
            return local
        return DTensor.from_local(
            local.to(parameter.device),
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


def _local_rows(tensor: Any) -> tuple[int, torch.Tensor | None]:
    """Return the first row and the rows that this process holds; None if it holds none of a tensor with some."""
    if not hasattr(tensor, "to_local"):
        return 0, tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0], tensor.to_local()


def _tensors(model: Any) -> dict[str, Any]:
    """Return parameters, each tied one once, and the buffers that are saved."""
    parameters = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return parameters | {name: value for name, value in model.state_dict().items() if name not in tied}
