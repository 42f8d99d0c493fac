"""QMSum (Zhong et al., NAACL 2021): a meeting is a task, its specific queries are the questions.

The chunks are speaker turns in order, with ids `t0`, `t1`, .... Answers are the reference answers. Evidence are the
turns of the query's text spans, both ends included. Left out are general queries ("Summarize the whole meeting."),
which rest on no turn.

Read are the official JSON Lines files, a folder of the official JSON files (one meeting each), or one such file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, parse_answers, require_objects
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import find_file, read_json, require_field
from memalpha.tasks.formats.streaming import iter_json_lines
from memalpha.types import Question, SpeakerTurn, Task

DATA = shipped_card("qmsum")


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the meetings of a split.

    Args:
        path: Folder or file.
        variant: "test", "val" or "train".
        limit: Return the first `limit` meetings only.

    Raises:
        DataError: A file does not fit; the message names file, line and field.
    """
    return [_task(meeting, id, location) for id, location, meeting in islice(_meetings(path, variant), limit)]


def _meetings(path: Path, variant: str | None) -> Iterator[tuple[str, str, Any]]:
    """Yield task id, location and content of each meeting."""
    split = variant or DATA.variants[0]
    folders = (path / "data" / "ALL" / split, path / split, path)
    try:
        file = find_file(path, DATA.files_for(variant)[0].path)
    except DataError:
        files = next(filter(None, (sorted(folder.glob("*.json")) for folder in folders)), None)
        if files is None:
            raise
    else:
        files = [file]
    for file in files:
        if file.suffix == ".json":
            yield f"qmsum-{file.stem}", str(file), read_json(file)
        else:
            for number, (location, meeting) in enumerate(iter_json_lines(file)):
                yield f"qmsum-{file.stem}-{number}", location, meeting


def _task(meeting: Any, id: str, location: str) -> Task:
    builder = TaskBuilder()
    turns: list[SpeakerTurn] = []
    for n, turn in enumerate(_objects(meeting, "meeting_transcripts", location)):
        field = f"{location}: meeting_transcripts[{n}]"
        speaker, text = (require_field(turn, key, str, field) for key in ("speaker", "content"))
        turns.append(SpeakerTurn(speaker=speaker, text=text, id=f"t{n}"))
    builder.add_session(turns)
    queries = enumerate(_objects(meeting, "specific_query_list", location))
    questions = [_question(query, n, builder, f"{location}: specific_query_list[{n}]") for n, query in queries]
    return builder.build(id, questions, location)


def _objects(meeting: Any, key: str, location: str) -> list[Mapping[str, Any]]:
    return require_objects(require_field(meeting, key, list, location), f"{location}: {key}")


def _question(query: Mapping[str, Any], number: int, builder: TaskBuilder, location: str) -> Question:
    turns: list[str] = []
    for span in require_field(query, "relevant_text_span", list, location):
        try:
            first, last = (int(end) for end in span)
        except (TypeError, ValueError) as error:
            raise DataError(f"{location}: relevant_text_span: {span!r} is no pair of turn numbers") from error
        turns.extend(f"t{n}" for n in range(first, min(last, 10**6) + 1))
    return Question(
        id=f"specific{number}",
        question=require_field(query, "query", str, location),
        answers=parse_answers(query.get("answer"), f"{location}: field 'answer'"),
        category="specific",
        evidence=builder.resolve_evidence(turns)[0],
        meta={"metric": DATA.metric},
    )
