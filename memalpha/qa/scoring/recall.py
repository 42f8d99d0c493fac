"""Recall of evidence by a search: ranks of evidence units, and metrics over questions.

| metric    | meaning                                                                                  |
|-----------|------------------------------------------------------------------------------------------|
| recall@k  | mean over questions of the share of evidence units among the first k hits                |
| mrr       | mean of 1 / rank of the first evidence unit (0 beyond rank 100)                          |
| tokens@10 | length of the first ten hits (characters / 4)                                            |
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from memalpha.types import MemoryEntry

KS = (1, 5, 10, 20)
DEPTH = 100


class EvidenceQuestion(NamedTuple):
    """Question, its kind, and its evidence units (at least one)."""

    text: str
    kind: str
    gold: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvidenceRanks:
    """Ranks of one question's evidence units.

    Attributes:
        kind: Kind of the question.
        gold: 1-based ranks; infinite beyond `DEPTH`.
        tokens: Length of the first ten hits.
    """

    kind: str
    gold: tuple[float, ...]
    tokens: float

    def recall(self, k: int) -> float:
        """Return the share of the evidence units among the first k hits."""
        return float(np.mean(np.array(self.gold) <= k))


def rank_evidence(
    questions: Sequence[EvidenceQuestion],
    search: Callable[[Sequence[str], int], Sequence[Sequence[MemoryEntry]]],
    unit: Callable[[MemoryEntry], str | None],
) -> list[EvidenceRanks]:
    """Return the ranks of each question's evidence units.

    Args:
        questions: Questions with their evidence.
        search: Returns the k best entries for several queries.
        unit: Returns the unit that an entry is, or is a part of; the unit's first entry counts.
    """
    ranks = []
    for question, hits in zip(questions, search([question.text for question in questions], DEPTH), strict=True):
        first_rank: dict[str | None, int] = {}
        for number, entry in enumerate(hits, start=1):
            first_rank.setdefault(unit(entry), number)
        gold = tuple(first_rank.get(name, math.inf) for name in question.gold)
        ranks.append(EvidenceRanks(question.kind, gold, sum(len(entry.content) / 4 for entry in hits[:10])))
    return ranks


def summarize_ranks(ranks: Sequence[EvidenceRanks], kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metrics of all questions, and under `by_type` those of each kind in `kinds`."""
    by_kind: dict[str, list[EvidenceRanks]] = defaultdict(list)
    for item in ranks:
        by_kind[item.kind].append(item)
    return {
        **recall_metrics(ranks),
        "tokens@10": round(float(np.mean([item.tokens for item in ranks])), 1),
        "by_type": {kind: recall_metrics(by_kind[kind]) for kind in kinds if kind in by_kind},
    }


def recall_metrics(ranks: Sequence[EvidenceRanks]) -> dict[str, Any]:
    """Return questions, recall at each of `KS`, and mrr."""
    values: dict[str, Any] = {"questions": len(ranks)}
    for k in KS:
        values[f"recall@{k}"] = round(float(np.mean([item.recall(k) for item in ranks])), 4)
    return {**values, "mrr": round(float(np.mean([1.0 / min(item.gold) for item in ranks])), 4)}
