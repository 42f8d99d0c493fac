"""Training: trajectories become samples, samples become gradients.

`memalpha.train("demo", seed=7)` is `memalpha.train.api.train`: the package can be called, because a function of the
same name beside it would be replaced by the package as soon as any of its modules is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from memalpha.errors import PolicyError, install_command

_HOME = {"train_on_preferences": "trainers.preferences", "train_reward_model": "trainers.reward_model"}


class _CallablePackage(ModuleType):
    def __call__(self, config: Any, **overrides: Any) -> dict[str, Any]:
        """Run `memalpha.train.api.train`; raises `PolicyError` where the libraries it needs are not installed."""
        return _needing_libraries("api", "train")(config, **overrides)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return _needing_libraries(_HOME[name], name)
    raise AttributeError(f"module 'memalpha.train' has no attribute {name!r}")


def _needing_libraries(module: str, name: str) -> Callable[..., dict[str, Any]]:
    try:
        return getattr(import_module(f"memalpha.train.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers", "safetensors", "peft", "accelerate"):
            raise
        raise PolicyError(f"training needs {error.name}: {install_command('train')}") from error


sys.modules[__name__].__class__ = _CallablePackage
