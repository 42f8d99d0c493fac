"""LongMemEval (Wu et al., ICLR 2025; the cleaned release) as tasks: a question, its chat history, one question a task.

A session is a chunk or several, in order of its date (the oracle file is not sorted). A turn's id is the official one,
`<session id>_<number from 1>`. Evidence are the turns marked `has_answer`; the sessions that hold the answer are in
`meta["answer_session_ids"]` and the day the question is asked in `meta["date"]`. Questions whose id has `_abs` have no
answer: what the official answer says instead is in `meta["refused"]`. The files are read an instance at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream, answers_of, needed_time, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import json_array
from memalpha.types import Question, SpeakerTurn, Task

DATA = DataSet(
    name="longmemeval",
    about="500 questions, each on a chat history of its own: oracle (the evidence sessions alone), s, m",
    source="hub:xiaowu0162/longmemeval-cleaned",
    licence="MIT",
    counts="500 questions of 6 types, 30 to abstain from; s about 115k tokens each, m about 1.5M (500 sessions)",
    metric="judge",
    revision="98d7416c24c778c2fee6e6f3006e7a073259d48f",
    variants=("s", "oracle", "m"),
    files=(
        File(
            "longmemeval_s_cleaned.json",
            "d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442",
            277_383_467,
            ("s",),
        ),
        File(
            "longmemeval_oracle.json",
            "821a2034d219ab45846873dd14c14f12cfe7776e73527a483f9dac095d38620c",
            15_388_478,
            ("oracle",),
        ),
        File(
            "longmemeval_m_cleaned.json",
            "9d79e5524794a2e6900a3aa9cb7d9152c5a3e8319c9a87c25494ba1eacee495f",
            2_737_100_077,
            ("m",),
        ),
    ),
    expected={variant: {"tasks": 500, "questions": 500} for variant in ("s", "oracle", "m")},
    faults=(
        "some answers are numbers, not texts: read as texts",
        "the oracle file's sessions are not in order of their dates: sorted here",
        "some turns have no text: left out; a session id that comes twice in a history gets @2",
        "turns marked has_answer are in the history of questions to abstain from too: no evidence for those",
    ),
)


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The instances of a file, or of the variant's file in a folder, as tasks (the first `limit`)."""
    return list(islice(instances(path, variant), limit))


def instances(path: Path, variant: str | None = None) -> Iterator[Task]:
    """As `load`, one at a time: the m file holds 2.7 GB. Raises `DataError` naming file, instance and field."""
    file = file_in(path, DATA.files_for(variant)[0].path)
    for number, item in enumerate(json_array(file)):
        yield _task(item, f"{file}: instance {number}")


def _task(item: Any, where: str) -> Task:
    id = field(item, "question_id", str, where)
    where = f"{where} ({id})"
    stream = Stream()
    marked: list[str] = []
    for session_id, date, turns in _sessions(item, where):
        spoken = []
        for n, turn in enumerate(objects(turns, f"{where}: session {session_id}"), start=1):
            place = f"{where}: session {session_id}: turn {n}"
            turn_id = f"{session_id}_{n}"
            speaker, text = field(turn, "role", str, place), field(turn, "content", str, place)
            spoken.append(SpeakerTurn(speaker=speaker, text=text, id=turn_id))
            if turn.get("has_answer") and text.strip():
                marked.append(turn_id)
        stream.session(spoken, date)
    abstain = "_abs" in id
    answers = answers_of(item.get("answer"), f"{where}: field 'answer'")
    meta: dict[str, Any] = {
        "metric": DATA.metric,
        "date": needed_time(item.get("question_date"), f"{where}: field 'question_date'"),
        "answer_session_ids": [str(id) for id in field(item, "answer_session_ids", list, where)],
    }
    if abstain:
        meta["refused"] = answers[0]
    question = Question(
        id=id,
        question=field(item, "question", str, where),
        answers=() if abstain else answers,
        category=field(item, "question_type", str, where),
        evidence=() if abstain else stream.evidence(marked)[0],
        meta=meta,
    )
    return stream.task(id, [question], where)


def _sessions(item: Mapping[str, Any], where: str) -> list[tuple[str, str, list[Any]]]:
    """(id, ISO time, turns) of each session in order of time."""
    ids, dates, sessions = (field(item, f"haystack_{key}", list, where) for key in ("session_ids", "dates", "sessions"))
    if not len(ids) == len(dates) == len(sessions):
        raise DataError(
            f"{where}: haystack_session_ids, haystack_dates and haystack_sessions differ in length "
            f"({len(ids)}, {len(dates)}, {len(sessions)}): there is one of each a session"
        )
    seen: dict[str, int] = {}
    found = []
    for n, (id, date, turns) in enumerate(zip(ids, dates, sessions, strict=True)):
        seen[str(id)] = seen.get(str(id), 0) + 1
        time = needed_time(date, f"{where}: haystack_dates[{n}]")
        found.append((f"{id}@{seen[str(id)]}" if seen[str(id)] > 1 else str(id), time, turns))
    return sorted(found, key=lambda session: session[1])
