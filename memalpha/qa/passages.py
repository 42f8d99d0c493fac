"""Passages: pieces of text that systems hold and show, made of turns, facts and entries, cut at a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from memalpha.agent.dates import format_date
from memalpha.errors import DataError
from memalpha.qa.report import estimate_tokens
from memalpha.store.memory import WorkingMemory
from memalpha.types import Chunk, Hit, MemoryEntry, Question, Task, Trajectory, is_iso_time


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
        memory: Memory that the reader itself searches, instead of passages that the system returned.
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
    memory: WorkingMemory | None = field(default=None, compare=False)


def as_passage(entry: MemoryEntry) -> Passage:
    """Convert a memory entry to a passage."""
    turns = () if entry.turn is None else (entry.turn,)
    return Passage(entry.content, entry.id, entry.category, entry.timestamp, turns, entry.valid_from, entry.chunk)


def passages_as_hits(passages: Sequence[Passage], entries: dict[int, MemoryEntry] | None = None) -> tuple[Hit, ...]:
    """Convert passages to the hits that a reader takes.

    Args:
        passages: Passages, best first.
        entries: Cache of entries by `id()` of passages that have an id; filled here. A system that returns all its
            passages returns the same ones for every question.
    """
    entries = {} if entries is None else entries
    hits = []
    for index, passage in enumerate(passages):
        if (entry := entries.get(id(passage))) is None:
            entry = MemoryEntry(
                id=passage.id or f"#{index}",
                category=passage.category or "",
                content=passage.text,
                timestamp=passage.timestamp,
                turn=passage.turns[0] if passage.turns else None,
                valid_from=passage.order,
            )
            if passage.id:
                entries[id(passage)] = entry
        hits.append(Hit(entry, score=-float(index)))
    return tuple(hits)


class WrittenMemory:
    """Passages of a rollout's memory as it was after each chunk; an entry becomes a passage once, not per question.

    Args:
        trajectory: The rollout. Its states and turns stay alive as long as this object.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
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
            entries = tuple(map(self.passage, self.trajectory.states[chunk].list()))
            self._parts[chunk] = entries, (*entries, *(passage for at, passage in self._written if at <= chunk))
        return self._parts[chunk]


WINDOW_TOKENS = 256
"""Tokens of a window of consecutive turns."""


UNNAMED_SPEAKERS = frozenset({"user", "story"})
"""Generic speakers, which are not put in front of their text."""


def turn_passages(chunk: Chunk) -> list[Passage]:
    """Return the turns of a chunk, or the lines of its text, each as a passage.

    The speaker stands in front if he has a name. A line has the id `<chunk>.<number>` and no turn.
    """
    if chunk.text is not None:
        lines = [line.strip() for line in chunk.text.splitlines() if line.strip()]
        return [Passage(line, f"{chunk.index}.{at}", "episodic", chunk.timestamp) for at, line in enumerate(lines)]
    passages = []
    for index, turn in enumerate(chunk.turns):
        if turn.text.strip():
            text = turn.text if turn.speaker in UNNAMED_SPEAKERS else f"{turn.speaker}: {turn.text}"
            id, turns = turn.id or f"{chunk.index}.{index}", () if turn.id is None else (turn.id,)
            passages.append(Passage(text, id, "episodic", chunk.timestamp, turns))
    return passages


def window_passages(chunk: Chunk, tokens: int = WINDOW_TOKENS) -> list[Passage]:
    """Group consecutive turns of a chunk into windows of at most `tokens`; longer turns are split at words."""
    size, pieces = 4 * tokens, list[Passage]()
    for turn in turn_passages(chunk):
        text = turn.text
        while len(text) > size:
            end = text.rfind(" ", size // 2, size) + 1 or size
            pieces.append(replace(turn, text=text[:end].rstrip()))
            text = text[end:].lstrip()
        if text:
            pieces.append(replace(turn, text=text))
    windows: list[list[Passage]] = []
    for piece in pieces:
        if windows and sum(len(part.text) + 1 for part in windows[-1]) + len(piece.text) <= size:
            windows[-1].append(piece)
        else:
            windows.append([piece])
    passages = []
    for index, window in enumerate(windows):
        text = "\n".join(part.text for part in window)
        turns = tuple(dict.fromkeys(turn for part in window for turn in part.turns))
        passages.append(Passage(text, f"{chunk.index}.{index}", "episodic", chunk.timestamp, turns))
    return passages


def fact_passages(task: Task) -> Callable[[Chunk], Sequence[Passage]]:
    """Return a function from a chunk to the task's own facts about it.

    `Task.meta["observations"]` is a list of `{"text", "chunk"}`, with `turns` (ids) and `timestamp` if known.

    Raises:
        DataError: The task has no such facts, or one lacks a field.
    """
    facts = task.meta.get("observations")
    if not isinstance(facts, list) or not facts:
        raise DataError(
            f"system facts: task {task.id!r} brings no facts of its own (meta 'observations'): take another system"
        )
    by_chunk: dict[int, list[Passage]] = {}
    for number, fact in enumerate(facts):
        if not isinstance(fact, Mapping) or not isinstance(fact.get("text"), str) or "chunk" not in fact:
            raise DataError(f"task {task.id!r}: meta.observations[{number}] needs 'text' and 'chunk'")
        stamp = fact.get("timestamp") or task.chunks[fact["chunk"]].timestamp
        turns = tuple(map(str, fact.get("turns", ())))
        by_chunk.setdefault(fact["chunk"], []).append(Passage(fact["text"], f"fact{number}", "semantic", stamp, turns))
    return lambda chunk: by_chunk.get(chunk.index, ())


def plain_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as a plain entry for `MemoryStore.insert_many`."""
    return {"category": piece.category, "content": piece.text, "timestamp": piece.timestamp}


def raw_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as raw dated text of its conversation, whose neighbours are searched too."""
    fields = plain_fields(piece, chunk)
    if piece.timestamp and is_iso_time(piece.timestamp[:10]):
        fields["content"] = f"{format_date(date.fromisoformat(piece.timestamp[:10]))} {piece.text}"
    return fields | {"source": "conversation", "chunk": chunk.index, "turn": piece.id}


def passage_tokens(passages: Iterable[Passage]) -> int:
    """Return the tokens of passages as a reader sees them, each with its date."""
    return sum(
        estimate_tokens(passage.text) + (estimate_tokens(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )


def turn_texts_of(task: Task) -> dict[str, str]:
    """Return the text of each turn that has an id."""
    return {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}


def cut_to_budget(
    passages: Sequence[Passage], budget: int | None, core: str = "", turn_texts: Mapping[str, str] | None = None
) -> tuple[str, tuple[Passage, ...]]:
    """Cut core text and passages to `budget` tokens in all, at a word boundary.

    The first passage that does not fit ends the list. Only if it is the very first, its beginning is kept. Such a
    passage keeps the ids of turns whose words are all in the kept text; the others become `cut_turns`.

    Args:
        passages: Passages, best first.
        budget: Tokens (characters / 4); None returns everything.
        core: Core text, which comes first.
        turn_texts: Words of each turn by id.
    """
    if budget is None:
        return core, tuple(passages)
    if estimate_tokens(core) > budget:
        return _truncate(core, budget), ()
    remaining, selected = budget - estimate_tokens(core), []
    for passage in passages:
        if (tokens := passage_tokens((passage,))) > remaining:
            room = remaining - (tokens - estimate_tokens(passage.text))  # the date has to fit too
            if not selected and not core and (shortened := _truncate(passage.text, room)):
                words, texts = f" {' '.join(shortened.split())} ", turn_texts or {}
                turns = [turn for turn in passage.turns if f" {' '.join(texts.get(turn, '').split())} " in words]
                cut_turns = tuple(turn for turn in passage.turns if turn not in turns)
                selected.append(replace(passage, text=shortened, turns=tuple(turns), cut_turns=cut_turns))
            break
        selected.append(passage)
        remaining -= tokens
    return core, tuple(selected)


def _truncate(text: str, tokens: int) -> str:
    head = text[: 4 * max(tokens, 0)]
    return head.rsplit(None, 1)[0] if head.strip() and len(head.split()) > 1 else head
