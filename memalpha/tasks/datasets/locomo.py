"""LoCoMo (Maharana et al., ACL 2024; CC BY-NC 4.0, so it is read from a path and never shipped) as tasks.

A conversation is a task, a session a chunk (dated, in order of its number), a photo's caption stands in brackets after
the text. Evidence ids are mended: several in one string, a colon after the D, leading zeros; a bare `D` is dropped, and
so are ids of turns that do not exist (`meta["unknown_evidence"]` keeps those). A question's id is
`locomo_<conversation>_qa<number>`, both from 0.

The data set's own observations, facts that a language model wrote of every session with the turns they come from, are
in `Task.meta["observations"]`; `observations(task)` gives them as `Fact`s, for a memory that was written by others.

`audit=` names errors.json of the third-party audit (github.com/dial481/locomo-audit, CC BY-NC 4.0): 156 faults, 99 of
them wrong answers. A faulty question has `meta["fault"]`: its `type`, what it is a fault `of` ("answer" or "evidence"),
and the `answer` and `evidence` that the audit holds right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import field, file_in, filled, read_json, strings, task
from memalpha.types import Chunk, Question, SpeakerTurn, Task

DATA = DataSet(
    name="locomo",
    about="ten long conversations of two people over months, with questions on them",
    source="github:snap-research/LoCoMo",
    licence="CC BY-NC 4.0 (for research; never shipped)",
    counts="10 conversations, 272 sessions, 5,882 turns, 1,986 questions (446 of them adversarial)",
    metric="locomo-f1",
    files=(File("data/locomo10.json", "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4", 2_805_274),),
    revision="3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376",
    variants=("answerable", "adversarial", "all"),
    faults=(
        "99 wrong answers and 57 wrong citations among the 1,540 answerable questions (audit=errors.json marks them)",
        "seven malformed evidence strings, two ids of turns that are not there, four questions without evidence",
        "six answers are integers; adversarial questions have a trap in place of an answer",
        "conv-26 has 16 session dates without a session",
    ),
    expected={
        "answerable": {"tasks": 10, "chunks": 272, "turns": 5882, "questions": 1540},
        "adversarial": {"tasks": 10, "chunks": 272, "turns": 5882, "questions": 446},
        "all": {"tasks": 10, "chunks": 272, "turns": 5882, "questions": 1986},
    },
)

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
ANSWERABLE = ("multi-hop", "temporal", "open-domain", "single-hop")

Faults = Literal["mark", "mend", "drop"]

_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")


class Fact(NamedTuple):
    """An observation: its text, whom it is about, the turns it comes from, and the chunk (a session) and its date."""

    text: str
    speaker: str
    turns: tuple[str, ...]
    chunk: int
    timestamp: str | None


def load(
    path: Path,
    variant: str | None = None,
    limit: int | None = None,
    *,
    audit: str | Path | None = None,
    faults: Faults = "mark",
) -> list[Task]:
    """The conversations of `locomo10.json` (a file, or the folder it lies in), the first `limit`.

    Variants: "answerable" has the questions of categories 1 to 4 (the default), "adversarial" those of category 5,
    whose right answer is to abstain (`answers` empty; the trap is in `meta["adversarial_answer"]`), "all" both. With
    `audit`, `faults` says what comes of faulty questions: "mark" only marks them; "mend" also takes the audit's
    evidence; "drop" also leaves out those with a wrong answer. Wrong answers are never replaced: what the audit gives
    for them is often a sentence of explanation. Raises `DataError` naming file, conversation and field.
    """
    file = file_in(Path(path), DATA.files[0].path)
    try:
        samples = read_json(file)
    except DataError as error:
        if file.exists():
            raise
        raise DataError(f"{error}; get locomo10.json from the snap-research/LoCoMo repository, data=PATH") from error
    samples = filled(samples, "conversations", str(file))
    if faults not in ("mark", "mend", "drop"):
        raise DataError(f"locomo: faults={faults!r}: mark, mend or drop")
    if audit is None and faults != "mark":
        raise DataError(f"locomo: faults={faults} needs audit=PATH, the audit's errors.json")
    tasks = [_task(sample, number, file, variant or "answerable") for number, sample in enumerate(samples[:limit])]
    if audit is None:
        return tasks
    source = file_in(Path(audit), "errors.json")
    found = _audit(source)
    return [_audited(task, found, faults, source) for task in tasks]


def load_locomo(path: str | Path, limit: int | None = None, *, adversarial: bool = False) -> list[Task]:
    """`load` by the two variants that stand apart."""
    return load(Path(path), "adversarial" if adversarial else "answerable", limit)


def observations(task: Task) -> list[Fact]:
    """LoCoMo's own facts on a conversation, in order of its sessions; empty for a task of another data set."""
    return [
        Fact(item["text"], item["speaker"], tuple(item["turns"]), item["chunk"], task.chunks[item["chunk"]].timestamp)
        for item in task.meta.get("observations", ())
    ]


def mend_evidence(strings: list[str]) -> list[str]:
    """Evidence strings as turn ids, in order, each once: `["D8:6; D:9:07"]` -> `["D8:6", "D9:7"]`."""
    found = (match for text in strings for match in _EVIDENCE.findall(text))
    return list(dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in found))


def _task(sample: Any, number: int, file: Path, variant: str) -> Task:
    where = f"{file}: conversation {number}"
    talk = field(sample, "conversation", dict, where)
    sessions = sorted((int(match[1]), key) for key in talk if (match := _SESSION.fullmatch(key)))
    chunks = [_chunk(talk, key, f"{where}: {key}") for _, key in sessions if talk[key]]
    if not chunks:
        raise DataError(f"{where}: no session_1, session_2, ... with turns in 'conversation'")
    known = {turn.id for chunk in chunks for turn in chunk.turns}
    questions = []
    for index, item in enumerate(field(sample, "qa", list, where)):
        label = f"{where}: qa[{index}]"
        category = CATEGORIES.get(field(item, "category", int, label))
        if category is None:
            raise DataError(f"{label}: 'category' is {item['category']}, not one of 1 to 5")
        if variant == "all" or (category == "adversarial") == (variant == "adversarial"):
            questions.append(_question(item, f"locomo_{number}_qa{index}", category, known, label))
    return task(
        str(file),
        id=str(sample.get("sample_id", f"locomo-{number}")),
        chunks=tuple(chunks),
        questions=tuple(questions),
        meta={
            "speakers": [talk.get("speaker_a"), talk.get("speaker_b")],
            "observations": list(_observed(sample, [key for _, key in sessions if talk[key]], known, where)),
        },
    )


def _observed(
    sample: Mapping[str, Any], sessions: Sequence[str], known: set[str | None], where: str
) -> Iterator[dict[str, Any]]:
    """The observations of each session, in order; a file without them has none."""
    given = field(sample, "observation", dict, where) if "observation" in sample else {}
    for chunk, session in enumerate(sessions):
        key = f"{session}_observation"
        by_speaker = field(given, key, dict, f"{where}: observation") if key in given else {}
        for speaker in by_speaker:
            for fact in field(by_speaker, speaker, list, f"{where}: observation.{key}"):
                if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str)):
                    raise DataError(f"{where}: observation.{key}: {fact!r} is not [fact, turn id]")
                ids = fact[1] if isinstance(fact[1], list) else [fact[1]]
                cited = mend_evidence(strings(ids, f"{where}: observation.{key}: {fact[0]!r}"))
                turns = [turn for turn in cited if turn in known]
                yield {"text": fact[0], "speaker": speaker, "turns": turns, "chunk": chunk}


def _audit(file: Path) -> dict[str, Mapping[str, Any]]:
    """The entries of the audit by question id."""
    found: dict[str, Mapping[str, Any]] = {}
    for number, item in enumerate(filled(read_json(file), "faults", str(file))):
        where = f"{file}: [{number}]"
        for key in ("question_id", "question", "error_type", "correct_answer"):
            field(item, key, str, where)
        strings(field(item, "correct_evidence", list, where), f"{where}: correct_evidence")
        found[item["question_id"]] = item
    return found


def _audited(task: Task, audit: Mapping[str, Mapping[str, Any]], faults: Faults, source: Path) -> Task:
    known = {turn.id for chunk in task.chunks for turn in chunk.turns}
    questions: list[Question] = []
    for question in task.questions:
        if (item := audit.get(question.id)) is None:
            questions.append(question)
            continue
        if item["question"].strip() != question.question.strip():
            raise DataError(f"{source}: {question.id} asks {item['question']!r} there: it is of other data")
        evidence = [turn for turn in mend_evidence(item["correct_evidence"]) if turn in known]
        wrong = item["error_type"] != "WRONG_CITATION"
        if wrong and faults == "drop":
            continue
        fault = {
            "type": item["error_type"].lower().replace("_", "-"),
            "of": "answer" if wrong else "evidence",
            "answer": item["correct_answer"],
            "evidence": evidence,
        }
        changed: dict[str, Any] = {"meta": {**question.meta, "fault": fault}}
        if faults != "mark" and evidence:
            changed["evidence"] = tuple(evidence)
        questions.append(question.model_copy(update=changed))
    return task.model_copy(update={"questions": tuple(questions)})


def _chunk(talk: Mapping[str, Any], key: str, where: str) -> Chunk:
    turns = []
    for item in field(talk, key, list, where):
        text = field(item, "text", str, where)
        if caption := item.get("blip_caption"):
            text = f"{text} [{caption}]"
        speaker, id = field(item, "speaker", str, where), field(item, "dia_id", str, where)
        turns.append(SpeakerTurn(speaker=speaker, text=text, id=next(iter(mend_evidence([id])), id)))
    date = field(talk, f"{key}_date_time", str, where)
    try:
        time = datetime.strptime(date, "%I:%M %p on %d %B, %Y")
    except ValueError as error:
        raise DataError(f"{where}_date_time: {date!r} is not like '1:56 pm on 8 May, 2023'") from error
    return Chunk(turns=tuple(turns), timestamp=time.isoformat(timespec="minutes"))


def _question(item: Mapping[str, Any], id: str, category: str, known: set[str | None], where: str) -> Question:
    evidence = mend_evidence(strings(field(item, "evidence", list, where), f"{where}: evidence"))
    meta: dict[str, Any] = {"metric": DATA.metric, "benchmark": "locomo"}
    if unknown := [turn for turn in evidence if turn not in known]:
        meta["unknown_evidence"] = unknown
    answers: tuple[str, ...] = ()
    if category == "adversarial":
        meta["adversarial_answer"] = str(item.get("adversarial_answer", ""))
    else:
        answers = (str(field(item, "answer", (str, int, float), where)),)
    return Question(
        id=id,
        question=field(item, "question", str, where),
        answers=answers,
        category=category,
        evidence=tuple(turn for turn in evidence if turn in known),
        meta=meta,
    )
