"""HaluMem (Chen et al. 2025; CC BY-NC-ND 4.0) as tasks: a user is a task, asked after each session about all so far.

Memory points are gold operations: an update where the point it replaces holds at that time, else an insert; those of
source "interference" are false on purpose and stand in `task.meta["interference"]` as (chunk, content). Questions of
type "Memory Boundary" ask what was never said: no answer, the official reply is in `meta["refused"]`. Evidence are
memory points, not turns: their texts are in `meta["memories"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.tasks.chunking import Stream, answers_of, iso_time, needed_time, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import json_lines
from memalpha.types import GoldOperation, Question, SpeakerTurn, Task

DATA = DataSet(
    name="halumem",
    about="20 users over months: what a memory should hold after each session, updates, and false memories",
    source="hub:IAAR-Shanghai/HaluMem",
    licence="CC BY-NC-ND 4.0 (no changed copy may be passed on)",
    counts="20 users, 14,948 memory points, 3,467 questions; Medium 1,387 sessions, 160k tokens a user; Long 1M",
    metric="judge",
    revision="cb04336aa1b732d4b24f5186c552456b4099806e",
    variants=("Medium", "Long"),
    files=(
        File(
            "HaluMem-Medium.jsonl",
            "486fbc130a5c8781a2af27ffa508a1d7855245137aa449c193ac4d29c45634e7",
            33_511_525,
            ("Medium",),
        ),
        File(
            "HaluMem-Long.jsonl",
            "dfdbed570b402b7b8c17e0d7808fc6f3ae7a53b6144f18feb16bbdd3f55cb0c9",
            106_535_674,
            ("Long",),
        ),
    ),
    expected={variant: {"tasks": 20, "questions": 3467} for variant in ("Medium", "Long")},
    faults=(
        "is_update is the text 'True' or 'False'",
        "491 sessions have no questions key; the 1,030 sessions that Long adds have no memory points",
        "original_memories do not always repeat an earlier point word for word: such an update is an insert here",
        "evidence names memory points and no turns: no retrieval recall by turn",
    ),
)

CATEGORIES = {"Persona Memory": "semantic", "Relationship Memory": "semantic", "Event Memory": "episodic"}
"""`memory_type` → category of a memory."""

BOUNDARY = "Memory Boundary"
"""The question type whose right answer is that nothing is known."""


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The users of a file (the first `limit`)."""
    return list(islice(users(path, variant), limit))


def users(path: Path, variant: str | None = None) -> Iterator[Task]:
    """As `load`, one at a time. Raises `DataError` naming file, line, session and field."""
    for where, user in json_lines(file_in(path, DATA.files_for(variant)[0].path)):
        yield _task(user, where)


def _task(user: Any, where: str) -> Task:
    id = field(user, "uuid", str, where)
    stream = Stream()
    gold: list[GoldOperation] = []
    false: list[list[Any]] = []
    live: dict[str, str] = {}  # content → category, as an undisturbed writer would hold it
    questions: list[Question] = []
    for number, session in enumerate(objects(field(user, "sessions", list, where), f"{where}: sessions")):
        place = f"{where}: session {number}"
        start = needed_time(session.get("start_time"), f"{place}: start_time")
        spoken = []
        for n, turn in enumerate(objects(field(session, "dialogue", list, place), f"{place}: dialogue")):
            speaker, text = (field(turn, key, str, f"{place}: dialogue[{n}]") for key in ("role", "content"))
            spoken.append(SpeakerTurn(speaker=speaker, text=text, id=f"s{number}_{n}"))
        stream.session(spoken, start)
        chunk = max(stream.last, 0)
        for n, point in enumerate(objects(session.get("memory_points"), f"{place}: memory_points")):
            at = f"{place}: memory_points[{n}]"
            if field(point, "memory_source", str, at) == "interference":
                false.append([chunk, field(point, "memory_content", str, at)])
            else:
                gold.extend(_operations(point, chunk, live, at))
        for item in objects(session.get("questions"), f"{place}: questions"):
            questions.append(_question(item, len(questions), chunk, f"{place}: question {len(questions)}"))
    meta: dict[str, Any] = {"interference": false} if false else {}
    return stream.task(id, questions, where, gold_operations=tuple(gold), meta=meta)


def _operations(point: Mapping[str, Any], chunk: int, live: dict[str, str], where: str) -> Iterator[GoldOperation]:
    """What a perfect writer does for one memory point; `live` changes with it. Nothing for what it holds already."""
    content, kind = (field(point, key, str, where) for key in ("memory_content", "memory_type"))
    if content in live or not content.strip():
        return
    category = CATEGORIES.get(kind, "semantic")
    ended = []
    if str(point.get("is_update")) == "True":
        old_ones = point.get("original_memories")
        ended = [old for old in map(str, old_ones) if old in live] if isinstance(old_ones, list) else []
    when = iso_time(str(point.get("timestamp") or ""))
    replaced = next((old for old in ended if live[old] == category), None)
    for old in dict.fromkeys(ended):
        if old != replaced:
            yield GoldOperation(kind="delete", chunk=chunk, category=live[old], replaces=old)
        del live[old]
    live[content] = category
    yield GoldOperation(
        kind="update" if replaced is not None else "insert",
        chunk=chunk,
        category=category,
        content=content,
        replaces=replaced,
        timestamp=when,
    )


def _question(item: Any, number: int, chunk: int, where: str) -> Question:
    kind = field(item, "question_type", str, where)
    answers = answers_of(item.get("answer"), f"{where}: field 'answer'")
    meta: dict[str, Any] = {
        "metric": DATA.metric,
        "benchmark": "halumem",
        "memories": [str(point.get("memory_content", "")) for point in objects(item.get("evidence"), where)],
        "difficulty": item.get("difficulty", ""),
    }
    if kind == BOUNDARY:
        meta["refused"] = answers[0]
    return Question(
        id=f"q{number}",
        question=field(item, "question", str, where),
        answers=() if kind == BOUNDARY else answers,
        category=kind,
        asked_after_chunk=chunk,
        meta=meta,
    )
