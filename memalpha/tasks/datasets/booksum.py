"""BookSum (Kryściński et al. 2021; the cleaned release) as tasks: a chapter or book is read, then summarised.

A text is cut into chunks of at most 2,048 tokens, one a day from 2024-01-01, and the question asks for what was read
between the first day and the last, as Mem-alpha asks it; the answers are the row's summaries, one a source. Mem-alpha's
own questions, scored by the keywords of the summary, come with its data (`memalpha_sets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.tasks.chunking import cut
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import json_lines
from memalpha.types import Chunk, Question, Task

_PARTS = ("test", "val", "train")

DATA = DataSet(
    name="booksum",
    about="chapters of novels and whole novels with summaries by people",
    source="hub:ubaada/booksum-complete-cleaned",
    licence="BSD-3-Clause for the collection (texts from Project Gutenberg; summaries of several sites)",
    counts="chapters: test 950, val 854, train 5,653; books: test 17, val 19, train 151; a row has several summaries",
    metric="rouge",
    variants=tuple(f"{level}-{part}" for level in ("chapters", "books") for part in _PARTS),
    training_variants=("chapters-train", "books-train"),
    files=tuple(
        File(f"{level}/{part}.jsonl", None, None, (f"{level}-{part}",))
        for level in ("chapters", "books")
        for part in _PARTS
    ),
    faults=(
        "no revision is pinned: the newest is taken, and its commit noted in the tasks (meta['commit'])",
        "some summaries belong to other chapters; its authors corrected some",
        "chapters of few chunks ask nothing of a memory: left out (min_chunks), as Mem-alpha does",
    ),
)


def load(
    path: Path, variant: str | None = None, limit: int | None = None, min_chunks: int = 5, max_chunks: int = 20
) -> list[Task]:
    """The rows of a part with `min_chunks` to `max_chunks` chunks (the first `limit`)."""
    return list(islice(texts(path, variant, min_chunks, max_chunks), limit))


def texts(path: Path, variant: str | None = None, min_chunks: int = 1, max_chunks: int = 1 << 31) -> Iterator[Task]:
    """As `load`, one at a time. Raises `DataError` naming file, line and field."""
    file = file_in(path, DATA.files_for(variant)[0].path)
    for number, (where, row) in enumerate(json_lines(file)):
        pieces = cut(field(row, "text", str, where))
        if min_chunks <= len(pieces) <= max_chunks and (task := _task(row, pieces, f"{file.stem}-{number}", where)):
            yield task


def _task(row: Any, pieces: list[str], id: str, where: str) -> Task | None:
    summaries = []
    for n, item in enumerate(field(row, "summary", list, where)):
        text = item if isinstance(item, str) else field(item, "text", (str, list), f"{where}: summary[{n}]")
        if text := ("\n".join(map(str, text)) if isinstance(text, list) else text).strip():
            summaries.append(text)
    if not summaries or not pieces:
        return None
    days = [(date(2024, 1, 1) + timedelta(days=n)).isoformat() for n in range(len(pieces))]
    question = Question(
        id="summary",
        question=f"Summarize what I read in the book from {days[0]} to {days[-1]}.",
        answers=tuple(dict.fromkeys(summaries)),
        category="summary",
        meta={"metric": DATA.metric},
    )
    return Task(
        id=f"booksum-{id}",
        chunks=tuple(Chunk(text=piece, timestamp=day) for piece, day in zip(pieces, days, strict=True)),
        questions=(question,),
        meta={key: str(row[key]) for key in ("book_title", "title", "chapter_id", "bid") if row.get(key)},
    )
