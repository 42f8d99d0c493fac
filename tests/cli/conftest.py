"""A small store for the commands, and commands that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def store(memalpha, tmp_path: Path) -> Path:
    path = tmp_path / "ana.db"
    assert memalpha("add", path, "Ana lives in Lisbon.", "--timestamp", "2024-05-01", "--embedder", "hash")[0] == 0
    return path


@pytest.fixture
def refused(memalpha) -> Callable[..., str]:
    """Return a function that runs a command which is refused, and returns what stderr says."""

    def run(*words: object) -> str:
        code, out, err = memalpha(*words)
        assert (code, out) == (2, "") and "Traceback" not in err, (words, out, err)
        return err

    return run
