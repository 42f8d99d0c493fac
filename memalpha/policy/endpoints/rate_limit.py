"""Rate limits per minute, as pure functions of a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MINUTE = 60.0
_MIN_WAIT = 1e-3
"""Shortest wait in seconds; a shorter one may not advance the clock."""


@dataclass(slots=True)
class Usage:
    """Time and tokens of one request within the last minute."""

    at: float
    tokens: int


class Window:
    """Limit requests and tokens in any 60 seconds; None for no limit.

    Times are seconds of one clock.
    """

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self.requests = requests
        self.tokens = tokens
        self._spent: deque[Usage] = deque()

    def wait(self, now: float, tokens: int) -> float:
        """Return the seconds until a request of `tokens` fits; 0 if it fits now.

        A request above the limit never fits; the caller must refuse it.
        """
        while self._spent and self._spent[0].at + MINUTE <= now:
            self._spent.popleft()
        until = now
        if self.requests is not None and len(self._spent) >= self.requests:
            until = self._spent[len(self._spent) - self.requests].at + MINUTE
        if self.tokens is not None:
            excess = sum(spent.tokens for spent in self._spent) + tokens - self.tokens
            for spent in self._spent:
                if excess <= 0:
                    break
                excess -= spent.tokens
                until = max(until, spent.at + MINUTE)
        return max(until - now, _MIN_WAIT) if until > now else 0.0

    def take(self, now: float, tokens: int) -> Usage:
        """Register a request; its `tokens` may be corrected later."""
        self._spent.append(usage := Usage(now, tokens))
        return usage
