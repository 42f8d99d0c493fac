"""TRL's judges as reward functions, for memalpha's runs and for TRL's trainers.

A judge is any object with TRL's method `judge`. Supported releases of TRL have no judges any more; up to the first 1.x
they were in `trl.experimental.judges`. Your own judges, and those kept from older releases, work with and without TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, Literal

from memalpha.errors import ConfigError, RewardError
from memalpha.integrations.trl.attempts import message_text
from memalpha.qa.scoring.stats import group_values
from memalpha.rewards.base import CompletionJudge

Kind = Literal["binary", "pairwise", "rank"]
JUDGE_BASES: dict[str, Kind] = {"BaseBinaryJudge": "binary", "BasePairwiseJudge": "pairwise", "BaseRankJudge": "rank"}
"""TRL's base classes of judges, by name."""


def from_trl_judge(
    judge: Any, *, kind: Kind | None = None, gold: str | None = None, against: str | None = None
) -> Callable[..., list[float | None]]:
    """Build a reward function `(prompts, completions, **columns)` that calls `judge`.

    binary: `judge(prompts, completions, gold_completions)` returns 1 or 0 each.
    pairwise: `judge(prompts, [[one, two], ...])` returns the index of the better one. The reward is the share of
    comparisons won, each made in both orders. Completions are compared with column `against`, or with all other
    completions of the same prompt that are scored together. rank: `judge(prompts, [[one, two, ...], ...])` returns
    indices, best first. The best completion of a prompt gets 1, the last 0.

    -1 means that the judge failed: that comparison is left out. Without any comparison left the reward is None (does
    not apply), as it is for a prompt's only completion without `against`.

    Args:
        judge: Object with a method `judge`.
        kind: "binary", "pairwise" or "rank"; by default from TRL's base class of the judge.
        gold: Column of gold completions, for binary judges.
        against: Column of completions to compare with, for pairwise judges.

    Returns:
        A reward function. It raises `RewardError` if the judge returns something else than its kind should.

    Raises:
        ConfigError: `judge` is no judge, its kind is unknown, or an option does not belong to its kind.
    """
    if not isinstance(judge, CompletionJudge):
        raise ConfigError(f"judge: {type(judge).__name__} has no method judge(prompts, completions, ...)")
    kind = kind or next(
        (JUDGE_BASES[base.__name__] for base in type(judge).__mro__ if base.__name__ in JUDGE_BASES), None
    )
    if kind is None:
        raise ConfigError(f"kind: {type(judge).__name__} has none of TRL's base classes; say binary, pairwise or rank")
    if gold is not None and kind != "binary":
        raise ConfigError(f"gold: has no effect with a {kind} judge; leave it out")
    if against is not None and kind != "pairwise":
        raise ConfigError(f"against: has no effect with a {kind} judge; leave it out")
    name = type(judge).__name__

    def column(columns: dict[str, Any], column_name: str) -> list[str]:
        if column_name not in columns:
            raise RewardError(f"{name}: no column {column_name!r} (there are {', '.join(sorted(columns)) or 'none'})")
        return [message_text(value) for value in columns[column_name]]

    def ask(prompts: list[str], completions: list[Any], *extra: Any) -> list[Any]:
        if not prompts:
            return []
        verdicts = list(judge.judge(prompts, completions, *extra))
        if len(verdicts) != len(prompts):
            raise RewardError(f"{name}: judged {len(verdicts)} of {len(prompts)} prompts")
        return verdicts

    def ask_labels(prompts: list[str], completions: list[Any], *extra: Any) -> list[float | None]:
        labels = ask(prompts, completions, *extra)
        for label in labels:
            if label not in (-1, 0, 1):
                raise RewardError(f"{name}: judged {label!r}, expected one of -1, 0, 1")
        return [None if label == -1 else float(label) for label in labels]

    def score_ranks(groups: list[list[int]], texts: list[str], replies: list[str]) -> list[float | None]:
        rewards: list[float | None] = [None] * len(replies)
        several = [rows for rows in groups if len(rows) > 1]
        orders = ask([texts[rows[0]] for rows in several], [[replies[row] for row in rows] for rows in several])
        for order, rows in zip(orders, several, strict=True):
            if list(order) == [-1] * len(rows):
                continue
            if sorted(order) != list(range(len(rows))):
                raise RewardError(f"{name}: ranked {len(rows)} completions as {order!r}, expected their indices")
            for rank, position in enumerate(order):
                rewards[rows[position]] = 1 - rank / (len(rows) - 1)
        return rewards

    def score_pairs(
        groups: list[list[int]], texts: list[str], replies: list[str], others: list[str] | None
    ) -> list[float | None]:
        """Compare each pair in both orders, because judges prefer a position."""
        pairs: list[tuple[int, int | None, list[str], int]] = []  # row, other row, both texts, slot of `row`
        if others is None:
            for rows in groups:
                pairs += [(row, other, [replies[row], replies[other]], 0) for row, other in permutations(rows, 2)]
        else:
            for row, (reply, other) in enumerate(zip(replies, others, strict=True)):
                pairs += [(row, None, [reply, other], 0), (row, None, [other, reply], 1)]
        wins: list[list[float]] = [[] for _ in replies]
        winners = ask_labels([texts[row] for row, *_ in pairs], [pair for _, _, pair, _ in pairs])
        for (row, other, _, slot), winner in zip(pairs, winners, strict=True):
            if winner is not None:
                wins[row].append(float(winner == slot))
                if other is not None:
                    wins[other].append(float(winner != slot))
        return [sum(scores) / len(scores) if scores else None for scores in wins]

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts, replies = [message_text(value) for value in prompts], [message_text(value) for value in completions]
        if kind == "binary":
            return ask_labels(texts, replies, *([] if gold is None else [column(columns, gold)]))
        groups = list(group_values((text, row) for row, text in enumerate(texts)).values())
        if kind == "rank":
            return score_ranks(groups, texts, replies)
        return score_pairs(groups, texts, replies, None if against is None else column(columns, against))

    reward.__name__ = name
    return reward
