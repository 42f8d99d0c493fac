"""BookSum (Kryściński et al. 2021; the cleaned release): a chapter or book is read, then summarised.

A text is split into chunks of at most 2,048 tokens, one a day from 2024-01-01. The question asks for a summary from the
first day to the last, as Mem-alpha asks it; the answers are the row's summaries, one a source. Mem-alpha's own
questions, scored by the keywords of the summary, come with its data (`memalpha_sets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.tasks.chunking import split_text
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import find_file, require_field
from memalpha.tasks.sources.streaming import iter_json_lines
from memalpha.types import Chunk, Question, Task

_SPLITS = ("test", "val", "train")

DATA = DataSet(
    name="booksum",
    about="chapters of novels and whole novels with summaries by people",
    source="hub:ubaada/booksum-complete-cleaned",
    licence="BSD-3-Clause for the collection (texts from Project Gutenberg; summaries of several sites)",
    counts="chapters: test 950, val 854, train 5,653; books: test 17, val 19, train 151; a row has several summaries",
    metric="rouge",
    variants=tuple(f"{level}-{part}" for level in ("chapters", "books") for part in _SPLITS),
    training_variants=("chapters-train", "books-train"),
    files=tuple(
        File(f"{level}/{part}.jsonl", None, None, (f"{level}-{part}",))
        for level in ("chapters", "books")
        for part in _SPLITS
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
    """Load the rows of a part.

    Args:
        path: Folder or file of the part.
        variant: Level and split, such as "chapters-test".
        limit: Return the first `limit` rows only.
        min_chunks: Leave out rows with fewer chunks.
        max_chunks: Leave out rows with more chunks.
    """
    return list(islice(texts(path, variant, min_chunks, max_chunks), limit))


def texts(path: Path, variant: str | None = None, min_chunks: int = 1, max_chunks: int = 1 << 31) -> Iterator[Task]:
    """Yield the rows of a part one at a time, as `load` returns them.

    Args:
        path: Folder or file of the part.
        variant: Level and split, such as "chapters-test".
        min_chunks: Leave out rows with fewer chunks.
        max_chunks: Leave out rows with more chunks.

    Raises:
        DataError: The file does not fit; the message names file, line and field.
    """
    file = find_file(path, DATA.files_for(variant)[0].path)
    for number, (location, row) in enumerate(iter_json_lines(file)):
        pieces = split_text(require_field(row, "text", str, location))
        if min_chunks <= len(pieces) <= max_chunks and (task := _task(row, pieces, f"{file.stem}-{number}", location)):
            yield task


def _task(row: Any, pieces: list[str], id: str, location: str) -> Task | None:
    summaries = []
    for n, item in enumerate(require_field(row, "summary", list, location)):
        text = item if isinstance(item, str) else require_field(item, "text", (str, list), f"{location}: summary[{n}]")
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
