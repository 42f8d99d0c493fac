"""Transactions on a store file's connection: joined ones, a caller's own with savepoints, and errors in words."""

from __future__ import annotations

import os
import shutil
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import RLock
from typing import NoReturn

from memalpha.errors import DamagedStore, DeadlineExceeded, StoreError
from memalpha.forks import ForkAware
from memalpha.store.backends.base import CANNOT_WRITE, Backend, Clock, Durability
from memalpha.store.backends.deadline import watched

_FULL = 1 << 20  # free bytes below which an error of the disk is put down to a full one
LOCK_TIMEOUT = 30.0  # seconds that a writer waits for the lock
_FORK_WAIT = 5.0  # seconds that a fork waits for the transactions of other threads

LEFT_OPEN: list[sqlite3.Connection] = []  # connections whose closing could remove a write-ahead log in use


class TransactionalConnection(Backend, ForkAware):
    """Connection whose transactions threads take in turns.

    SQLite allows no connection across a fork. So it is closed before one, and opened anew by the next transaction of
    either process. A child cannot use a store in memory, or one with an open transaction: there it raises `StoreError`.
    """

    def __init__(self, path: str, durability: Durability, clock: Clock) -> None:
        super().__init__(path, durability, clock)
        self._lock = RLock()
        self._writes = False  # True if the open transaction may write
        self._atomic_namespaces: tuple[str, ...] | None = None  # those of `atomic`, while it is open
        self.namespace_ids: dict[str, int] = {}
        self._data_version = 0
        # True if the connection is closed until the next transaction, or cannot be used in this process.
        self._is_paused = self._is_unusable = False

    @abstractmethod
    def _open(self) -> None:
        """Open the file of a closed connection."""

    def before_fork(self) -> bool:
        """Close the connection unless a transaction uses it; return True if this thread holds the lock."""
        if not self._lock.acquire(timeout=_FORK_WAIT):
            return False
        if not self._is_paused and self.path != ":memory:" and not self._connection.in_transaction:
            self._connection.close()
            self._is_paused = True
        return True

    def after_fork(self, state: bool) -> None:
        """Let the other threads go on."""
        if state:
            self._lock.release()

    def reset_in_child(self, state: bool) -> None:
        """Take a new lock; a connection that could not be closed stays that of the parent alone."""
        self._lock = RLock()
        if not self._is_paused:
            self._is_unusable = True
            LEFT_OPEN.append(self._connection)

    def _resume_after_fork(self) -> None:
        """Open the file anew after a fork. Raises `StoreError` where that cannot be done."""
        if self._is_unusable:
            raise StoreError(
                f"{self.path}: this process was forked while the store was in memory or in a transaction: open a store "
                "in the new process"
            )
        if self._is_paused:
            self._is_paused = False
            self.namespace_ids.clear()
            try:
                self._open()
            except BaseException:
                self._is_paused = True
                raise

    def _check_file(self) -> None:
        """Raise `StoreError` if the file at the path is no longer the open one."""

    def _pragma(self, name: str) -> int:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a transaction: all writes happen or none, and all reads see one moment.

        Within another transaction of this thread it joins that one. Which `namespaces` it is for does not matter here,
        except inside `atomic`.
        """
        with self._lock:
            self._resume_after_fork()
            connection = self._connection
            try:
                self._check_atomic(namespaces)
                if connection.in_transaction:
                    if write and not self._writes:
                        raise StoreError(CANNOT_WRITE)
                    with self._savepoint() if write and self.is_atomic else nullcontext():
                        yield connection
                    return
                self._writes = write
                try:
                    with watched(connection):
                        # IMMEDIATE: wait for other writers here, before reading anything that they may change.
                        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                        if write:
                            self._check_file()
                        self._forget_ids_if_changed()
                        yield connection
                        self._check_atomic(())
                        self._resume_after_fork()  # the block may have forked: its child must not end the transaction
                    connection.execute("COMMIT")
                except BaseException:  # Ctrl-C included
                    self._note_rollback()
                    raise
                finally:
                    if not self._is_paused and not self._is_unusable and connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._raise_store_error(error)
            except OverflowError as error:
                raise DamagedStore(
                    f"{self.path}: a number of the file is at its limit: run `memalpha doctor`"
                ) from error

    @contextmanager
    def without_waiting(self) -> Iterator[bool]:
        is_free = self._lock.acquire(blocking=False)
        try:
            yield is_free and not self._is_paused
        finally:
            if is_free:
                self._lock.release()

    @contextmanager
    def atomic(self, *namespaces: str) -> Iterator[None]:
        with self.transaction(*namespaces):
            self._atomic_namespaces = namespaces
            try:
                yield
                self._check_atomic(())
            finally:
                self._atomic_namespaces = None

    @property
    def is_atomic(self) -> bool:
        with self._lock:  # of another thread's `atomic`, this one waits for the end
            return self._atomic_namespaces is not None

    @property
    def is_writing(self) -> bool:
        return self._connection.in_transaction and self._writes

    def _check_atomic(self, namespaces: Sequence[str]) -> None:
        """Raise `StoreError` inside an `atomic` that SQLite has rolled back, or that is of other namespaces."""
        if self._atomic_namespaces is None:
            return
        if not self._connection.in_transaction:
            raise StoreError(f"{self.path}: an error has rolled the transaction back: nothing of it was stored")
        foreign = set(namespaces).difference(self._atomic_namespaces)
        if foreign:
            raise StoreError(
                f"namespace {foreign.pop()!r}: the open transaction is of {self._atomic_namespaces[0]!r} alone"
            )

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Undo the block alone if it fails."""
        self._connection.execute("SAVEPOINT operation")
        try:
            yield
        except BaseException:
            self._note_rollback()
            if self._connection.in_transaction:  # a full disk rolls back everything
                self._connection.execute("ROLLBACK TO operation")
                self._connection.execute("RELEASE operation")
            raise
        self._connection.execute("RELEASE operation")

    def _note_rollback(self) -> None:
        self.rollbacks += 1
        self.namespace_ids.clear()  # an id assigned in this transaction may be reused for another name

    def _forget_ids_if_changed(self) -> None:
        """Forget the ids of namespaces if another connection has written, which may have dropped one."""
        version = self._pragma("data_version")
        if version != self._data_version:
            self.namespace_ids.clear()
            self._data_version = version

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._raise_store_error(error)

    def _raise_store_error(self, error: sqlite3.Error) -> NoReturn:
        """Raise the error in the store's words, with what to do."""
        if isinstance(error, sqlite3.ProgrammingError):
            if "closed" not in str(error):
                raise error
            raise StoreError(f"the store {self.path} is closed") from error
        code = getattr(error, "sqlite_errorname", "")
        if code == "SQLITE_INTERRUPT":
            raise DeadlineExceeded from error
        if code.startswith("SQLITE_NOTADB"):
            raise StoreError(f"{self.path} is not a memalpha store: give another path") from error
        if code.startswith("SQLITE_BUSY"):
            raise StoreError(
                f"{self.path}: another process has kept it locked for {LOCK_TIMEOUT:.0f} s: try again"
            ) from error
        if code.startswith("SQLITE_CORRUPT") or "Could not decode" in str(error):
            message = f"{self.path} is damaged ({str(error)[:100]}): restore a backup, or run `memalpha doctor`"
            raise DamagedStore(message) from error
        raise StoreError(f"{self.path}: {_explain(self.path, code) or error}") from error


def _explain(path: str, code: str) -> str:
    """Return what an error of the disk, the rights or the descriptors means, and what to do; "" for other errors."""
    folder = Path(path).absolute().parent
    try:
        is_full = shutil.disk_usage(folder).free < _FULL
    except OSError:
        is_full = False
    if code.startswith("SQLITE_FULL") or (code.startswith("SQLITE_IOERR") and is_full):
        return "the disk is full: make room, and try again"
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) and folder.is_dir():
        if not all(os.access(p, os.W_OK) for p in (path, folder) if Path(p).exists()):
            return "the file or its folder is read-only: open it with read_only=True, or allow this user to write both"
        if code.startswith("SQLITE_CANTOPEN"):
            return "the file cannot be opened: is it a file, and may this process open more of them (ulimit -n)?"
    if code.startswith("SQLITE_IOERR"):
        return f"the disk reports an error ({code}): look at the system's log, and try again"
    return ""
