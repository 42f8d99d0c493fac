"""PerLTQA (Du et al., SIGHAN 2024; CC BY-NC 4.0, so it is read from a path): a character is a task.

First comes the character's profile and relationships, then events and dialogues in order of their time. Turn ids are
`profile:FIELD`, `social:ID`, `event:ID`, `dialogue:ID:N`. Evidence are the turns that a question's `Reference Memory`
names. The category of a question is the kind of memory it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import TaskBuilder, read_question, require_objects, to_iso_time
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import find_sibling, parse_printed, read_json, require_field, require_items
from memalpha.types import Question, SpeakerTurn, Task

DATA = shipped_card("perltqa")

KINDS = {"profile": "profile", "social_relationship": "social", "events": "event", "dialogues": "dialogue"}
"""Prefix of turn ids by section of the official files."""


def load(path: Path, variant: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the characters that have memory and questions.

    Args:
        path: Folder that holds both files, or one of them.
        variant: Not used, the set has no variants.
        limit: Return the first `limit` characters only.
    """
    return list(islice(characters(path), limit))


def characters(path: Path) -> Iterator[Task]:
    """Yield one character at a time. Raises `DataError` naming file, character and field."""
    memory_file, question_file = (find_sibling(path, file.path) for file in DATA.files)
    memories = read_json(memory_file)
    if not isinstance(memories, dict):
        raise DataError(f"{memory_file}: a JSON object of characters is needed")
    for block in require_items(read_json(question_file), "characters", str(question_file)):
        if not isinstance(block, dict):
            raise DataError(f"{question_file}: a character is an object of its name and its questions")
        for name, sections in block.items():
            if name in memories:
                memory = require_field(memories, name, Mapping, str(memory_file))
                yield _task(name, memory, sections, f"{memory_file}: {name}", f"{question_file}: {name}")


def _task(name: str, memory: Mapping[str, Any], sections: Any, location: str, question_location: str) -> Task:
    builder = TaskBuilder()
    turns_of: dict[str, list[str]] = {}

    def turn(kind: str, id: str, speaker: str, text: str, number: int | None = None) -> SpeakerTurn:
        """Build a turn and note its id under its memory.

        Args:
            kind: Section of the official files.
            id: Id of the memory.
            speaker: Speaker of the turn.
            text: Text of the turn.
            number: Number of the turn in a dialogue; None elsewhere.
        """
        turn_id = f"{KINDS[kind]}:{id}" if number is None else f"{KINDS[kind]}:{id}:{number}"
        turns_of.setdefault(f"{kind} {id}", []).append(turn_id)
        return SpeakerTurn(speaker=speaker, text=text, id=turn_id)

    profile = _section(memory, "profile", location)
    turns = [turn("profile", key, "profile", f"{key}: {value}") for key, value in profile]
    if isinstance(described := memory.get("profile_description"), str):
        turns.append(SpeakerTurn(speaker="profile", text=described, id="profile_description"))
    builder.add_session(turns)
    turns = []
    for id, value in _section(memory, "social_relationship", location):
        keys, item_location = ("Supporting Characters", "Description"), f"{location}: social_relationship {id}"
        person, description = (require_field(value, key, str, item_location) for key in keys)
        text = f"{person} ({value.get('Relationship', '')}): {description}"
        turns.append(turn("social_relationship", id, "relationship", text))
    builder.add_session(turns)
    dated: list[tuple[str, list[SpeakerTurn]]] = []
    for id, value in _section(memory, "events", location):
        text = require_field(value, "content", str, f"{location}: events {id}")
        time = str(value.get("Creation Time", ""))
        dated.append((time, [turn("events", id, "event", text if to_iso_time(time) else f"{time}: {text}")]))
    for id, value in _section(memory, "dialogues", location):
        numbers = count()
        for time, lines in require_field(value, "contents", Mapping, f"{location}: dialogues {id}").items():
            dated.append((str(time), []))
            for line in _lines(lines):
                speaker, colon, text = line.partition(": ")
                spoken = (speaker, text) if colon else ("", line)
                dated[-1][1].append(turn("dialogues", id, *spoken, next(numbers)))
    times = accumulate((_sortable_time(time) for time, _ in dated), lambda last, time: time or last)
    for _, (time, turns) in sorted(zip(times, dated, strict=True), key=lambda item: item[0] or ""):
        builder.add_session(turns, to_iso_time(time))
    return builder.build(name, _questions(sections, builder, turns_of, question_location), location)


def _questions(
    sections: Any, builder: TaskBuilder, turns_of: Mapping[str, list[str]], location: str
) -> Iterator[Question]:
    for kind, prefix in KINDS.items():
        section = sections.get(kind) if isinstance(sections, Mapping) else None
        for n, item in enumerate(_question_items(section, f"{location}: {kind}")):
            item_location = f"{location}: {kind}: question {n}"
            meta: dict[str, Any] = {"metric": DATA.metric}
            value = item.get("Reference Memory")
            if isinstance(value, str) and value.strip().startswith("["):
                value = _python(value)
            refs = [str(item) for item in value] if isinstance(value, list) else [str(value).strip()] if value else []
            evidence, _ = builder.resolve_evidence(id for ref in refs for id in turns_of.get(f"{kind} {ref}", ()))
            if unknown := [ref for ref in refs if f"{kind} {ref}" not in turns_of]:
                meta["unknown_evidence"] = unknown
            if anchors := require_objects(item.get("Memory Anchors"), f"{item_location}: Memory Anchors"):
                meta["anchors"] = [key for anchor in anchors for key in anchor]
            keys = ("Question", "Answer")
            yield read_question(item, f"{prefix}{n}", item_location, meta, keys=keys, evidence=evidence, category=kind)


def _question_items(section: Any, location: str) -> Iterator[Mapping[str, Any]]:
    """Yield question objects.

    Profile questions are a list, the others a list of `{memory id: [question, ...]}`.
    """
    for entry in require_objects(section, location):
        if "Question" in entry:
            yield entry
        else:
            for id, items in entry.items():
                yield from require_objects(items, f"{location}: {id}")


def _section(memory: Mapping[str, Any], key: str, location: str) -> Iterator[tuple[str, Any]]:
    value = _python(memory.get(key))
    if not isinstance(value, Mapping):
        raise DataError(f"{location}: field {key!r} is missing or not an object")
    yield from ((str(id), item) for id, item in value.items())


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _lines(item)
    elif isinstance(value, str):
        yield from (line for line in value.splitlines() if line.strip())


def _python(value: Any) -> Any:
    """Parse a printed JSON or Python object; None for other texts, other values are returned unchanged."""
    try:
        return parse_printed(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _sortable_time(text: str) -> str | None:
    """Return a time to sort by, down to the year (`October 2021`, `2012`)."""
    if (time := to_iso_time(text)) is not None:
        return time
    for form in ("%B %Y", "%b %Y", "%Y-%m", "%Y/%m"):
        with suppress(ValueError):
            return datetime.strptime(text.strip(), form).strftime("%Y-%m")
    year = re.search(r"\b(?:19|20)\d{2}\b", text)
    return year[0] if year else None
