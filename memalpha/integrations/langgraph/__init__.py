"""Memory for LangGraph: a `BaseStore`, and its store as a system under evaluation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.integrations.langgraph.store import LangGraphStore
    from memalpha.integrations.langgraph.system import LangGraphSystem

_HOME = {
    "LangGraphStore": "memalpha.integrations.langgraph.store",
    "LangGraphSystem": "memalpha.integrations.langgraph.system",
}

__all__ = ["LangGraphStore", "LangGraphSystem"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
