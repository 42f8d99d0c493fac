"""Index files: what searches of a namespace need, cached beside its store and rebuilt whenever in doubt.

Beside `ana.db` lies `ana.db-index-<16 hex digits of the namespace>`, one file a namespace. Each may be deleted at any
time. It is written (aside, synced, renamed) when a store of `MIN_ENTRIES` entries or more is closed.

The next search uses the file if all of this holds:

- the keyed SHA-256 over all its bytes is right, whose key lies in the store: nobody else can write such a file;
- format, precision of vectors, way of splitting words, store, embedder and namespace are the same;
- the log up to the file's position ends in the very rows (positions, times and contents) that it was made from, so a
  copy of the store with a different history does not fit;
- nothing was erased since.

Operations after the file's position are then applied. The file holds words and vectors, so erasing removes it, and
nothing is written that a namespace held before it was dropped, or in a transaction that was rolled back. What a killed
process leaves of a file is removed when the store is opened.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.temporary import is_abandoned, locked_file, sync_folder
from memalpha.store.indexing.file_format import Arrays, read_arrays, write_arrays
from memalpha.store.search.bm25 import words
from memalpha.store.search.vectors import Precision

FORMAT = 7
MIN_ENTRIES = 5000  # below, rebuilding the index takes less than 0.1 s
GROWING_ARRAYS = ("vectors", "live", "orders", "groups", "spans", "words lengths")  # arrays with a row per slot
_UNFINISHED = re.compile(r"-index-[0-9a-f]{16}\.[0-9a-f]{8}$")
_PROBE = "Ana's running-shoes, 2024: naïve \u6771\u4eac\u306b \ud55c\uad6d\uc5b4 weren't U.S. \u0939\u093f\u0928\u094d"


class IndexCache:
    """Index file of one namespace, with vectors of one precision (None: of any).

    Stores in ":memory:" and in PostgreSQL have no index files.
    """

    def __init__(self, rows: Namespace, precision: Precision | None = None) -> None:
        self._rows, self._precision = rows, precision
        self._file_position: int | None = None  # position of the file, if known
        path = rows.database.path
        self.path = Path(f"{path}-index-{_name_digest(rows.name)}") if _is_file(path) else None

    def load(self) -> tuple[int, Arrays] | None:
        """Return the position and the arrays of the file, or None if no file fits.

        Call this inside a transaction. The position is at or before the end of the log.
        """
        key = self._rows.database.index_key()
        content = None if self.path is None or key is None else read_arrays(self.path, key, spare=GROWING_ARRAYS)
        if content is None:
            return None
        header, arrays = content
        position, precision = header.pop("position"), header.pop("vectors", None)
        if self._precision not in (None, precision):
            return None
        if (
            position > self._rows.log.position
            or header != self._identity(position)
            or self._rows.log.has_erasure_after(position)
        ):
            return None
        self._file_position = position
        return position, arrays

    def save(
        self, namespace_id: int, position: int, size: int, make_arrays: Callable[[], Arrays], *, force: bool = False
    ) -> None:
        """Write the index of `position`, if it pays.

        A file that cannot be written is a warning, since nothing is lost.

        Args:
            namespace_id: Id that the namespace had when the index was made; nothing is written if it was dropped since.
            position: Log position of the index.
            size: Number of its entries.
            make_arrays: Returns its arrays; called only if the file is written.
            force: Write even if the file is nearly up to date. A memory below `MIN_ENTRIES` is never written.
        """
        is_due = force or self._file_position is None or position - self._file_position > size // 20
        if self.path is None or self._rows.database.is_read_only or size < MIN_ENTRIES or not is_due:
            return
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            with ExitStack() as stack:
                with self._rows.transaction():
                    # Created under the lock: a later erasure removes the file, and an earlier one shows here.
                    key = self._rows.database.index_key(create=True)
                    if key is None or self._is_gone(namespace_id, position):
                        return
                    remove_index_files(
                        self._rows.database, self._rows.name, keep=self.path
                    )  # left by writers that were killed
                    descriptor = stack.enter_context(locked_file(temporary))
                    header = {"position": position, "vectors": self._precision} | self._identity(position)
                with open(descriptor, "wb", closefd=False) as file:
                    write_arrays(file, header, make_arrays(), key)
                with self._rows.transaction():
                    if self._is_gone(namespace_id, position):
                        temporary.unlink(missing_ok=True)
                    else:
                        temporary.replace(self.path)
                        sync_folder(self.path.parent)
                        self._file_position = position
        except FileNotFoundError:  # another process wrote, or erased, meanwhile
            return
        except OSError as error:
            warnings.warn(f"{self.path}: the index was not saved ({error}); it will be rebuilt", stacklevel=2)
        finally:
            temporary.unlink(missing_ok=True)

    def _is_gone(self, namespace_id: int, position: int) -> bool:
        """Return True if the namespace was dropped, or entries were erased, after an index of it was made."""
        return self._rows.scope.namespace_id != namespace_id or self._rows.log.has_erasure_after(position)

    def _identity(self, position: int) -> dict[str, Any]:
        """Return the header fields that an index of this namespace up to a position must have."""
        meta = self._rows.database.meta
        return {
            "format": FORMAT,
            "words": hashlib.sha256(repr(words(_PROBE)).encode()).hexdigest(),
            "created": meta.get("created"),
            "embedder": meta["embedder"],
            "namespace": self._rows.name,
            "log": self._rows.log.fingerprint(position),
        }


def remove_index_files(database: Backend, namespace: str | None = None, *, keep: Path | None = None) -> None:
    """Delete index files, those that are being written too.

    Args:
        database: Store beside which the files lie.
        namespace: Namespace of the files; None for all.
        keep: File to leave in place.

    Raises:
        StoreError: A file cannot be removed.
    """
    for path in index_files(database.path, namespace):
        if path != keep:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path}: this index file cannot be removed ({error}): delete it") from error


def remove_abandoned_index_files(database: Backend) -> None:
    """Delete what killed processes left of index files that they were writing. Raises `StoreError`."""
    if _abandoned_index_files(database.path):
        with database.transaction():  # nobody is just making one
            for path in _abandoned_index_files(database.path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _abandoned_index_files(path: str) -> list[Path]:
    return [file for file in index_files(path) if _UNFINISHED.search(file.name) and is_abandoned(file)]


def index_files(path: str, namespace: str | None = None) -> list[Path]:
    """Return the index files beside a store, of one namespace or of all, those that are being written too.

    Raises `StoreError` if the folder cannot be listed.
    """
    if not _is_file(path):
        return []
    store = Path(path)
    start = f"{store.name}-index-" + ("" if namespace is None else _name_digest(namespace))
    try:
        return sorted(file for file in store.parent.iterdir() if file.name.startswith(start))
    except OSError as error:
        raise StoreError(f"{store.parent}: the folder of the store cannot be listed: {error.strerror}") from error


def _is_file(path: str) -> bool:
    return path != ":memory:" and "://" not in path


def _name_digest(namespace: str) -> str:
    return hashlib.sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:16]
