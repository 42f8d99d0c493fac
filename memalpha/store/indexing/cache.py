"""What searches need of a namespace, kept in a file beside its store: a cache, made anew whenever in doubt.

Beside `ana.db` lies `ana.db-index-<16 hex digits of the namespace>`, one file a namespace; each may be deleted at any
time. It is written when a store of `MIN_ENTRIES` entries or more is closed (aside, synced, renamed), and taken when the
store is searched next if all of this holds: a SHA-256 over all its bytes is right; format, precision of vectors, way of
splitting words, store, embedder and namespace are the same; and the log up to the position it stands for ends in the
very rows it was made from (positions, times and contents), so that a copy that went its own way does not fit; and
nothing was erased since. What the log holds beyond that position is then caught up. It holds words and vectors, so
erasing removes it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace import Namespace
from memalpha.store.indexing.file_format import Arrays, read_arrays, write_arrays
from memalpha.store.search.bm25 import words
from memalpha.store.search.vectors import Precision

FORMAT = 5
MIN_ENTRIES = 5000  # entries: below, making the index anew takes less than 0.1 s
GROWING_ARRAYS = ("vectors", "live", "orders", "groups", "spans", "words lengths")  # parts with a row for each slot
_PROBE = "Ana's running-shoes, 2024: naïve \u6771\u4eac\u306b \ud55c\uad6d\uc5b4 weren't U.S. \u0939\u093f\u0928\u094d"


class IndexCache:
    """The index file of one namespace, with vectors of one precision (None: of any). ":memory:" has none, nor has
    PostgreSQL."""

    def __init__(self, rows: Namespace, vectors: Precision | None = None) -> None:
        self._rows, self._vectors = rows, vectors
        self._at: int | None = None  # the position that the file is known to stand for
        path = rows.database.path
        self.path = Path(f"{path}-index-{_hex(rows.name)}") if _is_file(path) else None

    def load(self) -> tuple[int, Arrays] | None:
        """The position that the index stands for, at or before the log's end, and its parts; None if there is none that
        fits. Inside a transaction."""
        content = None if self.path is None else read_arrays(self.path, spare=GROWING_ARRAYS)
        if content is None:
            return None
        header, parts = content
        position, vectors = header.pop("position"), header.pop("vectors", None)
        if self._vectors not in (None, vectors):
            return None
        if position > self._rows.position or header != self._identity(position) or self._rows.erased_after(position):
            return None
        self._at = position
        return position, parts

    def save(self, position: int, size: int, make_arrays: Callable[[], Arrays], *, force: bool = False) -> None:
        """Write what an index of `size` entries consists of, as of `position`, where that pays, or `anyhow`. A file
        that cannot be written is a warning: nothing is lost."""
        due = force or self._at is None or position - self._at > size // 20
        if self.path is None or size < MIN_ENTRIES or not due:
            return
        aside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            with self._rows.transaction():
                # Made under the lock: whoever erases afterwards removes it, and nobody makes one of what was erased.
                if self._rows.erased_after(position):
                    return
                remove_index_files(
                    self._rows.database, self._rows.name, keep=self.path
                )  # left by writers that were killed
                file = aside.open("xb")
                header = {"position": position, "vectors": self._vectors} | self._identity(position)
            with file:
                write_arrays(file, header, make_arrays())
            with self._rows.transaction():
                if self._rows.erased_after(position):
                    aside.unlink(missing_ok=True)
                else:
                    aside.replace(self.path)
                    _sync_folder(self.path.parent)
                    self._at = position
        except FileNotFoundError:  # another process wrote, or erased, meanwhile
            return
        except OSError as error:
            warnings.warn(f"{self.path}: the index was not saved ({error}); it will be made anew", stacklevel=2)
        finally:
            aside.unlink(missing_ok=True)

    def _identity(self, position: int) -> dict[str, Any]:
        """What an index of this namespace up to a position has to say of itself."""
        meta = self._rows.database.meta
        return {
            "format": FORMAT,
            "words": hashlib.sha256(repr(words(_PROBE)).encode()).hexdigest(),
            "created": meta.get("created"),
            "embedder": meta["embedder"],
            "namespace": self._rows.name,
            "log": self._rows.fingerprint(position),
        }


def remove_index_files(database: Backend, namespace: str | None = None, *, keep: Path | None = None) -> None:
    """Delete the index files of a namespace, or of all, those being written too; raises `StoreError` if one stays."""
    for path in index_files(database.path, namespace):
        if path != keep:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path}: this index file cannot be removed ({error}): delete it") from error


def index_files(path: str, namespace: str | None = None) -> list[Path]:
    """The index files beside a store, of one namespace or of all, those being written too."""
    if not _is_file(path):
        return []
    store = Path(path)
    start = f"{store.name}-index-" + ("" if namespace is None else _hex(namespace))
    return sorted(file for file in store.parent.iterdir() if file.name.startswith(start))


def _is_file(path: str) -> bool:
    return path != ":memory:" and "://" not in path


def _hex(namespace: str) -> str:
    return hashlib.sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _sync_folder(folder: Path) -> None:
    """See to it that a renamed file stays renamed, where folders can be synced."""
    if hasattr(os, "O_DIRECTORY"):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
