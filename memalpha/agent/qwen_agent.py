"""Tool calls in Qwen-Agent's text protocol, which Mem-alpha's checkpoints write.

A call is two lines, `✿FUNCTION✿: name` and `✿ARGS✿: {json}`; a reply may hold several. `✿RESULT✿` and `✿RETURN✿` come
from whoever runs the tools. A model that writes them itself has begun to invent results, so its reply ends there.

The JSON is scanned as `agent.parsing` scans it, with the same tolerance. Contents may therefore hold markers and
newlines. A second `✿ARGS✿` calls the same tool again. A block whose arguments cannot be read is one `ToolCall` with
error "malformed". Text outside blocks is ignored. No text raises.

Source: qwen-agent 0.0.29 (Apache-2.0), `qwen_fncall_prompt.py`. The format is its; the words of `describe_tools` are
ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.agent.parsing import (
    UnreadableJSON,
    after_thinking,
    decode_json,
    malformed_call,
    read_call,
    skip_space,
)
from memalpha.types import ToolCall

FUNCTION, ARGS, RESULT, RETURN = "✿FUNCTION✿", "✿ARGS✿", "✿RESULT✿", "✿RETURN✿"
_MARKER = re.compile(f"({FUNCTION}|{ARGS}|{RESULT}|{RETURN})[ \t]*:?")


def parse_blocks(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a completion in order; `()` if it has none.

    A leading `<think>` part is skipped.
    """
    calls: list[ToolCall] = []
    name = ""
    marker = _MARKER.search(text, after_thinking(text))
    while marker is not None and marker[1] in (FUNCTION, ARGS):
        start, following = marker.start(), _MARKER.search(text, marker.end())
        if marker[1] == FUNCTION:
            name = text[marker.end() : following.start() if following else len(text)].strip()
            if following is None or following[1] != ARGS:
                calls.append(malformed_call(text[start : following.start() if following else len(text)]))
                marker = following
                continue
            marker = following
        call, position = _read_arguments(text, start, marker.end(), name)
        calls.append(call)
        marker = _MARKER.search(text, position)
    return tuple(calls)


def _read_arguments(text: str, start: int, position: int, name: str) -> tuple[ToolCall, int]:
    """Return the call of the block at `start`, whose arguments begin at `position`, and the index after it."""
    first = skip_space(text, position)
    try:
        if text[first : first + 1] not in ("{", '"', "'"):  # a bare word is no object, and may be the next marker
            raise UnreadableJSON
        arguments, end = decode_json(text, first)
    except UnreadableJSON:
        following = _MARKER.search(text, position)
        end = following.start() if following else len(text)
        return malformed_call(text[start:end]), end
    return read_call({"name": name, "arguments": arguments}, text[start:end]), end


def format_block(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the two lines of one call, without a newline at the end."""
    return f"{FUNCTION}: {name}\n{ARGS}: {json.dumps(dict(arguments), ensure_ascii=False)}"


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the part of a system prompt that lists tools and spells out the protocol for parallel calls.

    Args:
        tools: Tools in OpenAI's function format.
    """
    functions = [tool["function"] for tool in tools]
    entries = "\n\n".join(
        f"### {function['name']}\n\n{function['name']}: {function['description']} "
        f"Parameters: {json.dumps(function['parameters'], ensure_ascii=False)} Write the arguments as one JSON object."
        for function in functions
    )
    names = ",".join(function["name"] for function in functions)
    return f"""\
# Tools

## These tools are yours to call:

{entries}

## To call N tools in one reply, write these lines in it:

{FUNCTION}: Name of tool 1, one of [{names}]
{ARGS}: Arguments of tool 1
{FUNCTION}: Name of tool 2
{ARGS}: Arguments of tool 2
...
{FUNCTION}: Name of tool N
{ARGS}: Arguments of tool N
{RESULT}: What tool 1 returned
{RESULT}: What tool 2 returned
...
{RESULT}: What tool N returned
{RETURN}: Your reply once the results are there"""
