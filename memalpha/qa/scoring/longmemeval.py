"""LongMemEval's own table and retrieval scores (xiaowu0162/LongMemEval `src`), with deviations named."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

LONGMEMEVAL_TYPES = (
    "single-session-user", "single-session-preference", "single-session-assistant", "multi-session",
    "temporal-reasoning", "knowledge-update",
)  # fmt: skip


def longmemeval(judged: Iterable[tuple[str, str, bool]]) -> dict[str, Any]:
    """Return LongMemEval's table from (question id, question type, is right).

    The official script prints nan as soon as one type is missing; here the mean is over the types that were asked.

    Returns:
        `by_type` (accuracy and n; abstention questions count in their own type too), `task_averaged` (mean of the
        types), `overall`, `abstention` (questions whose id holds "_abs"); None without a question.
    """
    by_type: dict[str, list[bool]] = {name: [] for name in LONGMEMEVAL_TYPES}
    abstention: list[bool] = []
    for id, kind, right in judged:
        by_type.setdefault(kind, []).append(right)
        if "_abs" in id:
            abstention.append(right)
    means = {kind: _mean(values) for kind, values in by_type.items()}
    return {
        "by_type": {kind: {"accuracy": means[kind], "n": len(values)} for kind, values in by_type.items()},
        "task_averaged": _mean([value for value in means.values() if value is not None]),
        "overall": _mean([right for values in by_type.values() for right in values]),
        "abstention": _mean(abstention),
    }


def retrieval_scores(
    ranking: Sequence[str],
    correct: Collection[str],
    k: int,
    *,
    corpus: Sequence[str] | None = None,
    official: bool = False,
) -> dict[str, float]:
    """Return LongMemEval's `recall_any`, `recall_all` and `ndcg_any` among the first `k` ids.

    Relevance is 0 or 1 and discounted by log2(rank + 1). Both recalls follow the script: without a correct id, any is 0
    and all is 1.

    Args:
        ranking: Ids, best first.
        correct: Relevant ids.
        k: Number of ids that count.
        corpus: All ids that could be retrieved. Default: those of `ranking`.
        official: True discounts by log2(rank) from rank 2 on, as the published script does; ranks 1 and 2 count the
            same.
    """
    top = set(ranking[:k])
    shift = 0 if official else 1

    def dcg(relevances: Sequence[bool]) -> float:
        return math.fsum(
            1.0 if rank == 1 else 1.0 / math.log2(rank + shift)
            for rank, relevant in enumerate(relevances, start=1)
            if relevant
        )

    relevant_ids = set(correct)
    best = dcg(sorted((id in relevant_ids for id in (ranking if corpus is None else corpus)), reverse=True)[:k])
    return {
        "recall_any": float(any(id in top for id in relevant_ids)),
        "recall_all": float(all(id in top for id in relevant_ids)),
        "ndcg_any": dcg([id in relevant_ids for id in ranking[:k]]) / best if best else 0.0,
    }


def session_ranking(turns: Sequence[str], k: int) -> tuple[list[str], int]:
    """Convert a ranking of LongMemEval's turn ids (`<session>_<number>`) to one of sessions.

    Returns:
        The sessions, and the depth that holds `k` different ones (all if there are fewer): the k for
        `retrieval_scores`.
    """
    sessions = [turn.rpartition("_")[0] for turn in turns]
    depth = k
    while depth <= len(sessions) and len(set(sessions[:depth])) < k:
        depth += 1
    return sessions, depth


def session_scores(turns: Iterable[str], correct: Collection[str], ks: Sequence[int] = (5, 10)) -> dict[str, float]:
    """Return `retrieval_scores` by session at each k.

    A session ranks where its first turn does. LongMemEval leaves out questions without an answer session; for these the
    result is {}.

    Args:
        turns: Retrieved turn ids, best first.
        correct: Ids of the answer sessions.
        ks: Depths; keys are `recall_any@5` and so on.
    """
    if not correct:
        return {}
    ranking = list(dict.fromkeys(turn.rpartition("_")[0] for turn in turns))
    corpus = [*correct, *(session for session in ranking if session not in correct)]
    return {
        f"{name}@{k}": score for k in ks for name, score in retrieval_scores(ranking, correct, k, corpus=corpus).items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
