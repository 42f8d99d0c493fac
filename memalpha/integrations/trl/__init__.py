"""TRL integration: ERL in place of `GRPOTrainer`, TRL as a back end for memory tasks.

    from memalpha.integrations.trl import ERLConfig, ERLTrainer

Names are imported on first use. The trainers refuse releases of TRL that they were not tested with (`base`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalpha.integrations.trl.multi_context import MultiContextGRPOTrainer, memory_collector
    from memalpha.integrations.trl.trainer import ERLConfig, ERLTrainer

_HOMES = {
    "ERLConfig": "trainer",
    "ERLTrainer": "trainer",
    "MultiContextGRPOTrainer": "multi_context",
    "memory_collector": "multi_context",
}

__all__ = ["ERLConfig", "ERLTrainer", "MultiContextGRPOTrainer", "memory_collector"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
