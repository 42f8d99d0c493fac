"""A text run whose reward comes from a judge behind a real server that fails: nothing is lost, nothing paid twice."""

from __future__ import annotations

import hashlib
import json

import pytest
from hostile import HostileServer

from memalpha.config import TextConfig, build_config
from memalpha.errors import PolicyError
from memalpha.train.api import train
from memalpha.types import TextTask

TASKS = [TextTask(id=f"t{number}", prompt=f"{number}?", columns={"answer": str(number)}) for number in range(20)]


def by_hash(prompt, body):
    """A grade from what is asked, the same in every run."""
    return json.dumps({"verdict": 1 + hashlib.sha256(prompt.encode()).digest()[0] % 10})


def test_an_outage_ends_the_run_and_the_same_command_goes_on(policy_path, tmp_path, monkeypatch):
    monkeypatch.setattr("memalpha.policy.endpoints.client.backoff", lambda *_: 0.0)

    def run(server, name):
        judge = {"judges": [server.name], "endpoint": {"retries": 1, "concurrency": 1}}
        settings = {
            "out": str(tmp_path / name),
            "policy": str(policy_path),
            "rewards": [{"kind": "judge", "judge": judge, "template": "Grade {completion} by {answer}."}],
            "max_new_tokens": 3,
            "stop_unreadable": False,
            "group_size": 2,
            "tasks_per_step": 2,
            "schedule_steps": 3,
            "warmup_steps": 1,
            "eval_tasks": 2,
            "validation_tasks": 2,
            "save_every": 1,
            "validate_every": 1,
            "learning_rate": 1e-2,
        }
        return train(build_config(TextConfig, settings, "test"), tasks=TASKS)

    def metrics(name):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if "second" not in key} for line in lines]

    with HostileServer(by_hash) as server:
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
        with pytest.raises(PolicyError, match=r"reward 'judge': .* gave no answer in 2 tries.*kept in .*answers"):
            run(server, "cut")
        paid = len(server.answered)
        server.fault = lambda prompt, nth: None
        run(server, "cut")
        assert dict(server.answered) == whole and 0 < paid < len(whole), "what was answered was not asked again"
    assert metrics("cut") == metrics("bumpy") == metrics("whole")
    weights = {(tmp_path / name / "checkpoints/step-3/model.safetensors").read_bytes() for name in ("whole", "cut")}
    assert len(weights) == 1
