"""`StoreReader`: the reading half of `MemoryStore`: entries, searches, history, log and past states."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from memalpha.arguments import brief_repr, check_count, check_texts, check_type
from memalpha.errors import InvalidContent, StoreError, UnknownEntry, UnknownFieldWarning
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend
from memalpha.store.backends.operation_log import LogEnd, check_clock
from memalpha.store.embedding import Embedder
from memalpha.store.filters import FIELDS, Filter, Where, filter_fields
from memalpha.store.history import Diff
from memalpha.store.indexing.context import surrounding_spans
from memalpha.store.indexing.namespace_index import NamespaceIndex
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.memory import Memory
from memalpha.store.open import open_namespace
from memalpha.store.schema import MemorySchema
from memalpha.store.search.options import SearchOptions
from memalpha.store.state import MemoryState
from memalpha.store.validation import MAX_CONTENT, is_text
from memalpha.types import Hit, MemoryEntry, Operation

if TYPE_CHECKING:
    from pandas import DataFrame

_PAGE = 1000
_FEW = 5000  # matches of a filter that are sorted rather than read page by page
_MAX_KNOWN_FIELDS = 1000  # after so many, filters are checked no more


class StoreReader(Memory):
    """Reads of one namespace of a durable store. `MemoryStore` adds opening, writing and erasing.

    `as_of` is a log position (see `snapshot`) or an ISO time (UTC unless it says otherwise). It means the memory after
    all operations up to and including it; None means now.
    """

    def __init__(self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str) -> None:
        self._database = database
        self._embedder = embedder
        self._namespace = open_namespace(database, namespace, schema)
        self._max_content = MAX_CONTENT
        self._known_fields: set[str] = set()  # metadata keys that filters may name without a warning
        self._index = NamespaceIndex(self._namespace, embedder, schema.category_texts)

    @property
    def path(self) -> str:
        """Path of the file, ":memory:", or the URL without its password."""
        return self._database.path

    @property
    def max_content(self) -> int:
        """Bytes (UTF-8) of a content at most."""
        return self._max_content

    @property
    def schema(self) -> MemorySchema:
        return self._namespace.schema

    @property
    def namespace_name(self) -> str:
        """Name of the namespace."""
        return self._namespace.name

    @property
    def embedder(self) -> str:
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
        return self.core_at(None)

    @property
    def state(self) -> MemoryState:
        with self._transaction():
            position = self._namespace.log.position
            entries = self._namespace.entries
            return MemoryState.from_entries(
                self.schema,
                self._namespace.log.core_at(position),
                position,
                entries.latest_versions(),
                has_erasure=entries.has_erasure(),
            )

    def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """Return a live entry, or its version at `as_of`. Raises `UnknownEntry`."""
        with self._transaction():
            entry = self._namespace.entries.version_at(id, self._namespace.log.resolve_as_of(as_of))
        if entry is None:
            raise UnknownEntry(
                f"no live entry has the id {brief_repr(id)}" + ("" if as_of is None else f" as of {as_of!r}")
            )
        return entry

    def core_at(self, as_of: int | str | None) -> str:
        """Return the core memory text at `as_of` (None: now); "" without one."""
        with self._transaction():
            return self._namespace.log.core_at(self._namespace.log.resolve_position(as_of))

    def list(
        self,
        category: str | None = None,
        *,
        where: Where = None,
        limit: int | None = None,
        after: str | None = None,
        as_of: int | str | None = None,
    ) -> list[MemoryEntry]:
        """Return the live entries, oldest id first.

        Args:
            category: Entries of this category only.
            where: Filter on fields and metadata (see `filters`).
            limit: Number of entries at most; None returns all.
            after: Id of the last entry of the previous page.
            as_of: Log position or ISO time; None means now.

        Raises:
            UnknownCategory: The schema has no such category.
            UnknownEntry: No entry ever had the id `after`.
            StoreError: `where`, `limit` or `as_of` is invalid.
        """
        entry_filter = self._filter(category, where)
        if limit is not None:
            check_count("limit", limit)
        with self._transaction() as log_end:
            if after is not None and self._namespace.entries.latest_version(after) is None:
                raise UnknownEntry(f"after: no entry ever had the id {brief_repr(after)}")
            position = self._namespace.log.resolve_as_of(as_of)
            if where is None or entry_filter is None:
                return self._namespace.entries.live(category, after=after, limit=limit, position=position)
            ids = self._index.matching_ids(log_end.position, entry_filter) if position is None else None
            if ids is not None and (len(ids) <= _FEW or limit is None):
                if not ids:
                    self._warn_of_unknown_fields(entry_filter)
                return self._namespace.entries.live_by_creation(ids, after=after, limit=limit)
            matches = self._namespace.entries.matching(
                entry_filter, category, after=after, limit=limit, position=position
            )
            if not matches and limit != 0 and as_of is None:
                self._warn_of_unknown_fields(entry_filter)
            return matches

    def get_many(self, ids: Iterable[str], *, as_of: int | str | None = None) -> dict[str, MemoryEntry]:
        """Return live entries by id, in the order of `ids`; ids that are not live are left out.

        Args:
            ids: Ids of entries.
            as_of: Log position or ISO time; None means now.
        """
        ids = list(dict.fromkeys(check_texts("ids", ids)))
        with self._transaction():
            position = self._namespace.log.resolve_as_of(as_of)
            entries = self._namespace.entries.versions_at([id for id in ids if is_text(id)], position)
        return {id: entries[id] for id in ids if id in entries}

    def count(self, category: str | None = None, *, where: Where = None, as_of: int | str | None = None) -> int:
        """Return the number of live entries.

        Args:
            category: Count entries of this category only.
            where: Count entries that pass this filter only (see `filters`).
            as_of: Log position or ISO time; None means now.

        Raises:
            UnknownCategory: The schema has no such category.
            StoreError: `where` or `as_of` is invalid.
        """
        entry_filter = self._filter(category, where)
        with self._transaction() as log_end:
            position = self._namespace.log.resolve_as_of(as_of)
            if where is None or entry_filter is None:
                return self._namespace.entries.count(category, position)
            ids = self._index.matching_ids(log_end.position, entry_filter) if position is None else None
            return len(self.list(category, where=where, as_of=as_of) if ids is None else ids)

    def to_pandas(
        self, category: str | None = None, *, where: Where = None, as_of: int | str | None = None
    ) -> DataFrame:
        """Return the live entries as a pandas table, a row each, oldest id first.

        Args:
            category: Entries of this category only.
            where: Filter on fields and metadata (see `filters`).
            as_of: Log position or ISO time; None means now.

        Raises:
            StoreError: pandas is not installed, or an argument is invalid as in `list`.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise StoreError(f"to_pandas needs pandas ({error}): pip install pandas") from error
        entries = [entry.to_dict() for entry in self.list(category, where=where, as_of=as_of)]
        return DataFrame(entries, columns=list(MemoryEntry.__dataclass_fields__))

    def recent(self, n: int) -> list[MemoryEntry]:
        check_count("n", n)
        with self._transaction() as log_end:
            return self._namespace.recent(log_end.position, n)

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        with self._transaction():
            return self._namespace.entries.creation_positions(check_texts("ids", ids))

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the live entry of the category with exactly this content, or None.

        Outer whitespace is ignored.
        """
        check_type("content", content, str, error=InvalidContent)
        if not is_text(content):  # nothing can hold it
            return None
        with self._transaction():
            return self._namespace.entries.find(category, content.strip())

    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        query_vectors = options.query_vectors(len(queries), self._embedder.dim)
        # A query is rarely a stored text, so skip the lookup of its vector.
        if query_vectors is None and len(queries) == 1 and options.route != "bm25":
            query_vectors = self._embedder.load_checked().encode(queries)
        with self._transaction() as log_end:
            position = self._namespace.log.resolve_as_of(options.as_of)
            results = self._index.search(log_end.position, position, queries, options, query_vectors)
            entries = self._namespace.entries.versions_at(list({hit.id for hits in results for hit in hits}), position)
            if not entries and options.k and options.as_of is None:
                self._warn_of_unknown_fields(options.filter)
            tokens = options.around
            context = {id: tuple(surrounding_spans(self._namespace, id, tokens, position)) for id in entries if tokens}
        return [[Hit(entries[id], score, parts, context.get(id, ())) for id, score, parts in hits] for hits in results]

    def around(self, id: str, tokens: int = 200, *, as_of: int | str | None = None) -> list[MemoryEntry]:
        """Return the raw text around an entry: spans of its `source`, by `chunk` and insertion order.

        Spans are entries with a `turn`. They form an unbroken run of at most `tokens` tokens (characters / 4).

        Args:
            id: Id of an entry that is live at `as_of`.
            tokens: Length of the run at most.
            as_of: Log position or ISO time; None means now.

        Raises:
            UnknownEntry: No such entry is live.
        """
        check_count("tokens", tokens)
        with self._transaction():
            return surrounding_spans(self._namespace, id, tokens, self._namespace.log.resolve_as_of(as_of))

    def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first, also of a deleted one. Raises `UnknownEntry`."""
        with self._transaction():
            if versions := self._namespace.entries.history(id):
                return versions
        raise UnknownEntry(f"no entry ever had the id {brief_repr(id)}")

    def history_many(self, ids: Iterable[str]) -> dict[str, list[MemoryEntry]]:
        """Return all versions of several entries by id, as `history` does; ids that were never used are left out.

        500 entries are read in one statement.
        """
        ids = list(dict.fromkeys(check_texts("ids", ids)))
        with self._transaction():
            versions = self._namespace.entries.histories(ids)
        return {id: versions[id] for id in ids if id in versions}

    def log(self, after: int = 0) -> Iterator[tuple[int, str, Operation]]:
        """Iterate over the operations after a position: position, time (ISO, UTC), operation as applied."""
        check_count("after", after)
        return ((position, time, operation) for position, time, _, operation in self._log_rows(after))

    def snapshot(self) -> int:
        """Return the current log position, for `restore` and `as_of`. It costs nothing and never expires."""
        with self._transaction():
            return self._namespace.log.position

    def diff(self, a: int | str, b: int | str | None = None) -> Diff:
        """Return the entries added, changed and removed between `a` and `b` (now), and the core text.

        Both are positions or times, as in `as_of`; `b` may be the earlier one.
        """
        with self._transaction():
            return timeline.diff_positions(
                self._namespace, self._namespace.log.resolve_position(a), self._namespace.log.resolve_position(b)
            )

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Make all reads of the block see one moment, whatever others write meanwhile.

        Nothing can be written inside: it raises `StoreError`. Within `transaction` it joins that one.
        """
        with self._transaction():
            yield

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[LogEnd]:
        """Open a transaction on the memory as of the store's clock and yield the end of the log.

        Expired entries are ended first, in the log too, at the time of their expiry.
        """
        if not write:
            with self._namespace.transaction(write=False):
                log_end = self._namespace.log.end()
                if not self._has_expired_entries(log_end):
                    yield log_end
                    return
            with self._database.expiry_transaction(self._namespace.name):
                self._end_expired()
        with self._namespace.transaction(write=write):
            yield self._end_expired() if write else self._namespace.log.end()

    def _has_expired_entries(self, log_end: LogEnd) -> bool:
        """Return True if a live entry has expired."""
        if log_end.next_expiry is None:
            return False
        return log_end.next_expiry <= check_clock(self._database, log_end)

    def _end_expired(self) -> LogEnd:
        """End all expired entries and return the new end of the log.

        Call inside a writing transaction.
        """
        log_end = self._namespace.log.end()
        if self._has_expired_entries(log_end):
            timeline.expire_entries(self._namespace, self._namespace.entries.expired_by(self._database.now()))
            log_end = self._namespace.log.end()
        return log_end

    def _warn_of_unknown_fields(self, entry_filter: Filter | None) -> None:
        """Warn, once for each, of metadata keys in a filter without matches that no entry of the memory has."""
        fields = set() if entry_filter is None else filter_fields(entry_filter) - FIELDS
        for field in fields if len(self._known_fields) < _MAX_KNOWN_FIELDS else ():
            path = field.removeprefix("metadata.").split(".")
            if self._known_fields.isdisjoint((path[0], path[-1])) and self._namespace.entries.count(None, None):
                self._known_fields.add(path[-1])
                if not self._namespace.entries.has_metadata_key(path[-1]):
                    warnings.warn(
                        f"where: no entry has the field {field!r}, so nothing equals it: is it spelt right?",
                        UnknownFieldWarning,
                        stacklevel=4,
                    )

    def _exclusive(self) -> AbstractContextManager[LogEnd]:
        return self._transaction(write=True)

    def _log_rows(self, after: int) -> Iterator[tuple[int, str, int, Operation]]:
        """Iterate over log rows in pages, so that a reader who stops early holds no transaction open."""
        while True:
            with self._transaction():
                page = self._namespace.log.page(after, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _embed(self, contents: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the embeddings by content; stored ones are reused."""
        vectors = StoredEmbedder(self._namespace, self._embedder.load_checked()).encode(contents)
        return dict(zip(contents, vectors, strict=True))
