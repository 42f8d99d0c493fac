"""The store of most tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memalpha.store.store import MemoryStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        yield store
