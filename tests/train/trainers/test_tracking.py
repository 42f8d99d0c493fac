"""Figures of steps in TensorBoard: those of metrics.jsonl, each step once, also where a run is resumed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import memalpha
from memalpha.errors import ConfigError
from memalpha.train.trainers import tracking

TINY = {
    "policy": "tiny-text",
    "max_new_tokens": 24,
    "group_size": 2,
    "tasks_per_step": 2,
    "schedule_steps": 3,
    "eval_tasks": 2,
    "validation_tasks": 0,
    "save_every": 1,
}


def test_tensorboard_has_what_metrics_have(tmp_path) -> None:
    out = tmp_path / "run"
    for last in (2, 3):  # the second goes on with the first
        memalpha.train("arithmetic", out=out, report_to=["tensorboard"], max_steps=last, **TINY)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shown = EventAccumulator(str(out / "tensorboard"))
    shown.Reload()
    assert {"reward", "accuracy", "entropy", "tokens"} <= set(shown.Tags()["scalars"])
    for name in ("reward", "sampled_tokens"):
        results = [(event.step, event.value) for event in shown.Scalars(name)]
        assert results == [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines] and len(results) == 3


def test_a_missing_package_is_said_before_anything_is_done(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="report_to: wandb is not installed: pip install wandb"):
        memalpha.train("arithmetic", out=tmp_path / "run", report_to=["wandb"], **TINY)
    assert not (tmp_path / "run").exists()
