"""`memalpha judge check`: a judge behind a real server against known labels."""

from __future__ import annotations

import json
import re

from hostile import HostileServer
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import Task

LABELS = """\
{"id": "a", "question": "q?", "gold": ["Rome"], "prediction": "Rome", "label": 1}
{"id": "b", "question": "q?", "gold": ["Rome"], "prediction": "Roma", "label": 1, "benchmark": "locomo"}
{"id": "c", "question": "q?", "gold": ["Rome"], "prediction": "Oslo", "label": 0, "benchmark": "locomo"}
"""


def judge(prompt: str, body) -> str:
    return '{"verdict": "%s"}' % ("correct" if re.search(r"<answer>\nRome", prompt) else "wrong")


def run(*words: str):
    return CliRunner().invoke(app, ["judge", "check", *words])


def test_judge_check_prints_agreement_and_cost(tmp_path):
    (tmp_path / "labels.jsonl").write_text(LABELS)
    with HostileServer(judge) as server:
        price = json.dumps({server.name: [1e6, 0]})
        words = [str(tmp_path / "labels.jsonl"), "--judge", server.name, "--set", f"endpoint.prices={price}"]
        words += ["--set", f"endpoint.cache={tmp_path / 'a.sqlite'}"]
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert re.search(r"^all +3 +0 +0\.667 +0\.400 +-0\.333$", result.output, re.M)
        assert re.search(r"^locomo +2 +0 +0\.500 +0\.000 +-0\.500$", result.output, re.M)
        assert "disagreed on: b\n" in result.output and "3 answers paid, 0 from the cache" in result.output
        second = json.loads(run(*words, "--json").output)
        assert second["accuracy"] == 2 / 3 and second["disagreed"][0]["votes"][0]["verdicts"] == ["wrong"]
        shipped = json.loads(run("--judge", server.name, "--json").output)
        bill = shipped["statistics"][server.name]
        assert shipped["items"] > 40 and bill["paid"] == bill["asked"]


def test_judges_and_teachers_are_said_to_refuse(tmp_path, memalpha):
    (tmp_path / "labels.jsonl").write_text(LABELS)
    question = {"id": "q", "question": "Where?", "answers": ["Rome"]}
    chunks = ({"index": 0, "text": "I live in Rome."},)
    save_jsonl([Task(id="a", chunks=chunks, questions=(question,))], tmp_path / "asked.jsonl")
    save_jsonl([Task(id="a", chunks=chunks)], tmp_path / "tasks.jsonl")
    with HostileServer(lambda prompt, body: {"role": "assistant", "content": None, "refusal": "I can't."}) as server:
        results = [
            memalpha("judge", "check", tmp_path / "labels.jsonl", "--judge", server.name)[1],
            *(
                memalpha("data", verb, tmp_path / name, "--policy", server.name, "--out", tmp_path / f"{verb}.jsonl")[1]
                for verb, name in (("ask", "tasks.jsonl"), ("write", "asked.jsonl"))
            ),
        ]
    assert all(" refused (`message.refusal`)" in output for output in results), results


def test_invalid_arguments_are_refused(tmp_path):
    assert run().exit_code == 2
    assert "names no model" in str(run("--judge", "http://127.0.0.1:1/v1").exception)
    assert "cannot be reached" in str(run("--judge", "http://127.0.0.1:1/v1#m").exception)
    assert "unknown key 'x'" in str(run("--judge", "scripted:fixed", "--set", "x=1").exception)
    assert "cannot be read" in str(run(str(tmp_path / "none"), "--judge", "scripted:fixed").exception)
