"""What is evaluated: anything that reads a conversation and later shows what it kept.

A system of one's own, or somebody else's store, needs three methods (`System`); one that also shows its entries
(`Inspectable`) has its losses traced. All systems are asked alike: what they show for a question, best first, is cut at
one budget of tokens and read by one reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from memalpha.types import Chunk, MemoryEntry, Question


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a system shows or holds: an entry, a raw turn, a chunk, a fact.

    `id` is the system's own; `turns` are ids of the stream's turns that it was taken from, where that is known.
    `chunk`: of an entry that names no turns, the part of the stream it was written at. `order`: of two passages of one
    time, the one written later has the greater. `lost`: turns that were its own until the budget cut it off.
    """

    text: str
    id: str | None = None
    category: str | None = None
    timestamp: str | None = None
    turns: tuple[str, ...] = ()
    order: int = 0
    chunk: int | None = None
    cut_turns: tuple[str, ...] = ()


class System(Protocol):
    """One memory of one conversation, made anew for every task. `name` goes into reports."""

    name: str

    def read(self, chunk: Chunk) -> None:
        """Take in the next part of the conversation."""
        ...

    def context(self, question: str) -> Sequence[Passage]:
        """What it has for a question, best first; what is beyond the budget of tokens is cut off."""
        ...

    def size(self) -> int:
        """What it holds, in tokens (characters / 4)."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A system that shows all it holds now, so that it can be said where an answer was lost."""

    def entries(self) -> Sequence[Passage]:
        """All passages it holds now, in any order."""
        ...


@runtime_checkable
class Historical(Inspectable, Protocol):
    """A system that knows all it ever held: it needs no look at its entries after every chunk."""

    def history(self) -> Sequence[Passage]:
        """All passages it has held up to now; for one that only ever adds, its entries."""
        ...


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What one system had for one question when it was asked.

    `passages`: what the reader saw, best first, already cut at the budget, and of how many `tokens`; `core`: text that
    is always in view, `core_held` all of it where `core` is only what the budget left. `held`: all it held then;
    `ever`: all it had held up to then (None where the system does not show it). `size`: tokens held.
    """

    question: Question
    passages: tuple[Passage, ...]
    tokens: int
    size: int
    core: str = ""
    entries: tuple[Passage, ...] | None = None
    history: tuple[Passage, ...] | None = None
    full_core: str = ""


def as_passage(entry: MemoryEntry) -> Passage:
    """An entry of a memory as a passage."""
    turns = () if entry.turn is None else (entry.turn,)
    return Passage(entry.content, entry.id, entry.category, entry.timestamp, turns, entry.valid_from, entry.chunk)
