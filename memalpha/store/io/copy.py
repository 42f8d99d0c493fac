"""A whole store moved into another database: all of its namespaces, each with its log."""

from __future__ import annotations

from pathlib import Path

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend, system_clock
from memalpha.store.open import new_database, open_database, rows_of
from memalpha.store.schema import MemorySchema


def copy_store(source: str | Path, target: str | Path) -> dict[str, int]:
    """Copy all namespaces of a store, a file or a PostgreSQL URL, into a new one, a file or a URL.

    The logs go as they are, with positions, times, ids and stubs of what was erased, and so do versions and vectors:
    nothing is embedded anew, and every past state, undo and redo are the same in both. What is copied is one moment of
    the source. The copy is there as a whole or not at all; a URL may name a store that has no namespace yet, of the
    same schema and embedder. Returns the number of operations by namespace.

    Raises `StoreError` where the source is no store, the target holds something, or cannot hold what the source does.
    """
    here, schema, _ = open_database(source, None, None, create=False, durability="full", clock=system_clock)
    try:
        with here.transaction(write=False):
            names = here.namespaces()
        with (
            here.transaction(*names, write=False),
            new_database(target, here.meta) as there,
            there.transaction(*names),
        ):
            if there.namespaces():
                raise StoreError(f"{there.path} holds namespaces already: give another with ?schema=NAME")
            with there.loading():
                return {name: _copy(here, there, name, schema) for name in names}
    finally:
        here.close()


def _copy(here: Backend, there: Backend, name: str, schema: MemorySchema) -> int:
    mine, other = rows_of(here, name, schema), rows_of(there, name, schema)
    position = mine.position
    try:
        mine.copy(other, position)
    except StoreError as error:
        raise StoreError(f"namespace {name!r}: {error}") from error
    if other.fingerprint(position) != mine.fingerprint(position):
        raise StoreError(f"namespace {name!r}: the copy's log does not end as that of {here.path} does")
    return position
