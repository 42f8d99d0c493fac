"""Training and test sets of Mem-alpha (Wang et al. 2025): chunks as rendered, questions at the end.

Rows hold chunks and questions as JSON texts. The metric follows from a row's source, as its authors score it. For
summaries it is the share of keywords found (one text with commas, or a list), for PerLTQA that of the answer's parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, parse_answers, to_iso_time
from memalpha.tasks.dataset_info import DataSet, shipped_card
from memalpha.tasks.formats.files import find_file, iter_parquet_rows, require_field
from memalpha.text_files import parse_json
from memalpha.types import Chunk, Question, Task

DATA = (shipped_card("memalpha"), shipped_card("memalpha_mab"))

METRICS = {
    **dict.fromkeys(("squad", "hotpotqa", "ruler_qa"), "substring"),
    "perltqa": "parts",
    **dict.fromkeys(("booksum", "infbench_sum"), "keywords"),
    **dict.fromkeys(("lme_train", "longmemeval"), "judge"),
    **dict.fromkeys(("pubmed-rct", "icl_", "ttl_train"), "label"),
    "detective": "squad-exact",
}
"""Metric of Mem-alpha's authors by the beginning of a row's source."""

_HEADER = re.compile(
    r"^\[[^\]\n]*?(?:\bon|\btimestamp)\s+(?P<time>\d{4}[-/]\d{2}[-/]\d{2}(?: \(\w+\))?(?: \d{2}:\d{2})?)"
)


def load_memalpha(path: Path, variant: str | None = None, limit: int | None = None, source: str = "") -> list[Task]:
    """Load the rows of Mem-alpha's own sets whose source begins with `source`.

    Args:
        path: Folder or Parquet file.
        variant: "test" or "train".
        limit: Return the first `limit` rows only.
        source: Beginning of the source; "" takes all rows.
    """
    return list(islice(_rows(path, DATA[0], variant, source), limit))


def load_memalpha_mab(path: Path, variant: str | None = None, limit: int | None = None, source: str = "") -> list[Task]:
    """Load the rows of MemoryAgentBench whose source begins with `source`.

    Args:
        path: Folder or Parquet file.
        variant: "test" or "train".
        limit: Return the first `limit` rows only.
        source: Beginning of the source; "" takes all rows.
    """
    return list(islice(_rows(path, DATA[1], variant, source), limit))


def _rows(path: Path, dataset: DataSet, variant: str | None, source: str) -> Iterator[Task]:
    """Yield the rows whose source begins with `source`. Raises `DataError` naming file, row and field."""
    file = find_file(path, dataset.files_for(variant)[0].path)
    columns = ("instance_id", "chunks", "questions_and_answers", "data_source", "metadata")
    count: Counter[str] = Counter()
    for location, row in iter_parquet_rows(file, columns):
        metadata = _json(row.get("metadata") or "{}", dict, f"{location}: metadata")
        kind = require_field(row, "data_source", str, location)
        if kind not in METRICS and isinstance(sub_source := metadata.get("sub_source"), str):
            kind = sub_source
        if kind.startswith(source):
            yield _task(row, kind, f"{kind}_{count[kind]}", location)
        count[kind] += 1


def _task(row: Mapping[str, Any], source: str, id: str, location: str) -> Task:
    builder = TaskBuilder()
    for n, text in enumerate(_json(row["chunks"], list, f"{location}: chunks")):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{location}: chunks[{n}]: a text is needed")
        match = _HEADER.match(text)
        builder.chunks.append(Chunk(text=text, timestamp=to_iso_time(match["time"]) if match else None))
    metric = next((name for start, name in METRICS.items() if source.startswith(start)), "substring")
    questions = []
    for n, item in enumerate(_json(row["questions_and_answers"], list, f"{location}: questions_and_answers")):
        item_location = f"{location}: questions_and_answers[{n}]"
        text, meta = require_field(item, "question", str, item_location), dict[str, Any](metric=metric)
        if (index := item.get("evidence_idx")) is not None:
            meta["evidence_chunks"] = index if isinstance(index, list) else [index]
        answers = parse_answers(item.get("answer", item.get("answers")), f"{item_location}: field 'answer'")
        questions.append(Question(id=f"q{n}", question=text, answers=answers, category=source, meta=meta))
    return builder.build(id, questions, location, meta={"source": source})


def _json(text: Any, kind: type, location: str) -> Any:
    value = parse_json(text, location) if isinstance(text, str) else text
    if not isinstance(value, kind):
        raise DataError(f"{location}: a JSON {kind.__name__} is needed")
    return value
