"""The learner: weights, optimizer, losses, log-probs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.train.learner.async_engine import Learner

__all__ = ["Learner"]


def __getattr__(name: str) -> Any:
    if name != "Learner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memalpha.train.learner.async_engine import Learner

    return Learner
