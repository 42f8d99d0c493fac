"""Training whose reward comes from a judge behind a real server: a step is one batch, an outage loses nothing."""

from __future__ import annotations

import json

import pytest
from hostile import HostileServer, whimsical

from memalpha.errors import PolicyError
from memalpha.train.api import train

JUDGED = {"metric": "judge", "content": "judge"}


def lines(run) -> list[dict]:
    results = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if "second" not in key and "minutes" not in key} for line in results
    ]


def test_an_outage_ends_the_run_and_the_same_command_goes_on(small, tmp_path, monkeypatch):
    monkeypatch.setattr("memalpha.policy.endpoints.client.backoff", lambda *_: 0.0)
    changes = {"schedule_steps": 2, "save_every": 1, "validate_every": 1, "group_size": 2}
    with HostileServer(whimsical) as server:
        judge = {"judges": [server.name], "endpoint": {"retries": 1, "concurrency": 1}}
        settings = {**changes, "reward": {**JUDGED, "judge": judge}}
        train(small(**settings, out=str(tmp_path / "whole")))
        whole = dict(server.answered)
        assert set(whole.values()) == {1}, "equal prompts of all steps and evaluations are paid once"
        server.answered.clear()
        server.fault = lambda prompt, nth: "503" if sum(server.answered.values()) >= len(whole) // 2 else None
        with pytest.raises(PolicyError, match=r"gave no answer in 2 tries.*kept in .*answers\.sqlite"):
            train(small(**settings, out=str(tmp_path / "run")))
        paid = sum(server.answered.values())
        assert paid == len(whole) // 2
        server.fault = lambda prompt, nth: None
        train(small(**settings, out=str(tmp_path / "run")))
        assert dict(server.answered) == whole, "what was answered before the outage was not asked again"
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    weights = [(tmp_path / name / "checkpoints/step-2/model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]
    summary = json.loads((tmp_path / "run" / "eval" / "after.json").read_text())
    assert summary["metric"] == "judge" and 0 < summary["accuracy"] < 1
