"""SQLite files: format and transactions.

The log (`operations`) is append-only and complete; only erasure may turn its rows into stubs. `versions` holds every
version of every entry with the log positions between which it was current. It and `vectors` follow from the log, and
each operation writes all of its rows in one transaction. In WAL mode with `synchronous=FULL`, a write that has
returned is on disk. With `NORMAL` the operating system has it: a killed process loses nothing, and a power failure may
lose the last operations, whole ones. Expiry has an index of its own, so checking for expired entries stays cheap in a
large memory.

`operations.head` is the position whose facts the memory holds after the row: the row's own for ordinary operations, an
earlier one after an undo, a redo or a restore. The next `undo` continues from there.

A file may come from somebody else. Triggers and views are code that runs on every write or read, so a file with any
object that the format (`DDL`) does not define is refused by name before anything is written.

A file that is being written is hidden beside its target, and locked while its writer lives. What a killed writer left
is removed by the next one of the same target.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from threading import RLock
from time import monotonic, sleep, time
from typing import Any, NoReturn
from urllib.parse import quote

from memalpha.errors import DamagedStore, DeadlineExceeded, ScrubPending, StoreError
from memalpha.forks import ForkAware
from memalpha.store.backends.base import CANNOT_WRITE, DEADLINE, Backend, Clock, Durability, system_clock, watched
from memalpha.store.fields import FORMAT, INDEXES, NAMES, columns, listed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_ABANDONED_AFTER = 86400.0  # seconds until a file that nobody can lock counts as left by a killed process
_MODE = 0o600


@contextmanager
def hidden_file(path: Path) -> Iterator[tuple[Path, int]]:
    """Create a hidden file beside a path, for its owner alone, that is moved there, for good, if the block succeeds.

    It is locked meanwhile: an unlocked one was left by a killed process. Yields its path and its descriptor. Raises
    `StoreError`.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+\.[0-9a-f]{{8}}\.partial")
    with suppress(OSError):  # no folder any more
        for file in [file for file in path.parent.iterdir() if name.fullmatch(file.name) and _is_abandoned(file)]:
            _remove_with_logs(file)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield temporary, descriptor
        try:
            temporary.replace(path)
            if os.name == "posix":  # make the rename durable, where folders can be synced
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise StoreError(f"{path}: the complete file cannot be moved there ({error.strerror})") from error
    finally:
        _remove_with_logs(temporary)
        os.close(descriptor)


def _remove_with_logs(path: Path) -> None:
    """Remove a database and the files that SQLite may leave beside it, as far as they are there."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(OSError):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


def _is_abandoned(file: Path) -> bool:
    """Return True for a file of `hidden_file` whose writer was killed."""
    try:
        if file.is_symlink() or not file.is_file():
            return False
        if fcntl is None:
            return file.stat().st_mtime < time() - _ABANDONED_AFTER
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError:  # it is locked, gone or somebody else's
        return False
    return True


APPLICATION_ID = 0x6D416C70  # "mAlp"

_STATISTICS = "CREATE TABLE sqlite_stat1(tbl,idx,stat)"  # made by ANALYZE

_TYPES = {"text": "TEXT", "number": "REAL", "whole": "INTEGER"}
_FIRST = NAMES[: NAMES.index("turn") + 1]  # versions have the later fields at their end

# - operations_stay: a log row may change by erasure only. It becomes a stub that keeps its position, time and head.
# - spans: those of each source in order, so that neighbours of a span are found without reading the source.
DDL = (
    (Path(__file__).parent / "sqlite.sql")
    .read_text(encoding="utf-8")
    .format(
        log_columns=columns(_TYPES, in_log=True),
        new_contents=listed("NEW", ("category", "content", *NAMES, "reason")),
        first_columns=columns(_TYPES, in_log=False, names=_FIRST),
        later_columns=columns(_TYPES, in_log=False, names=NAMES[len(_FIRST) :]),
        indexes=INDEXES,
        application_id=APPLICATION_ID,
        format=FORMAT,
    )
)


def split_statements() -> Iterator[str]:
    """Iterate over the statements of `DDL`. (`executescript` would commit the open transaction first.)"""
    statement = ""
    for line in DDL.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@cache
def definitions() -> dict[str, tuple[str, str]]:
    """Return the parts of the format by name: kind (table, index, trigger) and SQL statement."""
    definitions = {}
    for statement in map(str.strip, split_statements()):
        if match := re.match(r"CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER) (\w+)", statement):
            definitions[match[2]] = match[1].lower(), statement
    return definitions


def is_same_sql(sql: str | None, statement: str) -> bool:
    """Return True if a recorded definition is that of the format; line ends differ among what made a file."""
    return (sql or "").split() == statement.removesuffix(";").split()


TABLES = frozenset(name for name, (kind, _) in definitions().items() if kind == "table")
"""Names of the tables of a store file."""


_FULL = 1 << 20  # free bytes below which an error of the disk is put down to a full one
LOCK_TIMEOUT = 30.0  # seconds that a writer waits for the lock
_FORK_WAIT = 5.0  # seconds that a fork waits for the transactions of other threads

LEFT_OPEN: list[sqlite3.Connection] = []  # connections whose closing could remove a write-ahead log in use


def _explain(path: str, code: str) -> str:
    """Return what an error of the disk, the rights or the descriptors means, and what to do; "" for other errors."""
    folder = Path(path).absolute().parent
    try:
        is_full = shutil.disk_usage(folder).free < _FULL
    except OSError:
        is_full = False
    if code.startswith("SQLITE_FULL") or (code.startswith("SQLITE_IOERR") and is_full):
        return "the disk is full: make room, and try again"
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) and folder.is_dir():
        if not all(os.access(p, os.W_OK) for p in (path, folder) if Path(p).exists()):
            return "the file or its folder is read-only: open it with read_only=True, or allow this user to write both"
        if code.startswith("SQLITE_CANTOPEN"):
            return "the file cannot be opened: is it a file, and may this process open more of them (ulimit -n)?"
    if code.startswith("SQLITE_IOERR"):
        return f"the disk reports an error ({code}): look at the system's log, and try again"
    if code == "SQLITE_TOOBIG":
        return "an entry with its metadata is over 64 MiB: keep such data in a file, and its path in the entry"
    return ""


_PAGE_SIZE = 8192  # bytes; holds five vectors of 384 numbers, while half of it would hold two
MOUNTS = Path("/proc/self/mountinfo")
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


class SQLiteDatabase(Backend, ForkAware):
    """Connection to a store file. All access goes through `transaction`; threads take turns.

    SQLite allows no connection across a fork. So it is closed before one, and opened anew by the next transaction of
    either process. A child cannot use a store in memory, or one with an open transaction: there it raises `StoreError`.

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
        self._lock = RLock()
        self._writes = False  # True if the open transaction may write
        self._atomic_namespaces: tuple[str, ...] | None = None  # those of `atomic`, while it is open
        self.namespace_ids: dict[str, int] = {}
        self._data_version = 0
        # True if the connection is closed until the next transaction, or cannot be used in this process.
        self._is_paused = self._is_unusable = False
        self._inspect, self._durability = inspect, durability
        self.file = path  # absolute: the folder may change, and SQLite takes "file:..." for a URI
        self._identity: tuple[int, int] | None = None
        initial_meta = cache(initial_meta)
        if path != ":memory:":
            _check_path(Path(path), create)
            self.file = str(Path(path).absolute())
            if not Path(path).exists():
                initial_meta()  # may raise: call it before the file is created
                try:  # only its owner can read it, and its log gets this mode
                    with suppress(FileExistsError):  # another process was faster
                        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE))
                except OSError as error:
                    raise StoreError(f"{Path(path)}: the file cannot be created ({error.strerror})") from error
            if not self.is_read_only:
                _check_only_name(Path(path))
        self._open(create, initial_meta)
        self.watch_forks()

    def _open(self, create: bool = False, initial_meta: Callable[[], dict[str, str]] = dict) -> None:
        """Connect to the file and prepare it. Raises `StoreError` if it is another file than before."""
        if self._identity is not None and self._identity != self._read_identity():
            raise self._file_changed()
        with self._translated_errors():
            self.connection = self._connect()
        try:
            self._identity = self._read_identity()
            self._prepare(create, initial_meta)
            if self._durability == "normal":  # creating a file is always durable
                self.connection.execute("PRAGMA synchronous = NORMAL")
            if self._inspect:  # text that is not UTF-8 becomes surrogate escapes
                self.connection.text_factory = lambda data: data.decode(errors="surrogateescape")
        except BaseException:
            self.connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # With isolation_level None, the sqlite3 module never begins or ends a transaction itself.
        return sqlite3.connect(self.file, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)

    def _read_identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path; None if there is none."""
        try:
            status = os.stat(self.file)  # noqa: PTH116 (at each write, and a `Path` takes three times as long)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _find_log(self) -> Path:
        """Return the path of the write-ahead log: beside the file, not beside a symbolic link to it."""
        return Path(f"{Path(self.file).resolve()}-wal")

    def _check_file(self) -> None:
        """Raise `StoreError` if the file at the path is no longer the open one."""
        if self._identity != self._read_identity():
            is_ours = self._pragma("data_version") == self._data_version
            self.connection.execute("ROLLBACK")
            # The log lies where that of the other file would, and whoever opens that one would apply it: its content
            # is moved into the file that it belongs to, unless another connection has written to the log.
            if is_ours:
                with suppress(sqlite3.Error):
                    self.connection.execute("PRAGMA busy_timeout = 0")
                    self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            log = self._find_log()
            if log.exists() and log.stat().st_size:  # closing would remove it: it may be that of the other file
                LEFT_OPEN.append(self.connection)
            else:
                self.connection.close()
            self._is_paused = True
            raise self._file_changed()

    def _file_changed(self) -> StoreError:
        event = "removed" if self._read_identity() is None else "replaced by another file"
        return StoreError(f"{self.path} was {event} while it was open: nothing was written; open the store again")

    def _prepare(self, create: bool, initial_meta: Callable[[], dict[str, str]]) -> None:
        with self._translated_errors():
            self.connection.execute("PRAGMA trusted_schema = OFF")  # what the file defines calls no risky function
            self.connection.execute("PRAGMA cell_size_check = ON")
            for category, limit in _LIMITS.items():
                self.connection.setlimit(category, limit)
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute("PRAGMA fullfsync = ON")  # macOS: flush the drive's cache, too
            self.connection.execute(f"PRAGMA cache_size = {-1024 * _CACHE_SIZE}")
            if self._is_new():
                if not create:
                    raise StoreError(f"{self.path} is an empty database, not a memalpha store")
                meta = initial_meta()
                # Takes effect only before the first page is written.
                self.connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
                self._use_wal()
                with self.transaction():
                    if self._is_new():  # check again: another process may have been faster
                        for statement in split_statements():
                            self.connection.execute(statement)
                        self.connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                        self.connection.execute("INSERT INTO meta VALUES ('created', ?)", (self.now(),))
            version = self._pragma("user_version")
            if version != FORMAT:
                advice = (
                    "upgrade memalpha" if version > FORMAT else "open it with the memalpha that made it, and export it"
                )
                raise StoreError(f"{self.path} has store format {version}, this memalpha reads {FORMAT}: {advice}")
            foreign = self.foreign_objects()
            of_tables = TABLES & foreign.keys()
            if of_tables or (foreign and not self._inspect):
                names = ", ".join(f"{kind} {name[:80]!r}" for name, kind in islice(foreign.items(), _MAX_LISTED))
                advice = "go back to a copy" if of_tables else "`memalpha doctor --repair` removes what is added"
                raise DamagedStore(
                    f"{self.path} is refused: {len(foreign)} of its objects are not those of a store ({names}), and "
                    f"could run or copy what you write. Nothing was written; {advice}"
                )
            self.meta: dict[str, str] = dict(self.connection.execute("SELECT key, value FROM meta"))

    def _is_new(self) -> bool:
        """Return True if the file is empty. Raises `StoreError` if it is not a store."""
        with self.transaction(write=False):  # one consistent view: another process may be creating the store
            application = self._pragma("application_id")
            if application == APPLICATION_ID:
                return False
            tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != 0 or tables:
            raise StoreError(f"{self.path} is an SQLite database, but not a memalpha store: give another path")
        return True

    def _use_wal(self) -> None:
        """Switch the file to WAL, waiting for another process that does the same; SQLite does not wait here."""
        deadline = monotonic() + LOCK_TIMEOUT
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > deadline:
                    raise
                sleep(0.01)

    def before_fork(self) -> bool:
        """Close the connection unless a transaction uses it; return True if this thread holds the lock."""
        if not self._lock.acquire(timeout=_FORK_WAIT):
            return False
        if not self._is_paused and self.path != ":memory:" and not self.connection.in_transaction:
            self.connection.close()
            self._is_paused = True
        return True

    def after_fork(self, state: bool) -> None:
        """Let the other threads go on."""
        if state:
            self._lock.release()

    def reset_in_child(self, state: bool) -> None:
        """Take a new lock; a connection that could not be closed stays that of the parent alone."""
        self._lock = RLock()
        if not self._is_paused:
            self._is_unusable = True
            LEFT_OPEN.append(self.connection)

    def _resume_after_fork(self) -> None:
        """Open the file anew after a fork. Raises `StoreError` where that cannot be done."""
        if self._is_unusable:
            raise StoreError(
                f"{self.path}: this process was forked while the store was in memory or in a transaction: open a store "
                "in the new process"
            )
        if self._is_paused:
            self._is_paused = False
            self.namespace_ids.clear()
            try:
                self._open()
            except BaseException:
                self._is_paused = True
                raise

    def _pragma(self, name: str) -> int:
        return self.connection.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a transaction: all writes happen or none, and all reads see one moment.

        Within another transaction of this thread it joins that one. Which `namespaces` it is for does not matter here,
        except inside `atomic`.
        """
        with self._lock:
            self._resume_after_fork()
            connection = self.connection
            try:
                self._check_atomic(namespaces)
                if connection.in_transaction:
                    if write and not self._writes:
                        raise StoreError(CANNOT_WRITE)
                    with self._savepoint() if write and self.is_atomic else nullcontext():
                        yield connection
                    return
                self._writes = write
                try:
                    with nullcontext() if DEADLINE.get() is None else watched(connection):
                        # IMMEDIATE: wait for other writers here, before reading anything that they may change.
                        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                        if write:
                            self._check_file()
                        version = self._pragma("data_version")
                        if version != self._data_version:  # another connection may have dropped a namespace
                            self.namespace_ids.clear()
                            self._data_version = version
                        yield connection
                        self._check_atomic(())
                        self._resume_after_fork()  # the block may have forked: its child must not end the transaction
                    connection.execute("COMMIT")
                except BaseException:  # Ctrl-C included
                    self._note_rollback()
                    raise
                finally:
                    if not self._is_paused and not self._is_unusable and connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._raise_store_error(error)
            except OverflowError as error:
                raise DamagedStore(
                    f"{self.path}: a number of the file is at its limit: run `memalpha doctor`"
                ) from error

    @contextmanager
    def without_waiting(self) -> Iterator[bool]:
        is_free = self._lock.acquire(blocking=False)
        try:
            yield is_free and not self._is_paused
        finally:
            if is_free:
                self._lock.release()

    @contextmanager
    def atomic(self, *namespaces: str) -> Iterator[None]:
        with self.transaction(*namespaces):
            self._atomic_namespaces = namespaces
            try:
                yield
                self._check_atomic(())
            finally:
                self._atomic_namespaces = None

    @property
    def is_atomic(self) -> bool:
        with self._lock:  # of another thread's `atomic`, this one waits for the end
            return self._atomic_namespaces is not None

    @property
    def is_writing(self) -> bool:
        return self.connection.in_transaction and self._writes

    def _check_atomic(self, namespaces: Sequence[str]) -> None:
        """Raise `StoreError` inside an `atomic` that SQLite has rolled back, or that is of other namespaces."""
        if self._atomic_namespaces is None:
            return
        if not self.connection.in_transaction:
            raise StoreError(f"{self.path}: an error has rolled the transaction back: nothing of it was stored")
        foreign = set(namespaces).difference(self._atomic_namespaces)
        if foreign:
            raise StoreError(
                f"namespace {foreign.pop()!r}: the open transaction is of {self._atomic_namespaces[0]!r} alone"
            )

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Undo the block alone if it fails."""
        self.connection.execute("SAVEPOINT operation")
        try:
            yield
        except BaseException:
            self._note_rollback()
            if self.connection.in_transaction:  # a full disk rolls back everything
                self.connection.execute("ROLLBACK TO operation")
                self.connection.execute("RELEASE operation")
            raise
        self.connection.execute("RELEASE operation")

    def _note_rollback(self) -> None:
        self.rollbacks += 1
        self.namespace_ids.clear()  # an id assigned in this transaction may be reused for another name

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._raise_store_error(error)

    def _raise_store_error(self, error: sqlite3.Error) -> NoReturn:
        """Raise the error in the store's words, with what to do."""
        if isinstance(error, sqlite3.ProgrammingError):
            if "closed" not in str(error):
                raise error
            raise StoreError(f"the store {self.path} is closed") from error
        code = vars(error).get("sqlite_errorname", "")
        if code == "SQLITE_INTERRUPT":
            raise DeadlineExceeded from error
        if code.startswith("SQLITE_NOTADB"):
            raise StoreError(f"{self.path} is not a memalpha store: give another path") from error
        if code.startswith("SQLITE_BUSY"):
            raise StoreError(
                f"{self.path}: another process has kept it locked for {LOCK_TIMEOUT:.0f} s: try again"
            ) from error
        if code.startswith("SQLITE_CORRUPT") or "Could not decode" in str(error):
            message = f"{self.path} is damaged ({str(error)[:100]}): restore a backup, or run `memalpha doctor`"
            raise DamagedStore(message) from error
        raise StoreError(f"{self.path}: {_explain(self.path, code) or error}") from error

    def mark_for_scrub(self) -> None:
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES ('scrub', 'due')")

    @property
    def is_scrub_due(self) -> bool:
        return self.connection.execute("SELECT 1 FROM meta WHERE key = 'scrub'").fetchone() is not None

    def scrub(self, *, wait: bool = True) -> None:
        with self._lock, self._translated_errors():
            self._resume_after_fork()
            if not self.is_scrub_due:
                return
            self.connection.execute(f"PRAGMA busy_timeout = {1000 * LOCK_TIMEOUT * wait:.0f}")
            try:
                self.connection.execute("VACUUM")
                if self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    raise self._scrub_pending("other processes read the file, whose write-ahead log holds what was")
                self.connection.execute("DELETE FROM meta WHERE key = 'scrub'")
            except sqlite3.OperationalError as error:
                code, obstacle = vars(error).get("sqlite_errorname", ""), f"the file cannot be rewritten ({error})"
                if code.startswith("SQLITE_BUSY"):
                    obstacle = "another process has the file locked"
                elif code == "SQLITE_FULL" or code.startswith("SQLITE_IOERR"):
                    size = self._pragma("page_count") * self._pragma("page_size") / 2**20
                    obstacle = (
                        f"there is no room to rewrite the file ({error}): {2 * size:.0f} MB beside it and {size:.0f} "
                        "MB for temporary files are needed"
                    )
                raise self._scrub_pending(obstacle) from error
            finally:
                self.connection.execute(f"PRAGMA busy_timeout = {1000 * LOCK_TIMEOUT:.0f}")

    def _scrub_pending(self, obstacle: str) -> ScrubPending:
        return ScrubPending(
            f"{self.path}: erased, but {obstacle}: nothing returns what was erased, its bytes may still lie in the "
            "file; opening the store again or `memalpha doctor --repair` goes on"
        )

    def empty_wal(self) -> None:
        """Move the write-ahead log into the file. Closing does so too, but tells nobody if it fails."""
        with self._lock, self._translated_errors():
            self._resume_after_fork()
            if self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise StoreError(f"{self.path}: another process reads the file while it is made: try again")

    @contextmanager
    def unlock_log(self) -> Iterator[None]:
        self.connection.execute("DROP TRIGGER operations_last")
        yield
        self.connection.execute(definitions()["operations_last"][1])

    def integrity_errors(self) -> Iterator[str]:
        for (message,) in self.connection.execute("PRAGMA integrity_check"):
            if message != "ok":
                yield message

    def schema_mismatches(self) -> dict[str, str]:
        """Return missing tables, and missing or altered indexes and triggers, as {name: kind}."""
        recorded = dict(self.connection.execute("SELECT name, sql FROM sqlite_master"))
        return {
            name: kind
            for name, (kind, expected) in definitions().items()
            if name not in recorded or (kind != "table" and not is_same_sql(recorded[name], expected))
        }

    def foreign_objects(self) -> dict[str, str]:
        """Return the objects of a file that the format does not define, or defines otherwise, as {name: kind}.

        Only `sqlite_master` is read, which no view can stand in for.
        """
        foreign = {}
        for kind, name, table, sql in self.connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
            expected_kind, statement = definitions().get(name, ("", ""))
            is_same = kind == expected_kind and is_same_sql(sql, statement)
            is_automatic = kind == "index" and sql is None and name.startswith("sqlite_autoindex_") and table in TABLES
            if not (is_same or is_automatic or (kind == "table" and sql == _STATISTICS)):
                foreign[name] = kind
        return foreign

    def drop(self, name: str, kind: str) -> None:
        """Drop an object of `foreign_objects`."""
        quoted = name.replace('"', '""')
        self.connection.execute(f'DROP {kind} IF EXISTS "{quoted}"')

    def recreate(self, name: str) -> None:
        """Recreate a table, index or trigger of `schema_mismatches`."""
        kind, statement = definitions()[name]
        self.connection.execute(f"DROP {kind} IF EXISTS {name}")
        self.connection.execute(statement)

    def close(self) -> None:
        with self._lock:
            self.connection.close()
            self._is_paused = False
            self.unwatch_forks()


@contextmanager
def create_file(path: Path, meta: Mapping[str, str]) -> Iterator[SQLiteDatabase]:
    """Yield a new store file that appears at `path`, complete, only if the block succeeds."""
    _check_path(path, create=True)
    if path.exists():
        raise StoreError(f"{path} already exists: give another path")
    with hidden_file(path) as (temporary, _):
        database = SQLiteDatabase(
            str(temporary), create=True, initial_meta=lambda: {key: meta[key] for key in ("schema", "embedder")}
        )
        with closing(database):
            yield database
            database.empty_wal()


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


def _check_only_name(path: Path) -> None:
    """Raise `StoreError` for a file that others may know by another path.

    Each path has a write-ahead log of its own, so that what is written through one of them is lost.
    """
    if path.exists() and path.stat().st_nlink > 1:
        raise StoreError(f"{path} has a second name (a hard link), under which writes would be lost: copy the file")
    with suppress(OSError):  # only Linux has the list
        name = str(path.resolve()).replace("\\", r"\134").replace(" ", r"\040")
        if any(line.split(" ")[4] == name for line in MOUNTS.read_text("utf-8", "surrogateescape").splitlines()):
            raise StoreError(f"{path} is mounted alone, and its log would lie on another disk: mount the folder")


class ReadOnlyDatabase(SQLiteDatabase):
    """Connection that writes nothing.

    A file without a write-ahead log is read as immutable, as long as it is unchanged. Entries that have expired must
    be ended in the log. That happens in a private copy in memory, which replaces the connection until the file changes.
    """

    is_read_only = True

    def __init__(self, path: str, *, clock: Clock = system_clock, inspect: bool = False) -> None:
        """Open a file.

        Args:
            path: Path of an existing file.
            clock: Returns the current time.
            inspect: Open a file with foreign objects too, as in `SQLiteDatabase`.

        Raises:
            StoreError: There is no such store, or it has another format.
        """
        self._heads: dict[int, tuple[int, str, int]] = {}  # last position of each log, its time and head
        super().__init__(path, create=False, initial_meta=dict, clock=clock, inspect=inspect)

    def _open(self, create: bool = False, initial_meta: Callable[[], dict[str, str]] = dict) -> None:
        super()._open(create, initial_meta)
        heads, self._heads = self._heads, {}
        query = "SELECT seq, time, head FROM operations WHERE ns = ? AND seq = ?"
        with self._translated_errors():  # another store may have been copied into the file
            rows = [self.connection.execute(query, (ns, head[0])).fetchone() for ns, head in heads.items()]
        self.losses += rows != [*heads.values()]

    def _read_identity(self) -> None:
        """Return None: another file at the path is read from then on."""

    def _connect(self) -> sqlite3.Connection:
        self._is_private = False
        self._file_state = self._read_file_state()
        mode = "mode=ro" if self._file_state[1] else "mode=ro&immutable=1"
        uri = f"file:{quote(self.file)}?{mode}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)

    def _read_file_state(self) -> tuple[Any, ...]:
        """Return what changes when somebody writes: size and time of the file, and the size of its log."""
        try:
            status, log = Path(self.file).stat(), self._find_log()
            return (status.st_ino, status.st_size, status.st_mtime_ns), log.stat().st_size if log.exists() else 0
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read any more ({error.strerror}): is it there?") from error

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[sqlite3.Connection]:
        if write:
            raise StoreError(f"{self.path} was opened read-only: open it without read_only to write")
        with self._lock, self._translated_errors():
            self._resume_after_fork()
            if not self.connection.in_transaction and (state := self._read_file_state()) != self._file_state:
                self.losses += state[0][0] != self._file_state[0][0]  # it is another file, whose log is another
                self.connection.close()
                self._is_paused = True  # until a file can be opened
                self._resume_after_fork()
            with super().transaction(*namespaces, write=write) as connection:
                yield connection
                query = "SELECT ns, seq, time, head FROM operations WHERE ns = ? ORDER BY seq DESC LIMIT 1"
                for ns in {self.namespace_ids.get(name, 0) for name in namespaces}.difference(self._heads):
                    self._heads |= {row[0]: row[1:] for row in connection.execute(query, (ns,))}
            if not self._file_state[1] and self._read_file_state() != self._file_state:  # an immutable one is not
                raise StoreError(f"{self.path} was written while it was read: try again")

    @contextmanager
    def expiry_transaction(self, namespace: str) -> Iterator[None]:
        with self._lock:
            self._resume_after_fork()
            if not self._is_private:
                copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                with self._translated_errors():
                    self.connection.backup(copy)
                self.connection.close()
                self.connection = copy
            self._is_private = True
            self._heads.pop(self.namespace_ids.get(namespace, 0), None)  # the copy's log goes on by itself
            with super().transaction(namespace):
                yield
