"""Figures and rollouts of steps in trackers: those of the run's files, each step once, also where it is resumed."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import memalpha
from memalpha.errors import ConfigError
from memalpha.train.trainers import progress

TINY = {"policy": "tiny-text", "max_new_tokens": 24, "group_size": 2, "tasks_per_step": 2}
TINY |= {"schedule_steps": 3, "eval_tasks": 1, "validation_tasks": 0, "save_every": 1}


def test_tensorboard_has_what_metrics_have(tmp_path) -> None:
    out = tmp_path / "run"
    for last in (2, 3):  # the second goes on with the first
        memalpha.train("arithmetic", out=out, report_to="tensorboard", max_steps=last, **TINY)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shown = EventAccumulator(str(out / "tensorboard"))
    shown.Reload()
    assert {"reward", "accuracy", "entropy", "tokens"} <= set(shown.Tags()["scalars"])
    for name in ("reward", "sampled_tokens"):
        results = [(event.step, event.value) for event in shown.Scalars(name)]
        assert results == [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines] and len(results) == 3
    (rollouts,) = shown.Tags()["tensors"]
    assert rollouts == "rollouts/text_summary" and len(shown.Tensors(rollouts)) == 3


def test_a_run_of_weights_and_biases_belongs_to_the_run_and_not_to_its_path(tmp_path, monkeypatch) -> None:
    ids, tables = list[str](), list[list[list[object]]]()
    wandb = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    wandb.config = SimpleNamespace(update=lambda *_, **__: None)
    wandb.Table = lambda columns, data, dataframe: tables.append(data)
    wandb.init = lambda **settings: (
        ids.append(settings["id"]) or SimpleNamespace(log=lambda *_, **__: None, finish=list)
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    def run(name: str, steps: int) -> str:
        memalpha.train("arithmetic", out=tmp_path / name, report_to=["wandb"], max_steps=steps, **TINY)
        return ids[-1]

    first = run("run", 1)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert run("moved", 2) == first, "resumed in another path"
    assert len(tables) == 2 and len(tables[1]) == 4, "four rollouts of each step"
    task, rollout, reward, credit, text = tables[1][1]
    written = json.loads((tmp_path / "moved" / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()[5])
    assert (task, rollout, reward) == (written["task"], written["rollout"], written["reward"])
    assert text == written["turns"][0]["text"] and credit == f"{written['turns'][0]['advantage']:+.2f}"
    second = run("run", 1)
    shutil.rmtree(tmp_path / "run")
    third = run("run", 1)
    assert len({first, second, third}) == 3, "each started anew"


def test_a_missing_package_is_said_before_anything_is_done(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="report_to: wandb is not installed: pip install wandb"):
        memalpha.train("arithmetic", out=tmp_path / "run", report_to=["wandb"], **TINY)
    assert not (tmp_path / "run").exists()
