"""QMSum (Zhong et al., NAACL 2021): a meeting is a task, its queries ask for summaries.

A transcript is one session with turn ids `t0`, `t1`, .... Evidence of a specific query are the turns of its text spans,
both ends included. A general query is about the whole meeting and has no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, parse_answers, require_objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import find_file, require_field
from memalpha.tasks.sources.streaming import iter_json_lines
from memalpha.types import Question, SpeakerTurn, Task

DATA = DataSet(
    name="qmsum",
    about="meetings (product, academic, committee) and queries that ask for a summary of a part or all",
    source="github:Yale-LILY/QMSum",
    licence="MIT",
    counts="232 meetings, 1,810 queries: test 35 / 281, val 35 / 272, train 162 / 1,257",
    metric="rouge",
    revision="83d7768c1f2b4dfeb091385d3dc7e239b8e5bb7e",
    variants=("test", "val", "train"),
    training_variants=("train",),
    files=(
        File(
            "data/ALL/jsonl/test.jsonl",
            "6bcd428211260ad2efae3af76cbaf6a7f5ae4bb5e1e59c45a4b8e89539cb9208",
            2_746_108,
            ("test",),
        ),
        File(
            "data/ALL/jsonl/val.jsonl",
            "fc7444e241bdbe6997c01720d07f1a58b7357284acb73f909766e5a4700db49f",
            2_714_748,
            ("val",),
        ),
        File("data/ALL/jsonl/train.jsonl", None, None, ("train",)),
    ),
    expected={
        "test": {"tasks": 35, "turns": 20_701, "questions": 281},
        "val": {"tasks": 35, "turns": 20_106, "questions": 272},
        "train": {"tasks": 162, "questions": 1257},
    },
    faults=(
        "the paper counts 1,808 queries",
        "speech marks such as {vocalsound} stand in the text",
        "text spans are pairs of texts, not of numbers",
    ),
)


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the meetings of a split.

    Args:
        path: Folder or file.
        variant: "test", "val" or "train".
        limit: Return the first `limit` meetings only.
    """
    return list(islice(meetings(path, variant), limit))


def meetings(path: Path, variant: str | None = None) -> Iterator[Task]:
    """Yield one meeting at a time. Raises `DataError` naming file, line and field."""
    file = find_file(path, DATA.files_for(variant)[0].path)
    for number, (location, item) in enumerate(iter_json_lines(file)):
        yield _task(item, f"qmsum-{file.stem}-{number}", location)


def _task(item: Any, id: str, location: str) -> Task:
    builder = TaskBuilder()
    speaker_turns = []
    for n, turn in enumerate(
        require_objects(require_field(item, "meeting_transcripts", list, location), f"{location}: meeting_transcripts")
    ):
        speaker, text = (
            require_field(turn, key, str, f"{location}: meeting_transcripts[{n}]") for key in ("speaker", "content")
        )
        speaker_turns.append(SpeakerTurn(speaker=speaker, text=text, id=f"t{n}"))
    builder.add_session(speaker_turns)
    questions = [
        _question(query, f"{kind}{n}", kind, builder, f"{location}: {kind}_query_list[{n}]")
        for kind in ("general", "specific")
        for n, query in enumerate(
            require_objects(require_field(item, f"{kind}_query_list", list, location), f"{location}: {kind}_query_list")
        )
    ]
    return builder.build(id, questions, location)


def _question(query: Mapping[str, Any], id: str, kind: str, builder: TaskBuilder, location: str) -> Question:
    turns = []
    spans = query.get("relevant_text_span") or []
    for span in spans if isinstance(spans, list) else [spans]:
        try:
            first, last = (int(end) for end in span)
        except (TypeError, ValueError) as error:
            raise DataError(f"{location}: relevant_text_span: {span!r} is no pair of turn numbers") from error
        turns.extend(f"t{n}" for n in range(first, min(last, 10**6) + 1))
    return Question(
        id=id,
        question=require_field(query, "query", str, location),
        answers=parse_answers(query.get("answer"), f"{location}: field 'answer'"),
        category=kind,
        evidence=builder.resolve_evidence(turns)[0],
        meta={"metric": DATA.metric},
    )
