"""Types of the server's answers, as the client reads them: the server's own, and adapters that check them."""

from __future__ import annotations

from pydantic import TypeAdapter

from memalpha.integrations.server.schemas import (
    AskResponse,
    CoreResponse,
    EntryPage,
    EraseResponse,
    HealthResponse,
    HistoryResponse,
    LoggedOperation,
    LogResponse,
    ReadResponse,
    SearchResponse,
)
from memalpha.types import MemoryEntry

__all__ = ["AskResponse", "EntryPage", "EraseResponse", "LoggedOperation", "ReadResponse"]

ASK = TypeAdapter(AskResponse)
CORE = TypeAdapter(CoreResponse)
ENTRY = TypeAdapter(MemoryEntry)
ERASE = TypeAdapter(EraseResponse)
HEALTH = TypeAdapter(HealthResponse)
HISTORY = TypeAdapter(HistoryResponse)
LOG = TypeAdapter(LogResponse)
PAGE = TypeAdapter(EntryPage)
READ = TypeAdapter(ReadResponse)
SEARCH = TypeAdapter(SearchResponse)
