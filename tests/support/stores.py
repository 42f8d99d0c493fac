"""Stores of the tests, and what is done to their files."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path
from typing import Any

from memalpha.store.embedding import HashEmbedder
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import Operation


class CountingEmbedder(HashEmbedder):
    """Hash embedder that counts its texts."""

    texts = 0

    def encode(self, texts):
        self.texts += len(texts)
        return super().encode(texts)


class NegatedEmbedder(HashEmbedder):
    """Another version of the hash embedder."""

    def encode(self, texts):
        return -super().encode(texts)


def new(path: str | Path = ":memory:", **options) -> MemoryStore:
    """Open a store with the hash embedder."""
    return MemoryStore.open(path, embedder="hash", **options)


def facts(store: MemoryStore, number: int = 5) -> None:
    """Insert some facts."""
    for index in range(number):
        store.insert("semantic", f"fact {index}: value {index}", source="test")


def quarantine(store: MemoryStore, operation: Operation, before: str | None = None) -> int:
    """Quarantine an operation and return its position."""
    store.apply(quarantine_operation(operation, before, "said by somebody else"))
    return store.snapshot()


def tamper(path: Path, script: str) -> bytes:
    """Change a file behind the store's back and return its bytes afterwards."""
    rows = sqlite3.connect(path, isolation_level=None)
    rows.executescript(f"{script}; PRAGMA wal_checkpoint(TRUNCATE)")
    rows.close()
    return path.read_bytes()


def import_file(path: Path) -> Any:
    """Import a script of `eval/` as a module."""
    spec = importlib.util.spec_from_file_location(f"imported_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
