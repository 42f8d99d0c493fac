"""PersonaMem v2 as short tasks for training: a question, its snippet, and snippets of other rows.

A task is one question. Its chunks are the related snippet and 1 to `irrelevant` others, drawn from rows of other
personas and shuffled. All of it follows from `seed` and the rows; `limit` does not change it. Evidence are the turns of
the related snippet, `meta["snippet"]` is its index. The choices are as in `personamem`. `qa.scoring.metrics` describes
the reward of an answer that names its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.datasets.personamem import parse_literal, shuffle_choices
from memalpha.tasks.formats.files import find_file, require_field
from memalpha.tasks.formats.streaming import iter_csv_rows
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
    location: str
    number: int
    values: Mapping[str, str]
    messages: tuple[tuple[str, str], ...]
    persona: str


def load(
    path: Path, variant: str | None = None, limit: int | None = None, *, irrelevant: int = 5, seed: int = 0
) -> list[Task]:
    """Load the rows of a split that have a snippet, with snippets of others.

    Args:
        path: File of the split, or its folder.
        variant: "train", "val" or "benchmark".
        limit: Return the first `limit` rows only.
        irrelevant: Most snippets of other personas in a task; at least one is mixed in.
        seed: Seed of their choice and order.

    Raises:
        DataError: The file does not fit (the message names file, line and field), or has one persona only.
    """
    if irrelevant < 1:
        raise DataError(f"irrelevant: {irrelevant}: at least one snippet of another row is mixed in")
    name = f"benchmark/text/{_FILES[variant or DATA.variants[0]]}"
    file = path if path.is_file() else find_file(path, name)
    rows = [
        row for n, (location, values) in enumerate(iter_csv_rows(file)) if (row := _row(values, n, location)).messages
    ]
    if not rows:
        raise DataError(f"{file}: no row has a related_conversation_snippet")
    ring = list(rows)
    Random(seed).shuffle(ring)
    return [_task(row, ring, irrelevant, seed) for row in rows[:limit]]


def _row(values: Mapping[str, str], number: int, location: str) -> _Row:
    text = values.get("related_conversation_snippet", "")
    messages_raw = parse_literal(text) if text else []
    if not isinstance(messages_raw, list) or not all(isinstance(item, dict) for item in messages_raw):
        raise DataError(f"{location}: related_conversation_snippet is no list of messages")
    messages = tuple(
        (require_field(item, "role", str, location), require_field(item, "content", str, location))
        for item in messages_raw
    )
    return _Row(location, number, values, messages, require_field(values, "persona_id", str, location))


def _task(row: _Row, ring: list[_Row], max_others: int, seed: int) -> Task:
    rng = Random(f"{seed} {row.number}")
    mixed = [row, *_draw_other_rows(row, ring, rng.randint(1, max_others), rng.randrange(len(ring)))]
    rng.shuffle(mixed)
    builder = TaskBuilder()
    related_turns: list[str] = []
    for index, snippet_row in enumerate(mixed):
        turns = [
            SpeakerTurn(speaker=speaker, text=text, id=f"s{index}:{n}")
            for n, (speaker, text) in enumerate(snippet_row.messages)
        ]
        builder.add_session(turns)
        if snippet_row is row:
            related_turns = [turn.id or "" for turn in turns if turn.text.strip()]
    text, choices, letter = shuffle_choices(row.values, f"{seed} {row.number}", row.location)
    meta: dict[str, Any] = {"metric": "choice", "choices": choices, "choice": letter, "snippet": mixed.index(row)}
    question = Question(
        id="q0",
        question=text,
        answers=(f"({letter}) {choices[letter]}",),
        category=row.values.get("pref_type") or None,
        evidence=builder.resolve_evidence(related_turns)[0],
        meta=meta,
    )
    return builder.build(f"row{row.number}", [question], row.location, meta={"persona_id": row.persona})


def _draw_other_rows(row: _Row, ring: list[_Row], count: int, start: int) -> list[_Row]:
    """Return the next `count` rows of other personas from index `start` on.

    Each row has another snippet; there may be fewer rows.
    """
    chosen_rows: dict[tuple[tuple[str, str], ...], _Row] = {}
    for step in range(len(ring)):
        candidate = ring[(start + step) % len(ring)]
        if candidate.persona != row.persona and candidate.messages != row.messages:
            chosen_rows.setdefault(candidate.messages, candidate)
            if len(chosen_rows) == count:
                break
    if not chosen_rows:
        raise DataError(f"{row.location}: no other persona's snippet to mix in: the file has one persona only")
    return list(chosen_rows.values())
