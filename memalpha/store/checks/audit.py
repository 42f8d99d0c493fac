"""Audit of a memory by rules alone: no language model, no clock, always the same answer.

There are five kinds of findings, the worst first. Each claims no more than its rule.

- `contradiction`: live entries give different values for one slot (`Ana's city: Oslo`; see `slots`). Free text is not
  understood, so nothing is claimed of it. A slot that may have several values (`hobby`) is reported all the same.
  Lines of a chat (`Ana: I like tea`) give their speaker no values.
- `stale`: a live entry is outdated, for one of four reasons. `later`: another live entry gives its slot another value
  with a later date. `ended`: an entry with a later date ended after it was written, and not by an undo. `replaced`:
  another entry that said the same has been updated to something else since. `says`: its own text is labelled as
  outdated, or says that it is no longer true.
- `duplicate`: live entries say the same, by one of three tests. `text`: they differ only in case, spacing and closing
  marks. `words`: they have the same stemmed words in any order, function words aside. `meaning`: their cosine is at
  least .95, or at least .85 where one has all words of the other. Entries that differ in a name, a number or a
  negation, or have a slot, are never near: there, another word is another fact.
- `unretrieved`: no entry of a category is among the k best hits of any query. Without queries, every entry's own
  content is its query (at most 200 of a category, evenly spaced).
- `orphan`: live entries lack an origin. `no origin`: none at all, where other entries have one. `no source`: a chunk
  or turn of no source.

`doctor` checks that versions follow from the log; an audit does not.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from memalpha.arguments import check_count, check_type, group_values
from memalpha.errors import StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.fields import parse_time
from memalpha.store.search.lexical import words
from memalpha.store.store import MemoryStore
from memalpha.store.values import is_contradictory, key_value, normalize, slot_value
from memalpha.types import MemoryEntry, is_iso_time

Kind = Literal["contradiction", "stale", "duplicate", "unretrieved", "orphan"]
KINDS: tuple[Kind, ...] = ("contradiction", "stale", "duplicate", "unretrieved", "orphan")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a memory.

    Attributes:
        kind: Kind of fault.
        reason: Rule that the entries break; see `audit` for the reasons of each kind.
        message: The fault in words.
        entries: Live entries that the finding is about, oldest first.
        against: Versions, live or ended, that speak against the first entry.
    """

    kind: Kind
    reason: str
    message: str
    entries: tuple[MemoryEntry, ...]
    against: tuple[MemoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RetrievalCounts:
    """Counts of what searches return, by category.

    Attributes:
        k: Hits per query.
        own: True if the contents of entries were the queries, False if the caller gave queries.
        categories: By category the live `entries`, the queries `asked`, and the queries that `found` an entry of the
            category (with `own`, that very entry).
    """

    k: int
    own: bool
    categories: Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class Audit:
    """Audit of one namespace. `counts` holds the number of entries, and of findings by kind."""

    namespace: str
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    retrieval: RetrievalCounts | None = None


def audit(store: MemoryStore, *, queries: Sequence[str] | None = None, k: int = 10) -> Audit:
    """Audit a store's namespace as of one moment.

    All entries are compared with each other, which takes time in the square of their number.

    Args:
        store: Store to audit.
        queries: Questions that this memory has to answer, such as a task's; None searches by the entries' own contents.
        k: Hits per query.

    Raises:
        StoreError: `k` is below 1.
    """
    check_type("store", store, MemoryStore)
    if check_count("k", k) < 1:
        raise StoreError(f"k {k!r}: 1 or more is needed")
    result = Audit(store.rows.name)
    with store.read_transaction():
        position, entries = store.rows.log.position, store.rows.entries.live()
        result.findings += find_contradictions(entries)
        result.findings += stale_findings(store)
    vectors = store.recorded_embedder.embed((entry.content for entry in entries), store.rows)
    rows = np.array([vectors[entry.content] for entry in entries], np.float32)
    result.findings += find_duplicates(entries, rows)
    result.retrieval = measure_retrieval(store, position, entries, queries, k)
    result.findings += find_unretrieved(entries, result.retrieval)
    result.findings += find_orphans(entries)
    counts = Counter(finding.kind for finding in result.findings)
    result.counts = {"entries": len(entries), **{kind: counts[kind] for kind in KINDS}}
    return result


def stale_findings(store: MemoryStore) -> list[Finding]:
    """Return the findings of kind `stale` alone."""
    with store.read_transaction():
        entries, namespace = store.rows.entries.live(), store.rows
        ended = [version for version in namespace.entries.all_versions() if version.valid_to is not None]
        return find_stale(entries, ended, namespace)


def find_conflicts(store: MemoryStore, histories: Sequence[Sequence[MemoryEntry]]) -> list[Finding]:
    """Return contradictions between some entries of a store, and those of them that are outdated.

    Args:
        store: Store of the entries.
        histories: Versions of each entry, oldest first. Other entries of the store are not compared.
    """
    live = [version for versions in histories for version in versions if version.valid_to is None]
    ended = [version for versions in histories for version in versions if version.valid_to is not None]
    with store.read_transaction():
        return find_contradictions(live) + find_stale(live, ended, store.rows)


NEAR = 0.95
"""Cosine from which two entries mean the same."""
CONTAINED = 0.85
"""Cosine from which two entries are near if one has all words of the other."""
_BLOCK = 2**25  # similarities in memory at a time
_NEGATIONS = {"not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot"}


def find_duplicates(entries: Sequence[MemoryEntry], vectors: np.ndarray) -> list[Finding]:
    """Return a finding for each group of entries that say the same.

    Args:
        entries: Live entries.
        vectors: Their unit vectors, float32 `(len(entries), dim)`.
    """

    def words_key(content: str, index: int) -> object:
        """Return the sorted words, of slot and value apart, and values with marks (3.5, C++), which no word has."""
        sorted_words = tuple(tuple(sorted(words(part))) for part in key_value(content) or (content,))
        marked = sorted(filter(_is_marked, normalize(content).split()))
        return (sorted_words, *marked) if all(sorted_words) else index

    findings = []
    heads: list[int] = []  # index of one entry of each text, then of each set of words
    for reason, message, group_key in (
        ("text", "the same but for case, spacing and closing marks", lambda content, index: plain(content)),
        ("words", "the same words", words_key),
    ):
        groups = group_values(
            (group_key(entries[index].content, index), index) for index in heads or range(len(entries))
        )
        for indices in groups.values():
            if len(indices) > 1:
                findings.append(Finding("duplicate", reason, message, tuple(entries[index] for index in indices)))
        heads = [indices[0] for indices in groups.values()]
    return findings + _find_near(entries, vectors, sorted(heads))


def _is_marked(word: str) -> bool:
    """Return True if a normalized word has a digit or a mark: it is a number, or a name such as C++."""
    return any(unicodedata.category(char)[0] in "NPS" for char in word)


def _find_near(entries: Sequence[MemoryEntry], vectors: np.ndarray, heads: list[int]) -> list[Finding]:
    """Return groups of entries in which each is near to some other one.

    Groups are the connected components of the pairs, merged by union-find over positions in `heads`.
    """
    contents = [entries[index].content for index in heads]
    word_sets = [frozenset(words(content)) for content in contents]
    slots = [key_value(content) for content in contents]
    distinctive, all_words = zip(*map(_distinctive_words, contents), strict=True) if contents else ((), ())
    rows = vectors[heads] if heads else np.zeros((0, 1), np.float32)
    parents, lowest = list(range(len(heads))), {}

    def root_of(node: int) -> int:
        while parents[node] != node:
            node = parents[node]
        return node

    size = max(1, _BLOCK // max(1, len(heads)))
    for start in range(0, len(heads), size):
        scores = rows[start : start + size] @ rows[start:].T
        for row, column in np.argwhere(np.triu(scores >= CONTAINED, 1)).tolist():
            left, right, score = start + row, start + column, float(scores[row, column])
            if score < NEAR and not (word_sets[left] <= word_sets[right] or word_sets[right] <= word_sets[left]):
                continue
            if slots[left] or slots[right]:
                continue
            if not (distinctive[left] <= all_words[right] and distinctive[right] <= all_words[left]):
                continue
            first, second = sorted((root_of(left), root_of(right)))
            parents[second] = first
            lowest[first] = min(score, lowest.get(first, 1.0), lowest.pop(second, 1.0))
    members = group_values((root_of(node), node) for node in range(len(heads)))
    return [
        Finding(
            "duplicate", "meaning", f"near: cosine {lowest[root]:.2f}", tuple(entries[heads[node]] for node in nodes)
        )
        for root, nodes in members.items()
        if len(nodes) > 1
    ]


def _distinctive_words(content: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words that make a fact another one, and all words, in lower case.

    Distinctive are numbers, words with marks (C++), negations and names: words with a capital that do not begin the
    content.
    """
    tokens = [word.strip("\"'.,;:!?()[]").replace("\u2019", "'").removesuffix("'s") for word in content.split()]
    distinctive = frozenset(
        word.lower()
        for index, word in enumerate(tokens)
        if word.lower() in _NEGATIONS
        or word.lower().endswith("n't")
        or _is_marked(normalize(word))
        or (index > 0 and word[:1].isupper() and word != "I")
    )
    return distinctive, frozenset(map(str.lower, tokens))


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
            values = dict.fromkeys(pair[1] for entry in slot_entries if (pair := key_value(entry.content)))
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
    ended_by_text = group_values((plain(version.content), version) for version in ended)
    findings = []
    for entry in entries:
        later = ended_later = None
        if (pair := slot_value(entry)) and pair[0] in live_slots:
            value = _normalized_value(entry)
            dates = [_date(other) for other in live_slots[pair[0]] if _normalized_value(other) == value]
            since = None if _date(entry) is None else max(date for date in dates if date is not None)
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
    """Return the content without case, spacing, outer quotes and closing marks but `?`, which makes a question."""
    text = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return text.strip("\"'\u2018\u2019\u201c\u201d").rstrip(".!\u2026\u3002\u0964\u06d4 ") or text


def _group_by_slot(entries: Iterable[MemoryEntry]) -> dict[str, list[MemoryEntry]]:
    """Return the entries of each slot; lines of a chat, such as `Ana: we moved`, have none."""
    slots = group_values((pair[0], entry) for entry in entries if (pair := key_value(entry.content)))
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


_MAX_OWN_QUERIES = 200  # entries of a category whose own contents are queries


def measure_retrieval(
    store: MemoryStore, position: int, entries: Sequence[MemoryEntry], queries: Sequence[str] | None, k: int
) -> RetrievalCounts:
    """Count the queries that reach each category.

    Args:
        store: Store to search.
        position: Log position to search at.
        entries: Entries that are live at `position`.
        queries: Questions; None asks for entries by their own contents, at most 200 of a category, evenly spaced.
        k: Hits per query.
    """
    by_category: dict[str, list[MemoryEntry]] = {name: [] for name in store.schema.category_names}
    for entry in entries:
        by_category[entry.category].append(entry)
    counts = {name: {"entries": len(members), "asked": 0, "found": 0} for name, members in by_category.items()}
    if queries is not None:
        for hits in store.search_many(queries, k, as_of=position):
            for name, count in counts.items():
                count["asked"] += 1
                count["found"] += any(hit.entry.category == name for hit in hits)
        return RetrievalCounts(k, False, counts)
    sample = [
        members[int(index)]
        for members in by_category.values()
        for index in np.linspace(0, len(members) - 1, min(len(members), _MAX_OWN_QUERIES))
    ]
    results = store.search_many([entry.content for entry in sample], k, as_of=position)
    for entry, hits in zip(sample, results, strict=True):
        counts[entry.category]["asked"] += 1
        counts[entry.category]["found"] += any(hit.entry.id == entry.id for hit in hits)
    return RetrievalCounts(k, True, counts)


def find_unretrieved(entries: Sequence[MemoryEntry], retrieval: RetrievalCounts) -> list[Finding]:
    """Return a finding for each category with live entries that no query reaches."""
    findings = []
    for name, counts in retrieval.categories.items():
        if counts["entries"] and counts["asked"] and not counts["found"]:
            queries = "its own contents" if retrieval.own else f"{counts['asked']} queries"
            message = f"no entry of {name} is among the {retrieval.k} best hits for {queries}"
            members = tuple(entry for entry in entries if entry.category == name)
            findings.append(Finding("unretrieved", "own" if retrieval.own else "queries", message, members))
    return findings


def find_orphans(entries: Sequence[MemoryEntry]) -> list[Finding]:
    """Return findings for live entries whose origin is missing."""
    unsourced = [entry for entry in entries if entry.source is None]
    without = [entry for entry in unsourced if entry.chunk is None and entry.turn is None]
    unsourced = [entry for entry in unsourced if entry.chunk is not None or entry.turn is not None]
    findings = []
    if without and len(without) < len(entries):
        findings.append(Finding("orphan", "no origin", "no source, chunk or turn, which others have", tuple(without)))
    if unsourced:
        findings.append(Finding("orphan", "no source", "a chunk or turn, but of no source", tuple(unsourced)))
    return findings
