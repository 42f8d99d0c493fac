"""An evaluation from its configuration: what it says before it works, and what it takes over from a training run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from memalpha.config import EvalConfig, WorldConfig, load_config
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.qa.run import run_evaluation, settings_of_run
from memalpha.tasks import synthetic
from memalpha.tasks.jsonl import save_jsonl


def test_an_evaluation_says_that_r4_is_off(tmp_path, capsys):
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 2)
    save_jsonl([tasks[0].model_copy(update={"gold_operations": ()}), tasks[1]], tmp_path / "mine.jsonl")
    config = EvalConfig(data=str(tmp_path / "mine.jsonl"))
    run_evaluation(config)
    shown = capsys.readouterr()
    assert "r4 is off (weight 0) for 1 of 2 tasks" in shown.err and "r4" not in shown.out
    said: list[str] = []
    run_evaluation(config, say=said.append)
    assert len(said) == 1 and not capsys.readouterr().err
    run_evaluation(config.model_copy(update={"benchmark": "synthetic", "limit": 1}), say=said.append)
    assert len(said) == 1, "these tasks carry gold operations"


def test_the_metric_is_the_configured_one(tmp_path):
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 2), tmp_path / "mine.jsonl")
    found = {}
    for metric in ("exact", "contains"):
        config = load_config(EvalConfig, "tasks", {"data": str(tmp_path / "mine.jsonl"), "reward": {"metric": metric}})
        found[metric] = run_evaluation(config, say=lambda _: None).summary
        assert found[metric]["metric"] == metric
    assert found["contains"]["accuracy"] > found["exact"]["accuracy"], "whole lines hold the value, but are not it"


def test_tasks_in_another_schema_are_refused(tmp_path):
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 1), tmp_path / "mine.jsonl")
    config = load_config(
        EvalConfig, "tasks", {"data": str(tmp_path / "mine.jsonl"), "agent": {"memory_schema": "life"}}
    )
    with pytest.raises(DataError, match=r"data: .*mine\.jsonl: gold_operations\[0\] .*set agent\.memory_schema"):
        run_evaluation(config)


def run_directory(path: Path, **settings) -> Path:
    (path / "checkpoints" / "best").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"out": str(path), **settings}))
    return path


def test_a_run_directory_stands_for_its_own_evaluation(tmp_path):
    settings = {"policy": "some/start", "agent": {"max_new_tokens": 7}, "reward": {"metric": "f1"}}
    run = run_directory(tmp_path / "run", **settings, reader={"kind": "policy", "k": 3}, eval_data="held.jsonl")
    config = settings_of_run(run)
    assert (config.benchmark, config.data, config.limit) == ("tasks", "held.jsonl", None)
    assert config.system == str(run / "checkpoints" / "best")
    assert (config.agent.max_new_tokens, config.reward.metric) == (7, "f1")
    assert (config.reader.policy, config.reader.k, config.reader.conflicts) == ("some/start", 3, "refuse")
    other = settings_of_run(run, {"data": "other.jsonl", "system": "scripted:oracle", "reader": {"k": 5}})
    assert (other.data, other.system, other.reader.k) == ("other.jsonl", "scripted:oracle", 5)
    assert other.reader.policy == "some/start"


def test_device_and_precision_are_those_of_the_run(tmp_path):
    run = run_directory(tmp_path / "run", device="nowhere", dtype="bfloat16", eval_data=str(tmp_path / "mine.jsonl"))
    config = settings_of_run(run, {"system": "tiny"})
    assert (config.device, config.dtype) == ("nowhere", "bfloat16")
    pytest.importorskip("torch")
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 1), tmp_path / "mine.jsonl")
    with pytest.raises(PolicyError, match=r"device 'nowhere' \(.*try cpu"):
        run_evaluation(config)


def test_a_supervised_run_is_evaluated_alike(tmp_path):
    run = run_directory(tmp_path / "run", algorithm="sft", policy="some/start", reader={"kind": "policy"})
    assert settings_of_run(run, {"data": "held.jsonl"}).reader.policy == "some/start"


def test_a_synthetic_run_is_evaluated_on_its_held_out_world(tmp_path):
    run = run_directory(tmp_path / "run", world={"pseudo_values": 0.6}, eval_tasks=3)
    config = settings_of_run(run)
    assert (config.benchmark, config.world.split, config.limit) == ("synthetic", "test", 3)
    given = settings_of_run(run, {"data": "mine.jsonl"})
    assert (given.benchmark, given.data, given.limit) == ("tasks", "mine.jsonl", None)
    with pytest.raises(ConfigError, match="data: name the task file"):
        run_evaluation(
            settings_of_run(run_directory(tmp_path / "file", data="mine.jsonl"), {"system": "scripted:add-all"})
        )


def test_a_run_without_a_best_checkpoint_is_refused(tmp_path):
    run = run_directory(tmp_path / "run")
    (run / "checkpoints" / "best").rmdir()
    with pytest.raises(ConfigError, match=r"no checkpoints/best.*system=CHECKPOINT"):
        settings_of_run(run)
    assert settings_of_run(run, {"system": "tiny"}).system == "tiny"
