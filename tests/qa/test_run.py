"""What `run_evaluation` says about the reward before it works."""

from __future__ import annotations

from memalpha.config import EvalConfig, WorldConfig
from memalpha.qa.run import run_evaluation
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
