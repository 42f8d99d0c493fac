"""Readers that search by themselves, and readers of the whole memory: scripted, tiny, and behind an endpoint."""

from __future__ import annotations

import json
import re

import pytest
from fake_policy import FakePolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from memories import working_memory
from standin import StandIn
from talk import TASK
from tiny import tiny_policy

from memalpha.agent.reader import CALL_TOKENS, PolicyReader
from memalpha.config import EvalConfig, ReaderConfig, build_config
from memalpha.errors import ConfigError
from memalpha.policy.chat.text import format_call
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.from_config import run_evaluation
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Record, Report
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import SampleRequest

CONTENTS = ("city: Oslo", "pet: cat", "job: baker", "car: red", "sister: Mara", "tea: green")


def searching(*replies: str, k: int = 1, **options) -> tuple[PolicyReader, FakePolicy]:
    """Return an agentic reader whose policy gives these replies in turn."""
    remaining = iter(replies)
    policy = FakePolicy(lambda request: next(remaining))
    return PolicyReader(policy, ReaderConfig(kind="agentic", k=k, **options)), policy


def call(query: object) -> str:
    return format_call("search_memory", {"query": query})


def prompt_of(request: SampleRequest) -> str:
    return "\n".join(message["content"] for message in request.messages)


def test_it_searches_until_it_knows_and_the_answer_says_how():
    reader, policy = searching(call("pet"), call("sister"), "Mara")
    (answer,) = reader.answer([("Which city?", working_memory(*CONTENTS))])
    assert answer.text == "Mara" and reader.name == "agentic:fake"
    assert [search.query for search in answer.searches] == ["pet", "sister"]
    assert [hit.entry.content for hit in answer.hits] == ["city: Oslo", "pet: cat", "sister: Mara"]
    assert [search.retrieved for search in answer.searches] == [(hit.entry.id,) for hit in answer.hits[1:]]
    first, second, third = map(prompt_of, policy.requests)
    assert "4 of 4 calls" in first and "pet: cat" not in first
    assert "3 of 4 calls" in second and "so far: the question; pet\n" in second and "- pet: cat (2024-05-02)" in second
    assert "the question; pet; sister\n" in third and answer.prompt is not None and "sister: Mara" in answer.prompt
    assert all(request.max_new_tokens == 32 + CALL_TOKENS and len(request.tools) == 1 for request in policy.requests)


@pytest.mark.parametrize(
    ("replies", "queries"),
    [
        (["<tool_call>\n{broken", "Oslo"], []),
        ([format_call("memory_insert", {"content": "x"}), "Oslo"], []),
        ([call("  "), "Oslo"], []),
        ([call(["pet"]), "Oslo"], []),
        ([call("what to look for, in a few words"), "Oslo"], []),
        ([call("which CITY?"), "Oslo"], []),  # the question itself was searched for already
        ([call("pet"), call("Pet"), "Oslo"], ["pet"]),
        ([call("pet") + call("pet"), "Oslo"], ["pet"]),
        ([call("pet") + call("job") + call("car"), "Oslo"], ["pet", "job"]),
        ([call("pet"), call("job"), "Oslo"], ["pet", "job"]),
    ],
)
def test_calls_that_lead_nowhere_end_in_an_answer_without_the_tool(replies, queries):
    reader, policy = searching(*replies, searches=2)
    (answer,) = reader.answer([("Which city?", working_memory(*CONTENTS))])
    assert answer.text == "Oslo" and [search.query for search in answer.searches] == queries
    assert not policy.requests[-1].tools and policy.requests[-1].max_new_tokens == 32
    assert "search_memory" not in prompt_of(policy.requests[-1])
    assert len(policy.requests) == len(replies)


REPLIES = st.lists(
    st.one_of(st.sampled_from(["pet", "job", "car", "Pet", "", "city"]).map(call), st.text(max_size=20)), max_size=3
).map("".join)


@given(st.lists(REPLIES, min_size=12, max_size=12), st.integers(1, 3), st.integers(1, 4))
def test_there_are_never_more_searches_than_allowed_and_always_an_answer(replies, searches, questions):
    policy = FakePolicy(lambda request: replies[len(policy.requests) % len(replies)])
    reader = PolicyReader(policy, ReaderConfig(kind="agentic", k=2, searches=searches))
    answers = reader.answer([(f"Question {number}?", working_memory(*CONTENTS)) for number in range(questions)])
    assert len(answers) == questions and len(policy.requests) <= questions * (searches + 1)
    assert len(policy.batches) <= searches + 1, "open questions are asked together"
    for answer in answers:
        queries = [search.query.casefold() for search in answer.searches]
        assert len(queries) <= searches and len({*queries}) == len(queries)
        found = {id for search in answer.searches for id in search.retrieved}
        assert found <= {hit.entry.id for hit in answer.hits}
        assert len({hit.entry.id for hit in answer.hits}) == len(answer.hits)


@settings(max_examples=5)
@given(st.text(max_size=30))
def test_a_model_that_never_learnt_to_search_answers_all_the_same(question):
    reader = load_reader(ReaderConfig(kind="agentic", prompt="full", max_new_tokens=4, searches=2), tiny_policy())
    answers = reader.answer([(question, working_memory(*CONTENTS)), ("Which city?", working_memory(*CONTENTS))])
    assert len(answers) == 2 and all(len(answer.searches) <= 2 and answer.hits for answer in answers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kind": "agentic"}, r"reader\.kind.* makes no searches"), ({"kind": "policy", "cite": True}, r"reader\.cite")],
)
def test_a_policy_of_one_bare_message_makes_no_searches_and_cites_nothing(settings, message):
    with pytest.raises(ConfigError, match=message):
        PolicyReader(FakePolicy(lambda _: ""), ReaderConfig(prompt="compact", **settings))


@given(st.integers(1, 60))
def test_the_whole_memory_is_shown_as_far_as_it_fits(tokens):
    policy = FakePolicy(lambda _: "Oslo")
    reader = PolicyReader(policy, ReaderConfig(kind="full-memory", prompt="compact", k=1, context_tokens=tokens))
    (answer,) = reader.answer([("Which city?", working_memory(*CONTENTS))])
    shown = [hit.entry.content for hit in answer.hits]
    assert answer.left_out == len(CONTENTS) - len(shown) and shown == list(CONTENTS[answer.left_out :])
    assert prompt_of(policy.requests[0]).splitlines()[1:-1] == [
        f"{content} (2024-05-0{number})" for number, content in enumerate(CONTENTS, 1) if content in shown
    ]
    assert len(shown) == min(tokens // 4, len(CONTENTS)), "four words a line, with its mark"


def model(body) -> str | dict[str, object]:
    """Search for the question's second word once, then copy the last note."""
    prompt = "\n".join(message["content"] for message in body["messages"])
    if "so far: the question\n" in prompt:
        function = {"name": "search_memory", "arguments": json.dumps({"query": "Lima Oslo Rex"})}
        return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    return ["unknown", *re.findall(r"^- (.+)$", prompt, re.M)][-1]


def evaluate_by(kind: str, tmp_path, **reader) -> list[Report]:
    save_jsonl([TASK], tmp_path / "tasks.jsonl")
    with StandIn(model) as server:
        fields = {
            "data": str(tmp_path / "tasks.jsonl"),
            "systems": ["empty", "rag", "scripted:add-all"],
            "agent": {"embedder": "hash"},
            "reader": {"kind": kind, "policy": f"{server.url}#m", "k": 1, **reader},
            "metric": "contains",
            "out": str(tmp_path / kind),
        }
        return run_evaluation(build_config(EvalConfig, fields, "test"))


def test_systems_are_searched_as_they_were_when_a_question_was_asked(tmp_path):
    empty, rag, writer = evaluate_by("agentic", tmp_path)
    for report in (rag, writer):
        early, late, *_ = report.records
        assert [search["query"] for search in early.searches] == ["Lima Oslo Rex"]
        assert {*early.searches[0]["retrieved"]} <= {*early.retrieved}
        assert early.answer != late.answer and "Lima" not in early.answer, "what is still to come is not found"
        assert report.summary["searches"] == 1.0 and report.summary["reader"].startswith("agentic:http")
        [bill] = report.summary["bills"].values()
        assert bill["asked"] == 2 * len(report.records), "each search and each answer is counted"
    assert all(record.retrieved == () for record in empty.records)
    loaded = Report.load(tmp_path / "agentic", "rag")
    assert loaded.records == rag.records and "| searches |" in (tmp_path / "agentic/eval/systems.md").read_text()
    assert Record.from_json(rag.records[0].as_json()) == rag.records[0]


def test_an_evaluation_says_what_did_not_fit(tmp_path):
    _, rag, writer = evaluate_by("full-memory", tmp_path, context_tokens=30)
    assert [record.left_out for record in rag.records] == [1, 3, 3, 3] and rag.summary["left_out"] == 2.5
    assert all(len(record.retrieved) == 3 for record in rag.records) and rag.records[1].tokens > 0
    assert rag.records[1].support_retrieved and writer.summary["left_out"] == 2.5
    assert (
        "rag: at 4 of 4 questions the oldest entries were left out, 3 at most"
        in (tmp_path / "full-memory/eval/systems.md").read_text()
    )


def test_rollouts_of_a_writer_are_read_alike():
    for kind in ("agentic", "full-memory"):
        reader = PolicyReader(FakePolicy(lambda _: "Lima"), ReaderConfig(kind=kind))
        report = evaluate(ScriptedPolicy("add-all"), [TASK], reader, embedder=HashEmbedder(64))
        assert report.summary["searches" if kind == "agentic" else "left_out"] == 0.0
    assert len(report.records[1].retrieved) == 6, "the whole memory, not the k best"
