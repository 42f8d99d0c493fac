"""When a request may go out: limits per minute, and how long to wait after a failed try. Pure functions of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

MINUTE = 60.0
_MIN_WAIT = 1e-3
"""A wait is at least this long, in seconds: a shorter one may not move a clock."""


@dataclass(slots=True)
class Usage:
    """What one request took out of the last minute."""

    at: float
    tokens: int


class Window:
    """At most so many requests and tokens in any 60 seconds; None for no limit. Times are seconds of one clock."""

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self.requests = requests
        self.tokens = tokens
        self._spent: deque[Usage] = deque()

    def wait(self, now: float, tokens: int) -> float:
        """Seconds until one more request of so many tokens fits; 0 if it does now.

        One that is larger than the limit itself never fits: that is for the caller to refuse.
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
        """Note a request. Its `tokens` may be set to what it really took."""
        self._spent.append(usage := Usage(now, tokens))
        return usage


def backoff(attempt: int, longest: float, rng: Random) -> float:
    """Seconds before try `attempt` + 1 (0 was the first): uniform in 0 .. min(longest, 2^attempt), "full jitter"."""
    return rng.uniform(0.0, min(longest, 2.0 ** min(attempt, 30)))


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """What a server's Retry-After asks for, in seconds from now: a number, or a date by the server's own clock.

    None where there is no such header or it says nothing readable. Header names in lower case.
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
