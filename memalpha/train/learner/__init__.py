"""The learner: weights, optimizer, losses, log-probs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.train.learner.async_engine import Learner

_HOME = {
    "Learner": "memalpha.train.learner.async_engine",
}

__all__ = ["Learner"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
