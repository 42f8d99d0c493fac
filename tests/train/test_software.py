"""The version that a run records."""

from __future__ import annotations

from pathlib import Path

from memalpha.train.trainers.trainer import _commit


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
