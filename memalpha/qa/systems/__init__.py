"""Memory systems under evaluation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.qa.systems.base import Passage, System
    from memalpha.qa.systems.builtin import Streamed

_HOME = {
    "Passage": "memalpha.qa.systems.base",
    "Streamed": "memalpha.qa.systems.builtin",
    "System": "memalpha.qa.systems.base",
}

__all__ = ["Passage", "Streamed", "System"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
