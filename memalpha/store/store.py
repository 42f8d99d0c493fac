"""`MemoryStore`: a durable memory in an SQLite file or in PostgreSQL.

It adds history, undo, restore, past states and namespaces to `Memory`. Every operation is one transaction that appends
to the log, under the same rules as `MemoryState`. An SQLite store keeps its search index in memory and updates it from
the log, so writes of other processes are seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memalpha.arguments import brief_repr, check_count, check_flag, check_items, check_path
from memalpha.errors import InvalidContent, StoreError
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend, Clock, Durability, system_clock
from memalpha.store.bulk_insert import Fact, insert_facts, normalize_vectors, validate_facts, vector_rows
from memalpha.store.embedding import Embedder
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.io.copy import back_up
from memalpha.store.io.jsonl import apply_lines, read_jsonl, stored_contents, write_jsonl
from memalpha.store.open import copy_noted, create_namespace, is_url, is_writable, open_database
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change
from memalpha.store.trust.reviews import StoreReviewer
from memalpha.store.validation import (
    MAX_CONTENT,
    check_content_size,
    check_timestamp,
    clean_content,
)
from memalpha.types import MemoryEntry, Operation


class MemoryStore(StoreReviewer):
    """Durable memory: one namespace of a store. Open the first one with `MemoryStore.open`.

    Threads may share it, and so may a forked process, unless the store is in memory or was in a transaction then.

    `as_of` in `get`, `list`, `search` and `core_at` is a log position (`snapshot`) or an ISO time (UTC unless it says
    otherwise). It means the memory after all operations up to and including it.
    """

    def __init__(self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str) -> None:
        super().__init__(database, schema, embedder, namespace)
        self._is_scope = False

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
        check_count("max_content", max_content)
        check_flag("create", create)
        if not callable(clock):
            raise StoreError(f"clock {brief_repr(clock)}: a function that returns the time is needed")
        if isinstance(read_only, str) and read_only == "if needed":
            read_only = not is_writable(path)
        check_flag("read_only", read_only)
        database, recorded_schema, recorded_embedder = open_database(
            path, schema, embedder, create=create, durability=durability, clock=clock, read_only=read_only
        )
        try:
            store = cls(database, recorded_schema, recorded_embedder, namespace)
            store._max_content = max_content
            if not read_only:
                store._finish_interrupted_work()
            return store
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close the file or the connections.

        Closing a scope made by `namespace` does nothing: the opened store owns the connections.
        """
        if not self._is_scope:
            self._database.refuse_in_transaction("close")
            self._database.close()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MemoryStore({self._database.path!r}, namespace={self._namespace.name!r})"

    def namespace(self, name: str) -> MemoryStore:
        """Return another namespace of the same store, with a log of its own.

        Namespaces never see each other.
        """
        scope = MemoryStore(self._database, self.schema, self._embedder, name)
        scope._is_scope, scope._max_content = True, self._max_content
        return scope

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces that were ever written to."""
        with self._database.transaction(write=False):
            return self._database.namespaces()

    def change(self, operation: Operation) -> Change:
        if not isinstance(operation, Operation):
            raise StoreError(f"operation {brief_repr(operation)}: an Operation is needed")
        check_timestamp(operation.timestamp)
        try:
            content = clean_content(operation.content) if operation.kind in ("insert", "update") else None
        except InvalidContent:  # refused by `plan`, unless another rule refuses first
            content = None
        vectors = None
        if content is not None:
            check_content_size(content, self._max_content)
            with self._namespace.transaction(write=False):
                vectors = self._namespace.vectors.of_texts([content], self._embedder.dim)
            # Embed before taking the write lock, so that a slow embedder blocks no other process.
            vectors = vectors or {content: self._embedder.load_checked().encode([content])[0]}
        with self._namespace.transaction():
            return self._namespace.write(operation, vectors, log_end=self._end_expired())

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
        pairs = validate_facts(facts, self._max_content)
        if vectors is None:
            contents = list(dict.fromkeys(content for _, content in pairs))
            rows = vector_rows(
                contents, StoredEmbedder(self._namespace, self._embedder.load_checked()).encode(contents)
            )
        else:
            contents = [content for _, content in pairs]
            rows = vector_rows(contents, normalize_vectors(len(pairs), vectors, self._embedder.dim))
        with self._transaction(write=True):
            return insert_facts(self._namespace, pairs, rows)

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
        if isinstance(contents, str):
            raise StoreError("contents: a list of texts is needed, not one text; add() stores one")
        contents = check_items("contents", contents, of="texts")
        category = self.schema.default_category if category is None else category
        return self.insert_many([{"category": category, "content": content, **fields} for content in contents])

    def undo(self) -> Operation | None:
        """Undo the last effective operation by appending its inverse. Call again to go further back.

        Returns the undone operation, or None if there is none. After a `restore`, undo continues from the restored
        position.
        """
        with self._transaction(write=True):
            return timeline.undo(self._namespace)

    def redo(self) -> Operation | None:
        """Redo the operation that the last `undo` took back. Call again to go further forward.

        Returns the operation, or None if there is none. Any other write clears what can be redone; a `restore` of one
        operation back counts as its undo. Redo reads the log, so it also works after reopening and importing.
        """
        with self._transaction(write=True):
            return timeline.redo(self._namespace)

    def restore(self, position: int) -> int:
        """Restore the facts and core memory of a position by appending operations, in one transaction.

        Nothing is destroyed. The next `undo` continues from the restored position. If the memory is equal already, one
        `core_update` without a change records that.

        Returns:
            Number of appended operations.

        Raises:
            StoreError: The position is not in the log.
        """
        with self._transaction(write=True):
            log_end = self._namespace.log.position
            if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position <= log_end:
                raise StoreError(f"position {brief_repr(position)} is not in the log: 0 to {log_end} are")
            return timeline.restore(self._namespace, position)

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
        self._database.refuse_in_transaction("fork")
        if path is None:
            if namespace is None:
                raise StoreError("fork: give a namespace for a copy in this file, or a path for a new one")
            copy = self.namespace(namespace)
            with self._database.transaction(self._namespace.name, namespace), self._transaction(write=True):
                if copy._namespace.log.position:
                    raise StoreError(f"namespace {namespace!r} has a log already: give another name")
                self._namespace.copy_to(copy._namespace, self._namespace.log.resolve_position(as_of))
            return copy
        name, database = self._namespace.name if namespace is None else namespace, self._database
        with (
            copy_noted(database, path),
            self._transaction(),
            create_namespace(path, database.meta, name, self.schema) as target,
        ):
            self._namespace.copy_to(target, self._namespace.log.resolve_position(as_of))
        return MemoryStore.open(
            path,
            self.schema,
            self._embedder.requested,
            name,
            clock=database.clock,
            max_content=self._max_content,
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
        self._database.refuse_in_transaction("backup")
        if is_url(path):
            raise StoreError(f"backup: a file path is needed, not {path!s:.40}; `memalpha copy` copies to a server")
        return back_up(self._database, self.schema, path)

    def export_jsonl(self, path: str | Path) -> int:
        """Write the namespace's log, one operation per line. The file appears when complete.

        Returns the number of operations.
        """
        check_path("path", path)
        return write_jsonl(Path(path), self.schema, self._namespace.name, self._log_rows(0))

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
        lines = read_jsonl(Path(path))
        contents = stored_contents(path, lines)
        for content in contents:
            check_content_size(content, self._max_content)
        vectors = self._embed(contents)
        with self._transaction(write=True):
            return apply_lines(self._namespace, path, lines, vectors)
