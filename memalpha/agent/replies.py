r"""Replies of a writer: read in a form, written in it, and applied.

The forms are Mem-alpha's protocol, Hermes calls (the common text of all families), and lines. `act` applies the calls
in order, on the memory as it is then.

The line form has one call a line (SmolLM2 needs a fifth of the tokens of Hermes JSON for it): the mark of a tool, then
its parameters, as `Tool.line` says; `+CATEGORY @2024-05-01 content` has a timestamp of its own. What looks like a date
and is none, such as `@2024-03-00`, makes the line malformed.

Inside contents `\n` and `\r` are line breaks, `\\` is a backslash, and `\@` begins a content with an at sign. Blank
lines are ignored, any other line is one `ToolCall` with error "malformed". No text raises.

A reply in lines that begins with a Hermes block is read as Hermes: scripted writers and endpoints reply so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from memalpha.agent import mem_alpha
from memalpha.agent.parsing import MALFORMED, after_thinking, format_call, malformed_call, named_tool, parse_calls
from memalpha.agent.quoting import NOTE, quote_chunk
from memalpha.agent.tools import (
    TOOLS,
    Execution,
    Insert,
    Judge,
    ReadCall,
    Tool,
    Tools,
    changed_ids,
    execute,
    execute_inserts,
    read_call,
)
from memalpha.agent.trust import TrustJudge
from memalpha.errors import DataError, UnknownEntry
from memalpha.policy.chat.text import OPEN
from memalpha.store.memory import Memory
from memalpha.types import Chunk, Completion, ToolCall, ToolResult, Turn, ViewEntry, is_iso_time

_ESCAPE = re.compile(r"\\([nr\\@])")
_DATE = re.compile(r"@\d{4}-\d")
_ESCAPED = {"n": "\n", "r": "\r", "\\": "\\", "@": "@"}


def parse_reply(text: str, form: str, tools: Tools = TOOLS) -> tuple[ToolCall, ...]:
    """Return the calls of a reply as calls of `agent.tools`; `()` if it has none.

    Args:
        text: The writer's reply; no text raises.
        form: Form of the reply (`config.reply_form`).
        tools: Tools of the writer.
    """
    if form == "lines":
        calls = parse_lines(text, tools)
    else:
        calls = (mem_alpha.parse_reply if form == "mem-alpha" else parse_calls)(text)
    return tuple(named_tool(call, tools) for call in calls)


def reply_problems(completion: Completion, calls: Sequence[ToolCall], form: str) -> tuple[str, ...]:
    """Return what keeps a reply from being read: "no_call" without a readable call, "cut_off" at its most tokens.

    Args:
        completion: The writer's reply.
        calls: Its calls, from `parse_reply`.
        form: Form of the reply.
    """
    is_done = form == "mem-alpha" and completion.text.strip().startswith(mem_alpha.DONE)
    is_unread = not is_done and all(call.error == MALFORMED for call in calls)
    return ("no_call",) * is_unread + ("cut_off",) * (completion.stop_reason == "length")


def format_calls(calls: Sequence[ToolCall], form: str, entries: Iterable[ViewEntry] = (), tools: Tools = TOOLS) -> str:
    """Return the reply that makes these calls.

    Args:
        calls: Calls of `agent.tools`.
        form: Form of the reply (`config.reply_form`).
        entries: Entries in the writer's view; they give the kind of an id, which `mem-alpha` writes.
        tools: Tools of the writer.

    Raises:
        DataError: The line form cannot write a call.
    """
    if form == "mem-alpha":
        return mem_alpha.format_reply(calls, {entry.id: entry.category for entry in entries}.get)
    if form == "lines":
        return format_lines(calls, tools)
    return "".join(format_call(call.name, call.arguments) for call in calls)


def parse_lines(text: str, tools: Tools = TOOLS) -> tuple[ToolCall, ...]:
    """Return the calls of a reply in the line form, in order; `()` if it has none.

    A leading `<think>` part is skipped.

    Args:
        text: The writer's reply; no text raises.
        tools: Tools of the writer.
    """
    reply = text[after_thinking(text, in_lines=OPEN not in text) :]
    if reply.lstrip().startswith(OPEN):
        return parse_calls(reply)
    by_mark = {tool.line[:1]: tool for tool in tools.values()}
    return tuple(_read_line(line.strip(), by_mark) for line in re.split(r"[\r\n]+", reply) if line.strip())


def format_lines(calls: Sequence[ToolCall], tools: Tools = TOOLS) -> str:
    """Return the reply that makes these calls.

    Args:
        calls: Calls of `agent.tools`.
        tools: Tools of the writer.

    Raises:
        DataError: A call has an argument that the form cannot write, such as an importance.
    """
    lines = []
    for call in calls:
        tool, arguments = tools.get(call.name), call.arguments
        fields = [] if tool is None else tool.line[1:].split()
        optional = {"timestamp"} if tool is not None and {"content", "timestamp"} <= tool.model_fields.keys() else set()
        is_written = all(isinstance(arguments.get(field), str) for field in fields)
        if tool is None or not tool.line or not is_written or (fields and arguments.keys() - {*fields} - optional):
            raise DataError(f"the line form cannot write {call.name} with {', '.join(arguments) or 'no arguments'}")
        timestamp = arguments.get("timestamp") if optional else None
        date = f"@{timestamp.replace(' ', 'T')} " if timestamp else ""
        words = (date + _escape(arguments[field]) if field == "content" else arguments[field] for field in fields)
        lines.append(tool.line[0] + " ".join(words))
    return "\n".join(lines)


def _read_line(line: str, by_mark: Mapping[str, type[Tool]]) -> ToolCall:
    tool, rest = by_mark.get(line[0]), line[1:]
    if tool is None:
        return malformed_call(line)
    arguments: dict[str, str] = {}
    for field in tool.line[1:].split():
        if field == "content":
            content, rest = rest.strip(), ""
            date, _, dated = content.partition(" ")
            if "timestamp" in tool.model_fields and date.startswith("@") and is_iso_time(date[1:]):
                arguments |= {"content": _unescape(dated.strip()), "timestamp": date[1:]}
            elif "timestamp" in tool.model_fields and _DATE.match(date):
                return malformed_call(line)  # a day that no calendar has
            else:
                arguments["content"] = _unescape(content)
            continue
        arguments[field], _, rest = rest.partition(" ")
        if not arguments[field]:
            return malformed_call(line)
    return malformed_call(line) if rest else ToolCall(tool.name, arguments, raw=line)


def _escape(content: str) -> str:
    text = content.strip().replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith("@") else text


def _unescape(content: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], content)


def act(
    memory: Memory,
    chunk: Chunk,
    completion: Completion,
    *,
    source: str | None = None,
    form: str = "hermes",
    tools: Tools = TOOLS,
    metadata: Mapping[str, Any] | None = None,
    visible: Mapping[str, str] = MappingProxyType({}),
    judge: TrustJudge | None = None,
    strict: bool = False,
    shown_ids: Mapping[str, str] | None = None,
) -> Turn:
    """Apply the tool calls of a completion to the memory, in order.

    A failed call does not stop the calls after it.

    Args:
        memory: the memory to change.
        chunk: the chunk that was read; its timestamp dates new entries.
        completion: the writer's reply.
        source: name of the conversation, stored with each operation.
        form: form in which the writer's calls are written (`AgentConfig.reply_form`).
        tools: tools of the writer (`load_tools(AgentConfig.tools)`).
        metadata: set on every entry that is written.
        visible: contents that the writer saw, by id ("" for the core memory). What has another content now is not
            changed: the call fails with the code "conflict".
        judge: says on whose word each call rests, which calls must wait for a review, and how the writer saw entries.
        strict: refuse a call for an optional argument, as rewards do; see `tools.read_call`.
        shown_ids: ids of entries by those that the writer saw (`quoting.show_notes`); given, contents are quoted from
            the chunk (`quoting.quote_chunk`).

    Returns:
        The turn: calls, their results, the operations that changed the memory, and what could not be read.
    """
    calls, notes = read_reply(completion, chunk, form, tools, shown_ids)
    origin = {"source": source, "metadata": metadata}
    outcomes = list(
        execute_calls(memory, chunk, calls, origin, visible, judge, tools, notes, strict=strict, at_once=True)
    )
    results = tuple(result for result, _ in outcomes)
    operations = tuple(operation for _, of_call in outcomes for operation in of_call)
    return Turn(chunk.index, completion, calls, results, operations, reply_problems(completion, calls, form))


def read_reply(
    completion: Completion, chunk: Chunk, form: str, tools: Tools, shown_ids: Mapping[str, str] | None
) -> tuple[tuple[ToolCall, ...], Sequence[str | None]]:
    """Return the calls of a reply and, if contents are quoted from the chunk, the note of each; arguments as in `act`.

    Args:
        completion: the writer's reply.
        chunk: the chunk that was read.
        form: form of the calls.
        tools: tools of the writer.
        shown_ids: ids of entries by those that a quoting writer saw; None for others.
    """
    calls = parse_reply(completion.text, form, tools)
    return (calls, ()) if shown_ids is None else quote_chunk(calls, chunk, shown_ids)


def execute_calls(
    memory: Memory,
    chunk: Chunk,
    calls: Sequence[ToolCall],
    origin: Mapping[str, Any],
    visible: Mapping[str, str],
    judge: TrustJudge | None,
    tools: Tools = TOOLS,
    notes: Sequence[str | None] = (),
    *,
    strict: bool = False,
    at_once: bool = False,
) -> Iterator[Execution]:
    """Apply calls in order, one at each step, and yield the result of each and its operations.

    Args:
        memory: the memory to change.
        chunk: the chunk that was read.
        calls: the writer's calls.
        origin: `source` and `metadata` of what is written, as in `act`.
        visible: contents that the writer saw; see `act`.
        judge: rule of what a speaker may change; see `act`.
        tools: tools of the writer.
        notes: the writer's own words for each call that quotes, from `quote_chunk`; they are kept in the metadata.
        strict: refuse a call for an optional argument; see `act`.
        at_once: apply inserts that follow each other in one step, unless a trust rule judges them or they have notes.
    """
    reads = [(call, read_call(call, memory.schema, tools, strict=strict, visible=visible)) for call in calls]
    # Before any call: the second of two calls may change what the first one wrote.
    changes = [() if (tool := _tool(read)) is None else changed_ids(tool) for _, read in reads]
    ids = visible.keys() & {id for of_call in changes for id in of_call}
    seen = memory if judge is None else judge.view
    conflicts = {id for id in ids if _content(seen, id) not in (visible[id], None)}
    origin = {**origin, "chunk": chunk.index, "timestamp": chunk.timestamp}
    verdicts: Judge = (lambda operations: (None, "")) if judge is None else judge.judge
    # A rule looks at what the calls before have written, and what has a note has metadata of its own.
    at_once = at_once and not notes and (judge is None or not judge.has_rule)
    note_of = iter(notes)
    for is_run, run in groupby(reads, lambda item: at_once and type(_tool(item[1])) is Insert):
        if is_run:
            yield from execute_inserts(memory, list(run), judge=verdicts, **origin)
            continue
        for call, read in run:
            tool, note = _tool(read), next(note_of, None)
            noted = origin if note is None else {**origin, "metadata": {NOTE: note, **(origin["metadata"] or {})}}
            if tool is not None and not conflicts.isdisjoint(changed_ids(tool)):
                message = "was changed after the writer saw it; it stays as it is"
                yield ToolResult(call, False, "conflict", message), ()
            else:
                yield execute(memory, call, read, judge=verdicts, **noted)


def _tool(read: ReadCall) -> Tool | None:
    """Return the arguments of a call; None if it cannot be run."""
    return None if isinstance(read, ToolResult) else read[0]


def _content(memory: Memory, id: str) -> str | None:
    """Return the content of an entry, None if it is gone; "" is the core memory."""
    try:
        return memory.get(id).content if id else memory.core
    except UnknownEntry:
        return None
