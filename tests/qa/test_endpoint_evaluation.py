"""An evaluation whose writer, reader and judge are behind one server that goes away half-way."""

import json
import re

import pytest
from hostile import HostileServer

from memalpha.config import EvalConfig, WorldConfig, build_config
from memalpha.errors import PolicyError
from memalpha.qa.from_config import run_evaluation
from memalpha.qa.report import format_bills
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic


def model(prompt: str, body):
    """Reply as a writer (note every line), a reader (return the first note) or a judge (check containment)."""
    if '"verdict"' in prompt:
        if "q0" in prompt or "No verdict" in prompt:
            return "I cannot say."
        gold = re.search(r"<accepted answer>\n(.*?)\n</accepted answer>", prompt, re.S)
        answer = re.search(r"<answer>\n(.*?)\n</answer>", prompt, re.S)
        right = answer and answer[1] == "unknown" if gold is None else answer and gold[1].split("\n")[0] in answer[1]
        return json.dumps({"reason": "r", "verdict": "correct" if right else "wrong"})
    if "tools" in body:
        reply_text = re.findall(r"^user: (.+)$", prompt.partition("New part of the conversation")[2], re.M)
        entries = [json.dumps({"category": "semantic", "content": line}) for line in reply_text]
        functions = [{"name": "memory_insert", "arguments": entry} for entry in entries]
        calls = [{"id": str(n), "type": "function", "function": call} for n, call in enumerate(functions)]
        return {"content": None, "tool_calls": calls}
    notes = re.search(r"^- (.+)$", prompt, re.M)
    return notes[1] if notes else "unknown"


def test_writer_reader_and_judge_behind_a_server_that_goes_away(tmp_path, monkeypatch):
    monkeypatch.setattr("memalpha.policy.server.backoff", lambda *_: 0.0)
    tasks = synthetic.tasks(WorldConfig(split="test"), -1, 0, 2)
    strange = tasks[0].questions[0].model_copy(update={"question": "q0: which?"})
    tasks[0] = tasks[0].model_copy(update={"questions": (strange, *tasks[0].questions[1:])})
    save_jsonl(tasks, tmp_path / "tasks.jsonl")
    with HostileServer(model) as server:
        settings = {
            "data": str(tmp_path / "tasks.jsonl"),
            "systems": ["append-only", server.name],
            "metric": "judge",
            "reader": {"kind": "policy", "policy": server.name},
            "judge": {"judges": [server.name], "endpoint": {"retries": 1, "concurrency": 1}},
            "endpoint": {"retries": 1, "concurrency": 1},
        }

        def run(out):
            return run_evaluation(build_config(EvalConfig, {**settings, "out": str(tmp_path / out)}, "test"))

        full = run("whole")
        requested = dict(server.answered)
        server.answered.clear()
        server.fault = lambda prompt, nth: "503" if sum(server.answered.values()) >= 40 else None
        with pytest.raises(PolicyError, match="gave no answer in 2 tries"):
            run("again")
        assert sum(server.answered.values()) == 40 < sum(requested.values())
        server.fault = lambda prompt, nth: None
        again = run("again")
        assert dict(server.answered) == requested, "what was paid before the outage is not paid again"
    for entry, two in zip(full, again, strict=True):
        assert entry.records == two.records and len(entry.unjudged) == 1
        questions = sum(len(task.questions) for task in tasks)
        assert len(entry.records) == questions - 1, "an answer without a verdict is no wrong answer"
        assert entry.summary["unjudged"] == 1 and 0 < entry.summary["accuracy"] < 1
        assert {record.score for record in entry.records} == {0.0, 1.0}
        assert all(record.scores["judge"] == record.score for record in entry.records)
    rag, writer = full
    assert set(rag.summary["bills"]) == {f"reader {server.name}", f"judge {server.name}"}
    assert writer.summary["bills"][f"writer {server.name}"]["paid"] == sum(len(task.chunks) for task in tasks)
    assert all(entry.summary["ceiling_bills"][f"reader {server.name}"]["asked"] for entry in full), "paid once for all"
    assert all(entry.summary["bills"][f"judge {server.name}"]["unreadable"] == 1 for entry in full)
    paid = rag.summary["ceiling_bills"], rag.summary["bills"], writer.summary["bills"]
    read = sum(bills.get(f"reader {server.name}", {}).get("paid", 0) for bills in paid)
    assert f"reader {server.name}: {read:,} answers paid" in "\n".join(format_bills(full))
    assert "what an interrupted start paid is not counted" in format_bills(again)[0]
    bills = [bill for entry in again for name, bill in entry.summary["bills"].items() if name.startswith("reader")]
    assert bills[0]["cached"] > bills[0]["paid"] and bills[1]["paid"] > 0, "the first one's came before the outage"
    assert sum(len(turn.operations) for group in writer.groups for turn in group.trajectories[0].turns) > 10
    assert list((tmp_path / "again").rglob("*.unjudged.json")) and (tmp_path / "again" / "answers.sqlite").is_file()


def test_a_refusing_reader_is_said_to_refuse_and_estimated_tokens_to_be_so(tmp_path):
    save_jsonl(synthetic.tasks(WorldConfig(split="test"), -1, 0, 1), tmp_path / "tasks.jsonl")
    with HostileServer(lambda prompt, body: {"role": "assistant", "content": None, "refusal": "I can't."}) as server:
        settings = {"data": str(tmp_path / "tasks.jsonl"), "reader": {"kind": "policy", "policy": server.name}}
        settings |= {"systems": ["append-only"]}
        reports = run_evaluation(build_config(EvalConfig, settings, "test"))
        requests = sum(server.answered.values())
    assert (
        f" tokens, of {requests} answers estimated, {requests} refused (`message.refusal`)" in format_bills(reports)[0]
    )


@pytest.mark.parametrize("setting", ["reader.policy", "systems"])
def test_an_unreachable_endpoint_is_named_with_its_setting(setting):
    name = "http://127.0.0.1:1/v1#m"
    settings = {"benchmark": "synthetic", "limit": 1, "systems": [name if setting == "systems" else "append-only"]}
    settings |= {"reader": {"kind": "policy", "policy": name} if setting == "reader.policy" else {"kind": "copy"}}
    with pytest.raises(PolicyError, match=f"^{setting}: {name}: the server cannot be reached"):
        run_evaluation(build_config(EvalConfig, settings, "test"))
