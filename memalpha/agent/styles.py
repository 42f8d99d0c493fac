"""Read and write replies in a prompt style: `mem-alpha` has a protocol of its own, the others write Hermes calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memalpha.agent import mem_alpha
from memalpha.agent.parsing import format_call, parse_calls
from memalpha.types import ToolCall, ViewEntry


def parse_reply(text: str, style: str) -> tuple[ToolCall, ...]:
    """Return the calls of a reply as calls of `agent.tools`; `()` if it has none.

    Args:
        text: The writer's reply; no text raises.
        style: Prompt style of the writer.
    """
    return mem_alpha.parse_reply(text) if style == "mem-alpha" else parse_calls(text)


def format_calls(calls: Sequence[ToolCall], style: str, entries: Iterable[ViewEntry] = ()) -> str:
    """Return the reply that makes these calls.

    Args:
        calls: Calls of `agent.tools`.
        style: Prompt style of the writer.
        entries: Entries in the writer's view; they give the kind of an id, which `mem-alpha` writes.
    """
    if style == "mem-alpha":
        return mem_alpha.format_reply(calls, {entry.id: entry.category for entry in entries}.get)
    return "".join(format_call(call.name, call.arguments) for call in calls)
