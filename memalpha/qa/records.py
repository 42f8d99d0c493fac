"""One record per question of an evaluation, and its JSON Lines form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """Hold one answered question of one rollout, or of one evaluated system.

    Attributes:
        task: Id of the task.
        rollout: Index of the rollout; 0 for a system.
        question_id: Id of the question.
        ability: Category of the question; "none" without one.
        kind: Kind of the question (`Question.meta["kind"]`), if it has one.
        question: Text of the question.
        answer: Text of the answer.
        gold: Accepted answers; empty where the right answer is to abstain.
        score: Score by the metric, 0 to 1.
        correct: True if the score counts as right.
        retrieved: Ids of the retrieved passages, best first.
        written: True if the support of the answer was ever written; None if that is unknown.
        live: True if the support was in the memory when the question was asked; None if that is unknown.
        stale: True if the answer gives a value that no longer held.
        conflict: True if the conflict rule refused the answer.
        system: Name of the evaluated system.
        abstained: True if the answer is an abstention.
        tokens: Length of the retrieved text (characters / 4).
        evidence_recall: Share of the evidence turns that the retrieved passages come from; None without evidence.
        support_retrieved: True if the support was among the retrieved passages; None if that is unknown.
        error_class: Class of a wrong answer, see `error_analysis`; None if right or not classified.
        searches: The reader's own searches: each with its `query` and the ids it `retrieved`.
        left_out: Number of live entries that did not fit a reader of the whole memory; None for other readers.
        rule: Rule that found the support (`facts`, `turns`, `chunks`, `answers`); None if not classified or no answer.
        ceiling: True if the same reader is right when shown the evidence; None if it was not asked.
        scores: Further metrics by name.
        feedback: The error in words; see `error_analysis.feedback`.
        truncated: True if the answer of a language model was cut at its most tokens.
    """

    task: str
    rollout: int
    question_id: str
    ability: str
    kind: str | None
    question: str
    answer: str
    gold: tuple[str, ...]
    score: float
    correct: bool
    retrieved: tuple[str, ...] = ()
    written: bool | None = None
    live: bool | None = None
    stale: bool = False
    conflict: bool = False
    system: str = ""
    abstained: bool = False
    tokens: int = 0
    evidence_recall: float | None = None
    support_retrieved: bool | None = None
    error_class: str | None = None
    ceiling: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""
    truncated: bool = False
    rule: str | None = None
    searches: tuple[Mapping[str, Any], ...] = ()
    left_out: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the record as one line of `eval/<name>.jsonl`."""
        return {_JSON_KEYS.get(name, name): getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Record:
        """Build a record from a line of `eval/<name>.jsonl`; keys must be among `RECORD_KEYS`."""
        attributes = {_ATTRIBUTES.get(key, key): value for key, value in fields.items()}
        lists: dict[str, Any] = {name: tuple(attributes.get(name, ())) for name in ("gold", "retrieved", "searches")}
        return cls(**{"rollout": 0, "kind": None, "answer": "", **attributes, **lists})


_JSON_KEYS = {"error_class": "loss", "support_retrieved": "found"}
"""Attribute -> key in files, where they differ."""
_ATTRIBUTES = {key: attribute for attribute, key in _JSON_KEYS.items()}
RECORD_KEYS = frozenset(_JSON_KEYS.get(name, name) for name in Record.__slots__)
"""Keys that a line of `eval/<name>.jsonl` may have."""


def save_records(records: Iterable[Record], path: str | Path) -> None:
    """Write records as JSON Lines."""
    # A model's text may hold half a surrogate pair, which only an escape can carry.
    lines = [json.dumps(record.as_json()) + "\n" for record in records]
    Path(path).write_text("".join(lines), encoding="utf-8")
