"""Connections to one PostgreSQL server: its URL, a pool, deadlines, and its errors in the store's words.

A silent server (a cut network, a stopped machine) answers no new connection in time. Threads that wait for it would
wait for long. So a look at it (`ping`) that gets no answer ends the connections in use, and until it answers again one
thread at a time looks while all others get their error at once: nobody else waits because of it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NoReturn
from urllib.parse import unquote
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from memalpha.errors import DamagedStore, DeadlineExceeded, StoreError, StoreUnavailable
from memalpha.forks import ForkAware

SCHEMA = "memalpha"
CONNECTIONS = 10
"""Connections of a store to a server at most, unless the URL says otherwise; further threads wait."""


def split_schema(url: str, default: str = SCHEMA) -> tuple[str, str]:
    """Split our own key `schema` off a URL; return the rest and the schema (`default` without one)."""
    rest, values = _split_key(url, "schema")
    schema = unquote(values[-1]) if values else default
    if not re.fullmatch(r"(?!pg_)[A-Za-z0-9_ -]{1,63}", schema):
        message = "1 to 63 letters (of a to z), digits, _, - and spaces that do not begin with pg_ are needed"
        raise StoreError(f"schema {schema!r}: {message}")
    return rest, schema


def split_connections(url: str) -> tuple[str, int]:
    """Split our own key `connections` off a URL. Raises `StoreError` unless its value is a number above 0."""
    rest, values = _split_key(url, "connections")
    if values and not re.fullmatch(r"0*[1-9][0-9]{0,3}", values[-1]):
        raise StoreError(f"connections={values[-1]!r:.40}: a number above 0 is needed")
    return rest, int(values[-1]) if values else CONNECTIONS


def _split_key(url: str, key: str) -> tuple[str, list[str]]:
    """Return a URL without a key of its query, and the values that the key has."""
    start, _, query = url.partition("?")
    items = [item.partition("=") for item in query.split("&") if item]
    rest = "&".join("".join(item) for item in items if item[0] != key)
    return start + (f"?{rest}" if rest else ""), [value for name, _, value in items if name == key]


def redact_url(url: str) -> str:
    """Return a URL without its passwords."""
    url = re.sub(r"^([\w+]+://[^:@/?]*):[^@/?]*@", r"\1@", url)
    start, _, query = url.partition("?")
    visible = "&".join(item for item in query.split("&") if item and "password" not in item.partition("=")[0])
    return start + (f"?{visible}" if visible else "")


_CONNECTION_LOST = ("08", "57P01", "57P02", "57P03")  # error classes and codes after which the connection is gone
_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout


def raise_store_error(error: psycopg.Error, path: str, state: str, admit: str | None) -> NoReturn:
    """Raise a PostgreSQL error as a `StoreError`.

    Args:
        error: Error of the server or the driver.
        path: URL of the store, without secrets.
        state: Known outcome of the transaction; may be "".
        admit: Call of the function `admit` for the hint; None while the store is being opened.
    """
    code, outcome = error.sqlstate or "", f": {state}" if state else ""
    if isinstance(error, PoolClosed):
        raise StoreError(f"the store {path} is closed") from error
    if is_connection_lost(error):
        raise StoreUnavailable(f"{path}: the connection was lost{outcome} ({first_line(error)})", state) from error
    if code == "57014":  # statement_timeout
        raise DeadlineExceeded from error
    if code in _CONFLICTS:
        raise StoreError(f"{path}: another transaction conflicted, or kept it locked{outcome}: try again") from error
    if code.startswith("XX00"):
        raise DamagedStore(f"{path} is damaged ({first_line(error)}): restore a backup") from error
    if code == "42501":
        if admit is None:
            hint = "the role needs CREATE on the database, or on that schema; or give another with ?schema=NAME"
            raise StoreError(f"{path}: {first_line(error)}: {hint}") from error
        raise StoreError(
            f"{path}: {first_line(error)}: the tables' owner may admit a role to a namespace with SELECT {admit}"
        ) from error
    raise StoreError(f"{path}: {first_line(error)}{outcome}") from error


def first_line(error: psycopg.Error) -> str:
    """Return the first line of an error's message."""
    text = error.diag.message_primary or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def explain_connection_error(error: psycopg.Error) -> str:
    """Return why a connection failed, and what to do."""
    text = str(error)
    last_line = text.strip().splitlines()[-1].strip() if text.strip() else type(error).__name__
    if "password" in text or "authentication" in text or "pg_hba.conf" in text:
        return f"the server refuses the user ({last_line}): look at user and password in the URL"
    if re.search(r'database ".*" does not exist', text):
        return f"the server has no such database ({last_line}): make it with CREATE DATABASE, or look at the URL"
    if re.search(r'role ".*" does not exist', text):
        return f"the server has no such user ({last_line}): look at the URL"
    if "too many" in text or "remaining connection slots" in text:
        return f"the server takes no more connections ({last_line}): close some, or raise its max_connections"
    return f"no server can be reached ({last_line}): is it running, and are host and port right?"


def is_connection_lost(error: psycopg.Error) -> bool:
    """Return True if the connection is gone: the server answered nothing, or that it is stopping."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_CONNECTION_LOST)


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
