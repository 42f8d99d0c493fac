"""What an entry such as `Ana's city: Oslo` is about: its slot (subject and attribute), and the value it states.

The slot is the text before the first colon, the value what follows. Events (category `episodic`) add up instead of
excluding each other, so two different values of a slot contradict each other only where an entry of another category
states it; then every entry with that key counts, whatever its category. Readers and the audit go by this one rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from memalpha.types import MemoryEntry

EVENTS = "episodic"
MAX_SLOT_WORDS = 4
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=65536)
def normalize(text: str) -> str:
    """Lower case without punctuation and articles, blanks collapsed (as Rajpurkar et al., EMNLP 2016).

    A text that is nothing but punctuation and articles is only lower-cased and stripped, so that no text with something
    in it becomes empty.
    """
    lowered = unicodedata.normalize("NFKC", text).lower()
    letters = "".join(char for char in lowered if unicodedata.category(char)[0] not in "PS")
    return " ".join(_ARTICLES.sub(" ", letters).split()) or lowered.strip()


def key_value(content: str) -> tuple[str, str] | None:
    """(`city`, `Oslo`) of `City: Oslo`; None where the text before the colon is no short name."""
    key, colon, value = content.partition(":")
    if not colon or not value.strip() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    return " ".join(key.lower().split()), value.strip()


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Slot and value of an entry that states a fact; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def is_contradictory(entries: Iterable[MemoryEntry]) -> bool:
    """Whether entries of one slot state different values of it, and not all of them as events."""
    values_by_entry = [(entry, pair[1]) for entry in entries if (pair := key_value(entry.content))]
    values = {normalize(value) for _, value in values_by_entry}
    return len(values) > 1 and any(entry.category != EVENTS for entry, _ in values_by_entry)
