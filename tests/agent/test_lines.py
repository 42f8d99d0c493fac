"""The line form: total, lossless for what it can write, and the same memory as Hermes calls give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memalpha.agent.agent import build_request
from memalpha.agent.policy_check import check_policy
from memalpha.agent.replies import format_calls, format_lines, parse_lines
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import with_prompt_style
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.store import MemoryStore
from memalpha.train.data.chat_format import encode_reply
from memalpha.types import Chunk, Observation, ToolCall
from tests.support.tiny import tiny_model, tiny_tokenizer

LINES = """\
+semantic Ana lives in Lisbon.
+episodic @2024-05-01 Ana ran a race.

~job#3 pilot
-city#w
=Ana, a pilot
.
"""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("memory_insert", {"category": "semantic", "content": "Ana lives in Lisbon."}),
    ("memory_insert", {"category": "episodic", "content": "Ana ran a race.", "timestamp": "2024-05-01"}),
    ("memory_update", {"id": "job#3", "content": "pilot"}),
    ("memory_delete", {"id": "city#w"}),
    ("core_memory_update", {"content": "Ana, a pilot"}),
    ("memory_skip", {}),
]


def read(text: str) -> list[tuple[str, Any]]:
    return [(call.error or call.name, call.raw if call.error else call.arguments) for call in parse_lines(text)]


def test_the_grammar():
    assert read(LINES) == CALLS
    assert read(f"<think>\n+semantic no\n</think>\n\n{LINES}") == CALLS
    assert read("<think>+semantic no") == []


OTHER_LINES = [
    "Sure!", "+ text", "-", "- job#3", "-job#3 pilot", "~ x", "..", "* semantic x", "+e @2024-03-00 x", "+e @2024-13 x",
]  # fmt: skip


@pytest.mark.parametrize("line", OTHER_LINES)
def test_any_other_line_is_malformed_and_the_rest_is_read(line):
    assert read(f"{line}\n.") == [("malformed", line), ("memory_skip", {})]


def test_hermes_replies_of_scripted_writers_are_read():
    calls = tuple(ToolCall(name, arguments) for name, arguments in CALLS)
    assert read(format_calls(calls, "hermes")) == CALLS


texts = st.text(st.characters(exclude_categories=["Cs"]))
words = st.from_regex(r"[^\s+~=.-][^\s]{0,8}", fullmatch=True)
dates = st.sampled_from(["2024-05-01", "2024-05-01T10:00:00", "2024-05-01T10:00+02:00"])
calls = st.one_of(
    st.builds(lambda c, t: ("memory_insert", {"category": c, "content": t}), words, texts),
    st.builds(lambda c, t, d: ("memory_insert", {"category": c, "content": t, "timestamp": d}), words, texts, dates),
    st.builds(lambda i, t: ("memory_update", {"id": i, "content": t}), words, texts),
    st.builds(lambda i: ("memory_delete", {"id": i}), words),
    st.builds(lambda t: ("core_memory_update", {"content": t}), texts),
    st.just(("memory_skip", {})),
)


@given(st.lists(calls))
@example([("memory_insert", {"category": "semantic", "content": "@2024-05-01 a\\nb\nc"})])
@example([("memory_update", {"id": "a", "content": "\\@x\x85\u2028y"})])
def test_what_is_written_is_read(pairs):
    text = format_lines([ToolCall(name, arguments) for name, arguments in pairs])
    stripped = [
        (name, {key: value.strip() if key == "content" else value for key, value in arguments.items()})
        for name, arguments in pairs
    ]
    assert read(text) == stripped


@given(texts)
def test_no_text_raises(text):
    for call in parse_lines(text):
        assert call.error == "malformed" or call.name


def test_what_the_form_cannot_write_is_refused():
    with pytest.raises(DataError, match="memory_insert with category, content, importance"):
        format_lines([ToolCall("memory_insert", {"category": "semantic", "content": "x", "importance": 0.5})])


def qwen3(form: str = "native") -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    policy = TransformersPolicy(tiny_model(vocab=len(tokenizer)), tokenizer, "shrunk")
    policy.set_prompt_style("full", form)
    return policy


@pytest.mark.parametrize("form", ["native", "hermes", "lines"])
def test_a_policy_is_prompted_in_its_form(form, tmp_path):
    policy = qwen3(form)
    policy.save(tmp_path)
    loaded = TransformersPolicy.from_pretrained(tmp_path)
    config = with_prompt_style(AgentConfig(view_tokens=64, max_new_tokens=64), loaded)
    assert (loaded.form, config.form) == (form, form)
    request = build_request(Observation(Chunk(text="hello")), config, MemoryStore.open(":memory:").schema)
    prompt = loaded.tokenizer.decode(loaded.render_request(request))
    assert ("+CATEGORY TEXT" in prompt) == (form == "lines") and ("memory_insert" in prompt) == (form != "lines")
    assert bool(request.tools) == request.native_calls == (form == "native")
    result = check_policy(loaded, config)
    assert result.calls_read_back and result.tools_shown
    assert result.format == {"native": loaded.chat.call_format}.get(form, form)


def test_lines_are_trained_and_read_as_written():
    policy = qwen3("lines")
    ids = encode_reply(policy, LINES, "row 1")
    assert read(policy.tokenizer.decode(ids[:-1])) == CALLS


def test_a_set_form_wins_over_the_policy_and_mem_alpha_has_its_own():
    assert with_prompt_style(AgentConfig(form="native"), qwen3("lines")).form == "native"
    with pytest.raises(ConfigError, match="form: has no effect with prompt=mem-alpha, which has its own"):
        with_prompt_style(AgentConfig(form="lines"), type("P", (), {"prompt": "mem-alpha", "name": "p"})())
