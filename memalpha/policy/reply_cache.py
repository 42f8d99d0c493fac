"""Keep the greedy replies of a frozen policy, so that equal requests are sampled once in a run."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.policy.base import Policy
from memalpha.types import Completion, SampleRequest

MAX_REPLIES = 4096
"""Replies that a cache keeps; the least recently used is dropped first."""


class ReplyCache:
    """Ask a policy whose weights never change, and keep its replies.

    A greedy reply depends on its request alone (`Policy.sample`), so results equal those without a cache. Kept are text
    and stop reason, under the SHA-256 of the request. Several threads may use one cache.

    Args:
        policy: Frozen policy. Never the one that is trained: its replies change with its weights.
        max_replies: Replies that are kept.

    Attributes:
        requests: Requests so far.
        hits: Requests that an earlier call had answered.
    """

    def __init__(self, policy: Policy, max_replies: int = MAX_REPLIES) -> None:
        self.policy, self.max_replies = policy, max_replies
        self.requests = self.hits = 0
        self._replies: OrderedDict[bytes, Completion] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._replies)

    def ask(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one reply per greedy request, in order, without token ids.

        Raises:
            PolicyError: The policy cannot answer.
        """
        keys = [_request_key(request) for request in requests]
        replies = self._find(keys)
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in replies}
        if new:
            completions = self.policy.sample(list(new.values()))
            sampled = {
                key: Completion(completion.text, stop_reason=completion.stop_reason)
                for key, completion in zip(new, completions, strict=True)
            }
            self._keep(sampled)
            replies |= sampled
        return [replies[key] for key in keys]

    def pop_hit_share(self) -> float | None:
        """Return the share of hits since the last call, and start counting anew; None without requests."""
        with self._lock:
            share = self.hits / self.requests if self.requests else None
            self.requests = self.hits = 0
        return share

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, Completion]:
        with self._lock:
            replies = {key: self._replies[key] for key in keys if key in self._replies}
            for key in replies:
                self._replies.move_to_end(key)
            self.requests += len(keys)
            self.hits += sum(key in replies for key in keys)
        return replies

    def _keep(self, replies: dict[bytes, Completion]) -> None:
        with self._lock:
            self._replies |= replies
            while len(self._replies) > self.max_replies:
                self._replies.popitem(last=False)


def cache_frozen(policy: Policy) -> ReplyCache | None:
    """Return a cache for a frozen policy; None for an endpoint, which keeps its answers itself (`endpoint.cache`)."""
    return None if policy.name.startswith(ENDPOINT_PREFIXES) else ReplyCache(policy)


def _request_key(request: SampleRequest) -> bytes:
    """Return the SHA-256 of all that a greedy reply depends on."""
    fields = (
        [dict(message) for message in request.messages],
        [dict(tool) for tool in request.tools],
        request.max_new_tokens,
        request.thinking_tokens,
        dict(request.chat_template_kwargs),
        request.native_calls,
    )
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=repr).encode()).digest()
