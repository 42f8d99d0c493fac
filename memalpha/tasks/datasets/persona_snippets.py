"""PersonaMem v2 as short tasks for training: the snippet that a question is about, among snippets of other rows.

A task is one question. Its chunks are the related snippet and 1 to `irrelevant` others, drawn from rows of other
personas and shuffled; all of it follows from `seed` and the rows, which `limit` does not change. Evidence are the turns
of the related snippet, `meta["snippet"]` is its place. The choices are as in `personamem`. How an answer that names its
evidence is rewarded: `qa.cited`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.datasets.personamem import literal, with_choices
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import csv_rows
from memalpha.types import Question, SpeakerTurn, Task

_FILES = {"train": "train.csv", "val": "val.csv", "benchmark": "benchmark.csv"}

DATA = DataSet(
    name="personamem_snippets",
    about="a question with choices, the snippet it is about, and snippets of others around it",
    source="hub:bowen-upenn/PersonaMem-v2",
    licence="CC BY 4.0",
    counts="a task a row: 5,000 in the benchmark, more in train and val",
    metric="choice",
    revision="ed956dea41521fc4499acbc63f966e0fd3c053ba",
    variants=tuple(_FILES),
    training_variants=("train",),
    files=tuple(File(f"benchmark/text/{name}", None, None, (variant,)) for variant, name in _FILES.items()),
    faults=(
        "735 personas of the training file are in the validation file too, though the card says none",
        "rows without a related snippet are left out",
    ),
)


class _Row(NamedTuple):
    where: str
    number: int
    values: Mapping[str, str]
    said: tuple[tuple[str, str], ...]
    persona: str


def load(
    path: Path, variant: str | None = None, limit: int | None = None, *, irrelevant: int = 5, seed: int = 0
) -> list[Task]:
    """The rows of a split (the first `limit` that have a snippet), each with 1 to `irrelevant` snippets of others.

    `path` is the split's file or the folder it lies in. Raises `DataError` naming file, line and field, and where no
    other persona has a snippet.
    """
    if irrelevant < 1:
        raise DataError(f"irrelevant: {irrelevant}: at least one snippet of another row is mixed in")
    name = f"benchmark/text/{_FILES[variant or DATA.variants[0]]}"
    file = path if path.is_file() else file_in(path, name)
    rows = [row for n, (where, values) in enumerate(csv_rows(file)) if (row := _row(values, n, where)).said]
    if not rows:
        raise DataError(f"{file}: no row has a related_conversation_snippet")
    ring = list(rows)
    Random(seed).shuffle(ring)
    return [_task(row, ring, irrelevant, seed) for row in rows[:limit]]


def _row(values: Mapping[str, str], number: int, where: str) -> _Row:
    text = values.get("related_conversation_snippet", "")
    said = literal(text) if text else []
    if not isinstance(said, list) or not all(isinstance(item, dict) for item in said):
        raise DataError(f"{where}: related_conversation_snippet is no list of messages")
    messages = tuple((field(item, "role", str, where), field(item, "content", str, where)) for item in said)
    return _Row(where, number, values, messages, field(values, "persona_id", str, where))


def _task(row: _Row, ring: list[_Row], most: int, seed: int) -> Task:
    rng = Random(f"{seed} {row.number}")
    mixed = [row, *_others(row, ring, rng.randint(1, most), rng.randrange(len(ring)))]
    rng.shuffle(mixed)
    stream = Stream()
    related: list[str] = []
    for place, other in enumerate(mixed):
        turns = [SpeakerTurn(speaker=who, text=text, id=f"s{place}:{n}") for n, (who, text) in enumerate(other.said)]
        stream.session(turns)
        if other is row:
            related = [turn.id or "" for turn in turns if turn.text.strip()]
    text, choices, letter = with_choices(row.values, f"{seed} {row.number}", row.where)
    meta: dict[str, Any] = {"metric": "choice", "choices": choices, "choice": letter, "snippet": mixed.index(row)}
    question = Question(
        id="q0",
        question=text,
        answers=(f"({letter}) {choices[letter]}",),
        category=row.values.get("pref_type") or None,
        evidence=stream.evidence(related)[0],
        meta=meta,
    )
    return stream.task(f"row{row.number}", [question], row.where, meta={"persona_id": row.persona})


def _others(row: _Row, ring: list[_Row], count: int, start: int) -> list[_Row]:
    """The next `count` rows of other personas from place `start` of the shuffled rows on, fewer where there are not so
    many; each with another snippet."""
    found: dict[tuple[tuple[str, str], ...], _Row] = {}
    for step in range(len(ring)):
        other = ring[(start + step) % len(ring)]
        if other.persona != row.persona and other.said != row.said:
            found.setdefault(other.said, other)
            if len(found) == count:
                break
    if not found:
        raise DataError(f"{row.where}: no other persona's snippet to mix in: the file has one persona only")
    return list(found.values())
