"""The conflict rule: two live values for one subject and attribute give no right answer.

The slot of an entry such as `Ana's city: Oslo` is the text before its first colon, the value what follows. Events
(category `episodic`) add up instead of excluding each other and have no slot. Without this rule in the reader an insert
pays as much as an update, and update is never learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memalpha.agent.text import contains, normalize, same
from memalpha.types import Hit, MemoryEntry

EVENTS = "episodic"
MAX_SLOT_WORDS = 4


def key_value(content: str) -> tuple[str, str] | None:
    """(`city`, `Oslo`) of `City: Oslo`; None where the text before the colon is no short name."""
    key, colon, value = content.partition(":")
    if not colon or not value.strip() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    return " ".join(key.lower().split()), value.strip()


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Slot and value of an entry that states a fact; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def answer_slot(answer: str, hits: Iterable[Hit]) -> str | None:
    """The slot an answer came from: that of the best hit whose value the answer is, contains, or is part of."""
    pairs = [pair for hit in hits if (pair := slot_value(hit.entry))]
    for matches in (same, contains, lambda answer, value: contains(value, answer)):
        for slot, value in pairs:
            if matches(answer, value):
                return slot
    return None


def in_conflict(slot: str, entries: Iterable[MemoryEntry]) -> bool:
    """Whether live `entries` hold two different values for `slot`."""
    values = {normalize(pair[1]) for entry in entries if (pair := slot_value(entry)) and pair[0] == slot}
    return len(values) > 1


def newest_wins(hits: Sequence[Hit]) -> list[Hit]:
    """Hits without those whose slot a later written one states too: how most memories read, and our control."""
    newest: dict[str, int] = {}
    for hit in hits:
        if pair := slot_value(hit.entry):
            newest[pair[0]] = max(newest.get(pair[0], 0), hit.entry.valid_from)
    return [hit for hit in hits if not (pair := slot_value(hit.entry)) or newest[pair[0]] == hit.entry.valid_from]
