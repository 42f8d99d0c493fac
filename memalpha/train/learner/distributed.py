"""Several processes as one: who does which part, what all must know, and how the weights are shared or sharded.

A launcher (`accelerate launch`, `torchrun`) starts the processes and names them in the environment; without one there
is `ONE`, which calls nothing of torch.distributed. Tasks are dealt in blocks, so that `gather` returns them in one
process's order; micro-batches of a step are dealt in turn. DDP and FSDP2 average gradients over processes, hence `size`
times the loss; FSDP2 exchanges weights in every pass, hence dead micro-batches where a process has fewer than others.

FSDP2 is torch's `fully_shard` on CPU and GPU alike: accelerate leaves it out on CPU.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from memalpha.errors import ConfigError, MemalphaError

T = TypeVar("T")

ACCELERATE_SETTINGS = {
    "ACCELERATE_USE_FSDP": "set sharding=fsdp",
    "ACCELERATE_USE_DEEPSPEED": "set sharding=fsdp",
    "ACCELERATE_USE_MEGATRON_LM": "set sharding=fsdp",
    "ACCELERATE_MIXED_PRECISION": "set dtype=bfloat16",
}
"""What `accelerate launch` asks for in the environment, and the setting that is read instead."""

COLLECTIVE_TIMEOUT = timedelta(days=1)
"""How long a process waits for the others: their parts of an evaluation may differ by hours. A launcher ends all
processes as soon as one dies, so nobody waits that long for the dead."""


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run and this one's place among them; `kind` is that of their devices."""

    rank: int = 0
    size: int = 1
    device_type: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    # --------------------------------------------------------------------------------------------- who does what

    def shard(self, values: Sequence[T], offset: int = 0) -> tuple[int, Sequence[T]]:
        """This process's run of neighbouring `values`, and the place of its first; `gather` restores the order.

        The first run is process `turn`'s (modulo their number): so that of many short lists not all go to the same.
        """
        index = (self.rank - offset) % self.size
        first, end = (len(values) * i // self.size for i in (index, index + 1))
        return first, values[first:end]

    def assign_microbatches(self, parts: Sequence[list[int]]) -> list[tuple[list[int], bool]]:
        """This process's micro-batches (indices of rows, longest first), equally many for all; False: a dead one.

        A dead micro-batch is the shortest row: its pass is made for the others' sake, and its loss counts nothing.
        """
        dealt = [(part, True) for part in parts[self.rank :: self.size]]
        rounds = -(-len(parts) // self.size)
        return dealt + [(part[-1:], False) for part in parts[-1:]] * (rounds - len(dealt))

    # --------------------------------------------------------------------------------------------- what all must know

    def gather(self, values: Sequence[T], offset: int = 0) -> list[T]:
        """Everybody's values, in the order of the processes from `turn` on. They are pickled: no tensors on other
        devices."""
        if self.size == 1:
            return list(values)
        per_process: list[Any] = [None] * self.size
        dist.all_gather_object(per_process, list(values))
        offset %= self.size
        return [value for process_values in per_process[offset:] + per_process[:offset] for value in process_values]

    def run_on_main(self, function: Callable[[], T]) -> T:
        """What `work` returns in the main process; the `MemalphaError` that it raises there is raised everywhere."""
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
        """`module` such that its backward pass averages gradients over processes; what is trained stays the same.

        `fsdp` shards every submodule whose class is named in `blocks`, then the rest, in place: parameters become
        `DTensor`s. Autocast must be inside `module`: its cache of casts outlives what FSDP gathers for one pass.
        Raises `ConfigError` where no class is there: all weights would be gathered at once.
        """
        if self.size == 1:
            return module
        if sharding == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard  # a second to import, for FSDP alone

            layers = [layer for layer in module.modules() if type(layer).__name__ in layer_classes]
            if not layers:
                raise ConfigError("sharding: transformers names no layers of this model to shard: set sharding=ddp")
            mesh = init_device_mesh(self.device_type, (self.size,))
            for part in layers:
                fully_shard(part, mesh=mesh)
            # The root too: a forward pass without a backward would leave it gathered, and stale after the next step.
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            return module
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module  # a frozen reference, which DDP refuses
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has another name for it, older ones do not
            return DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)

    @contextmanager
    def accumulate(self, module: nn.Module, last: bool) -> Iterator[None]:
        """One micro-batch's forward and backward pass; DDP exchanges gradients in the `last` one only."""
        with module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext():
            yield


SINGLE_PROCESS = World()
"""The world of a process that no launcher started."""


def local_device(name: str) -> str:
    """The device `name`, or this process's own of that kind where a launcher started several."""
    device_type = name.partition(":")[0]
    return name if device_type == "cpu" or _world_size() == 1 else f"{device_type}:{os.environ['LOCAL_RANK']}"


def join_world(device: str) -> World:
    """The world that a launcher describes in the environment, for processes on devices like `device`, its own.

    Raises `ConfigError` for what accelerate is told to do and this package does itself.
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


def gather_weights(sharded: Mapping[str, torch.Tensor], model: nn.Module) -> None:
    """Copy sharded weights, by name, into a model that has them whole (every process must call this)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in sharded and sharded[name] is not parameter:
                parameter.copy_(full_tensor(sharded[name]))


def scatter_weights(model: nn.Module, sharded: Mapping[str, torch.Tensor]) -> None:
    """The reverse of `gather_weights`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in sharded and sharded[name] is not parameter:
                sharded[name].copy_(shard_like(parameter, sharded[name]))


def full_tensor(tensor: Any) -> torch.Tensor:
    """A sharded tensor put together (every process must ask for it), any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """`tensor`, the same in every process, sharded as `like` is (every process must call this), on its device."""
    if not hasattr(like, "full_tensor"):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
