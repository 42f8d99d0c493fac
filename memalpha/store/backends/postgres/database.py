"""PostgreSQL schema of stores: connections and transactions.

Reads are REPEATABLE READ: everything inside one transaction sees one moment. Writers of one namespace take turns: they
lock its row in `namespaces` before reading anything. READ COMMITTED then sees all writes of the previous writer, and
nobody else writes there. Writers of different namespaces do not wait for each other. Threads work in parallel, each
transaction on its own pooled connection. A write that has returned is on disk (`synchronous_commit` is switched on
where it is off).

A connection that turns out dead at the beginning of a transaction is replaced, because nothing was done yet. A later
loss is an error that says what is known of the transaction; a retry could apply it twice.

A silent server (a cut network, a stopped machine) answers no new connection in time. Threads that wait for it would
wait for long. So a look at it (`ping`) that gets no answer ends the connections in use, and until it answers again one
thread at a time looks while all others get their error at once: nobody else waits because of it.
"""

from __future__ import annotations

import os
import re
import socket
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from threading import Lock, local
from typing import Any, NoReturn
from urllib.parse import unquote
from weakref import WeakSet

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from memalpha.errors import DamagedStore, DeadlineExceeded, StoreError, StoreUnavailable
from memalpha.forks import ForkAware
from memalpha.store.backends.base import CANNOT_WRITE, Backend, Clock, Durability, system_clock, timeout_setting
from memalpha.store.backends.namespace import EntryTable, Namespace, NamespaceScope
from memalpha.store.backends.postgres.ddl import LOG_TRIGGERS, VERSION_TRIGGERS, create_script, drop_script
from memalpha.store.fields import FORMAT
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change

SCHEMA = "memalpha"
CONNECTIONS = 10
"""Connections of a store to a server at most, unless the URL says otherwise; further threads wait."""


def split_schema(url: str) -> tuple[str, str]:
    """Split our own key `schema` off a URL; return the rest and the schema (`SCHEMA` without one)."""
    rest, values = _split_key(url, "schema")
    schema = unquote(values[-1]) if values else SCHEMA
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


_MAX_LISTED_NAMESPACES = 20  # up to here a transaction names all its namespaces to the policies at once
_ROWS = 100  # of an insert; one by one they take twice the time, most of it for the policies
_SET_NAMESPACES = "SELECT set_config('memalpha.ns', ?, true)"


class PostgresStatements:
    """Executor of statements in SQLite's dialect on a PostgreSQL connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor:
        """Execute a statement; the cursor holds all of its rows."""
        return self._connection.execute(_translate(sql), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row of values, an insert for many rows at once."""
        insert, _, values = sql.partition(" VALUES ")
        if not values:
            self._connection.cursor().executemany(_translate(sql), rows)
            return
        row, closing, rest = values.partition(")")
        remaining = iter(rows)
        while batch := list(islice(remaining, _ROWS)):
            placeholders = ", ".join([row + closing] * len(batch))
            self.execute(f"{insert} VALUES {placeholders}{rest}", [*chain.from_iterable(batch)])

    def pipeline(self) -> AbstractContextManager[Any]:
        """Send the statements of the block without waiting for each; they return no rows."""
        return self._connection.pipeline()


@dataclass(slots=True)
class Transaction:
    """Open transaction of a thread.

    Attributes:
        statements: Executor of its statements.
        namespace_ids: Ids of namespaces by name, as it sees them.
        is_writing: True if it may write.
        namespaces: Names that it was opened for.
        shown: Name of the visible one, of many namespaces.
        is_atomic: True while a caller's transaction is open.
    """

    statements: PostgresStatements
    namespace_ids: MutableMapping[str, int]
    is_writing: bool
    namespaces: set[str]
    shown: str | None = None
    is_atomic: bool = False


class _ThreadState(local):
    transaction: Transaction | None = None


class PostgresDatabase(Backend):
    """Schema of stores at `postgresql://user:password@host/database`, with `?schema=name` unless it is "memalpha".

    All access goes through `transaction`. Raises `StoreError` if the server, the database or (without `create`) the
    store is missing, or if the store has another format.
    """

    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        create: bool,
        initial_meta: Callable[[], dict[str, str]],
        durability: Durability = "full",
        clock: Clock = system_clock,
    ) -> None:
        super().__init__(redact_url(url), durability, clock)
        conninfo, self.schema = split_schema(url)
        conninfo, connections = split_connections(conninfo)
        self._durability = durability
        self._created: list[str] = []  # statements that drop what opening has created
        self._committed_ids: dict[str, int] = {}  # ids of namespaces by name, from committed transactions
        self._local, self._is_open = _ThreadState(), False
        self._connections = Connections(conninfo, self.path, _configure, connections)
        try:
            with self._connections.connect() as connection:
                self._prepare(connection, create, initial_meta)
        except BaseException:
            self._connections.close()
            raise
        self._is_open = True

    def ping(self) -> None:
        """Check on a new connection that the server answers. Raises `StoreUnavailable` if it does not."""
        self._connections.ping()

    def _prepare(
        self, connection: psycopg.Connection, create: bool, initial_meta: Callable[[], dict[str, str]]
    ) -> None:
        """Create the tables if missing, and read the recorded metadata."""
        try:
            if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
                raise StoreError(f"{self.path}: the database is encoded in {encoding}: UTF8 is needed")
            if not self._has_store(connection):
                if not create:
                    raise StoreError(f"{self.path}: no such store: the database has no schema {self.schema} of stores")
                meta = initial_meta()  # may raise: call it before anything is created
                with connection.transaction():
                    lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
                    connection.execute(lock, [f"memalpha {self.schema}"])
                    if not self._has_store(connection):  # check again: another process may have been faster
                        self._create_tables(connection, meta)
            rows = connection.execute(sql.SQL("SELECT key, value FROM {}.meta").format(sql.Identifier(self.schema)))
            self.meta = dict(rows.fetchall())
            if (version := self.meta.get("format")) != str(FORMAT):
                advice = f"this memalpha reads {FORMAT}: open it with the one that made it"
                raise StoreError(f"{self.path} has store format {version!r:.40}; {advice}")
            settings = [
                sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(self.schema)).as_string(connection),
                f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'",
                "SET LOCAL jit = off",
                "SET LOCAL max_parallel_workers_per_gather = 0",  # starting a worker costs more than it saves
                "SET LOCAL enable_seqscan = off",  # a plan made for an empty table would be kept
            ]
            if self._durability == "normal":
                settings.append("SET LOCAL synchronous_commit = off")
            elif connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                settings.append("SET LOCAL synchronous_commit = on")
            self._settings = "; ".join(settings)
        except psycopg.Error as error:
            self._raise_store_error(error)

    def _has_store(self, connection: psycopg.Connection) -> bool:
        # Not by to_regclass, which may not yet know of a table that another process has just created.
        query = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'meta'"
        return connection.execute(query, [self.schema]).fetchone() is not None

    def _create_tables(self, connection: psycopg.Connection, meta: dict[str, str]) -> None:
        """Create the tables, inside a transaction."""
        schema = sql.Identifier(self.schema)
        schema_row = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if schema_row is None:  # CREATE SCHEMA IF NOT EXISTS needs the CREATE right even if the schema exists
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        name = schema.as_string(connection)
        self._created = [drop_script(name)] + ([] if schema_row else [f"DROP SCHEMA {name}"])
        try:
            connection.execute(create_script(name).encode(), prepare=False)
        except psycopg.errors.DuplicateTable as error:
            raise StoreError(
                f"{self.path}: the schema {self.schema} holds tables that do not belong to a store "
                f"({first_line(error)}): give another with ?schema=NAME"
            ) from error
        rows = {**meta, "format": str(FORMAT), "created": self.now()}
        statement = sql.SQL("INSERT INTO {}.meta VALUES (%s, %s)").format(schema)
        connection.cursor().executemany(statement, rows.items())

    @property
    def namespace_ids(self) -> MutableMapping[str, int]:
        return self._current.namespace_ids

    @property
    def connection(self) -> PostgresStatements:
        return self._current.statements

    def statements(self, name: str) -> PostgresStatements:
        """Return the executor for statements of a namespace."""
        transaction = self._current
        assert name in transaction.namespaces, f"the transaction is not of the namespace {name!r}"
        if len(transaction.namespaces) > _MAX_LISTED_NAMESPACES and transaction.shown != name:
            transaction.statements.execute(_SET_NAMESPACES, [str(transaction.namespace_ids.get(name, ""))])
            transaction.shown = name
        return transaction.statements

    @property
    def _current(self) -> Transaction:
        assert self._local.transaction is not None, "no transaction is open in this thread"
        return self._local.transaction

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[PostgresStatements]:
        """Open a transaction: all writes happen or none, and all reads see one moment.

        It sees only the given `namespaces`; of many, only the one whose `statements` were requested last. Within
        another transaction of this thread it joins that one.
        """
        current = self._local.transaction
        if current is not None:
            if write and not current.is_writing:
                raise StoreError(CANNOT_WRITE)
            foreign = set(namespaces) - current.namespaces
            if foreign and current.is_atomic:
                only = min(current.namespaces)
                raise StoreError(f"namespace {foreign.pop()!r}: the open transaction is of {only!r} alone")
            assert not foreign, "a transaction cannot reach namespaces that it was not opened for"
            try:
                with self._savepoint(current) if write and current.is_atomic else nullcontext():
                    yield current.statements
            except psycopg.Error as error:
                self._raise_store_error(error, "nothing of this was stored" if current.is_writing else "")
            return
        state = "nothing was done"
        lent: list[psycopg.Connection] = []  # filled where a connection is taken: a Ctrl-C leaves none behind
        try:
            try:
                namespace_ids = self._open_transaction(namespaces, write, lent)
                connection = lent[-1]
                state = "nothing of this was stored" if write else ""
                self._local.transaction = Transaction(
                    PostgresStatements(connection), ChainMap(namespace_ids, self._committed_ids), write, {*namespaces}
                )
                try:
                    yield self._local.transaction.statements
                    self._commit(connection, write)
                    self._committed_ids.update(namespace_ids)
                except BaseException:
                    self.rollbacks += write  # before the next writer can begin
                    raise
                finally:
                    self._local.transaction = None
            finally:  # again, in case Ctrl-C came just before: nobody may join a finished transaction
                self._local.transaction = None
                while lent:
                    self._connections.checkin(lent.pop())
        except psycopg.Error as error:
            self._raise_store_error(error, state)

    @contextmanager
    def atomic(self, *namespaces: str) -> Iterator[None]:
        with self.transaction(*namespaces):
            transaction = self._current
            transaction.is_atomic = True
            try:
                yield
            finally:
                transaction.is_atomic = False

    @property
    def is_atomic(self) -> bool:
        return self._local.transaction is not None and self._local.transaction.is_atomic

    @property
    def is_writing(self) -> bool:
        return self._local.transaction is not None and self._local.transaction.is_writing

    @contextmanager
    def _savepoint(self, transaction: Transaction) -> Iterator[None]:
        """Undo the block alone, and the ids of namespaces that it made, if it fails."""
        namespace_ids = dict(transaction.namespace_ids)
        transaction.statements.execute("SAVEPOINT operation")
        try:
            yield
        except BaseException:
            self.rollbacks += 1
            for name in transaction.namespace_ids.keys() - namespace_ids.keys():
                del transaction.namespace_ids[name]
            transaction.shown = None
            transaction.statements.execute("ROLLBACK TO operation")
            transaction.statements.execute("RELEASE operation")
            raise
        transaction.statements.execute("RELEASE operation")

    def _commit(self, connection: psycopg.Connection, write: bool) -> None:
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if not (write and is_connection_lost(error)):
                raise
            self._raise_store_error(error, "whether this was stored is not known: look at the end of the log")
        if status != "COMMIT":  # an error was suppressed inside the block
            raise StoreError(f"{self.path}: nothing of this was stored: the server answered {status}")

    def _open_transaction(
        self, namespaces: Sequence[str], write: bool, lent: list[psycopg.Connection]
    ) -> dict[str, int]:
        """Begin a transaction on a connection, which is added to `lent`; return the ids of new namespaces."""
        for retries in range(CONNECTIONS, -1, -1):  # after a server restart all pooled connections may be dead
            lent.append(self._connections.checkout())
            try:
                return self._begin(lent[-1], namespaces, write)
            except psycopg.Error as error:
                if not (retries and is_connection_lost(error)):
                    raise
                self.losses += 1
                self._connections.checkin(lent.pop())
                self.ping()  # raises the reason if the server is gone
        raise AssertionError

    def _begin(self, connection: psycopg.Connection, namespaces: Sequence[str], write: bool) -> dict[str, int]:
        """Begin a transaction: one round trip for known namespaces, two if they are written."""
        begin = f"BEGIN ISOLATION LEVEL {'READ COMMITTED' if write else 'REPEATABLE READ READ ONLY'}{timeout_setting()}"
        known_ids = {name: self._committed_ids[name] for name in namespaces if name in self._committed_ids}
        listed = known_ids.values() if len(namespaces) <= _MAX_LISTED_NAMESPACES else ()
        connection.execute(f"{begin}; {self._settings}; {_namespaces_setting(listed)}".encode(), prepare=False)
        if known_ids and write:
            lock = "SELECT ns FROM namespaces WHERE ns = ANY ($1) ORDER BY ns FOR UPDATE"  # planned once
            present = {ns for (ns,) in connection.execute(lock, [[*known_ids.values()]])}
            for name in [name for name, ns in known_ids.items() if ns not in present]:  # dropped in the meantime
                del known_ids[name], self._committed_ids[name]
        unknown_names = {*namespaces} - known_ids.keys()
        new_ids = _read_namespace_ids(connection, unknown_names, write)
        if write and (missing_names := unknown_names - new_ids.keys()):  # creators of a namespace take turns, too
            if len(missing_names) > _MAX_LISTED_NAMESPACES:  # one lock each might exceed the server's lock table
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", [self.schema])
            else:
                connection.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 1))", [self.schema])
                lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"
                for name in sorted(missing_names):
                    connection.execute(lock, [f"{self.schema} {name}"])
            new_ids |= _read_namespace_ids(connection, missing_names, write)
        if new_ids and len(namespaces) <= _MAX_LISTED_NAMESPACES:
            connection.execute(_namespaces_setting([*known_ids.values(), *new_ids.values()]).encode(), prepare=False)
        return new_ids

    def add_namespace(self, name: str, namespace_id: int) -> None:
        """Show the current transaction a namespace that it has just created."""
        transaction, ids = self._current, self._current.namespace_ids
        ids[name], transaction.shown = namespace_id, None
        if len(transaction.namespaces) <= _MAX_LISTED_NAMESPACES:
            visible = [ids[name] for name in transaction.namespaces if name in ids]
            transaction.statements.execute(_SET_NAMESPACES, [",".join(map(str, visible))])

    def forget_namespace(self, name: str) -> None:
        """Forget the id of a namespace that the current transaction has deleted."""
        self._current.namespace_ids.pop(name, None)
        self._committed_ids.pop(name, None)

    @contextmanager
    def unlock_log(self, purpose: str = "drop a namespace; erase_all erases its content") -> Iterator[None]:
        """Switch the triggers off that keep the past, for the block, in a writing transaction.

        Args:
            purpose: What the block does, for messages.

        Raises:
            StoreError: The role does not own the tables.
        """
        try:
            for table in ("operations", "versions"):
                self.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(f"{self.path}: only the owner of the tables can {purpose}") from error
        yield
        for table in ("operations", "versions"):
            self.connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")

    def drop_created(self) -> None:
        """Drop the tables that opening has created, if they hold no namespace. Failures are ignored."""
        with suppress(StoreError, psycopg.Error), self._connections.connect() as connection, connection.transaction():
            for statement in self._created[:1]:
                timeout = f"SET LOCAL lock_timeout = '{CONNECT_TIMEOUT}s'"
                connection.execute(f"{timeout}; {statement}".encode(), prepare=False)
            for statement in self._created[1:]:
                with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                    connection.execute(statement.encode())

    def integrity_errors(self) -> Iterator[str]:
        """Iterate over missing guards: row-level security, and the triggers that keep the past."""
        query = (
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
            "AND relkind IN ('r', 'p') AND relname <> 'meta' AND NOT (relrowsecurity AND relforcerowsecurity) "
            "ORDER BY relname"
        )
        for (table,) in self.connection.execute(query):
            yield f"row-level security of the table {table} is switched off"
        query = "SELECT tgname FROM pg_trigger WHERE tgrelid = ?::regclass AND tgenabled = 'O'"
        for table, triggers, purpose in (
            ("operations", LOG_TRIGGERS, "keeps the log append-only"),
            ("versions", VERSION_TRIGGERS, "keeps the versions as the log has them"),
        ):
            if {*triggers} - {name for (name,) in self.connection.execute(query, (table,))}:
                yield f"a trigger that {purpose} is missing or switched off"

    def warnings(self) -> list[str]:
        query = "SELECT rolsuper OR rolbypassrls, current_user FROM pg_roles WHERE rolname = current_user"
        is_exempt, name = self.connection.execute(query).fetchone() or (False, "")
        warnings = [f"the role {name} bypasses row-level security: let applications use another"] if is_exempt else []
        if self.connection.execute("SELECT current_setting('fsync')").fetchone() == ("off",):
            warnings.append("the server's fsync is off: a power failure may take back or damage what was acknowledged")
        return warnings

    def close(self) -> None:
        self._connections.close()

    def _raise_store_error(self, error: psycopg.Error, state: str = "") -> NoReturn:
        """Raise the error in the store's words; `state` says what is known of the transaction."""
        code, words, outcome = error.sqlstate or "", first_line(error), f": {state}" if state else ""
        if isinstance(error, PoolClosed):
            raise StoreError(f"the store {self.path} is closed") from error
        if is_connection_lost(error):
            self.losses += 1
            raise StoreUnavailable(f"{self.path}: the connection was lost{outcome} ({words})", state) from error
        if code == "57014":  # statement_timeout
            raise DeadlineExceeded from error
        if code in _CONFLICTS:
            conflict = "another transaction conflicted, or kept it locked"
            raise StoreError(f"{self.path}: {conflict}{outcome}: try again") from error
        if code.startswith("XX00"):
            raise DamagedStore(f"{self.path} is damaged ({words}): restore a backup") from error
        if code == "42501":
            hint = "the role needs CREATE on the database, or on that schema; or give another with ?schema=NAME"
            if self._is_open:
                admit = f"SELECT {self.schema}.admit('ROLE', 'NAMESPACE')"
                hint = f"the tables' owner may admit a role to a namespace with {admit}"
            outcome = f": {hint}"
        raise StoreError(f"{self.path}: {words}{outcome}") from error


def _configure(connection: psycopg.Connection) -> None:
    """Prepare a pooled connection: one integer type, so that a statement is prepared once, in lists too."""
    connection.cursor_factory = psycopg.RawCursor
    for dumper in (Int8Dumper, Int8BinaryDumper):
        connection.adapters.register_dumper(int, dumper)


@lru_cache(2048)
def _translate(statement: str) -> bytes:
    """Translate a statement of SQLite: numbered placeholders, no index hints."""
    highest = 0

    def replace_placeholder(match: re.Match[str]) -> str:
        nonlocal highest
        value = int(match[1] or highest + 1)
        highest = max(highest, value)
        return f"${value}"

    return re.sub(r"\?(\d*)", replace_placeholder, re.sub(r" INDEXED BY \w+", "", statement)).encode()


def _namespaces_setting(ids: Iterable[int]) -> str:
    """Return the statement that names a transaction's namespaces to the policies."""
    return f"SET LOCAL memalpha.ns = '{','.join(map(str, ids))}'"


def _read_namespace_ids(connection: psycopg.Connection, names: Collection[str], write: bool) -> dict[str, int]:
    """Return the ids of existing namespaces by name, missing ones left out; with `write` their rows are locked."""
    if not names:
        return {}
    query = f"SELECT name, ns FROM namespaces WHERE name = ANY ($1) ORDER BY ns{' FOR UPDATE' if write else ''}"
    return dict(connection.execute(query.encode(), [list(names)]).fetchall())


_MAX_NAME_BYTES = 2000  # bytes that an index can hold


class _PostgresScope(NamespaceScope):
    database: PostgresDatabase

    @property
    def statements(self) -> Any:
        return self.database.statements(self.name)

    def create(self) -> int:
        if self.namespace_id < 0:
            query = "INSERT INTO namespaces (name) VALUES (?) RETURNING ns"
            self.database.add_namespace(self.name, self.statements.execute(query, (self.name,)).fetchone()[0])
        return self.namespace_id

    def drop(self) -> None:
        self.statements.execute("DELETE FROM members WHERE namespace = ?", (self.name,))
        self.select("DELETE FROM namespaces WHERE ns = ?")
        self.database.forget_namespace(self.name)


class _PostgresEntries(EntryTable):
    _scope: _PostgresScope
    _HAS_TEXT = "strpos(metadata, ?2::text) > 0"
    _HAS_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # ?1 is the namespace

    def replace(self, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._scope.database.unlock_log("repair its versions"):
            super().replace(rows)


class PostgresNamespace(Namespace):
    """Namespace in PostgreSQL; see `Namespace` for the methods."""

    database: PostgresDatabase

    _SCOPE, _ENTRIES = _PostgresScope, _PostgresEntries

    def __init__(self, database: PostgresDatabase, name: str, schema: MemorySchema) -> None:
        if "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
            raise StoreError(
                f"namespace {name[:50]!r}: a text without NUL of {_MAX_NAME_BYTES} bytes at most is needed"
            )
        super().__init__(database, name, schema)

    def insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        with self.database.statements(self.name).pipeline():  # one round trip
            super().insert_rows(operation, change, created, vector)
