"""PostgreSQL schema of stores: connections and transactions.

Reads are REPEATABLE READ: everything inside one transaction sees one moment. Writers of one namespace take turns: they
lock its row in `namespaces` before reading anything. READ COMMITTED then sees all writes of the previous writer, and
nobody else writes there. Writers of different namespaces do not wait for each other. Threads work in parallel, each
transaction on its own pooled connection. A write that has returned is on disk (`synchronous_commit` is switched on
where it is off).

A connection that turns out dead at the beginning of a transaction is replaced, because nothing was done yet. A later
loss is an error that says what is known of the transaction; a retry could apply it twice.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import local
from typing import NoReturn

import psycopg
from psycopg import sql
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from memalpha.errors import StoreError
from memalpha.store.backends.base import CANNOT_WRITE, Backend, Clock, Durability, system_clock
from memalpha.store.backends.deadline import timeout_setting
from memalpha.store.backends.postgres import ddl as postgres_schema
from memalpha.store.backends.postgres.connections import CONNECT_TIMEOUT, LOCK_TIMEOUT, Connections
from memalpha.store.backends.postgres.ddl import FORMAT
from memalpha.store.backends.postgres.errors import first_line, is_connection_lost, raise_store_error
from memalpha.store.backends.postgres.maintenance import (
    analyze_partitions,
    guard_faults,
    unlocked,
    without_vector_index,
)
from memalpha.store.backends.postgres.statements import (
    PostgresStatements,
    Transaction,
    namespaces_setting,
    read_namespace_numbers,
    savepoint,
)
from memalpha.store.backends.postgres.url import CONNECTIONS, redact_url, split_connections, split_schema
from memalpha.store.backends.postgres.vector_codec import register_vectors

_MAX_LISTED_NAMESPACES = 20  # up to here a transaction names all its namespaces to the policies at once
_SET_NAMESPACES = "SELECT set_config('memalpha.ns', ?, true)"


class PostgresDatabase(Backend):
    """Schema of stores at `postgresql://user:password@host/database`, with `?schema=name` unless it is "memalpha".

    All access goes through `transaction`. Raises `StoreError` if the server, the database, its extension `vector` or
    (without `create`) the store is missing, or if the format is newer.
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
        self._local = local()
        self._is_open = False
        self._connections = Connections(conninfo, self.path, self._configure, connections)
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
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"{self.path}: the database is encoded in {encoding}: UTF8 is needed")
            if not self._has_store(connection):
                if not create:
                    raise StoreError(f"{self.path}: no such store: the database has no schema {self.schema} of stores")
                meta = initial_meta()  # may raise: call it before anything is created
                with connection.transaction():
                    self._lock_schema(connection)
                    if not self._has_store(connection):  # check again: another process may have been faster
                        self._create_tables(connection, meta)
            rows = connection.execute(sql.SQL("SELECT key, value FROM {}.meta").format(sql.Identifier(self.schema)))
            self.meta = dict(rows.fetchall())
            version = int(self.meta.get("format", 0))
            if 1 <= version < FORMAT:
                version = self._migrate(connection, version)
            if version != FORMAT:
                raise StoreError(
                    f"{self.path} has store format {version}, this memalpha reads {FORMAT}: upgrade memalpha"
                )
            extension = self._vector_schema(connection)
            path = sql.SQL("SET LOCAL search_path = {}, {}").format(sql.Identifier(self.schema), extension)
            settings = [
                path.as_string(connection),
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
            self._vector = TypeInfo.fetch(connection, sql.SQL("{}.vector").format(extension).as_string(connection))
        except psycopg.Error as error:
            self._raise_store_error(error)

    def _migrate(self, connection: psycopg.Connection, version: int) -> int:
        """Migrate a schema of an older format, as the owner of its tables, and return the format."""
        name = sql.Identifier(self.schema).as_string(connection)
        try:
            with connection.transaction():
                self._lock_schema(connection)
                row = connection.execute(f"SELECT value FROM {name}.meta WHERE key = 'format'".encode()).fetchone()
                if row == (str(version),):  # check again: another process may have been faster
                    connection.execute(postgres_schema.migration_script(name, version).encode(), prepare=False)
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"{self.path} has store format {version}: its owner must open it once, which brings it to {FORMAT}"
            ) from error
        return FORMAT

    def _lock_schema(self, connection: psycopg.Connection) -> None:
        """Wait for others that create or migrate the schema, until the transaction ends."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"memalpha {self.schema}"])

    def _has_store(self, connection: psycopg.Connection) -> bool:
        name = sql.SQL("{}.meta").format(sql.Identifier(self.schema)).as_string(connection)
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return row is not None and row[0]

    def _vector_schema(self, connection: psycopg.Connection) -> sql.Identifier:
        """Return the schema of the extension `vector`."""
        row = connection.execute(
            "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'vector'"
        ).fetchone()
        if row is not None:
            return sql.Identifier(row[0])
        available = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        raise StoreError(
            f"{self.path}: the database has no pgvector: "
            + ("" if available else "install it on the server, then ")
            + 'connect to the database as its owner or a superuser and run "CREATE EXTENSION vector"'
        )

    def _create_tables(self, connection: psycopg.Connection, meta: dict[str, str]) -> None:
        """Create the tables, inside a transaction."""
        dim = int(json.loads(meta["embedder"])["dim"])
        extension = self._vector_schema(connection).as_string(connection)
        schema = sql.Identifier(self.schema)
        schema_row = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if schema_row is None:  # CREATE SCHEMA IF NOT EXISTS needs the CREATE right even if the schema exists
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        name = schema.as_string(connection)
        self._created = [postgres_schema.drop_script(name)] + ([] if schema_row else [f"DROP SCHEMA {name}"])
        try:
            script = postgres_schema.create_script(name, extension, dim)
            connection.execute(script.encode(), prepare=False)
        except psycopg.errors.DuplicateTable as error:
            raise StoreError(
                f"{self.path}: the schema {self.schema} holds tables that do not belong to a store "
                f"({first_line(error)}): give another with ?schema=NAME"
            ) from error
        rows = {**meta, "format": str(FORMAT), "created": self.now()}
        statement = sql.SQL("INSERT INTO {}.meta VALUES (%s, %s)").format(schema)
        connection.cursor().executemany(statement, rows.items())

    def _configure(self, connection: psycopg.Connection) -> None:
        """Prepare a pooled connection: row factory and type adapters."""
        connection.cursor_factory = psycopg.RawCursor
        adapters = connection.adapters
        for dumper in (
            Int8Dumper,
            Int8BinaryDumper,
        ):  # one integer type, so that a statement is prepared once, in lists too
            adapters.register_dumper(int, dumper)
        assert self._vector is not None, "the extension is there"
        register_vectors(connection, self._vector)

    @property
    def namespace_ids(self) -> MutableMapping[str, int]:
        return self._current.numbers

    @property
    def _connection(self) -> PostgresStatements:
        return self._current.statements

    def statements(self, name: str) -> PostgresStatements:
        """Return the executor for statements of a namespace."""
        transaction = self._current
        assert name in transaction.of, f"the transaction is not of the namespace {name!r}"
        if len(transaction.of) > _MAX_LISTED_NAMESPACES and transaction.shown != name:
            transaction.statements.execute(_SET_NAMESPACES, [str(transaction.numbers.get(name, ""))])
            transaction.shown = name
        return transaction.statements

    @property
    def _current(self) -> Transaction:
        transaction = getattr(self._local, "transaction", None)
        assert transaction is not None, "no transaction is open in this thread"
        return transaction

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[PostgresStatements]:
        """Open a transaction: all writes happen or none, and all reads see one moment.

        It sees only the given `namespaces`; of many, only the one whose `statements` were requested last. Within
        another transaction of this thread it joins that one.
        """
        current: Transaction | None = getattr(self._local, "transaction", None)
        if current is not None:
            if write and not current.writes:
                raise StoreError(CANNOT_WRITE)
            foreign = set(namespaces) - current.of
            if foreign and current.is_atomic:
                raise StoreError(f"namespace {foreign.pop()!r}: the open transaction is of {min(current.of)!r} alone")
            assert not foreign, "a transaction cannot reach namespaces that it was not opened for"
            try:
                with savepoint(current) if write and current.is_atomic else nullcontext():
                    yield current.statements
            except psycopg.Error as error:
                self._raise_store_error(error, "nothing of this was stored" if current.writes else "")
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
        transaction: Transaction | None = getattr(self._local, "transaction", None)
        return transaction is not None and transaction.is_atomic

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
                self._connections.checkin(lent.pop())
                self.ping()  # raises the reason if the server is gone
        raise AssertionError

    def _begin(self, connection: psycopg.Connection, namespaces: Sequence[str], write: bool) -> dict[str, int]:
        """Begin a transaction: one round trip for known namespaces, two if they are written."""
        begin = f"BEGIN ISOLATION LEVEL {'READ COMMITTED' if write else 'REPEATABLE READ READ ONLY'}{timeout_setting()}"
        known_ids = {name: self._committed_ids[name] for name in namespaces if name in self._committed_ids}
        listed = known_ids.values() if len(namespaces) <= _MAX_LISTED_NAMESPACES else ()
        script = f"{begin}; {self._settings}; {namespaces_setting(listed)}"
        connection.execute(script.encode(), prepare=False)
        if known_ids and write:
            lock = "SELECT ns FROM namespaces WHERE ns = ANY ($1) ORDER BY ns FOR UPDATE"  # planned once
            present = {ns for (ns,) in connection.execute(lock, [[*known_ids.values()]])}
            for name in [name for name, ns in known_ids.items() if ns not in present]:  # dropped in the meantime
                del known_ids[name], self._committed_ids[name]
        unknown_names = {*namespaces} - known_ids.keys()
        new_ids = read_namespace_numbers(connection, unknown_names, write)
        if write and (missing_names := unknown_names - new_ids.keys()):  # creators of a namespace take turns, too
            if len(missing_names) > _MAX_LISTED_NAMESPACES:  # one lock each might exceed the server's lock table
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", [self.schema])
            else:
                connection.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 1))", [self.schema])
                for name in sorted(missing_names):
                    lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"
                    connection.execute(lock, [f"{self.schema} {name}"])
            new_ids |= read_namespace_numbers(connection, missing_names, write)
        if new_ids and len(namespaces) <= _MAX_LISTED_NAMESPACES:
            connection.execute(namespaces_setting([*known_ids.values(), *new_ids.values()]).encode(), prepare=False)
        return new_ids

    def add_namespace(self, name: str, namespace_id: int) -> None:
        """Show the current transaction a namespace that it has just created."""
        transaction = self._current
        transaction.numbers[name], transaction.shown = namespace_id, None
        if len(transaction.of) <= _MAX_LISTED_NAMESPACES:
            visible = [transaction.numbers[name] for name in transaction.of if name in transaction.numbers]
            transaction.statements.execute(_SET_NAMESPACES, [",".join(map(str, visible))])

    def forget_namespace(self, name: str) -> None:
        """Forget the id of a namespace that the current transaction has deleted."""
        self._current.numbers.pop(name, None)
        self._committed_ids.pop(name, None)

    @contextmanager
    def unlock_log(self) -> Iterator[None]:
        with unlocked(self._current.statements, self.path, "drop a namespace; erase_all erases its content"):
            yield

    @contextmanager
    def bulk_load(self) -> Iterator[None]:
        """Build the vector index once, after the block that fills an empty store.

        That needs a role that owns the tables; otherwise nothing changes.
        """
        with without_vector_index(self._current.statements):
            yield

    def analyze(self, namespace_id: int) -> None:
        """Update the statistics of a namespace's partitions, if the role owns them."""
        analyze_partitions(self._current.statements, namespace_id)

    def drop_created(self) -> None:
        """Drop the tables that opening has created, if they hold no namespace. Failures are ignored."""
        with suppress(StoreError, psycopg.Error), self._connections.connect() as connection, connection.transaction():
            for statement in self._created[:1]:
                connection.execute(
                    f"SET LOCAL lock_timeout = '{CONNECT_TIMEOUT}s'; {statement}".encode(), prepare=False
                )
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
        for (table,) in self._connection.execute(query):
            yield f"row-level security of the table {table} is switched off"
        yield from guard_faults(self._connection)

    def warnings(self) -> list[str]:
        query = "SELECT rolsuper OR rolbypassrls, current_user FROM pg_roles WHERE rolname = current_user"
        is_exempt, name = self._connection.execute(query).fetchone() or (False, "")
        warnings = [f"the role {name} bypasses row-level security: let applications use another"] if is_exempt else []
        if self._connection.execute("SELECT current_setting('fsync')").fetchone() == ("off",):
            warnings.append(
                "the server's fsync is off: a power failure may take back, or damage, what it has acknowledged"
            )
        return warnings

    def close(self) -> None:
        self._connections.close()

    def _raise_store_error(self, error: psycopg.Error, state: str = "") -> NoReturn:
        """Raise the error in the store's words; `state` says what is known of the transaction."""
        admit = f"{self.schema}.admit('ROLE', 'NAMESPACE')" if self._is_open else None
        raise_store_error(error, self.path, state, admit)
