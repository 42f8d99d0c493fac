"""Interfaces of evaluated systems: anything that reads a conversation and later returns passages for a question.

A custom system, or a third-party store, needs the three methods of `System`. If it also shows its entries
(`Inspectable`), its wrong answers can be classified. The passages of all systems are cut at the same token budget and
read by the same reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from memalpha.policy.base import Policy
from memalpha.types import Chunk, MemoryEntry, Question, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a system returns or holds: an entry, a raw turn, a chunk, a fact.

    Attributes:
        text: Content that the reader sees.
        id: Id within the system.
        category: Category of the entry.
        timestamp: Date of the content, shown to the reader.
        turns: Ids of the conversation turns that it was taken from, if known.
        order: Write order; the later of two passages of the same time has the greater one.
        chunk: Index of the chunk it was written at, if it names no turns.
        cut_turns: Ids of source turns whose words the budget cut off.
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
    """Memory of one conversation, created anew for every task. `name` appears in reports."""

    name: str

    def read(self, chunk: Chunk) -> None:
        """Process the next chunk of the conversation."""
        ...

    def context(self, question: str) -> Sequence[Passage]:
        """Return passages for a question, best first; the caller cuts them at the token budget."""
        ...

    def size(self) -> int:
        """Return the size of the memory in tokens (characters / 4)."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """System that shows its current entries, so that wrong answers can be classified."""

    def entries(self) -> Sequence[Passage]:
        """Return all current passages, in any order."""
        ...


@runtime_checkable
class Historical(Inspectable, Protocol):
    """System that keeps its past entries; the caller need not record them after every chunk."""

    def history(self) -> Sequence[Passage]:
        """Return all passages up to now; for a system that only adds, its entries."""
        ...


@runtime_checkable
class UsesPolicy(Protocol):
    """Writer or reader that asks a policy, whose calls may be billed."""

    @property
    def policy(self) -> Policy:
        """The policy that is asked."""
        ...


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Passages that one system returned for one question, and its memory at that time.

    Attributes:
        question: Question that was asked.
        passages: Passages that the reader sees, best first, cut at the budget.
        tokens: Length of passages and core text.
        size: Size of the memory in tokens.
        core: Core text in view.
        entries: Current entries; None if the system does not show them.
        history: All entries up to now; None if the system does not show them.
        full_core: The whole core text, where the budget cut `core`.
        search: Returns the passages for another query at that time, cut at the budget; None if that is not possible.
    """

    question: Question
    passages: tuple[Passage, ...]
    tokens: int
    size: int
    core: str = ""
    entries: tuple[Passage, ...] | None = None
    history: tuple[Passage, ...] | None = None
    full_core: str = ""
    search: Callable[[str], tuple[Passage, ...]] | None = field(default=None, compare=False)


def as_passage(entry: MemoryEntry) -> Passage:
    """Convert a memory entry to a passage."""
    turns = () if entry.turn is None else (entry.turn,)
    return Passage(entry.content, entry.id, entry.category, entry.timestamp, turns, entry.valid_from, entry.chunk)


class WrittenMemory:
    """What a rollout's memory held when its questions were asked; an entry becomes a passage once, not per question.

    Args:
        trajectory: The rollout. Its states and turns stay alive as long as this object.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._passages: dict[int, Passage] = {}  # by the identity of an entry, which the trajectory holds
        self._parts: dict[int, tuple[tuple[Passage, ...], tuple[Passage, ...]]] = {}
        self._written = [
            (
                turn.chunk,
                Passage(o.content, o.id, o.category, o.timestamp, () if o.turn is None else (o.turn,), 0, o.chunk),
            )
            for turn in trajectory.turns
            for o in turn.operations
            if o.content
        ]

    def passage(self, entry: MemoryEntry) -> Passage:
        """Return an entry of one of the states as a passage."""
        if id(entry) not in self._passages:
            self._passages[id(entry)] = as_passage(entry)
        return self._passages[id(entry)]

    def after(self, chunk: int) -> tuple[tuple[Passage, ...], tuple[Passage, ...]]:
        """Return the entries after a chunk, in the order of `MemoryState.list`, and all that was written by then."""
        if chunk not in self._parts:
            entries = tuple(map(self.passage, self._trajectory.states[chunk].list()))
            self._parts[chunk] = entries, (*entries, *(passage for at, passage in self._written if at <= chunk))
        return self._parts[chunk]


def questions_by_chunk(task: Task) -> dict[int, list[Question]]:
    """Return the questions of a task by the index of the chunk after which they are asked."""
    by_chunk: dict[int, list[Question]] = {}
    for question in task.questions:
        by_chunk.setdefault(question_chunk(question, task), []).append(question)
    return by_chunk


def question_chunk(question: Question, task: Task) -> int:
    """Return the index of the chunk after which a question is asked."""
    return len(task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
