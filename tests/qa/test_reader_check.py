"""An evaluation whose reader only thinks, or never ends, stops with the keys that mend it; all others are unchanged."""

from __future__ import annotations

import json

import pytest
from hostile import HostileServer

from memalpha.agent.reader import ExtractiveReader, PolicyReader, RetrievedMemory
from memalpha.config import AgentConfig, EvalConfig, ReaderConfig, WorldConfig, build_config
from memalpha.errors import EvaluationError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.from_config import run_evaluation
from memalpha.qa.reader import AnswerCounts, CheckedReader, check_reader_answers, find_reader_fault
from memalpha.qa.report import Report
from memalpha.tasks.synthetic.worlds import tasks
from memalpha.types import Completion, Hit, MemoryEntry

CONFIG = AgentConfig(prompt="compact", embedder="hash")
HIT = (Hit(MemoryEntry(id="1", category="semantic", content="city: Oslo"), 1.0),)
ITEMS = [(f"Question {n}?", RetrievedMemory(HIT if n % 3 else ())) for n in range(120)]


class Model:
    """A reader's model: gives `replies` one after the other, the last one for ever."""

    name, prompt = "some/model", "full"

    def __init__(self, *replies):
        self.replies, self.batches = [Completion(text, stop_reason=stop) for text, stop in replies], []

    def sample(self, requests):
        first = sum(self.batches)
        self.batches.append(len(requests))
        return [self.replies[min(first + n, len(self.replies) - 1)] for n in range(len(requests))]

    def count_tokens(self, text):
        return len(text.split())


def reader(*replies) -> PolicyReader:
    return PolicyReader(Model(*replies), ReaderConfig(kind="policy"))


THINKS, CUT, MUTE, ANSWERS = ("<think> Let me see", "length"), ("Ana lives in", "length"), (" ", "eos"), ("Oslo", "eos")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (THINKS, r"all 32 answers are empty \(reader\.max_new_tokens=32\)"),
        (MUTE, r"all 32 answers are empty"),
        (CUT, r"32 of 32 answers were cut at reader\.max_new_tokens=32"),
    ],
)
def test_the_first_answers_stop_an_evaluation(reply, reason):
    checked = CheckedReader(reader(reply))
    with pytest.raises(
        EvaluationError, match=rf"stopped after the first 32 answers: reader policy:some/model: {reason}"
    ) as stop:
        checked.answer(ITEMS)
    assert checked.policy.batches == [32], "nothing else was read"
    for key in ("reader.thinking_tokens", "reader.chat_template_kwargs={enable_thinking: false}", "check_reader=False"):
        assert key in str(stop.value)


def test_few_answers_and_questions_without_notes_say_nothing():
    checked = CheckedReader(reader(THINKS))
    assert len(checked.answer([("Where?", RetrievedMemory(()))] * 50)) == 50
    assert len(checked.answer(ITEMS[1:9])) == 8, "six of them have notes"
    with pytest.raises(EvaluationError, match="first 8 answers"):
        checked.answer(ITEMS[1:4])
    assert checked.answer([]) == []


def test_the_rule_at_its_edges():
    model = reader(ANSWERS)
    assert find_reader_fault(AnswerCounts(), model) is None
    assert find_reader_fault(AnswerCounts(10, 9, 9), model) is None
    assert "10 of 10 answers were cut" in find_reader_fault(AnswerCounts(10, 9, 10), model).reason
    fault = find_reader_fault(AnswerCounts(10, 10, 0), model, "reward.reader")
    assert "reward.reader.max_new_tokens=32" in fault.reason and "reward.reader.thinking_tokens" in fault.remedy


def test_evaluate_raises_and_can_be_told_to_go_on():
    writer, conversations = ScriptedPolicy("oracle"), tasks(WorldConfig(), 3, 0, 3)
    with pytest.raises(EvaluationError, match=r"all \d+ answers are empty"):
        evaluate(writer, conversations, reader(THINKS), config=CONFIG)
    report = evaluate(writer, conversations, reader(THINKS), config=CONFIG, check_reader=False)
    assert report.summary["reader_truncated"] == 1.0 and report.summary["accuracy"] == 0.0
    with pytest.raises(EvaluationError, match=r"no memory can earn a reward.*sampling\.stop_unreadable=false"):
        check_reader_answers(reader(THINKS), report.records)
    floor = evaluate(writer, conversations, config=CONFIG)
    assert "reader_truncated" not in floor.summary, "a rule is never cut"
    check_reader_answers(ExtractiveReader(), floor.records)
    with pytest.raises(EvaluationError, match=r"reader extractive.*are empty.*reader\.kind"):
        check_reader_answers(ExtractiveReader(), report.records)
    half = evaluate(writer, conversations, reader(CUT, ANSWERS), config=CONFIG)
    assert half.summary["reader_truncated"] == 1 / len(half.records)


def thinks_first(prompt, body):
    """Think for 40 tokens, then answer, as a server does that hides thoughts."""
    room = body["max_tokens"]
    if room > 40 or body.get("chat_template_kwargs", {}).get("enable_thinking") is False:
        return "I remember nothing about that"
    return {"role": "assistant", "content": None, "reasoning_content": "Let me see", "finish_reason": "length"}


def run(server, tmp_path, **reader_settings) -> list[Report]:
    settings = {
        "benchmark": "synthetic",
        "limit": 2,
        "systems": ["append-only", "rag"],
        "agent": {"embedder": "hash"},
        "reader": {"kind": "policy", "policy": server.name, **reader_settings},
        "sampling": {"stop_unreadable": not reader_settings.pop("goes_on", False)},
        "out": str(tmp_path / "run"),
    }
    settings["reader"].pop("goes_on", None)
    return run_evaluation(build_config(EvalConfig, settings, "test"))


def test_a_thinking_model_behind_an_endpoint(tmp_path, capsys):
    with HostileServer(thinks_first) as server:
        with pytest.raises(EvaluationError, match=r"all \d+ answers are empty.*enable_thinking"):
            run(server, tmp_path)
        assert len(server.bodies) <= 32
        for mended in ({"thinking_tokens": 64}, {"chat_template_kwargs": {"enable_thinking": False}}):
            assert [report.summary["reader_truncated"] for report in run(server, tmp_path, **mended)] == [0.0, 0.0]
        reports = run(server, tmp_path, goes_on=True)
    assert [report.summary["reader_truncated"] for report in reports] == [1.0, 1.0]
    saved = json.loads((tmp_path / "run" / "eval" / "summary.json").read_text())
    assert saved["systems"]["rag"]["reader_truncated"] == 1.0
    table = (tmp_path / "run" / "eval" / "systems.md").read_text()
    count = len(reports[0].records)
    assert "reader_truncated" in table and f"rag: {count} of {count} answers were cut at reader.max_new_tokens" in table
