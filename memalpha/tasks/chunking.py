"""What conversations and long texts share on their way to chunks: cutting, unique turn ids, dates in one form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.sources.files import CHUNK_TOKENS, packed
from memalpha.types import Chunk, Question, SpeakerTurn, Task

CHUNK = CHUNK_TOKENS * 4
"""Longest chunk in characters: 2,048 tokens of four."""

BORDERS = (r"\n\s*\n", r"\n", r"[.!?][\"')\]]*\s+", r"\s+")
"""Where a text may be cut, the best first: after a paragraph, a line, a sentence, a word."""

_AHEAD = 64

_DATES = (
    "%Y/%m/%d %H:%M",
    "%b %d, %Y, %H:%M:%S",
    "%b %d, %Y %H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %I:%M %p",
    "%B %d, %Y, %I:%M %p",
    "%B %d, %Y %I:%M %p",
)
_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%B-%d-%Y", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %B, %Y")
_WEEKDAY = re.compile(r"\s*\((?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\)\s*", re.IGNORECASE)


def iso_time(text: str) -> str | None:
    """A date or time of the official files as ISO 8601; None for one in no known form.

    Known: ISO itself, `2023/05/20 (Sat) 02:21`, `Sep 04, 2025, 21:11:23`, `March-15-2024`, `May 3, 2022` and the like.
    """
    plain = _WEEKDAY.sub(" ", text).strip()
    for form in _DATES:
        if (time := _parsed(plain, form)) is not None:
            return time.isoformat(timespec="seconds" if time.second else "minutes")
    for form in _DAYS:
        if (time := _parsed(plain, form)) is not None:
            return time.date().isoformat()
    try:
        datetime.fromisoformat(plain)
    except ValueError:
        return None
    return plain


def needed_time(text: Any, where: str) -> str:
    """`iso_time` of a date that has to be one. Raises `DataError`."""
    time = iso_time(text) if isinstance(text, str) else None
    if time is None:
        raise DataError(f"{where}: {text!r} is no date or time in a known form (2023/05/20 (Sat) 02:21)")
    return time


def cut(text: str, size: int = CHUNK, borders: Sequence[str] = BORDERS) -> list[str]:
    """A text in pieces of at most `size` characters, cut after the best border that leaves the piece half full.

    Only white space at the ends of pieces is lost; a text of white space alone gives none.
    """
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= size else _border(text, start, start + size, borders)
        if piece := text[start:end].strip():
            pieces.append(piece)
        start = end
    return pieces


class Stream:
    """The chunks of one task in the making. A turn longer than a chunk becomes `id`, `id~2`, ...: `evidence` knows."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._parts: dict[str, list[str]] = {}

    @property
    def last(self) -> int:
        """Index of the last chunk so far."""
        return len(self.chunks) - 1

    def session(self, turns: Iterable[SpeakerTurn], timestamp: str | None = None) -> None:
        """One session, in as few chunks as hold it, cut between turns. Turns without text are left out.

        Raises `DataError` for a turn id that was there before.
        """
        chunks = packed(self._cut(turns))
        self.chunks.extend(chunk.model_copy(update={"timestamp": timestamp}) for chunk in chunks)

    def text(self, text: str, timestamp: str | None = None, borders: Sequence[str] = BORDERS) -> None:
        """A text without speakers, in as many chunks as it needs."""
        self.chunks.extend(Chunk(text=piece, timestamp=timestamp) for piece in cut(text, CHUNK, borders))

    def evidence(self, ids: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
        """The turns of these ids, each once, all parts of those that were cut; and the ids that no turn has."""
        found: dict[str, None] = {}
        unknown: list[str] = []
        for id in ids:
            if id in self._parts:
                found.update(dict.fromkeys(self._parts[id]))
            else:
                unknown.append(id)
        return tuple(found), unknown

    def task(self, id: str, questions: Iterable[Question], where: str, **more: Any) -> Task:
        """The task. Raises `DataError` where nothing is read or asked, or two questions have one id."""
        asked = tuple(questions)
        if not self.chunks:
            raise DataError(f"{where}: holds no text: nothing to read")
        if not id.strip() or not all(question.id.strip() and question.question.strip() for question in asked):
            raise DataError(f"{where}: an id, or the text or id of a question, is empty")
        try:
            return Task(id=id, chunks=tuple(self.chunks), questions=asked, **more)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error

    def _cut(self, turns: Iterable[SpeakerTurn]) -> Iterator[SpeakerTurn]:
        for turn in turns:
            pieces = cut(turn.text, max(CHUNK // 2, CHUNK - len(turn.speaker) - 3))
            ids = [turn.id if n == 0 or turn.id is None else f"{turn.id}~{n + 1}" for n in range(len(pieces))]
            if turn.id is not None and pieces:
                if turn.id in self._parts:
                    raise DataError(f"turn id {turn.id!r} occurs twice in one task")
                self._parts[turn.id] = [id for id in ids if id is not None]
            for id, piece in zip(ids, pieces, strict=True):
                yield SpeakerTurn(speaker=turn.speaker, text=piece, id=id)


def objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of JSON objects; one that is missing or null is empty. Raises `DataError` for anything else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"{where}: a list of objects is needed")
    return value


def recut(task: Task, tokens: int) -> Task:
    """The task in chunks of at most `tokens` (characters / 4): longer ones are cut between turns, texts at borders.

    A turn that is longer by itself stays whole. A question is asked after the last part of its chunk; a gold operation
    belongs to the part that holds its turn, to the last one where it names none.
    """
    chunks: list[Chunk] = []
    last: list[int] = []
    for chunk in task.chunks:
        parts = [chunk]
        if len(chunk.render()) > 4 * tokens:
            pieces = cut(chunk.text, 4 * tokens) if chunk.text is not None else []
            parts = [Chunk(text=piece) for piece in pieces] or packed(chunk.turns, tokens) or parts
        chunks += [part.model_copy(update={"timestamp": chunk.timestamp}) for part in parts]
        last.append(len(chunks) - 1)
    holds = {turn.id: index for index, chunk in enumerate(chunks) for turn in chunk.turns}
    gold = [
        item.model_copy(
            update={"chunk": last[item.chunk] if item.turn is None else holds.get(item.turn, last[item.chunk])}
        )
        for item in task.gold_operations
    ]
    questions = [
        item if (at := item.asked_after_chunk) is None else item.model_copy(update={"asked_after_chunk": last[at]})
        for item in task.questions
    ]
    meta = dict(task.meta)
    if isinstance(facts := meta.get("observations"), list):  # they name chunks, too
        meta["observations"] = [{**fact, "chunk": _recut_fact(fact, holds, last)} for fact in facts]
    return Task(id=task.id, chunks=tuple(chunks), questions=tuple(questions), gold_operations=tuple(gold), meta=meta)


def _recut_fact(fact: Mapping[str, Any], holds: Mapping[str | None, int], last: Sequence[int]) -> int:
    """The part after which a fact can be known: that of the last of its turns, else the last of its chunk."""
    turns = [holds[turn] for turn in fact.get("turns", ()) if turn in holds]
    return max(turns, default=last[fact["chunk"]])


def answers_of(value: Any, where: str) -> tuple[str, ...]:
    """Gold answers as texts, each once: a text, a number, or lists of them at any depth. Raises `DataError` if none."""
    found = dict.fromkeys(text for item in _flat(value, where) if (text := str(item).strip()))
    if not found:
        raise DataError(f"{where}: an answer is needed, a text or a number, and this is {value!r}")
    return tuple(found)


def _flat(value: Any, where: str) -> Iterator[str | int | float]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item, where)
    elif isinstance(value, str | int | float):
        yield value
    elif value is not None:
        raise DataError(f"{where}: an answer is a text or a number, and this is {type(value).__name__}")


def _border(text: str, start: int, end: int, borders: Sequence[str]) -> int:
    """Where a piece from `start` ends: after the last of the best borders past its middle, else at `end`."""
    for border in borders:
        seen = text[start : end + _AHEAD]  # what follows a border may decide whether it is one
        ends = [match.end() for match in re.finditer(border, seen) if match.end() <= end - start]
        if ends and ends[-1] > (end - start) // 2:
            return start + ends[-1]
    return end


def _parsed(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None
