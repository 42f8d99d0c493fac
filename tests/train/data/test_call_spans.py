"""The call of each sampled token: Hermes blocks, lines, families' own forms, thoughts, characters of several tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.agent.replies import format_calls, parse_reply
from memalpha.policy.chat.text import format_call
from memalpha.policy.load import load_policy
from memalpha.train.algorithms.credit import SHARED, CallCredit, decode_in_context
from memalpha.types import Completion, ToolCall, Turn
from tests.policy.chat.test_template import NATIVE, TEXT, chat_template

POLICY = load_policy("tiny")
SPANS = CallCredit(POLICY)
contents = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>\\"), min_size=1, max_size=12)


def turn(text: str, form: str, stop: str = "eos") -> Turn:
    ids = POLICY.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*ids, POLICY.tokenizer.eos_token_id] if stop == "eos" else ids
    return Turn(0, Completion(text, completion_ids=tuple(ids), stop_reason=stop), parse_reply(text, form))


def texts_of(reply: Turn) -> dict[int, str]:
    """Return the text of the tokens of each call, of the end, and of those of no single call."""
    ids, indices = reply.completion.completion_ids, SPANS.call_indices(reply)
    return {index: POLICY.tokenizer.decode([ids[i] for i in np.flatnonzero(indices == index)]) for index in {*indices}}


@settings(max_examples=60, deadline=None)
@given(st.lists(contents.map(str.strip).filter(bool), min_size=1, max_size=3), st.sampled_from(["hermes", "lines"]))
def test_each_call_has_its_own_tokens_and_the_end_has_its_own(facts, form):
    calls = [ToolCall("memory_insert", {"category": "semantic", "content": fact}) for fact in facts]
    reply = turn(format_calls(calls, form), form)
    if len(reply.calls) != len(facts):
        return  # a content that this form cannot carry
    texts = texts_of(reply)
    for index, call in enumerate(reply.calls):
        assert call.raw.strip() in texts[index] or SHARED in texts
    assert texts[len(facts)].endswith(POLICY.tokenizer.eos_token)
    assert SHARED not in texts or not "".join(facts).isascii()


def test_a_thought_and_a_reply_that_is_not_found_get_the_mean():
    call = format_call("memory_skip", {})
    thought = turn(f"<think>\n{call}hm\n</think>\n\n{call}", "hermes")
    texts = texts_of(thought)
    assert len(thought.calls) == 1 and "hm" in texts[SHARED] and "memory_skip" in texts[0]
    values = SPANS.by_token(thought, [0.75, -0.5])
    assert values[0] == 0.75 and values[-1] == -0.5
    lost = Turn(0, thought.completion, (*thought.calls, *parse_reply(f"{call}{call}", "hermes")))
    values = SPANS.by_token(lost, [1.0, 2.0, 6.0, -0.5])
    assert {*values[:-1]} == {3.0} and values[-1] == -0.5


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20))
def test_characters_of_several_tokens_begin_with_the_first(text):
    data = text.encode("utf-8", "ignore")
    pieces = decode_in_context(lambda ids: bytes(ids).decode("utf-8", "replace"), list(data))
    assert "".join(pieces) == data.decode("utf-8")
    assert all(len(piece) <= 1 for piece in pieces)


@pytest.mark.parametrize("family", sorted(NATIVE))
def test_calls_in_a_family_s_own_form_are_told_apart(family):
    chat = chat_template(family)
    reply = chat.write_reply(TEXT)
    ends = chat.reply_parser.call_ends(reply)
    parts = [reply[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [name in part for name, part in zip(("insert", "delete", "skip"), parts, strict=True)] == [True] * 3
    assert not reply[ends[-1] :].strip() or "memory_" not in reply[ends[-1] :]
