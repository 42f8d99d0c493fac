"""A server behind HTTP: connections in a thread of their own, tries of a request, and requests under way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from random import Random
from typing import Any, Protocol, TypeVar

import httpx2 as httpx

from memalpha.config import EndpointConfig
from memalpha.config.sampling import SamplerConfig
from memalpha.endpoint_calls import backoff
from memalpha.errors import PolicyError
from memalpha.policy.loop import LoopThread
from memalpha.types import Completion, SampleRequest

T = TypeVar("T")


class RetryableError(Exception):
    """Failed try that may succeed if repeated, after `after` seconds at the earliest.

    `complete` is True for a whole body without an answer, which is no fault of the network: more than
    `COMPLETE_RETRIES` retries of such do not help.
    """

    def __init__(self, reason: str, after: float | None = None, *, complete: bool = False) -> None:
        super().__init__(reason)
        self.after, self.complete = after, complete


COMPLETE_RETRIES = 2
"""Retries of a request whose response was whole and held no answer."""


class ServerThread(LoopThread):
    """Loop in a thread with the connections to one server.

    Args:
        name: Name in error messages.
        base: Address that paths are appended to.
        config: Limits and retries.
        key: Key that is sent as bearer token.
        hint: Name of the setting of the timeout, for errors.

    Attributes:
        slots: Semaphore of the concurrent requests.
        retries: Requests that were repeated so far.
        clock: Clock in seconds.
        sleep: Asynchronous sleep.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], Awaitable[None]] = staticmethod(asyncio.sleep)

    def __init__(
        self, name: str, base: str, config: EndpointConfig | SamplerConfig, key: str | None = None, hint: str = ""
    ) -> None:
        self.base, self.server, self._key, self._hint = base, config, key, hint
        self._rng = Random()
        self._quiet_until = 0.0
        self.retries = 0
        super().__init__(name)

    def reset_in_child(self, state: object) -> None:
        """Open connections anew; those of the parent stay referenced, so that nothing closes them."""
        super().reset_in_child(state)
        self._http: httpx.AsyncClient | None = None
        self.slots = asyncio.Semaphore(self.server.concurrency)

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Send one try and return the response, whatever its status.

        Args:
            method: HTTP method.
            path: Path behind the server's address.
            body: JSON body; None sends none.

        Raises:
            RetryableError: No complete response came back.
            PolicyError: The server's address is none.
        """
        if self._http is None:
            headers = {"Content-Type": "application/json"}
            headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.server.concurrency)
            self._http = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)
        content = None if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self.server.timeout):  # limits the whole response: a server may send it slowly
                return await self._http.request(method, self.base + path, content=content)
        except TimeoutError as error:
            raise RetryableError(f"no answer within {self.server.timeout:g} s{self._hint}") from error
        except httpx.ConnectError as error:
            raise RetryableError(f"cannot be reached ({error})") from error
        except httpx.HTTPError as error:
            raise RetryableError(f"the connection broke ({error or type(error).__name__})") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise PolicyError(f"{self.name} is not the address of an endpoint: {error}") from error

    async def retry(self, attempt: Callable[[], Awaitable[T]], hint: str) -> T:
        """Return the result of `attempt`, which is called again after each `RetryableError`.

        Args:
            attempt: One try.
            hint: What to change, for the error.

        Raises:
            PolicyError: All tries failed, or the server asks to wait longer than `max_wait` or keeps sending no answer.
        """
        complete = 0
        for number in range(self.server.retries + 1):
            try:
                return await attempt()
            except RetryableError as error:
                reason, after, longest = str(error), error.after or 0.0, self.server.max_wait
                if after > longest:
                    reason += f"; it asks to wait {after:.0f} s, endpoint.max_wait is {longest:.0f}"
                    break
                complete += error.complete
                if complete > COMPLETE_RETRIES:
                    break
                self._quiet_until = max(self._quiet_until, self.clock() + after)
                if number < self.server.retries:
                    self.retries += 1
                    await self.sleep(after + backoff(number, longest, self._rng))
        raise PolicyError(f"{self.name} gave no answer in {number + 1} tries, the last: {reason} ({hint})")

    def close(self) -> None:
        """Close the connections and the thread."""
        if self._http is not None:
            self.run(self._http.aclose())
        super().close()


@dataclass(slots=True)
class RequestBatch:
    """Requests of one queue. After their first error, nothing more is sent."""

    error: PolicyError | None = None


class ServedPolicy(Protocol):
    """Policy that a `RequestQueue` asks."""

    name: str

    def start(self, requests: Sequence[SampleRequest], batch: RequestBatch) -> list[Future[Any]]:
        """Send requests, as the concurrency allows; the futures raise `PolicyError`."""
        ...

    def finish(self, requests: Sequence[SampleRequest], replies: Sequence[Any]) -> list[Completion]:
        """Return the completions of the futures' results."""
        ...

    def confirm(self) -> None:
        """Check the server when a queue has run empty. Raises `PolicyError` if its replies cannot be used."""
        ...


class RequestQueue:
    """Requests at a server; see `base.SamplingQueue`.

    Args:
        policy: Policy that sends them.
        is_paid: True awaits the requests in flight after an error: their replies are kept.
    """

    def __init__(self, policy: ServedPolicy, *, is_paid: bool = False) -> None:
        self.policy, self.is_paid = policy, is_paid
        self._submitted = 0
        self._reset()

    def _reset(self) -> None:
        self._batch = RequestBatch()
        self._flying: dict[Future[Any], tuple[int, SampleRequest]] = {}
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Send requests, as the concurrency allows, and return their tickets."""
        futures = self.policy.start(requests, self._batch)
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        for ticket, request, future in zip(tickets, requests, futures, strict=True):
            self._flying[future] = ticket, request
            future.add_done_callback(self._ended.put)
        return tickets

    def collect(self) -> list[tuple[int, Completion]]:
        """Wait for a completion; return all that have come as (ticket, completion), by ticket.

        Raises:
            PolicyError: A request was refused, or all its tries failed, or the replies cannot be used.
        """
        replies: dict[int, tuple[SampleRequest, Any]] = {}
        try:
            while self._flying and (not replies or not self._ended.empty()):
                future = self._ended.get()
                ticket, request = self._flying.pop(future)
                replies[ticket] = request, future.result()
            if replies and not self._flying:
                self.policy.confirm()
        except CancelledError:
            self.close()
            raise PolicyError(f"{self.policy.name}: stopped") from None
        except PolicyError as error:
            first = self._batch.error = self._batch.error or error
            if self.is_paid:
                wait(self._flying)
            self.close()
            raise first from None
        except BaseException:  # a Ctrl-C
            self.close()
            raise
        tickets = sorted(replies)
        pairs = [replies[ticket] for ticket in tickets]
        completions = self.policy.finish([request for request, _ in pairs], [reply for _, reply in pairs])
        return list(zip(tickets, completions, strict=True))

    def cancel(self) -> None:
        """Cancel all requests under way; a `collect` that waits for them in another thread raises `PolicyError`."""
        for future in list(self._flying):
            future.cancel()

    def close(self) -> None:
        """Drop all requests under way; those in flight at an endpoint are finished and cached."""
        self._batch.error = self._batch.error or PolicyError(f"{self.policy.name}: stopped")
        self.cancel()
        self._reset()
