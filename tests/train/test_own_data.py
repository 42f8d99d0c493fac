"""From a user's task files to a trained writer and its evaluation by `settings_of_run`."""

from __future__ import annotations

from memalpha.config import WorldConfig
from memalpha.qa.run import run_evaluation, settings_of_run
from memalpha.tasks import synthetic
from memalpha.tasks.jsonl import save_jsonl
from memalpha.train.loop import train


def test_the_evaluation_of_a_run_directory_is_the_runs_own(small, tmp_path):
    mine, held = tmp_path / "mine.jsonl", tmp_path / "held.jsonl"
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 8), mine)
    save_jsonl(synthetic.tasks(WorldConfig(), 9, 0, 3), held)
    settings = small(data=str(mine), eval_data=str(held), max_steps=1, reward={"metric": "contains"})
    summary = train(settings)
    for system, trained in (
        ({}, summary["after"]),
        ({"system": "scripted:oracle"}, summary["baselines"]["oracle"]),
        ({"system": "scripted:append-only"}, summary["baselines"]["append_only"]),
    ):
        found = run_evaluation(settings_of_run(settings.out, system)).summary
        tokens = {"memory_tokens", "conversation_tokens", "reward"}  # counted by the writer's tokenizer in the run
        assert {key: value for key, value in found.items() if key not in tokens} == {
            key: value for key, value in trained.items() if key not in tokens
        }
    assert summary["baselines"]["oracle"]["accuracy"] > summary["baselines"]["append_only"]["accuracy"]
