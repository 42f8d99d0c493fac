"""QMSum (Zhong et al., NAACL 2021) as tasks: a meeting is a task, its queries ask for summaries.

A transcript is one session, turn ids `t0`, `t1`, ...; evidence of a specific query are the turns of its text spans,
both ends counted; a general query is on the whole meeting and has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream, answers_of, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import json_lines
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
    """The meetings of a part (the first `limit`)."""
    return list(islice(meetings(path, variant), limit))


def meetings(path: Path, variant: str | None = None) -> Iterator[Task]:
    """As `load`, one at a time. Raises `DataError` naming file, line and field."""
    file = file_in(path, DATA.files_for(variant)[0].path)
    for number, (where, item) in enumerate(json_lines(file)):
        yield _task(item, f"qmsum-{file.stem}-{number}", where)


def _task(item: Any, id: str, where: str) -> Task:
    stream = Stream()
    spoken = []
    for n, turn in enumerate(objects(field(item, "meeting_transcripts", list, where), f"{where}: meeting_transcripts")):
        speaker, text = (field(turn, key, str, f"{where}: meeting_transcripts[{n}]") for key in ("speaker", "content"))
        spoken.append(SpeakerTurn(speaker=speaker, text=text, id=f"t{n}"))
    stream.session(spoken)
    questions = [
        _question(query, f"{kind}{n}", kind, stream, f"{where}: {kind}_query_list[{n}]")
        for kind in ("general", "specific")
        for n, query in enumerate(
            objects(field(item, f"{kind}_query_list", list, where), f"{where}: {kind}_query_list")
        )
    ]
    return stream.task(id, questions, where)


def _question(query: Mapping[str, Any], id: str, kind: str, stream: Stream, where: str) -> Question:
    turns = []
    spans = query.get("relevant_text_span") or []
    for span in spans if isinstance(spans, list) else [spans]:
        try:
            first, last = (int(end) for end in span)
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: relevant_text_span: {span!r} is no pair of turn numbers") from error
        turns.extend(f"t{n}" for n in range(first, min(last, 10**6) + 1))
    return Question(
        id=id,
        question=field(query, "query", str, where),
        answers=answers_of(query.get("answer"), f"{where}: field 'answer'"),
        category=kind,
        evidence=stream.evidence(turns)[0],
        meta={"metric": DATA.metric},
    )
