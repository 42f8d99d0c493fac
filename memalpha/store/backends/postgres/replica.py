"""Reads from a streaming replica, no older than a bound.

The process asks the primary for the end of its write-ahead log, a *mark*. A replica that has replayed the log up to the
mark has all that was committed before the mark was taken. A read goes to the replica only if its mark

- is at most `max_lag` seconds old: a read misses nothing that was committed so long before it began,
- was taken after the last transaction that this store made on the primary: it reads its own writes, and a later read
  never shows less than an earlier one.

Otherwise the primary is read. No clock of another machine counts, and a replica that has stopped is noticed at the next
mark. Writes, and what is read in their transactions, go to the primary.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import psycopg

from memalpha.errors import StoreError
from memalpha.store.backends.postgres.connections import Connections

_SYSTEM = "(SELECT system_identifier::text FROM pg_control_system())"
_PAUSE = 0.05  # seconds for which a replica that was behind is left alone
_AWAY_PAUSE = 5.0  # the same for one that could not be asked


class _Mark(NamedTuple):
    position: str  # in the write-ahead log
    system: str  # identifier of the primary, which its replicas share
    time: float  # monotonic, before it was taken
    commits: int  # transactions on the primary that had ended


class Replica:
    """A replica of a primary; `checkout` returns a connection to it if it may be read."""

    def __init__(self, primary: Connections, connections: Connections, max_lag: float) -> None:
        """Watch a replica.

        Args:
            primary: Connections to the primary.
            connections: Connections to the replica.
            max_lag: Seconds by which a read may be behind.
        """
        self._primary, self.connections, self._max_lag = primary, connections, max_lag
        self._commits = 0
        self._mark: _Mark | None = None
        self._replayed: WeakKeyDictionary[psycopg.Connection, str] = (
            WeakKeyDictionary()
        )  # last mark that each had reached
        self._next_look = 0.0
        self._lock = Lock()
        self.reads = 0

    def checkin(self, connection: psycopg.Connection) -> bool:
        """Take a connection back if it is the replica's, else note that a transaction on the primary has ended.

        From then on reads must not show less. Returns True for the replica's.
        """
        if self.connections.has_lent(connection):
            self.connections.checkin(connection)
            return True
        self._commits += 1
        return False

    def checkout(self) -> psycopg.Connection | None:
        """Return a connection to the replica if it may be read now; None sends the read to the primary.

        Raises:
            StoreError: It is no replica of the primary.
        """
        now = time.monotonic()
        if now < self._next_look:
            return None
        mark = self._mark
        try:
            if mark is None or now - mark.time > self._max_lag or mark.commits != self._commits:
                mark = self._take_mark()
            connection = self.connections.checkout()
        except (StoreError, psycopg.Error):  # the primary says what is wrong, if it is the one that is away
            self._next_look = time.monotonic() + _AWAY_PAUSE
            return None
        try:
            if self._has_replayed(connection, mark) and time.monotonic() - mark.time <= self._max_lag:
                self.reads += 1
                return connection
            self._next_look = time.monotonic() + _PAUSE
        except psycopg.Error:
            self._next_look = time.monotonic() + _AWAY_PAUSE
        except BaseException:
            self.connections.checkin(connection)
            raise
        self.connections.checkin(connection)
        return None

    def _take_mark(self) -> _Mark:
        with self._lock:
            begin, commits = time.monotonic(), self._commits
            connection = self._primary.checkout()
            try:
                query = f"SELECT pg_current_wal_insert_lsn()::text, {_SYSTEM}"
                position, system = connection.execute(query.encode()).fetchone() or ("", "")
            finally:
                self._primary.checkin(connection)
            self._mark = _Mark(position, system, begin, commits)
            return self._mark

    def _has_replayed(self, connection: psycopg.Connection, mark: _Mark) -> bool:
        """Return True if the replica has the log up to a mark; asked before the read's transaction sees anything."""
        if self._replayed.get(connection) == mark.position:
            return True
        query = f"SELECT pg_is_in_recovery() AND pg_last_wal_replay_lsn() >= $1::text::pg_lsn, {_SYSTEM}"
        has_replayed, system = connection.execute(query.encode(), [mark.position]).fetchone() or (False, "")
        if system != mark.system:
            raise StoreError(f"{self.connections.path}: this is no replica of the store's server: look at the URL")
        if has_replayed:
            self._replayed[connection] = mark.position
        return bool(has_replayed)
