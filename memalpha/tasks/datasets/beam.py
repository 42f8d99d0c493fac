"""BEAM (Tavakoli et al., ICLR 2026) as tasks: a conversation of up to ten million tokens, questions at its end.

A batch of the conversation is a session, dated by its time anchor. A turn's id is `m<message id>`; in the 10M set
each of ten plans counts from 0 and ids go on from plan to plan as the official code has them. A question's rubric is in
`meta["rubric"]`, one judged item each; the category is the ability. Abstention has no answer: what the reply should
say is in `meta["refused"]`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream, iso_time, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in
from memalpha.tasks.sources.streaming import parquet_rows
from memalpha.types import Question, SpeakerTurn, Task

_FAULTS = (
    "rubrics are scored 1, 0.5 or 0 an item; the official script cuts 0.5 down to 0 in places",
    "knowledge_update has one question without source_chat_ids, other abilities a few with empty ones",
    "instruction_following and preference_following have no answer: the expected behaviour stands for it",
    "probing_questions is a printed Python object, not JSON",
    "user messages end in a mark of the plan they were made from (->-> 1,2): kept, as in the official runs",
)

DATA = (
    DataSet(
        name="beam",
        about="long conversations of one user with an assistant, ten abilities, judged by rubrics",
        source="hub:Mohammadta/BEAM",
        licence="CC BY-SA 4.0",
        counts="100K (128k tokens each): 20 conversations, 400 questions; 500K: 35, 700; 1M: 35, 700",
        metric="rubric",
        revision="3205395e897e7318c7b094ef4e6047b9b82dbb03",
        variants=("100K", "500K", "1M"),
        files=(
            File(
                "data/100K-00000-of-00001.parquet",
                "c0519be25907005ba873c927c50877471d550873039d96c041554d0075a78ace",
                5_429_768,
                ("100K",),
            ),
            File(
                "data/500K-00000-of-00001.parquet",
                "af05921c979355038e1761b7cde3d2dd713200dd3071b278de0200f6c7f30122",
                33_956_263,
                ("500K",),
            ),
            File(
                "data/1M-00000-of-00001.parquet",
                "41b5acbbb55a586b1305514ef9d9fb03365d9b3331b598a1c2dd7603d93ef533",
                66_156_374,
                ("1M",),
            ),
        ),
        expected={
            "100K": {"tasks": 20, "questions": 400},
            "500K": {"tasks": 35, "questions": 700},
            "1M": {"tasks": 35, "questions": 700},
        },
        faults=_FAULTS,
    ),
    DataSet(
        name="beam_10m",
        about="BEAM's conversations of ten million tokens",
        source="hub:Mohammadta/BEAM-10M",
        licence="CC BY-SA 4.0",
        counts="10 conversations, 200 questions",
        metric="rubric",
        revision="9b2096193fe74e2837e4713e483351e19817773c",
        files=(
            File(
                "data/10M-00000-of-00002.parquet",
                "31d96fd47ec56221d202e68792f26c00e49467dd4b36ee105c36ebd19ef78ad5",
                153_844_664,
            ),
            File(
                "data/10M-00001-of-00002.parquet",
                "a4f13fe25af51d57405ae41008689c31d1421377f3efde56a024b441deb2ee65",
                189_980_875,
            ),
        ),
        expected={"": {"tasks": 10, "questions": 200}},
        faults=_FAULTS,
    ),
)

ANSWERS = ("answer", "ideal_answer", "ideal_summary", "ideal_response", "expected_compliance")
"""Where the abilities keep what a right reply says."""


def load_beam(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The conversations of a size (the first `limit`)."""
    return list(islice(conversations(path, DATA[0], variant), limit))


def load_beam_10m(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The conversations of ten million tokens (the first `limit`)."""
    return list(islice(conversations(path, DATA[1]), limit))


def conversations(path: Path, known: DataSet, variant: str | None = None) -> Iterator[Task]:
    """One conversation at a time. Raises `DataError` naming file, row and field."""
    files = [path] if path.is_file() else [file_in(path, file.path) for file in known.files_for(variant)]
    for file in files:
        for where, row in parquet_rows(file, ("conversation_id", "chat", "probing_questions")):
            yield _task(row, variant or (known.variants or ("10M",))[0], where)


def _task(row: Mapping[str, Any], size: str, where: str) -> Task:
    id = str(field(row, "conversation_id", (str, int), where))
    where = f"{where} (conversation {id})"
    stream = Stream()
    offset, last, when = 0, -1, None
    for batch in _batches(row.get("chat")):
        spoken = []
        for message in batch:
            number = field(message, "id", int, f"{where}: chat")
            if number + offset <= last:
                offset = last + 1 - number
            last = number + offset
            place = f"{where}: chat: message {last}"
            when = iso_time(str(message.get("time_anchor") or "")) or when
            text = field(message, "content", str, place)
            spoken.append(SpeakerTurn(speaker=field(message, "role", str, place), text=text, id=f"m{last}"))
        stream.session(spoken, when)
    return stream.task(f"beam-{size}-{id}", _questions(row, stream, where), where)


def _batches(value: Any) -> Iterator[list[Mapping[str, Any]]]:
    """The lists of messages in lists and objects of any depth; `turns` of one batch are one list."""
    if isinstance(value, Mapping):
        if isinstance(value.get("turns"), list):
            yield [message for turn in value["turns"] for message in (turn if isinstance(turn, list) else [turn])]
        else:
            for key in sorted(value, key=_natural):
                yield from _batches(value[key])
    elif isinstance(value, list) and value:
        if all(isinstance(item, Mapping) and "content" in item for item in value):
            yield value
        else:
            for item in value:
                yield from _batches(item)


def _natural(key: str) -> tuple[int, str]:
    """`plan-2` before `plan-10`."""
    number = key.rpartition("-")[2]
    return (int(number), key) if number.isdecimal() else (-1, key)


def _questions(row: Mapping[str, Any], stream: Stream, where: str) -> Iterator[Question]:
    probes = row.get("probing_questions")
    if isinstance(probes, str):
        try:
            probes = json.loads(probes) if probes.lstrip().startswith('{"') else ast.literal_eval(probes)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise DataError(f"{where}: probing_questions is no Python or JSON object: {error}") from error
    if not isinstance(probes, Mapping):
        raise DataError(f"{where}: probing_questions is no object of abilities")
    for ability, items in probes.items():
        for n, item in enumerate(objects(items, f"{where}: {ability}")):
            place = f"{where}: {ability}[{n}]"
            rubric = field(item, "rubric", list, place)
            gold = next((str(item[key]) for key in ANSWERS if str(item.get(key) or "").strip()), None)
            if gold is None or not rubric:
                raise DataError(f"{place}: a rubric and one of {', '.join(ANSWERS)} are needed")
            meta: dict[str, Any] = {"metric": "rubric", "rubric": [str(point) for point in rubric]}
            if abstain := ability == "abstention":
                meta["refused"] = gold
            sources = item.get("source_chat_ids", item.get("conversation_sessions"))
            evidence, unknown = stream.evidence(dict.fromkeys(f"m{id}" for id in _ids(sources)))
            if unknown:
                meta["unknown_evidence"] = unknown
            yield Question(
                id=f"{ability}_{n}",
                question=field(item, "question", str, place),
                answers=() if abstain else (gold,),
                category=ability,
                evidence=() if abstain else evidence,
                meta=meta,
            )


def _ids(value: Any) -> Iterator[int]:
    """The message ids in lists and objects of any depth."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _ids(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ids(item)
    elif isinstance(value, int):
        yield value
