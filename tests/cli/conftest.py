"""A small store for the commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def store(memalpha, tmp_path: Path) -> Path:
    path = tmp_path / "ana.db"
    assert memalpha("add", path, "Ana lives in Lisbon.", "--timestamp", "2024-05-01", "--embedder", "hash")[0] == 0
    return path
