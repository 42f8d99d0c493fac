"""Training: rollouts become samples, samples become gradients. `scripts/tiny_grpo.py` is the idea in one file.

`memalpha.train("demo", seed=7)` is `memalpha.train.api.train`. The package itself is callable, because importing any
of its modules would replace a function of the same name by the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from memalpha.errors import PolicyError, install_command


class _CallablePackage(ModuleType):
    def __call__(self, config: Any, **overrides: Any) -> dict[str, Any]:
        """Run `memalpha.train.api.train`.

        Args:
            config: Configuration, shipped name or YAML path.
            overrides: Configuration keys and Python inputs, as in `train.api.train`.

        Raises:
            PolicyError: A library that training needs is not installed.
        """
        return _import_function("api", "train")(config, **overrides)


def __getattr__(name: str) -> Any:
    if name in ("train_on_preferences", "train_reward_model"):
        return _import_function("api", name)
    raise AttributeError(f"module 'memalpha.train' has no attribute {name!r}")


def _import_function(module: str, name: str) -> Callable[..., dict[str, Any]]:
    try:
        return getattr(import_module(f"memalpha.train.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers", "safetensors", "peft", "accelerate"):
            raise
        raise PolicyError(f"training needs {error.name}: {install_command('train')}") from None


sys.modules[__name__].__class__ = _CallablePackage
