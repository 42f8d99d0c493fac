"""Prompts for judges, in our own words: one prompt per verdict, by benchmark and kind of question.

The rules are those of the benchmarks; the wording is ours. Every prompt ends in one JSON object. Its field "verdict" is
one of a few words (`JudgePrompt.verdicts`) and comes after a reason, so that a model thinks before it decides.

| benchmark    | kinds                                                       | verdicts                         |
|--------------|-------------------------------------------------------------|----------------------------------|
| longmemeval  | fact; temporal: one off in a count of days, weeks or months | correct, wrong                   |
|              | is right; knowledge-update: the old answer may stand beside |                                  |
|              | the new; preference: a rubric; abstention                   |                                  |
| locomo       | strict: vaguer than the accepted answer is wrong            | correct, wrong                   |
| halumem      | right, made up, or incomplete                               | correct, hallucination, omission |
| beam         | one prompt per point of the rubric                          | full 1, partial 0.5, none 0      |
|              | event ordering: one per line of the answer, the event of    | 1, 2, ... or none                |
|              | the rubric that it tells; the score is Kendall's tau of the |                                  |
|              | two orders (`official.event_order`)                         |                                  |
| generic      | anything else                                               | correct, wrong                   |
| (key points) | one prompt per key point, per sentence, and for fluency;    | stated/missing,                  |
|              | fluency x F1 of stated points and supported sentences       | supported/unsupported, fluent/broken |
| (writes)     | an operation on the memory, with the chunk it came from     | valid, invalid                   |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import yaml

from memalpha.errors import DataError
from memalpha.policy.plain_text import enclose
from memalpha.qa.scoring.official import event_order, keypoint_f1
from memalpha.types import Question

Benchmark = Literal["generic", "longmemeval", "locomo", "halumem", "beam"]
BENCHMARKS: tuple[Benchmark, ...] = ("generic", "longmemeval", "locomo", "halumem", "beam")

_RULES = yaml.safe_load((resources.files("memalpha") / "data" / "judge_rules.yaml").read_text(encoding="utf-8"))
SYSTEM: str = _RULES["system"]

RIGHT_OR_WRONG = {"correct": 1.0, "wrong": 0.0}
HALLUCINATION_OR_OMISSION = {"correct": 1.0, "hallucination": 0.0, "omission": 0.0}
RUBRIC_POINTS = {"full": 1.0, "partial": 0.5, "none": 0.0}
VALIDITY = {"valid": 1.0, "invalid": 0.0}
STATED = {"stated": 1.0, "missing": 0.0}
SUPPORTED = {"supported": 1.0, "unsupported": 0.0}
FLUENT = {"fluent": 1.0, "broken": 0.0}


@dataclass(frozen=True, slots=True)
class Item:
    """Answer to judge.

    Attributes:
        question: Text of the question.
        gold: Accepted answers, any of which is right; empty where the right answer is to abstain.
        prediction: Answer to judge.
        category: Category of the question.
        benchmark: Benchmark whose rules apply.
        refused: The data set's remark in place of an answer.
        rubric: Points that are judged one by one instead of `gold`. In BEAM's category "event_ordering" they are
            events, in the order in which an answer should tell them, one per line.
        keypoints: Statements that a summary should make, judged instead of comparing it with `gold`.
        date: Day on which the question was asked.
    """

    question: str
    gold: tuple[str, ...]
    prediction: str
    category: str | None = None
    benchmark: Benchmark = "generic"
    refused: str = ""
    rubric: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    date: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """Operation of a writer on the memory while reading `chunk`.

    Attributes:
        kind: "nothing" if nothing was written.
        chunk: Text of the chunk.
        category: Category of the entry.
        content: New content of the entry.
        before: Content that an update or delete ended.
        timestamp: Date of the chunk.
    """

    kind: Literal["insert", "update", "delete", "core_update", "nothing"]
    chunk: str
    category: str = ""
    content: str = ""
    before: str = ""
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """One prompt, and the score of each possible verdict."""

    prompt: str
    verdicts: Mapping[str, float]


_LME_KINDS = (
    "single-session-user",
    "single-session-assistant",
    "single-session-preference",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)


def item_of(question: Question, prediction: str, benchmark: Benchmark | None = None) -> Item:
    """Build the item to judge from a task's question and its answer.

    Args:
        question: Question with its metadata.
        prediction: Answer to judge.
        benchmark: Rules of judging. Default: the question's `meta["benchmark"]`; else beam for a rubric, longmemeval
            for its question types (MemoryAgentBench uses them too), generic otherwise.

    Raises:
        DataError: The benchmark is unknown.
    """
    meta = question.meta
    implied = "generic"
    if meta.get("rubric"):
        implied = "beam"
    elif question.category in _LME_KINDS:
        implied = "longmemeval"
    name = benchmark or meta.get("benchmark", implied)
    if name not in BENCHMARKS:
        raise DataError(f"question {question.id!r}: no judge knows benchmark {name!r}; use {', '.join(BENCHMARKS)}")
    return Item(
        question.question,
        question.answers,
        prediction,
        question.category,
        name,
        refused=str(meta.get("refused", "")),
        rubric=tuple(map(str, meta.get("rubric", ()))),
        keypoints=tuple(map(str, meta.get("keypoints", ()))),
        date=str(meta.get("date") or ""),
    )


def prompts_of(item: Item | Write) -> list[JudgePrompt]:
    """The prompts whose verdicts make the item's score (`score_of`)."""
    if isinstance(item, Write):
        return [_make_prompt(_write_rule(item), _write_parts(item), VALIDITY)]
    if item.rubric and item.benchmark == "beam" and item.category == _ORDERING:
        return _event_prompts(item)
    if item.rubric:
        return [
            _make_prompt(_RULES["point"], {**_question(item), "point": point, "answer": item.prediction}, RUBRIC_POINTS)
            for point in item.rubric
        ]
    if item.keypoints:
        return _summary_prompts(item)
    parts = _question(item)
    if not item.gold:
        parts |= {"remark": item.refused} if item.refused else {}
        return [_make_prompt(_RULES["abstain"], {**parts, "answer": item.prediction}, RIGHT_OR_WRONG)]
    parts["accepted answer"] = "\nor: ".join(item.gold)
    rule, verdicts = _rule(item)
    return [_make_prompt(rule, {**parts, "answer": item.prediction}, verdicts)]


def score_of(prompts: Sequence[JudgePrompt], values: Sequence[float]) -> float:
    """Return an item's score from its prompts' verdicts.

    It is their mean; for a summary with key points `keypoint_f1`, for events in order the `tau` of `event_order`.
    """
    if _FIRST in prompts[0].verdicts:
        return _order_score(values, len(prompts[0].verdicts) - 1)
    if not any(prompt.verdicts is FLUENT for prompt in prompts):
        return sum(values) / len(values)
    pairs = list(zip(prompts, values, strict=True))
    stated = [value for prompt, value in pairs if prompt.verdicts is STATED]
    supported = [value for prompt, value in pairs if prompt.verdicts is SUPPORTED]
    return keypoint_f1(int(sum(stated)), len(stated), int(sum(supported)), len(supported), values[-1])


_ORDERING = "event_ordering"
_FIRST = "1"


def _event_prompts(item: Item) -> list[JudgePrompt]:
    """Build a prompt per line of the answer.

    BEAM's script asks of every pair of event and line whether they are the same, and counts blank lines as events. Here
    a line is asked about once, and blank lines are skipped.
    """
    verdicts = {**{str(number): float(number) for number in range(1, len(item.rubric) + 1)}, "none": 0.0}
    events = "\n".join(f"{number}. {event}" for number, event in enumerate(item.rubric, start=1))
    lines = [line.strip() for line in item.prediction.splitlines() if line.strip()]
    return [
        _make_prompt(_RULES["event"], {**_question(item), "events": events, "line": line}, verdicts) for line in lines
    ]


def _order_score(events_by_line: Sequence[float], event_count: int) -> float:
    """Return tau of the events by line; the first line that tells an event counts, other lines are extra events."""
    names, numbers = [], set()
    for line, number in enumerate(events_by_line):
        names.append(f"event {number:.0f}" if number and number not in numbers else f"line {line}")
        numbers.add(number)
    return event_order([f"event {number}" for number in range(1, event_count + 1)], names)["tau"]


def _summary_prompts(item: Item) -> list[JudgePrompt]:
    """Build a prompt per key point, per sentence, and one for fluency, last."""
    sentences = [text.strip() for text in _SENTENCE.split(item.prediction) if text.strip()]
    reference = "\nor: ".join(item.gold) or "\n".join(item.keypoints)
    return [
        *(
            _make_prompt(_RULES["keypoint"], {"summary": item.prediction, "key point": point}, STATED)
            for point in item.keypoints
        ),
        *(
            _make_prompt(_RULES["sentences"], {"reference": reference, "sentence": sentence}, SUPPORTED)
            for sentence in sentences
        ),
        _make_prompt(_RULES["fluency"], {"summary": item.prediction}, FLUENT),
    ]


_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def _make_prompt(rule: str, parts: Mapping[str, str], verdicts: Mapping[str, float]) -> JudgePrompt:
    material = "\n".join(enclose(name, text) for name, text in parts.items())
    words = list(verdicts)
    choice = f"{', '.join(words[:-1])} or {words[-1]}"
    form = f'{{"reason": "one short sentence", "verdict": "{choice}"}}'
    return JudgePrompt(
        f"{rule.strip()}\n\n{material}\n\nReply with one JSON object and nothing else:\n{form}", verdicts
    )


def _question(item: Item) -> dict[str, str]:
    return {"question": item.question, **({"asked on": item.date} if item.date else {})}


def _rule(item: Item) -> tuple[str, Mapping[str, float]]:
    kind = item.category or ""
    if item.benchmark == "locomo":
        return _RULES["strict"], RIGHT_OR_WRONG
    if item.benchmark == "halumem":
        return _RULES["halumem"], HALLUCINATION_OR_OMISSION
    if item.benchmark == "longmemeval":
        if kind.endswith("preference"):
            return _RULES["preference"], RIGHT_OR_WRONG
        extra = {"temporal-reasoning": _RULES["temporal"], "knowledge-update": _RULES["updated"]}.get(kind, "")
        return f"{_RULES['fact']}{extra}", RIGHT_OR_WRONG
    return _RULES["fact"], RIGHT_OR_WRONG


def _write_rule(write: Write) -> str:
    if write.kind in ("delete", "nothing"):
        return _RULES["deleted"] if write.kind == "delete" else _RULES["nothing"]
    return _RULES["written"] + (_RULES["core"] if write.kind == "core_update" else "")


def _write_parts(write: Write) -> dict[str, str]:
    parts = {"part of the conversation": f"({write.timestamp})\n{write.chunk}" if write.timestamp else write.chunk}
    if write.kind == "nothing":
        return parts
    if write.kind == "delete":
        return {**parts, "deleted entry": write.before}
    if write.category:
        parts["category"] = write.category
    if write.before:
        parts["entry that was replaced"] = write.before
    return {**parts, "written": write.content}
