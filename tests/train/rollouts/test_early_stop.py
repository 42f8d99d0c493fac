"""Runs that cannot teach anything stop within two steps, say why, and can be told that it is meant so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fake_policy import FakePolicy
from run_kinds import python_inputs, small_config
from runs import lines
from tiny import rewriting

from memalpha.config import TextConfig
from memalpha.errors import TrainingError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.api import train
from memalpha.train.trainers import evaluations
from memalpha.types import Completion

CHECKED = {"stop_unreadable": True}
SKIP = '<tool_call>{"name": "memory_skip", "arguments": {}}</tool_call>'
INSERT = '<tool_call>{"name": "memory_insert", "arguments": {"category": "semantic", "content": "%s"}}</tool_call>'


def scripted(text: str, stop_reason: str = "eos") -> FakePolicy:
    """A reader's policy that gives one reply to every prompt."""
    return FakePolicy(lambda _: Completion(text, stop_reason=stop_reason), "scripted-reader")


def written(monkeypatch, text, stop_reason="eos"):
    """Let every sampled completion read as `text`; its ids stay."""

    def change(completion):
        return replace(completion, text=text, stop_reason=stop_reason)

    monkeypatch.setattr(TransformersPolicy, "open_queue", rewriting(TransformersPolicy.open_queue, change))


def assert_stopped(config, message, error=TrainingError):
    """Train, expect the error, and check that the run directory holds the first step alone and says what happened."""
    with pytest.raises(error, match=message) as stop:
        train(config)
    assert json.loads((config.out / "stopped.json").read_text()) == {"step": 1, "reason": str(stop.value)}
    assert [line["step"] for line in lines(config.out / "metrics.jsonl")] == [0]
    assert {line["step"] for line in lines(config.out / "trajectories.jsonl")} == {0}
    assert not (config.out / "summary.json").exists()
    return str(stop.value)


def test_a_writer_that_nobody_can_read_stops(small, monkeypatch):
    written(monkeypatch, "I would remember that Ana moved.")
    reason = assert_stopped(small(**CHECKED), r"stopped after steps 0 and 1: none of the writer's \d+ replies holds")
    for hint in (
        "memalpha check-policy",
        "agent.thinking_tokens",
        "sampling.stop_unreadable=false",
        "I would remember",
    ):
        assert hint in reason


def test_replies_that_are_all_cut_off_stop(small, monkeypatch):
    written(monkeypatch, SKIP, "length")
    reason = assert_stopped(small(**CHECKED), r"\d+ of \d+ replies were cut at agent\.max_new_tokens=12")
    assert "smaller chunks" in reason and "agent.thinking_tokens=0" in reason


def test_a_resumed_run_is_checked_again(small, monkeypatch):
    config = small(**CHECKED, save_every=1, max_steps=2)
    with monkeypatch.context() as patch:
        written(patch, SKIP)
        train(config)  # a writer that skips everything goes on
    assert not (config.out / "stopped.json").exists()
    written(monkeypatch, "nothing that can be read")
    resumed = small(**CHECKED, save_every=1, max_steps=4)
    with pytest.raises(TrainingError, match="stopped after steps 2 and 3"):
        train(resumed)
    assert [line["step"] for line in lines(config.out / "metrics.jsonl")] == [0, 1, 2]
    assert train(small(save_every=1, max_steps=4))["steps"] == 4  # the key may change on resume
    assert not (config.out / "stopped.json").exists()


def test_a_training_reader_that_cannot_answer_stops(small, monkeypatch):
    """The evaluations' reader answers well; the reward's own one never ends."""
    written(monkeypatch, INSERT % "city: Oslo")
    monkeypatch.setattr(evaluations, "load_policy", lambda *args, **options: scripted("Ana lives in", "length"))
    reader = {"kind": "policy", "policy": "http://reader", "prompt": "full"}
    message = r"\d+ of \d+ answers were cut at reward\.reader\.max_new_tokens=32"
    assert_stopped(small(**CHECKED, reward={"reader": reader}), message)


def test_text_replies_that_are_all_cut_off_stop(policy_path, tmp_path, monkeypatch):
    config = small_config(TextConfig, policy_path, tmp_path, **CHECKED)
    written(monkeypatch, "1, 2, 3, 4", "length")
    with pytest.raises(TrainingError, match=r"replies were cut at sampling\.max_new_tokens=3"):
        train(config, **python_inputs(config))
    written(monkeypatch, "1", "eos")
    config = small_config(TextConfig, policy_path, tmp_path, **CHECKED, max_steps=2, out=str(tmp_path / "other"))
    assert train(config, **python_inputs(config))["steps"] == 2
