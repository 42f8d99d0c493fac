"""The one budget of context tokens: how long passages are, and where what a system shows is cut off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from memalpha.qa.report import characters_by_four
from memalpha.qa.systems.base import Passage
from memalpha.types import Task


def cut(
    passages: Sequence[Passage], budget: int | None, core: str = "", said: Mapping[str, str] | None = None
) -> tuple[str, tuple[Passage, ...]]:
    """Core text and passages, best first, up to `budget` tokens in all; what is over ends at the last whole word.

    The first passage that does not fit ends the list; only where it is the first of all a part of it is shown. That
    part was taken from the turns whose words (`said`, by id) are all still in it; of the others it is not known whether
    what was taken from them is left, so they are `lost`.
    """
    if budget is None:
        return core, tuple(passages)
    if characters_by_four(core) > budget:
        return _shortened(core, budget), ()
    left, kept = budget - characters_by_four(core), []
    for passage in passages:
        if (taken := length((passage,))) > left:
            room = left - (taken - characters_by_four(passage.text))  # its date has to fit too
            if not kept and not core and (part := _shortened(passage.text, room)):
                kept.append(_part(passage, part, said or {}))
            break
        kept.append(passage)
        left -= taken
    return core, tuple(kept)


def words_of(task: Task) -> dict[str, str]:
    """What each turn that has an id says."""
    return {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}


def _part(passage: Passage, text: str, said: Mapping[str, str]) -> Passage:
    left = f" {' '.join(text.split())} "
    whole = [turn for turn in passage.turns if f" {' '.join(said.get(turn, '').split())} " in left]
    lost = tuple(turn for turn in passage.turns if turn not in whole)
    return replace(passage, text=text, turns=tuple(whole), lost=lost)


def _shortened(text: str, tokens: int) -> str:
    kept = text[: 4 * max(tokens, 0)]
    return kept.rsplit(None, 1)[0] if kept.strip() and len(kept.split()) > 1 else kept


def length(passages: Iterable[Passage]) -> int:
    """Tokens of passages as a reader sees them, each with its date behind it."""
    return sum(
        characters_by_four(passage.text) + (characters_by_four(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )
