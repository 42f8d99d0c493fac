"""Disk cache of paid answers: one SQLite file for any number of models and processes."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from memalpha.errors import PolicyError
from memalpha.forks import ForkAware

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"

_TRIES = 100


def answer_key(model: str, request: Mapping[str, Any]) -> str:
    """Return the sha256 of the model's full name and the request body."""
    payload = json.dumps([model, request], sort_keys=True)
    return hashlib.sha256(payload.encode()).hexdigest()


class AnswerCache(ForkAware):
    """Map keys to answers on disk.

    An answer returned by `put` survives a crash of the process, and of the machine unless it was made with
    `cheap=True`.

    Raises:
        PolicyError: The file cannot be used.
    """

    def __init__(self, path: str | Path, *, cheap: bool = False) -> None:
        self.path, self._is_cheap = Path(path), cheap
        self._lock = RLock()
        self._open()
        self.watch_forks()

    def _open(self) -> None:
        self._is_paused = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Only the thread of the client uses it, but another thread opened it.
            self._db = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
            self._write_ahead()
            self._db.execute(
                f"PRAGMA synchronous={'NORMAL' if self._is_cheap else 'FULL'}"
            )  # NORMAL: no wait for the disk
            self._db.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def _write_ahead(self) -> None:
        """Turn on the write-ahead log.

        Retries, because SQLite does not wait if several processes do so at once.
        """
        for attempt in range(_TRIES):
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, opened anew after a fork: SQLite allows none across one."""
        with self._lock:
            if self._is_paused:
                self._open()
            yield self._db

    def before_fork(self) -> bool:
        """Close the connection; return True if this thread holds the lock."""
        is_held = self._lock.acquire(timeout=5)
        if is_held:
            self._db.close()
            self._is_paused = True
        return is_held

    def after_fork(self, state: bool) -> None:
        """Let the other threads go on."""
        if state:
            self._lock.release()

    def reset_in_child(self, state: bool) -> None:
        """Take a new lock."""
        self._lock, self._is_paused = RLock(), True

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the answer stored under `key`, or None."""
        try:
            with self._connection() as db:
                row = db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            return json.loads(row[0]) if row else None
        except (sqlite3.Error, ValueError) as error:
            raise self._unusable(error) from error

    def put(self, key: str, model: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Store an answer and return the stored one.

        Args:
            key: key from `answer_key`.
            model: full name of the model, stored with the answer.
            answer: JSON-serializable answer.

        Returns:
            The stored answer; that of another process if it was first.

        Raises:
            PolicyError: if the file cannot be written or read.
        """
        try:
            with self._connection() as db:
                db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, model, json.dumps(answer)))
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        stored = self.get(key)
        if stored is None:
            raise PolicyError(f"cache {self.path}: an answer that was written is not there")
        return stored

    def __len__(self) -> int:
        with self._connection() as db:
            return db.execute("SELECT count(*) FROM answers").fetchone()[0]

    def close(self) -> None:
        """Close the file."""
        self.unwatch_forks()
        self._db.close()

    def _unusable(self, error: Exception) -> PolicyError:
        return PolicyError(f"cache {self.path} cannot be used ({error}): name another file, or remove a damaged one")
