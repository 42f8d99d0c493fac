"""`memalpha train`, `eval`, `compare` and `report` on text tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tiny import tiny_policy
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.report.page import write_report
from memalpha.rewards.evaluate import evaluate_text
from memalpha.train.rollouts.text_tasks import TextTaskSource, resolve_text_run


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Train a small text run from a YAML file and return its folder."""
    folder = tmp_path_factory.mktemp("text")
    policy = tiny_policy()
    policy.model.save_pretrained(folder / "policy")
    policy.tokenizer.save_pretrained(folder / "policy")
    settings = {
        "task": "text", "out": str(folder / "run"), "policy": str(folder / "policy"), "data": "arithmetic",
        "rewards": [{"kind": "format", "pattern": "(?s).{0,3}"},
                    {"kind": "format", "name": "digits", "pattern": "[0-9]+",
                                                                  "weight": 0.5}],
        "stop_unreadable": False,
        "max_new_tokens": 4, "group_size": 3, "tasks_per_step": 2, "schedule_steps": 2, "warmup_steps": 1,
        "eval_tasks": 6, "validation_tasks": 3, "validate_every": 1, "save_every": 1,
        "curriculum": {"order": ["easy", "medium", "hard"], "threshold": 0.5, "window": 4},
    }  # fmt: skip
    (folder / "words.yaml").write_text(yaml.safe_dump(settings))
    output = call("train", str(folder / "words.yaml"), "seed=3", "--json")
    assert json.loads(output)["task"] == "text"
    return folder


def test_eval_of_a_run_repeats_its_own_evaluation(trained: Path) -> None:
    after = json.loads((trained / "run" / "eval" / "after.json").read_text())
    again = json.loads(call("eval", str(trained / "run"), f"out={trained / 'again'}", "--json"))
    assert again == after
    other = json.loads(call("eval", str(trained / "words.yaml"), f"out={trained / 'start'}", "--json"))
    assert other == json.loads((trained / "run" / "eval" / "before.json").read_text())
    assert (trained / "again" / "eval" / "trained.jsonl").exists() and (trained / "again" / "report.html").exists()
    table = call("eval", str(trained / "words.yaml"), "policy=scripted:fixed", "eval_tasks=3")
    assert "rewards: format 1.000, digits 0.000" in table and "easy" in table
    settings = yaml.safe_load((trained / "words.yaml").read_text())
    (trained / "no-out.yaml").write_text(yaml.safe_dump({key: settings[key] for key in settings.keys() - {"out"}}))
    elsewhere = ("eval", str(trained / "no-out.yaml"), f"out={trained / 'start-again'}", "--json")
    assert json.loads(call(*elsewhere)) == other
    config, _, _ = resolve_text_run(str(trained / "run"), {}) or pytest.fail("a text run")
    tasks, policy = TextTaskSource(config).held_out, load_policy(trained / "run")
    assert evaluate_text(policy, tasks, config.rewards, max_new_tokens=4).summary == after


def test_evaluations_are_compared(trained: Path) -> None:
    for name, what in (("one", str(trained / "run")), ("two", str(trained / "words.yaml"))):
        call("eval", what, f"out={trained / name}")
    output = call("compare", str(trained / "one"), str(trained / "two"))
    assert "6 questions of 6 conversations" in output and "easy" in output
    assert "before" in call("compare", str(trained / "run"))


def test_the_page_shows_curves_categories_and_replies(trained: Path) -> None:
    text = write_report(trained / "run").read_text(encoding="utf-8")
    assert "Replies right: " in text and "By category" in text and "Some replies" in text
    assert "Rewards by component" in text and "unlocked levels of the curriculum" in text and "… digits" in text
    assert "How many" in text and "conversation" not in text.lower().replace("configuration", "")
    assert "samples several replies to each of its prompts" in text


def test_text_settings_of_other_configurations_are_none(trained: Path, tmp_path: Path) -> None:
    assert resolve_text_run("locomo", {}) is None and resolve_text_run("demo", {}) is None
    (tmp_path / "config.yaml").write_text((trained / "run" / "config.yaml").read_text())
    with pytest.raises(PolicyError, match="without a checkpoint"):
        resolve_text_run(str(tmp_path), {})


@pytest.mark.parametrize(("best_step", "is_said"), [(0, True), (4, False)])
def test_a_run_that_kept_its_start_says_so(memalpha, monkeypatch, tmp_path, best_step, is_said):
    losses = {"validation_loss": 0.5}
    summary = {"steps": 4, "best_step": best_step, "rows": 8, "before": losses, "after": losses}
    monkeypatch.setattr("memalpha.train", lambda settings: summary)
    monkeypatch.setattr("memalpha.cli.train.write_page", lambda run: run / "report.html")
    code, out, _ = memalpha("train", "sft", f"out={tmp_path / 'run'}")
    assert code == 0 and ("the best weights are those of the start" in out) == is_said
