r"""Read and write replies in a form: Mem-alpha's protocol, Hermes calls (the common text of all families), or lines.

The line form has one call a line; SmolLM2 needs a fifth of the tokens of Hermes JSON for it:

| line | call |
|---|---|
| `+CATEGORY content` | memory_insert; `+CATEGORY @2024-05-01 content` has a timestamp of its own |
| `~ID content` | memory_update |
| `-ID` | memory_delete |
| `=content` | core_memory_update |
| `.` | memory_skip |

Inside contents `\n` and `\r` are line breaks, `\\` is a backslash, and `\@` begins a content with an at sign. Blank
lines are ignored, any other line is one `ToolCall` with error "malformed". No text raises.

A reply in lines that begins with a Hermes block is read as Hermes: scripted writers and endpoints reply so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from memalpha.agent import mem_alpha
from memalpha.agent.parsing import after_thinking, format_call, malformed_call, named_tool, parse_calls
from memalpha.agent.tools import TOOLS
from memalpha.errors import DataError
from memalpha.policy.hermes import OPEN
from memalpha.types import Completion, ToolCall, ViewEntry, is_iso_time

SKIP = "."

_ESCAPE = re.compile(r"\\([nr\\@])")
_ESCAPED = {"n": "\n", "r": "\r", "\\": "\\", "@": "@"}


def parse_reply(text: str, form: str) -> tuple[ToolCall, ...]:
    """Return the calls of a reply as calls of `agent.tools`; `()` if it has none.

    Args:
        text: The writer's reply; no text raises.
        form: Form of the reply (`config.reply_form`).
    """
    parsers = {"mem-alpha": mem_alpha.parse_reply, "lines": parse_lines, "hermes": parse_calls}
    return tuple(named_tool(call, TOOLS) for call in parsers[form](text))


def reply_problems(completion: Completion, calls: Sequence[ToolCall], form: str) -> tuple[str, ...]:
    """Return what keeps a reply from being read: "no_call" without a readable call, "cut_off" at its most tokens.

    Args:
        completion: The writer's reply.
        calls: Its calls, from `parse_reply`.
        form: Form of the reply.
    """
    is_done = form == "mem-alpha" and completion.text.strip().startswith(mem_alpha.DONE)
    is_unread = not is_done and all(call.error for call in calls)
    return ("no_call",) * is_unread + ("cut_off",) * (completion.stop_reason == "length")


def format_calls(calls: Sequence[ToolCall], form: str, entries: Iterable[ViewEntry] = ()) -> str:
    """Return the reply that makes these calls.

    Args:
        calls: Calls of `agent.tools`.
        form: Form of the reply (`config.reply_form`).
        entries: Entries in the writer's view; they give the kind of an id, which `mem-alpha` writes.

    Raises:
        DataError: The line form cannot write a call.
    """
    if form == "mem-alpha":
        return mem_alpha.format_reply(calls, {entry.id: entry.category for entry in entries}.get)
    if form == "lines":
        return format_lines(calls)
    return "".join(format_call(call.name, call.arguments) for call in calls)


def parse_lines(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a reply in the line form, in order; `()` if it has none.

    A leading `<think>` part is skipped.
    """
    reply = text[after_thinking(text, in_lines=OPEN not in text) :]
    if reply.lstrip().startswith(OPEN):
        return parse_calls(reply)
    return tuple(_read_line(line.strip()) for line in re.split(r"[\r\n]+", reply) if line.strip())


def format_lines(calls: Sequence[ToolCall]) -> str:
    """Return the reply that makes these calls.

    Raises:
        DataError: A call has an argument that the form cannot write, such as an importance.
    """
    return "\n".join(map(_format_call, calls))


def _read_line(line: str) -> ToolCall:
    mark, rest = line[0], line[1:]
    if line == SKIP:
        return ToolCall("memory_skip", {}, raw=line)
    if mark == "=":
        return ToolCall("core_memory_update", {"content": _unescape(rest.strip())}, raw=line)
    subject, _, content = rest.partition(" ")
    if not subject or mark not in "+~-" or (mark == "-" and content):
        return malformed_call(line)
    if mark == "-":
        return ToolCall("memory_delete", {"id": subject}, raw=line)
    content = content.strip()
    if mark == "~":
        return ToolCall("memory_update", {"id": subject, "content": _unescape(content)}, raw=line)
    arguments = {"category": subject, "content": _unescape(content)}
    date, _, dated = content.partition(" ")
    if date.startswith("@") and is_iso_time(date[1:]):
        arguments |= {"content": _unescape(dated.strip()), "timestamp": date[1:]}
    return ToolCall("memory_insert", arguments, raw=line)


def _format_call(call: ToolCall) -> str:
    match call.name, dict(call.arguments):
        case "memory_insert", {"category": str(category), "content": str(content), **further} if not (
            further.keys() - {"timestamp"}
        ):
            timestamp = further.get("timestamp")
            date = f"@{timestamp.replace(' ', 'T')} " if timestamp else ""
            return f"+{category} {date}{_escape(content)}"
        case "memory_update", {"id": str(id), "content": str(content), **further} if not further:
            return f"~{id} {_escape(content)}"
        case "memory_delete", {"id": str(id), **further} if not further:
            return f"-{id}"
        case "core_memory_update", {"content": str(content), **further} if not further:
            return f"={_escape(content)}"
        case "memory_skip", _:
            return SKIP
    raise DataError(f"the line form cannot write {call.name} with {', '.join(call.arguments) or 'no arguments'}")


def _escape(content: str) -> str:
    text = content.strip().replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith("@") else text


def _unescape(content: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], content)
