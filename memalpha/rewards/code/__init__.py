"""Reward of programs that run in a sandbox."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.rewards.code.reward import failing_solutions, feedback

_HOME = {
    "failing_solutions": "memalpha.rewards.code.reward",
    "feedback": "memalpha.rewards.code.reward",
}

__all__ = ["failing_solutions", "feedback"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
