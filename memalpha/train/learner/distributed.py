"""Several processes as one: assignment of work, collectives, replicated or sharded weights.

A launcher (`accelerate launch`, `torchrun`) starts the processes and describes them in the environment. Without one the
world is `SINGLE_PROCESS`, which never calls torch.distributed. Tasks are assigned in contiguous shards, so `gather`
returns them in the order of one process. Micro-batches of a step are dealt round by round, those of
similar size together.

DDP and FSDP2 average gradients over processes, so the engine multiplies its loss by `size`. FSDP2 exchanges weights in
every pass, so a process with fewer micro-batches runs dead ones. FSDP2 is torch's `fully_shard` on CPU and GPU alike:
accelerate does not support it on CPU.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from memalpha.errors import CheckpointError, ConfigError, MemalphaError

T = TypeVar("T")

ACCELERATE_SETTINGS = {
    "ACCELERATE_USE_FSDP": "set sharding=fsdp",
    "ACCELERATE_USE_DEEPSPEED": "set sharding=fsdp",
    "ACCELERATE_USE_MEGATRON_LM": "set sharding=fsdp",
    "ACCELERATE_MIXED_PRECISION": "set dtype=bfloat16",
}
"""Environment variables of `accelerate launch` that are refused, with the setting to use instead."""

COLLECTIVE_TIMEOUT = timedelta(days=1)
"""Timeout of a collective: evaluation times may differ by hours between processes.

A long wait does no harm: launchers end all processes as soon as one dies.
"""


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run and this process's rank; `device_type` is "cpu" or "cuda"."""

    rank: int = 0
    size: int = 1
    device_type: str = "cpu"

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    # --------------------------------------------------------------------------------------------- assignment

    def shard(self, values: Sequence[T]) -> tuple[int, Sequence[T]]:
        """Return the index of this process's first value and its contiguous shard of `values`."""
        first, end = (len(values) * i // self.size for i in (self.rank, self.rank + 1))
        return first, values[first:end]

    def assign_microbatches(self, parts: Sequence[list[int]]) -> list[tuple[list[int], bool]]:
        """Return this process's micro-batches as (row indices, is live), equally many for every process.

        They are dealt round by round, in turn from the first and the last process, so that none always has the largest.
        A dead micro-batch repeats the shortest row: its pass keeps the processes in step, and its loss does not count.

        Args:
            parts: Row indices per micro-batch, as `balance_micro_batches` orders them.
        """
        dealt: list[tuple[list[int], bool]] = []
        for number, first in enumerate(range(0, len(parts), self.size)):
            index = first + (self.rank if number % 2 == 0 else self.size - 1 - self.rank)
            dealt.append((parts[index], True) if index < len(parts) else (parts[-1][-1:], False))
        return dealt

    # --------------------------------------------------------------------------------------------- collectives

    def gather(self, values: Sequence[T]) -> list[T]:
        """Return the values of all processes, in their order.

        Values are pickled, so they must not hold tensors on other devices.
        """
        if self.size == 1:
            return list(values)
        per_process: list[Any] = [None] * self.size
        dist.all_gather_object(per_process, list(values))
        return [value for process_values in per_process for value in process_values]

    def run_on_main(self, function: Callable[[], T]) -> T:
        """Run `function` in the main process and return its result in every process.

        A `MemalphaError` is raised in every process too.
        """
        if self.size == 1:
            return function()
        result: list[Any] = [None, None]
        if self.is_main:
            try:
                result[0] = function()
            except MemalphaError as error:
                result[1] = error
        dist.broadcast_object_list(result, src=0)
        if result[1] is not None:
            raise result[1]
        return result[0]

    # --------------------------------------------------------------------------------------------- weights

    def wrap_module(
        self, module: nn.Module, layer_classes: Sequence[str], sharding: Literal["ddp", "fsdp"]
    ) -> nn.Module:
        """Wrap `module` so that backward passes average gradients over processes.

        Args:
            module: Must apply autocast inside: the cast cache outlives what FSDP gathers for one pass.
            layer_classes: Class names of the submodules that FSDP shards; used for "fsdp" only.
            sharding: "ddp" replicates weights. "fsdp" shards them in place, so parameters become `DTensor`s.

        Returns:
            The module to call; the same object for one process and for FSDP.

        Raises:
            ConfigError: No submodule has one of `layer_classes`: FSDP would gather all weights at once.
        """
        if self.size == 1:
            return module
        if sharding == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard  # takes a second to import; only FSDP needs it

            layers = [layer for layer in module.modules() if type(layer).__name__ in layer_classes]
            if not layers:
                raise ConfigError("sharding: transformers names no layers of this model to shard: set sharding=ddp")
            mesh = init_device_mesh(self.device_type, (self.size,))
            for part in layers:
                fully_shard(part, mesh=mesh)
            # Reshard the root too: a forward pass without a backward would leave it gathered and stale after a step.
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            return module
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module  # a frozen reference: DDP refuses modules without gradients
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renamed an argument; older releases lack it
            return DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)

    def accumulate(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's passes; DDP exchanges gradients only in the `last` one."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


SINGLE_PROCESS = World()
"""World of a process without a launcher."""


def local_device(name: str) -> str:
    """Return device `name`, or this process's own device of that type if a launcher started several."""
    device_type = name.partition(":")[0]
    return name if device_type == "cpu" or _world_size() == 1 else f"{device_type}:{os.environ['LOCAL_RANK']}"


def join_world(device: str) -> World:
    """Return the world that a launcher describes in the environment.

    Args:
        device: This process's device; its type decides the backend.

    Raises:
        ConfigError: accelerate was told to do something that memalpha does itself.
    """
    if _world_size() == 1:
        return SINGLE_PROCESS
    for name, advice in ACCELERATE_SETTINGS.items():
        if (value := os.environ.get(name, "")).lower() not in ("", "no", "false", "0"):
            raise ConfigError(f"{name}={value}: accelerate's own setting has no effect here; leave it out and {advice}")
    from accelerate import PartialState

    device_type = torch.device(device).type
    backend = "gloo" if device_type == "cpu" else "cuda:nccl,cpu:gloo"
    state = PartialState(cpu=device_type == "cpu", backend=backend, timeout=COLLECTIVE_TIMEOUT)
    return World(state.process_index, state.num_processes, device_type)


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def full_tensor(tensor: Any) -> torch.Tensor:
    """Return a sharded tensor as one tensor, any other unchanged.

    Every process must call this.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """Return `tensor` on the device of `like`, sharded as `like` is.

    Every process must call this with the same values.
    """
    moved = tensor.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements) if isinstance(like, DTensor) else moved


def save_sharded(tensors: Mapping[str, torch.Tensor], folder: Path, *, whole: bool = False) -> None:
    """Write tensors by torch.distributed.checkpoint, each process its shards. Every process must call this.

    Only safetensors are written, nothing is pickled.

    Args:
        tensors: Tensors by name; those that are not sharded are written by one process.
        folder: Folder that every process sees.
        whole: Join the shards, tensor by tensor, to `model.safetensors` in the folder.

    Raises:
        CheckpointError: A file cannot be written.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=whole)
    with _raise_checkpoint_error(folder):
        save(dict(tensors), storage_writer=writer)


def load_sharded(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Fill tensors, sharded or not, from safetensors files of any number of processes. Every process must call this.

    Raises:
        CheckpointError: A file cannot be read, a tensor is missing or has another shape.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _raise_checkpoint_error(folder), torch.no_grad():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


def saved_shapes(folder: Path) -> dict[str, torch.Size]:
    """Return the shapes of tensors that `save_sharded` wrote. Raises `CheckpointError` if a shard is missing."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata: Any = HuggingFaceStorageReader(str(folder)).read_metadata()
    for name, tensor in metadata.state_dict_metadata.items():
        if sum(chunk.sizes.numel() for chunk in tensor.chunks) != tensor.size.numel():
            raise CheckpointError(f"{folder} lacks a part of {name}")
    return {name: tensor.size for name, tensor in metadata.state_dict_metadata.items()}


@contextmanager
def _raise_checkpoint_error(folder: Path) -> Iterator[None]:
    """Raise torch's own exceptions, which are no `Exception`, as `CheckpointError`; silence its hint at one process."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: {next(iter(error.failures.values()))[0]}") from error
