"""Docstrings of the store: an override has its base's docstring unless it says something else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import memalpha.store
from memalpha.store.async_store import AsyncMemoryStore
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.store import MemoryStore

PUBLIC = (AsyncMemoryStore, MemoryStore, WorkingMemory)


def overrides() -> Iterator[tuple[str, Any, Any]]:
    """Yield every method and property of a class of the store that overrides one: its name, own and base's."""
    classes = set()
    for module in pkgutil.walk_packages(memalpha.store.__path__, "memalpha.store."):
        if "postgres" not in module.name:
            members = vars(importlib.import_module(module.name)).values()
            classes |= {item for item in members if inspect.isclass(item) and item.__module__.startswith("memalpha.")}
    for kind in classes:
        for name, own in vars(kind).items():
            base = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
            if (
                base is not None
                and not name.startswith("__")
                and (inspect.isfunction(own) or isinstance(own, property))
            ):
                yield f"{kind.__module__}.{kind.__name__}.{name}", own, base


def test_no_override_repeats_its_bases_docstring() -> None:
    methods = list(overrides())
    assert len(methods) > 20
    assert [name for name, own, base in methods if own.__doc__ and own.__doc__ == base.__doc__] == []


@pytest.mark.parametrize("kind", PUBLIC)
def test_every_public_method_has_a_docstring(kind: type) -> None:
    names = [name for name in dir(kind) if not name.startswith("_")]
    assert [name for name in names if not inspect.getdoc(getattr(kind, name))] == []
