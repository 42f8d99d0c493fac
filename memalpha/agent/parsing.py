r"""Tool calls from model text: a total parser for Hermes blocks and OpenAI `tool_calls`.

A block is `<tool_call>` JSON `</tool_call>` with `{"name": ..., "arguments": {...}}` inside. The JSON is scanned, not
cut at the next tag or brace. Contents may therefore hold braces, quotes, newlines and even `</tool_call>`.

The parser tolerates common errors of models with a clear meaning:

- trailing commas, single quotes, bare keys, Python literals, raw newlines in strings;
- code fences and a missing close tag;
- several calls or a list of calls in one block;
- `arguments` as a JSON string (of a JSON string), or null, and `parameters`, `args` or `input` instead of `arguments`;
- several objects in the string of one call's `arguments`, a call each: servers merge parallel calls so;
- backslashes of paths, which are no escapes: `D:\Games`.

Everything else inside a block is one `ToolCall` with error "malformed". Text outside blocks is ignored. No text raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from memalpha.arguments import unique_keys
from memalpha.policy.chat.text import CLOSE, END_THINK, OPEN, THINK, format_call
from memalpha.types import ToolCall

__all__ = ["after_thinking", "format_call", "from_openai", "parse_calls"]

MALFORMED = "malformed"
UNSAID = "invalid_content"
"""Code of a call whose content the chunk does not say (`quoting.quote_chunk`)."""
MAX_DEPTH = 32

_STRICT = json.JSONDecoder(strict=False, object_pairs_hook=unique_keys)
_FENCE = re.compile(r"```(?:json|tool_call)?")
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[^\s,:\[\]{}\"']+")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_STRINGS = {quote: re.compile(rf"{quote}([^{quote}\\]*(?:\\.[^{quote}\\]*)*){quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_THOUGHT_OR_JSON = re.compile(rf"\{{|{END_THINK}")
_THOUGHT_AT_LINE_END = re.compile(rf"^[ \t]*{END_THINK}|{END_THINK}[ \t]*$", re.MULTILINE)


def parse_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a completion in order; `()` if it has none.

    What was thought before them is skipped (`after_thinking`).
    """
    calls: list[ToolCall] = []
    position = after_thinking(text)
    while (start := text.find(OPEN, position)) >= 0:
        block_calls, position = _block(text, start)
        calls.extend(block_calls)
    return tuple(calls)


def from_openai(tool_calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """Return the calls of an OpenAI-style message.

    Items look like `{"function": {"name": ..., "arguments": "<JSON>"}}`.
    """
    return tuple(call for item in tool_calls for call in _read_calls(item, raw=repr(item)))


def named_tool(call: ToolCall, names: Collection[str]) -> ToolCall:
    """Return a call under the one of `names` that it means: `functions.memory_insert<|channel|>json`, ` memory_insert`.

    Around the name may stand a prefix, a number, blanks and channel marks. Without such a name the call is unchanged.
    """
    if call.name in names:
        return call
    found = {word for name in re.split(r"[^\w-]+", call.name) for word in (name, name.rpartition("__")[2])} & {*names}
    return replace(call, name=found.pop()) if len(found) == 1 else call


def after_thinking(text: str, *, in_lines: bool = False) -> int:
    """Return the index of the reply's first character after what was thought.

    This is the part from a leading `<think>`: all of the text if it is not closed. Without a leading `<think>`, which
    some templates write into the prompt, it is what stands before the last `</think>` outside of JSON.

    Args:
        text: A reply.
        in_lines: The calls are lines, so that `</think>` within a line is text.
    """
    if text.lstrip().startswith(THINK):
        end = text.find(END_THINK)
        while end >= 0 and text[(start := end + len(END_THINK)) :].lstrip().startswith(END_THINK):  # closed twice
            end = text.index(END_THINK, start)
        return len(text) if end < 0 else end + len(END_THINK)
    if END_THINK not in text:
        return 0
    if in_lines:
        return max((match.end() for match in _THOUGHT_AT_LINE_END.finditer(text)), default=0)
    start = position = 0
    while match := _THOUGHT_OR_JSON.search(text, position):
        position = match.end()
        if match[0] == END_THINK:
            start = position
            continue
        with suppress(UnreadableJSON):
            _, position = decode_json(text, match.start())
    return start


def _block(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Return the calls of the block at `start`, and the index after it."""
    calls: list[ToolCall] = []
    position = skip_space(text, start + len(OPEN))
    while position < len(text) and text[position] in "{[":
        try:
            value, end = decode_json(text, position)
        except UnreadableJSON:
            break
        raw = text[position:end]
        for item in value if isinstance(value, list) else [value]:
            calls.extend(_read_calls(item, raw))
        position = skip_space(text, end)
        while position < len(text) and text[position] in "},":  # models often write one brace too many
            position = skip_space(text, position + 1)
    if text.startswith(CLOSE, position):
        position += len(CLOSE)
        return calls or [malformed_call(text[start:position])], position
    if calls and (position == len(text) or text.startswith(OPEN, position)):
        return calls, position  # the close tag is missing
    ends = [index for index in (text.find(CLOSE, position), text.find(OPEN, position)) if index >= 0]
    end = min(ends, default=len(text))
    if text.startswith(CLOSE, end):
        end += len(CLOSE)
    return [*calls, malformed_call(text[start:end])], end


def malformed_call(raw: str) -> ToolCall:
    return ToolCall(name="", error=MALFORMED, raw=raw)


def _read_calls(value: Any, raw: str) -> list[ToolCall]:
    """Return a call for each object in the text of a call's arguments, or the one call that the value is."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):  # as OpenAI's messages have it
        value = value["function"]
    text = _arguments(value) if isinstance(value, Mapping) else None
    calls: list[ToolCall] = []
    position = skip_space(text, 0) if isinstance(text, str) else 0
    while isinstance(text, str) and text.startswith("{", position):
        try:
            arguments, position = decode_json(text, position)
        except UnreadableJSON:
            return [*calls, malformed_call(raw)]
        calls.append(read_call({**value, "arguments": arguments}, raw))
        position = skip_space(text, position)
    return calls or [read_call(value, raw)]


def _arguments(value: Mapping[str, Any]) -> Any:
    """Return the arguments of a call's object under the name that they have there; None without any."""
    return next((value[name] for name in _ARGUMENTS if name in value), None)


def read_call(value: Any, raw: str) -> ToolCall:
    if not isinstance(value, Mapping):
        return malformed_call(raw)
    name = value.get("name")
    arguments = _arguments(value)
    while isinstance(arguments, str) and arguments.strip():
        encoded = arguments
        try:
            arguments, _ = decode_json(encoded, skip_space(encoded, 0))
        except UnreadableJSON:
            return malformed_call(raw)
        if arguments == encoded:  # a bare word
            return malformed_call(raw)
    while isinstance(arguments, Mapping) and len(arguments) == 1 and isinstance(_arguments(arguments), Mapping):
        arguments = _arguments(arguments)  # no parameter takes an object: a model wrapped them twice
    arguments = {} if arguments is None or arguments == "" else arguments
    is_flat = not value.keys() <= {"name", "id", "type", "index", *_ARGUMENTS} and not arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping) or is_flat:
        return malformed_call(raw)  # beside the name, a flat call's arguments would be lost
    if not all(isinstance(key, str) for key in arguments):
        return malformed_call(raw)
    return ToolCall(name=name, arguments=dict(arguments), raw=raw)


class UnreadableJSON(ValueError):
    """Text that even the tolerant parser cannot read as JSON."""


def skip_space(text: str, position: int) -> int:
    """Return the index after white space and code fences."""
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        fence = _FENCE.match(text, position)
        if not fence:
            return position
        position = fence.end()


def decode_json(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at `position` and the index after it.

    Tries the strict parser first, then the tolerant one. Raises `UnreadableJSON`.
    """
    try:
        return _STRICT.raw_decode(text, position)
    except (ValueError, RecursionError):  # ValueError: not JSON, or an integer of thousands of digits
        return _tolerant(text, position, 0)


def _tolerant(text: str, position: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH or position >= len(text):
        raise UnreadableJSON
    first = text[position]
    if first == "{":
        return _object(text, position + 1, depth)
    if first == "[":
        return _array(text, position + 1, depth)
    match = (_STRINGS.get(first) or _BARE).match(text, position)
    if match is None:
        raise UnreadableJSON
    if first in _STRINGS:
        return _pairs(_ESCAPE.sub(_unescape, match[1])), match.end()
    word = match[0]
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()], match.end()
    for kind in (int, float) if len(word) <= 32 else ():
        with suppress(ValueError):
            return kind(word), match.end()
    return word, match.end()


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if text.startswith("}", position):
            return result, position + 1
        if text[position : position + 1] in ("{", "["):
            raise UnreadableJSON
        key, position = _tolerant(text, position, depth + 1)
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if not text.startswith(":", position):
            raise UnreadableJSON
        position = _SPACE.match(text, position + 1).end()  # type: ignore[union-attr]
        value, position = _tolerant(text, position, depth + 1)
        if result.setdefault(str(key), value) != value:  # one of the two would be lost
            raise UnreadableJSON
        position = _separator(text, position, "}")


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    result: list[Any] = []
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if text.startswith("]", position):
            return result, position + 1
        value, position = _tolerant(text, position, depth + 1)
        result.append(value)
        position = _separator(text, position, "]")


def _separator(text: str, position: int, end: str) -> int:
    """Return the index after a comma; a closing bracket is left for the caller."""
    position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
    if text.startswith(",", position):
        return position + 1
    if text.startswith(end, position):
        return position
    raise UnreadableJSON


def _unescape(escape: re.Match[str]) -> str:
    code, char = escape.groups()
    if code:
        return chr(int(code, 16))
    return _ESCAPES.get(char, escape[0] if char.isalnum() else char)  # the backslash of a path is no escape


def _pairs(text: str) -> str:
    """Join surrogate pairs of two escapes into one character.

    A lone surrogate stays, and the store rejects it.
    """
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return text
