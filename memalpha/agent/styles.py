"""Read and write replies in a form: Mem-alpha's protocol, lines, or Hermes calls (the common text of all families)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memalpha.agent import mem_alpha
from memalpha.agent.lines import format_lines, parse_lines
from memalpha.agent.parsing import format_call, parse_calls
from memalpha.types import ToolCall, ViewEntry

_PARSERS = {"mem-alpha": mem_alpha.parse_reply, "lines": parse_lines, "hermes": parse_calls}


def parse_reply(text: str, form: str) -> tuple[ToolCall, ...]:
    """Return the calls of a reply as calls of `agent.tools`; `()` if it has none.

    Args:
        text: The writer's reply; no text raises.
        form: Form of the reply (`config.reply_form`).
    """
    return _PARSERS[form](text)


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
