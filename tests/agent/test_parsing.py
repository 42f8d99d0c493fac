"""The parser is total, and what `format_call` writes it reads back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.parsing import MAX_DEPTH, format_call, from_openai, parse_calls

NASTY = st.text() | st.lists(
    st.sampled_from(["</tool_call>", "<tool_call>", "{", "}", '"', "'", "\\", "\n", "```", ",", ":", "é", "猫", "a b"])
).map("".join)
VALUES = NASTY | st.none() | st.booleans() | st.integers(-(10**6), 10**6)
WORDS = [
    "<tool_call>",
    "</tool_call>",
    '"name"',
    '"arguments"',
    "\\u12",
    "```json",
    "null",
    "1e999",
    "<think>",
    "9" * 5000,
]
PIECES = st.lists(st.sampled_from([*WORDS, *"{}[]\"':,-x\n"]) | st.text(max_size=5)).map("".join)


@given(st.text() | PIECES | PIECES.map(lambda text: "<tool_call>" + text))
def test_every_text_has_a_parse(text):
    for call in parse_calls(text):
        assert (call.error == "malformed") == (call.name == "")
        assert all(isinstance(key, str) for key in call.arguments)


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(NASTY, VALUES)), max_size=4), NASTY)
def test_round_trip(calls, prose):
    prose = prose.replace("<tool_call>", "").replace("<think>", "")
    text = prose + "".join(format_call(name, arguments) for name, arguments in calls)
    parsed = parse_calls(text)
    assert [(call.name, call.arguments, call.error) for call in parsed] == [(*call, None) for call in calls]


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), VALUES)), max_size=3))
def test_openai_round_trip(calls):
    wire = [{"type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for n, a in calls]
    assert [(call.name, call.arguments) for call in from_openai(wire)] == calls


def test_format_is_exactly_what_the_tiny_policy_learns():
    text = format_call("memory_insert", {"category": "semantic", "content": "city: Malmö"})
    body = '{"name": "memory_insert", "arguments": {"category": "semantic", "content": "city: Malmö"}}'
    assert text == f"<tool_call>\n{body}\n</tool_call>\n"


INSERT = {"content": "it's {odd}"}


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"content": "it\'s {odd}"}}</tool_call>',
        '{"name": "f", "arguments": {"content": "it\'s {odd}"}}',  # no close tag
        '{"name": "f", "arguments": {"content": "it\'s {odd}",},}</tool_call>',  # trailing commas
        "{'name': 'f', 'arguments': {'content': 'it\\'s {odd}'}}</tool_call>",  # single quotes
        '{name: "f", arguments: {content: "it\'s {odd}"}}</tool_call>',  # bare keys
        '```json\n{"name": "f", "arguments": {"content": "it\'s {odd}"}}\n```\n</tool_call>',
        '{"name": "f", "arguments": {"content": "it\'s {odd}"}}}</tool_call>',  # one brace too many
        '[{"name": "f", "arguments": {"content": "it\'s {odd}"}}]</tool_call>',
        '{"name": "f", "parameters": {"content": "it\'s {odd}"}}</tool_call>',
        '{"name": "f", "arguments": "{\\"content\\": \\"it\'s {odd}\\"}"}</tool_call>',
    ],
)
def test_tolerated_forms(body):
    (call,) = parse_calls("Sure.\n<tool_call>\n" + body)
    assert (call.name, call.arguments, call.error) == ("f", INSERT, None)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "</tool_call>",
        "no json</tool_call>",
        "3</tool_call>",
        '{"name": "f", "arguments": {"content": "cut of',
        '{"arguments": {}}</tool_call>',
        '{"name": "f", "arguments": [1]}</tool_call>',
        '{"name": 3}</tool_call>',
        '{"name": "f", "arguments": {"content": "\\u12"}}</tool_call>',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_a_broken_block_is_one_malformed_call(body):
    (call,) = parse_calls("<tool_call>" + body)
    assert call.error == "malformed"


def test_empty_lists_and_objects_in_tolerated_json():
    (call,) = parse_calls("<tool_call>{'name': 'f', 'arguments': {'a': [], 'b': {}, 'c': [1,], 'd': 2}}</tool_call>")
    assert call.arguments == {"a": [], "b": {}, "c": [1], "d": 2}


@pytest.mark.parametrize(("depth", "error"), [(MAX_DEPTH - 2, None), (MAX_DEPTH - 1, "malformed")])
def test_tolerated_json_is_nested_so_deep_and_no_deeper(depth, error):
    """The call and its arguments are two levels; the value in the innermost list is one more."""
    nested = "[" * depth + "1" + "]" * depth
    (call,) = parse_calls(f"<tool_call>{{'name': 'f', 'arguments': {{'a': {nested}}}}}</tool_call>")
    assert call.error == error


def test_a_broken_block_does_not_swallow_the_next_one():
    first, second = parse_calls('<tool_call>{"name": oops oops}</tool_call>' + format_call("memory_skip", {}))
    assert first.error == "malformed" and second.name == "memory_skip"


def test_several_calls_in_one_block_and_literals():
    text = '<tool_call>{"name": "f", "arguments": {"a": True}}\n{"name": "g", "arguments": {"a": None}}</tool_call>'
    assert [(call.name, call.arguments) for call in parse_calls(text)] == [("f", {"a": True}), ("g", {"a": None})]


def test_escapes_mean_the_same_in_tolerated_json():
    for text in (
        '{"name": "f", "arguments": {"a": "\\ud83d\\ude00\\n\\u00e9"}}',
        "{'name': 'f', 'arguments': {'a': '\\ud83d\\ude00\\n\\u00e9'}}",
    ):
        assert parse_calls("<tool_call>" + text)[0].arguments == {"a": "😀\né"}


def test_text_without_a_block_and_thinking_are_no_calls():
    assert parse_calls('{"name": "f", "arguments": {}}') == ()
    assert parse_calls("<think>" + format_call("f", {})) == ()
    assert [c.name for c in parse_calls("<think>" + format_call("f", {}) + "</think>" + format_call("g", {}))] == ["g"]
