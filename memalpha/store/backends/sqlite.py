"""SQLite files: format and transactions.

The log (`operations`) is append-only and complete; only erasure may turn its rows into stubs. `versions` holds every
version of every entry with the log positions between which it was current. It and `vectors` follow from the log, and
each operation writes all of its rows in one transaction. In WAL mode with `synchronous=FULL`, a write that has
returned is on disk. With `NORMAL` the operating system has it: a killed process loses nothing, and a power failure may
lose the last operations, whole ones. Expiry has an index of its own, so checking for expired entries stays cheap in a
large memory.

`operations.head` is the position whose facts the memory holds after the row: the row's own for ordinary operations, an
earlier one after an undo, a redo or a restore. The next `undo` continues from there.
"""

from __future__ import annotations

import glob
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic, sleep

from memalpha.errors import DamagedStore, ScrubPending, StoreError
from memalpha.store.backends.base import Clock, Durability, system_clock
from memalpha.store.backends.sqlite_schema import (
    APPLICATION_ID,
    DDL,
    FORMAT,
    TABLES,
    definitions,
    foreign_objects,
    is_same_sql,
    split_statements,
)
from memalpha.store.backends.sqlite_transactions import LEFT_OPEN, TransactionalConnection
from memalpha.store.backends.sqlite_transactions import LOCK_TIMEOUT as _LOCK_TIMEOUT
from memalpha.store.backends.temporary import (
    abandoned_files,
    locked_file,
    move_file,
    remove_abandoned_files,
    sqlite_logs,
    temporary_path,
)

_COPY = "copy "  # begins the key of `meta` for a copy that is being made; the path of its target follows
_MOST_COPIES = 100  # that an opening looks after; one that finds more goes on at the next
_PAGE_SIZE = 8192  # bytes; holds five vectors of 384 numbers, while half of it would hold two
_MAX_LISTED = 5  # foreign objects that a message names
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,  # bytes of a value or a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,  # bytes of a statement
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 1,  # VACUUM attaches its new file
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_CACHE_SIZE = 16  # MiB of cached pages; SQLite's default of 2 spills and rereads pages in every batch


class SQLiteDatabase(TransactionalConnection):
    """Connection to a store file. All access goes through `transaction`; threads take turns.

    Raises `StoreError` for a file that is no store or of another format, a missing file without `create`, or a missing
    folder.
    """

    def __init__(
        self,
        path: str,
        *,
        create: bool,
        initial_meta: Callable[[], dict[str, str]],
        durability: Durability = "full",
        clock: Clock = system_clock,
        inspect: bool = False,
    ) -> None:
        """Open a file.

        Args:
            path: File path or ":memory:".
            create: Create a missing file, readable by its owner only.
            initial_meta: Returns the metadata of a new store; it may raise.
            durability: "full" or "normal".
            clock: Returns the current time.
            inspect: Open a file with foreign objects too, for `memalpha doctor`, as long as its tables are sound.
        """
        super().__init__(path, durability, clock)
        self._inspect, self._durability = inspect, durability
        self._file = path  # absolute: SQLite takes a relative one that begins with "file:" for a URI
        self._identity: tuple[int, int] | None = None
        if path != ":memory:":
            _check_path(Path(path), create)
            self._file = str(Path(path).absolute())
        initial_meta = cache(initial_meta)
        if not Path(path).exists():
            initial_meta()  # may raise: call it before the file is created
            if path != ":memory:":
                _create_private_file(Path(path))
        self._open(create, initial_meta)
        self.watch_forks()

    def _open(self, create: bool = False, initial_meta: Callable[[], dict[str, str]] = dict) -> None:
        """Connect to the file and prepare it. Raises `StoreError` if it is another file than before."""
        if self._identity is not None and self._identity != self._read_identity():
            raise self._file_changed()
        with self._translated_errors():
            self._connection = self._connect()
        try:
            self._identity = self._read_identity()
            self._prepare(create, initial_meta)
            if self._durability == "normal":  # creating a file is always durable
                self._connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # With isolation_level None, the sqlite3 module never begins or ends a transaction itself.
        return sqlite3.connect(self._file, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)

    def _read_identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path; None if there is none."""
        try:
            status = os.stat(self._file)  # noqa: PTH116 (at each write, and a `Path` takes three times as long)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _check_file(self) -> None:
        if self._identity != self._read_identity():
            is_ours = self._pragma("data_version") == self._data_version
            self._connection.execute("ROLLBACK")
            self._leave_file(is_ours)
            raise self._file_changed()

    def _leave_file(self, is_log_ours: bool) -> None:
        """Close the connection to a file that has another path now; the next transaction looks at the path again.

        Its log lies where the other file's would, and whoever opens that one would apply it. So the log's content is
        moved into the file that it belongs to, unless another connection has written to the log.
        """
        if is_log_ours:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        log = Path(f"{self._file}-wal")
        if log.exists() and log.stat().st_size:  # closing would remove it: it may be that of the other file
            LEFT_OPEN.append(self._connection)
        else:
            self._connection.close()
        self._is_paused = True

    def _file_changed(self) -> StoreError:
        event = "removed" if self._read_identity() is None else "replaced by another file"
        return StoreError(f"{self.path} was {event} while it was open: nothing was written; open the store again")

    def _set_limits(self) -> None:
        self._connection.execute("PRAGMA trusted_schema = OFF")  # what the file defines calls no risky function
        self._connection.execute("PRAGMA cell_size_check = ON")
        for category, limit in _LIMITS.items():
            self._connection.setlimit(category, limit)

    def _prepare(self, create: bool, initial_meta: Callable[[], dict[str, str]]) -> None:
        with self._translated_errors():
            self._set_limits()
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA fullfsync = ON")  # macOS: flush the drive's cache, too
            self._connection.execute(f"PRAGMA cache_size = {-1024 * _CACHE_SIZE}")
            if self._is_new():
                if not create:
                    raise StoreError(f"{self.path} is an empty database, not a memalpha store")
                meta = initial_meta()
                self._connection.execute(
                    f"PRAGMA page_size = {_PAGE_SIZE}"
                )  # takes effect only before the first page is written
                self._use_wal()
                with self.transaction():
                    if self._is_new():  # check again: another process may have been faster
                        for statement in split_statements(DDL):
                            self._connection.execute(statement)
                        self._connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                        self._connection.execute("INSERT INTO meta VALUES ('created', ?)", (self.now(),))
            self._check_format()
            self.meta: dict[str, str] = dict(self._connection.execute("SELECT key, value FROM meta"))

    def _check_format(self) -> None:
        """Raise `StoreError` for another format and `DamagedStore` for foreign objects."""
        version = self._pragma("user_version")
        if version != FORMAT:
            raise StoreError(f"{self.path} has store format {version}, this memalpha reads {FORMAT}: upgrade memalpha")
        foreign = foreign_objects(self._connection)
        if not foreign or (self._inspect and not TABLES & foreign.keys()):
            return
        names = ", ".join(f"{kind} {name[:80]!r}" for name, kind in islice(foreign.items(), _MAX_LISTED))
        advice = "go back to a copy" if TABLES & foreign.keys() else "`memalpha doctor --repair` removes what is added"
        raise DamagedStore(
            f"{self.path} is refused: {len(foreign)} of its objects are not those of a store ({names}), and could run "
            f"or copy what you write. Nothing was written; {advice}"
        )

    def _is_new(self) -> bool:
        """Return True if the file is empty. Raises `StoreError` if it is not a store."""
        with self.transaction(write=False):  # one consistent view: another process may be creating the store
            application = self._pragma("application_id")
            if application == APPLICATION_ID:
                return False
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != 0 or tables:
            raise StoreError(f"{self.path} is an SQLite database, but not a memalpha store: give another path")
        return True

    def _use_wal(self) -> None:
        """Switch the file to WAL, waiting for another process that does the same; SQLite does not wait here."""
        deadline = monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > deadline:
                    raise
                sleep(0.01)

    def mark_for_scrub(self) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('scrub', 'due')")

    @property
    def is_scrub_due(self) -> bool:
        return self._connection.execute("SELECT 1 FROM meta WHERE key = 'scrub'").fetchone() is not None

    def scrub(self, *, wait: bool = True) -> None:
        with self._lock, self._translated_errors():
            self._resume_after_fork()
            if not self.is_scrub_due:
                return
            self._connection.execute(f"PRAGMA busy_timeout = {1000 * _LOCK_TIMEOUT * wait:.0f}")
            try:
                self._connection.execute("VACUUM")
                if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    raise self._scrub_pending("other processes read the file, whose write-ahead log holds what was")
                self._connection.execute("DELETE FROM meta WHERE key = 'scrub'")
            except sqlite3.OperationalError as error:
                raise self._scrub_pending(self._scrub_obstacle(error)) from error
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {1000 * _LOCK_TIMEOUT:.0f}")

    def _scrub_obstacle(self, error: sqlite3.OperationalError) -> str:
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith("SQLITE_BUSY"):
            return "another process has the file locked"
        size = self._pragma("page_count") * self._pragma("page_size") / 2**20
        if code == "SQLITE_FULL" or code.startswith("SQLITE_IOERR"):
            return (
                f"there is no room to rewrite the file ({error}): {2 * size:.0f} MB beside it and {size:.0f} MB for "
                "temporary files are needed"
            )
        return f"the file cannot be rewritten ({error})"

    def _scrub_pending(self, obstacle: str) -> ScrubPending:
        return ScrubPending(
            f"{self.path}: erased, but {obstacle}: nothing returns what was erased, its bytes may still lie in the "
            "file; opening the store again or `memalpha doctor --repair` goes on"
        )

    def empty_wal(self) -> None:
        """Move the write-ahead log into the file. Closing does so too, but tells nobody if it fails."""
        with self._lock, self._translated_errors():
            self._resume_after_fork()
            if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise StoreError(f"{self.path}: another process reads the file while it is made: try again")

    @contextmanager
    def note_copy(self, target: Path) -> Iterator[None]:
        key = _COPY + str(target.absolute())
        with self.transaction():
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, '')", (key,))
        try:
            yield
        finally:
            with self.transaction():
                self._connection.execute("DELETE FROM meta WHERE key = ?", (key,))

    def abandoned_copies(self) -> dict[str, list[Path]]:
        query = "SELECT key FROM meta WHERE substr(key, 1, ?) = ? LIMIT ?"
        keys = self._connection.execute(query, (len(_COPY), _COPY, _MOST_COPIES)).fetchall()
        targets = (str(key).removeprefix(_COPY) for (key,) in keys)
        return {target: abandoned_files(Path(target)) for target in targets if _is_local_path(target)}

    def remove_abandoned_copies(self) -> None:
        with self.transaction():
            for target in self.abandoned_copies():
                remove_abandoned_files(Path(target))
                if not any(Path(target).parent.glob(f".{glob.escape(Path(target).name)}.*.partial")):  # none is running
                    self._connection.execute("DELETE FROM meta WHERE key = ?", (_COPY + target,))

    @contextmanager
    def unlock_log(self) -> Iterator[None]:
        self._connection.execute("DROP TRIGGER operations_last")
        yield
        self._connection.execute(definitions()["operations_last"][1])

    def read_damaged_text(self) -> None:
        """Decode text that is not UTF-8 with surrogate escapes from now on."""
        self._connection.text_factory = lambda data: data.decode(errors="surrogateescape")

    def integrity_errors(self) -> Iterator[str]:
        for (message,) in self._connection.execute("PRAGMA integrity_check"):
            if message != "ok":
                yield message

    def schema_mismatches(self) -> dict[str, str]:
        recorded = dict(self._connection.execute("SELECT name, sql FROM sqlite_master"))
        return {
            name: kind
            for name, (kind, expected) in definitions().items()
            if name not in recorded or (kind != "table" and not is_same_sql(recorded[name], expected))
        }

    def foreign_objects(self) -> dict[str, str]:
        return foreign_objects(self._connection)

    def drop(self, name: str, kind: str) -> None:
        quoted = name.replace('"', '""')
        self._connection.execute(f'DROP {kind} IF EXISTS "{quoted}"')

    def recreate(self, name: str) -> None:
        kind, statement = definitions()[name]
        self._connection.execute(f"DROP {kind} IF EXISTS {name}")
        self._connection.execute(statement)

    def count_orphans(self, table: str) -> int:
        query = f"SELECT count(*) FROM {table} WHERE ns NOT IN (SELECT ns FROM namespaces)"
        return self._connection.execute(query).fetchone()[0]

    def delete_orphans(self, table: str) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE ns NOT IN (SELECT ns FROM namespaces)")

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._is_paused = False
            self.unwatch_forks()


@contextmanager
def create_file(path: Path, meta: Mapping[str, str]) -> Iterator[SQLiteDatabase]:
    """Yield a new store file that appears at `path`, complete, only if the block succeeds."""
    _check_path(path, create=True)
    if path.exists():
        raise StoreError(f"{path} already exists: give another path")
    remove_abandoned_files(path)
    temporary = temporary_path(path)
    files = [temporary, *sqlite_logs(temporary)]
    with locked_file(temporary):
        try:
            database = SQLiteDatabase(
                str(temporary), create=True, initial_meta=lambda: {key: meta[key] for key in ("schema", "embedder")}
            )
            try:
                yield database
                database.empty_wal()
            finally:
                database.close()
            move_file(temporary, path)
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def _create_private_file(path: Path) -> None:
    """Create an empty file that only its owner can read, unless another process is faster; its log gets this mode."""
    with suppress(FileExistsError):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise StoreError(f"{path}: the file cannot be created ({error.strerror})") from error


def _is_local_path(path: str) -> bool:
    """Return True for an absolute path on this machine; a file may come from somebody else."""
    return Path(path).is_absolute() and not path.startswith(("//", "\\\\"))


def _check_path(path: Path, create: bool) -> None:
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # too long a name, a NUL, a folder that is a file
        raise StoreError(f"{str(path)[:200]!r} cannot be opened ({error!s:.60}): give another path") from error
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a store: give a file path such as {path / 'memory.db'}")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: the folder {path.parent} does not exist: create it first")
    if not create and not path.exists():
        raise StoreError(f"{path}: no such store; `memalpha add` and `memalpha read` make one")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no file, but a device or a pipe: give another path")
