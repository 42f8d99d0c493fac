"""A group of learner and server on gloo, in place of NCCL's, and what vLLM's workers do with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)


class GlooGroup:
    """Rank 0 of a group, as `weight_transfer.NcclGroup` is on GPUs."""

    device = torch.device("cpu")

    def rendezvous(self) -> Mapping[str, Any]:
        """Return the address of a new store."""
        self._store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        return {"master_address": "127.0.0.1", "master_port": self._store.port}

    def join(self, size: int) -> None:
        """Form the group."""
        self._group = make_group(self._store, 0, size)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor to all workers."""
        send(self._group, tensor)


def make_group(store: dist.Store, rank: int, size: int) -> Any:
    """Return a group over the loopback that is not torch's default one."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, options)


def send(group: Any, tensor: torch.Tensor) -> None:
    """Broadcast from rank 0, in place."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor], options).wait()


class TransferWorker:
    """One worker of a server: the routes of vLLM's weight transfer.

    Attributes:
        version: Name of the weights; that of a start at first.
        updates: What each `/update_weights` announced.
        refuses: Route that is refused with status 500.
        skips: Name of a weight that is received and not loaded.
        breaks_at: Number of weights after which `/update_weights` fails.
    """

    def __init__(self) -> None:
        self.version = "default"
        self.updates: list[dict[str, Any]] = []
        self.refuses = self.skips = ""
        self.breaks_at: int | None = None
        self.groups = 0
        self._group: Any = None
        self._is_open = False

    def answer(self, path: str, body: Any, model: torch.nn.Module) -> tuple[int, Any]:
        """Do what a route asks for, in the order that vLLM demands."""
        if path == self.refuses:
            return 500, {"error": {"message": "failed to load the NCCL library"}}
        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/shutdown_weight_transfer_engine":
            self._group = None
        elif path == "/init_weight_transfer_engine":
            info = body["init_info"]
            assert set(info) == {"rank_offset", "world_size", "packed", "master_address", "master_port"}
            store = dist.TCPStore(info["master_address"], info["master_port"], is_master=False, timeout=TIMEOUT)
            self._group = make_group(store, info["rank_offset"], info["world_size"])
            self.groups += 1
        elif path == "/start_weight_update":
            assert not self._is_open
            self._is_open = True
        elif path == "/update_weights":
            assert self._is_open
            if not self._receive(body["update_info"], model):
                self._is_open = False  # as vLLM does
                return 500, {"error": {"message": "a worker failed"}}
        elif path == "/finish_weight_update":
            assert self._is_open
            self._is_open, self.version = False, body["weight_version"]
        else:
            return 404, {"detail": "Not Found"}
        return 200, {"message": "done"}

    @torch.no_grad()
    def _receive(self, info: dict[str, Any], model: torch.nn.Module) -> bool:
        self.updates.append(info)
        parameters = dict(model.named_parameters())
        rows = zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        for number, (name, dtype, shape) in enumerate(rows):
            if number == self.breaks_at:
                return False
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            send(self._group, tensor)
            if name != self.skips:
                parameters[name].copy_(tensor)
        return True
