"""LongMemEval (Wu et al., ICLR 2025; the cleaned release): one question and its chat history a task.

A session is one chunk or several, in order of its date (the oracle file is not sorted). A turn's id is the official
one, `<session id>_<number from 1>`. Evidence are the turns marked `has_answer`. The sessions that hold the answer are
in `meta["answer_session_ids"]`, the day of the question in `meta["date"]`. Questions whose id has `_abs` have no
answer; the official reply is in `meta["refused"]`. The files are read one instance at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, read_question, require_iso_time, require_objects
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import find_file, iter_json_array, read_turn, require_field
from memalpha.types import Task

DATA = shipped_card("longmemeval")


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the instances of a file, or of the variant's file in a folder.

    Args:
        path: Folder or file.
        variant: "s", "oracle" or "m".
        limit: Return the first `limit` instances only; the m file holds 2.7 GB.

    Raises:
        DataError: The file does not fit; the message names file, instance and field.
    """
    file = find_file(path, DATA.files_for(variant)[0].path)
    items = enumerate(islice(iter_json_array(file), limit))
    return [_task(item, f"{file}: instance {number}") for number, item in items]


def _task(item: Any, location: str) -> Task:
    id = require_field(item, "question_id", str, location)
    location = f"{location} ({id})"
    builder = TaskBuilder()
    answering_turns: list[str] = []
    for session_id, date, turns in _sessions(item, location):
        speaker_turns = []
        for n, turn in enumerate(require_objects(turns, f"{location}: session {session_id}"), start=1):
            turn_id = f"{session_id}_{n}"
            speaker_turns.append(read_turn(turn, turn_id, f"{location}: session {session_id}: turn {n}"))
            if turn.get("has_answer") and speaker_turns[-1].text.strip():
                answering_turns.append(turn_id)
        builder.add_session(speaker_turns, date)
    category = require_field(item, "question_type", str, location)
    evidence, _ = builder.resolve_evidence(answering_turns)
    meta = {
        "metric": DATA.metric,
        "date": require_iso_time(item.get("question_date"), f"{location}: field 'question_date'"),
        "answer_session_ids": [str(id) for id in require_field(item, "answer_session_ids", list, location)],
    }
    question = read_question(item, id, location, meta, abstains="_abs" in id, evidence=evidence, category=category)
    return builder.build(id, [question], location)


def _sessions(item: Mapping[str, Any], location: str) -> list[tuple[str, str, list[Any]]]:
    """Return (id, ISO time, turns) of each session in order of time."""
    ids, dates, sessions = (
        require_field(item, f"haystack_{key}", list, location) for key in ("session_ids", "dates", "sessions")
    )
    if not len(ids) == len(dates) == len(sessions):
        raise DataError(
            f"{location}: haystack_session_ids, haystack_dates and haystack_sessions differ in length "
            f"({len(ids)}, {len(dates)}, {len(sessions)}): there is one of each a session"
        )
    occurrences: dict[str, int] = {}
    parsed_sessions = []
    for n, (id, date, turns) in enumerate(zip(ids, dates, sessions, strict=True)):
        occurrences[str(id)] = occurrences.get(str(id), 0) + 1
        time = require_iso_time(date, f"{location}: haystack_dates[{n}]")
        parsed_sessions.append((f"{id}@{occurrences[str(id)]}" if occurrences[str(id)] > 1 else str(id), time, turns))
    return sorted(parsed_sessions, key=lambda session: session[1])
