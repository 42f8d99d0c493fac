"""Rate limits per minute, which requests are sent again, and the waits between tries, as pure functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

MINUTE = 60.0
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 429))
"""Statuses below 500 after which a retry may succeed."""
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


def backoff(attempt: int, longest: float, rng: Random) -> float:
    """Return the wait before the next try, with full jitter.

    Args:
        attempt: 0-based index of the failed try.
        longest: upper bound in seconds.
        rng: source of the jitter.

    Returns:
        Seconds, uniform in 0 .. min(longest, 2^attempt).
    """
    return rng.uniform(0.0, min(longest, 2.0 ** min(attempt, 30)))


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the wait in seconds that a Retry-After header asks for.

    A date is compared with the server's own clock if its response has a `date`. Returns None for a missing or
    unreadable header. Header names are in lower case.
    """
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
        return seconds if 0.0 <= seconds < float("inf") else None
    except ValueError:
        pass
    try:
        retry_time = parsedate_to_datetime(text)
        server_time = parsedate_to_datetime(headers["date"]) if "date" in headers else now or datetime.now(UTC)
    except ValueError:
        return None
    if retry_time.tzinfo is None or server_time.tzinfo is None:
        retry_time, server_time = retry_time.replace(tzinfo=None), server_time.replace(tzinfo=None)
    return max(0.0, (retry_time - server_time).total_seconds())


def is_retryable(status: int) -> bool:
    """Return True if a request that got this HTTP status may succeed when it is sent again."""
    return status in _RETRYABLE_STATUSES or status >= 500
