"""MemoryAgentBench (Hu et al., ICLR 2026): a row is a task, its context the stream, its questions asked last.

Contexts are texts of many kinds and are split where theirs allows it. Labelled examples (`icl_*`) are never split
between a sentence and its label. Numbered facts (`factconsolidation_*`) are split between facts and keep their order,
which says which fact is newer. `longmemeval_s*` is a printed Python list of times and sessions and becomes dated turns.
The recommendations (`recsys_redial*`) answer with ids of films, whose names are in `entity2id.json` beside the Parquet
files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import BORDERS, TaskBuilder, parse_answers, require_iso_time, require_objects, to_iso_time
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats import files
from memalpha.tasks.formats.files import find_file, read_turn, require_field
from memalpha.types import Question, Task

DATA = shipped_card("memoryagentbench")

METRICS = {
    "ruler_qa": "substring",
    "eventqa": "eventqa",
    "longmemeval": "judge",
    "icl_": "squad-exact",
    "recsys_redial": "recall@5",
    "infbench_sum": "keypoint-f1",
    "detective_qa": "squad-exact",
    "factconsolidation": "substring",
}
"""Official metric by the beginning of a row's `metadata.source`."""

_LEADING_BORDERS = {"icl_": (r"\n(?!\s*label:)",), "factcon": (r"\n(?=\s*\d+\.)",)}
_YEAR = re.compile(r"\([^()]*\)")


def load(path: Path, variant: str | None = None, limit: int | None = None, source: str = "") -> list[Task]:
    """Load the rows of a split.

    Args:
        path: Folder or Parquet file.
        variant: Name of the split.
        limit: Return the first `limit` rows only.
        source: Beginning of `metadata.source`; "" takes all rows.

    Raises:
        DataError: The file does not fit; the message names file, row and field.
    """
    return list(islice(_rows(find_file(path, DATA.files_for(variant)[0].path), source), limit))


def _rows(file: Path, source: str) -> Iterator[Task]:
    count: Counter[str] = Counter()
    for location, row in files.iter_parquet_rows(file, ("context", "questions", "answers", "metadata")):
        kind = require_field(require_field(row, "metadata", Mapping, location), "source", str, f"{location}: metadata")
        if kind.startswith(source):
            yield _task(row, kind, f"{kind}_{count[kind]}", location, file)
        count[kind] += 1


def _task(row: Mapping[str, Any], source: str, id: str, location: str, file: Path) -> Task:
    location = f"{location} ({source})"
    metric = next((name for start, name in METRICS.items() if source.startswith(start)), None)
    if metric is None:
        raise DataError(f"{location}: metadata.source is none of {', '.join(METRICS)}: take revision {DATA.revision}")
    builder = TaskBuilder()
    context = require_field(row, "context", str, location)
    ids_by_text: dict[str, list[str]] = {}
    if metric == "judge":
        ids_by_text = _sessions(builder, context, location)
    else:
        leading = next((border for start, border in _LEADING_BORDERS.items() if source.startswith(start)), ())
        builder.add_text(context, borders=(*leading, *BORDERS))
    films: dict[str, str] = {}  # titles by id: the last part of an entity, without year and underscores
    if metric == "recall@5":
        places = [folder / "entity2id.json" for folder in (file.parent, file.parent.parent)]
        if not (found := [place for place in places if place.is_file()]):
            raise DataError(f"{location}: the answers are ids of entity2id.json: put that file beside {file.name}")
        ids = files.read_json(found[0])
        if not isinstance(ids, Mapping):
            raise DataError(f"{found[0]}: a JSON object of entities and ids is needed")
        for entity, number in ids.items():
            title = re.sub("[_-]", " ", entity.rstrip(">").rsplit("/", 1)[-1])
            films[str(number)] = " ".join(_YEAR.sub("", title).split())
    return builder.build(id, _questions(row, metric, ids_by_text, films, location), location, meta={"source": source})


def _questions(
    row: Mapping[str, Any], metric: str, ids_by_text: Mapping[str, list[str]], films: Mapping[str, str], location: str
) -> Iterator[Question]:
    question_texts, meta = require_field(row, "questions", list, location), row["metadata"]
    golds = require_field(row, "answers", list, location)
    if len(question_texts) == 1:
        golds = [golds]
    if len(golds) != len(question_texts):
        raise DataError(f"{location}: {len(question_texts)} questions and {len(golds)} answers")
    titles = sorted(set(films.values()))
    keys = ("question_ids", "question_types", "question_dates", "haystack_sessions", "qa_pair_ids")
    count = len(question_texts)  # a field of another length gives None for each question
    ids, types, dates, haystacks, pairs = (
        value if isinstance(value := meta.get(key), list) and len(value) == count else [None] * count for key in keys
    )
    for n, (question, gold) in enumerate(zip(question_texts, golds, strict=True)):
        answer_location = f"{location}: answers[{n}]"
        answers = parse_answers(gold, answer_location)
        question_meta: dict[str, Any] = {"metric": metric}
        if pairs[n]:
            question_meta["qa_pair_id"] = pairs[n]
        if dates[n] and (date := to_iso_time(str(dates[n]))):
            question_meta["date"] = date
        if metric == "recall@5":
            question_meta["ids"] = list(answers)
            if unknown := [answer for answer in answers if answer not in films]:
                raise DataError(f"{answer_location}: {unknown[0]!r} is no id in entity2id.json")
            answers = tuple(dict.fromkeys(films[answer] for answer in answers))
            question_meta["candidates"] = titles
        if metric == "keypoint-f1":
            question_meta["keypoints"] = [str(point) for point in meta.get("keypoints") or ()]
        evidence = [id for text in _answering_texts(haystacks[n]) for id in ids_by_text.get(text, ())]
        if "_abs" in str(ids[n] or ""):
            question_meta["refused"], answers, evidence = answers[0], (), []
        category, cited = str(types[n] or "") or meta["source"], tuple(dict.fromkeys(evidence))
        yield Question(
            id=f"q{n}", question=str(question), answers=answers, category=category, evidence=cited, meta=question_meta
        )


def _answering_texts(value: Any) -> Iterator[str]:
    """Yield the texts of the turns marked `has_answer`, at any depth of the lists."""
    if isinstance(value, list):
        for item in value:
            yield from _answering_texts(item)
    elif isinstance(value, Mapping) and value.get("has_answer") and isinstance(value.get("content"), str):
        yield value["content"].strip()


def _sessions(builder: TaskBuilder, context: str, location: str) -> dict[str, list[str]]:
    """Parse `[time, [turn, ...], time, [turn, ...], ...]` into the task.

    Returns:
        Turn ids by text.
    """
    try:
        items = files.parse_printed(context)
    except ValueError as error:
        raise DataError(f"{location}: context is no Python list of times and sessions: {error}") from error
    if not isinstance(items, list) or len(items) % 2:
        raise DataError(f"{location}: context is no list that alternates times and sessions")
    ids_by_text: dict[str, list[str]] = {}
    for number, (time, turns) in enumerate(zip(items[::2], items[1::2], strict=True)):
        session_location = f"{location}: context: session {number}"
        speaker_turns = [
            read_turn(turn, f"s{number}_{n}", session_location)
            for n, turn in enumerate(require_objects(turns, session_location), start=1)
        ]
        raw_time = time.removeprefix("Chat Time: ") if isinstance(time, str) else time
        builder.add_session(speaker_turns, require_iso_time(raw_time, session_location))
        for turn in speaker_turns:
            ids_by_text.setdefault(turn.text.strip(), []).extend(builder.resolve_evidence([turn.id or ""])[0])
    return ids_by_text
