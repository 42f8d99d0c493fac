"""Training: trajectories become samples, samples become gradients.

`memalpha.train("demo", seed=7)` is `memalpha.train.loop.train`: the package can be called, because a function of the
same name beside it would be replaced by the package as soon as any of its modules is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from memalpha.errors import PolicyError


class _CallablePackage(ModuleType):
    def __call__(self, config: Any, **overrides: Any) -> dict[str, Any]:
        """Run `memalpha.train.loop.train`; raises `PolicyError` where the libraries it needs are not installed."""
        try:
            from memalpha.train.loop import train
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("torch", "transformers", "safetensors", "peft", "accelerate"):
                raise
            raise PolicyError(f"training needs {error.name}: pip install 'memalpha[train]'") from error
        return train(config, **overrides)


sys.modules[__name__].__class__ = _CallablePackage
