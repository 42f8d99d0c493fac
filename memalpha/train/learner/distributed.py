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

ELSEWHERE = {
    "ACCELERATE_USE_FSDP": "set sharding=fsdp",
    "ACCELERATE_USE_DEEPSPEED": "set sharding=fsdp",
    "ACCELERATE_USE_MEGATRON_LM": "set sharding=fsdp",
    "ACCELERATE_MIXED_PRECISION": "set dtype=bfloat16",
}
"""What `accelerate launch` asks for in the environment, and the setting that is read instead."""

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: their parts of an evaluation may differ by hours. A launcher ends all
processes as soon as one dies, so nobody waits that long for the dead."""


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run and this one's place among them; `kind` is that of their devices."""

    rank: int = 0
    size: int = 1
    kind: str = "cpu"

    @property
    def main(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    # --------------------------------------------------------------------------------------------- who does what

    def block(self, values: Sequence[T], turn: int = 0) -> tuple[int, Sequence[T]]:
        """This process's run of neighbouring `values`, and the place of its first; `gather` restores the order.

        The first run is process `turn`'s (modulo their number): so that of many short lists not all go to the same.
        """
        number = (self.rank - turn) % self.size
        first, end = (len(values) * place // self.size for place in (number, number + 1))
        return first, values[first:end]

    def deal(self, parts: Sequence[list[int]]) -> list[tuple[list[int], bool]]:
        """This process's micro-batches (indices of rows, longest first), equally many for all; False: a dead one.

        A dead micro-batch is the shortest row: its pass is made for the others' sake, and its loss counts nothing.
        """
        mine = [(part, True) for part in parts[self.rank :: self.size]]
        rounds = -(-len(parts) // self.size)
        return mine + [(part[-1:], False) for part in parts[-1:]] * (rounds - len(mine))

    # --------------------------------------------------------------------------------------------- what all must know

    def gather(self, values: Sequence[T], turn: int = 0) -> list[T]:
        """Everybody's values, in the order of the processes from `turn` on. They are pickled: no tensors on other
        devices."""
        if self.size == 1:
            return list(values)
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, list(values))
        turn %= self.size
        return [value for theirs in everybody[turn:] + everybody[:turn] for value in theirs]

    def once(self, work: Callable[[], T]) -> T:
        """What `work` returns in the main process; the `MemalphaError` that it raises there is raised everywhere."""
        if self.size == 1:
            return work()
        result: list[Any] = [None, None]
        if self.main:
            try:
                result[0] = work()
            except MemalphaError as error:
                result[1] = error
        dist.broadcast_object_list(result, src=0)
        if result[1] is not None:
            raise result[1]
        return result[0]

    # --------------------------------------------------------------------------------------------- weights

    def wrap(self, module: nn.Module, blocks: Sequence[str], sharding: Literal["ddp", "fsdp"]) -> nn.Module:
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

            parts = [part for part in module.modules() if type(part).__name__ in blocks]
            if not parts:
                raise ConfigError("sharding: transformers names no layers of this model to shard: set sharding=ddp")
            mesh = init_device_mesh(self.kind, (self.size,))
            for part in parts:
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


ONE = World()
"""The world of a process that no launcher started."""


def own_device(name: str) -> str:
    """The device `name`, or this process's own of that kind where a launcher started several."""
    kind = name.partition(":")[0]
    return name if kind == "cpu" or _size() == 1 else f"{kind}:{os.environ['LOCAL_RANK']}"


def join(device: str) -> World:
    """The world that a launcher describes in the environment, for processes on devices like `device`, its own.

    Raises `ConfigError` for what accelerate is told to do and this package does itself.
    """
    if _size() == 1:
        return ONE
    for name, ours in ELSEWHERE.items():
        if (told := os.environ.get(name, "")).lower() not in ("", "no", "false", "0"):
            raise ConfigError(f"{name}={told}: accelerate's own setting has no effect here; leave it out and {ours}")
    from accelerate import PartialState

    kind = torch.device(device).type
    backend = "gloo" if kind == "cpu" else "cuda:nccl,cpu:gloo"
    state = PartialState(cpu=kind == "cpu", backend=backend, timeout=PATIENCE)
    return World(state.process_index, state.num_processes, kind)


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def gather_weights(parts: Mapping[str, torch.Tensor], model: nn.Module) -> None:
    """Copy sharded weights, by name, into a model that has them whole (every process must call this)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in parts and parts[name] is not parameter:
                parameter.copy_(whole(parts[name]))


def spread_weights(model: nn.Module, parts: Mapping[str, torch.Tensor]) -> None:
    """The reverse of `gather_weights`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in parts and parts[name] is not parameter:
                parts[name].copy_(spread(parameter, parts[name]))


def whole(tensor: Any) -> torch.Tensor:
    """A sharded tensor put together (every process must ask for it), any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """`tensor`, the same in every process, sharded as `like` is (every process must call this), on its device."""
    if not hasattr(like, "full_tensor"):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
