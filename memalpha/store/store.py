"""`MemoryStore`: a durable memory in an SQLite file or in PostgreSQL.

It adds history, undo, restore, past states and namespaces to `Memory`. Every operation is one transaction that appends
to the log, under the same rules as `MemoryState`. An SQLite store keeps its search index in memory and updates it from
the log, so writes of other processes are seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memalpha.arguments import (
    brief_repr,
    check_count,
    check_flag,
    check_function,
    check_items,
    check_path,
    check_texts,
    check_type,
    counted,
)
from memalpha.errors import (
    DuplicateContent,
    InvalidArgument,
    InvalidContent,
    ReviewConflict,
    ScrubPending,
    StoreError,
    UnknownCategory,
    UnknownEntry,
    UnknownFieldWarning,
)
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend, Clock, Durability, system_clock
from memalpha.store.backends.namespace import LogEnd
from memalpha.store.embedding import Embedder, RecordedEmbedder, normalize_vectors
from memalpha.store.fields import (
    FILTERED,
    MAX_CONTENT,
    NAMES,
    TIMES,
    UPDATE_FIELDS,
    CheckedFact,
    Fact,
    as_fact,
    check_content_size,
    check_fact,
    check_text,
    check_timestamp,
    clean_content,
    complete_update,
    prefix_errors,
    validate_facts,
)
from memalpha.store.filters import Filter, Where, check_erased_fields, filter_fields, holds_for_all, negated_fields
from memalpha.store.history import Diff, Revert, revert
from memalpha.store.io.jsonl import import_lines, read_jsonl, write_jsonl
from memalpha.store.memory import Memory, html_table, refuse_other_keywords
from memalpha.store.open import back_up, create_namespace, is_url, is_writable, open_database, open_namespace
from memalpha.store.quarantine import ACCEPTED, WRITER, Quarantined, list_quarantined
from memalpha.store.schema import MemorySchema
from memalpha.store.search.index import NamespaceIndex, surrounding_spans
from memalpha.store.search.ranking import SearchOptions
from memalpha.store.state import Change, MemoryState, as_operation, duplicate_error
from memalpha.types import Hit, MemoryEntry, Operation

if TYPE_CHECKING:
    from pandas import DataFrame

FIXED = "{} of an open store stays as it is: open a store with another, or call `namespace(name)`"
_PAGE = 1000
_MAX_KNOWN_FIELDS = 1000  # after so many, filters are checked no more
_SHOWN_ENTRIES = 10  # in a notebook
_MAX_INDEXES = 32  # of namespaces that were asked for last
_SHOWN_NAMESPACES = 16  # at once beside one's own: PostgreSQL shows a transaction the rows of up to 20


class Erasure(list[str]):
    """Other ids that hold, or held, exactly the content that was erased. They are left unchanged.

    Attributes:
        ids: The erased ids.
        forks: Namespaces of the store that are forks and still have the erased operations.
    """

    ids: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()


class MemoryStore(Memory):
    """Durable memory: one namespace of a store. Open the first one with `MemoryStore.open`.

    Threads may share it, and so may a forked process, unless the store is in memory or was in a transaction then.

    `as_of` in `get`, `list`, `search` and `core_at` is a log position (`snapshot`) or an ISO time (UTC unless it says
    otherwise). It means the memory after all operations up to and including it.

    Attributes:
        path: Path of the file, ":memory:", or the URL without its password.
        schema: Categories of the store.
        embedder: Name of the embedder that the store records.
        namespace_name: Name of the namespace.
        database: The file, or the connections to the server.
        rows: Log, entries and vectors of the namespace; use them inside a transaction.
        recorded_embedder: The embedder that the store records.
        known_fields: Metadata keys that filters may name without a warning.
        max_content: Bytes (UTF-8) of a content at most.
    """

    def __init__(self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str) -> None:
        self.database, self.path = database, database.path
        self.recorded_embedder, self.embedder = embedder, embedder.name
        self.rows, self.namespace_name, self.schema = open_namespace(database, namespace, schema), namespace, schema
        self.max_content = MAX_CONTENT
        self.known_fields: set[str] = set()
        self._is_scope = False

        @lru_cache(_MAX_INDEXES)  # for a request's `namespace(name)`, which would build its index anew
        def index_of(name: str) -> NamespaceIndex:
            return NamespaceIndex(open_namespace(database, name, schema), embedder, schema.category_texts)

        self._index_of = index_of
        self._index = index_of(namespace)

    @classmethod
    def open(
        cls,
        path: str | Path,
        schema: str | Path | MemorySchema | None = None,
        embedder: str | Embedder | None = None,
        namespace: str = "default",
        *,
        create: bool = True,
        durability: Durability = "full",
        clock: Clock = system_clock,
        read_only: bool | Literal["if needed"] = False,
        max_content: int = MAX_CONTENT,
    ) -> MemoryStore:
        """Open a store, or create it.

        A new store records its schema and embedder. An existing one is opened with its own; naming others is an error.
        A recorded embedder other than "static", "hash" and "minilm" is loaded only if `embedder` names it. Without
        that, embedding a text raises `StoreError`.

        Args:
            path: File path, ":memory:" (lives as long as the object), or `postgresql://user:password@host/database`.
                The store lies in the database's schema "memalpha" unless the URL ends in `?schema=name`.
            schema: Name, YAML path or `MemorySchema` of a new store; "mem-alpha" by default.
            embedder: Name or object of a new store's embedder; "static" by default.
            namespace: Namespace to open.
            create: Create a missing store. False raises instead.
            durability: "full" means that a write which has returned is on disk. "normal" is faster: the operating
                system has it, so a killed process loses nothing. A power failure or a crash of the system may lose the
                last operations, whole ones, and the file stays sound. In PostgreSQL it is `synchronous_commit = off`.
            clock: Returns the current time, with its zone, for log times and expiry.
            read_only: Write nothing: no entry, no log. The file and its folder may be read-only. Writing
                methods raise `StoreError`. Expired entries are ended in memory alone. SQLite files only. "if needed"
                does so only for a file or a folder that this user cannot write.
            max_content: Bytes (UTF-8) of a content at most; a longer one raises `InvalidContent`. What is stored
                already is read whatever its length.

        Raises:
            StoreError: The store is missing, unreadable, or has another schema.
            EmbedderError: The embedder is unknown or differs from the recorded one.
            ConfigError: The schema is invalid.
        """
        max_content = check_count("max_content", max_content)
        check_flag("create", create)
        check_function("clock", clock)
        if isinstance(read_only, str) and read_only == "if needed":
            read_only = not is_writable(path)
        check_flag("read_only", read_only)
        database, recorded_schema, recorded_embedder = open_database(
            path, schema, embedder, create=create, durability=durability, clock=clock, read_only=read_only
        )
        try:
            store = cls(database, recorded_schema, recorded_embedder, namespace)
            store.max_content = max_content
            if not read_only:
                try:  # what a killed process left, without waiting for others
                    store._scrub(wait=False)
                except StoreError as error:
                    warnings.warn(str(error), stacklevel=2)
            return store
        except BaseException:
            database.close()
            raise

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("path", "schema", "embedder", "namespace_name") and name in vars(self):
            raise AttributeError(FIXED.format(name))
        super().__setattr__(name, value)

    def close(self) -> None:
        """Close the file or the connections.

        Closing a scope made by `namespace` does nothing: the opened store owns the connections.
        """
        if not self._is_scope:
            self.database.refuse_in_transaction("close")
            self.database.close()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MemoryStore({self.database.path!r}, namespace={self.rows.name!r})"

    def _repr_html_(self) -> str:
        entries = [(entry.category, entry.content, entry.timestamp) for entry in self.recent(_SHOWN_ENTRIES)]
        title = f"{self!r}: {counted(self.count(), 'entry')}, the newest first"
        return html_table(title, ("category", "content", "timestamp"), entries)

    def load_embedder(self) -> Embedder:
        """Return the embedder that searches use.

        Raises:
            StoreError: The recorded name is not a shipped one, and `open` was given no embedder.
            EmbedderError: The embedder cannot be loaded.
        """
        return self.recorded_embedder.load().inner

    def namespace(self, name: str) -> MemoryStore:
        """Return another namespace of the same store, with a log of its own.

        Namespaces never see each other. The store keeps the search indexes of the 32 namespaces that were asked for
        last, so that every request can have an object of its own.
        """
        scope = copy(self)
        scope.rows, scope.known_fields = open_namespace(self.database, name, self.schema), set()
        scope._index, scope._is_scope = self._index_of(name), True
        vars(scope)["namespace_name"] = name
        return scope

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces that were ever written to."""
        with self.database.transaction(write=False):
            return self.database.namespaces()

    def drop_namespace(self, name: str) -> int:
        """Delete a namespace of the store: its log, its entries and its name.

        A namespace that is later made under this name is a new one: its positions begin at 1, and its ids are not
        compared with those of the old one.

        Args:
            name: Name of an existing namespace.

        Returns:
            Number of operations that its log had.

        Raises:
            StoreError: There is no such namespace, or the role does not own a PostgreSQL store's tables.
            ScrubPending: It is deleted, but the file cannot be rewritten now, as in `erase`.
        """
        self.database.refuse_in_transaction("drop_namespace")
        namespace = open_namespace(self.database, name, self.schema)
        with namespace.transaction():
            if namespace.scope.namespace_id < 0:
                raise StoreError(f"no namespace {brief_repr(name)}: `namespaces` lists them")
            count = namespace.drop()
        self._index_of.cache_clear()  # what it held leaves the memory, too
        self._scrub()
        return count

    @property
    def core(self) -> str:
        return self.core_at(None)

    @property
    def state(self) -> MemoryState:
        with self._transaction():
            position = self.rows.log.position
            entries = self.rows.entries
            return MemoryState.from_entries(
                self.schema,
                self.rows.log.core_at(position),
                position,
                entries.latest_versions(),
                has_erasure=entries.has_erasure(),
            )

    def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """Return a live entry, or its version at `as_of`. Raises `UnknownEntry`."""
        entry = None
        if as_of is None:
            with self.rows.transaction(write=False):
                entry = self.rows.entries.version_at(id, None)
        if as_of is not None or (entry is not None and entry.expires is not None):  # else the log's end does not matter
            with self._transaction():
                entry = self.rows.entries.version_at(id, self.rows.log.resolve_as_of(as_of))
        if entry is None:
            raise UnknownEntry(
                f"no live entry has the id {brief_repr(id)}" + ("" if as_of is None else f" as of {as_of!r}")
            )
        return entry

    def core_at(self, as_of: int | str | None) -> str:
        """Return the core memory text at `as_of` (None: now); "" without one."""
        with self._transaction():
            return self.rows.log.core_at(self.rows.log.resolve_position(as_of))

    @refuse_other_keywords
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
            limit = check_count("limit", limit)
        if where is None and after is None and as_of is None:
            with self.rows.transaction(write=False):
                listed = self.rows.entries.live(category, limit=limit)
            if not any(entry.expires for entry in listed):  # as in `get`, the log's end does not matter
                return listed
        with self._transaction() as log_end:
            entries, first = self.rows.entries, 0
            if after is not None:
                with prefix_errors("after"):
                    first = entries.creation_positions([after])[after]
            position = self.rows.log.resolve_as_of(as_of)
            if where is None or entry_filter is None:
                return entries.live(category, after=after, limit=limit, position=position)
            ids = None
            if position is None:
                ids = self._index.ask(log_end.position, lambda corpus: corpus.matching_ids(entry_filter, first, limit))
            if ids is None:
                matches = entries.matching(entry_filter, category, after=after, limit=limit, position=position)
            else:
                versions = entries.versions_at(ids, None)
                matches = [versions[id] for id in ids]
            if not matches and limit != 0 and as_of is None:
                self._warn_of_unknown_fields(entry_filter, stacklevel=4)
            return matches

    def get_many(self, ids: Iterable[str], *, as_of: int | str | None = None) -> dict[str, MemoryEntry]:
        """Return live entries by id, in the order of `ids`; ids that are not live are left out.

        Args:
            ids: Ids of entries.
            as_of: Log position or ISO time; None means now.
        """
        ids = list(dict.fromkeys(check_texts("ids", ids)))
        with self._transaction():
            position = self.rows.log.resolve_as_of(as_of)
            entries = self.rows.entries.versions_at(ids, position)
        return {id: entries[id] for id in ids if id in entries}

    @refuse_other_keywords
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
            position = self.rows.log.resolve_as_of(as_of)
            if where is None or entry_filter is None:
                return self.rows.entries.count(category, position)
            count = None
            if position is None:
                count = self._index.ask(log_end.position, lambda corpus: corpus.count(entry_filter))
            return len(self.list(category, where=where, as_of=as_of)) if count is None else count

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
        n = check_count("n", n)
        with self._transaction() as log_end:
            return self.rows.recent(log_end.position, n)

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        with self._transaction():
            return self.rows.entries.creation_positions(check_texts("ids", ids))

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the live entry of the category with exactly this content, or None.

        Outer whitespace is ignored.
        """
        check_type("content", content, str, error=InvalidContent)
        with self._transaction():
            return self.rows.entries.find(category, content.strip())

    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        query_vectors = options.query_vectors(len(queries), self.recorded_embedder.dim)
        # A query is rarely a stored text, so skip the lookup of its vector.
        if query_vectors is None and len(queries) == 1 and options.route != "bm25":
            query_vectors = self.recorded_embedder.load().encode(queries)
        with self._transaction() as log_end:
            position = self.rows.log.resolve_as_of(options.as_of)
            results = self._index.search(log_end.position, position, queries, options, query_vectors)
            entries = self.rows.entries.versions_at(list({hit.id for hits in results for hit in hits}), position)
            if not entries and options.k and options.as_of is None:
                self._warn_of_unknown_fields(options.filter, stacklevel=6)
            tokens = options.around
            context = {id: tuple(surrounding_spans(self.rows, id, tokens, position)) for id in entries if tokens}
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
        tokens = check_count("tokens", tokens)
        with self._transaction():
            return surrounding_spans(self.rows, id, tokens, self.rows.log.resolve_as_of(as_of))

    def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first, also of a deleted one. Raises `UnknownEntry`."""
        with self._transaction():
            if versions := self.rows.entries.history(id):
                return versions
        raise UnknownEntry(f"no entry ever had the id {brief_repr(id)}")

    def history_many(self, ids: Iterable[str]) -> dict[str, list[MemoryEntry]]:
        """Return all versions of several entries by id, as `history` does; ids that were never used are left out.

        500 entries are read in one statement.
        """
        ids = list(dict.fromkeys(check_texts("ids", ids)))
        with self._transaction():
            versions = self.rows.entries.histories(ids)
        return {id: versions[id] for id in ids if id in versions}

    def log(self, after: int = 0) -> Iterator[tuple[int, str, Operation]]:
        """Iterate over the operations after a position: position, time (ISO, UTC), operation as applied."""
        after = check_count("after", after)
        return ((position, time, operation) for position, time, _, operation in self._log_rows(after))

    def snapshot(self) -> int:
        """Return the current log position, for `restore` and `as_of`. It costs nothing and never expires."""
        with self._transaction():
            return self.rows.log.position

    def diff(self, a: int | str, b: int | str | None = None) -> Diff:
        """Return the entries added, changed and removed between `a` and `b` (now), and the core text.

        Both are positions or times, as in `as_of`; `b` may be the earlier one.
        """
        with self._transaction():
            positions = self.rows.log.resolve_position(a, "a"), self.rows.log.resolve_position(b, "b")
            return timeline.diff_positions(self.rows, *positions)

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Make all reads of the block see one moment, whatever others write meanwhile.

        Nothing can be written inside: it raises `StoreError`. Within `transaction` it joins that one.
        """
        with self._transaction():
            yield

    @contextmanager
    def reading_at_once(self, *, search: bool = False) -> Iterator[bool]:
        """Yield True if reads of the current state in the block take milliseconds, and wait for no thread or process.

        They do unless another thread uses the database, entries expire now, or it is on a server; a search also needs
        a small index in step with the log, and an embedder that is no model.

        Args:
            search: The block searches.
        """
        with self.database.without_waiting() as is_ready:
            if is_ready:
                with self.rows.transaction(write=False):
                    log_end = self.rows.log.end()
                    is_ready = not self._has_expired_entries(log_end)
                    if search and is_ready:
                        is_ready = self.recorded_embedder.is_cheap and self._index.is_warm(log_end.position)
            yield is_ready

    def change(self, operation: Operation) -> Change:
        check_type("operation", operation, Operation)
        check_timestamp(operation.timestamp)
        try:
            content = clean_content(operation.content) if operation.kind in ("insert", "update") else None
        except InvalidContent:  # refused by `plan`, unless another rule refuses first
            content = None
        vectors = None
        if content is not None:
            check_content_size(content, self.max_content)
            # Embed before taking the write lock, so that a slow embedder blocks no other process.
            vectors = self.recorded_embedder.embed([content], self.rows)
        with self.rows.transaction():
            return self.rows.write(operation, vectors, log_end=self._end_expired())

    def insert_many(self, facts: Iterable[Fact], vectors: np.ndarray | None = None) -> list[MemoryEntry]:
        """Insert many facts, all or none, embedded in one batch.

        Args:
            facts: Mappings with the arguments of `insert` by name.
            vectors: Embeddings of the contents, shape (n, dim), of any length but 0; None embeds them.

        Returns:
            The entry of each fact; for a duplicate, the existing one.

        Raises:
            StoreError: A fact or a vector is invalid; the message names its index.
            EmbedderError: The embedder returned vectors that cannot be stored.
        """
        checked = validate_facts(facts, self.schema, self.max_content)
        contents = [fact.content for fact in checked]
        if vectors is None:
            embeddings = self.recorded_embedder.embed(contents, self.rows)
        else:
            unit_vectors = normalize_vectors(len(checked), vectors, self.recorded_embedder.dim)
            embeddings = dict(zip(contents, unit_vectors, strict=True))
        with self._transaction(write=True) as log_end:
            return self.rows.insert_facts(log_end, checked, embeddings)

    def apply_all(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        with nullcontext() if len(operations) == 1 or self.database.is_atomic else self.transaction():
            return tuple(self.apply(operation) for operation in operations)

    def apply_each(self, operations: Sequence[Operation]) -> list[Operation | StoreError]:
        if not all(item.kind == "insert" and item.id is None and item.reason is None for item in operations):
            return super().apply_each(operations)
        outcomes: list[Operation | StoreError] = []
        facts: dict[int, CheckedFact] = {}
        for index, operation in enumerate(operations):
            outcomes.append(operation)
            try:
                facts[index] = check_fact(as_fact(operation), self.schema, self.max_content)
            except (InvalidContent, UnknownCategory) as error:
                outcomes[index] = error
        vectors = self.recorded_embedder.embed((fact.content for fact in facts.values()), self.rows)
        with self._transaction(write=True) as log_end:
            position = log_end.position
            entries = self.rows.insert_facts(log_end, list(facts.values()), vectors)
            for index, entry in zip(facts, entries, strict=True):
                if entry.valid_from > position:  # positions of new entries follow each other
                    position = entry.valid_from
                    given, done = facts[index].fields, as_operation("insert", entry)
                    blank = {name: "" for name in TIMES if given.get(name) == ""}  # None in an entry
                    outcomes[index] = replace(done, **blank) if blank else done
                else:
                    outcomes[index] = duplicate_error(entry)
        return outcomes

    @refuse_other_keywords
    def add_many(self, contents: Iterable[str], *, category: str | None = None, **fields: Any) -> list[MemoryEntry]:
        """Store many facts in one category, all or none, as `insert_many` does.

        Args:
            contents: Texts of the facts.
            category: Name of a category; default: `schema.default_category`.
            **fields: Further arguments of `insert` for every fact, such as `timestamp` or `source`.

        Returns:
            The entry of each fact; for a duplicate, the existing one.

        Raises:
            StoreError: A fact is invalid; the message names its index.
        """
        contents = check_items("contents", contents, of="texts")
        category = self.schema.default_category if category is None else category
        return self.insert_many([{"category": category, "content": content, **fields} for content in contents])

    def update_many(self, updates: Iterable[Mapping[str, Any]]) -> list[MemoryEntry]:
        """Update many entries, all or none, embedded in one batch and stored in one transaction.

        Args:
            updates: Mappings with the arguments of `update` by name; "id" is needed.

        Returns:
            The new version of each entry.

        Raises:
            StoreError: An update is invalid, as in `update`; the message names its index.
        """
        rows: list[dict[str, Any]] = []
        for index, update in enumerate(check_items("updates", updates, of="mappings")):
            with prefix_errors(f"update {index}"):
                if not isinstance(update, Mapping) or not {"id"} <= update.keys() <= {"id", *UPDATE_FIELDS}:
                    raise StoreError(f"a mapping with id and none but {', '.join(UPDATE_FIELDS)} is needed")
                row = dict(update)
                if row.get("content") is not None:
                    row["content"] = clean_content(row["content"])
                    check_content_size(row["content"], self.max_content)
                check_timestamp(row.get("timestamp"))
                rows.append(row)
        new_contents = (row["content"] for row in rows if row.get("content") is not None)
        vectors = self.recorded_embedder.embed(new_contents, self.rows)
        entries = []
        with self._transaction(write=True):
            for index, row in enumerate(rows):
                with prefix_errors(f"update {index}"):
                    merge_metadata = row.pop("merge_metadata", False)
                    current = self.get(row["id"])
                    operation = complete_update(Operation("update", **row), current, merge_metadata=merge_metadata)
                    entries.append(self.rows.write(operation, vectors if operation.content in vectors else None).made)
        return entries

    @refuse_other_keywords
    def delete_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        category: str | None = None,
        where: Where = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
    ) -> list[MemoryEntry]:
        """End many entries, all or none, in one transaction.

        Args:
            ids: Ids of live entries. Without them, `category` or `where` says which entries to end.
            category: End entries of this category only; not with `ids`.
            where: End entries that pass this filter only (see `filters`); not with `ids`.
            source: Conversation or document that caused the deletion.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk.

        Returns:
            The last version of each entry, with `valid_to` set.

        Raises:
            StoreError: Neither or both of `ids` and a condition are given, or the filter is invalid or empty.
            UnknownEntry: No live entry has one of the ids; nothing was ended.
        """
        if isinstance(ids, str) or (ids is None) == (category is None and where is None):
            raise StoreError("delete_many: give either a list of ids, or a category or filter of the entries to end")
        if ids is None and holds_for_all(self._filter(category, where)):
            raise StoreError("delete_many: where holds for everything: give a category or ids")
        ids = None if ids is None else check_texts("ids", ids)
        with self._transaction(write=True):
            if ids is None:
                ids = [entry.id for entry in self.list(category, where=where)]
            ended = []
            for index, id in enumerate(dict.fromkeys(ids)):
                with prefix_errors(f"delete {index}"):
                    operation = Operation("delete", id=id, source=source, chunk=chunk, turn=turn)
                    ended.append(self.rows.write(operation).ended)
            return ended

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all operations of the block happen together: one commit, or none of them if the block raises.

        Reads and searches of the block see its writes. An operation that fails is undone alone; if you catch its
        error, the others count. The block is of this namespace alone. Other writers wait until it ends, in SQLite also
        other threads of this process, so keep it short. What cannot be undone (`erase`, `drop_namespace`, `fork`,
        `backup`, `close`) raises `StoreError` inside.

        Raises:
            StoreError: A transaction is open already, or the store is read-only.
        """
        if self.database.is_atomic:
            raise StoreError("transaction: one is open already in this thread, and they do not nest")
        with self.database.atomic(self.rows.name):
            yield

    @staticmethod
    @contextmanager
    def writing_as(*, speaker: str | None = None, key: str | None = None) -> Iterator[None]:
        """Record who is behind the operations of a block: the log, the entries and their histories say it.

        It holds for all that this thread or task writes in the block. An operation that names a speaker itself keeps
        that one.

        Args:
            speaker: Person on whose word the operations are written.
            key: Name of the server's key that they came with.

        Raises:
            InvalidContent: A name is no text that can be stored.
        """
        names = {"speaker": speaker, "key": key}
        fields = {name: check_text(name, value) for name, value in names.items() if value is not None}
        token = WRITER.set({**WRITER.get(), **fields})
        try:
            yield
        finally:
            WRITER.reset(token)

    def undo(self) -> Operation | None:
        """Undo the last effective operation by appending its inverse. Call again to go further back.

        Returns the undone operation, or None if there is none. After a `restore`, undo continues from the restored
        position.
        """
        with self._transaction(write=True):
            return timeline.undo(self.rows)

    def redo(self) -> Operation | None:
        """Redo the operation that the last `undo` took back. Call again to go further forward.

        Returns the operation, or None if there is none. Any other write clears what can be redone; a `restore` of one
        operation back counts as its undo. Redo reads the log, so it also works after reopening and importing.
        """
        with self._transaction(write=True):
            return timeline.redo(self.rows)

    def restore(self, position: int | str) -> int:
        """Restore the facts and core memory of a position or an ISO time by appending operations, in one transaction.

        Nothing is destroyed. The next `undo` continues from the restored position. If the memory is equal already, one
        `core_update` without a change records that.

        Returns:
            Number of appended operations.

        Raises:
            StoreError: The position is not in the log.
        """
        if position is None:
            raise StoreError("position None: a log position or an ISO time is needed")
        with self._transaction(write=True):
            return timeline.restore(self.rows, self.rows.log.resolve_position(position, "position"))

    def revert(
        self,
        *,
        source: str | None = None,
        speaker: str | None = None,
        key: str | None = None,
        since: int | str | None = None,
        dry_run: bool = False,
    ) -> Revert:
        """Take back all writes of a source, speaker or key, and restore what they overwrote or deleted.

        An entry goes back to its last state that came from somebody else. If somebody else changed it since, it stays,
        and the report lists it as a conflict. All changes are one transaction of ordinary operations with their reason;
        `restore(report.position)` takes them back.

        Args:
            source: Conversation or document of the writes.
            speaker: Person on whose word they were written.
            key: Name of the server's key that they came with.
            since: Log position or ISO time; writes up to it stay. Several conditions must all hold.
            dry_run: Write nothing; the report says what would change.

        Raises:
            StoreError: No condition is given, or `since` is no position or time.
        """
        conditions = {"source": source, "speaker": speaker, "key": key}
        criteria = {name: check_text(name, value) for name, value in conditions.items() if value is not None}
        if not criteria and since is None:
            raise StoreError("revert: say what to take back: give a source, a speaker, a key or a moment (since)")
        words = [f"{name} {brief_repr(value)}" for name, value in criteria.items()]
        words += [] if since is None else [f"since {since}"]

        def is_selected(operation: Operation) -> bool:
            return all(getattr(operation, name) == value for name, value in criteria.items())

        check_flag("dry_run", dry_run)
        with self._transaction(write=not dry_run):
            start = 0 if since is None else self.rows.log.resolve_position(since, "since")
            reason = f"revert: {', '.join(words)}"
            return revert(self.rows, is_selected, start, reason, now=self.database.now(), dry_run=dry_run)

    def quarantined(self, *, pending: bool = True) -> list[Quarantined]:
        """Return the operations that a trust rule kept from the memory, oldest first.

        Args:
            pending: Leave out those that had a review.
        """
        check_flag("pending", pending)
        with self._transaction():
            return list_quarantined(self.rows.log, pending=pending)

    def review(self, position: int, *, accept: bool) -> Quarantined:
        """Apply a quarantined operation, or reject it.

        Args:
            position: Log position of the quarantined operation.
            accept: True applies it as its speaker meant it; False leaves the memory as it is.

        Returns:
            The operation with the decision.

        Raises:
            ReviewConflict: Nothing at the position awaits a review, or the entry was changed since and it still does.
        """
        check_flag("accept", accept)
        position = check_count("position", position)
        item = next((item for item in self.quarantined() if item.position == position), None)
        content = None if item is None else item.operation.content
        is_embedded = accept and item is not None and item.operation.kind in ("insert", "update")
        vectors = self.recorded_embedder.embed([content], self.rows) if is_embedded and content is not None else {}
        with self._transaction(write=True):
            pending = {item.position: item for item in list_quarantined(self.rows.log, pending=True)}
            if position not in pending:
                raise ReviewConflict(
                    f"review {brief_repr(position)}: nothing there awaits one: `quarantined` lists what does"
                )
            item = pending[position]
            if accept:
                operation, current = item.operation, None
                if operation.kind == "core_update":
                    current = self.core
                elif operation.id is not None:
                    with suppress(UnknownEntry):
                        current = self.get(operation.id).content
                if current != item.before:
                    raise ReviewConflict(
                        f"review {item.position}: what it would change was changed since: reject it, or write what is "
                        "right"
                    )
                with suppress(DuplicateContent):  # the memory says so already
                    self.rows.write(replace(operation, reason=f"{ACCEPTED}{position}"), vectors or None)
            decision = "accepted" if accept else "rejected"
            self.rows.write(Operation("reviewed", metadata={"position": position, "decision": decision}))
            return replace(item, decision=decision)

    def erase(self, *ids: str, where: Where = None) -> Erasure:
        """Erase entries for good: from the log, past states, vectors, and free space of the file.

        With `where`, all entries of which any version passes the filter: live, ended, expired, undone or quarantined.
        Of a quarantined change to an entry that does not pass, the change alone is erased.

        The operations remain as stubs without content, date, origin or id, because an id tells of the content. Stubs
        change nothing: past states, undo and restore behave as if the entries had never existed. Only an export, copy
        or fork made before still has them. The core memory has a past of its own (`erase_core_history`). The file is
        rewritten, which takes time. If that fails, the entries are erased all the same: no read returns them, and
        `pending_scrub` stays True until their bytes are gone.

        In PostgreSQL no statement returns the erased content afterwards, but its bytes remain on the server for a
        while. They stay in the tables' files until vacuum frees the space and it is reused. `VACUUM FULL
        memalpha.operations, memalpha.versions, memalpha.vectors` does so at once; the owner runs it while nobody else
        works. Write-ahead log, replicas and backups keep the bytes as long as they are retained.

        Args:
            ids: Ids of live or deleted entries, or of quarantined operations. Without any, a pending scrub is finished.
            where: Filter on fields and metadata (see `filters`). With ids too, entries of either are erased.

        Returns:
            Other ids with the same content, as a list that also has what was erased and where copies are.

        Raises:
            UnknownEntry: No entry ever had the id.
            StoreError: The filter is invalid or holds for everything; `erase_all` erases a namespace.
            InvalidArgument: The filter wants None of a field, or excludes values of a field that no live entry has.
            ScrubPending: The entries are erased, but the file cannot be rewritten now. The next opening goes on.
        """
        self.database.refuse_in_transaction("erase")
        check_texts("ids", ids)
        entry_filter = self._filter(None, where)
        check_erased_fields(where)
        if where is not None and holds_for_all(entry_filter):
            raise StoreError("erase: where holds for everything: erase_all() erases a namespace")
        others = sorted({*self.namespaces()} - {self.rows.name})
        forks: list[str] = []
        for start in range(0, len(others), _SHOWN_NAMESPACES):
            names = others[start : start + _SHOWN_NAMESPACES]
            with self.database.transaction(self.rows.name, *names, write=False):
                matching = [] if entry_filter is None else self.rows.ids_matching(entry_filter)[0]
                forks += self.rows.log.forks([*ids, *matching], names)
        with self._transaction(write=True):
            unknown_ids = [id for id in ids if self.rows.entries.latest_version(id) is None]
            if unknown_ids:
                quarantined = {operation.id for _, _, operation in self.rows.log.quarantine()}
                unknown_ids = [id for id in unknown_ids if id not in quarantined]
            erasure = Erasure()
            if not unknown_ids:
                self._index.ask(self.rows.log.position, len)  # brings the corpus to the log's end, before `forget`
                matching, changes = ([], []) if entry_filter is None else self.rows.ids_matching(entry_filter)
                if matching and entry_filter is not None:
                    for field in sorted(negated_fields(entry_filter) - FILTERED):
                        if not self.rows.entries.has_metadata_key(field.split(".")[-1]):
                            raise InvalidArgument(
                                f"erase: no live entry has the field {field!r:.80}: is it spelt right?"
                            )
                if not matching and not changes:
                    self._warn_of_unknown_fields(entry_filter, stacklevel=3)
                all_ids = dict.fromkeys([*ids, *matching])
                erasure = Erasure(self.rows.erase(all_ids, changes))
                erasure.ids = tuple(all_ids)
                self._index.forget(all_ids, self.rows.log.position)
        erasure.forks = tuple(forks)
        self._scrub(erasure)  # an unknown id may be that of an erasure that was not finished
        if unknown_ids:
            raise UnknownEntry(f"no entry ever had the id {unknown_ids[0]!r:.80}")
        return erasure

    def erase_all(self) -> int:
        """Erase the whole namespace, core memory included, and return the number of stubs.

        Only the namespace's name and the stubs of its operations remain; `drop_namespace` removes these, too. Raises
        `ScrubPending` as `erase` does.
        """
        return self._erase_with(self.rows.erase_all)

    def erase_core_history(self) -> int:
        """Erase all texts of the core memory but the current one, and return their number.

        Before the current text, past states then have no core memory. Raises `ScrubPending` as `erase` does.
        """
        return self._erase_with(self.rows.erase_core_history)

    def _erase_with(self, erase: Callable[[], int]) -> int:
        """Call a method of `rows` that erases and returns a number, then scrub the file."""
        self.database.refuse_in_transaction(erase.__name__)
        with self._transaction(write=True):
            count = erase()
        self._scrub()
        return count

    @property
    def pending_scrub(self) -> bool:
        """True if content was erased whose bytes may still lie in the file. The next opening, or `erase()`, goes on."""
        with self.database.transaction(write=False):
            return self.database.is_scrub_due

    def fork(
        self, namespace: str | None = None, *, path: str | Path | None = None, as_of: int | str | None = None
    ) -> MemoryStore:
        """Copy this namespace's log up to `as_of`, with its ids, positions and times.

        The copy continues by itself.

        Args:
            namespace: Name of the copy in this file, or in the new file at `path` (the same name by default).
            path: New file or URL for the copy; None copies within this store.
            as_of: Log position or ISO time of the copy's end; None copies everything.

        Returns:
            The opened copy. Either all of it exists or nothing.

        Raises:
            StoreError: The target exists already.
        """
        self.database.refuse_in_transaction("fork")
        if path is None:
            if namespace is None:
                raise StoreError("fork: give a namespace for a copy in this file, or a path for a new one")
            copy = self.namespace(namespace)
            with self.database.transaction(self.rows.name, namespace), self._transaction(write=True):
                if copy.rows.log.position:
                    raise StoreError(f"namespace {namespace!r} has a log already: give another name")
                self.rows.copy_to(copy.rows, self.rows.log.resolve_position(as_of))
            return copy
        name, database = self.rows.name if namespace is None else namespace, self.database
        with self._transaction(), create_namespace(path, database.meta, name, self.schema) as target:
            self.rows.copy_to(target, self.rows.log.resolve_position(as_of))
        return MemoryStore.open(
            path,
            self.schema,
            self.recorded_embedder.requested,
            name,
            clock=database.clock,
            max_content=self.max_content,
        )

    def backup(self, path: str | Path) -> dict[str, int]:
        """Copy the whole store, all namespaces with their logs, into a new file, as of one moment.

        Others may go on reading and writing. The file appears when complete, and opens like the store. It holds
        nothing that was erased before. A PostgreSQL store becomes a file, too.

        Args:
            path: New file.

        Returns:
            Number of operations by namespace.

        Raises:
            StoreError: The file exists already or cannot be written.
        """
        self.database.refuse_in_transaction("backup")
        if is_url(path):
            raise StoreError(f"backup: a file path is needed, not {path!s:.40}; `memalpha copy` copies to a server")
        return back_up(self.database, self.schema, path)

    def export_jsonl(self, path: str | Path) -> int:
        """Write the namespace's log as of now, one operation per line. The file appears when complete.

        Returns the number of operations. Raises `StoreError` if entries are erased meanwhile.
        """
        check_path("path", path)
        return write_jsonl(Path(path), self.schema, self.rows.name, self._rows_until_now())

    def import_jsonl(self, path: str | Path) -> int:
        """Apply the operations of a JSON Lines file, all or none.

        An exported log gives an empty namespace the same entries, ids and positions, undo included. A line may also be
        a plain fact: `{"category": "semantic", "content": "..."}`. Exact duplicates without an id are skipped.

        Returns:
            Number of operations that took effect.

        Raises:
            DataError: A line is invalid; the message names file, line and field.
        """
        check_path("path", path)
        return import_lines(self, path, read_jsonl(Path(path)))

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[LogEnd]:
        """Open a transaction on the memory as of the store's clock and yield the end of the log.

        Expired entries are ended first, in the log too, at the time of their expiry.
        """
        if not write:
            with self.rows.transaction(write=False):
                log_end = self.rows.log.end()
                if not self._has_expired_entries(log_end):
                    yield log_end
                    return
            with self.database.expiry_transaction(self.rows.name):
                self._end_expired()
        with self.rows.transaction(write=write):
            yield self._end_expired() if write else self.rows.log.end()

    def _has_expired_entries(self, log_end: LogEnd) -> bool:
        """Return True if a live entry has expired."""
        if log_end.next_expiry is None:
            return False
        return log_end.next_expiry <= self.database.checked_now(log_end.time)

    def _end_expired(self) -> LogEnd:
        """End all expired entries and return the new end of the log.

        Call inside a writing transaction.
        """
        log_end = self.rows.log.end()
        if self._has_expired_entries(log_end):
            # Each at the time of its expiry, so that the log does not depend on who looked when.
            for id, time in self.rows.entries.expired_by(self.database.now()):
                self.rows.write(Operation("expired", id=id), time=time)
            log_end = self.rows.log.end()
        return log_end

    def exclusive(self) -> AbstractContextManager[LogEnd]:
        return self._transaction(write=True)

    def _log_rows(self, after: int) -> Iterator[tuple[int, str, int, Operation]]:
        """Iterate over log rows in pages, so that a reader who stops early holds no transaction open."""
        while True:
            with self._transaction():
                page = self.rows.log.page(after, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _rows_until_now(self) -> Iterator[tuple[int, str, int, Operation]]:
        """Iterate over the log up to its present end, though others write meanwhile."""
        end = self.snapshot()
        yield from takewhile(lambda row: row[0] <= end, self._log_rows(0))
        with self._transaction():
            if self.rows.log.has_erasure_after(end) or self.rows.log.position < end:
                raise StoreError("export: entries were erased while the log was read: export again")

    def _warn_of_unknown_fields(self, entry_filter: Filter | None, stacklevel: int) -> None:
        """Warn, once for each, of metadata keys in a filter without matches that no entry of the memory has."""
        fields = set() if entry_filter is None else filter_fields(entry_filter) - FILTERED
        for field in fields if len(self.known_fields) < _MAX_KNOWN_FIELDS else ():
            path = field.removeprefix("metadata.").split(".")
            if self.known_fields.isdisjoint((path[0], path[-1])) and self.rows.entries.count(None, None):
                self.known_fields.add(path[-1])
                if not self.rows.entries.has_metadata_key(path[-1]):
                    hint = "is it spelt right?"
                    if field in NAMES:  # an entry's speaker and key are read by no filter
                        hint = f"filters do not read an entry's {field}: write it with metadata={{'{field}': ...}}, too"
                    warnings.warn(
                        f"where: no entry has the field {field!r}, so nothing equals it: {hint}",
                        UnknownFieldWarning,
                        stacklevel=stacklevel,
                    )

    def _scrub(self, erasure: Erasure | None = None, *, wait: bool = True) -> None:
        """Finish the rewriting that an erasure of any namespace has left due."""
        if not self.pending_scrub:
            return
        try:
            self.database.scrub(wait=wait)
        except ScrubPending as pending:
            pending.erasure = Erasure() if erasure is None else erasure
            raise
