"""Reading SQLite files without writing anything: no log, no lock file, no cache, on read-only folders too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memalpha.errors import StoreError
from memalpha.store.backends.base import Clock, system_clock
from memalpha.store.backends.sqlite import SQLiteDatabase


class ReadOnlyDatabase(SQLiteDatabase):
    """Connection that writes nothing.

    A file without a write-ahead log is read as immutable, as long as it is unchanged. Entries that have expired must
    be ended in the log. That happens in a private copy in memory, which replaces the connection until the file changes.
    """

    def __init__(self, path: str, *, clock: Clock = system_clock, inspect: bool = False) -> None:
        """Open a file.

        Args:
            path: Path of an existing file.
            clock: Returns the current time.
            inspect: Open a file with foreign objects too, as in `SQLiteDatabase`.

        Raises:
            StoreError: There is no such store, or it has another format.
        """
        self._file_state: tuple[Any, ...] = ()
        super().__init__(path, create=False, initial_meta=dict, clock=clock, inspect=inspect)

    @property
    def is_read_only(self) -> bool:
        return True

    def _read_identity(self) -> None:
        """Return None: another file at the path is read from then on."""

    def _connect(self) -> sqlite3.Connection:
        self._is_private = False
        self._file_state = self._read_file_state()
        mode = "mode=ro" if self._file_state[1] else "mode=ro&immutable=1"
        uri = f"file:{quote(self._file)}?{mode}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)

    def _read_file_state(self) -> tuple[Any, ...]:
        """Return what changes when somebody writes: size and time of the file, and the size of its log."""
        status, log = Path(self._file).stat(), Path(f"{self._file}-wal")
        return (status.st_ino, status.st_size, status.st_mtime_ns), log.stat().st_size if log.exists() else 0

    def _prepare(self, *_: Any) -> None:
        with self._translated_errors():
            self._set_limits()
            if self._is_new():
                raise StoreError(f"{self.path} is an empty database, not a memalpha store")
            self._check_format()
            self.meta = dict(self._connection.execute("SELECT key, value FROM meta"))

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[sqlite3.Connection]:
        if write:
            raise StoreError(f"{self.path} was opened read-only: open it without read_only to write")
        with self._lock:
            self._resume_after_fork()
            if not self._connection.in_transaction:
                self._reopen_if_changed()
            with super().transaction(*namespaces, write=write) as connection:
                yield connection
            if not self._file_state[1] and self._read_file_state() != self._file_state:  # an immutable one is not
                raise StoreError(f"{self.path} was written while it was read: try again")

    def _reopen_if_changed(self) -> None:
        if self._read_file_state() != self._file_state:
            self._connection.close()
            self._open()

    @contextmanager
    def expiry_transaction(self, namespace: str) -> Iterator[None]:
        with self._lock:
            self._resume_after_fork()
            if not self._is_private:
                copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                with self._translated_errors():
                    self._connection.backup(copy)
                self._connection.close()
                self._connection = copy
            self._is_private = True
            with super().transaction(namespace):
                yield
