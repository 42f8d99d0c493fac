"""The conflict rule: two live values for one subject and attribute give no right answer.

What a slot is and when two values contradict each other: `store.slots`. Without this rule in the reader an insert pays
as much as an update, and update is never learnt. Where a task knows its slots, the evaluator goes by those
(`disputed`), so that renaming a key or choosing another category is no way around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memalpha.agent.text_match import contains, is_same
from memalpha.store.slots import is_contradictory, key_value, slot_value
from memalpha.types import Hit, MemoryEntry


def answer_slot(answer: str, hits: Iterable[Hit]) -> str | None:
    """The slot an answer came from: that of the best hit whose value the answer is, or contains."""
    pairs = [pair for hit in hits if (pair := key_value(hit.entry.content))]
    for matches in (is_same, contains):
        for slot, value in pairs:
            if matches(answer, value):
                return slot
    return None


def in_conflict(slot: str, entries: Iterable[MemoryEntry]) -> bool:
    """Whether live `entries` hold two different values for `slot`, and not all of them as events."""
    return is_contradictory(entry for entry in entries if (pair := key_value(entry.content)) and pair[0] == slot)


def states_several_values(slot: str, values: Sequence[str], statements: Iterable[str]) -> bool:
    """Whether live `statements` (entries of any category, lines of the core) say more than one of `values` of `slot`.

    A statement is about the slot if it holds its words anywhere; it counts for the first of `values` that it holds,
    so put what is right first: "moved from Oslo to Rome" is no contradiction of Rome.
    """
    stated = {
        next((index for index, value in enumerate(values) if contains(statement, value)), None)
        for statement in statements
        if contains(statement, slot)
    }
    return len(stated - {None}) > 1


def keep_newest(hits: Sequence[Hit]) -> list[Hit]:
    """Hits without those whose slot a later written one states too: how most memories read, and our control."""
    newest: dict[str, int] = {}
    for hit in hits:
        if pair := slot_value(hit.entry):
            newest[pair[0]] = max(newest.get(pair[0], 0), hit.entry.valid_from)
    return [hit for hit in hits if not (pair := slot_value(hit.entry)) or newest[pair[0]] == hit.entry.valid_from]
