"""One PostgreSQL schema of stores: its connections, its transactions, and what its errors mean.

Reads are REPEATABLE READ: everything inside sees one moment. Writers of one namespace take turns, by a lock of its row
in `namespaces`, taken before anything is read; then READ COMMITTED sees all that the one before has written, and
nobody else writes there. Those of different namespaces do not wait for each other, and threads work side by side, each
transaction over a connection of its own out of a pool. A write that has returned is on disk, by the server's word
(`synchronous_commit` is put on where it is off).

A connection that turns out to be dead when a transaction begins is replaced: nothing has been done then. One that is
lost later is an error that says what is known of the transaction, since to do it again might be to do it twice.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from threading import local
from typing import NoReturn, get_args

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import ConnectionPool, PoolTimeout

from memalpha.errors import StoreError
from memalpha.store.backends.base import Clock, Durability, system_clock
from memalpha.store.backends.postgres import ddl as postgres_schema
from memalpha.store.backends.postgres.ddl import FORMAT
from memalpha.store.backends.postgres.errors import (
    explain_connection_error,
    first_line,
    is_connection_lost,
    raise_store_error,
)
from memalpha.store.backends.postgres.statements import (
    PostgresStatements,
    Transaction,
    namespaces_setting,
    read_namespace_numbers,
)
from memalpha.store.backends.postgres.url import redact_url, split_schema
from memalpha.store.backends.postgres.vector_codec import register_vectors
from memalpha.store.filters import format_utc

CONNECTIONS = 10  # at most, of one store: threads beyond wait for one another

_LOCK_TIMEOUT = 30  # seconds a writer waits for its turn, or a thread for a connection
_CONNECT_TIMEOUT = 10  # seconds for the server to answer
_MAX_LISTED_NAMESPACES = 20  # namespaces that a transaction names to the policies at once
_SET_NAMESPACES = "SELECT set_config('memalpha.ns', ?, true)"
_IS_OWNER = "pg_has_role(c.relowner, 'USAGE')"


class PostgresDatabase:
    """A schema of stores: `postgresql://user:password@host/database`, with `?schema=name` if that is not "memalpha".

    All access goes through `transaction`. See `sqlite.Database`, whose methods these are; `path` is the URL without
    what is secret in it. Raises `StoreError` where the server, the database, its extension `vector` or (without
    `create`) the store is not there, or where its format is a newer one.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool,
        initial_meta: Callable[[], dict[str, str]],
        durability: Durability = "full",
        clock: Clock = system_clock,
    ) -> None:
        if durability not in get_args(Durability):
            raise StoreError(f"durability {durability!r}: 'full' or 'normal' is needed")
        self._url, self.schema = split_schema(url)
        self.path = redact_url(url)
        self.clock = clock
        self.meta: dict[str, str] = {}
        self._durability = durability
        self._made: list[str] = []  # statements that take back what opening it has made
        self._known: dict[str, int] = {}  # numbers of namespaces; of transactions that have ended well
        self._local = local()
        connection = self._connect()
        try:
            self._prepare(connection, create, initial_meta)
        finally:
            connection.close()
        self._pool: ConnectionPool[psycopg.Connection] = ConnectionPool(
            self._url,
            min_size=0,
            max_size=CONNECTIONS,
            num_workers=1,
            timeout=_LOCK_TIMEOUT,
            configure=self._configure,
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_TIMEOUT},
            open=True,
        )

    def _connect(self) -> psycopg.Connection:
        try:
            return psycopg.connect(self._url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT)
        except psycopg.Error as error:
            raise StoreError(f"{self.path}: {explain_connection_error(error)}") from error

    def _prepare(
        self, connection: psycopg.Connection, create: bool, initial_meta: Callable[[], dict[str, str]]
    ) -> None:
        """Make the tables if they are not there, and read what is recorded."""
        try:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"{self.path}: the database is encoded in {encoding}: UTF8 is needed")
            if not self._has_store(connection):
                if not create:
                    raise StoreError(f"{self.path}: no such store: the database has no schema {self.schema} of stores")
                meta = initial_meta()  # may raise, and is asked before anything comes into being
                with connection.transaction():
                    connection.execute(
                        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"memalpha {self.schema}"]
                    )
                    if not self._has_store(connection):  # still: another process may have been faster
                        self._create_tables(connection, meta)
            rows = connection.execute(sql.SQL("SELECT key, value FROM {}.meta").format(sql.Identifier(self.schema)))
            self.meta = dict(rows.fetchall())
            version = int(self.meta.get("format", 0))
            if version != FORMAT:
                raise StoreError(
                    f"{self.path} has store format {version}, this memalpha reads {FORMAT}: upgrade memalpha"
                )
            extension = self._vector_schema(connection)
            path = sql.SQL("SET LOCAL search_path = {}, {}").format(sql.Identifier(self.schema), extension)
            settings = [
                path.as_string(connection),
                f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'",
                "SET LOCAL jit = off",
            ]
            settings.append("SET LOCAL max_parallel_workers_per_gather = 0")  # to start one costs more than it saves
            settings.append("SET LOCAL enable_seqscan = off")  # a plan made when the table was empty outlives that
            if self._durability == "normal":
                settings.append("SET LOCAL synchronous_commit = off")
            elif connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                settings.append("SET LOCAL synchronous_commit = on")
            self._settings = "; ".join(settings)
            self._vector = TypeInfo.fetch(connection, sql.SQL("{}.vector").format(extension).as_string(connection))
        except psycopg.Error as error:
            self._raise_store_error(error)

    def _has_store(self, connection: psycopg.Connection) -> bool:
        name = sql.SQL("{}.meta").format(sql.Identifier(self.schema)).as_string(connection)
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return row is not None and row[0]

    def _vector_schema(self, connection: psycopg.Connection) -> sql.Identifier:
        """The schema that the extension `vector` lies in."""
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
        """Make the tables, inside a transaction."""
        dim = int(json.loads(meta["embedder"])["dim"])
        extension = self._vector_schema(connection).as_string(connection)
        schema = sql.Identifier(self.schema)
        schema_row = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if schema_row is None:  # asked first, because IF NOT EXISTS needs the right to make it even where it is there
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        name = schema.as_string(connection)
        self._made = [postgres_schema.drop_script(name)] + ([] if schema_row else [f"DROP SCHEMA {name}"])
        try:
            script = postgres_schema.create_script(name, extension, dim)
            connection.execute(script.encode(), prepare=False)
        except psycopg.errors.DuplicateTable as error:
            raise StoreError(
                f"{self.path}: the schema {self.schema} holds tables that are no store's ({first_line(error)}): give "
                "another with ?schema=NAME"
            ) from error
        rows = {**meta, "format": str(FORMAT), "created": self.now()}
        statement = sql.SQL("INSERT INTO {}.meta VALUES (%s, %s)").format(schema)
        connection.cursor().executemany(statement, rows.items())

    def _configure(self, connection: psycopg.Connection) -> None:
        """Make a connection of the pool ready: what its values are in Python."""
        connection.cursor_factory = psycopg.RawCursor
        adapters = connection.adapters
        for dumper in (Int8Dumper, Int8BinaryDumper):  # one type, so that one statement is one, in lists too
            adapters.register_dumper(int, dumper)
        assert self._vector is not None, "the extension is there"
        register_vectors(connection, self._vector)

    @property
    def namespace_ids(self) -> MutableMapping[str, int]:
        """Those of namespaces, as the transaction at hand sees them."""
        return self._current.numbers

    @property
    def _connection(self) -> PostgresStatements:
        return self._current.statements

    def statements(self, name: str) -> PostgresStatements:
        """Where statements of a namespace are executed."""
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
        """Everything inside happens at once or not at all; for reads, everything inside sees one moment. It sees the
        namespaces `of` which it is, and no other (of many, the one whose `statements` are at hand).

        Inside another transaction of this thread it joins that one.
        """
        current: Transaction | None = getattr(self._local, "transaction", None)
        if current is not None:
            assert current.writes or not write, "what has begun as reading cannot write"
            assert current.of.issuperset(namespaces), "what has begun for one namespace cannot go on to another"
            yield current.statements
            return
        try:
            connection, namespace_ids = self._open_transaction(namespaces, write)
        except psycopg.Error as error:
            self._raise_store_error(error, "nothing was done")
        state = "nothing of this was stored" if write else ""
        try:
            self._local.transaction = Transaction(
                PostgresStatements(connection), ChainMap(namespace_ids, self._known), write, {*namespaces}
            )
            try:
                try:
                    yield self._local.transaction.statements
                    self._commit(connection, write)
                    self._known.update(namespace_ids)
                finally:
                    self._local.transaction = None
            finally:  # once more, where Ctrl-C came just before that: nobody may join what is over
                self._local.transaction = None
                self._checkin_connection(connection)
        except psycopg.Error as error:
            self._raise_store_error(error, state)

    def _commit(self, connection: psycopg.Connection, write: bool) -> None:
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if not (write and is_connection_lost(error)):
                raise
            self._raise_store_error(error, "whether this was stored is not known: look at the end of the log")
        if status != "COMMIT":  # after an error that somebody has passed over
            raise StoreError(f"{self.path}: nothing of this was stored: the server answered {status}")

    def _checkin_connection(self, connection: psycopg.Connection) -> None:
        if connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        self._pool.putconn(connection)

    def _open_transaction(self, namespaces: Sequence[str], write: bool) -> tuple[psycopg.Connection, dict[str, int]]:
        """A connection on which a transaction has begun, and the numbers of new namespaces found."""
        for retries in range(CONNECTIONS, -1, -1):  # all of the pool's may be dead, after a restart of the server
            connection = self._checkout_connection()
            try:
                return connection, self._begin(connection, namespaces, write)
            except BaseException as error:
                self._checkin_connection(connection)
                if not (retries and isinstance(error, psycopg.Error) and is_connection_lost(error)):
                    raise
                self._connect().close()  # raises what is the matter if no server is there any more
        raise AssertionError

    def _checkout_connection(self) -> psycopg.Connection:
        try:
            return self._pool.getconn()
        except PoolTimeout as error:
            self._connect().close()  # raises why there is no connection, unless all are in use
            raise StoreError(
                f"{self.path}: all {CONNECTIONS} connections have been in use for {_LOCK_TIMEOUT} s"
            ) from error

    def _begin(self, connection: psycopg.Connection, namespaces: Sequence[str], write: bool) -> dict[str, int]:
        """Begin a transaction: one round trip if the namespaces are known, two if they are to be written."""
        begin = "BEGIN ISOLATION LEVEL " + ("READ COMMITTED" if write else "REPEATABLE READ READ ONLY")
        known_ids = {name: self._known[name] for name in namespaces if name in self._known}
        is_short = len(namespaces) <= _MAX_LISTED_NAMESPACES
        script = f"{begin}; {self._settings}; {namespaces_setting(known_ids.values() if is_short else ())}"
        connection.execute(script.encode(), prepare=False)
        if known_ids and write:
            lock = "SELECT FROM namespaces WHERE ns = ANY ($1) ORDER BY ns FOR UPDATE"  # planned once
            connection.execute(lock, [[*known_ids.values()]])
        unknown_names = {*namespaces} - known_ids.keys()
        new_ids = read_namespace_numbers(connection, unknown_names, write)
        if write and (
            missing_names := unknown_names - new_ids.keys()
        ):  # those who would make one of them take turns too
            if len(missing_names) > _MAX_LISTED_NAMESPACES:  # a lock for each might be more than the server has
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
        """Let the transaction at hand see a namespace that it has just made."""
        transaction = self._current
        transaction.numbers[name], transaction.shown = namespace_id, None
        if len(transaction.of) <= _MAX_LISTED_NAMESPACES:
            visible = [transaction.numbers[name] for name in transaction.of if name in transaction.numbers]
            transaction.statements.execute(_SET_NAMESPACES, [",".join(map(str, visible))])

    @contextmanager
    def bulk_load(self) -> Iterator[None]:
        """What an empty store is filled in, in a transaction that writes: vectors come into their index at the end all
        at once, if the role owns the tables."""
        statements = self._current.statements
        query = (
            "SELECT pg_get_indexdef(c.oid) FROM pg_class c WHERE c.oid = to_regclass('vectors_near') AND " + _IS_OWNER
        )
        index = statements.execute(query).fetchone()
        if index is not None:
            statements.execute("DROP INDEX vectors_near")
        yield
        if index is not None:
            statements.execute(index[0].replace(" ON ONLY ", " ON "))
            statements.execute(f"ANALYZE {', '.join(postgres_schema.TABLES)}")

    def analyze(self, namespace_id: int) -> None:
        """Take statistics of the partitions that a namespace lies in, if the role owns them."""
        statements = self._current.statements
        for table in postgres_schema.TABLES:
            query = f"SELECT c.oid::regclass::text FROM pg_class c WHERE {_IS_OWNER} AND c.oid = "
            partition = statements.execute(
                query + f"(SELECT tableoid FROM {table} WHERE ns = ? LIMIT 1)", (namespace_id,)
            ).fetchone()
            if partition is not None:
                statements.execute(f"ANALYZE {partition[0]}")

    def drop_created(self) -> None:
        """Drop the tables that opening this has made, if there is no namespace in them; no error where that fails."""
        with suppress(StoreError, psycopg.Error), self._connect() as connection, connection.transaction():
            for statement in self._made[:1]:
                connection.execute(
                    f"SET LOCAL lock_timeout = '{_CONNECT_TIMEOUT}s'; {statement}".encode(), prepare=False
                )
            for statement in self._made[1:]:
                with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                    connection.execute(statement.encode())

    def now(self) -> str:
        """The time as the log keeps it."""
        return format_utc(self.clock())

    def mark_for_scrub(self) -> None:
        """Nothing can be done here about the bytes of what was erased: `MemoryStore.erase` says who can."""

    is_scrub_due = False

    def scrub(self) -> None:
        """Nothing."""

    def namespaces(self) -> list[str]:
        """The names of all namespaces that were ever written to, of those that the role may see."""
        return [name for (name,) in self._connection.execute("SELECT name FROM namespaces ORDER BY name")]

    def integrity_errors(self) -> Iterator[str]:
        """What keeps namespaces apart, or the log as it is, and is not there, a line each."""
        query = (
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
            "AND relkind IN ('r', 'p') AND relname <> 'meta' AND NOT (relrowsecurity AND relforcerowsecurity) "
            "ORDER BY relname"
        )
        for (table,) in self._connection.execute(query):
            yield f"row-level security of the table {table} is switched off"
        query = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'operations'::regclass AND tgenabled = 'O'"
        if (self._connection.execute(query).fetchone() or (0,))[0] < postgres_schema.TRIGGERS:
            yield "a trigger that keeps the log append-only is missing or switched off"

    def warnings(self) -> list[str]:
        """What else one should know of the server, and of the role that asks."""
        query = "SELECT rolsuper OR rolbypassrls, current_user FROM pg_roles WHERE rolname = current_user"
        is_exempt, name = self._connection.execute(query).fetchone() or (False, "")
        warnings = [f"the role {name} passes by row-level security: let applications use another"] if is_exempt else []
        if self._connection.execute("SELECT current_setting('fsync')").fetchone() == ("off",):
            warnings.append(
                "the server's fsync is off: a power failure may take back, or damage, what it has acknowledged"
            )
        return warnings

    def schema_mismatches(self) -> dict[str, str]:
        """Nothing: tables that are missing are an error of the server's, and the faults above tell the rest."""
        return {}

    def recreate(self, name: str) -> None:
        """Make one of `misses` anew: there are none."""

    def count_orphans(self, table: str) -> int:
        """The rows of a table whose namespace is not there: none that a policy would show."""
        return 0

    def delete_orphans(self, table: str) -> None:
        """Delete them: there are none."""

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        self._pool.close()

    def _raise_store_error(self, error: psycopg.Error, state: str = "") -> NoReturn:
        """Raise the error in the store's words; `state` says what is known of the transaction."""
        admit = f"{self.schema}.admit('ROLE', 'NAMESPACE')" if hasattr(self, "_pool") else None
        raise_store_error(error, self.path, state, admit)
