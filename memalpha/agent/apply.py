"""Apply what a writer replied: its tool calls, in order, on the memory as it is now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from memalpha.agent.forms import parse_reply, reply_problems
from memalpha.agent.tools import TOOLS, Insert, ReadCall, Tool, Tools, execute, execute_inserts, read_call
from memalpha.agent.trust import TrustJudge, Verdict
from memalpha.errors import UnknownEntry
from memalpha.store.memory import Memory
from memalpha.types import Chunk, Completion, Operation, ToolCall, ToolResult, Turn


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

    Returns:
        The turn: calls, their results, the operations that changed the memory, and what could not be read.
    """
    calls = parse_reply(completion.text, form, tools)
    origin = {"source": source, "metadata": metadata}
    outcomes = list(execute_calls(memory, chunk, calls, origin, visible, judge, tools, strict=strict, at_once=True))
    results = tuple(result for result, _ in outcomes)
    operations = tuple(operation for _, of_call in outcomes for operation in of_call)
    return Turn(chunk.index, completion, calls, results, operations, reply_problems(completion, calls, form))


def execute_calls(
    memory: Memory,
    chunk: Chunk,
    calls: Sequence[ToolCall],
    origin: Mapping[str, Any],
    visible: Mapping[str, str],
    judge: TrustJudge | None,
    tools: Tools = TOOLS,
    *,
    strict: bool = False,
    at_once: bool = False,
) -> Iterator[tuple[ToolResult, tuple[Operation, ...]]]:
    """Apply calls in order, one at each step, and yield the result of each and its operations.

    Args:
        memory: the memory to change.
        chunk: the chunk that was read.
        calls: the writer's calls.
        origin: `source` and `metadata` of what is written, as in `act`.
        visible: contents that the writer saw; see `act`.
        judge: rule of what a speaker may change; see `act`.
        tools: tools of the writer.
        strict: refuse a call for an optional argument; see `act`.
        at_once: apply inserts that follow each other in one step, unless a trust rule judges them.
    """
    reads = [(call, read_call(call, memory.schema, tools, strict=strict)) for call in calls]
    # Before any call: the second of two calls may change what the first one wrote.
    ids = visible.keys() & {id for _, read in reads if (tool := _tool(read)) for id in tool.changes()}
    seen = memory if judge is None else judge.view
    conflicts = {id for id in ids if _content(seen, id) not in (visible[id], None)}
    dated = {"chunk": chunk.index, "timestamp": chunk.timestamp}
    at_once = at_once and (judge is None or not judge.has_rule)  # a rule looks at what the calls before have written
    for is_run, run in groupby(reads, lambda item: at_once and type(_tool(item[1])) is Insert):
        if is_run:
            inserts = list(run)
            speakers = [None if judge is None else judge.judge(_tool(read)).speaker for _, read in inserts]
            origins = [{**origin, **dated, "speaker": speaker} for speaker in speakers]
            yield from execute_inserts(memory, inserts, origins)
            continue
        for call, read in run:
            tool = _tool(read)
            if tool is not None and not conflicts.isdisjoint(tool.changes()):
                message = "was changed after the writer saw it; it stays as it is"
                yield ToolResult(call, False, "conflict", message), ()
                continue
            verdict = Verdict(None) if judge is None else judge.judge(tool)
            by = {"speaker": verdict.speaker, "quarantine": verdict.reason}
            yield execute(memory, call, read, **origin, **dated, **by)


def _tool(read: ReadCall) -> Tool | None:
    """Return the arguments of a call; None if it cannot be run."""
    return None if isinstance(read, ToolResult) else read[0]


def _content(memory: Memory, id: str) -> str | None:
    """Return the content of an entry, None if it is gone; "" is the core memory."""
    try:
        return memory.get(id).content if id else memory.core
    except UnknownEntry:
        return None
