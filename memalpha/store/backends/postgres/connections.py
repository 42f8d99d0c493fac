"""Connections to one PostgreSQL server: a pool of them, their deadlines, and what happens while the server is silent.

A silent server (a cut network, a stopped machine) answers no new connection in time. Threads that wait for it would
wait for long. So a look at it (`ping`) that gets no answer ends the connections in use, and until it answers again one
thread at a time looks while all others get their error at once: nobody else waits because of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from memalpha.errors import StoreError, StoreUnavailable
from memalpha.forks import ForkAware
from memalpha.store.backends.postgres.errors import explain_connection_error
from memalpha.store.backends.postgres.url import CONNECTIONS

LOCK_TIMEOUT = 30  # seconds that a writer waits for its lock, or a thread for a connection
CONNECT_TIMEOUT = 10  # seconds for the server to answer

_PING_TIMEOUT = 2  # the least that libpq knows
_POOL_WAIT = 1  # seconds that a thread waits for a connection before it looks whether the server is there
_DEAD_PEER = {"tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}


class Connections(ForkAware):
    """Pooled connections to one server, which messages call `path`."""

    def __init__(
        self, conninfo: str, path: str, configure: Callable[[psycopg.Connection], None], size: int = CONNECTIONS
    ) -> None:
        """Prepare the pool; the first connection is made when one is needed.

        Args:
            conninfo: URL or connection string.
            path: Name of the server in messages, without secrets.
            configure: Prepares a new connection.
            size: Connections at most.
        """
        self._conninfo, self.path, self._size = conninfo, path, size
        self._configure, self._inherited = configure, ()
        self._open()
        self.watch_forks()

    def _open(self) -> None:
        # Weak: a connection that a Ctrl-C tore out of the hands of its borrower is closed, and its transaction ended.
        self._in_use: WeakSet[psycopg.Connection] = WeakSet()
        self._is_silent, self._looking = False, Lock()
        peer = {name: value for name, value in _DEAD_PEER.items() if f"{name}=" not in self._conninfo}
        self._pool: ConnectionPool[psycopg.Connection] = ConnectionPool(
            self._conninfo,
            min_size=0,
            max_size=self._size,
            num_workers=1,
            reconnect_timeout=_POOL_WAIT,  # the pool's own retries get rarer: a server that is back would wait for them
            configure=self._configure,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_TIMEOUT, **peer},
            open=True,
        )

    def reset_in_child(self, state: object) -> None:
        """Open a pool of its own; that of the parent stays referenced, so that nothing closes its connections."""
        self._inherited = (self._inherited, self._pool, list(self._in_use))
        self._open()

    def connect(self, timeout: int = CONNECT_TIMEOUT) -> psycopg.Connection:
        """Return a connection outside of the pool. Raises `StoreUnavailable`."""
        try:
            return psycopg.connect(self._conninfo, autocommit=True, connect_timeout=timeout)
        except psycopg.Error as error:
            raise StoreUnavailable(f"{self.path}: {explain_connection_error(error)}", "nothing was done") from error

    def ping(self) -> None:
        """Check on a new connection that the server answers; end the connections of one that is silent.

        Raises:
            StoreUnavailable: It does not answer.
        """
        try:
            self.connect(_PING_TIMEOUT).close()
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                self._is_silent = True
                # The threads that wait at these sockets get the error of a lost connection.
                for connection in tuple(self._in_use):
                    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as peer:
                        peer.shutdown(socket.SHUT_RDWR)
            raise
        self._is_silent = False

    def checkout(self) -> psycopg.Connection:
        """Return a connection of the pool; `checkin` takes it back.

        Raises:
            StoreUnavailable: The server cannot be reached.
            StoreError: All connections are in use for long.
        """
        if self._is_silent:
            if not self._looking.acquire(blocking=False):
                raise StoreUnavailable(f"{self.path}: the server does not answer", "nothing was done")
            try:
                self.ping()
            finally:
                self._looking.release()
        for _ in range(LOCK_TIMEOUT // _POOL_WAIT):
            with suppress(PoolTimeout):
                connection = self._pool.getconn(timeout=_POOL_WAIT)
                self._in_use.add(connection)
                return connection
            self.ping()  # raises the reason, unless all connections are in use
        raise StoreError(f"{self.path}: all {self._size} connections have been in use for {LOCK_TIMEOUT} s")

    def checkin(self, connection: psycopg.Connection) -> None:
        """Take a connection back, rolling back what it has open."""
        if connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        self._in_use.discard(connection)
        self._pool.putconn(connection)

    def close(self) -> None:
        """Close all connections; closing again does nothing."""
        self._pool.close()
