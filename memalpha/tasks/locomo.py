"""LoCoMo (Maharana et al., ACL 2024; CC BY-NC 4.0, so it is read from a path and never shipped) as tasks.

A conversation is a task, a session a chunk (dated, in order of its number), a photo's caption stands in brackets after
the text. Evidence ids are mended: several in one string, a colon after the D, leading zeros; a bare `D` is dropped, and
so are ids of turns that do not exist (`meta["unknown_evidence"]` keeps those).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.types import Chunk, Question, SpeakerTurn, Task

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
ANSWERABLE = ("multi-hop", "temporal", "open-domain", "single-hop")

_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")


def load_locomo(path: str | Path, limit: int | None = None, *, adversarial: bool = False) -> list[Task]:
    """The conversations of `locomo10.json` (the first `limit`), each with its answerable questions (categories 1 to 4).

    `adversarial=True` gives the questions of category 5 instead: their right answer is to abstain (`answers` empty) and
    the trap is in `meta["adversarial_answer"]`. A question's id is `locomo_<conversation>_qa<number>`, both from 0.
    Raises `DataError` naming file, conversation and field.
    """
    file = Path(path)
    try:
        samples = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror}); get locomo10.json from the snap-research/LoCoMo repository "
            "and give its path as data=PATH"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a JSON file: {error}") from error
    if not isinstance(samples, list) or not samples:
        raise DataError(f"{file}: LoCoMo is a JSON list of conversations, and this is not one or is empty")
    return [_task(sample, number, file, adversarial) for number, sample in enumerate(samples[:limit])]


def mend_evidence(strings: list[str]) -> list[str]:
    """Evidence strings as turn ids, in order, each once: `["D8:6; D:9:07"]` -> `["D8:6", "D9:7"]`."""
    found = (match for text in strings for match in _EVIDENCE.findall(text))
    return list(dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in found))


def _task(sample: Any, number: int, file: Path, adversarial: bool) -> Task:
    where = f"{file}: conversation {number}"
    talk = _field(sample, "conversation", dict, where)
    sessions = sorted((int(match[1]), key) for key in talk if (match := _SESSION.fullmatch(key)))
    chunks = [_chunk(talk, key, f"{where}: {key}") for _, key in sessions if talk[key]]
    if not chunks:
        raise DataError(f"{where}: no session_1, session_2, ... with turns in 'conversation'")
    known = {turn.id for chunk in chunks for turn in chunk.turns}
    questions = []
    for index, item in enumerate(_field(sample, "qa", list, where)):
        label = f"{where}: qa[{index}]"
        category = CATEGORIES.get(_field(item, "category", int, label))
        if category is None:
            raise DataError(f"{label}: 'category' is {item['category']}, not one of 1 to 5")
        if (category == "adversarial") == adversarial:
            questions.append(_question(item, f"locomo_{number}_qa{index}", category, known, label))
    return Task(
        id=str(sample.get("sample_id", f"locomo-{number}")),
        chunks=tuple(chunks),
        questions=tuple(questions),
        meta={"speakers": [talk.get("speaker_a"), talk.get("speaker_b")]},
    )


def _chunk(talk: Mapping[str, Any], key: str, where: str) -> Chunk:
    turns = []
    for item in _field(talk, key, list, where):
        text = _field(item, "text", str, where)
        if caption := item.get("blip_caption"):
            text = f"{text} [{caption}]"
        speaker, id = _field(item, "speaker", str, where), _field(item, "dia_id", str, where)
        turns.append(SpeakerTurn(speaker=speaker, text=text, id=next(iter(mend_evidence([id])), id)))
    date = _field(talk, f"{key}_date_time", str, where)
    try:
        time = datetime.strptime(date, "%I:%M %p on %d %B, %Y")
    except ValueError as error:
        raise DataError(f"{where}_date_time: {date!r} is not like '1:56 pm on 8 May, 2023'") from error
    return Chunk(turns=tuple(turns), timestamp=time.isoformat(timespec="minutes"))


def _question(item: Mapping[str, Any], id: str, category: str, known: set[str | None], where: str) -> Question:
    evidence = mend_evidence(_field(item, "evidence", list, where))
    meta: dict[str, Any] = {}
    if unknown := [turn for turn in evidence if turn not in known]:
        meta["unknown_evidence"] = unknown
    answers: tuple[str, ...] = ()
    if category == "adversarial":
        meta["adversarial_answer"] = str(item.get("adversarial_answer", ""))
    else:
        answers = (str(_field(item, "answer", (str, int, float), where)),)
    return Question(
        id=id,
        question=_field(item, "question", str, where),
        answers=answers,
        category=category,
        evidence=tuple(turn for turn in evidence if turn in known),
        meta=meta,
    )


def _field(item: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`item[key]`, which must be there and of the kind."""
    if not isinstance(item, Mapping) or not isinstance(item.get(key), kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{where}: field {key!r} is missing or not {names}")
    return item[key]
