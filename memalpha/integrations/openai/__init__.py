"""Memory for OpenAI's client and Agents SDK."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.integrations.openai.agents_session import MemorySession
    from memalpha.integrations.openai.client import with_memory

_HOME = {
    "MemorySession": "memalpha.integrations.openai.agents_session",
    "with_memory": "memalpha.integrations.openai.client",
}

__all__ = ["MemorySession", "with_memory"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
