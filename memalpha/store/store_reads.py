"""`StoreReader`: what a durable store answers: entries, searches, history, log and past states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace_reads import LogEnd
from memalpha.store.embedding import Embedder
from memalpha.store.filters import Where
from memalpha.store.history import Diff
from memalpha.store.indexing.context import surrounding_spans
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.memory import Memory
from memalpha.store.open import open_index, open_namespace
from memalpha.store.schema import MemorySchema
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import Route
from memalpha.store.search.vectors import Precision
from memalpha.store.state import MemoryState
from memalpha.types import Hit, MemoryEntry, Operation

_PAGE = 1000


class StoreReader(Memory):
    """Reads of one namespace of a durable store. `MemoryStore` adds opening, writing and erasing.

    `as_of` in `get`, `list`, `search` and `core_at` is a log position (`snapshot`) or an ISO time (UTC unless it says
    otherwise) and means the memory after the operations up to and including it.
    """

    def __init__(
        self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str, vectors: Precision
    ) -> None:
        if not isinstance(namespace, str) or not namespace:
            raise StoreError(f"namespace {namespace!r}: a non-empty text is needed")
        self._database = database
        self._embedder = embedder
        self._namespace = open_namespace(database, namespace, schema)
        self._precision: Precision = vectors
        self._index = open_index(self._namespace, embedder, vectors)

    @property
    def path(self) -> str:
        """Where it lies: the file's path, ":memory:", or the URL without its password."""
        return self._database.path

    @property
    def schema(self) -> MemorySchema:
        """The schema recorded in the file."""
        return self._namespace.schema

    @property
    def embedder(self) -> str:
        """The name of the embedder recorded in the file."""
        return self._embedder.name

    def load_embedder(self) -> Embedder:
        """Return the embedder that searches use.

        Raises:
            StoreError: The recorded name is not a shipped one, and `open` was given no embedder.
            EmbedderError: The embedder cannot be loaded.
        """
        return self._embedder.load()

    @property
    def core(self) -> str:
        """The core memory text; "" where there is none."""
        return self.core_at(None)

    @property
    def state(self) -> MemoryState:
        """The memory as it is now, as a value: the state that replaying the log gives."""
        with self._transaction():
            position = self._namespace.position
            return MemoryState.from_entries(
                self.schema, self._namespace.core_at(position), position, self._namespace.latest_versions()
            )

    def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """A live entry, or as it was at `as_of`; raises `UnknownEntry`."""
        with self._transaction():
            entry = self._namespace.version_at(id, self._namespace.resolve_as_of(as_of))
        if entry is None:
            raise UnknownEntry(f"no live entry has the id {id!r}" + ("" if as_of is None else f" as of {as_of!r}"))
        return entry

    def core_at(self, as_of: int | str | None) -> str:
        """The core memory text as it was at `as_of` (None: now); "" where there was none."""
        with self._transaction():
            return self._namespace.core_at(self._namespace.resolve_position(as_of))

    def list(
        self,
        category: str | None = None,
        *,
        where: Where = None,
        limit: int | None = None,
        after: str | None = None,
        as_of: int | str | None = None,
    ) -> list[MemoryEntry]:
        """The live entries, oldest id first; of one `category`, or those that pass `where` (see `filters`). `limit`
        and `after` (the id that ended the last page) give pages.

        Raises `UnknownCategory`, `UnknownEntry` for an `after` that was never an id, or `StoreError`.
        """
        entry_filter = self._filter(category, where)
        if limit is not None and limit < 0:
            raise StoreError(f"limit {limit}: 0 or more is needed")
        with self._transaction():
            if after is not None and self._namespace.latest_version(after) is None:
                raise UnknownEntry(f"after: no entry ever had the id {after!r}")
            position, matches = self._namespace.resolve_as_of(as_of), []
            if where is None:
                return self._namespace.live_entries(category, after=after, limit=limit, position=position)
            while limit is None or len(matches) < limit:
                page = self._namespace.live_entries(category, after=after, limit=_PAGE, position=position)
                matches += [entry for entry in page if entry_filter is None or entry_filter.matches(entry)]
                if len(page) < _PAGE:
                    break
                after = page[-1].id
            return matches[:limit]

    def recent(self, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last (inserted or updated), newest first."""
        with self._transaction() as log_end:
            return self._namespace.recent(log_end.position, n)

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the log position that created each id; `list` is in this order."""
        with self._transaction():
            return self._namespace.creation_positions(ids)

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content (outer whitespace aside), or None."""
        with self._transaction():
            return self._namespace.find(category, content.strip())

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
    ) -> list[Hit]:
        """The k best live entries, best first; see `retrieval` for the routes. With `category` and `where` (see
        `filters`): exactly what a memory of only the entries that pass would give. `boost` adds importance and recency.
        `as_of`: over the entries of that moment, exactly what searching then would have given. `around`: each hit has
        the raw text around it, as the method gives it for that many tokens. A search of more than 50,000 entries looks
        at likely ones alone (see `approximate`), unless it is `exact`."""
        return self.search_many(
            [query],
            k,
            category=category,
            where=where,
            route=route,
            boost=boost,
            as_of=as_of,
            around=around,
            exact=exact,
        )[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
        as_of: int | str | None = None,
        around: int = 0,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """`search` for several queries, embedded in one batch."""
        entry_filter, query_vectors = self._filter(category, where), None
        if len(queries) == 1 and route != "bm25":  # one question is hardly a stored text, whose vector is in the file
            query_vectors = self._embedder.load().encode(queries)
        with self._transaction() as log_end:
            position = self._namespace.resolve_as_of(as_of)
            results = self._index.search(
                log_end.position,
                position,
                queries,
                k,
                route=route,
                where=entry_filter,
                boost=boost,
                exact=exact,
                vectors=query_vectors,
            )
            entries = {hit.id: hit.entry for hits in results for hit in hits if hit.entry is not None}
            entries |= self._namespace.versions_at(
                list({hit.id for hits in results for hit in hits} - entries.keys()), position
            )
            context = {id: tuple(surrounding_spans(self._namespace, id, around, position)) for id in entries if around}
        return [
            [Hit(entries[id], score, parts, context.get(id, ())) for id, score, parts, _ in hits] for hits in results
        ]

    def around(self, id: str, tokens: int = 200, *, as_of: int | str | None = None) -> list[MemoryEntry]:
        """The raw text around an entry: spans of its `source` (they have a `turn`), by `chunk` and then as stored, an
        unbroken run of at most `tokens` (characters / 4); see `around.surroundings`. Raises `UnknownEntry`."""
        with self._transaction():
            return surrounding_spans(self._namespace, id, tokens, self._namespace.resolve_as_of(as_of))

    def build_index(self) -> None:
        """Make ready what searches need, and save it beside the file; after many inserts, so that the next process
        starts at once. Searches do the same by themselves, in the background where it takes long."""
        with self._transaction() as log_end:
            self._index.build(log_end.position)
        self._index.save()

    def history(self, id: str) -> list[MemoryEntry]:
        """All versions of an entry, oldest first, whether it lives or not; raises `UnknownEntry`."""
        with self._transaction():
            if versions := self._namespace.history(id):
                return versions
        raise UnknownEntry(f"no entry ever had the id {id!r}")

    def log(self, after: int = 0) -> Iterator[tuple[int, str, Operation]]:
        """The operations beyond position `after`: position, time (ISO, UTC), operation as applied."""
        return ((position, time, operation) for position, time, _, operation in self._log_rows(after))

    def snapshot(self) -> int:
        """The log position, for `restore` and `as_of`. It costs nothing and never expires."""
        with self._transaction():
            return self._namespace.position

    def diff(self, a: int | str, b: int | str | None = None) -> Diff:
        """What changed from the state as of `a` to that as of `b` (now): entries added, changed and removed, core text.

        Positions or times, as in `as_of`; `b` may be the earlier one.
        """
        with self._transaction():
            return timeline.diff_positions(
                self._namespace, self._namespace.resolve_position(a), self._namespace.resolve_position(b)
            )

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[LogEnd]:
        """A transaction on the memory as it is by the store's clock, and the log's end: what has expired is ended
        first, in the log too, at the time it was to expire."""
        if not write:
            with self._namespace.transaction(write=False):
                log_end = self._namespace.log_end()
                if not self._has_expired_entries(log_end):
                    yield log_end
                    return
            with self._namespace.transaction():
                self._end_expired()
        with self._namespace.transaction(write=write):
            yield self._end_expired() if write else self._namespace.log_end()

    def _has_expired_entries(self, log_end: LogEnd) -> bool:
        """Whether something live has expired."""
        return log_end.next_expiry is not None and log_end.next_expiry <= self._database.now()

    def _end_expired(self) -> LogEnd:
        """The log's end, after everything that has expired was ended. Inside a transaction that writes."""
        log_end = self._namespace.log_end()
        if self._has_expired_entries(log_end):
            timeline.expire_entries(self._namespace, self._namespace.expired_entries(self._database.now()))
            log_end = self._namespace.log_end()
        return log_end

    def _log_rows(self, after: int) -> Iterator[tuple[int, str, int, Operation]]:
        """The log in pages, so that a reader who stops half-way holds nothing open."""
        while True:
            with self._transaction():
                page = self._namespace.log(after, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _embed(self, contents: Sequence[str]) -> dict[str, np.ndarray]:
        """Embeddings by content."""
        vectors = StoredEmbedder(self._namespace, self._embedder.load()).encode(contents)
        return dict(zip(contents, vectors, strict=True))
