"""One SQLite file: its format, its transactions, and the rows of one namespace.

The log (`operations`) is append-only and complete; only erasure may make stubs of its rows. `versions` holds every
version of every entry with the log positions between which it was current; it and `vectors` follow from the log, and
each operation writes all of its rows in one transaction. WAL with `synchronous=FULL`: when a write returns, it is on
disk. With `NORMAL` it is with the operating system: a killed process loses nothing, a power failure may take back the
last operations, whole ones. A file of an older format is brought to the present one when it is opened, in one
transaction. What expires is found by an index of its own, so that to look whether anything does costs no more in a
large memory.

`operations.head` names the earlier position whose facts the memory holds after this row: the row's own for ordinary
operations, an earlier one after an undo, a redo or a restore. That is what a following `undo` goes back from.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock
from time import monotonic, sleep, time
from typing import NoReturn, get_args

from memalpha.errors import DamagedStore, StoreError
from memalpha.store.backends.base import Clock, Durability, system_clock
from memalpha.store.filters import format_utc

APPLICATION_ID = 0x6D416C70  # "mAlp"
FORMAT = 4

_LOCK_TIMEOUT = 30.0  # seconds a writer waits for its turn
_ABANDONED_AFTER = 86400.0  # seconds until a file that was never finished counts as left by a killed process
_PAGE_SIZE = 8192  # bytes: five vectors of 384 fit into one, where two fit into half of it
_CACHE_SIZE = 16  # MiB of pages that a connection may hold; SQLite's 2 are written out and read again in every batch

# The one change that a row of the log may suffer is erasure: it becomes a stub and keeps nothing but its place.
_APPEND_ONLY = """\
CREATE TRIGGER operations_stay BEFORE UPDATE ON operations WHEN NOT (
  OLD.kind <> 'erased' AND NEW.kind = 'erased' AND (NEW.ns, NEW.seq, NEW.time, NEW.head)
    = (OLD.ns, OLD.seq, OLD.time, OLD.head)
  AND coalesce(NEW.category, NEW.content, NEW.timestamp, NEW.importance, NEW.metadata, NEW.source, NEW.chunk, NEW.turn,
    NEW.expires) IS NULL)
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;"""

_EXPIRING = "CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;"

# The raw text of each source in its order, so that what stands around a span is found without reading the source.
_SPANS = """\
CREATE INDEX spans ON versions (ns, source, coalesce(chunk, -1), created)
  WHERE valid_to IS NULL AND turn IS NOT NULL AND source IS NOT NULL;"""

_DDL = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (ns INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE operations (
  ns INTEGER NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, head INTEGER NOT NULL, kind TEXT NOT NULL,
  id TEXT, category TEXT, content TEXT, timestamp TEXT, importance REAL, metadata TEXT, source TEXT, chunk INTEGER,
  turn TEXT, expires TEXT, PRIMARY KEY (ns, seq)) WITHOUT ROWID;
CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
{_APPEND_ONLY}
CREATE TRIGGER operations_last BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TABLE versions (
  ns INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, category TEXT NOT NULL, content TEXT NOT NULL,
  timestamp TEXT, importance REAL NOT NULL, metadata TEXT NOT NULL, source TEXT, chunk INTEGER, turn TEXT,
  valid_from INTEGER NOT NULL, valid_to INTEGER, created INTEGER NOT NULL, digest BLOB NOT NULL, expires TEXT,
  PRIMARY KEY (ns, id, version)) WITHOUT ROWID;
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
{_EXPIRING}
{_SPANS}
CREATE TABLE vectors (ns INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (ns, digest));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""

# What brings a file from a format to the next one.
_MIGRATIONS = {
    1: "",  # another trigger operations_stay, which the next step replaces once more
    2: f"""\
DROP TRIGGER operations_stay;
ALTER TABLE operations ADD COLUMN expires TEXT;
ALTER TABLE versions ADD COLUMN expires TEXT;
{_APPEND_ONLY}
{_EXPIRING}""",
    3: _SPANS,
}


class SQLiteDatabase:
    """One connection to a store file. All access goes through `transaction`; threads take turns.

    `path` may be ":memory:"; see `MemoryStore.open` for `durability`. A new store records `initial_meta()`; `meta` is
    what the file has recorded. Raises `StoreError` for a file that is no store, one of a newer format, one that is
    missing (without `create`), or a missing folder. `clock` tells the time; `numbers`: those of namespaces, as this
    connection sees them.
    """

    def __init__(
        self,
        path: str,
        *,
        create: bool,
        initial_meta: Callable[[], dict[str, str]],
        durability: Durability = "full",
        clock: Clock = system_clock,
    ) -> None:
        if durability not in get_args(Durability):
            raise StoreError(f"durability {durability!r}: 'full' or 'normal' is needed")
        self.path = path
        self.clock = clock
        self._lock = RLock()
        self._writes = False  # what the transaction at hand may do
        self.namespace_ids: dict[str, int] = {}
        if path != ":memory:":
            _check_path(Path(path), create)
        initial_meta = cache(initial_meta)
        if not Path(path).exists():
            initial_meta()  # may raise, and is asked before the file comes into being
        with self._translated_errors():
            # Transactions are begun and ended here, never by the sqlite3 module (isolation_level None).
            self._connection = sqlite3.connect(
                path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare(create, initial_meta)
            if durability == "normal":  # making and migrating a file is durable in any case
                self._connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, create: bool, initial_meta: Callable[[], dict[str, str]]) -> None:
        with self._translated_errors():
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA fullfsync = ON")  # macOS: really through the drive's own cache
            self._connection.execute(f"PRAGMA cache_size = {-1024 * _CACHE_SIZE}")
            if self._is_new():
                if not create:
                    raise StoreError(f"{self.path} is an empty database, not a memalpha store")
                meta = initial_meta()
                self._connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")  # heeded before the first page is written
                self._use_wal()
                with self.transaction():
                    if self._is_new():  # still: another process may have been faster
                        for statement in _split_statements(_DDL):
                            self._connection.execute(statement)
                        self._connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                        self._connection.execute("INSERT INTO meta VALUES ('created', ?)", (self.now(),))
            self._migrate()
            self.meta: dict[str, str] = dict(self._connection.execute("SELECT key, value FROM meta"))

    def _migrate(self) -> None:
        """Bring a file of an older format to the present one; `StoreError` for one that is not known."""
        if self._pragma("user_version") == FORMAT:
            return
        with self.transaction():
            version = self._pragma("user_version")  # asked again: another process may have been faster
            if not 1 <= version <= FORMAT:
                raise StoreError(
                    f"{self.path} has store format {version}, this memalpha reads 1 to {FORMAT}: upgrade memalpha"
                )
            for step in range(version, FORMAT):
                for statement in _split_statements(_MIGRATIONS[step]):
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")

    def _is_new(self) -> bool:
        """Whether the file holds nothing yet; `StoreError` if it holds something that is not a store."""
        with self.transaction(write=False):  # one moment: another process may be making the store just now
            application = self._pragma("application_id")
            if application == APPLICATION_ID:
                return False
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != 0 or tables:
            raise StoreError(f"{self.path} is an SQLite database, but not a memalpha store: give another path")
        return True

    def _use_wal(self) -> None:
        """Switch the file to WAL. SQLite does not wait here for another process that is doing the same, so we do."""
        deadline = monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > deadline:
                    raise
                sleep(0.01)

    def _pragma(self, name: str) -> int:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Everything inside happens at once or not at all; for reads, everything inside sees one moment, whatever
        namespaces it is `of`.

        Inside another transaction of this thread it joins that one.
        """
        with self._lock:
            connection = self._connection
            try:
                if connection.in_transaction:
                    assert self._writes or not write, "what has begun as reading cannot write"
                    yield connection
                    return
                self._writes = write
                try:
                    # IMMEDIATE: a writer waits for its turn here, before it has read what others may still change.
                    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:  # Ctrl-C included
                    self.namespace_ids.clear()  # one that was given in this transaction may go to another name
                    raise
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._raise_store_error(error)

    def now(self) -> str:
        """The time as the log keeps it."""
        return format_utc(self.clock())

    def mark_for_scrub(self) -> None:
        """Note, in the transaction that erases, that the file has to be rewritten after it."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('scrub', 'due')")

    @property
    def is_scrub_due(self) -> bool:
        """Whether something was erased and the file not rewritten yet."""
        return self._connection.execute("SELECT 1 FROM meta WHERE key = 'scrub'").fetchone() is not None

    def scrub(self) -> None:
        """Rewrite the file if that is due, so that free pages and write-ahead log hold nothing that was erased."""
        with self._lock, self._translated_errors():
            if not self.is_scrub_due:
                return
            self._connection.execute("VACUUM")
            if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise StoreError(
                    f"{self.path}: erased, but other processes read the file, and until they are done its write-ahead "
                    "log holds what was erased: stop them and run `memalpha doctor --repair`"
                )
            self._connection.execute("DELETE FROM meta WHERE key = 'scrub'")

    def read_damaged_text(self) -> None:
        """From now on, give text that is not UTF-8 with half surrogate pairs for the bytes that do not fit."""
        self._connection.text_factory = lambda data: data.decode(errors="surrogateescape")

    def namespaces(self) -> list[str]:
        """The names of all namespaces that were ever written to."""
        return [name for (name,) in self._connection.execute("SELECT name FROM namespaces ORDER BY name")]

    def integrity_errors(self) -> Iterator[str]:
        """What SQLite finds wrong with the file, a line each."""
        for (message,) in self._connection.execute("PRAGMA integrity_check"):
            if message != "ok":
                yield message

    def warnings(self) -> list[str]:
        """What else one should know: nothing, of a file."""
        return []

    def schema_mismatches(self) -> dict[str, str]:
        """The tables that the file lacks, the indexes and triggers that it lacks or has otherwise: name and kind."""
        recorded = {name: f"{sql};" for name, sql in self._connection.execute("SELECT name, sql FROM sqlite_master")}
        return {
            name: kind
            for name, (kind, expected) in _definitions().items()
            if name not in recorded or (kind != "table" and recorded[name] != expected)
        }

    def recreate(self, name: str) -> None:
        """Make one of `misses` anew."""
        kind, statement = _definitions()[name]
        self._connection.execute(f"DROP {kind} IF EXISTS {name}")
        self._connection.execute(statement)

    def count_orphans(self, table: str) -> int:
        """The rows of a table whose namespace is not there."""
        query = f"SELECT count(*) FROM {table} WHERE ns NOT IN (SELECT ns FROM namespaces)"
        return self._connection.execute(query).fetchone()[0]

    def delete_orphans(self, table: str) -> None:
        """Delete them."""
        self._connection.execute(f"DELETE FROM {table} WHERE ns NOT IN (SELECT ns FROM namespaces)")

    @contextmanager
    def bulk_load(self) -> Iterator[None]:
        """What an empty store is filled in: here nothing is put off until it is full."""
        yield

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._raise_store_error(error)

    def _raise_store_error(self, error: sqlite3.Error) -> NoReturn:
        """Raise what says in the store's words what SQLite has met, and what to do."""
        if isinstance(error, sqlite3.ProgrammingError):
            if "closed" not in str(error):
                raise error
            raise StoreError(f"the store {self.path} is closed") from error
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith("SQLITE_NOTADB"):
            raise StoreError(f"{self.path} is not a memalpha store: give another path") from error
        if code.startswith("SQLITE_BUSY"):
            raise StoreError(
                f"{self.path}: another process has kept it locked for {_LOCK_TIMEOUT:.0f} s: try again"
            ) from error
        if code.startswith("SQLITE_CORRUPT") or "Could not decode" in str(error):
            message = f"{self.path} is damaged ({str(error)[:100]}): go back to a copy, or ask `memalpha doctor`"
            raise DamagedStore(message) from error
        raise StoreError(f"{self.path}: {error}") from error

    def close(self) -> None:
        """Close the connection; a second time does nothing."""
        with self._lock:
            self._connection.close()


def temporary_path(path: Path) -> Path:
    """A hidden name of this process beside a file, for what is moved there once it is whole. What a process that was
    killed left under such a name is removed after a day."""
    abandoned = re.compile(rf"\.{re.escape(path.name)}\.\d+(-wal|-shm)?")
    for file in path.parent.iterdir():
        with suppress(FileNotFoundError):  # another process may be doing the same
            if abandoned.fullmatch(file.name) and file.stat().st_mtime < time() - _ABANDONED_AFTER:
                file.unlink()
    return path.with_name(f".{path.name}.{os.getpid()}")


@contextmanager
def create_file(path: Path, meta: Mapping[str, str]) -> Iterator[SQLiteDatabase]:
    """A new store file of the same schema and embedder, which is at `path` when the block has ended well, and whole."""
    _check_path(path, create=True)
    if path.exists():
        raise StoreError(f"{path} is there already: give another path")
    temporary = temporary_path(path)
    files = [Path(f"{temporary}{suffix}") for suffix in ("", "-wal", "-shm")]
    try:
        for file in files:
            file.unlink(missing_ok=True)
        database = SQLiteDatabase(
            str(temporary), create=True, initial_meta=lambda: {key: meta[key] for key in ("schema", "embedder")}
        )
        try:
            yield database
        finally:
            database.close()
        temporary.replace(path)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _split_statements(script: str) -> Iterator[str]:
    """The statements of a script. (`executescript` would commit the open transaction first.)"""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _definitions() -> dict[str, tuple[str, str]]:
    """What the format consists of, by name: table, index or trigger, and the statement that makes it."""
    definitions = {}
    for statement in map(str.strip, _split_statements(_DDL)):
        if match := re.match(r"CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER) (\w+)", statement):
            definitions[match[2]] = match[1].lower(), statement
    return definitions


def _check_path(path: Path, create: bool) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a store: give a file path such as {path / 'memory.db'}")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: the folder {path.parent} does not exist: create it first")
    if not create and not path.exists():
        raise StoreError(f"{path}: no such store")
