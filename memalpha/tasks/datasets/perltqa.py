"""PerLTQA (Du et al., SIGHAN 2024; CC BY-NC 4.0, so it is read from a path) as tasks: a character is a task.

First what is known of the character (profile, relationships), then events and dialogues in order of their time. Turn
ids are `profile:FIELD`, `social:ID`, `event:ID`, `dialogue:ID:N`; evidence is what a question's `Reference Memory`
names, all turns of it where that is a dialogue. The category of a question is the kind of memory it asks for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import Stream, answers_of, iso_time, objects
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in, filled, read_json
from memalpha.types import Question, SpeakerTurn, Task

DATA = DataSet(
    name="perltqa",
    about="what 30 invented people are, whom they know, what happened to them and their talks about it",
    source="github:Elvin-Yiming-Du/PerLTQA",
    licence="CC BY-NC 4.0 (for research; never shipped)",
    counts="30 characters, 8,593 questions: profile, relationships, events, dialogues",
    metric="judge",
    revision="8d9e19868e239740ef701e603ec205cd581f221b",
    files=(File("Dataset/en_v2/perltmem_en_v2.json"), File("Dataset/en_v2/perltqa_en_v2.json")),
    faults=(
        "25 social_relationship sections are printed Python objects, not JSON: read",
        "one character of the questions ('dragon beautiful') has no memory: left out",
        "11 questions name memories that do not exist: in meta['unknown_evidence']",
        "some dialogues are a list in a list, some a single text",
        "answers are long sentences: token overlap says little",
        "many events have no full date ('October 2021', '2012', 'during an election'): it stands before their text",
    ),
)

KINDS = {"profile": "profile", "social_relationship": "social", "events": "event", "dialogues": "dialogue"}
"""Section of the official files → how the ids of its turns begin."""


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """The characters that have memory and questions (the first `limit`), from a folder that holds both files."""
    return list(islice(characters(path), limit))


def characters(path: Path) -> Iterator[Task]:
    """As `load`, one at a time. Raises `DataError` naming file, character and field."""
    folder = path if path.is_dir() else path.parent
    memory_file, question_file = (file_in(folder, file.path) for file in DATA.files)
    memories = read_json(memory_file)
    if isinstance(memories, list):  # the first English version
        listed = enumerate(objects(memories, str(memory_file)))
        memories = {field(item.get("profile"), "Protagonist", str, f"{memory_file}: {n}"): item for n, item in listed}
    if not isinstance(memories, dict):
        raise DataError(f"{memory_file}: a JSON object of characters is needed")
    for block in filled(read_json(question_file), "characters", str(question_file)):
        if not isinstance(block, dict):
            raise DataError(f"{question_file}: a character is an object of its name and its questions")
        for name, sections in block.items():
            if name in memories:
                memory = field(memories, name, Mapping, str(memory_file))
                yield _task(name, memory, sections, f"{memory_file}: {name}", f"{question_file}: {name}")


def _task(name: str, memory: Mapping[str, Any], sections: Any, where: str, asked: str) -> Task:
    stream = Stream()
    turns_of: dict[str, list[str]] = {}

    def turn(kind: str, id: str, speaker: str, text: str, number: int | None = None) -> SpeakerTurn:
        turn_id = f"{KINDS[kind]}:{id}" if number is None else f"{KINDS[kind]}:{id}:{number}"
        turns_of.setdefault(f"{kind} {id}", []).append(turn_id)
        return SpeakerTurn(speaker=speaker, text=text, id=turn_id)

    profile = [turn("profile", key, "profile", f"{key}: {value}") for key, value in _section(memory, "profile", where)]
    if isinstance(described := memory.get("profile_description"), str):
        profile.append(SpeakerTurn(speaker="profile", text=described, id="profile_description"))
    stream.session(profile)
    known = []
    for id, value in _section(memory, "social_relationship", where):
        place = f"{where}: social_relationship {id}"
        who, what = (field(value, key, str, place) for key in ("Supporting Characters", "Description"))
        known.append(
            turn("social_relationship", id, "relationship", f"{who} ({value.get('Relationship', '')}): {what}")
        )
    stream.session(known)
    dated: list[tuple[str, list[SpeakerTurn]]] = []
    for id, value in _section(memory, "events", where):
        text = field(value, "content", str, f"{where}: events {id}")
        when = str(value.get("Creation Time", ""))
        dated.append((when, [turn("events", id, "event", text if iso_time(when) else f"{when}: {text}")]))
    for id, value in _section(memory, "dialogues", where):
        number = 0
        for when, lines in field(value, "contents", Mapping, f"{where}: dialogues {id}").items():
            spoken = []
            for line in _lines(lines):
                speaker, colon, text = line.partition(": ")
                spoken.append(turn("dialogues", id, speaker if colon else "", text if colon else line, number))
                number += 1
            dated.append((str(when), spoken))
    times = _carried([_about(when) for when, _ in dated])
    for n in sorted(range(len(dated)), key=lambda n: (times[n], n)):
        stream.session(dated[n][1], iso_time(dated[n][0]))
    return stream.task(name, _questions(sections, stream, turns_of, asked), where)


def _questions(sections: Any, stream: Stream, turns_of: Mapping[str, list[str]], where: str) -> Iterator[Question]:
    for kind, prefix in KINDS.items():
        section = sections.get(kind) if isinstance(sections, Mapping) else None
        for n, item in enumerate(_asked(section, f"{where}: {kind}")):
            place = f"{where}: {kind}: question {n}"
            meta: dict[str, Any] = {"metric": DATA.metric}
            refs = _references(item.get("Reference Memory"))
            evidence, _ = stream.evidence(id for ref in refs for id in turns_of.get(f"{kind} {ref}", ()))
            if unknown := [ref for ref in refs if f"{kind} {ref}" not in turns_of]:
                meta["unknown_evidence"] = unknown
            if anchors := objects(item.get("Memory Anchors"), f"{place}: Memory Anchors"):
                meta["anchors"] = [key for anchor in anchors for key in anchor]
            yield Question(
                id=f"{prefix}{n}",
                question=field(item, "Question", str, place),
                answers=answers_of(item.get("Answer"), f"{place}: field 'Answer'"),
                category=kind,
                evidence=evidence,
                meta=meta,
            )


def _asked(section: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """Profile questions are a list of questions, the others a list of `{memory id: [question, ...]}`."""
    for entry in objects(section, where):
        if "Question" in entry:
            yield entry
        else:
            for id, items in entry.items():
                yield from objects(items, f"{where}: {id}")


def _section(memory: Mapping[str, Any], key: str, where: str) -> Iterator[tuple[str, Any]]:
    value = memory.get(key)
    if isinstance(value, str):
        value = _python(value)
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: field {key!r} is missing or not an object")
    yield from ((str(id), item) for id, item in value.items())


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _lines(item)
    elif isinstance(value, str):
        yield from (line for line in value.splitlines() if line.strip())


def _references(value: Any) -> list[str]:
    """Memory ids: a text, a list, or a printed list."""
    if isinstance(value, str) and value.strip().startswith("["):
        value = _python(value)
    return [str(item) for item in value] if isinstance(value, list) else [str(value).strip()] if value else []


def _python(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _about(text: str) -> str | None:
    """A time to sort by: all that is known of it, down to the year (`October 2021`, `2012`, `the summer of 2019`)."""
    if (time := iso_time(text)) is not None:
        return time
    for form in ("%B %Y", "%b %Y", "%Y-%m", "%Y/%m"):
        try:
            return datetime.strptime(text.strip(), form).strftime("%Y-%m")
        except ValueError:
            pass
    year = re.search(r"\b(?:19|20)\d{2}\b", text)
    return year[0] if year else None


def _carried(times: list[str | None]) -> list[str]:
    """Times to sort by: one that is not known stays with what comes before it."""
    found, before = [], ""
    for time in times:
        before = time or before
        found.append(before)
    return found
