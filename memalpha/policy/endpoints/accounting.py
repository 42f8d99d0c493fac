"""Token counts, costs and rate limits of endpoint requests.

The bill counts each answer once. It uses the server's `usage` if plausible, otherwise our estimate (UTF-8 bytes / 4). A
prompt count is plausible between a quarter and four times the estimate. An answer's count is plausible from a quarter
of the estimate up to the request's limit, because a model may think without showing it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MESSAGE_OVERHEAD = 8
"""Approximate number of tokens that a chat template adds to each message."""
MINUTE = 60.0
_MIN_WAIT = 1e-3
"""Shortest wait in seconds; a shorter one may not advance the clock."""


@dataclass(slots=True)
class Bill:
    """Requests, tokens and costs of one client.

    `asked` = `paid` + `cached` + `shared` + requests without an answer.

    Attributes:
        asked: requests of the caller.
        paid: answers of the server.
        cached: answers from the cache.
        shared: requests that waited for an equal request in flight.
        tries: HTTP requests sent.
        lost: tries without a usable answer; not priced, because only the server knows their tokens.
        doubted: answers whose `usage` was missing or implausible.
        prompt_tokens: billed tokens of prompts.
        completion_tokens: billed tokens of answers.
        cost: price of paid answers; None without prices.
        saved: price of cached answers; None without prices.
    """

    asked: int = 0
    paid: int = 0
    cached: int = 0
    shared: int = 0
    tries: int = 0
    lost: int = 0
    doubted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    saved: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """Message of an endpoint, its finish reason, and its billed tokens.

    `message` holds `content`, `tool_calls`, `function_call` and `refusal` where present.
    """

    message: Mapping[str, Any]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text as UTF-8 bytes / 4, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def estimate_message_tokens(message: Mapping[str, Any]) -> int:
    """Estimate the tokens of a message from its text and its calls' names and arguments."""
    calls = message.get("tool_calls")
    parts = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    parts = [f"{part.get('name')}{part.get('arguments')}" for part in parts if isinstance(part, Mapping)]
    return estimate_tokens("".join([message.get("content") or "", *parts]))


def estimate_prompt_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens of a request's messages and tool schemas."""
    tools = body.get("tools")
    texts = [str(message["content"]) for message in body["messages"]] + ([json.dumps(tools)] if tools else [])
    return sum(map(estimate_tokens, texts)) + MESSAGE_OVERHEAD * len(texts)


def plausible_count(count: Any, least: int, most: int) -> int | None:
    """Return the server's token count if plausible, otherwise None.

    Args:
        count: value from the server's `usage`.
        least: smallest plausible count.
        most: largest plausible count.

    Returns:
        `count` if it is an integer within the bounds.
    """
    possible = isinstance(count, int) and not isinstance(count, bool) and max(0, least) <= count <= most
    return count if possible else None


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
