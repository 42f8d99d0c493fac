"""Client of a memory that `memalpha serve` serves: synchronous and asynchronous, with typed results and errors."""

from __future__ import annotations

from memalpha.integrations.client.aio import AsyncMemoryClient
from memalpha.integrations.client.calls import (
    ClientConflict,
    ClientError,
    EntryNotFound,
    InvalidRequest,
    MissingRight,
    NotAuthorized,
    ServerUnavailable,
    TooManyRequests,
)
from memalpha.integrations.client.sync import MemoryClient

__all__ = [
    "AsyncMemoryClient",
    "ClientConflict",
    "ClientError",
    "EntryNotFound",
    "InvalidRequest",
    "MemoryClient",
    "MissingRight",
    "NotAuthorized",
    "ServerUnavailable",
    "TooManyRequests",
]
