"""Runs whose reward comes from a judge behind a real server that fails: nothing is lost, nothing paid twice."""

from __future__ import annotations

import hashlib
import json

import pytest
from hostile import HostileServer, whimsical
from run_kinds import small_config, text_tasks
from runs import lines

from memalpha.config import TextConfig, TrainConfig
from memalpha.errors import PolicyError
from memalpha.train.api import train

SHAPE = {"group_size": 2, "tasks_per_step": 1, "schedule_steps": 2, "save_every": 1, "validate_every": 1}
SHAPE |= {"eval_tasks": 2, "validation_tasks": 2}


def by_hash(prompt, body):
    """A grade from what is asked, the same in every run."""
    return json.dumps({"verdict": 1 + hashlib.sha256(prompt.encode()).digest()[0] % 10})


@pytest.mark.parametrize(
    ("kind", "reply", "part"),
    [(TextConfig, by_hash, "reward 'judge': .*"), (TrainConfig, whimsical, "")],
    ids=["text", "memory"],
)
def test_an_outage_ends_the_run_and_the_same_command_goes_on(kind, reply, part, policy_path, tmp_path, monkeypatch):
    monkeypatch.setattr("memalpha.policy.server.backoff", lambda *_: 0.0)

    def run(server, name):
        judge = {"judges": [server.name], "endpoint": {"retries": 1, "concurrency": 1}}
        reward = {"reward": {"metric": "judge", "content": "judge", "judge": judge}}
        if kind is TextConfig:
            reward = {"rewards": [{"kind": "judge", "judge": judge, "template": "Grade {completion} by {answer}."}]}
        config = small_config(kind, policy_path, tmp_path, **SHAPE, **reward, out=str(tmp_path / name))
        return train(config, **({"tasks": text_tasks(20)} if kind is TextConfig else {}))

    def metrics(name):
        return [
            {key: value for key, value in line.items() if "second" not in key}
            for line in lines(tmp_path / name / "metrics.jsonl")
        ]

    with HostileServer(reply) as server:
        run(server, "whole")
        whole = dict(server.answered)
        assert set(whole.values()) == {1}, "equal questions of all steps and evaluations are paid once"
        assert (tmp_path / "whole" / "answers.sqlite").is_file()
        server.answered.clear()
        server.seen.clear()
        server.fault = lambda prompt, nth: ("429", "500", "gone", "half")[len(prompt) % 4] if nth == 1 else None
        run(server, "bumpy")
        assert dict(server.answered) == whole
        server.answered.clear()
        server.fault = lambda prompt, nth: "503" if len(server.answered) >= len(whole) // 2 else None
        with pytest.raises(PolicyError, match=rf"{part}gave no answer in 2 tries.*kept in .*answers\.sqlite"):
            run(server, "cut")
        paid = len(server.answered)
        server.fault = lambda prompt, nth: None
        run(server, "cut")
        assert dict(server.answered) == whole and 0 < paid < len(whole), "what was answered was not asked again"
    assert metrics("cut") == metrics("bumpy") == metrics("whole")
    weights = {(tmp_path / name / "checkpoints/step-2/model.safetensors").read_bytes() for name in ("whole", "cut")}
    assert len(weights) == 1
    after = json.loads((tmp_path / "cut" / "eval" / "after.json").read_text())
    assert after["accuracy"] < 1 and (kind is TextConfig or after["accuracy"] > 0)
