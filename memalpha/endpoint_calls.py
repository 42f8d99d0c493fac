"""Endpoints of OpenAI's APIs: names, keys, error messages, and which requests are sent again after which wait."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any
from urllib.parse import SplitResult, urlsplit

from memalpha.errors import PolicyError

ENDPOINT_PREFIXES = ("openai:", "http://", "https://")
"""Prefixes that mark the name of a model as one behind an endpoint."""
OPENAI = "https://api.openai.com/v1"
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 429))
"""Statuses below 500 after which a retry may succeed."""


def parse_name(name: str) -> tuple[str, str]:
    """Return (base URL, model) of `http://host:port/v1#model` or `openai:MODEL`.

    `OPENAI_BASE_URL` replaces the address of `openai:`. Raises `PolicyError` for other names.
    """
    if name.startswith("openai:"):
        base, model = os.environ.get("OPENAI_BASE_URL") or OPENAI, name.removeprefix("openai:")
    else:
        base, _, model = name.partition("#")
    if may_hold_key(base):  # looked for first, so that no message shows it
        raise PolicyError(
            "an address with a password or a query would stand in reports: put the key in a variable "
            "(endpoint.key_env; for an embedder MEMALPHA_EMBEDDING_KEY), and leave out @ and ?"
        )
    if not model:
        raise PolicyError(f"{name!r} names no model: write http://HOST:PORT/v1#MODEL or openai:MODEL")
    if split_address(base) is None:
        raise PolicyError(f"{base!r} is not the address of an endpoint: write http://HOST:PORT/v1#MODEL")
    return base.rstrip("/"), model


def may_hold_key(address: str) -> bool:
    """Return True for an address with a query, or with a user or password before its host."""
    return "?" in address or re.search("[^/]@", address) is not None


def split_address(address: str) -> SplitResult | None:
    """Return the parts of the address of an HTTP server; None for another text."""
    try:
        parts = urlsplit(address)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def read_key(name: str, variable: str, hint: str = "") -> str:
    """Return the key of a model from an environment variable.

    Args:
        name: Name of the model, for errors.
        variable: Environment variable.
        hint: What else can be done if the variable is not set.

    Raises:
        PolicyError: The variable is not set, or holds other characters than those of a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise PolicyError(f"{name} needs a key: set the environment variable {variable}{hint}")
    if not (key.isascii() and key.isprintable()):
        raise PolicyError(f"{name}: the key in {variable} holds characters that no key has")
    return key


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


def describe_status(status: int, headers: Mapping[str, str], message: str) -> str:
    """Return the status of a failed request with the server's message or the target of a redirect.

    No redirect is followed: it would carry the key to another host. Header names are in lower case.
    """
    if 300 <= status < 400 and (location := headers.get("location")):
        message = f"a redirect to {location.partition('?')[0][:300]}, which shows the address to give"
    return f"status {status}: {message}" if message else f"status {status}"


def read_error(data: Any, text: str, key: str | None = None) -> str:
    """Return a server's error message on one line, at most 300 characters.

    Args:
        data: The response's JSON value; None if it is none.
        text: The response as text, for one without a message.
        key: Secret to mask.
    """
    names = ("error", "message", "detail")
    error = next((data[name] for name in names if data.get(name)), None) if isinstance(data, Mapping) else None
    if isinstance(error, Mapping):
        error = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    words = " ".join((error if isinstance(error, str) else text).split())
    return (words.replace(key, "***") if key else words)[:300]
