"""Tokens of contents in the forms of a reply."""

from __future__ import annotations

import json

import pytest
from tiny import tiny_policy

from memalpha.agent.replies import format_calls
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.trainers.sft import content_spans, content_tokens
from memalpha.types import ToolCall

CONTENTS = ['Ana says "hé\n日本" 😀', "pilot @ 3", "+a b"]
CALLS = [
    ToolCall("memory_insert", {"category": "semantic", "content": CONTENTS[0], "timestamp": "2024-05-01"}),
    ToolCall("memory_update", {"id": "job#3", "content": CONTENTS[1]}),
    ToolCall("memory_delete", {"id": "city#w"}),
    ToolCall("core_memory_update", {"content": CONTENTS[2]}),
    ToolCall("memory_skip", {}),
]


def written(content: str, form: str) -> str:
    return content.replace("\n", "\\n") if form == "lines" else json.dumps(content, ensure_ascii=False)[1:-1]


@pytest.mark.parametrize("form", ["lines", "hermes", "mem-alpha"])
def test_contents_are_spans_of_characters_and_of_tokens(form):
    policy, text = tiny_policy(), format_calls(CALLS, form)
    expected = [written(content, form) for content in CONTENTS]
    assert [text[start:end] for start, end in content_spans(text, form)] == expected
    ids = policy.tokenizer(text)["input_ids"]
    mask = content_tokens(policy, cross_entropy_sample([1], ids), form)
    assert policy.tokenizer.decode([id for id, is_content in zip(ids, mask, strict=True) if is_content]).replace(
        " ", ""
    ) == "".join(expected).replace(" ", "")
    assert 0 < mask.sum() < len(ids)
