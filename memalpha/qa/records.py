"""One record per question of an evaluation, and how records are written as JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One question to one rollout, or to one system under test.

    `gold` empty: the right answer was to abstain. `retrieved` are ids of what was shown, best first, `tokens` its
    length (characters / 4). `written`, `live`: the fact asked for was ever written, is in the memory the question was
    asked of (None where there is no such fact, or the system does not show what it holds); `found`: it was among what
    was shown (None where that is not known). `stale`: answered with a value that no longer held. `evidence_recall`:
    share of the evidence turns that what was shown was taken from (None without evidence, or where that is not known).
    `scores`: further metrics by name. `ceiling`: the same reader is right when shown the evidence (None: not asked).
    `loss`: where a wrong answer was lost (see `loss`; None: right, or not looked for), `feedback` that in words.
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

    def as_json(self) -> dict[str, Any]:
        """The record as one line of `eval/<name>.jsonl`."""
        return {_JSON_KEYS.get(name, name): getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Record:
        """Build a record from a line of `eval/<name>.jsonl`; keys must be among `RECORD_KEYS`."""
        attributes = {_ATTRIBUTES.get(key, key): value for key, value in fields.items()}
        lists: dict[str, Any] = {name: tuple(attributes.get(name, ())) for name in ("gold", "retrieved")}
        return cls(**{"rollout": 0, "kind": None, "answer": "", **attributes, **lists})


_JSON_KEYS = {"error_class": "loss", "support_retrieved": "found"}
"""Attribute -> key in files, where they differ: the keys are those of release 0.1."""
_ATTRIBUTES = {key: attribute for attribute, key in _JSON_KEYS.items()}
RECORD_KEYS = frozenset(_JSON_KEYS.get(name, name) for name in Record.__slots__)
"""Keys that a line of `eval/<name>.jsonl` may have."""


def save_records(records: Iterable[Record], path: str | Path) -> None:
    """Write records as JSON Lines."""
    # A model's text may hold half a surrogate pair, which only an escape can carry.
    lines = [json.dumps(record.as_json()) + "\n" for record in records]
    Path(path).write_text("".join(lines), encoding="utf-8")
