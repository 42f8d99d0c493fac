"""Files of a run: what a kill may leave in them, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from memalpha.errors import CheckpointError
from memalpha.train.checkpoint import (
    append_lines,
    checkpoint_path,
    cut_lines,
    locked,
    prune_checkpoints,
    saved_steps,
    write_json,
)

LINES = [{"step": 0, "text": "one\u2028line"}, {"step": 1, "text": "müde\x85"}, {"step": 2, "text": "\ud800"}]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_lines_are_cut_by_step_whatever_they_hold(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_lines(path, LINES)
    cut_lines(path, 2)
    assert read(path) == LINES[:2]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES[:2]), encoding="utf-8")
    cut_lines(path, 5)
    assert read(path) == LINES[:2], "as other writers may have put it: not ASCII"
    cut_lines(tmp_path / "missing.jsonl", 0)


def test_a_kill_may_leave_any_part_of_the_last_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    whole = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES[:2])
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        cut_lines(path, 9)
        assert read(path) in (LINES[:1], LINES[:2])
        assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"no": 1}', b'{"step": null}', b"\xff"])
def test_a_bad_line_before_others_is_never_dropped_in_silence(tmp_path, bad):
    path = tmp_path / "lines.jsonl"
    content = b'{"step": 0}\n' + bad + b'\n{"step": 1}\n'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"lines\.jsonl:2: "):
        cut_lines(path, 9)
    assert path.read_bytes() == content


def test_json_holds_any_text_a_model_writes(tmp_path):
    write_json(tmp_path / "value.json", LINES)
    assert json.loads((tmp_path / "value.json").read_text(encoding="ascii")) == LINES


def test_pruning_that_was_killed_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    for step in range(4):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
        (checkpoint_path(tmp_path, step) / "state.json").touch()

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            prune_checkpoints(tmp_path, 1, [1])
    assert saved_steps(tmp_path) == [1, 3]
    prune_checkpoints(tmp_path, 1, [1])
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-1", "step-3"}


def test_a_run_directory_is_held_by_one(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(CheckpointError, match="another out"), locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "run"):
        pass
