"""Token budget of evaluated systems: length of passages, and where they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from memalpha.qa.report import estimate_tokens
from memalpha.qa.systems.base import Passage
from memalpha.types import Task


def cut_to_budget(
    passages: Sequence[Passage], budget: int | None, core: str = "", turn_texts: Mapping[str, str] | None = None
) -> tuple[str, tuple[Passage, ...]]:
    """Cut core text and passages to `budget` tokens in all, at a word boundary.

    The first passage that does not fit ends the list. Only if it is the very first, its beginning is kept. Such a
    passage keeps the ids of turns whose words are all in the kept text; the others become `cut_turns`.

    Args:
        passages: Passages, best first.
        budget: Tokens (characters / 4); None returns everything.
        core: Core text, which comes first.
        turn_texts: Words of each turn by id.
    """
    if budget is None:
        return core, tuple(passages)
    if estimate_tokens(core) > budget:
        return _truncate(core, budget), ()
    remaining, selected = budget - estimate_tokens(core), []
    for passage in passages:
        if (tokens := passage_tokens((passage,))) > remaining:
            room = remaining - (tokens - estimate_tokens(passage.text))  # the date has to fit too
            if not selected and not core and (shortened := _truncate(passage.text, room)):
                selected.append(_cut_passage(passage, shortened, turn_texts or {}))
            break
        selected.append(passage)
        remaining -= tokens
    return core, tuple(selected)


def turn_texts_of(task: Task) -> dict[str, str]:
    """Return the text of each turn that has an id."""
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
    """Return the tokens of passages as a reader sees them, each with its date."""
    return sum(
        estimate_tokens(passage.text) + (estimate_tokens(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )
