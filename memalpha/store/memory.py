"""`Memory`: the interface that writers and readers use of any store; `WorkingMemory` has it without a database.

Rollouts write into a `WorkingMemory`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import wraps
from html import escape
from itertools import islice
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from memalpha.arguments import check_count, check_texts, check_type, name_errors
from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownCategory, UnknownEntry
from memalpha.store.embedding import CheckedEmbedder, Embedder, load_cross_encoder
from memalpha.store.fields import UPDATE_FIELDS, check_text, check_timestamp, complete_update, merge_into
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.store.schema import MemorySchema
from memalpha.store.search.answer_spans import find_answers
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.search.lexical import split_passages
from memalpha.store.search.ranking import SEARCH_KEYWORDS, Boost, Reranker, Route, SearchOptions
from memalpha.store.state import Change, MemoryState, plan
from memalpha.types import Hit, MemoryEntry, Operation

P = ParamSpec("P")
R = TypeVar("R")

MAX_CELL = 200  # characters of a table's cell
_RERANKED = 50  # hits that a reranker scores, or as many as are asked for
_READ = 20  # hits that the reranker "spans" reads
_CHANCE_WEIGHT = 0.75  # of the root of the chance that a hit answers (`eval/results/retrieval-pools.md`)


_USER = "each user has a namespace: store.namespace(USER)"
_KEYWORDS_ELSEWHERE = {
    **dict.fromkeys(("user_id", "agent_id", "run_id", "session_id", "namespace"), _USER),
    **dict.fromkeys(("filter", "filters"), "filters on fields and metadata are where={'key': value}"),
    **dict.fromkeys(("limit", "top_k", "n_results"), "the number of results is k= in search, limit= in list"),
    "threshold": "the lowest score is min_score=",
    "infer": "add keeps a text as it is; MemoryAgent(MODEL, store).read(TEXT) extracts facts",
}
"""What to use here, by a keyword of other memory libraries."""


def refuse_other_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method: a keyword of other libraries raises a `TypeError` that names ours."""
    elsewhere = _KEYWORDS_ELSEWHERE.keys() - inspect.signature(method).parameters.keys()

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if name := min(elsewhere & kwargs.keys(), default=""):
            raise TypeError(f"{method.__name__}() has no argument {name!r}: {_KEYWORDS_ELSEWHERE[name]}")
        return method(*args, **kwargs)

    @wraps(method)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await cast(Any, checked(*args, **kwargs))

    return cast(Any, awaited) if inspect.iscoroutinefunction(method) else checked


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that a notebook shows, as HTML, everything escaped.

    Args:
        title: Caption.
        header: Names of the columns.
        rows: Cells by row: a float has three decimals, None is empty, a text is cut after `MAX_CELL` characters.
    """

    def cell(value: object) -> str:
        text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        return escape(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")

    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Hits(list[Hit]):
    """Hits of one query, best first: a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [(hit.score, hit.entry.category, hit.entry.content, hit.entry.timestamp) for hit in self]
        return html_table(f"{len(rows)} hits", ("score", "category", "content", "timestamp"), rows)


def _rerank(query: str, hits: Sequence[Hit], reranker: Reranker | str) -> list[Hit]:
    """Sort hits by a reranker's scores, best first.

    Args:
        query: Query of the search.
        hits: Hits, best first. Of a long entry the best passage is scored.
        reranker: Called with the query and the texts, returns a score for each; or the directory or hub name of a
            sentence-transformers cross-encoder. "spans" adds to the score of the first 20 hits what two small networks
            say of the chance that each answers the query (`search.answer_spans`).

    Returns:
        Hits with the reranker's score; `explain` has it as "rerank". Equal scores keep their order.

    Raises:
        StoreError: The reranker raised, or returned something else than a finite number for each text.
        EmbedderError: The cross-encoder cannot be loaded.
    """
    if not hits:
        return []
    texts = [hit.passage or hit.entry.content for hit in hits]
    with name_errors("reranker: it raised, or returned no numbers:", StoreError):  # it may raise anything
        if reranker == "spans":
            chances = [span.chance for span in find_answers(query, texts[:_READ])] + [0.0] * len(texts[_READ:])
            scores = [hit.score + _CHANCE_WEIGHT * chance**0.5 for hit, chance in zip(hits, chances, strict=True)]
        else:
            score = load_cross_encoder(reranker) if isinstance(reranker, str) else reranker
            scores = [float(value) for value in score(query, texts)]
    if len(scores) != len(hits) or not all(map(math.isfinite, scores)):
        raise StoreError(f"reranker: a finite number for each of {len(hits)} texts is needed, {len(scores)} came")
    reranked = [
        replace(hit, score=value, explain={**hit.explain, "rerank": value})
        for hit, value in zip(hits, scores, strict=True)
    ]
    return sorted(reranked, key=lambda hit: -hit.score)


class Memory(ABC):
    """Interface of a memory that can be written, read and searched.

    `WorkingMemory` and `MemoryStore` implement it. All writing methods rest on one abstract method, `change`.

    Attributes:
        schema: Categories of the memory.
        embedder: Name of the embedder that searches use.
    """

    schema: MemorySchema
    embedder: str

    @abstractmethod
    def load_embedder(self) -> Embedder:
        """Return the embedder that its searches use."""

    @property
    @abstractmethod
    def core(self) -> str:
        """Core memory text; "" without one."""

    @property
    @abstractmethod
    def state(self) -> MemoryState:
        """Current memory as an immutable value."""

    @abstractmethod
    def change(self, operation: Operation) -> Change:
        """Apply one operation, completely or not at all. Raises `StoreError` if the rules refuse it."""

    @abstractmethod
    def get(self, id: str) -> MemoryEntry:
        """Return a live entry. Raises `UnknownEntry`."""

    @abstractmethod
    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the oldest live entry of the category with exactly this content, or None."""

    @abstractmethod
    def list(self, category: str | None = None, *, where: Where = None) -> list[MemoryEntry]:
        """Return the live entries, oldest id first, filtered by `category` and `where` (see `filters`)."""

    @abstractmethod
    def recent(self, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last (inserted or updated), newest first.

        The cost depends on `n` and on deletes since then, not on the size of the memory.
        """

    @abstractmethod
    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the log position that created each id; `list` is in this order."""

    @refuse_other_keywords
    def search(
        self,
        query: str,
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
        as_of: int | str | None = None,
        around: int = 0,
        exact: bool = False,
        weights: Mapping[str, float] | None = None,
        min_score: float | None = None,
        vector: Sequence[float] | np.ndarray | None = None,
        reranker: Reranker | str | None = None,
    ) -> list[Hit]:
        """Return the best live entries, best first.

        With `category` and `where`, the result equals the search of a memory that holds only the matching entries.

        Args:
            query: Text to search for.
            k: Number of hits at most.
            category: Search this category only.
            where: Filter on fields and metadata (see `filters`).
            route: How the two layers combine (see `search.ranking`); "soft" adds the group score as a prior.
            boost: Weights of importance and recency that are added to the scores.
            as_of: Log position or ISO time; the result equals a search at that moment. Only a `MemoryStore` has a past.
            around: Tokens of raw text to return around each hit (see `MemoryStore.around`); 0 returns none.
            exact: Score every entry. By default, a `MemoryStore` above 50,000 entries scores likely candidates only.
            weights: Weights of the parts "dense", "bm25", "group", "category" (1 by default), "role" (.3) and
                "question" (.15), which raw turns lose that an assistant said, and that ask, in routes that add them.
            min_score: Return only hits with at least this score. Scores of routes that add parts are relative to the
                other entries; those of "dense" and "bm25" are not.
            vector: Embedding of the query, instead of the embedder's; scaled to length 1.
            reranker: Sorts the first `max(k, 50)` hits anew: a function of the query and a list of texts that returns
                their scores, or the name of a sentence-transformers cross-encoder. "spans" is ours: two small networks
                read the first 20 hits beside the query, which takes 10 to 50 ms.

        Raises:
            UnknownCategory: The schema has no such category.
            StoreError: An option is invalid, or this kind of memory lacks it.
        """
        options = SearchOptions(
            k,
            category=category,
            where=where,
            route=route,
            boost=boost,
            as_of=as_of,
            around=around,
            exact=exact,
            weights=weights,
            min_score=min_score,
            vector=vector,
            reranker=reranker,
        )
        check_type("query", query, str)
        return Hits(self._search_all([query], options)[0])

    @refuse_other_keywords
    def search_many(self, queries: Sequence[str], k: int = 10, **options: Any) -> list[list[Hit]]:
        """Search for several queries, embedded in one batch.

        Args:
            queries: One list of hits is returned for each.
            k: Number of hits of each query at most.
            **options: Further arguments of `search`.
        """
        queries = check_texts("queries", queries)
        if unknown := options.keys() - SEARCH_KEYWORDS:
            raise TypeError(f"search_many() got an unexpected keyword argument {min(unknown)!r}")
        return self._search_all(queries, SearchOptions(k, **options))

    def _search_all(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        """Return the hits of each query, with their passages and in the reranker's order."""
        if options.category is not None:
            self.schema.check_category(options.category)
        first_options = options if options.reranker is None else replace(options, k=max(options.k, _RERANKED))
        results = self._search(queries, first_options)
        for hits in results:
            for index, hit in enumerate(hits):
                if "passage" in hit.explain:
                    passage = split_passages(hit.entry.content)[int(hit.explain["passage"])]
                    hits[index] = replace(hit, passage=passage)
        if options.reranker is None:
            return results
        return [
            _rerank(query, hits, options.reranker)[: options.k] for query, hits in zip(queries, results, strict=True)
        ]

    @abstractmethod
    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        """Return the hits of each query."""

    def _filter(self, category: str | None, where: Where) -> Filter | None:
        """Combine `category` and `where` into one filter; None matches everything.

        Raises `UnknownCategory` or `StoreError`.
        """
        if category is not None:
            self.schema.check_category(category)
        return None if where is None and category is None else parse_filter(where, category=category)

    def apply(self, operation: Operation) -> Operation:
        """Apply one operation and return it complete, as logged. Raises `StoreError` (see `state.plan`)."""
        return self.change(operation).operation

    @abstractmethod
    def apply_all(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """Apply operations in order, all of them or, if the rules refuse one, none.

        Inside a `MemoryStore.transaction` those before a refused one stay.

        Args:
            operations: Operations as requested.

        Returns:
            The operations as logged.

        Raises:
            StoreError: The rules refuse one (see `state.plan`), or the store failed.
        """

    def apply_each(self, operations: Sequence[Operation]) -> list[Operation | StoreError]:
        """Apply operations in order, each alone; a `MemoryStore` writes inserts together, which costs far less.

        Args:
            operations: Operations as requested.

        Returns:
            For each operation what `apply` returns, or the error with which the rules refuse it.

        Raises:
            StoreError: The store failed.
        """
        outcomes: list[Operation | StoreError] = []
        for operation in operations:
            try:
                outcomes.append(self.apply(operation))
            except (DuplicateContent, InvalidContent, UnknownCategory, UnknownEntry) as error:
                outcomes.append(error)
        return outcomes

    @refuse_other_keywords
    def insert(
        self,
        category: str,
        content: str,
        *,
        timestamp: str | None = None,
        importance: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
        expires: str | None = None,
    ) -> MemoryEntry:
        """Store a fact. A fact that the memory states already is not stored again.

        The same fact has the same category, content, metadata and expiry. Events (categories in `schema.events`) and
        raw spans also need the same timestamp, source, chunk and turn. For the same fact, the existing entry is
        returned unchanged. `apply(Operation("insert", ...))` raises `DuplicateContent` instead.

        Args:
            category: Name of a category of the schema.
            content: Text of the fact; outer whitespace is removed.
            timestamp: ISO 8601 date or time at which the fact held or the event happened.
            importance: Any finite number; `boost` can weigh it in a search.
            metadata: Mapping of JSON values.
            source: Conversation or document that stated the fact.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk. An entry with a turn is a raw span.
            expires: ISO 8601 time (UTC unless it says otherwise) from which a `MemoryStore` hides the entry.
                Other memories have no clock and keep it.

        Raises:
            UnknownCategory: The schema has no such category.
            InvalidContent: The content is empty, or a field cannot be stored.
        """
        operation = Operation(
            "insert", None, category, content, timestamp, importance, metadata, source, chunk, turn, expires
        )
        try:
            return self.change(operation).made
        except DuplicateContent as duplicate:
            return self.get(duplicate.entry_id)

    @refuse_other_keywords
    def add(self, content: str, *, category: str | None = None, **fields: Any) -> MemoryEntry:
        """Store a fact in the schema's default category, as `insert` does.

        Args:
            content: Text of the fact; outer whitespace is removed.
            category: Name of a category; default: `schema.default_category`.
            **fields: Further arguments of `insert`, such as `timestamp` or `metadata`.

        Returns:
            The entry; for an exact duplicate, the existing one.

        Raises:
            UnknownCategory: The schema has no such category.
            InvalidContent: The content is empty, or a field cannot be stored.
        """
        return self.insert(self.schema.default_category if category is None else category, content, **fields)

    @refuse_other_keywords
    def upsert(self, key: str, content: str, *, category: str | None = None, **fields: Any) -> MemoryEntry:
        """Store a fact under a key of your own, or replace what the key holds.

        The key is the entry's id, so `get`, `update`, `delete` and `history` take it. A deleted key comes back with its
        next version.

        Args:
            key: 1 to 128 characters without whitespace, such as "user-7:city".
            content: Text of the fact; outer whitespace is removed.
            category: Name of a category; default: that of the key's entry, or `schema.default_category` for a new one.
            **fields: Further arguments of `insert` for a new key; of `update` for one that is there, where a field
                that is left out keeps its value and a new content clears the timestamp.

        Returns:
            The entry, unchanged if it says exactly this already.

        Raises:
            StoreError: The key's entry has another category.
            UnknownCategory: The schema has no such category.
            InvalidContent: The key cannot be an id, the content is empty, or a field cannot be stored.
            TypeError: `insert` has no such argument.
        """
        if unknown := fields.keys() - {*UPDATE_FIELDS}:
            raise TypeError(f"upsert() got an unexpected keyword argument {min(unknown)!r}")
        check_text("key", key)  # None would be an id of the store's making, so another entry each time
        with self.exclusive():  # no other writer between reading the key and writing it
            if category is not None:
                self.schema.check_category(category)
            try:
                current = self.get(key)
            except UnknownEntry:
                category = category or self.schema.default_category
                fields["metadata"] = merge_into({}, fields.get("metadata"), fields.pop("merge_metadata", False))
                return self.change(Operation("insert", id=key, category=category, content=content, **fields)).made
            if category not in (None, current.category):
                raise StoreError(f"key {key!r} holds an entry of category {current.category!r}, not {category!r}")
            try:
                return self.update(key, content, **fields)
            except DuplicateContent:  # it says exactly this already
                return self.get(key)

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return a block in which nobody else writes."""
        return nullcontext()

    @refuse_other_keywords
    def update(
        self,
        id: str,
        content: str | None = None,
        *,
        timestamp: str | None = None,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
        expires: str | None = None,
        merge_metadata: bool = False,
    ) -> MemoryEntry:
        """Replace the content of an entry: same id, next version.

        A field that is None keeps its value, with two exceptions. The origin (`source`, `chunk`, `turn`) is always
        that of this update. Changing the content clears the timestamp unless you pass a new one.

        Args:
            id: Id of a live entry.
            content: New text; outer whitespace is removed. None keeps the text.
            timestamp: ISO 8601 date or time; "" clears it.
            importance: Any finite number.
            metadata: Mapping of JSON values; replaces the old one.
            source: Conversation or document that stated the fact.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk.
            expires: ISO 8601 time; "" clears it.
            merge_metadata: Set the keys of `metadata` and keep the others; a key whose value is None is removed.

        Raises:
            UnknownEntry: No live entry has the id.
            InvalidContent: The content is empty, or a field cannot be stored.
            DuplicateContent: Only the origin would change.
        """
        update = Operation("update", id, None, content, timestamp, importance, metadata, source, chunk, turn, expires)
        # What depends on the old version must be read where nobody else writes.
        with self.exclusive() if content is None or merge_metadata else nullcontext():
            current = self.get(id)
            return self.change(complete_update(update, current, merge_metadata=merge_metadata)).made

    def delete(
        self, id: str, *, source: str | None = None, chunk: int | None = None, turn: str | None = None
    ) -> MemoryEntry:
        """End an entry and return its last version, with `valid_to` set.

        Args:
            id: Id of a live entry.
            source: Conversation or document that caused the deletion.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk.

        Raises:
            UnknownEntry: No live entry has the id.
        """
        ended = self.change(Operation("delete", id=id, source=source, chunk=chunk, turn=turn)).ended
        assert ended is not None
        return ended

    def core_update(
        self, text: str, *, source: str | None = None, chunk: int | None = None, turn: str | None = None
    ) -> None:
        """Replace the core memory text; "" clears it.

        Args:
            text: New text, within the token limit of the schema.
            source: Conversation or document that caused the change.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk.

        Raises:
            InvalidContent: The text is over the limit.
        """
        self.change(Operation("core_update", content=text, source=source, chunk=chunk, turn=turn))


class WorkingMemory(Memory):
    """Searchable memory over a `MemoryState`, without a database.

    `state` is an immutable value. So a snapshot, or a second memory that starts from it, costs nothing. Nothing is
    embedded or indexed before the first search.
    """

    def __init__(self, state: MemoryState, embedder: Embedder) -> None:
        self._state, self.schema = state, state.schema
        self._embedder = embedder if isinstance(embedder, CheckedEmbedder) else CheckedEmbedder(embedder)
        self.embedder = self._embedder.name
        self._corpus: Corpus | None = None
        self._write_order: dict[str, None] | None = None  # live ids in write order; built by the first `recent`

    def load_embedder(self) -> Embedder:
        return self._embedder

    @property
    def core(self) -> str:
        return self._state.core

    @property
    def state(self) -> MemoryState:
        return self._state

    def change(self, operation: Operation) -> Change:
        check_timestamp(operation.timestamp)
        change = plan(self._state, operation, self._state.position + 1)
        state = self._state.advance(change)
        corpus, self._corpus = self._corpus, None  # cleared while it changes: after an interrupt it is rebuilt
        order, self._write_order = self._write_order, None  # likewise
        self._state = state
        if order is not None:
            if change.ended is not None:
                del order[change.ended.id]
            if change.entry is not None:
                order[change.entry.id] = None
        if corpus is not None:
            if change.entry is not None:
                corpus.add_many([Document.from_entry(change.entry, state.creation_position(change.entry.id))])
            elif change.ended is not None:
                corpus.remove(change.ended.id)
        self._corpus, self._write_order = corpus, order
        return change

    def apply_all(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        state = self._state
        for operation in operations if len(operations) > 1 else ():  # refused before anything has changed
            check_timestamp(operation.timestamp)
            state = state.apply(operation)
        return tuple(self.apply(operation) for operation in operations)

    def get(self, id: str) -> MemoryEntry:
        return self._state.get(id)

    def list(self, category: str | None = None, *, where: Where = None) -> list[MemoryEntry]:
        entry_filter = self._filter(None, where)
        return [entry for entry in self._state.list(category) if entry_filter is None or entry_filter.matches(entry)]

    def recent(self, n: int) -> list[MemoryEntry]:
        n = check_count("n", n)
        if self._write_order is None:
            entries = sorted(self._state.entries.values(), key=lambda entry: entry.valid_from)
            self._write_order = dict.fromkeys(entry.id for entry in entries)
        return [self._state.get(id) for id in islice(reversed(self._write_order), n)]

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: self._state.creation_position(id) for id in ids}

    def find(self, category: str, content: str) -> MemoryEntry | None:
        return self._state.find(category, content)

    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        if options.as_of is not None or options.around:
            raise StoreError("as_of and around: only a MemoryStore keeps past states and the order of raw text")
        vectors = options.query_vectors(len(queries), self._embedder.dim)
        corpus, self._corpus = self._corpus, None
        if corpus is None:
            state = self._state
            documents = (Document.from_entry(entry, state.creation_position(id)) for id, entry in state.entries.items())
            descriptions = self._state.schema.category_texts
            corpus = Corpus(self._embedder, documents, lambda: self._state.entries.values(), descriptions=descriptions)
        results = corpus.search_many(queries, options, vectors)
        self._corpus = corpus
        return [[Hit(self._state.get(id), score, explain) for id, score, explain in hits] for hits in results]
