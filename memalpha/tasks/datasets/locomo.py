"""LoCoMo (Maharana et al., ACL 2024; CC BY-NC 4.0, so it is read from a path and never shipped).

A conversation is a task, a session a chunk (dated, in order of its number). A photo's caption stands in brackets after
the text. Evidence that is a turn's id stays. Other ids are mended: several in one string, a colon after the D, leading
zeros. A bare `D` is dropped; ids of missing turns are kept in `meta["unknown_evidence"]`. A question's id is
`locomo_<conversation>_qa<number>`, both from 0.

The data set's own observations are facts that a language model wrote of every session, with the turns they come from.
They are in `Task.meta["observations"]`.

`audit=` names errors.json of the third-party audit (github.com/dial481/locomo-audit, CC BY-NC 4.0): 156 faults, 99 of
them wrong answers. A faulty question has `meta["fault"]`: its `type`, whether it is a fault `of` "answer" or
"evidence", and the `answer` and `evidence` that the audit holds right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from memalpha.errors import DataError
from memalpha.tasks.chunking import require_iso_time
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.formats.files import build_task, find_file, read_json, require_field, require_items, require_strings
from memalpha.types import Chunk, Question, SpeakerTurn, Task

DATA = shipped_card("locomo")

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
Faults = Literal["mark", "mend", "drop"]

_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")


def load(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    audit: str | Path | None = None,
    faults: Faults = "mark",
) -> list[Task]:
    """Load the conversations of `locomo10.json`.

    Variant "answerable" has the questions of categories 1 to 4, "adversarial" those of category 5, "all" both. The
    right answer to an adversarial question is to abstain; its trap is in `meta["adversarial_answer"]`. Wrong answers
    are never replaced: the audit's answer is often a sentence of explanation.

    Args:
        path: File, or its folder.
        variant: "answerable" (default), "adversarial" or "all".
        limit: Return the first `limit` conversations only.
        audit: Path of the audit's errors.json.
        faults: With `audit`: "mark" marks faulty questions, "mend" also takes the audit's evidence, "drop" also leaves
            out those with a wrong answer.

    Raises:
        DataError: The file does not fit; the message names file, conversation and field.
    """
    file = find_file(path, DATA.files[0].path)
    samples = require_items(read_json(file), "conversations", str(file))
    if audit is None and faults != "mark":
        raise DataError(f"locomo: faults={faults} needs audit=PATH, the audit's errors.json")
    tasks = [_task(sample, number, file, variant or "answerable") for number, sample in enumerate(samples[:limit])]
    if audit is None:
        return tasks
    source = find_file(Path(audit), "errors.json")
    audit_entries: dict[str, Mapping[str, Any]] = {}
    for number, item in enumerate(require_items(read_json(source), "faults", str(source))):
        location = f"{source}: [{number}]"
        for key in ("question_id", "question", "error_type", "correct_answer"):
            require_field(item, key, str, location)
        require_strings(require_field(item, "correct_evidence", list, location), f"{location}: correct_evidence")
        audit_entries[item["question_id"]] = item
    return [_apply_audit(task, audit_entries, faults, source) for task in tasks]


def mend_evidence(strings: list[str]) -> list[str]:
    """Return evidence strings as turn ids, in order, each once: `["D8:6; D:9:07"]` -> `["D8:6", "D9:7"]`."""
    matches = (match for text in strings for match in _EVIDENCE.findall(text))
    return list(dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in matches))


def _task(sample: Any, number: int, file: Path, variant: str) -> Task:
    location = f"{file}: conversation {number}"
    conversation = require_field(sample, "conversation", dict, location)
    sessions = sorted((int(match[1]), key) for key in conversation if (match := _SESSION.fullmatch(key)))
    titles = [key for _, key in sessions if conversation[key]]
    chunks = []
    for key in titles:
        place, turns = f"{location}: {key}", list[SpeakerTurn]()
        for item in require_field(conversation, key, list, place):
            caption = require_field(item, "blip_caption", (str, NoneType), place)
            text = require_field(item, "text", (str, NoneType) if caption else str, place) or ""
            text = f"{text} [{caption}]".lstrip() if caption else text
            speaker, turn_id = require_field(item, "speaker", str, place), require_field(item, "dia_id", str, place)
            turns.append(SpeakerTurn(speaker=speaker, text=text, id=next(iter(mend_evidence([turn_id])), turn_id)))
        time = require_iso_time(conversation.get(f"{key}_date_time"), f"{place}_date_time")
        chunks.append(Chunk(turns=tuple(turns), timestamp=time))
    if not chunks:
        raise DataError(f"{location}: no session_1, session_2, ... with turns in 'conversation'")
    turn_ids = {turn.id for chunk in chunks for turn in chunk.turns}
    questions = []
    for index, item in enumerate(require_field(sample, "qa", list, location)):
        label = f"{location}: qa[{index}]"
        category = CATEGORIES.get(require_field(item, "category", int, label))
        if category is None:
            raise DataError(f"{label}: 'category' is {item['category']}, not one of 1 to 5")
        if variant == "all" or (category == "adversarial") == (variant == "adversarial"):
            questions.append(_question(item, f"locomo_{number}_qa{index}", category, turn_ids, label))
    meta = {
        "speakers": [conversation.get("speaker_a"), conversation.get("speaker_b")],
        "observations": list(_parse_observations(sample, titles, turn_ids, location)),
    }
    id = str(f"locomo-{number}" if sample.get("sample_id") is None else sample["sample_id"])
    return build_task(str(file), id=id, chunks=tuple(chunks), questions=tuple(questions), meta=meta)


def _parse_observations(
    sample: Mapping[str, Any], sessions: Sequence[str], turn_ids: set[str | None], location: str
) -> Iterator[dict[str, Any]]:
    """Yield the observations of each session, in order; a file may have none."""
    by_session = require_field(sample, "observation", dict, location) if "observation" in sample else {}
    for chunk, session in enumerate(sessions):
        key = f"{session}_observation"
        by_speaker = require_field(by_session, key, dict, f"{location}: observation") if key in by_session else {}
        for speaker in by_speaker:
            for fact in require_field(by_speaker, speaker, list, f"{location}: observation.{key}"):
                if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str)):
                    raise DataError(f"{location}: observation.{key}: {fact!r} is not [fact, turn id]")
                ids = fact[1] if isinstance(fact[1], list) else [fact[1]]
                cited = mend_evidence(require_strings(ids, f"{location}: observation.{key}: {fact[0]!r}"))
                turns = [turn for turn in cited if turn in turn_ids]
                yield {"text": fact[0], "speaker": speaker, "turns": turns, "chunk": chunk}


def _apply_audit(task: Task, audit: Mapping[str, Mapping[str, Any]], faults: Faults, source: Path) -> Task:
    turn_ids = {turn.id for chunk in task.chunks for turn in chunk.turns}
    questions: list[Question] = []
    for question in task.questions:
        if (item := audit.get(question.id)) is None:
            questions.append(question)
            continue
        if item["question"].strip() != question.question.strip():
            raise DataError(f"{source}: {question.id} asks {item['question']!r} there: it is of other data")
        evidence = [turn for turn in mend_evidence(item["correct_evidence"]) if turn in turn_ids]
        is_answer_wrong = item["error_type"] != "WRONG_CITATION"
        if is_answer_wrong and faults == "drop":
            continue
        fault = {
            "type": item["error_type"].lower().replace("_", "-"),
            "of": "answer" if is_answer_wrong else "evidence",
            "answer": item["correct_answer"],
            "evidence": evidence,
        }
        update: dict[str, Any] = {"meta": {**question.meta, "fault": fault}}
        if faults != "mark" and evidence:
            update["evidence"] = tuple(evidence)
        questions.append(question.model_copy(update=update))
    return task.model_copy(update={"questions": tuple(questions)})


def _question(item: Mapping[str, Any], id: str, category: str, turn_ids: set[str | None], location: str) -> Question:
    strings = require_strings(
        require_field(item, "evidence", (list, NoneType), location) or [], f"{location}: evidence"
    )
    evidence = dict.fromkeys(
        turn
        for text in strings
        for turn in ([text] if text in turn_ids else mend_evidence([text]) or [text] * bool(text.strip("D ")))
    )
    meta: dict[str, Any] = {"metric": DATA.metric, "benchmark": "locomo"}
    if unknown := [turn for turn in evidence if turn not in turn_ids]:
        meta["unknown_evidence"] = unknown
    answers: tuple[str, ...] = ()
    if category == "adversarial":
        meta["adversarial_answer"] = str(item.get("adversarial_answer", ""))
    else:
        answers = (str(require_field(item, "answer", (str, int, float), location)),)
    text, cited = require_field(item, "question", str, location), tuple(turn for turn in evidence if turn in turn_ids)
    return Question(id=id, question=text, answers=answers, category=category, evidence=cited, meta=meta)
