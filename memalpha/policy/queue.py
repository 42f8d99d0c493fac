"""Sampling requests that start and end at different times: `submit` adds some, `collect` returns those that ended.

A rollout asks for its next turn as soon as its own turn has ended. A policy with a method `open_queue` decides itself
what it decodes together. For any other policy, all waiting requests become one call of `sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memalpha.policy.base import Policy, sample_checked
from memalpha.types import Completion, SampleRequest


class SamplingQueue(Protocol):
    """Requests under way, each known by its ticket: its index among all submitted requests.

    A queue belongs to one thread. Sampled ids are those of `Policy.sample`: they depend on the request alone.
    """

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets."""
        ...

    def collect(self) -> list[tuple[int, Completion]]:
        """Wait for a completion; return all that are there as (ticket, completion), [] if none is under way.

        Raises:
            PolicyError: The policy cannot answer. The queue is then unusable.
        """
        ...

    def close(self) -> None:
        """Drop all requests under way."""
        ...


class BatchQueue:
    """Queue of a policy that only samples in batches: `collect` samples all waiting requests.

    Args:
        policy: Policy that samples.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._waiting: list[SampleRequest] = []
        self._submitted = 0

    def submit(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Add requests and return their tickets."""
        first = self._submitted
        self._waiting += requests
        self._submitted += len(requests)
        return list(range(first, self._submitted))

    def collect(self) -> list[tuple[int, Completion]]:
        """Sample all waiting requests in one call; return (ticket, completion) in order."""
        if not self._waiting:
            return []
        requests, self._waiting = self._waiting, []
        return list(enumerate(sample_checked(self.policy, requests), self._submitted - len(requests)))

    def close(self) -> None:
        """Drop the waiting requests."""
        self._waiting = []


def open_queue(policy: Policy) -> SamplingQueue:
    """Return a queue of the policy's own kind, or a `BatchQueue`."""
    open_method = getattr(policy, "open_queue", None)
    return BatchQueue(policy) if open_method is None else open_method()
