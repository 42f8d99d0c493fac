"""Slots: the subject and attribute that an entry such as `Ana's city: Oslo` states a value of.

The slot is the text before the first colon; the value follows. Events (category `episodic`) accumulate instead of
excluding each other. So two values of a slot contradict each other only if an entry of another category states the
slot; then every entry with that key counts, whatever its category. Readers and the audit share this rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from memalpha.store.values import normalize
from memalpha.types import MemoryEntry

EVENTS = "episodic"
MAX_SLOT_WORDS = 4


def key_value(content: str) -> tuple[str, str] | None:
    """Split `City: Oslo` into (`city`, `Oslo`); None if the text before the colon is no short name."""
    key, colon, value = content.partition(":")
    if not colon or not value.strip() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    return " ".join(key.lower().split()), value.strip()


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Return the slot and value that an entry states; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def is_contradictory(entries: Iterable[MemoryEntry]) -> bool:
    """Return True if entries of one slot state different values, not all of them as events."""
    values_by_entry = [(entry, pair[1]) for entry in entries if (pair := key_value(entry.content))]
    values = {normalize(value) for _, value in values_by_entry}
    return len(values) > 1 and any(entry.category != EVENTS for entry, _ in values_by_entry)
