"""What is wrong with what a memory holds, found by rules alone: no language model, no clock, always the same answer.

Five kinds of findings, the worst first; each says no more than what is stated here.

- `contradiction`: live entries give different values for one slot (`Ana's city: Oslo`; see `slots`). Free text is not
  understood, so nothing is claimed of it; a slot that may have several values (`hobby`) is reported all the same.
- `stale`: a live entry, though (`later`) another live one gives its slot another value with a later date, though
  (`ended`) one with a later date stood beside it or came after it and has ended since (not by an undo), though
  (`replaced`) another entry that said the same has been updated to something else since, or though (`says`) it is
  itself labelled as outdated or says that it is no longer true.
- `duplicate`: live entries that are the same but for case, spacing and closing marks (`text`), have the same words
  (`words`: stemmed, in any order, function words aside), or are near (`meaning`: cosine of at least `near`, or of .85
  where one has all words of the other). Entries that differ in a name, a number or a negation, or have a slot, are
  never near: there, another word is another fact.
- `unretrieved`: a category with live entries of which none is among the k best hits of any query. Without queries,
  every entry's own content is its query (at most 200 of a category, evenly spaced): then the entry is out of reach.
- `orphan`: live entries without any origin where others have one (`no origin`), with a chunk or turn of no source
  (`no source`), or with one that their source, where it is given, does not have (`dangling`).

Beside them stands how many of the raw spans (the turns of `source`, else entries with a turn) a written fact covers.
That versions are what the log makes of them is `doctor`'s business.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.filters import moment
from memalpha.store.search.bm25 import words
from memalpha.store.slots import contradict, key_value, normalize, slot_value
from memalpha.types import Chunk, MemoryEntry, is_iso_time

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

Kind = Literal["contradiction", "stale", "duplicate", "unretrieved", "orphan"]
KINDS: tuple[Kind, ...] = ("contradiction", "stale", "duplicate", "unretrieved", "orphan")
NEAR = 0.95
CONTAINED = 0.85
SUPPORT = 0.6
_ASKED = 200  # entries of a category whose own contents are queries
_BLOCK = 2**25  # similarities at a time
_SAYS = re.compile(
    r"^\W*(?:outdated|obsolete|superseded|deprecated|expired|no longer (?:true|valid))\W*[:\])]"
    r"|[\[(](?:outdated|obsolete|superseded|deprecated|expired|no longer (?:true|valid))[\])]\W*$"
    r"|\b(?:this|that|which) (?:is|was) no longer (?:true|valid|the case)\b",
    re.IGNORECASE,
)
_NEGATIONS = {"not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what kind, why it is one (see the module), in words, and the live entries it is about, oldest first.
    `against`: versions, live or ended, that speak against the first entry."""

    kind: Kind
    reason: str
    message: str
    entries: tuple[MemoryEntry, ...]
    against: tuple[MemoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What searches found: how many hits a query has, whether entries were their own queries, and by category the live
    `entries`, the queries `asked` and those that `found` an entry of the category (the very one, if it was its own)."""

    k: int
    own: bool
    categories: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A raw span: a turn, or a chunk without turns."""

    chunk: int | None
    turn: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """Raw spans in all, those that a live fact names as its origin, those that one is only near to (cosine of at least
    `SUPPORT`), those without any; and the chunks that a fact names."""

    spans: int
    by_origin: int
    by_content: int
    chunks: int
    chunks_by_origin: int
    uncovered: tuple[RawSpan, ...]


@dataclass(slots=True)
class Audit:
    """What an audit of one namespace found. `counts`: entries, and findings by kind."""

    namespace: str
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    retrieval: Retrieval | None = None
    coverage: Coverage | None = None


def audit(
    store: MemoryStore,
    *,
    queries: Sequence[str] | None = None,
    k: int = 10,
    near: float = NEAR,
    source: tuple[str, Sequence[Chunk]] | None = None,
) -> Audit:
    """Look through what a store's namespace holds, as of one moment.

    `queries`: what is asked of this memory, such as a task's questions; `near`: the cosine from which two entries are
    near; `source`: the name that entries have as their source (its last part is enough), and its chunks. Comparing all
    entries takes time in the square of their number. Raises `StoreError` for a `near` or `k` that is none.
    """
    if not 0 < near <= 1:
        raise StoreError(f"near {near!r}: a cosine above 0 and at most 1 is needed")
    if k < 1:
        raise StoreError(f"k {k!r}: 1 or more is needed")
    found = Audit(store._rows.name)
    with store._now():
        position, entries = store._rows.position, store._rows.live()
        ended = [version for version in store._rows.versions() if version.valid_to is not None]
        found.findings += _contradictions(entries)
        found.findings += _stale(entries, ended, store._rows)
    vectors = store._vectors(list(dict.fromkeys(entry.content for entry in entries)))
    found.findings += _duplicates(entries, np.array([vectors[entry.content] for entry in entries], np.float32), near)
    found.retrieval = _retrieval(store, position, entries, queries, k)
    found.findings += _unretrieved(entries, found.retrieval)
    mine = [entry for entry in entries if source is not None and _is_of(entry, source[0])]
    found.findings += _orphans(entries, mine, source[1] if source else None)
    found.coverage = _coverage(store, entries, mine, source[1] if source else None)
    counts = Counter(finding.kind for finding in found.findings)
    found.counts = {"entries": len(entries), **{kind: counts[kind] for kind in KINDS}}
    return found


def _slots(entries: Iterable[MemoryEntry]) -> dict[str, list[MemoryEntry]]:
    """The entries that state a slot, by slot."""
    slots: dict[str, list[MemoryEntry]] = {}
    for entry in entries:
        if pair := key_value(entry.content):
            slots.setdefault(pair[0], []).append(entry)
    return slots


def _value(entry: MemoryEntry) -> str:
    pair = key_value(entry.content)
    return normalize(pair[1]) if pair else ""


def _contradictions(entries: Sequence[MemoryEntry]) -> list[Finding]:
    found = []
    for slot, stated in _slots(entries).items():
        if contradict(stated):
            values = dict.fromkeys(entry.content.partition(":")[2].strip() for entry in stated)
            message = f"{slot} is said to be {', '.join(map(repr, values))}"
            found.append(Finding("contradiction", "values", message, tuple(stated)))
    return found


def _date(entry: MemoryEntry) -> float | None:
    return moment(entry.timestamp).timestamp() if entry.timestamp and is_iso_time(entry.timestamp) else None


def _stale(entries: Sequence[MemoryEntry], ended: Sequence[MemoryEntry], rows: Namespace) -> list[Finding]:
    live, past = _slots(entries), _slots(ended)
    replaced: dict[str, list[MemoryEntry]] = {}
    for version in ended:
        replaced.setdefault(plain(version.content), []).append(version)
    found = []
    for entry in entries:
        later = over = None
        if pair := slot_value(entry):
            since = _since(entry, live[pair[0]])
            later = _later(entry, since, live[pair[0]])
            left = [version for version in past.get(pair[0], ()) if _outlived(version, entry, rows)]
            over = _later(entry, since, left)
        if later is not None:
            message = f"{later.content!r} of {later.timestamp} is later than its {entry.timestamp}"
            found.append(Finding("stale", "later", message, (entry,), (later,)))
        elif over is not None:
            message = f"{over.content!r} of {over.timestamp} was later than its {entry.timestamp}, and has ended too"
            found.append(Finding("stale", "ended", message, (entry,), (over,)))
        elif same := _replaced(entry, replaced.get(plain(entry.content), ()), rows):
            old, new = same
            message = f"{old.id} said the same until it was updated to {new.content!r}"
            found.append(Finding("stale", "replaced", message, (entry,), (old, new)))
        elif says := _SAYS.search(entry.content):
            found.append(Finding("stale", "says", f"its own text says {says[0].strip()!r}", (entry,)))
    return found


def _since(entry: MemoryEntry, stated: Iterable[MemoryEntry]) -> float | None:
    """The latest date at which live entries of the slot state the entry's value; None if it has no date itself."""
    dates = [_date(other) for other in stated if _value(other) == _value(entry)]
    return None if _date(entry) is None else max(date for date in dates if date is not None)


def _later(entry: MemoryEntry, since: float | None, others: Iterable[MemoryEntry]) -> MemoryEntry | None:
    """Of other entries' statements of another value of its slot, no events, that with the latest date after `since`."""
    if since is None:
        return None
    dated = [
        (date, other)
        for other in others
        if other.id != entry.id and slot_value(other) and _value(other) != _value(entry)
        if (date := _date(other)) is not None and date > since
    ]
    return max(dated, key=lambda pair: (pair[0], pair[1].valid_from))[1] if dated else None


def _outlived(version: MemoryEntry, entry: MemoryEntry, rows: Namespace) -> bool:
    """Whether an ended version still stood when the entry was written, or came later, and was ended by an operation of
    its own, not by an undo, a redo or a restore."""
    end = version.valid_to or 0
    return end > entry.valid_from and rows.head(end) == end


def _replaced(
    entry: MemoryEntry, same: Iterable[MemoryEntry], rows: Namespace
) -> tuple[MemoryEntry, MemoryEntry] | None:
    """The last version of another entry that said the same and was updated to something else, with what it became."""
    for old in sorted(same, key=lambda version: -(version.valid_to or 0)):
        if old.id == entry.id or not _outlived(old, entry, rows):
            continue
        new = next((version for version in rows.history(old.id) if version.valid_from == old.valid_to), None)
        if new is not None and plain(new.content) != plain(old.content):
            return old, new
    return None


def plain(content: str) -> str:
    """The content without what makes no difference: case, spacing, marks at its end, quotes around it."""
    text = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return text.strip("\"'\u2018\u2019\u201c\u201d").rstrip(".!?\u2026 ") or text


def _duplicates(entries: Sequence[MemoryEntry], vectors: np.ndarray, near: float) -> list[Finding]:
    found = []
    heads: list[int] = []  # one of each text, then one of each set of words
    for by, name, group in (
        ("text", "the same but for case, spacing and closing marks", _by_text),
        ("words", "the same words", _by_words),
    ):
        groups: dict[object, list[int]] = {}
        for place in heads or range(len(entries)):
            groups.setdefault(group(entries[place].content, place), []).append(place)
        for places in groups.values():
            if len(places) > 1:
                found.append(Finding("duplicate", by, name, tuple(entries[place] for place in places)))
        heads = [places[0] for places in groups.values()]
    return found + _near(entries, vectors, sorted(heads), near)


def _by_text(content: str, place: int) -> object:
    return plain(content)


def _by_words(content: str, place: int) -> object:
    """What the contents with the same words have in common; of a slot and its value, each by itself."""
    parts = key_value(content) or (content,)
    found = tuple(tuple(sorted(words(part))) for part in parts)
    return found if all(found) else place


def _near(entries: Sequence[MemoryEntry], vectors: np.ndarray, heads: list[int], near: float) -> list[Finding]:
    """Groups of entries that are near, each to some other of its group."""
    contents = [entries[place].content for place in heads]
    sets = [frozenset(words(content)) for content in contents]
    slots = [key_value(content) for content in contents]
    sharp, held = zip(*map(_sharp, contents), strict=True) if contents else ((), ())
    rows = vectors[heads] if heads else np.zeros((0, 1), np.float32)
    group, lowest = list(range(len(heads))), {}

    def head_of(one: int) -> int:
        while group[one] != one:
            one = group[one]
        return one

    size = max(1, _BLOCK // max(1, len(heads)))
    for start in range(0, len(heads), size):
        scores = rows[start : start + size] @ rows[start:].T
        for at, to in np.argwhere(np.triu(scores >= min(CONTAINED, near), 1)).tolist():
            one, two, score = start + at, start + to, float(scores[at, to])
            if score < near and not (sets[one] <= sets[two] or sets[two] <= sets[one]):
                continue
            if slots[one] or slots[two] or not (sharp[one] <= held[two] and sharp[two] <= held[one]):
                continue
            first, second = sorted((head_of(one), head_of(two)))
            group[second] = first
            lowest[first] = min(score, lowest.get(first, 1.0), lowest.pop(second, 1.0))
    members: dict[int, list[int]] = {}
    for one in range(len(heads)):
        members.setdefault(head_of(one), []).append(one)
    return [
        Finding("duplicate", "meaning", f"near: cosine {lowest[first]:.2f}", tuple(entries[heads[one]] for one in some))
        for first, some in members.items()
        if len(some) > 1
    ]


def _sharp(content: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of which one more makes it another fact (numbers, negations, names: capitals but at the beginning), and
    all words, in lower case."""
    found = [word.strip("\"'.,;:!?()[]").replace("\u2019", "'").removesuffix("'s") for word in content.split()]
    sharp = frozenset(
        word.lower()
        for place, word in enumerate(found)
        if word.lower() in _NEGATIONS
        or word.lower().endswith("n't")
        or any(map(str.isdigit, word))
        or (place > 0 and word[:1].isupper() and word != "I")
    )
    return sharp, frozenset(map(str.lower, found))


def _retrieval(
    store: MemoryStore, position: int, entries: Sequence[MemoryEntry], queries: Sequence[str] | None, k: int
) -> Retrieval:
    held: dict[str, list[MemoryEntry]] = {name: [] for name in store.schema.category_names}
    for entry in entries:
        held[entry.category].append(entry)
    counts = {name: {"entries": len(some), "asked": 0, "found": 0} for name, some in held.items()}
    if queries is not None:
        for hits in store.search_many(queries, k, as_of=position):
            for name, count in counts.items():
                count["asked"] += 1
                count["found"] += any(hit.entry.category == name for hit in hits)
        return Retrieval(k, False, counts)
    asked = [some[int(at)] for some in held.values() for at in np.linspace(0, len(some) - 1, min(len(some), _ASKED))]
    answers = store.search_many([entry.content for entry in asked], k, as_of=position)
    for entry, hits in zip(asked, answers, strict=True):
        counts[entry.category]["asked"] += 1
        counts[entry.category]["found"] += any(hit.entry.id == entry.id for hit in hits)
    return Retrieval(k, True, counts)


def _unretrieved(entries: Sequence[MemoryEntry], seen: Retrieval) -> list[Finding]:
    found = []
    for name, counts in seen.categories.items():
        if counts["entries"] and counts["asked"] and not counts["found"]:
            asked = "its own contents" if seen.own else f"{counts['asked']} queries"
            message = f"no entry of {name} is among the {seen.k} best hits for {asked}"
            some = tuple(entry for entry in entries if entry.category == name)
            found.append(Finding("unretrieved", "own" if seen.own else "queries", message, some))
    return found


def _has_origin(entry: MemoryEntry) -> bool:
    return entry.source is not None or entry.chunk is not None or entry.turn is not None


def _is_of(entry: MemoryEntry, source: str) -> bool:
    return entry.source is not None and (entry.source == source or PurePath(entry.source).name == PurePath(source).name)


def _orphans(
    entries: Sequence[MemoryEntry], mine: Sequence[MemoryEntry], chunks: Sequence[Chunk] | None
) -> list[Finding]:
    none = [entry for entry in entries if not _has_origin(entry)]
    cases = [
        ("no origin", "no source, chunk or turn, which others have", none if len(none) < len(entries) else []),
        ("no source", "a chunk or turn, but of no source", [e for e in entries if e.source is None and _has_origin(e)]),
    ]
    if chunks is not None:
        there = {chunk.index: {turn.id for turn in chunk.turns} for chunk in chunks}
        wrong = [
            entry
            for entry in mine
            if (entry.chunk is not None and entry.chunk not in there)
            or (entry.turn is not None and not any(entry.turn in ids for ids in _at(there, entry.chunk)))
        ]
        cases.append(("dangling", "a chunk or turn that its source does not have", wrong))
    return [Finding("orphan", reason, message, tuple(some)) for reason, message, some in cases if some]


def _at(turns: Mapping[int, set[str | None]], chunk: int | None) -> Iterable[set[str | None]]:
    return turns.values() if chunk is None else [turns.get(chunk, set())]


def _coverage(
    store: MemoryStore, entries: Sequence[MemoryEntry], mine: Sequence[MemoryEntry], chunks: Sequence[Chunk] | None
) -> Coverage | None:
    """With `chunks`: of their spans, by the entries `mine` that name them and by what all entries say. Without: of the
    entries with a turn, by the others; None where there are none of either."""
    if chunks is None:
        raw, facts = [e for e in entries if e.turn is not None], [e for e in entries if e.turn is None]
        if not raw or not facts:
            return None
        keyed = [((entry.source, entry.chunk), RawSpan(entry.chunk, entry.turn, entry.content)) for entry in raw]
        named = {(entry.source, entry.chunk) for entry in facts if entry.chunk is not None}
        by_origin: set[int] = set()
    else:
        facts = entries
        keyed = [((None, chunk.index), span) for chunk in chunks for span in _spans(chunk)]
        named, exact = {(None, e.chunk) for e in mine}, {(e.chunk, e.turn) for e in mine}
        by_origin = {number for number, (_, span) in enumerate(keyed) if (span.chunk, span.turn) in exact}
    vectors = store._vectors(list(dict.fromkeys([span.text for _, span in keyed] + [e.content for e in facts])))
    written = np.array([vectors[fact.content] for fact in facts])
    supported = {n for n, (_, span) in enumerate(keyed) if facts and (written @ vectors[span.text]).max() >= SUPPORT}
    chunk_keys = {key for key, _ in keyed}
    return Coverage(
        spans=len(keyed),
        by_origin=len(by_origin),
        by_content=len(supported - by_origin),
        chunks=len(chunk_keys),
        chunks_by_origin=len(chunk_keys & named),
        uncovered=tuple(span for number, (_, span) in enumerate(keyed) if number not in by_origin | supported),
    )


def _spans(chunk: Chunk) -> list[RawSpan]:
    if chunk.text is not None:
        return [RawSpan(chunk.index, None, chunk.text)]
    return [RawSpan(chunk.index, turn.id, turn.text) for turn in chunk.turns]
