"""Move a namespace to another server while others read and write it.

1. The log, entries and vectors are copied from one moment of the source, into a closed namespace of the target.
2. What was written and erased meanwhile is copied, until little is left; then both copies are compared.
3. The writers' lock of the source is taken: the last operations are copied, the ends of both logs are compared, and the
   source is closed in the transaction that holds the lock. Whoever comes now waits. What takes longer for a larger
   namespace was done before.
4. The routing table sends the namespace to the target: one statement, the one moment of the move.
5. The target is opened. The rows of the source are deleted.

A process killed before 4 leaves the namespace at the source, after it at the target, whole in both cases, and perhaps
closed there: the next to come opens it (`ShardedDatabase.settle`). Rows of the other copy are never read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from memalpha.errors import StoreError
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.namespace import PostgresNamespace
from memalpha.store.backends.shards.database import ShardedDatabase
from memalpha.store.backends.shards.directory import MoveLock
from memalpha.store.backends.shards.rows import (
    copy_members,
    copy_since,
    delete_rows,
    extent,
    log_end,
    reopen,
    set_closed,
)
from memalpha.store.schema import MemorySchema

_FEW_OPERATIONS = 10  # operations that may be left for the pause
_MAX_ROUNDS = 20  # rounds of catching up, then the pause begins whatever is left


@dataclass(frozen=True, slots=True)
class Move:
    """A move that was made.

    Attributes:
        namespace: Name of the namespace.
        source: URL of the server that it came from.
        target: URL of the server that has it now.
        operations: Length of its log.
        pause: Seconds for which nobody could write, from the writers' lock of the source to the opened target.
        queued: Seconds before that in which the move waited for its turn, while others wrote.
    """

    namespace: str
    source: str
    target: str
    operations: int
    pause: float
    queued: float


def move_namespace(
    database: ShardedDatabase,
    name: str,
    target_url: str,
    schema: MemorySchema,
    *,
    progress: Callable[[str], None] = lambda stage: None,
) -> Move:
    """Move a namespace to another server of a store; see the module.

    Args:
        database: The store, opened by the owner of the tables.
        name: Name of the namespace.
        target_url: URL of the server, as the routing table has it.
        schema: Schema of the store.
        progress: Called at the begin of each stage: "copy", "catch up", "pause", "closed", "switched", "open", "tidy".

    Returns:
        The move.

    Raises:
        StoreError: There is no such namespace or server, it moves already, or a server is away. The namespace is
            whole then, where the routing table has it.
    """
    urls = {number: url for number, (url, _) in database.directory.shards().items()}
    target_number = next((number for number, url in urls.items() if url == target_url), None)
    if target_number is None:
        raise StoreError(f"{target_url} is no server of {database.path}: `memalpha shards list` lists them")
    with database.directory.move_lock(name) as lock:
        if lock is None:
            raise StoreError(f"the namespace {name!r} is being moved already")
        source_number = lock.shard
        if source_number is None:
            raise StoreError(f"no namespace {name!r}: {database.path} sends it nowhere")
        reopen(database.shard(source_number), name)  # a move of a process that was killed may have left it closed
        if source_number == target_number:
            raise StoreError(f"the namespace {name!r} is at {target_url} already")
        source = database.open_server(urls[source_number], opens_closed=True)
        try:
            target = database.open_server(target_url, opens_closed=True)
            try:
                copies = _Copies(PostgresNamespace(source, name, schema), PostgresNamespace(target, name, schema))
                return _move(copies, lock, (source_number, target_number), database, progress)
            finally:
                target.close()
        finally:
            source.close()


class _Copies:
    """Both copies of a namespace while it moves."""

    def __init__(self, source: PostgresNamespace, target: PostgresNamespace) -> None:
        self.source, self.target = source, target
        self.source_id = -1
        self.position = 0
        self.locked_at = 0.0  # when the writers' lock of the source was got

    def copy_all(self) -> None:
        """Copy everything of one moment of the source, in place of anything that the closed target has."""
        with self.source.transaction(write=False), self.target.transaction():
            self.source_id = self.source.scope.namespace_id
            if self.source_id < 0:
                raise StoreError(f"no namespace {self.source.name!r} at {self.source.database.path}")
            database: PostgresDatabase = self.target.database
            if database.all_namespaces().get(self.target.name) is False:
                raise StoreError(
                    f"{database.path} has a namespace {self.target.name!r} of its own, which the routing table does "
                    "not know: copy it away and drop it there first"
                )
            self.target.scope.create()
            set_closed(self.target, True)
            delete_rows(self.target)
            self.position = self.source.log.position
            self.source.copy_to(self.target, self.position)

    def catch_up(self) -> int:
        """Copy what was written and erased in the source since; return the number of operations."""
        with self.source.transaction(write=False), self.target.transaction():
            return self._catch_up()

    def compare(self) -> None:
        """Catch up and compare the whole copies. Raises `StoreError` if they differ."""
        with self.source.transaction(write=False), self.target.transaction():
            self._catch_up()
            self._check(extent(self.source) == extent(self.target))

    def _check(self, is_equal: bool) -> None:
        if not is_equal:
            raise StoreError(f"the copy of {self.source.name!r} differs from it: nothing was moved; run doctor")

    def _catch_up(self) -> int:
        if self.source.scope.namespace_id != self.source_id:
            raise StoreError(f"the namespace {self.source.name!r} was dropped meanwhile")
        end = copy_since(self.source, self.target, self.position)
        count, self.position = end - self.position, end
        return count

    def finish(self) -> None:
        """Copy the rest and close the source, in the turn of its writers. Raises `StoreError`."""
        with self.source.transaction():
            self.locked_at = time.monotonic()
            with self.target.transaction():
                self._catch_up()
                self._check(log_end(self.source) == log_end(self.target))
                copy_members(self.source, self.target)
            set_closed(self.source, True)


def _move(
    copies: _Copies,
    lock: MoveLock,
    numbers: tuple[int, int],
    database: ShardedDatabase,
    progress: Callable[[str], None],
) -> Move:
    name = copies.source.name
    progress("copy")
    copies.copy_all()
    progress("catch up")
    for _ in range(_MAX_ROUNDS):
        if copies.catch_up() <= _FEW_OPERATIONS:
            break
    copies.compare()
    begin = time.monotonic()
    progress("pause")
    try:
        copies.finish()
        progress("closed")
        lock.switch(*numbers)
    except BaseException:
        # Open it where the table has it now. If the lock was lost, the next to come does that.
        with suppress(StoreError):
            if (number := lock.shard) is not None:
                reopen(database.shard(number), name)
        raise
    progress("switched")
    reopen(copies.target.database, name)
    pause, queued = time.monotonic() - copies.locked_at, copies.locked_at - begin
    progress("open")
    with copies.source.transaction():
        progress("tidy")
        delete_rows(copies.source)
    return Move(name, copies.source.database.path, copies.target.database.path, copies.position, pause, queued)
