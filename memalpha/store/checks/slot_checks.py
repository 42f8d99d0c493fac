"""Contradictions and stale entries, by slot values, dates and updates."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from memalpha.store.backends.namespace import Namespace
from memalpha.store.checks.findings import Finding
from memalpha.store.filters import parse_time
from memalpha.store.slots import is_contradictory, key_value, slot_value
from memalpha.store.values import normalize
from memalpha.types import MemoryEntry, is_iso_time

_OUTDATED_LABEL = re.compile(
    r"^\W*(?:outdated|obsolete|superseded|deprecated|expired|no longer (?:true|valid))\W*[:\])]"
    r"|[\[(](?:outdated|obsolete|superseded|deprecated|expired|no longer (?:true|valid))[\])]\W*$"
    r"|\b(?:this|that|which) (?:is|was) no longer (?:true|valid|the case)\b",
    re.IGNORECASE,
)


_ROLES = frozenset(("user", "assistant", "human"))
_FIRST_PERSON = re.compile(r"(?:^|[,.!?;]\s*)(?:i|we|my|our)\b(?:['\u2019]\w+)?\s+\w", re.IGNORECASE)
"""A clause that begins with the first person: who speaks of himself states no value."""


def find_contradictions(entries: Sequence[MemoryEntry]) -> list[Finding]:
    """Return a finding for each slot with different values in live entries."""
    findings = []
    for slot, slot_entries in _group_by_slot(entries).items():
        if is_contradictory(slot_entries):
            values = dict.fromkeys(entry.content.partition(":")[2].strip() for entry in slot_entries)
            message = f"{slot} is said to be {', '.join(map(repr, values))}"
            findings.append(Finding("contradiction", "values", message, tuple(slot_entries)))
    return findings


def find_stale(entries: Sequence[MemoryEntry], ended: Sequence[MemoryEntry], rows: Namespace) -> list[Finding]:
    """Return a finding for each live entry that is outdated.

    Args:
        entries: Live entries.
        ended: All versions that have ended.
        rows: Namespace of both; call this inside a transaction.
    """
    live_slots, ended_slots = _group_by_slot(entries), _group_by_slot(ended)
    ended_by_text: dict[str, list[MemoryEntry]] = {}
    for version in ended:
        ended_by_text.setdefault(plain(version.content), []).append(version)
    findings = []
    for entry in entries:
        later = ended_later = None
        if (pair := slot_value(entry)) and pair[0] in live_slots:
            since = _latest_date_of_value(entry, live_slots[pair[0]])
            later = _latest_other_value(entry, since, live_slots[pair[0]])
            outlasting = [version for version in ended_slots.get(pair[0], ()) if _ended_after(version, entry, rows)]
            ended_later = _latest_other_value(entry, since, outlasting)
        if later is not None:
            message = f"{later.content!r} of {later.timestamp} is later than its {entry.timestamp}"
            findings.append(Finding("stale", "later", message, (entry,), (later,)))
        elif ended_later is not None:
            message = (
                f"{ended_later.content!r} of {ended_later.timestamp} was later than its {entry.timestamp}, and has "
                "ended too"
            )
            findings.append(Finding("stale", "ended", message, (entry,), (ended_later,)))
        elif replacement := _find_replacement(entry, ended_by_text.get(plain(entry.content), ()), rows):
            old, new = replacement
            message = f"{old.id} said the same until it was updated to {new.content!r}"
            findings.append(Finding("stale", "replaced", message, (entry,), (old, new)))
        elif label := _OUTDATED_LABEL.search(entry.content):
            findings.append(Finding("stale", "says", f"its own text says {label[0].strip()!r}", (entry,)))
    return findings


def plain(content: str) -> str:
    """Return the content without case, spacing, closing marks and outer quotes."""
    text = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return text.strip("\"'\u2018\u2019\u201c\u201d").rstrip(".!?\u2026 ") or text


def _group_by_slot(entries: Iterable[MemoryEntry]) -> dict[str, list[MemoryEntry]]:
    """Return the entries of each slot; lines of a chat, such as `Ana: we moved`, have none."""
    slots: dict[str, list[MemoryEntry]] = {}
    for entry in entries:
        if pair := key_value(entry.content):
            slots.setdefault(pair[0], []).append(entry)
    return {slot: group for slot, group in slots.items() if not any(_is_utterance(entry) for entry in group)}


def _is_utterance(entry: MemoryEntry) -> bool:
    """Return True if the text before the colon is who spoke: the entry's speaker, or a name before a first person."""
    name, _, text = (part.strip() for part in entry.content.partition(":"))
    if entry.speaker is not None and entry.speaker.casefold() == name.casefold():
        return True
    is_name = name in _ROLES or not any(word[0].islower() or word.endswith("'s") for word in name.split())
    return is_name and _FIRST_PERSON.search(text) is not None


def _normalized_value(entry: MemoryEntry) -> str:
    pair = key_value(entry.content)
    return normalize(pair[1]) if pair else ""


def _date(entry: MemoryEntry) -> float | None:
    return parse_time(entry.timestamp).timestamp() if entry.timestamp and is_iso_time(entry.timestamp) else None


def _latest_date_of_value(entry: MemoryEntry, slot_entries: Iterable[MemoryEntry]) -> float | None:
    """Return the latest date at which the slot's live entries state the entry's value.

    An entry without a date has none, whatever the dates of the other entries.
    """
    value = _normalized_value(entry)
    dates = [_date(other) for other in slot_entries if _normalized_value(other) == value]
    return None if _date(entry) is None else max(date for date in dates if date is not None)


def _latest_other_value(
    entry: MemoryEntry, since: float | None, slot_entries: Iterable[MemoryEntry]
) -> MemoryEntry | None:
    """Return the statement of another value of the slot with the latest date after `since`, events aside."""
    if since is None:
        return None
    dated = [
        (date, other)
        for other in slot_entries
        if other.id != entry.id and slot_value(other) and _normalized_value(other) != _normalized_value(entry)
        if (date := _date(other)) is not None and date > since
    ]
    return max(dated, key=lambda pair: (pair[0], pair[1].valid_from))[1] if dated else None


def _ended_after(version: MemoryEntry, entry: MemoryEntry, rows: Namespace) -> bool:
    """Return True if a version ended after the entry was written, and not by an undo, a redo or a restore."""
    position = version.valid_to or 0
    return position > entry.valid_from and rows.log.effective_position(position) == position


def _find_replacement(
    entry: MemoryEntry, ended_twins: Iterable[MemoryEntry], rows: Namespace
) -> tuple[MemoryEntry, MemoryEntry] | None:
    """Return the last other version with the entry's text that was updated to another text, and that update."""
    for old in sorted(ended_twins, key=lambda version: -(version.valid_to or 0)):
        if old.id == entry.id or not _ended_after(old, entry, rows):
            continue
        new = next((version for version in rows.entries.history(old.id) if version.valid_from == old.valid_to), None)
        if new is not None and plain(new.content) != plain(old.content):
            return old, new
    return None
