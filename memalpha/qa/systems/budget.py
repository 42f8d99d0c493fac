"""The one budget of context tokens: how long passages are, and where what a system shows is cut off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from memalpha.qa.report import estimate_tokens
from memalpha.qa.systems.base import Passage
from memalpha.types import Task


def cut_to_budget(
    passages: Sequence[Passage], budget: int | None, core: str = "", turn_texts: Mapping[str, str] | None = None
) -> tuple[str, tuple[Passage, ...]]:
    """Core text and passages, best first, up to `budget` tokens in all; what is over ends at the last whole word.

    The first passage that does not fit ends the list; only where it is the first of all a part of it is shown. That
    part was taken from the turns whose words (`said`, by id) are all still in it; of the others it is not known whether
    what was taken from them is left, so they are `lost`.
    """
    if budget is None:
        return core, tuple(passages)
    if estimate_tokens(core) > budget:
        return _truncate(core, budget), ()
    remaining, selected = budget - estimate_tokens(core), []
    for passage in passages:
        if (tokens := passage_tokens((passage,))) > remaining:
            room = remaining - (tokens - estimate_tokens(passage.text))  # its date has to fit too
            if not selected and not core and (shortened := _truncate(passage.text, room)):
                selected.append(_cut_passage(passage, shortened, turn_texts or {}))
            break
        selected.append(passage)
        remaining -= tokens
    return core, tuple(selected)


def turn_texts_of(task: Task) -> dict[str, str]:
    """What each turn that has an id says."""
    return {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}


def _cut_passage(passage: Passage, text: str, turn_texts: Mapping[str, str]) -> Passage:
    words = f" {' '.join(text.split())} "
    complete = [turn for turn in passage.turns if f" {' '.join(turn_texts.get(turn, '').split())} " in words]
    cut_turns = tuple(turn for turn in passage.turns if turn not in complete)
    return replace(passage, text=text, turns=tuple(complete), cut_turns=cut_turns)


def _truncate(text: str, tokens: int) -> str:
    head = text[: 4 * max(tokens, 0)]
    return head.rsplit(None, 1)[0] if head.strip() and len(head.split()) > 1 else head


def passage_tokens(passages: Iterable[Passage]) -> int:
    """Tokens of passages as a reader sees them, each with its date behind it."""
    return sum(
        estimate_tokens(passage.text) + (estimate_tokens(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )
