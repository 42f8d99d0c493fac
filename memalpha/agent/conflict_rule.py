"""Conflict rule: two live values for one subject and attribute make an answer wrong.

`store.slots` defines slots and contradictions. Without this rule an insert would earn as much as an update, and the
policy would never learn to update. If a task lists its slots, the evaluator uses those instead. Renaming a key or
choosing another category then does not evade the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memalpha.agent.text_match import contains, is_same
from memalpha.store.slots import is_contradictory, key_value, slot_value
from memalpha.types import Hit, MemoryEntry


def answer_slot(answer: str, hits: Iterable[Hit]) -> str | None:
    """Return the slot of the best hit whose value equals the answer.

    Falls back to the best hit whose value the answer contains; None without a match.
    """
    pairs = [pair for hit in hits if (pair := key_value(hit.entry.content))]
    for matches in (is_same, contains):
        for slot, value in pairs:
            if matches(answer, value):
                return slot
    return None


def in_conflict(slot: str, entries: Iterable[MemoryEntry]) -> bool:
    """Return True if live `entries` hold different values for `slot`.

    Values that are all events do not conflict.
    """
    return is_contradictory(entry for entry in entries if (pair := key_value(entry.content)) and pair[0] == slot)


def states_several_values(slot: str, values: Sequence[str], statements: Iterable[str]) -> bool:
    """Return True if live `statements` state more than one of `values` for `slot`.

    Args:
        slot: words of the slot; a statement is about it if it contains them.
        values: candidate values, the correct one first. A statement counts for the first value that it contains, so
            "moved from Oslo to Rome" does not contradict Rome.
        statements: contents of entries of any category, and lines of the core.

    Returns:
        True if at least two different values are stated.
    """
    stated = {
        next((index for index, value in enumerate(values) if contains(statement, value)), None)
        for statement in statements
        if contains(statement, slot)
    }
    return len(stated - {None}) > 1


def keep_newest(hits: Sequence[Hit]) -> list[Hit]:
    """Drop hits whose slot a later hit states again.

    Most memory systems read this way; it is the control for the conflict rule.
    """
    newest: dict[str, int] = {}
    for hit in hits:
        if pair := slot_value(hit.entry):
            newest[pair[0]] = max(newest.get(pair[0], 0), hit.entry.valid_from)
    return [hit for hit in hits if not (pair := slot_value(hit.entry)) or newest[pair[0]] == hit.entry.valid_from]
