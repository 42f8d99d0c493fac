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
from memalpha.store.backends.postgres.errors import first_line, is_lost, raise_store_error, why_not_connected
from memalpha.store.backends.postgres.statements import (
    Statements,
    Transaction,
    namespaces_setting,
    read_namespace_numbers,
)
from memalpha.store.backends.postgres.url import parted, without_secrets
from memalpha.store.backends.postgres.vector_codec import register
from memalpha.store.filters import utc

CONNECTIONS = 10  # at most, of one store: threads beyond wait for one another

_PATIENCE = 30  # seconds a writer waits for its turn, or a thread for a connection
_TO_CONNECT = 10  # seconds for the server to answer
_FEW = 20  # namespaces that a transaction names to the policies at once
_SHOW = "SELECT set_config('memalpha.ns', ?, true)"
_OWNED = "pg_has_role(c.relowner, 'USAGE')"


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
        self._url, self.schema = parted(url)
        self.path = without_secrets(url)
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
            timeout=_PATIENCE,
            configure=self._configure,
            kwargs={"autocommit": True, "connect_timeout": _TO_CONNECT},
            open=True,
        )

    def _connect(self) -> psycopg.Connection:
        try:
            return psycopg.connect(self._url, autocommit=True, connect_timeout=_TO_CONNECT)
        except psycopg.Error as error:
            raise StoreError(f"{self.path}: {why_not_connected(error)}") from error

    def _prepare(
        self, connection: psycopg.Connection, create: bool, initial_meta: Callable[[], dict[str, str]]
    ) -> None:
        """Make the tables if they are not there, and read what is recorded."""
        try:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"{self.path}: the database is encoded in {encoding}: UTF8 is needed")
            if not self._is_there(connection):
                if not create:
                    raise StoreError(f"{self.path}: no such store: the database has no schema {self.schema} of stores")
                meta = initial_meta()  # may raise, and is asked before anything comes into being
                with connection.transaction():
                    connection.execute(
                        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"memalpha {self.schema}"]
                    )
                    if not self._is_there(connection):  # still: another process may have been faster
                        self._make(connection, meta)
            rows = connection.execute(sql.SQL("SELECT key, value FROM {}.meta").format(sql.Identifier(self.schema)))
            self.meta = dict(rows.fetchall())
            version = int(self.meta.get("format", 0))
            if version != FORMAT:
                raise StoreError(
                    f"{self.path} has store format {version}, this memalpha reads {FORMAT}: upgrade memalpha"
                )
            extension = self._extension(connection)
            path = sql.SQL("SET LOCAL search_path = {}, {}").format(sql.Identifier(self.schema), extension)
            settings = [path.as_string(connection), f"SET LOCAL lock_timeout = '{_PATIENCE}s'", "SET LOCAL jit = off"]
            settings.append("SET LOCAL max_parallel_workers_per_gather = 0")  # to start one costs more than it saves
            settings.append("SET LOCAL enable_seqscan = off")  # a plan made when the table was empty outlives that
            if self._durability == "normal":
                settings.append("SET LOCAL synchronous_commit = off")
            elif connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                settings.append("SET LOCAL synchronous_commit = on")
            self._settings = "; ".join(settings)
            self._vector = TypeInfo.fetch(connection, sql.SQL("{}.vector").format(extension).as_string(connection))
        except psycopg.Error as error:
            self._explain(error)

    def _is_there(self, connection: psycopg.Connection) -> bool:
        name = sql.SQL("{}.meta").format(sql.Identifier(self.schema)).as_string(connection)
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return row is not None and row[0]

    def _extension(self, connection: psycopg.Connection) -> sql.Identifier:
        """The schema that the extension `vector` lies in."""
        row = connection.execute(
            "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'vector'"
        ).fetchone()
        if row is not None:
            return sql.Identifier(row[0])
        there = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        raise StoreError(
            f"{self.path}: the database has no pgvector: "
            + ("" if there else "install it on the server, then ")
            + 'connect to the database as its owner or a superuser and run "CREATE EXTENSION vector"'
        )

    def _make(self, connection: psycopg.Connection, meta: dict[str, str]) -> None:
        """Make the tables, inside a transaction."""
        dim = int(json.loads(meta["embedder"])["dim"])
        extension = self._extension(connection).as_string(connection)
        schema = sql.Identifier(self.schema)
        found = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if found is None:  # asked first, because IF NOT EXISTS needs the right to make it even where it is there
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        name = schema.as_string(connection)
        self._made = [postgres_schema.removal(name)] + ([] if found else [f"DROP SCHEMA {name}"])
        try:
            script = postgres_schema.script(name, extension, dim)
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
        register(connection, self._vector)

    @property
    def numbers(self) -> MutableMapping[str, int]:
        """Those of namespaces, as the transaction at hand sees them."""
        return self._here.numbers

    @property
    def _connection(self) -> Statements:
        return self._here.statements

    def statements(self, name: str) -> Statements:
        """Where statements of a namespace are executed."""
        here = self._here
        assert name in here.of, f"the transaction is not of the namespace {name!r}"
        if len(here.of) > _FEW and here.shown != name:
            here.statements.execute(_SHOW, [str(here.numbers.get(name, ""))])
            here.shown = name
        return here.statements

    @property
    def _here(self) -> Transaction:
        here = getattr(self._local, "transaction", None)
        assert here is not None, "no transaction is open in this thread"
        return here

    @contextmanager
    def transaction(self, *of: str, write: bool = True) -> Iterator[Statements]:
        """Everything inside happens at once or not at all; for reads, everything inside sees one moment. It sees the
        namespaces `of` which it is, and no other (of many, the one whose `statements` are at hand).

        Inside another transaction of this thread it joins that one.
        """
        here: Transaction | None = getattr(self._local, "transaction", None)
        if here is not None:
            assert here.writes or not write, "what has begun as reading cannot write"
            assert here.of.issuperset(of), "what has begun for one namespace cannot go on to another"
            yield here.statements
            return
        try:
            connection, numbers = self._begun(of, write)
        except psycopg.Error as error:
            self._explain(error, "nothing was done")
        state = "nothing of this was stored" if write else ""
        try:
            self._local.transaction = Transaction(Statements(connection), ChainMap(numbers, self._known), write, {*of})
            try:
                try:
                    yield self._local.transaction.statements
                    self._commit(connection, write)
                    self._known.update(numbers)
                finally:
                    self._local.transaction = None
            finally:  # once more, where Ctrl-C came just before that: nobody may join what is over
                self._local.transaction = None
                self._give_back(connection)
        except psycopg.Error as error:
            self._explain(error, state)

    def _commit(self, connection: psycopg.Connection, write: bool) -> None:
        try:
            done = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if not (write and is_lost(error)):
                raise
            self._explain(error, "whether this was stored is not known: look at the end of the log")
        if done != "COMMIT":  # after an error that somebody has passed over
            raise StoreError(f"{self.path}: nothing of this was stored: the server answered {done}")

    def _give_back(self, connection: psycopg.Connection) -> None:
        if connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        self._pool.putconn(connection)

    def _begun(self, of: Sequence[str], write: bool) -> tuple[psycopg.Connection, dict[str, int]]:
        """A connection on which a transaction has begun, and the numbers of new namespaces found."""
        for left in range(CONNECTIONS, -1, -1):  # all of the pool's may be dead, after a restart of the server
            connection = self._taken()
            try:
                return connection, self._begin(connection, of, write)
            except BaseException as error:
                self._give_back(connection)
                if not (left and isinstance(error, psycopg.Error) and is_lost(error)):
                    raise
                self._connect().close()  # raises what is the matter if no server is there any more
        raise AssertionError

    def _taken(self) -> psycopg.Connection:
        try:
            return self._pool.getconn()
        except PoolTimeout as error:
            self._connect().close()  # raises why there is no connection, unless all are in use
            raise StoreError(
                f"{self.path}: all {CONNECTIONS} connections have been in use for {_PATIENCE} s"
            ) from error

    def _begin(self, connection: psycopg.Connection, of: Sequence[str], write: bool) -> dict[str, int]:
        """Begin a transaction: one round trip if the namespaces are known, two if they are to be written."""
        begin = "BEGIN ISOLATION LEVEL " + ("READ COMMITTED" if write else "REPEATABLE READ READ ONLY")
        numbers = {name: self._known[name] for name in of if name in self._known}
        script = f"{begin}; {self._settings}; {namespaces_setting(numbers.values() if len(of) <= _FEW else ())}"
        connection.execute(script.encode(), prepare=False)
        if numbers and write:
            lock = "SELECT FROM namespaces WHERE ns = ANY ($1) ORDER BY ns FOR UPDATE"  # planned once
            connection.execute(lock, [[*numbers.values()]])
        unknown = {*of} - numbers.keys()
        new = read_namespace_numbers(connection, unknown, write)
        if write and (missing := unknown - new.keys()):  # those who would make one of them take turns too
            if len(missing) > _FEW:  # a lock for each might be more than the server has
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", [self.schema])
            else:
                connection.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 1))", [self.schema])
                for name in sorted(missing):
                    lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"
                    connection.execute(lock, [f"{self.schema} {name}"])
            new |= read_namespace_numbers(connection, missing, write)
        if new and len(of) <= _FEW:
            connection.execute(namespaces_setting([*numbers.values(), *new.values()]).encode(), prepare=False)
        return new

    def see(self, name: str, number: int) -> None:
        """Let the transaction at hand see a namespace that it has just made."""
        here = self._here
        here.numbers[name], here.shown = number, None
        if len(here.of) <= _FEW:
            numbers = [here.numbers[name] for name in here.of if name in here.numbers]
            here.statements.execute(_SHOW, [",".join(map(str, numbers))])

    @contextmanager
    def loading(self) -> Iterator[None]:
        """What an empty store is filled in, in a transaction that writes: vectors come into their index at the end all
        at once, if the role owns the tables."""
        here = self._here.statements
        query = "SELECT pg_get_indexdef(c.oid) FROM pg_class c WHERE c.oid = to_regclass('vectors_near') AND " + _OWNED
        index = here.execute(query).fetchone()
        if index is not None:
            here.execute("DROP INDEX vectors_near")
        yield
        if index is not None:
            here.execute(index[0].replace(" ON ONLY ", " ON "))
            here.execute(f"ANALYZE {', '.join(postgres_schema.TABLES)}")

    def analyze(self, number: int) -> None:
        """Take statistics of the partitions that a namespace lies in, if the role owns them."""
        here = self._here.statements
        for table in postgres_schema.TABLES:
            query = f"SELECT c.oid::regclass::text FROM pg_class c WHERE {_OWNED} AND c.oid = "
            found = here.execute(query + f"(SELECT tableoid FROM {table} WHERE ns = ? LIMIT 1)", (number,)).fetchone()
            if found is not None:
                here.execute(f"ANALYZE {found[0]}")

    def drop_made(self) -> None:
        """Drop the tables that opening this has made, if there is no namespace in them; no error where that fails."""
        with suppress(StoreError, psycopg.Error), self._connect() as connection, connection.transaction():
            for statement in self._made[:1]:
                connection.execute(f"SET LOCAL lock_timeout = '{_TO_CONNECT}s'; {statement}".encode(), prepare=False)
            for statement in self._made[1:]:
                with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                    connection.execute(statement.encode())

    def now(self) -> str:
        """The time as the log keeps it."""
        return utc(self.clock())

    def must_scrub(self) -> None:
        """Nothing can be done here about the bytes of what was erased: `MemoryStore.erase` says who can."""

    scrub_due = False

    def scrub(self) -> None:
        """Nothing."""

    def namespaces(self) -> list[str]:
        """The names of all namespaces that were ever written to, of those that the role may see."""
        return [name for (name,) in self._connection.execute("SELECT name FROM namespaces ORDER BY name")]

    def faults(self) -> Iterator[str]:
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

    def notes(self) -> list[str]:
        """What else one should know of the server, and of the role that asks."""
        query = "SELECT rolsuper OR rolbypassrls, current_user FROM pg_roles WHERE rolname = current_user"
        passes, name = self._connection.execute(query).fetchone() or (False, "")
        found = [f"the role {name} passes by row-level security: let applications use another"] if passes else []
        if self._connection.execute("SELECT current_setting('fsync')").fetchone() == ("off",):
            found.append(
                "the server's fsync is off: a power failure may take back, or damage, what it has acknowledged"
            )
        return found

    def misses(self) -> dict[str, str]:
        """Nothing: tables that are missing are an error of the server's, and the faults above tell the rest."""
        return {}

    def make(self, name: str) -> None:
        """Make one of `misses` anew: there are none."""

    def orphans(self, table: str) -> int:
        """The rows of a table whose namespace is not there: none that a policy would show."""
        return 0

    def drop_orphans(self, table: str) -> None:
        """Delete them: there are none."""

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        self._pool.close()

    def _explain(self, error: psycopg.Error, state: str = "") -> NoReturn:
        """Raise the error in the store's words; `state` says what is known of the transaction."""
        admit = f"{self.schema}.admit('ROLE', 'NAMESPACE')" if hasattr(self, "_pool") else None
        raise_store_error(error, self.path, state, admit)
