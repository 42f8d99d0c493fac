"""Whole weights straight to a server's workers: vLLM's own transfer engine, over NCCL between GPUs.

The main process and all workers of the server form one group, the learner as rank 0. The server is told over HTTP what
comes (`/start_weight_update`, `/update_weights` with names, types and shapes, `/finish_weight_update`), and each tensor
is broadcast in that order. No file is written. Sharded weights are gathered tensor by tensor, in all processes.

vLLM's communicator is not needed here: torch has NCCL, and the id of the group goes over HTTP (vLLM 0.32, started with
`--weight-transfer-config '{"backend": "nccl"}'`). `NcclGroup` was never run, for want of a GPU. All else is
tested with a group on gloo.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Protocol

import torch
from torch.cuda import nccl

from memalpha.errors import PolicyError
from memalpha.policy.vllm.client import VllmClient
from memalpha.train.learner.distributed import full_tensor
from memalpha.train.learner.engine import Engine

HINT = 'start the server with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend": "nccl"}\''


class TransferGroup(Protocol):
    """Group of the learner (rank 0) and the server's workers."""

    device: torch.device
    """Device of the tensors that are broadcast."""

    def rendezvous(self) -> Mapping[str, Any]:
        """Return what the workers must know to join, as keys of vLLM's `init_info`."""
        ...

    def join(self, size: int) -> None:
        """Form the group of `size` members; the workers do so at the same time."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor to all workers."""
        ...


class NcclGroup:
    """Group over NCCL, with torch's bindings.

    Args:
        device: GPU of the learner.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._id = b""
        self._communicator: Any = None

    def rendezvous(self) -> Mapping[str, Any]:
        """Return a new id of a group."""
        self._id = nccl.unique_id()
        return {"nccl_unique_id_b64": base64.b64encode(self._id).decode()}

    def join(self, size: int) -> None:
        """Form the group and take part in the sum of one number with which vLLM's workers warm up."""
        with torch.cuda.device(self.device):
            self._communicator = nccl.init_rank(size, self._id, 0)
            nccl.all_reduce([torch.zeros(1, device=self.device)], comms=[self._communicator])
            torch.cuda.synchronize()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor and wait until it has gone."""
        with torch.cuda.device(self.device):
            nccl.broadcast([tensor], comms=[self._communicator])
            torch.cuda.synchronize()


class WeightTransfer:
    """Send an engine's weights to a server.

    Args:
        client: Client of the server.
        engine: Owner of the weights.
        group: Group that is formed with the first weights.
        dtype: Type in which weights are sent; None sends them as they are.
    """

    def __init__(
        self, client: VllmClient, engine: Engine, group: TransferGroup, dtype: torch.dtype | None = None
    ) -> None:
        self.client, self.engine, self.group, self.dtype = client, engine, group, dtype
        self._is_connected = self._is_whole = False

    def send(self, version: str) -> None:
        """Replace the server's weights and name them `version`. Every process must call this.

        Raises:
            PolicyError: The server refuses, or the group breaks; every process raises it. The server may have only a
                part of the weights then, under the name of those before. `version` is None until the next whole
                transfer.
        """
        world = self.engine.world
        self._is_whole = False
        parameters = dict(self.engine.model.named_parameters())  # tied ones stand there once
        world.run_on_main(self._start)
        update: _SharedWork | None = None
        if world.is_main:
            info = {
                "names": list(parameters),
                "dtype_names": [str(self._sent_type(tensor)).removeprefix("torch.") for tensor in parameters.values()],
                "shapes": [list(tensor.shape) for tensor in parameters.values()],
            }
            update = _SharedWork(self.client, "/update_weights", {"update_info": info})
        # After each tensor all processes hear whether the server still takes part: the next gather would wait forever.
        for parameter in parameters.values():
            tensor = full_tensor(parameter.detach())
            self._on_main(update, partial(self._broadcast, tensor))
        self._on_main(update)
        world.run_on_main(lambda: self._finish(version))
        self._is_whole = True

    def version(self) -> str | None:
        """Return the server's name of its weights, after a start of the server its own; None: a transfer failed."""
        if not self._is_whole:
            return None
        answer = self.client.call("GET", "/weight_info", hint=HINT)
        return answer.get("weight_version") if isinstance(answer, Mapping) else None

    def _sent_type(self, tensor: torch.Tensor) -> torch.dtype:
        return self.dtype or tensor.dtype

    def _start(self) -> None:
        """Form the group, if there is none yet, and let the server expect weights."""
        if not self._is_connected:
            answer = self.client.call("GET", "/get_world_size", hint=HINT)
            workers = answer.get("world_size") if isinstance(answer, Mapping) else None
            if type(workers) is not int or workers < 1:
                raise PolicyError(f"{self.client.name}: /get_world_size gives no number of workers: {answer!r}")
            self.client.call("POST", "/shutdown_weight_transfer_engine", hint=HINT)  # a group of an earlier run
            rendezvous = {"rank_offset": 1, "world_size": workers + 1, "packed": False, **self.group.rendezvous()}
            body = {"init_info": rendezvous}
            joining = _SharedWork(self.client, "/init_weight_transfer_engine", body)
            joining.do(lambda: self.group.join(workers + 1))
            joining.finish()
            self._is_connected = True
        self.client.call("POST", "/start_weight_update", hint=HINT)

    def _finish(self, version: str) -> None:
        self.client.call("POST", "/finish_weight_update", {"weight_version": version})
        self.client.reset_cache()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self.group.broadcast(tensor.to(self.group.device, self._sent_type(tensor)).contiguous())

    def _on_main(self, shared: _SharedWork | None, work: Callable[[], None] | None = None) -> None:
        """Do a part of a work with the server, or wait for its end; an error is raised in every process.

        Args:
            shared: The work, in the main process.
            work: The part; None waits for the end.
        """

        def run() -> None:
            assert shared is not None
            try:
                shared.finish() if work is None else shared.do(work)
            except PolicyError:
                self._is_connected = False
                raise

        self.engine.world.run_on_main(run)


class _SharedWork:
    """Work that learner and server do together, while the server has not answered a request.

    A collective that waits for a server that has refused would never return, so it runs in a thread that is left.

    Args:
        client: Client of the server.
        path: Route.
        body: JSON object.
    """

    def __init__(self, client: VllmClient, path: str, body: Mapping[str, Any]) -> None:
        self.client, self.path = client, path
        self._answer = client.start_call(path, body, HINT)
        self._end = time.monotonic() + client.config.timeout

    def do(self, work: Callable[[], None]) -> None:
        """Do a part of the work; whichever fails first ends the wait. Raises `PolicyError`."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised below
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=run, name="memalpha sends weights", daemon=True).start()
        ended, _ = wait([self._answer, done], timeout=self._seconds_left(), return_when=FIRST_COMPLETED)
        if self._answer in ended:
            self._answer.result()
        self._wait_for(done)

    def finish(self) -> None:
        """Wait for the server's answer. Raises `PolicyError`."""
        self._wait_for(self._answer)

    def _wait_for(self, future: Future[Any]) -> None:
        try:
            future.result(self._seconds_left())
        except TimeoutError as error:
            raise PolicyError(
                f"{self.client.name}: {self.path} did not end within {self.client.config.timeout:g} s (sampler.timeout)"
            ) from error
        except (RuntimeError, ValueError, OSError) as error:
            raise PolicyError(f"{self.client.name}: {self.path}: the group broke ({error})") from error

    def _seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())
