"""Building tasks from conversations and long texts: splitting, turn ids, dates, answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.formats.files import CHUNK_TOKENS, build_task, pack_turns, require_field
from memalpha.types import Chunk, Question, SpeakerTurn, Task, is_iso_time, parse_iso_time

CHUNK = CHUNK_TOKENS * 4
"""Longest chunk in characters: 2,048 tokens of four characters."""

BORDERS = (
    r"\n\s*\n",
    r"\n",
    "[.!?][\"')\\]]*\\s+|[\u3002\uff01\uff1f][\u300d\u300f\uff09\u201d]*",
    r"\s+|[\u3001\uff0c\uff1b]",
)
"""Borders to split a text at, the best first: paragraph, line, sentence, word (of Chinese and Japanese, clause)."""

_AHEAD = 64

_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%B-%d-%Y", "%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y")
_CLOCKS = (" %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_DATES = ("%I:%M %p on %d %B %Y", *(day + clock for day in _DAYS for clock in _CLOCKS))
_WEEKDAY = re.compile(r"(?i)^(?:{0})[a-z]*,?\s+|\s*\((?:{0})[a-z]*\)\s*".format("mon|tue|wed|thu|fri|sat|sun"))
EPOCH = re.compile(r"([12]\d{9})(?:\d{3})?(?:\.\d+)?")
"""Seconds or milliseconds of a time from 2001 to 2065; others are ids or numbers of telephones."""
_OPEN_DATE = re.compile(r"\d{1,2}[./-] ?\d")
_MAIL_DATE = re.compile(r"(?:[a-z]{3}, ?)?\d{1,2} [a-z]{3} \d{4},? \d{1,2}:\d{2}.*", re.IGNORECASE)


def to_iso_time(text: str) -> str | None:
    """Convert a date or time of an official file to ISO 8601.

    Known forms are ISO itself, `2023/05/20 (Sat) 02:21`, `Sep 04, 2025, 21:11:23`, `March-15-2024`, `May 3, 2022` and
    the like.

    Returns:
        The ISO form; None for an unknown form.
    """
    plain = _WEEKDAY.sub(" ", text).strip()
    if plain[4:5] == plain[7:8] == "-" and plain[10:11] in ("T", " ", ""):  # ISO: the forms below take long to fail
        with suppress(ValueError):
            time = parse_iso_time(plain)
            is_plain = plain[10:11] == "T" or len(plain) not in (16, 19)
            return plain if is_plain else time.isoformat(timespec="seconds" if time.second else "minutes")
    words = " ".join(plain.replace(",", " ").replace(" at ", " ").split())
    for form in _DATES if ":" in words else _DAYS:
        with suppress(ValueError):
            time = datetime.strptime(words, form)
            precision = "seconds" if time.second else "minutes"
            return time.date().isoformat() if form in _DAYS else time.isoformat(timespec=precision)
    return plain if is_iso_time(plain) else None


def read_time(text: str) -> str | None:
    """Return the ISO time in a text that names or begins with the year, or counts seconds; None for another one."""
    if _OPEN_DATE.match(text):
        return None
    with suppress(ValueError, TypeError):
        if (match := EPOCH.fullmatch(text)) is not None:
            return datetime.fromtimestamp(int(match[1]), UTC).replace(tzinfo=None).isoformat()
        if _MAIL_DATE.fullmatch(text):
            return parsedate_to_datetime(text).isoformat()
    return to_iso_time(text.removesuffix(" UTC"))


def require_iso_time(text: Any, location: str) -> str:
    """Convert a required date with `to_iso_time`. Raises `DataError` naming `location` if that fails."""
    time = to_iso_time(text) if isinstance(text, str) else None
    if time is None:
        raise DataError(f"{location}: {text!r} is no date or time in a known form (2023/05/20 (Sat) 02:21)")
    return time


def cut_chunk(chunk: Chunk, size: int, *, whole_turns: bool = False) -> list[Chunk]:
    """Cut a chunk into chunks of at most `size` characters, with its timestamp and index.

    Cuts are between turns. A longer turn is cut as `split_text` does, with its speaker and id on each part.

    Args:
        chunk: Chunk to cut.
        size: Longest chunk in characters, without the speakers of its last turn.
        whole_turns: True leaves a longer turn whole.
    """
    if not chunk.turns:
        return [chunk.model_copy(update={"text": part}) for part in split_text(chunk.text or "", size)]
    turns = [
        turn.model_copy(update={"text": part})
        for turn in chunk.turns
        for part in (split_text(turn.text, size) if len(turn.text) > size and not whole_turns else (turn.text,))
    ]
    return [chunk.model_copy(update={"turns": part.turns}) for part in pack_turns(turns, size // 4)]


def split_text(text: str, size: int = CHUNK, borders: Sequence[str] = BORDERS) -> list[str]:
    """Split a text into pieces of at most `size` characters.

    A piece ends after the best border that leaves it half full. Only white space at the ends of pieces is lost, and a
    text of white space alone gives no piece.

    Args:
        text: Text to split.
        size: Longest piece in characters.
        borders: Regular expressions of borders, the best first.
    """
    pieces: list[str] = []
    start = 0
    while start < len(text):
        stop = min(start + size, len(text))
        window = text[start : stop + _AHEAD]  # the text after a border is part of its pattern
        for border in borders if stop < len(text) else ():
            ends = [match.end() for match in re.finditer(border, window) if match.end() <= size]
            if ends and ends[-1] > size // 2:
                stop = start + ends[-1]
                break
        if piece := text[start:stop].strip():
            pieces.append(piece)
        start = stop
    return pieces


def split_lines(text: str, size: int) -> list[str]:
    """Split a text at line ends into pieces of at most `size` characters; only a longer line is split itself.

    A line stays with the name of its speaker, which stands at its beginning.
    """
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        if pieces and len(pieces[-1]) + len(line) <= size:
            pieces[-1] += line
        elif len(line) <= size:
            pieces.append(line)
        else:  # at the end of a sentence or a word
            pieces += (f"{piece}\n" for piece in split_text(line, size))
    return [piece.strip() for piece in pieces if piece.strip()]


class TaskBuilder:
    """Collect the chunks of one task.

    A turn that is longer than a chunk is split into turns `id`, `id~2`, …; `resolve_evidence` returns all of them.
    """

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._parts: dict[str, list[str]] = {}

    @property
    def last_index(self) -> int:
        """Index of the last chunk so far; -1 without chunks."""
        return len(self.chunks) - 1

    def add_session(self, turns: Iterable[SpeakerTurn], timestamp: str | None = None) -> None:
        """Add one session in as few chunks as hold it, split between turns.

        Turns without text are left out.

        Raises:
            DataError: A turn id was used before.
        """
        parts: list[SpeakerTurn] = []
        for turn in turns:
            pieces = split_text(turn.text, max(CHUNK // 2, CHUNK - len(turn.speaker) - 3))
            ids = [turn.id if n == 0 or turn.id is None else f"{turn.id}~{n + 1}" for n in range(len(pieces))]
            if turn.id is not None and pieces:
                if turn.id in self._parts:
                    raise DataError(f"turn id {turn.id!r} occurs twice in one task")
                self._parts[turn.id] = [id for id in ids if id is not None]
            parts += [SpeakerTurn(speaker=turn.speaker, text=text, id=id) for id, text in zip(ids, pieces, strict=True)]
        self.chunks += pack_turns(parts, timestamp=timestamp)

    def add_text(self, text: str, timestamp: str | None = None, borders: Sequence[str] = BORDERS) -> None:
        """Add a text without speakers, in as many chunks as it needs.

        Args:
            text: Text to add.
            timestamp: ISO date or time of every chunk.
            borders: Regular expressions of borders to split at, the best first.
        """
        self.chunks.extend(Chunk(text=piece, timestamp=timestamp) for piece in split_text(text, CHUNK, borders))

    def resolve_evidence(self, ids: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
        """Map official turn ids to the turn ids of the task.

        Returns:
            The turn ids, each once and all parts of a turn that was split, and the ids that no turn has.
        """
        turn_ids: dict[str, None] = {}
        unknown: list[str] = []
        for id in ids:
            if id in self._parts:
                turn_ids.update(dict.fromkeys(self._parts[id]))
            else:
                unknown.append(id)
        return tuple(turn_ids), unknown

    def build(self, id: str, questions: Iterable[Question], location: str, **fields: Any) -> Task:
        """Build the task.

        Args:
            id: Id of the task.
            questions: Questions of the task.
            location: File and item that an error names.
            **fields: Further fields of `Task`.

        Raises:
            DataError: There is no chunk, or two questions share an id.
        """
        if not self.chunks:
            raise DataError(f"{location}: holds no text: nothing to read")
        return build_task(location, id=id, chunks=tuple(self.chunks), questions=tuple(questions), **fields)


def require_objects(value: Any, location: str) -> list[Mapping[str, Any]]:
    """Return a list of JSON objects; None gives an empty list. Raises `DataError` for anything else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"{location}: a list of objects is needed")
    return value


def rechunk(task: Task, tokens: int) -> Task:
    """Split the task's chunks to at most `tokens` tokens (characters / 4).

    Chunks are split between turns, texts at borders. A turn that is longer by itself stays whole. A question is asked
    after the last part of its chunk. A gold operation belongs to the part with its turn, or to the last part if it
    names no turn.
    """
    chunks: list[Chunk] = []
    last_part: list[int] = []
    for chunk in task.chunks:
        is_long = len(chunk.render()) > 4 * tokens
        chunks += (cut_chunk(chunk, 4 * tokens, whole_turns=True) if is_long else []) or [chunk]
        last_part.append(len(chunks) - 1)
    chunk_of_turn = {turn.id: index for index, chunk in enumerate(chunks) for turn in chunk.turns}
    gold = []
    for item in task.gold_operations:
        last = last_part[item.chunk]
        chunk = last if item.turn is None else chunk_of_turn.get(item.turn, last)
        gold.append(item.model_copy(update={"chunk": chunk}))
    questions = []
    for item in task.questions:
        asked = item.asked_after_chunk
        questions.append(item if asked is None else item.model_copy(update={"asked_after_chunk": last_part[asked]}))
    meta = dict(task.meta)
    if isinstance(facts := meta.get("observations"), list):  # observations name chunks, too
        meta["observations"] = []
        for fact in facts:  # in the last chunk of its turns, else the last part of its old chunk
            turns = [chunk_of_turn[turn] for turn in fact.get("turns", ()) if turn in chunk_of_turn]
            meta["observations"].append({**fact, "chunk": max(turns, default=last_part[fact["chunk"]])})
    return Task(id=task.id, chunks=tuple(chunks), questions=tuple(questions), gold_operations=tuple(gold), meta=meta)


def parse_answers(value: Any, location: str) -> tuple[str, ...]:
    """Return gold answers as texts, each once.

    Args:
        value: A text, a number, or lists of them at any depth.
        location: Place that an error names.

    Raises:
        DataError: There is no answer, or a value of another type.
    """
    answers = dict.fromkeys(filter(None, _flatten(value, location)))
    if not answers:
        raise DataError(f"{location}: an answer is needed, a text or a number, and this is {value!r}")
    return tuple(answers)


def read_question(
    item: Any,
    id: str,
    location: str,
    meta: dict[str, Any],
    *,
    abstains: bool = False,
    keys: tuple[str, str] = ("question", "answer"),
    evidence: tuple[str, ...] = (),
    **fields: Any,
) -> Question:
    """Return the question in a JSON object.

    Args:
        item: Parsed JSON value.
        id: Id of the question.
        location: Place that an error names.
        meta: Meta of the question.
        abstains: The right answer is to abstain; the official reply is kept in `meta["refused"]`.
        keys: Keys of the question and of its answers.
        evidence: Ids of the turns that hold the answer.
        **fields: Further fields of the question.

    Raises:
        DataError: `item` is no object, or the question or its answer is missing.
    """
    text = require_field(item, keys[0], str, location)
    answers = parse_answers(item.get(keys[1]), f"{location}: field {keys[1]!r}")
    if abstains:
        meta, answers, evidence = {**meta, "refused": answers[0]}, (), ()
    return Question(id=id, question=text, answers=answers, evidence=evidence, meta=meta, **fields)


def _flatten(value: Any, location: str) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flatten(item, location)
    elif isinstance(value, str | int | float):
        if value == value:  # not a number: a gap in a column of numbers
            # Columns with gaps hold 15 as 15.0.
            yield str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    elif value is not None:
        raise DataError(f"{location}: an answer is a text or a number, and this is {type(value).__name__}")
