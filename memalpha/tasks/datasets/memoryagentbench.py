"""MemoryAgentBench (Hu et al., ICLR 2026) as tasks: a row is a task, its context the stream, its questions asked last.

Contexts are texts of many kinds and are cut where theirs allow it: labelled examples (`icl_*`) never between a sentence
and its label, numbered facts (`factconsolidation_*`) between facts and in their order, which says which fact is newer.
`longmemeval_s*` is a printed Python list of times and sessions: it becomes dated turns. The recommendations
(`recsys_redial*`) answer with ids of films, whose names are in `entity2id.json` beside the Parquet files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import BORDERS, Stream, answers_of, iso_time, needed_time, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in, read_json
from memalpha.tasks.sources.streaming import parquet_rows
from memalpha.types import Question, SpeakerTurn, Task

DATA = DataSet(
    name="memoryagentbench",
    about="long contexts read once and asked many times: retrieval, test-time learning, understanding, conflicts",
    source="hub:ai-hyz/MemoryAgentBench",
    licence="MIT",
    counts="146 contexts, 3,671 questions: 22 / 2,000, 6 / 700, 110 / 171, 8 / 800",
    metric="substring",
    revision="7ea066982b140a19337e17e60d45d4076e042faf",
    variants=("Accurate_Retrieval", "Test_Time_Learning", "Long_Range_Understanding", "Conflict_Resolution"),
    files=(
        File(
            "data/Accurate_Retrieval-00000-of-00001.parquet",
            "56c3cd80fb6731a3e53cd1a6be3148f54df60ff2d290ee50e28f8acebf9655c1",
            20_024_386,
            ("Accurate_Retrieval",),
        ),
        File(
            "data/Test_Time_Learning-00000-of-00001.parquet",
            "5338753be48f925d03318eed66117286e3489025fabe050a547bd086cd7d79c0",
            3_947_476,
            ("Test_Time_Learning",),
        ),
        File(
            "data/Long_Range_Understanding-00000-of-00001.parquet",
            "5ab175461954db67770d4a4cb69e569b513ebb96aceb9ee79b57f67488bcd539",
            None,
            ("Long_Range_Understanding",),
        ),
        File(
            "data/Conflict_Resolution-00000-of-00001.parquet",
            "24d5c3f09ce0ce15625cb9f8a98f44f0d864ca6c94d7b4ad04eb697ca3a5ff45",
            None,
            ("Conflict_Resolution",),
        ),
        File(
            "entity2id.json",
            "63353aca481bc9558b502f91cb98f6fa26438796fdd7e0bc06b5a1532126e8b5",
            None,
            ("Test_Time_Learning",),
        ),
    ),
    expected={
        "Accurate_Retrieval": {"tasks": 22, "questions": 2000},
        "Test_Time_Learning": {"tasks": 6, "questions": 700},
        "Long_Range_Understanding": {"tasks": 110, "questions": 171},
        "Conflict_Resolution": {"tasks": 8, "questions": 800},
    },
    faults=(
        "rows were dropped and changed in 2025: the revision is pinned",
        "answers are lists of lists; with a single question some rows have one list less",
        "seven of its nine question answering sets rest on one context each",
        "the answers of recsys_redial are ids of entity2id.json, where several ids can have one title",
        "longmemeval_s* is a printed Python list and not JSON; evidence is given where haystack_sessions match a turn",
        "the training sets of Mem-alpha hold the questions of icl_nlu and icl_trec_coarse with their answers",
    ),
)

METRICS = {
    "ruler_qa": "substring",
    "eventqa": "eventqa",
    "longmemeval": "judge",
    "icl_": "exact",
    "recsys_redial": "recall@5",
    "infbench_sum": "keypoint-f1",
    "detective_qa": "exact",
    "factconsolidation": "substring",
}
"""The official metric by the beginning of a row's `metadata.source`."""

_EXAMPLE = (r"\n(?!\s*label:)",)
_FACT = (r"\n(?=\s*\d+\.)",)
_TITLE = re.compile(r"\([^()]*\)")


def load(path: Path, variant: str | None = None, limit: int | None = None, source: str = "") -> list[Task]:
    """The rows of a split whose `metadata.source` begins with `source` (the first `limit`)."""
    return list(islice(contexts(path, variant, source), limit))


def contexts(path: Path, variant: str | None = None, source: str = "") -> Iterator[Task]:
    """As `load`, one at a time. Raises `DataError` naming file, row and field."""
    file = file_in(path, DATA.files_for(variant)[0].path)
    count: dict[str, int] = {}
    for where, row in parquet_rows(file, ("context", "questions", "answers", "metadata")):
        kind = field(field(row, "metadata", Mapping, where), "source", str, f"{where}: metadata")
        count[kind] = count.get(kind, -1) + 1
        if kind.startswith(source):
            yield _task(row, kind, f"{kind}_{count[kind]}", where, file)


def film(entity: str) -> str:
    """The title in an entity of `entity2id.json`: its last part without year and underscores."""
    name = entity.rstrip(">").rsplit("/", 1)[-1]
    return " ".join(_TITLE.sub("", name.replace("_", " ").replace("-", " ")).split())


def _task(row: Mapping[str, Any], source: str, id: str, where: str, file: Path) -> Task:
    where = f"{where} ({source})"
    metric = next((name for start, name in METRICS.items() if source.startswith(start)), None)
    if metric is None:
        raise DataError(f"{where}: metadata.source is none of {', '.join(METRICS)}: take revision {DATA.revision}")
    stream = Stream()
    context = field(row, "context", str, where)
    at: dict[str, list[str]] = {}
    if metric == "judge":
        at = _sessions(stream, context, where)
    else:
        first = {"exact": _EXAMPLE, "substring": _FACT}.get(metric, ())
        stream.text(context, borders=(*first, *BORDERS) if source.startswith(("icl_", "factcon")) else BORDERS)
    films = _films(file, where) if metric == "recall@5" else {}
    return stream.task(id, _questions(row, metric, at, films, where), where, meta={"source": source})


def _questions(
    row: Mapping[str, Any], metric: str, at: Mapping[str, list[str]], films: Mapping[str, str], where: str
) -> Iterator[Question]:
    asked, meta = field(row, "questions", list, where), row["metadata"]
    golds = field(row, "answers", list, where)
    if len(asked) == 1:
        golds = [golds]
    if len(golds) != len(asked):
        raise DataError(f"{where}: {len(asked)} questions and {len(golds)} answers")
    titles = sorted(set(films.values()))
    ids, types, dates = (_each(meta, key, len(asked)) for key in ("question_ids", "question_types", "question_dates"))
    haystacks, pairs = (_each(meta, key, len(asked)) for key in ("haystack_sessions", "qa_pair_ids"))
    for n, (question, gold) in enumerate(zip(asked, golds, strict=True)):
        place = f"{where}: answers[{n}]"
        answers = answers_of(gold, place)
        more: dict[str, Any] = {"metric": metric}
        if pairs[n]:
            more["qa_pair_id"] = pairs[n]
        if dates[n] and (date := iso_time(str(dates[n]))):
            more["date"] = date
        if metric == "recall@5":
            more["ids"] = list(answers)
            if unknown := [answer for answer in answers if answer not in films]:
                raise DataError(f"{place}: {unknown[0]!r} is no id in entity2id.json")
            answers = tuple(dict.fromkeys(films[answer] for answer in answers))
            more["candidates"] = titles
        if metric == "keypoint-f1":
            more["keypoints"] = [str(point) for point in meta.get("keypoints") or ()]
        evidence = [id for text in _answering(haystacks[n]) for id in at.get(text, ())]
        if "_abs" in str(ids[n] or ""):
            more["refused"], answers, evidence = answers[0], (), []
        yield Question(
            id=f"q{n}",
            question=str(question),
            answers=answers,
            category=str(types[n] or "") or row["metadata"]["source"],
            evidence=tuple(dict.fromkeys(evidence)),
            meta=more,
        )


def _each(meta: Mapping[str, Any], key: str, count: int) -> list[Any]:
    """A field with one item a question; None for each where the field has another length."""
    value = meta.get(key)
    return value if isinstance(value, list) and len(value) == count else [None] * count


def _answering(value: Any) -> Iterator[str]:
    """The texts of the turns marked `has_answer`, at any depth of the lists."""
    if isinstance(value, list):
        for item in value:
            yield from _answering(item)
    elif isinstance(value, Mapping) and value.get("has_answer") and isinstance(value.get("content"), str):
        yield value["content"].strip()


def _sessions(stream: Stream, context: str, where: str) -> dict[str, list[str]]:
    """Reads `[time, [turn, ...], time, [turn, ...], ...]` into the stream; the turn ids by text."""
    try:
        parts = ast.literal_eval(context)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(f"{where}: context is no Python list of times and sessions: {error}") from error
    if not isinstance(parts, list) or len(parts) % 2:
        raise DataError(f"{where}: context is no list that alternates times and sessions")
    at: dict[str, list[str]] = {}
    for number, (time, turns) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        place = f"{where}: context: session {number}"
        spoken = []
        for n, turn in enumerate(objects(turns, place), start=1):
            text = field(turn, "content", str, place)
            spoken.append(SpeakerTurn(speaker=field(turn, "role", str, place), text=text, id=f"s{number}_{n}"))
        when = time.removeprefix("Chat Time: ") if isinstance(time, str) else time
        stream.session(spoken, needed_time(when, place))
        for turn in spoken:
            at.setdefault(turn.text.strip(), []).extend(stream.evidence([turn.id or ""])[0])
    return at


def _films(file: Path, where: str) -> dict[str, str]:
    """Title by id, from `entity2id.json` in the file's folder or the one above."""
    for folder in (file.parent, file.parent.parent):
        if (names := folder / "entity2id.json").is_file():
            value = read_json(names)
            if not isinstance(value, Mapping):
                raise DataError(f"{names}: a JSON object of entities and ids is needed")
            return {str(id): film(entity) for entity, id in value.items()}
    raise DataError(f"{where}: the answers are ids of entity2id.json: put that file beside {file.name}")
