"""The command line in this process, and a small store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memalpha.cli import main


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    """Run `memalpha WORDS…` in this process and return (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", ["memalpha", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0 if code is None else 1, out, err


@pytest.fixture
def memalpha(capsys, monkeypatch):
    return lambda *words: run(capsys, monkeypatch, *words)


@pytest.fixture
def store(memalpha, tmp_path: Path) -> Path:
    path = tmp_path / "ana.db"
    assert memalpha("add", path, "Ana lives in Lisbon.", "--timestamp", "2024-05-01", "--embedder", "hash")[0] == 0
    return path
