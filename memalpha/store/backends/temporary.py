"""Temporary files: hidden beside their target, locked while their writer lives, removed once it does not."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from memalpha.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_ABANDONED_AFTER = 86400.0  # seconds until a file that nobody can lock counts as left by a killed process
_MODE = 0o600


def temporary_path(path: Path) -> Path:
    """Return a new hidden path beside a file, to be moved there once complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")


@contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """Create a file for its owner alone and yield its descriptor; it counts as abandoned once the block has ended."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def sqlite_logs(path: Path) -> list[Path]:
    """Return the paths of the files that SQLite may leave beside a database."""
    return [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm", "-journal")]


def move_file(temporary: Path, path: Path) -> None:
    """Move a complete file to its path, for good. Raises `StoreError`."""
    try:
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: the complete file cannot be moved there ({error.strerror})") from error


def sync_folder(folder: Path) -> None:
    """Make a rename durable, where folders can be synced."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def abandoned_files(path: Path) -> list[Path]:
    """Return the temporary files of a target, with their logs, that a killed process left."""
    names = re.compile(rf"\.{re.escape(path.name)}\.\d+\.[0-9a-f]{{8}}\.partial")
    try:
        files = list(path.parent.iterdir())
    except OSError:  # no folder any more
        return []
    abandoned = [file for file in files if names.fullmatch(file.name) and is_abandoned(file)]
    logs = [log for file in abandoned for log in sqlite_logs(file) if log.exists()]
    return [*logs, *abandoned]


def remove_abandoned_files(path: Path) -> None:
    """Remove the temporary files of a target that a killed process left."""
    for file in abandoned_files(path):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def is_abandoned(file: Path) -> bool:
    """Return True for a file of `locked_file` whose writer was killed."""
    try:
        if file.is_symlink() or not file.is_file():
            return False
        if fcntl is None:
            try:
                return file.stat().st_mtime < time() - _ABANDONED_AFTER
            except OSError:  # another process has removed it
                return False
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError:  # it is locked, gone or somebody else's
        return False
    return True
