"""`MemoryStore`: a durable `Memory` in one SQLite file or in PostgreSQL, with history, undo, restore, past states and
namespaces.

Every operation is one transaction appending to the log, under the very rules of `MemoryState`. What searches need (a
`Corpus`) is a cache in memory that follows the log, other processes' writes included; PostgreSQL searches by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from weakref import WeakSet

import numpy as np

from memalpha.errors import InvalidContent, StoreError, UnknownEntry
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend, Clock, Durability, system_clock
from memalpha.store.bulk_insert import Fact, insert_facts, normalize_vectors, validate_facts, vector_blobs
from memalpha.store.embedding import Embedder
from memalpha.store.indexing import cache
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.io.jsonl import apply_lines, read_jsonl, stored_contents, write_jsonl
from memalpha.store.open import create_namespace, open_database
from memalpha.store.schema import MemorySchema
from memalpha.store.search.vectors import PRECISIONS, Precision
from memalpha.store.state import Change
from memalpha.store.store_reads import StoreReader
from memalpha.store.validation import check_timestamp, clean_content
from memalpha.types import MemoryEntry, Operation


class MemoryStore(StoreReader):
    """One namespace of a store; `open` gives the first. Threads may share it; a forked process opens its own.

    `as_of` in `get`, `list`, `search` and `core_at` is a log position (`snapshot`) or an ISO time (UTC unless it says
    otherwise) and means the memory after the operations up to and including it.
    """

    def __init__(
        self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str, vectors: Precision
    ) -> None:
        super().__init__(database, schema, embedder, namespace, vectors)
        self._scopes: WeakSet[MemoryStore] = WeakSet()  # of the same file
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
        vectors: Precision = "float32",
        clock: Clock = system_clock,
    ) -> MemoryStore:
        """Open a store file, or make one; ":memory:" lives as long as the object. `postgresql://user:password@host/db`
        is a store in a PostgreSQL database with pgvector, in its schema "memalpha" unless it ends in `?schema=name`.

        A new store takes `schema` ("mem-alpha") and `embedder` ("static") and records both. An existing one is opened
        with its own; naming others is an error. `create=False` refuses to make a new file. A recorded embedder other
        than "static", "hash" and "minilm" is loaded only if `embedder` names it: without that, whatever has to embed a
        text raises `StoreError`.

        `durability` holds for what this object writes. "full": a write that has returned is on disk. "normal": it is
        with the operating system, which is faster and loses nothing when the process is killed; a power failure or a
        crash of the system may take back the last operations (whole ones, the newest first; the file stays sound). In
        PostgreSQL "normal" is the server's `synchronous_commit = off`: its crash may take them back, too.

        `vectors`: how this object holds them in memory for searches; the file always has float32. "float16" takes half
        of that and "int8" a quarter. The best 4 * k (at least 32) by those vectors are then scored with the file's:
        the `dense` of every hit is exact, and so is the order among these. Not exact is which ones they are (also with
        `exact=True`), how `dense` is scaled in a sum, and group prototypes. What passes a filter is not touched by it,
        and `as_of` uses the file's vectors throughout. To search up to 50,000 entries takes three times as long.

        `clock` gives the time (with its zone) that the log notes and that entries expire by.

        Raises `StoreError`, `EmbedderError` or `ConfigError` with what to do.
        """
        if vectors not in PRECISIONS:
            raise StoreError(f"vectors {vectors!r}: {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]} is needed")
        database, recorded_schema, recorded_embedder = open_database(
            path, schema, embedder, create=create, durability=durability, clock=clock
        )
        try:
            return cls(database, recorded_schema, recorded_embedder, namespace, vectors)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close the connections, or the file, and save the index of a large memory beside it (see `cache`). A scope
        made by `namespace` leaves them open: they belong to the store that was opened."""
        if not self._is_scope:
            try:
                for store in (self, *self._scopes):
                    store._index.close()
            finally:
                self._database.close()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MemoryStore({self._database.path!r}, namespace={self._namespace.name!r})"

    def namespace(self, name: str) -> MemoryStore:
        """Another namespace of the same file, with a log of its own; namespaces never see each other."""
        scope = MemoryStore(self._database, self.schema, self._embedder, name, self._precision)
        scope._is_scope, scope._scopes = True, self._scopes
        self._scopes.add(scope)
        return scope

    def namespaces(self) -> list[str]:
        """The names of all namespaces that were ever written to."""
        with self._database.transaction(write=False):
            return self._database.namespaces()

    def change(self, operation: Operation) -> Change:
        """Make one operation happen and be on disk; raises `StoreError` if the rules refuse it."""
        check_timestamp(operation.timestamp)
        try:
            content = clean_content(operation.content) if operation.kind in ("insert", "update") else None
        except InvalidContent:  # refused below, unless something else is said first
            content = None
        vectors = None
        if content is not None:
            with self._namespace.transaction(write=False):
                vectors = self._namespace.stored_vectors([content])
            # Embedded before the lock is taken, so that a slow embedder keeps no other process waiting.
            vectors = vectors or {content: self._embedder.load().encode([content])[0]}
        with self._namespace.transaction():
            return self._namespace.write(operation, vectors, log_end=self._end_expired())

    def insert_many(self, facts: Iterable[Fact], vectors: np.ndarray | None = None) -> list[MemoryEntry]:
        """`insert` for many facts, mappings of its arguments by name, all or none: embedded in one batch, or with their
        embeddings given as `vectors` `(n, dim)`. Raises `StoreError` naming the fact that is refused."""
        pairs = validate_facts(facts)
        if vectors is None:
            contents = list(dict.fromkeys(content for _, content in pairs))
            blobs = vector_blobs(contents, StoredEmbedder(self._namespace, self._embedder.load()).encode(contents))
        else:
            contents = [content for _, content in pairs]
            blobs = vector_blobs(contents, normalize_vectors(len(pairs), vectors, self._embedder.dim))
        with self._transaction(write=True):
            return insert_facts(self._namespace, pairs, blobs)

    def undo(self) -> Operation | None:
        """Take back the last operation that is in effect, by appending its inverse; call again to go further back.

        Returns the operation that was taken back, or None if there is none left. After a `restore`, undoing goes on
        from the restored position.
        """
        with self._transaction(write=True):
            return timeline.undo(self._namespace)

    def redo(self) -> Operation | None:
        """Bring back the operation that the last `undo` took back; call again to go further forward.

        Returns the operation, or None if there is none to bring back: any other write, a `restore` too, ends what
        could be brought back. What waits for a redo is read off the log, so it is there after reopening and importing.
        """
        with self._transaction(write=True):
            return timeline.redo(self._namespace)

    def restore(self, position: int) -> int:
        """Go back to the facts and core memory of a snapshot, by appending operations (nothing is destroyed), all in
        one transaction, and make it what `undo` goes on from: where only that differs, by a `core_update` that changes
        nothing. Returns how many operations it took. Raises `StoreError` for a position that is not in the log."""
        with self._transaction(write=True):
            if not isinstance(position, int) or not 0 <= position <= self._namespace.position:
                raise StoreError(f"position {position!r} is not in the log: 0 to {self._namespace.position} are")
            return timeline.restore(self._namespace, position)

    def fork(
        self, namespace: str | None = None, *, path: str | Path | None = None, as_of: int | str | None = None
    ) -> MemoryStore:
        """A copy of this namespace's log up to `as_of` (now), ids, positions and times kept, that goes on by itself.

        In this file under the name `namespace`, or in a new file at `path` (under this one's name, if no other is
        given). The whole copy is there or nothing. Raises `StoreError` where something is there already.
        """
        if path is None:
            if namespace is None:
                raise StoreError("fork: give a namespace for a copy in this file, or a path for a new one")
            copy = self.namespace(namespace)
            with self._database.transaction(self._namespace.name, namespace), self._transaction(write=True):
                if copy._namespace.position:
                    raise StoreError(f"namespace {namespace!r} has a log already: give another name")
                self._namespace.copy_to(copy._namespace, self._namespace.resolve_position(as_of))
            return copy
        name, database = namespace or self._namespace.name, self._database
        with self._transaction(), create_namespace(path, database.meta, name, self.schema) as target:
            self._namespace.copy_to(target, self._namespace.resolve_position(as_of))
        return MemoryStore.open(path, self.schema, self._embedder.requested, name, clock=database.clock)

    def erase(self, *ids: str) -> list[str]:
        """Remove all that entries ever held, for good: from the log, past states, vectors, and the file's free space.

        The operations stay in their place as stubs without content, date, origin or id (an id tells of the content),
        which change nothing: past states, undo and restore are as if the entries had never been. Nothing brings them
        back but an export or a copy of the file made before, a fork included. The core memory is a text of its own: its
        past goes only with `erase_all`. The file is rewritten, which takes time.

        In PostgreSQL no statement finds any of it once this has returned. But its bytes stay on the server: in the
        tables' files until vacuum has made room of them and others are written there (at once with `VACUUM FULL
        memalpha.operations, memalpha.versions, memalpha.vectors, memalpha.postings`, by their owner, while nobody else
        works), in the write-ahead log until it is recycled, and in replicas and backups as long as those are kept.

        Returns the other ids that hold, or held, exactly the same content; they are left as they are. Raises
        `UnknownEntry`, and `StoreError` where other processes keep the file from being rewritten.
        """
        self._scrub()  # what an erasure that was cut short has left to do
        with self._transaction(write=True):
            for id in ids:
                if self._namespace.latest_version(id) is None:
                    raise UnknownEntry(f"no entry ever had the id {id!r}")
            same_content_ids = self._namespace.ids_with_same_content(ids)
            self._erase(ids)
        self._scrub()
        return same_content_ids

    def erase_all(self) -> int:
        """`erase` the whole namespace, core memory included; only its name and the stubs of its operations, which are
        counted, stay."""
        with self._transaction(write=True):
            count = self._erase(None)
        self._scrub()
        return count

    def _erase(self, ids: Collection[str] | None) -> int:
        cache.remove_index_files(self._database, self._namespace.name)
        return self._namespace.erase(ids)

    def _scrub(self) -> None:
        """Finish what an erasure has begun, of which namespace ever."""
        with self._database.transaction(write=False):
            is_due = self._database.is_scrub_due
        if is_due:
            cache.remove_index_files(self._database)  # those too that were being written meanwhile
            self._database.scrub()

    def export_jsonl(self, path: str | Path) -> int:
        """Write the namespace's whole log, one operation a line, and return their number; the file appears at once."""
        return write_jsonl(Path(path), self.schema, self._namespace.name, self._log_rows(0))

    def import_jsonl(self, path: str | Path) -> int:
        """Apply the operations of a file, all or none, and return how many took effect.

        An exported log gives an empty namespace the same entries, ids and positions, undo included. Lines may be
        facts of one's own as well: `{"category": "semantic", "content": "..."}`. Exact duplicates without an id are
        left out. Raises `DataError` naming file, line and field.
        """
        lines = read_jsonl(Path(path))
        vectors = self._embed(stored_contents(path, lines))
        with self._transaction(write=True):
            return apply_lines(self._namespace, path, lines, vectors)
