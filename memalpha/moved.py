"""Import hook for module paths of release 0.1 that its pages named; they warn and stay until 0.3."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "agent.answer": "agent.reader",
    "agent.citing": "agent.citations",
    "integrations.agents_session": "integrations.openai.agents_session",
    "integrations.langgraph_store": "integrations.langgraph.store",
    "integrations.openai_": "integrations.openai.client",
    "qa.cited": "qa.scoring.cited",
    "qa.compare": "qa.reporting.compare",
    "qa.judge": "qa.scoring.judge",
    "qa.loss": "qa.error_analysis",
    "qa.system": "qa.systems.base",
    "tasks.arithmetic": "tasks.synthetic.arithmetic",
    "tasks.programs": "tasks.synthetic.programs",
    "train.engine": "train.learner.engine",
    "train.samples": "train.data.samples",
}
"""Old path -> new path, both below `memalpha`."""


class MovedModules(MetaPathFinder, Loader):
    """Find modules at their old paths. It is last on `sys.meta_path`, so existing modules never reach it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a moved module.

        Args:
            fullname: Old path, with `memalpha.`.
            path: Unused.
            target: Unused.

        Returns:
            None for a path that did not move.
        """
        if fullname.removeprefix("memalpha.") not in MOVED:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module at its new path and warn."""
        new = f"memalpha.{MOVED[spec.name.removeprefix('memalpha.')]}"
        warnings.warn(f"{spec.name} is now {new}; the old path is removed in 0.3", DeprecationWarning, stacklevel=2)
        return import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was executed at its new path."""


def install() -> None:
    """Make old paths importable, once."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
