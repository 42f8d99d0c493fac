"""The version that a run records."""

from __future__ import annotations

from pathlib import Path

import pytest

from memalpha.train.trainers.trainer import _commit, software_version


def test_the_commit_is_read_from_loose_packed_and_detached_heads(tmp_path: Path) -> None:
    assert _commit(tmp_path) is None
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    assert _commit(tmp_path) is None
    (tmp_path / "packed-refs").write_text("# pack-refs\nabc refs/heads/other\ndef refs/heads/main\n")
    assert _commit(tmp_path) == "def"
    (tmp_path / "refs" / "heads").mkdir(parents=True)
    (tmp_path / "refs" / "heads" / "main").write_text("012\n")
    assert _commit(tmp_path) == "012"
    (tmp_path / "HEAD").write_text("345\n")
    assert _commit(tmp_path) == "345"


def test_the_commit_of_a_worktree_is_read(tmp_path: Path) -> None:
    git, checkout = tmp_path / "main" / ".git", tmp_path / "tree"
    (git / "worktrees" / "tree").mkdir(parents=True)
    checkout.mkdir()
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/topic\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    (git / "packed-refs").write_text("678 refs/heads/topic\n")
    (checkout / ".git").write_text(f"gitdir: {git / 'worktrees' / 'tree'}\n")
    assert _commit(checkout / ".git") == "678"


def test_an_unknown_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memalpha.train.trainers.trainer.__file__", "/nowhere/memalpha/train/trainers/trainer.py")
    assert software_version()["commit"] is None
