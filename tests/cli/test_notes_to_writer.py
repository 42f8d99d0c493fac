"""From an exported chat to a trained writer and its page, as README has it, with a stand-in for the teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meeting_teacher import reply
from runs import lines
from standin import StandIn

pytest.importorskip("torch")
NOTES = Path(__file__).parents[2] / "examples" / "data" / "meetings.json"


def test_notes_without_questions_train_a_writer(tmp_path, memalpha, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with StandIn(reply) as server:
        teacher = f"{server.url}#m"

        def run(*words: object) -> str:
            code, out, err = memalpha(*words)
            assert code == 0, err
            return out

        assert "no question: memalpha data ask" in run("data", "check", NOTES)
        asked = run("data", "ask", NOTES, "--policy", teacher, "--out", "train.jsonl", "--held-out", "held-out.jsonl")
        assert "90 questions about 20 of 20 conversations" in asked
        assert (len(lines(Path("train.jsonl"))), len(lines(Path("held-out.jsonl")))) == (16, 4)
        run("data", "write", "train.jsonl", "--policy", teacher, "--student", "tiny", "--out", "rows.jsonl")
        assert all(line["scores"] == [1.0] for line in lines(Path("rows.scores.jsonl")))

        data = ("data=train.jsonl", "eval_data=held-out.jsonl", "reader.kind=policy", f"reader.policy={teacher}")
        small = ("max_steps=1", "validation_tasks=1", "evaluation.tasks=2")
        run("train", "sft", *data, "source=rows.jsonl", *small, "evaluation.evaluate=false", "out=runs/sft")
        group = ("tasks_per_step=1", "group_size=2", "reward.credit=calls")
        run("train", "demo", "init_from=runs/sft", *data, *small, *group, "out=runs/grpo")
        run("report", "runs/grpo")
        assert "Dock Street" in Path("runs/grpo/report.html").read_text()
        systems = "systems=[trained,append-only]"
        table = json.loads(run("eval", "runs/grpo", "data=held-out.jsonl", systems, "out=runs/beside", "--json"))
    assert [row["system"] for row in table] == ["runs/grpo/checkpoints/best", "append-only"]
