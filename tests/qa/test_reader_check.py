"""An evaluation whose reader only thinks, or never ends, stops with the keys that mend it; all others are unchanged."""

import pytest

from memalpha.agent.reader import ExtractiveReader, PolicyReader, RetrievedMemory
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.errors import EvaluationError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.reader import AnswerCounts, CheckedReader, check_reader_answers, find_reader_fault
from memalpha.qa.report import warnings_of
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
    told = rf"stopped after the first 32 answers: reader policy:some/model: {reason}"
    with pytest.raises(EvaluationError, match=told) as stop:
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
    assert f"1 of {len(half.records)} answers were cut at reader.max_new_tokens" in warnings_of([half])[-1]
    blank = evaluate(writer, conversations, reader(MUTE, ANSWERS), config=CONFIG)
    assert f"1 of {len(blank.records)} answers are empty and count as wrong" in warnings_of([blank])[-1]


def test_a_writer_that_wrote_nothing_and_a_file_without_answers_are_named():
    report = evaluate(ScriptedPolicy("fixed", text="Hello!"), tasks(WorldConfig(), 3, 0, 2), config=CONFIG)
    assert any("its memory is empty in all conversations" in line for line in warnings_of([report]))
    unanswered = [
        task.model_copy(update={"questions": tuple(q.model_copy(update={"answers": ()}) for q in task.questions)})
        for task in tasks(WorldConfig(), 3, 0, 1)
    ]
    report = evaluate(ScriptedPolicy("add-all"), unanswered, config=CONFIG)
    assert any("abstaining is right everywhere" in line for line in warnings_of([report]))
