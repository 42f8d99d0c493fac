"""Two-layer search: groups are scored first, and a group's score is added to its members' as a prior.

For a query, every live document gets

    score = coverage ** 2 * (scale(dense) + fit * (contents(group) + category(group))) + confidence * scale(bm25)
            + .3 * role + .15 * question
    contents(group) = inner product with the prototype, the mean direction of the members' vectors
    category(group) = inner product with the vector of the category's name and description

by the route "soft", the default, where dense is the inner product with the document's vector and bm25 is over its
lexical text. `scale` maps the searched documents to 0..1 by their smallest and largest score. Coverage is the share of
the query that the embedder knows: where it knows nothing, words alone decide. Confidence is the share of the query's
words, by idf, that the document with most of them holds: where all share but a common word with the query, vectors
decide. Spans (below) need fewer for a 1. Fit is how far groups hold what is alike: where a writer sorts at random,
they say nothing about a document. A single category has no part. A long document has the bm25 of its best
passage (`lexical`). Role is -1 for what an assistant said, unless the query asks about it, and question is -1 for
a span that asks itself (`ranking`). Scaled sums keep how far ahead a document is, which rank fusion discards (LoCoMo
recall@10 .61 against .56).

The other routes are "flat" (no prior), "dense", "bm25", and "hard" (flat, within the best round(sqrt(groups)) groups by
both priors). A hard first layer loses what it cuts, so it is used only on request. Equal scores go to the more recent
document. Nothing here is tuned by kind of question.

In raw text (documents that are spans of a source: entries with a `source` and a `turn`) route "soft" takes the bm25 of
`NeighbourBM25`, which counts the words of neighbouring spans too. Facts that a writer states have no turn, so nothing
changes for them.

A filtered search equals, to the last digit, the search of a memory that holds only the entries that pass. Document
counts, mean lengths, groups, prototypes and neighbours are those of these documents alone. So k results are found
whenever k entries pass, and no score reveals anything about the rest of the memory.

**Filters.** A column holds one field's value of every slot, as the number of a distinct value. A filter is evaluated on
the distinct values, and the result is looked up for all slots. Equality is a dict look-up. For ranges the distinct
values are sorted, so an operand is never compared with all of them. `$contains` tests each distinct value once per
operand. A column is built when a filter first needs its field, and updated from then on. `filters` alone defines what a
filter means: columns give what `matches` gives.

**Large memories.** Above `EXACT_LIMIT` documents, a search of the whole memory by vectors scores candidates instead of
every document:

- the `NEAREST` documents by an index of FAISS, and a quarter as many of a group that the prior favours;
- the `BEST_BY_WORDS` best by the query's words and their group's prior.

Their scores equal those of the exact search, part by part: bm25 and the prior are computed for all documents, and dense
scores are products of the vectors themselves, not of the index's codes. Only the scale of dense can differ, and then
all scores by the same factor: its maximum is the best candidate's, its minimum that of the documents nearest to the
opposite of the query. So the only possible error is that one of the best is no candidate (`eval/store/scale.py`
measures that). Every document is scored in filtered searches, of past states, by the routes "hard" and "bm25", and by
"soft" with raw spans.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

import faiss
import numpy as np

from memalpha.store.embedding import Embedder, query_coverages
from memalpha.store.fields import parse_time
from memalpha.store.filters import (
    ORDER,
    Condition,
    Filter,
    Not,
    comparison_type,
    field_value,
    filter_fields,
    freeze,
)
from memalpha.store.search.lexical import WINDOW, LexicalIndex, PassageIndex, Span, with_room, words
from memalpha.store.search.ranking import (
    COMBINED_ROUTES,
    Features,
    Prototypes,
    Route,
    ScoredEntry,
    SearchOptions,
    Selection,
    VectorIndex,
    asks_for_assistants,
    explain,
    indices_of_largest,
    inner_products,
    is_assistants,
    is_question,
    score_documents,
    top_k,
)
from memalpha.types import MemoryEntry, is_iso_time

_MOST_COLUMNS = 64
_MOST_VERDICTS = 64


class FilterColumns:
    """Columns of the fields that filters use; `entries` returns all entries that have a slot."""

    def __init__(self, entries: Callable[[], Iterable[MemoryEntry]]) -> None:
        self.entries = entries
        self._columns: dict[str, _Column] = {}

    def set(self, slot: int, entry: MemoryEntry) -> None:
        """Record that a slot holds an entry."""
        for name, column in self._columns.items():
            column.set(slot, field_value(entry, name))

    def mask(self, where: Filter, slots: Mapping[str, int], size: int) -> np.ndarray:
        """Return a mask of the slots whose entry matches, bool `(size,)`; undefined for empty slots.

        Args:
            where: Filter.
            slots: Slot of every entry by id.
            size: Number of slots.
        """
        self._ensure_columns(filter_fields(where), slots)
        return self._mask(where, size)

    def numbers(self, field: str, slots: Mapping[str, int], size: int) -> np.ndarray:
        """Return a field's values as numbers, float64 `(size,)`; undefined for empty slots.

        Times are in seconds since 1970; values that are no numbers are NaN.

        Args:
            field: Field of the entries.
            slots: Slot of every entry by id.
            size: Number of slots.
        """
        self._ensure_columns({field}, slots)
        return self._columns[field].numbers(size)

    def _ensure_columns(self, fields: set[str], slots: Mapping[str, int]) -> None:
        """Build the missing columns of these fields, and drop those unused for longest."""
        columns = self._columns
        missing = {field: _Column() for field in fields if field not in columns or columns[field].is_worn(len(slots))}
        for entry in self.entries() if missing else ():
            for name, column in missing.items():
                column.set(slots[entry.id], field_value(entry, name))
        columns |= missing  # only once they are complete
        for name in fields:
            columns[name] = columns.pop(name)  # in order of last use
        while len(columns) > max(_MOST_COLUMNS, len(fields)):
            del columns[next(iter(columns))]

    def _mask(self, where: Filter, size: int) -> np.ndarray:
        if isinstance(where, Condition):
            return self._columns[where.field].mask(where, size)
        if isinstance(where, Not):
            return ~self._mask(where.part, size)
        masks = [self._mask(part, size) for part in where.parts]
        combine = np.logical_or if where.is_any else np.logical_and
        return combine.reduce(masks) if masks else np.full(size, not where.is_any)


class _Column:
    """Values of one field by slot."""

    def __init__(self) -> None:
        self._codes = np.zeros(0, np.int32)  # number of the value, by slot
        self._values: list[Any] = []  # the distinct values
        self._numbers: dict[Any, int] = {}
        self._orders: dict[type, _Order] = {}  # by kind of value
        self._verdicts: dict[Any, np.ndarray] = {}  # mask of the values that contain it, by operand of `$contains`
        self._floats = np.zeros(0)  # the values as numbers

    def is_worn(self, entries: int) -> bool:
        """Return True if most of the distinct values belong to no entry any more."""
        return len(self._values) > 1024 + 2 * entries

    def set(self, slot: int, value: Any) -> None:
        """Store the value of a slot."""
        self._codes = with_room(self._codes, slot + 1)
        number = self._numbers.setdefault(freeze(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        self._codes[slot] = number

    def mask(self, condition: Condition, size: int) -> np.ndarray:
        """Return a mask of the slots that fulfil a condition, bool `(size,)`."""
        self._codes = with_room(self._codes, size)
        codes, numbers = self._codes[:size], self._fulfilling(condition)
        if len(numbers) == 1:
            mask = codes == numbers[0]
        elif self._values:
            verdicts = np.zeros(len(self._values), bool)
            verdicts[numbers] = True
            mask = verdicts.take(codes)
        else:
            mask = np.zeros(size, bool)
        return ~mask if condition.operator == "$ne" else mask

    def numbers(self, size: int) -> np.ndarray:
        """Return the values as numbers, float64 `(size,)`."""
        self._codes = with_room(self._codes, size)
        new_floats = [to_number(value) for value in self._values[len(self._floats) :]]
        self._floats = np.concatenate([self._floats, new_floats])
        return self._floats.take(self._codes[:size]) if len(self._floats) else np.full(size, np.nan)

    def _fulfilling(self, condition: Condition) -> Sequence[int] | np.ndarray:
        """Return the numbers of the distinct values that fulfil a condition; for `$ne`, of those that do not."""
        if condition.operator == "$contains":
            key = freeze(condition.operand)
            verdicts = self._verdicts.pop(key, np.zeros(0, bool))
            if len(verdicts) < len(self._values):
                new_verdicts = [condition.holds(value) for value in self._values[len(verdicts) :]]
                verdicts = np.concatenate([verdicts, np.array(new_verdicts, bool)])
            self._verdicts[key] = verdicts  # in order of last use
            if len(self._verdicts) > _MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            return np.flatnonzero(verdicts)
        if condition.operator in ORDER:
            return self._within(condition, condition.operator, condition.operand)
        equal: list[int] = []
        for operand in condition.operands:
            if isinstance(condition.comparable(operand), datetime):  # times have many spellings
                equal += self._within(condition, "$eq", operand).tolist()
            elif (number := self._numbers.get(freeze(operand))) is not None:
                equal.append(number)
        return equal

    def _within(self, condition: Condition, operator: str, operand: Any) -> np.ndarray:
        bound = condition.comparable(operand)
        kind = comparison_type(bound)
        if kind is None:
            return np.zeros(0, np.int32)
        order = self._orders.setdefault(kind, _Order())
        if order.value_count < len(self._values):
            keys = [condition.comparable(value) for value in self._values[order.value_count :]]
            order.add(
                [(key, number) for number, key in enumerate(keys, order.value_count) if comparison_type(key) is kind]
            )
            order.value_count = len(self._values)
        return order.within(operator, bound)


class _Order:
    """Sorted distinct values of one kind, among the first `value_count` values of a column."""

    def __init__(self) -> None:
        self.value_count = 0
        self._keys = np.zeros(0, object)
        self._numbers = np.zeros(0, np.int32)

    def add(self, new: list[tuple[Any, int]]) -> None:
        """Insert values, each with its number."""
        new.sort(key=itemgetter(0))
        keys = np.empty(len(new), object)  # filled this way, texts stay Python objects
        keys[:] = [key for key, _ in new]
        indices = [bisect_right(self._keys, key) for key in keys]
        self._keys = np.insert(self._keys, indices, keys)
        self._numbers = np.insert(self._numbers, indices, [number for _, number in new])

    def within(self, operator: str, bound: Any) -> np.ndarray:
        """Return the numbers of the values that compare to the bound as the operator requires."""
        first, end = bisect_left(self._keys, bound), bisect_right(self._keys, bound)
        spans = {"$eq": (first, end), "$gt": (end, None), "$gte": (first, None), "$lt": (0, first), "$lte": (0, end)}
        return self._numbers[slice(*spans[operator])]


def to_number(value: Any) -> float:
    """Return a field's value as a number, a time in seconds since 1970; NaN for others."""
    if isinstance(value, str) and is_iso_time(value):
        return parse_time(value).timestamp()
    return float(value) if isinstance(value, int | float) else np.nan


EXACT_LIMIT = 50_000  # documents; up to here every one is scored, in a few milliseconds
NEAREST = BEST_BY_WORDS = 600
FARTHEST = 100
MAX_RESULTS = 100  # for more results, every document is scored
LISTS = 256
_ROWS_PER_LIST = 40  # in training
_EXTRA_GROUPS = 3  # groups whose nearest documents may be added
_BLOCK = 16384


class ApproximateIndex:
    """FAISS's inverted lists of 4-bit codes (IVF, PQ) over vectors by slot.

    Codes take 1/32 of the vectors' memory. A query compares all of them: of a million, some milliseconds more than a
    quarter of the lists take, which miss one of seven of the nearest where vectors do not cluster. Training is seeded.
    Removed slots stay until the index is built anew.
    """

    def __init__(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Train the index and add the vectors `rows[slots]`."""
        dim = rows.shape[1]
        codes = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        self._index: Any = faiss.index_factory(dim, f"IVF{LISTS},PQ{codes}x4fs", faiss.METRIC_INNER_PRODUCT)
        self._index.cp.niter, self._index.cp.max_points_per_centroid = 8, _ROWS_PER_LIST
        sample = np.random.default_rng(0).choice(slots, min(len(slots), _ROWS_PER_LIST * LISTS), replace=False)
        self._index.train(rows[np.sort(sample)])
        self._trained_for = len(slots)
        self.add(rows, slots)

    def add(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Add the vectors `rows[slots]`."""
        for start in range(0, len(slots), _BLOCK):
            block = slots[start : start + _BLOCK]
            self._index.add_with_ids(rows[block], block)

    def is_worn(self, count: int) -> bool:
        """Return True if the index was trained for far fewer than `count` documents, or holds many removed ones."""
        return count > 4 * self._trained_for or self._index.ntotal > 2 * count

    def nearest(
        self, vector: np.ndarray, count: int, among: np.ndarray | None = None, *, fast: bool = False
    ) -> np.ndarray:
        """Return the slots of about `count` nearest vectors; some may have been removed since.

        Args:
            vector: Query `(1, dim)`.
            count: Number of slots.
            among: Mask of the slots to search, bool `(slots,)`; None searches all.
            fast: Compare a quarter of the lists only.
        """
        params: Any = faiss.SearchParametersIVF()
        params.nprobe = LISTS // 4 if fast else LISTS
        if among is not None:
            bitmap = np.packbits(among, bitorder="little")
            selector = faiss.IDSelectorBitmap(bitmap)  # pyright: ignore[reportCallIssue]: FAISS's wrapper takes arrays
            params.sel = selector
        slots = self._index.search(vector, count, params=params)[1][0]
        return slots[slots >= 0]


def find_candidates(
    whole: Selection, index: ApproximateIndex, query: Sequence[str], vector: np.ndarray, route: Route
) -> Features:
    """Return documents that may be among the best for one query, with the statistics of the whole memory.

    Args:
        whole: Selection of all documents, without raw spans.
        index: Index of their vectors.
        query: Terms of the query.
        vector: Embedding of the query `(1, dim)`.
        route: Route of the search: "soft", "flat" or "dense".
    """
    is_soft = route == "soft"
    priors = whole.soft_priors(vector) if is_soft else None
    prior = np.zeros(whole.size) if priors is None else priors[0] + priors[1]
    nearest = whole.documents_at(index.nearest(vector, NEAREST))
    groups = whole.groups[nearest]
    counts, sizes = np.bincount(groups, minlength=whole.size), whole.group_sizes
    chosen, mean_prior = [nearest], prior[groups].mean() if len(nearest) else 0.0
    for group in np.argsort(-prior, kind="stable")[:_EXTRA_GROUPS].tolist():  # more of those that the prior favours
        if prior[group] > mean_prior and counts[group] < min(NEAREST // 4, sizes[group]):
            chosen.append(whole.documents_at(index.nearest(vector, NEAREST // 4, whole.slots_in_group(group))))
    lexical = None if route == "dense" else whole.bm25_scores(query)
    score_ranges: dict[str, tuple[float, float]] = {}
    if lexical is not None:
        holders = np.flatnonzero(lexical.scores)
        values = lexical.scores[holders]
        low, high = 0.0 if len(holders) < len(whole.slots) else values.min(), values.max(initial=0.0)
        score_ranges["bm25"] = low, high
        values = values / max(high, 1e-9) + prior[whole.groups[holders]]
        chosen.append(holders[indices_of_largest(values, BEST_BY_WORDS)])
    documents = np.unique(np.concatenate(chosen))
    dense, groups = whole.products(vector, documents), whole.groups[documents]
    if lexical is not None:
        lexical = lexical._replace(scores=lexical.scores[documents], passages=lexical.passages[documents])
        far = whole.products(vector, whole.documents_at(index.nearest(-vector, FARTHEST, fast=True)))
        score_ranges["dense"] = far.min(initial=dense.min(initial=0.0)), dense.max(initial=0.0)
    return Features(
        whole.slots[documents],
        dense,
        lexical,
        None if priors is None else priors[0][groups],
        None if priors is None else priors[1][groups],
        score_ranges=score_ranges,
    )


@dataclass(frozen=True, slots=True)
class Document:
    """Text to search for, in a group.

    Attributes:
        id: Id of the entry.
        text: Text to search.
        group: Group of layer one.
        order: Tie-breaker; larger is more recent.
        span: Place in a source, if the document is a raw span.
        entry: Entry that filters look at.
        created: Rank in listings; smaller is older.
    """

    id: str
    text: str
    group: str = ""
    order: int = 0
    span: Span | None = None
    entry: MemoryEntry | None = field(default=None, compare=False)
    created: int = 0

    @classmethod
    def from_entry(cls, entry: MemoryEntry, created: int | None = None) -> Document:
        """Return a stored entry as a document, grouped by category; the latest version is the most recent.

        `created` is the log position that made the id and orders spans and listings; None takes that of the version.
        """
        position = entry.valid_from if created is None else created
        span = Span.from_origin(entry.source, entry.chunk, entry.turn, position)
        return cls(entry.id, entry.content, entry.category, entry.valid_from, span, entry, position)


class Corpus:
    """Searchable documents of one namespace, changed in place.

    New documents are embedded at the next search, in one batch. A search scores every document that passes its filter:
    exact at any size, some microseconds for a rollout's memory, about 10 ms for 1e5 entries. Removing marks a slot in
    constant time; a search that finds more marks than documents drops them first. Not safe for concurrent use.

    Attributes:
        embedder: Embedder of documents and queries.
        groups: Group of each slot, int64 `(slots,)`.
        group_numbers: Numbers of the groups by name.
        spans: Source number (0: no span), chunk and position of each slot, int64 `(slots, 3)`.
        marks: Which slots are spans that an assistant said, and which are spans that ask, bool `(slots, 2)`.
        source_numbers: Numbers of the sources by name.
        vectors: Vectors by slot.
        prototypes: Mean directions of the groups.
        lexical: Words by slot.
        passages: Words of the passages of long documents.
        is_approximate: True for a corpus that is searched by `ann` once it is large.
    """

    def __init__(
        self,
        embedder: Embedder,
        documents: Iterable[Document] = (),
        entries: Callable[[], Iterable[MemoryEntry]] = tuple,
        *,
        descriptions: Mapping[str, str] | None = None,
        approximate: bool = False,
    ) -> None:
        """Create a corpus.

        Args:
            embedder: Embedder of documents and queries.
            documents: First documents.
            entries: Returns the entries of all documents, for filters.
            descriptions: Text on what a group is for, by its name; a group that is not there has none.
            approximate: Search a large memory as `ann` says; False searches exactly at any size.
        """
        self.embedder = embedder
        self._slots: dict[str, int] = {}  # by id
        self._ids: list[str] = []  # by slot
        self._size = 0  # slots, free ones included
        self._free: list[int] = []
        self._removed: list[int] = []  # slots whose words are still in the lexical index
        self._live = np.zeros(0, bool)
        self._orders = np.zeros(0, np.int64)
        self._created = np.zeros(0, np.int64)
        self.groups = np.zeros(0, np.int64)
        self.group_numbers: dict[str, int] = {}
        self._descriptions = dict(descriptions or {})
        self._description_vectors = np.zeros((0, embedder.dim), np.float32)  # of the first groups
        self.spans = np.zeros((0, 3), np.int64)
        self.marks = np.zeros((0, 2), bool)
        self.source_numbers: dict[str, int] = {}
        self.vectors = VectorIndex(embedder.dim)
        self.prototypes = Prototypes(embedder.dim)
        self._pending: dict[str, str] = {}  # texts without a vector by id, in order
        self.lexical = LexicalIndex()
        self.passages = PassageIndex()
        self._columns = FilterColumns(entries)
        self._full_selection: Selection | None = None
        self.is_approximate = approximate
        self._ann: ApproximateIndex | None = None
        self._outside_ann: list[int] = []  # slots filled since vectors were added to it
        self.add_many(documents)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, id: str) -> bool:
        return id in self._slots

    def add_many(self, documents: Iterable[Document]) -> None:
        """Add several documents, or replace those with their ids."""
        new = {document.id: document for document in documents}
        for id in new:
            if id in self._slots:
                self.remove(id)
        fields = [
            (document.text, document.group, document.order, document.span, document.created)
            for document in new.values()
        ]
        texts, groups, orders, spans, created = zip(*fields, strict=True) if fields else ((),) * 5
        slots = self.load(list(new), texts, groups, orders, spans, created)
        for slot, document in zip(slots.tolist(), new.values(), strict=True):
            if document.entry is not None:
                self._columns.set(slot, document.entry)

    def load(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        groups: Sequence[str],
        orders: Sequence[int],
        spans: Sequence[Span | None],
        created: Sequence[int],
        vectors: np.ndarray | None = None,
    ) -> np.ndarray:
        """Add many documents by their fields.

        Args:
            ids: Ids, none of which is in the corpus.
            texts: Texts to search.
            groups: Groups of layer one.
            orders: Tie-breakers; larger is more recent.
            spans: Origins in a source; None for documents that are no spans.
            created: Ranks in listings; smaller is older.
            vectors: Embeddings of the texts `(n, dim)`; None embeds them at the next search.

        Returns:
            Slots of the documents, int64 `(n,)`.
        """
        slots = self._allocate_slots(len(ids))
        for slot, id in zip(slots.tolist(), ids, strict=True):
            self._slots[id] = slot
            self._ids[slot] = id
        numbers = self.group_numbers
        self.groups[slots] = [numbers.setdefault(group, len(numbers)) for group in groups]
        self._orders[slots] = orders
        self._created[slots] = created
        if self.source_numbers:  # otherwise the zeros stay untouched and take no memory
            self.spans[slots, 0] = 0
            self.marks[slots] = False
        for slot, span, text in zip(slots.tolist(), spans, texts, strict=True):
            if span is not None:
                number = self.source_numbers.setdefault(span.source, 1 + len(self.source_numbers))
                self.spans[slot] = number, span.chunk, span.position
                self.marks[slot] = is_assistants(text), is_question(text)
        self._live[slots] = True
        self.lexical.add(slots, texts)
        is_long = self.lexical.lengths[slots] > WINDOW
        if is_long.any():
            self.passages.add(slots[is_long], [texts[index] for index in np.flatnonzero(is_long).tolist()])
        if vectors is None:
            self._pending.update(zip(ids, texts, strict=True))
        else:
            self._set_vectors(slots, vectors)
        if self._ann is not None:
            self._outside_ann += slots.tolist()
        self._full_selection = None
        return slots

    def _set_vectors(self, slots: np.ndarray, vectors: np.ndarray) -> None:
        vectors = vectors.astype(np.float32, copy=False)
        self.vectors.set(slots, vectors)
        self.prototypes.change(self.groups[slots], vectors, 1.0)

    def _allocate_slots(self, number: int) -> np.ndarray:
        """Return slots for new documents, int64 `(number,)`."""
        reused = [self._free.pop() for _ in range(min(number, len(self._free)))]
        start = self._size
        self._size += number - len(reused)
        self._ids += [""] * (self._size - start)
        self._live, self._orders, self._created, self.groups, self.spans, self.marks = (
            with_room(values, self._size)
            for values in (self._live, self._orders, self._created, self.groups, self.spans, self.marks)
        )
        return np.array([*reused, *range(start, self._size)], np.int64)

    def remove(self, id: str) -> None:
        """Remove a document; raises `KeyError` for an unknown id."""
        slot = self._slots.pop(id)
        if id in self._pending:
            del self._pending[id]
        else:
            self.prototypes.change(self.groups[slot : slot + 1], self.vectors.rows[slot : slot + 1], -1.0)
        self._live[slot] = False
        self._removed.append(slot)
        self._full_selection = None

    def search_many(
        self, queries: Sequence[str], options: SearchOptions, vectors: np.ndarray | None = None
    ) -> list[list[ScoredEntry]]:
        """Search for several queries, embedded in one batch.

        Args:
            queries: Questions or keywords.
            options: Options of the search; the corpus is the memory at `as_of`.
            vectors: Embeddings of the queries `(len(queries), dim)`, if known.

        Returns:
            The best documents for each query, best first.
        """
        k, route, where = options.k, options.route, options.filter
        if not queries or not k:
            return [[] for _ in queries]
        # Drop removed documents once they outnumber the others, and settle postings once many are new.
        if len(self._removed) > 1024 + len(self._slots) or self.lexical.needs_settling:
            self.lexical.settle(self._live)
            self.passages.settle(self._live)
            self._free += self._removed
            self._removed.clear()
            self._full_selection = None
        if route == "bm25":
            vectors = None
        else:
            self._embed()
            vectors = self.embedder.encode(queries) if vectors is None else vectors
        coverages = [1.0] * len(queries)
        if route in COMBINED_ROUTES and options.vector is None:  # the part of words that it does not know weighs less
            coverages = query_coverages(self.embedder, queries)
        index = None
        if self._can_approximate(options):  # by the index of all vectors, built or brought up to date
            if self._ann is None or self._ann.is_worn(len(self)):
                self._ann = ApproximateIndex(self.vectors.rows, np.flatnonzero(self._live))
            elif self._outside_ann:
                slots = np.array(self._outside_ann)
                self._ann.add(self.vectors.rows, slots[self._live[slots]])
            index, self._outside_ann = self._ann, []
        whole = self._select(where)
        if not len(whole.slots):
            return [[] for _ in queries]
        results: list[list[ScoredEntry]] = []
        for number, query in enumerate(queries):
            terms, vector = words(query), None if vectors is None else vectors[number : number + 1]
            features = None
            if index is not None and vector is not None:
                features = find_candidates(whole, index, terms, vector, route)
            if features is None or len(features.slots) < k:
                features = whole.features(terms, vector, route)
            results.append(self._rank(features, query, options, coverages[number]))
        return results

    def _can_approximate(self, options: SearchOptions) -> bool:
        needs_all = options.exact or options.filter is not None or options.route in ("hard", "bm25")
        has_neighbours = options.route == "soft" and bool(self.source_numbers)
        is_large = self.is_approximate and len(self) > EXACT_LIMIT
        return is_large and not needs_all and not has_neighbours and options.k <= MAX_RESULTS

    def copy(self, entries: Callable[[], Iterable[MemoryEntry]]) -> Corpus:
        """Return a copy that can be changed by itself and is searched exactly.

        Args:
            entries: Returns the entries of all documents of the copy, for filters.
        """
        self._full_selection = None
        kept = {id(self.embedder): self.embedder, id(self._columns.entries): entries, id(self._ann): None}
        duplicate = copy.deepcopy(self, kept)
        duplicate.is_approximate = False
        return duplicate

    def matching_ids(self, where: Filter, after: int, limit: int | None) -> list[str]:
        """Return the ids of the documents that pass a filter, oldest first.

        Args:
            where: Filter.
            after: Rank (`created`) of the last document before the first one.
            limit: Number of ids at most.
        """
        slots = self._matching(where)
        slots = slots[self._created[slots] > after]
        slots = slots[np.argsort(self._created[slots])[:limit]]
        return [self._ids[slot] for slot in slots.tolist()]

    def count(self, where: Filter) -> int:
        """Return the number of documents that pass a filter."""
        return len(self._matching(where))

    def _matching(self, where: Filter) -> np.ndarray:
        """Return the slots of the documents that pass a filter, in ascending order."""
        return np.flatnonzero(self._columns.mask(where, self._slots, self._size) & self._live[: self._size])

    def description_scores(self, vector: np.ndarray) -> np.ndarray:
        """Return the inner products of a query's vector with what each group is for, float64 `(groups,)`, or 0."""
        names = list(self.group_numbers)
        if len(self._description_vectors) < len(names):
            rows = np.zeros((len(names), self.embedder.dim), np.float32)
            described = [index for index, name in enumerate(names) if name in self._descriptions]
            rows[described] = self.embedder.encode([self._descriptions[names[index]] for index in described])
            self._description_vectors = rows
        return inner_products(vector, self._description_vectors)[0]

    def _embed(self) -> None:
        """Embed the documents that were added since the last search."""
        if not self._pending:
            return
        slots = np.array([self._slots[id] for id in self._pending], np.int64)
        self._set_vectors(slots, self.embedder.encode(list(self._pending.values())))
        self._pending.clear()

    def _select(self, where: Filter | None) -> Selection:
        if where is not None:
            return Selection(self, self._matching(where), is_whole=False)
        if self._full_selection is None:
            self._full_selection = Selection(self, np.flatnonzero(self._live[: self._size]), is_whole=True)
        return self._full_selection

    def _rank(self, features: Features, query: str, options: SearchOptions, coverage: float) -> list[ScoredEntry]:
        slots = features.slots

        def numbers(field: str) -> np.ndarray:
            return self._columns.numbers(field, self._slots, self._size)[slots]

        # Most memories hold nothing that an assistant said, and then the question need not be read for it.
        has_roles = features.marks is not None and bool(features.marks[:, 0].any())
        uses_roles = has_roles and not asks_for_assistants(query)
        total, parts = score_documents(features, options, numbers, coverage, uses_roles)
        best = top_k(total, self._orders[slots], options.k)
        if options.min_score is not None:
            best = best[total[best] >= options.min_score]
        ids = [self._ids[slot] for slot in slots[best].tolist()]
        return list(map(ScoredEntry, ids, total[best].tolist(), explain(parts, best)))
