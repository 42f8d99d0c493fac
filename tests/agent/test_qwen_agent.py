"""Qwen-Agent's protocol: blocks are read in order and no text raises; what is written reads back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memalpha.agent.mem_alpha import ARGS, FUNCTION, RESULT, RETURN, format_block, parse_blocks

NAMES = st.sampled_from(["new_memory_insert", "memory_update", "memory_delete", "search_memory"])
VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(), lambda v: st.lists(v, max_size=3))
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(), VALUES, max_size=3)), max_size=4)
PIECES = st.sampled_from([
    FUNCTION, ARGS, RESULT, RETURN, ":", " ", "\n", "{", "}", '"', "✿", "memory_delete", '{"a": 1}', "<think>", "```",
])  # fmt: skip


def read(text: str) -> list[tuple]:
    return [(call.name, dict(call.arguments), call.error) for call in parse_blocks(text)]


@given(CALLS, st.sampled_from(["", "Let me store this.\n", "<think>\nhm\n</think>\n\n"]))
def test_formatted_calls_read_back(calls, before):
    text = before + "\n".join(format_block(name, arguments) for name, arguments in calls)
    assert read(text) == [(name, arguments, None) for name, arguments in calls]


@given(st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join))
@example(f"{FUNCTION}: a\n{ARGS}: {'[' * 4000}")
def test_no_text_raises(text):
    for call in parse_blocks(text):
        assert call.error in (None, "malformed") and call.raw in text
        assert bool(call.name) == (call.error is None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{'content': 'a', }", {"content": "a"}),
        ('\n```json\n{"content": "a"}\n```', {"content": "a"}),
        ('{"content": "two\nlines"}', {"content": "two\nlines"}),
        (f'{{"content": "says {FUNCTION}: x and {RESULT}"}}', {"content": f"says {FUNCTION}: x and {RESULT}"}),
        ('{"content": "a"}} <!-- note -->', {"content": "a"}),
        ('"{\\"content\\": \\"a\\"}"', {"content": "a"}),
    ],
)
def test_json_is_read_with_the_tolerance_of_hermes_calls(arguments, expected):
    text = f"{FUNCTION}: memory_delete\n{ARGS}: {arguments}\n{FUNCTION}: f\n{ARGS}: {{}}"
    assert read(text) == [("memory_delete", expected, None), ("f", {}, None)]


@pytest.mark.parametrize(
    "block",
    [
        f"{FUNCTION}: memory_delete",
        f"{FUNCTION}: memory_delete\n{ARGS}:",
        f"{FUNCTION}: memory_delete\n{ARGS}: none",
        f"{FUNCTION}: memory_delete\n{ARGS}: [1]",
        f'{FUNCTION}: memory_delete\n{ARGS}: {{"content": "cut of',
        f"{FUNCTION}:\n{ARGS}: {{}}",
        f"{ARGS}: {{}}",
    ],
)
def test_an_unreadable_block_is_one_malformed_call(block):
    assert read(block) == [("", {}, "malformed")]
    assert read(f"{block}\n{format_block('f', {})}") == [("", {}, "malformed"), ("f", {}, None)]
