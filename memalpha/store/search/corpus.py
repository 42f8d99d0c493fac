"""Two-layer search: groups are scored first, and a group's score is added to its members' as a prior.

For a query, every live document gets

    score = coverage ** 2 * scale(dense) + confidence * scale(bm25) + prior(group) + 2 * category(group)
            + .3 * role + .15 * question
    prior(group) = (bm25 of the members together / the best group's + prototype's inner product / the best group's) / 2
    category(group) = inner product with the vector of the category's name and description

by the route "soft", the default, where dense is the inner product with the document's vector and bm25 is over its
lexical text. `scale` maps the searched documents to 0..1 by their smallest and largest score. Coverage is the share of
the query that the embedder knows: where it knows nothing, words alone decide. Confidence is the share of the query's
words, by idf, that the document with most of them holds: where all share but a common word with the query, vectors
decide. It is 1 where there are spans (below). A single category has no part. A long document has the bm25 of its best
passage (`passages`). Role is -1 for what an assistant said, unless the query asks about it, and question is -1 for
a span that asks itself (`roles`). Scaled sums keep how far ahead a document is, which rank fusion discards (LoCoMo
recall@10 .61 against .56).

The other routes are "flat" (no prior), "dense", "bm25", and "hard" (flat, within the best round(sqrt(groups)) groups by
both priors). A hard first layer loses what it cuts, so it is used only on request. Equal scores go to the more recent
document. Nothing here is tuned by kind of question.

In raw text (documents that are spans of a source: entries with a `source` and a `turn`) route "soft" takes the bm25 of
`span_bm25`, which counts the words of neighbouring spans too. Facts that a writer states have no turn, so nothing
changes for them.

A filtered search equals, to the last digit, the search of a memory that holds only the entries that pass. Document
counts, mean lengths, groups, prototypes and neighbours are those of these documents alone. So k results are found
whenever k entries pass, and no score reveals anything about the rest of the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from memalpha.store.embedding import Embedder, query_coverages
from memalpha.store.filters import Filter
from memalpha.store.search import ann
from memalpha.store.search.ann import ApproximateIndex, Candidates
from memalpha.store.search.bm25 import LexicalIndex, words
from memalpha.store.search.filter_columns import FilterColumns
from memalpha.store.search.options import SearchOptions
from memalpha.store.search.passages import WINDOW, PassageIndex
from memalpha.store.search.ranking import ScoredEntry, Selection, explain, score_documents, top_k
from memalpha.store.search.roles import asks_for_assistants, is_assistants, is_question
from memalpha.store.search.span_bm25 import Span
from memalpha.store.search.vectors import Prototypes, VectorIndex, inner_products
from memalpha.types import MemoryEntry


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

    def add(self, document: Document) -> None:
        """Add a document, or replace the one with its id."""
        self.add_many([document])

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
        if self._size > len(self._live):
            room = max(32, self._size, 2 * start) - len(self._live)
            self._live = np.concatenate([self._live, np.zeros(room, bool)])
            self._orders = np.concatenate([self._orders, np.zeros(room, np.int64)])
            self._created = np.concatenate([self._created, np.zeros(room, np.int64)])
            self.groups = np.concatenate([self.groups, np.zeros(room, np.int64)])
            self.spans = np.concatenate([self.spans, np.zeros((room, 3), np.int64)])
            self.marks = np.concatenate([self.marks, np.zeros((room, 2), bool)])
        return np.array([*reused, *range(start, self._size)], np.int64)

    def remove(self, id: str) -> None:
        """Remove a document; raises `KeyError` for an unknown id."""
        slot = self._slots.pop(id)
        if id in self._pending:
            del self._pending[id]
        else:
            self.prototypes.change(self.groups[slot : slot + 1], self.vectors.rows[slot : slot + 1], -1.0)
            self.vectors.remove(slot)
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
        coverages = query_coverages(self.embedder, queries) if options.needs_coverage else [1.0] * len(queries)
        index = None
        if self._can_approximate(options):  # by the index of all vectors, built or brought up to date
            if self._ann is None or self._ann.is_worn(len(self)):
                self._ann = ApproximateIndex(self.vectors.rows, np.flatnonzero(self._live))
            elif self._outside_ann:
                slots = np.array(self._outside_ann)
                self._ann.add(self.vectors.rows, slots[self._live[slots]])
            index, self._outside_ann = self._ann, []
        whole = self._select(where)
        results: list[list[ScoredEntry]] = []
        for number, query in enumerate(queries):
            terms, vector = words(query), None if vectors is None else vectors[number : number + 1]
            selection: Selection | Candidates = whole
            if index is not None and vector is not None:
                candidates = Candidates(whole, index, terms, vector, route)
                selection = candidates if len(candidates.slots) >= k else whole
            if not len(selection.slots):
                results.append([])
                continue
            results.append(self._rank(selection, query, terms, vector, options, coverages[number]))
        return results

    def _can_approximate(self, options: SearchOptions) -> bool:
        needs_all = options.exact or options.filter is not None or options.route in ("hard", "bm25")
        has_neighbours = options.route == "soft" and bool(self.source_numbers)
        is_large = self.is_approximate and len(self) > ann.EXACT_LIMIT
        return is_large and not needs_all and not has_neighbours and options.k <= ann.MAX_RESULTS

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
        is_match = self._columns.mask(where, self._slots, self._size) & self._live[: self._size]
        slots = np.flatnonzero(is_match & (self._created[: self._size] > after))
        slots = slots[np.argsort(self._created[slots])[:limit]]
        return [self._ids[slot] for slot in slots.tolist()]

    def count(self, where: Filter) -> int:
        """Return the number of documents that pass a filter."""
        is_match = self._columns.mask(where, self._slots, self._size) & self._live[: self._size]
        return int(np.count_nonzero(is_match))

    def description_scores(self, vector: np.ndarray) -> np.ndarray | None:
        """Return the inner products of a query's vector with what each group is for, float64 `(groups,)`.

        None where no group has a description.
        """
        names = list(self.group_numbers)
        if not any(name in self._descriptions for name in names):
            return None
        if len(self._description_vectors) < len(names):
            rows = np.zeros((len(names), self.embedder.dim), np.float32)
            described = [index for index, name in enumerate(names) if name in self._descriptions]
            rows[described] = self.embedder.encode([self._descriptions[names[i]] for i in described])
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
        if where is None and self._full_selection is not None:
            return self._full_selection
        size = self._size
        live = self._live[:size]
        if where is not None:
            return Selection(self, np.flatnonzero(live & self._columns.mask(where, self._slots, size)), is_whole=False)
        self._full_selection = Selection(self, np.flatnonzero(live), is_whole=True)
        return self._full_selection

    def _rank(
        self,
        selection: Selection | Candidates,
        query: str,
        terms: list[str],
        vector: np.ndarray | None,
        options: SearchOptions,
        coverage: float,
    ) -> list[ScoredEntry]:
        def numbers(field: str) -> np.ndarray:
            return self._columns.numbers(field, self._slots, self._size)[selection.slots]

        uses_roles = not asks_for_assistants(query)
        subset, parts, values = score_documents(selection, terms, vector, options, numbers, coverage, uses_roles)
        slots = selection.slots[subset]
        total = sum(values[1:], values[0])
        best = top_k(total, self._orders[slots], options.k)
        if options.min_score is not None:
            best = best[total[best] >= options.min_score]
        return [
            ScoredEntry(self._ids[slot], score, parts_of_entry)
            for slot, score, parts_of_entry in zip(
                slots[best].tolist(), total[best].tolist(), explain(parts, best), strict=True
            )
        ]
