"""Rows of the writer and the reader: prompts in the compact style, completions in the line form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_rows import AGENT, READER, SCHEMA

from memalpha.agent.prompts import reader_messages, writer_messages
from memalpha.agent.replies import format_lines
from memalpha.store.state import MemoryState
from memalpha.types import Chunk, Hit, MemoryEntry, Observation, Operation, ToolCall, ViewEntry

VIEW = 12
"""Most entries in a writer's view."""


@dataclass(frozen=True, slots=True)
class SmolRow:
    """Hold one row: part of the mixture, "writer" or "reader", prompt and completion."""

    part: str
    kind: str
    prompt: str
    completion: str

    def to_json(self) -> dict[str, Any]:
        """Return the row as `train sft source=FILE` reads it."""
        return {"prompt": [{"role": "user", "content": self.prompt}], "completion": self.completion}


def writer_row(part: str, chunk: Chunk, view: Iterable[MemoryEntry], calls: Sequence[ToolCall]) -> SmolRow:
    """Build a writer row; without calls the completion is the full stop.

    Args:
        part: Part of the mixture.
        chunk: Chunk to read.
        view: Entries in view, oldest first.
        calls: Gold calls.
    """
    entries = tuple(ViewEntry(entry.id, entry.category, entry.content, entry.timestamp) for entry in view)
    messages, _ = writer_messages(Observation(chunk, "", entries), AGENT, SCHEMA)
    return SmolRow(part, "writer", messages[0]["content"], format_lines(calls or [ToolCall("memory_skip")]))


def reader_row(part: str, question: str, notes: Iterable[MemoryEntry], answer: str) -> SmolRow:
    """Build a reader row.

    Args:
        part: Part of the mixture.
        question: Question as the reader sees it.
        notes: Retrieved entries.
        answer: Shortest right answer.
    """
    messages = reader_messages(question, [Hit(entry, 0.0) for entry in notes], READER)
    return SmolRow(part, "reader", messages[0]["content"], answer)


def operation_call(operation: Operation, timestamp: str | None = None) -> ToolCall:
    """Return the call of an insert, update or delete.

    Args:
        operation: Operation to write as a call.
        timestamp: Date of an inserted fact if it differs from the chunk's.
    """
    names = {"insert": ("category", "content"), "update": ("id", "content"), "delete": ("id",)}[operation.kind]
    arguments = {name: getattr(operation, name) for name in names}
    if timestamp and operation.kind == "insert":
        arguments["timestamp"] = timestamp
    return ToolCall(f"memory_{operation.kind}", arguments)


def apply_new(state: MemoryState, operation: Operation) -> MemoryState:
    """Apply an operation unless the memory holds the same content already."""
    if operation.content and state.find(operation.category or "", operation.content) is not None:
        return state
    return state.apply(operation)
