"""The parser is total, and what `format_call` writes it reads back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.parsing import MAX_DEPTH, format_call, from_openai, parse_calls
from memalpha.agent.replies import act, parse_reply
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Completion

NASTY = st.text() | st.lists(
    st.sampled_from(["</tool_call>", "<tool_call>", "{", "}", '"', "'", "\\", "\n", "```", ",", ":", "é", "猫", "a b"])
).map("".join)
VALUES = NASTY | st.none() | st.booleans() | st.integers(-(10**6), 10**6)
WORDS = [
    "<tool_call>", "</tool_call>", '"name"', '"arguments"', "\\u12", "```json", "null", "1e999", "<think>", "9" * 5000,
]  # fmt: skip
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
        '{"name": "f", "args": {"content": "it\'s {odd}"}}</tool_call>',
        '{"name": "f", "input": {"content": "it\'s {odd}"}}</tool_call>',
        '{"name": "f", "arguments": "{\\"content\\": \\"it\'s {odd}\\"}"}</tool_call>',
        '{"type": "function", "function": {"name": "f", "arguments": {"content": "it\'s {odd}"}}}</tool_call>',
        '{"name": "f", "arguments": {"args": {"content": "it\'s {odd}"}}}</tool_call>',
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
        '{"name": "f", "arguments": {"content": "a", "content": "b"}}</tool_call>',
        '{"name": "f", "arguments": "{\\"content\\": \\"a\\", \\"content\\": \\"b\\"}"}</tool_call>',
        '{"name": 3}</tool_call>',
        '{"name": "f", "content": "beside the name"}</tool_call>',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_a_broken_block_is_one_malformed_call(body):
    (call,) = parse_calls("<tool_call>" + body)
    assert call.error == "malformed"


@pytest.mark.parametrize(("depth", "error"), [(MAX_DEPTH - 2, None), (MAX_DEPTH - 1, "malformed")])
def test_tolerated_json_is_nested_so_deep_and_no_deeper(depth, error):
    """The call and its arguments are two levels; the value in the innermost list is one more."""
    nested = "[" * depth + "1" + "]" * depth
    (call,) = parse_calls(f"<tool_call>{{'name': 'f', 'arguments': {{'a': {nested}}}}}</tool_call>")
    assert call.error == error


def test_several_calls_in_one_block_and_literals():
    text = '<tool_call>{"name": "f", "arguments": {"a": True}}\n{"name": "g", "arguments": {"a": None}}</tool_call>'
    assert [(call.name, call.arguments) for call in parse_calls(text)] == [("f", {"a": True}), ("g", {"a": None})]


def test_several_objects_in_the_arguments_of_one_call_are_a_call_each():
    function = {"name": "f", "arguments": '{"content": "a}{b"}\n{"content": "c"}'}
    for calls in (from_openai([{"function": function}]), parse_calls(f"<tool_call>{json.dumps(function)}</tool_call>")):
        assert [(call.name, call.arguments["content"]) for call in calls] == [("f", "a}{b"), ("f", "c")]
    calls = from_openai([{"function": {"name": "f", "arguments": '{"content": "a"}{"content": '}}])
    assert [(call.name, call.error) for call in calls] == [("f", None), ("", "malformed")]


def test_escapes_mean_the_same_in_tolerated_json():
    for text in (
        '{"name": "f", "arguments": {"a": "\\ud83d\\ude00\\n\\u00e9"}}',
        "{'name': 'f', 'arguments': {'a': '\\ud83d\\ude00\\n\\u00e9'}}",
    ):
        assert parse_calls("<tool_call>" + text)[0].arguments == {"a": "😀\né"}


DRAFT, CALL = format_call("memory_insert", {"content": "Lisbon"}), format_call("memory_insert", {"content": "Porto"})


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (f"Maybe {DRAFT}? No, she moved.\n</think>\n{CALL}", ["Porto"]),
        (f"{DRAFT}</think>{DRAFT}</think>{CALL}", ["Porto"]),
        (f"a brace {{ or two {{{{ </think>{CALL}", ["Porto"]),
        (f"<think>{DRAFT}</think>\n</think>\n{CALL}", ["Porto"]),
        (f"<think>x</think>{CALL}</think>", ["Porto"]),
        (f"{DRAFT}</think>", []),
        (f"<think>{DRAFT}", []),
        (f"{DRAFT}{CALL}", ["Lisbon", "Porto"]),
        (format_call("memory_insert", {"content": "a </think> b"}) + CALL, ["a </think> b", "Porto"]),
        ("<tool_call>{'name': 'f', 'arguments': {'content': 'a </think> b',}}</tool_call>", ["a </think> b"]),
    ],
)
def test_what_was_thought_before_a_call_is_none(text, contents):
    assert [call.arguments["content"] for call in parse_calls(text)] == contents


@pytest.mark.parametrize("mark", ["functions.{}", " {}\n", "{}<|channel|>json", "<|channel|>commentary to=functions.{}",
                                  "mcp__memalpha__{}", "default_api:{}", "functions.{}:0", "tools/{}"])  # fmt: skip
@pytest.mark.parametrize("name", ["memory_insert", "core_memory_update"])
def test_a_tool_is_meant_by_its_name_without_prefixes_and_marks(mark, name):
    (call,) = parse_reply(format_call(mark.format(name), {"content": "x"}), "hermes")
    assert call.name == name


@pytest.mark.parametrize("name", ["memory_inserts", "my_memory_insert", "memory_insert or memory_delete", "insert", ""])
def test_another_name_is_no_tool(name):
    (call,) = parse_reply(format_call(name, {}), "hermes")
    assert call.name == name


@pytest.mark.parametrize("arguments", ["word", "3", '"word"', "[]", "true", '["a"]'])
def test_arguments_that_are_no_mapping_are_malformed(arguments):
    (call,) = parse_calls(f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>")
    assert call.error == "malformed"


@pytest.mark.parametrize("path", ["D:\\Games", "C:\\users\\x", "C:\\Windows\\9", "\\\\server\\Öl", "regex \\d+ \\w"])
def test_backslashes_before_letters_and_digits_stay(path):
    (call,) = parse_calls(f'<tool_call>{{"name":"f","arguments":{{"content":"In {path}"}}}}</tool_call>')
    assert call.arguments["content"].replace("\\\\", "\\") == f"In {path}".replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("text", "form", "cut", "problems"),
    [
        (CALL, "hermes", False, ()),
        (CALL, "hermes", True, ("cut_off",)),
        ("", "hermes", False, ("no_call",)),
        ("I noted it.", "hermes", True, ("no_call", "cut_off")),
        ("<tool_call>{", "hermes", False, ("no_call",)),
        (".", "lines", False, ()),
        ("Nothing.", "lines", False, ("no_call",)),
        ("Done", "mem-alpha", False, ()),
        ("Sorry", "mem-alpha", False, ("no_call",)),
    ],
)
def test_a_turn_says_what_could_not_be_read(text, form, cut, problems):
    store = MemoryStore.open(":memory:", embedder="hash")
    reply = Completion(text, stop_reason="length" if cut else "eos")
    assert act(store, Chunk(text="x"), reply, form=form).problems == problems
