"""TRL's judges as reward functions, for memalpha's runs and for TRL's own trainers.

A judge is an object with TRL's method `judge`. The releases that the trainers beside this take have none any more (they
stood in `trl.experimental.judges` up to the first 1.x): what counts here is the form, so judges of one's own, and those
kept from older releases, work, with TRL or without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, Literal

from memalpha.errors import ConfigError, RewardError
from memalpha.integrations.trl.phases import text_of

Kind = Literal["binary", "pairwise", "rank"]
BASES: dict[str, Kind] = {"BaseBinaryJudge": "binary", "BasePairwiseJudge": "pairwise", "BaseRankJudge": "rank"}
"""TRL's base classes of judges."""


def from_trl_judge(
    judge: Any, *, kind: Kind | None = None, gold: str | None = None, against: str | None = None
) -> Callable[..., list[float | None]]:
    """A reward function `(prompts, completions, **columns)` that asks `judge`.

    binary: `judge(prompts, completions, gold_completions)` -> 1 or 0; `gold` names the column of what is right.
    pairwise: `judge(prompts, [[one, two], ...])` -> the index of the better; the reward is the share of comparisons
    won, each in both orders: with the column `against`, or, without it, with all other completions of the same prompt
    that are scored together. rank: `judge(prompts, [[one, two, ...], ...])` -> indices, the best first; the best of a
    prompt's completions gets 1, the last 0.

    -1 means that the judge failed: that comparison is left out, and with none left the reward is None (it does not
    apply). The same holds for a prompt's only completion where completions are compared with one another.

    `kind` is told by TRL's base class where the judge has one. Raises `ConfigError` for an object that is no judge, and
    `RewardError` in use, where it returns what no judge of its kind does.
    """
    if not callable(getattr(judge, "judge", None)):
        raise ConfigError(f"judge: {type(judge).__name__} has no method judge(prompts, completions, ...)")
    kind = kind or next((BASES[base.__name__] for base in type(judge).__mro__ if base.__name__ in BASES), None)
    if kind is None:
        raise ConfigError(f"kind: {type(judge).__name__} has none of TRL's base classes; say binary, pairwise or rank")
    if gold is not None and kind != "binary":
        raise ConfigError(f"gold: has no effect with a {kind} judge; leave it out")
    if against is not None and kind != "pairwise":
        raise ConfigError(f"against: has no effect with a {kind} judge; leave it out")
    name = type(judge).__name__

    def column(columns: dict[str, Any], which: str) -> list[str]:
        if which not in columns:
            raise RewardError(f"{name}: no column {which!r} (there are {', '.join(sorted(columns)) or 'none'})")
        return [text_of(value) for value in columns[which]]

    def asked(prompts: list[str], completions: list[Any], *more: Any) -> list[Any]:
        if not prompts:
            return []
        found = list(judge.judge(prompts, completions, *more))
        if len(found) != len(prompts):
            raise RewardError(f"{name}: judged {len(found)} of {len(prompts)} prompts")
        return found

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts, replies = [text_of(one) for one in prompts], [text_of(one) for one in completions]
        if kind == "binary":
            more = [] if gold is None else [column(columns, gold)]
            return [_label(name, label, (-1, 0, 1)) for label in asked(texts, replies, *more)]
        groups: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            groups.setdefault(text, []).append(place)
        if kind == "rank":
            return _ranked(name, groups, replies, asked)
        other = None if against is None else column(columns, against)
        return _compared(name, groups, replies, other, texts, asked)

    reward.__name__ = name
    return reward


def _label(name: str, label: Any, known: tuple[int, ...]) -> float | None:
    if label not in known:
        raise RewardError(f"{name}: judged {label!r}, expected one of {', '.join(map(str, known))}")
    return None if label == -1 else float(label)


def _ranked(
    name: str, groups: dict[str, list[int]], replies: list[str], asked: Callable[..., list[Any]]
) -> list[float | None]:
    found: list[float | None] = [None] * len(replies)
    several = {text: places for text, places in groups.items() if len(places) > 1}
    ranks = asked(list(several), [[replies[place] for place in places] for places in several.values()])
    for order, places in zip(ranks, several.values(), strict=True):
        if list(order) == [-1] * len(places):
            continue
        if sorted(order) != list(range(len(places))):
            raise RewardError(f"{name}: ranked {len(places)} completions as {order!r}, expected their indices")
        for rank, place in enumerate(order):
            found[places[place]] = 1 - rank / (len(places) - 1)
    return found


def _compared(
    name: str,
    groups: dict[str, list[int]],
    replies: list[str],
    against: list[str] | None,
    texts: list[str],
    asked: Callable[..., list[Any]],
) -> list[float | None]:
    """Each pair in both orders: judges prefer a place."""
    pairs: list[tuple[int, int | None, list[str], int]] = []  # place, the other's, both texts, the index of `place`
    if against is None:
        for places in groups.values():
            pairs += [(one, two, [replies[one], replies[two]], 0) for one, two in permutations(places, 2)]
    else:
        for place, (reply, other) in enumerate(zip(replies, against, strict=True)):
            pairs += [(place, None, [reply, other], 0), (place, None, [other, reply], 1)]
    judged = asked([texts[place] for place, *_ in pairs], [both for _, _, both, _ in pairs])
    won: list[list[float]] = [[] for _ in replies]
    for (place, other, _, index), label in zip(pairs, judged, strict=True):
        better = _label(name, label, (-1, 0, 1))
        if better is None:
            continue
        won[place].append(float(better == index))
        if other is not None:
            won[other].append(float(better != index))
    return [sum(own) / len(own) if own else None for own in won]
