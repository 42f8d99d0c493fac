"""Baseline systems without a writer: nothing, everything, recent turns, and search over turns, windows or facts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from memalpha.agent.copying_reader import format_date
from memalpha.errors import DataError
from memalpha.qa.report import estimate_tokens
from memalpha.qa.systems.base import Passage
from memalpha.store.embedding import Embedder
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Task, is_iso_time


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
                selected.append(_cut_passage(passage, shortened, turn_texts or {}))
            break
        selected.append(passage)
        remaining -= tokens
    return core, tuple(selected)


def turn_texts_of(task: Task) -> dict[str, str]:
    """Return the text of each turn that has an id."""
    return {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}


def _cut_passage(passage: Passage, text: str, turn_texts: Mapping[str, str]) -> Passage:
    words = f" {' '.join(text.split())} "
    complete = [turn for turn in passage.turns if f" {' '.join(turn_texts.get(turn, '').split())} " in words]
    cut_turns = tuple(turn for turn in passage.turns if turn not in complete)
    return replace(passage, text=text, turns=tuple(complete), cut_turns=cut_turns)


def _truncate(text: str, tokens: int) -> str:
    head = text[: 4 * max(tokens, 0)]
    return head.rsplit(None, 1)[0] if head.strip() and len(head.split()) > 1 else head


def passage_tokens(passages: Iterable[Passage]) -> int:
    """Return the tokens of passages as a reader sees them, each with its date."""
    return sum(
        estimate_tokens(passage.text) + (estimate_tokens(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )


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
        return [
            Passage(line, f"{chunk.index}.{index}", "episodic", chunk.timestamp) for index, line in enumerate(lines)
        ]
    return [
        Passage(
            turn.text if turn.speaker in UNNAMED_SPEAKERS else f"{turn.speaker}: {turn.text}",
            turn.id or f"{chunk.index}.{at}",
            "episodic",
            chunk.timestamp,
            () if turn.id is None else (turn.id,),
        )
        for at, turn in enumerate(chunk.turns)
        if turn.text.strip()
    ]


def window_passages(chunk: Chunk, tokens: int = WINDOW_TOKENS) -> list[Passage]:
    """Group consecutive turns of a chunk into windows of at most `tokens`; longer turns are split at words."""
    pieces = [
        replace(turn, text=part) for turn in turn_passages(chunk) for part in _split_at_words(turn.text, 4 * tokens)
    ]
    windows: list[list[Passage]] = []
    for piece in pieces:
        if windows and sum(len(part.text) + 1 for part in windows[-1]) + len(piece.text) <= 4 * tokens:
            windows[-1].append(piece)
        else:
            windows.append([piece])
    return [
        Passage(
            "\n".join(part.text for part in window),
            f"{chunk.index}.{index}",
            "episodic",
            chunk.timestamp,
            tuple(dict.fromkeys(turn for part in window for turn in part.turns)),
        )
        for index, window in enumerate(windows)
    ]


def _split_at_words(text: str, size: int) -> Iterator[str]:
    while len(text) > size:
        end = text.rfind(" ", size // 2, size) + 1 or size
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    if text:
        yield text


def plain_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as a plain entry for `MemoryStore.insert_many`."""
    return {"category": piece.category, "content": piece.text, "timestamp": piece.timestamp}


def raw_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as raw dated text of its conversation, whose neighbours are searched too."""
    fields = plain_fields(piece, chunk)
    if piece.timestamp and is_iso_time(piece.timestamp[:10]):
        fields["content"] = f"{format_date(date.fromisoformat(piece.timestamp[:10]))} {piece.text}"
    return fields | {"source": "conversation", "chunk": chunk.index, "turn": piece.id}


class EmptySystem:
    """System that stores nothing."""

    name = "empty"

    def read(self, chunk: Chunk) -> None:
        """Ignore the chunk."""

    def context(self, question: str) -> Sequence[Passage]:
        """Return no passages."""
        return ()

    def size(self) -> int:
        """Return 0."""
        return 0

    def entries(self) -> Sequence[Passage]:
        """Return no passages."""
        return ()

    def history(self) -> Sequence[Passage]:
        """Return no passages."""
        return ()


class SearchSystem:
    """System that stores the passages of every chunk and returns the k best of the store's default search.

    The store keeps each text once; a repeated text takes the position of its last occurrence.

    Args:
        name: Name in reports.
        split: Splits a chunk into passages.
        k: Passages to return.
        embedder: Embedder of the store.
        raw: True stores raw dated text, whose context is searched too. False stores plain entries.
    """

    def __init__(
        self, name: str, split: Callable[[Chunk], Sequence[Passage]], k: int, embedder: Embedder, *, raw: bool = True
    ) -> None:
        self.name = name
        self._split, self._k, self._raw = split, k, raw
        self._store = MemoryStore.open(":memory:", embedder=embedder)
        self._passages: dict[str, Passage] = {}
        self._tokens = self._pieces_read = 0

    def read(self, chunk: Chunk) -> None:
        """Store the passages of the chunk."""
        pieces = self._split(chunk)
        fields = raw_fields if self._raw else plain_fields
        entries = self._store.insert_many(fields(piece, chunk) for piece in pieces)
        for piece, entry in zip(pieces, entries, strict=True):
            self._pieces_read += 1
            previous = self._passages.get(entry.id)
            if previous is None:
                self._tokens += passage_tokens((piece,))
            turns = (
                piece.turns if previous is None else (*previous.turns, *piece.turns)
            )  # the same words: taken from both
            self._passages[entry.id] = replace(piece, id=entry.id, turns=turns, order=self._pieces_read)

    def context(self, question: str) -> Sequence[Passage]:
        """Return the k best passages."""
        return [self._passages[hit.entry.id] for hit in self._store.search(question, self._k)]

    def size(self) -> int:
        """Return the tokens of all stored passages."""
        return self._tokens

    def entries(self) -> Sequence[Passage]:
        """Return all stored passages."""
        return tuple(self._passages.values())

    def history(self) -> Sequence[Passage]:
        """Return all stored passages; none is ever removed."""
        return self.entries()


class RecentSystem:
    """System that keeps the last turns of a conversation, newest first.

    Args:
        name: Name in reports.
        tokens: Size limit; None keeps the whole conversation.
    """

    def __init__(self, name: str, tokens: int | None) -> None:
        self.name = name
        self._limit = tokens
        self._passages: deque[Passage] = deque()
        self._history: list[Passage] = []
        self._tokens = 0

    def read(self, chunk: Chunk) -> None:
        """Add the turns of the chunk and drop the oldest ones beyond the limit."""
        for turn in turn_passages(chunk):
            turn = replace(turn, order=len(self._history))
            self._passages.append(turn)
            self._history.append(turn)
            self._tokens += passage_tokens((turn,))
            while self._limit is not None and self._tokens > self._limit and len(self._passages) > 1:
                self._tokens -= passage_tokens((self._passages.popleft(),))

    def context(self, question: str) -> Sequence[Passage]:
        """Return all current turns, newest first."""
        return tuple(reversed(self._passages))

    def size(self) -> int:
        """Return the tokens of the current turns."""
        return self._tokens

    def entries(self) -> Sequence[Passage]:
        """Return the current turns."""
        return tuple(self._passages)

    def history(self) -> Sequence[Passage]:
        """Return every turn that was read."""
        return tuple(self._history)


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
