"""BEAM (Tavakoli et al., ICLR 2026): conversations of up to ten million tokens.

Questions are asked at the end. A batch of the conversation is a session, dated by its time anchor. A turn's id is
`m<message id>`. In the 10M set each of ten plans counts from 0; ids continue from plan to plan as in the official code.
A question's rubric is in `meta["rubric"]`, one judged item each; the category is the ability. Abstention has no answer:
the expected reply is in `meta["refused"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, require_objects, to_iso_time
from memalpha.tasks.dataset_info import DataSet, shipped_card
from memalpha.tasks.formats.files import find_file, iter_parquet_rows, parse_printed, read_turn, require_field
from memalpha.types import Question, Task

DATA = (shipped_card("beam"), shipped_card("beam_10m"))

ANSWERS = ("answer", "ideal_answer", "ideal_summary", "ideal_response", "expected_compliance")
"""Fields that hold the expected reply, depending on the ability."""


def load_beam(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the conversations of a size.

    Args:
        path: Folder or Parquet file.
        variant: "100K", "500K" or "1M".
        limit: Return the first `limit` conversations only.
    """
    return _conversations(path, DATA[0], variant or DATA[0].variants[0], limit)


def load_beam_10m(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the conversations of ten million tokens.

    Args:
        path: Folder or Parquet file.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` conversations only.
    """
    return _conversations(path, DATA[1], "10M", limit)


def _conversations(path: Path, dataset: DataSet, size: str, limit: int | None) -> list[Task]:
    """Read the conversations of a size. Raises `DataError` naming file, row and field."""
    files = [path] if path.is_file() else [find_file(path, file.path) for file in dataset.files_for(size)]
    columns = ("conversation_id", "chat", "probing_questions")
    rows = chain.from_iterable(iter_parquet_rows(file, columns) for file in files)
    return [_task(row, size, location) for location, row in islice(rows, limit)]


def _task(row: Mapping[str, Any], size: str, location: str) -> Task:
    id = str(require_field(row, "conversation_id", (str, int), location))
    location = f"{location} (conversation {id})"
    builder = TaskBuilder()
    offset, last_id, timestamp = 0, -1, None
    for batch in _batches(row.get("chat")):
        speaker_turns = []
        for message in batch:
            number = require_field(message, "id", int, f"{location}: chat")
            if number + offset <= last_id:
                offset = last_id + 1 - number
            last_id = number + offset
            item_location = f"{location}: chat: message {last_id}"
            timestamp = to_iso_time(str(message.get("time_anchor") or "")) or timestamp
            speaker_turns.append(read_turn(message, f"m{last_id}", item_location))
        builder.add_session(speaker_turns, timestamp)
    return builder.build(f"beam-{size}-{id}", _questions(row, builder, location), location)


def _batches(value: Any) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the lists of messages at any depth.

    The `turns` of one batch are one list.
    """
    if isinstance(value, Mapping):
        if isinstance(value.get("turns"), list):
            yield [message for turn in value["turns"] for message in (turn if isinstance(turn, list) else [turn])]
        else:
            numbers = {key: key.rpartition("-")[2] for key in value}  # plan-2 comes before plan-10
            for key in sorted(value, key=lambda key: (int(numbers[key]) if numbers[key].isdecimal() else -1, key)):
                yield from _batches(value[key])
    elif isinstance(value, list) and value:
        if all(isinstance(item, Mapping) and "content" in item for item in value):
            yield value
        else:
            for item in value:
                yield from _batches(item)


def _questions(row: Mapping[str, Any], builder: TaskBuilder, location: str) -> Iterator[Question]:
    probes = row.get("probing_questions")
    if isinstance(probes, str):
        try:
            probes = parse_printed(probes)
        except ValueError as error:
            raise DataError(f"{location}: probing_questions is no Python or JSON object: {error}") from error
    if not isinstance(probes, Mapping):
        raise DataError(f"{location}: probing_questions is no object of abilities")
    for ability, items in probes.items():
        for n, item in enumerate(require_objects(items, f"{location}: {ability}")):
            item_location = f"{location}: {ability}[{n}]"
            rubric = require_field(item, "rubric", list, item_location)
            gold = next((str(item[key]) for key in ANSWERS if str(item.get(key) or "").strip()), None)
            if gold is None or not rubric:
                raise DataError(f"{item_location}: a rubric and one of {', '.join(ANSWERS)} are needed")
            meta: dict[str, Any] = {"metric": "rubric", "rubric": [str(point) for point in rubric]}
            text, answers = require_field(item, "question", str, item_location), (gold,)
            sources = item.get("source_chat_ids", item.get("conversation_sessions"))
            evidence, unknown = builder.resolve_evidence(dict.fromkeys(f"m{id}" for id in _ids(sources)))
            if ability == "abstention":
                meta["refused"], answers, evidence = gold, (), ()
            if unknown:
                meta["unknown_evidence"] = unknown
            id = f"{ability}_{n}"
            yield Question(id=id, question=text, answers=answers, category=ability, evidence=evidence, meta=meta)


def _ids(value: Any) -> Iterator[int]:
    """Yield the message ids in lists and objects of any depth."""
    if isinstance(value, int):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _ids(item)
