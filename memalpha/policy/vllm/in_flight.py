"""Completions that go on under new weights: the server breaks them off, and each is sent again with its tokens so far.

vLLM answers a request that is ended from outside (`/abort_requests`) with the tokens that it has. They become part of
the prompt of the next request, so the server computes all keys and values anew with its new weights. No token is
sampled twice or lost, and each span of a completion has exactly one weight version.

vLLM's own `/pause?mode=keep` is not used. It cannot change the adapter of a request, only a route apart from
`/v1/completions` tells which weights sampled which token, and a learner that dies leaves the server paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from memalpha.policy.vllm.client import SampledTokens, TokenRequest

if TYPE_CHECKING:
    from memalpha.policy.vllm.policy import VllmPolicy

BREAK_OFF_SECONDS = 0.02
"""Wait before requests that were on their way to the server are broken off, too."""


class InFlightRequests:
    """Start completions that outlive new weights.

    Args:
        policy: Policy on the server; its `model` and `version` are those of the weights that the server has.
    """

    def __init__(self, policy: VllmPolicy) -> None:
        self.policy, self.client = policy, policy.client
        self._can_send = asyncio.Event()
        self._can_send.set()
        self._at_server = 0

    def start(self, request: TokenRequest) -> Future[SampledTokens]:
        """Sample in the background; the future raises `PolicyError` after the last try of a request."""
        return self.client.thread.start(self._sample(request))

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Break completions off before the block; they go on after it, unless it raises.

        Raises:
            PolicyError: The server refuses to end requests, or gives no answer.
        """
        self.client.thread.run(self._break_off())
        yield
        self.client.thread.run(self._resume())

    async def _sample(self, request: TokenRequest) -> SampledTokens:
        ids: tuple[int, ...] = ()
        logprobs: tuple[float, ...] = ()
        starts: list[tuple[int, int]] = []
        while True:
            step, part = await self._sample_part(request.rest(ids) if ids else request)
            starts.append((step, len(ids)))
            ids, logprobs = ids + part.ids, logprobs + part.logprobs
            if not part.is_broken_off:
                return SampledTokens(ids, logprobs, part.is_complete, starts=tuple(starts))

    async def _sample_part(self, request: TokenRequest) -> tuple[int, SampledTokens]:
        """Return the step of the server's weights and what they sampled until the end or the next interruption."""
        while True:
            await self._can_send.wait()
            async with self.client.slots:
                if not self._can_send.is_set():  # interrupted while it waited for its slot
                    continue
                model, step = self.policy.model, self.policy.version
                assert model is not None and step is not None
                self._at_server += 1
                try:
                    return step, await self.client.complete(replace(request, model=model), may_break_off=True)
                finally:
                    self._at_server -= 1

    async def _break_off(self) -> None:
        self._can_send.clear()
        while self._at_server:
            await self.client.break_off()
            await asyncio.sleep(BREAK_OFF_SECONDS)

    async def _resume(self) -> None:
        self._can_send.set()
