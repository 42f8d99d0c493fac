"""Opening databases: choose SQLite or PostgreSQL by path or URL, create and check stores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.arguments import brief_repr, check_path
from memalpha.errors import ConfigError, DamagedStore, StoreError, install_command
from memalpha.store.backends.base import Backend, Clock, Durability
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.sqlite import ReadOnlyDatabase, SQLiteDatabase, create_file
from memalpha.store.embedding import Embedder, RecordedEmbedder, embedder_record
from memalpha.store.fields import is_text
from memalpha.store.schema import MemorySchema, load_schema

if TYPE_CHECKING:
    from memalpha.store.backends.postgres.database import PostgresDatabase

DEFAULT_SCHEMA = "mem-alpha"
DEFAULT_EMBEDDER = "static"
_URL = re.compile(r"postgres(?:ql)?://")


def is_url(path: str | Path) -> bool:
    """Return True for a URL and False for a path.

    Raises `StoreError` for a URL of another scheme, and for what no path can be.
    """
    check_path("path", path)
    text = str(path)
    if not is_text(text):
        raise StoreError(f"path {brief_repr(text)}: a path in UTF-8 is needed")
    if "://" in text and not _URL.match(text):
        scheme = text.partition("://")[0]
        raise StoreError(f"{scheme}://...: give a path, ':memory:' or postgresql://user:password@host/database")
    return "://" in text


def open_database(
    path: str | Path,
    schema: str | Path | MemorySchema | None,
    embedder: str | Embedder | None,
    *,
    create: bool,
    durability: Durability,
    clock: Clock,
    read_only: bool = False,
) -> tuple[Backend, MemorySchema, RecordedEmbedder]:
    """Open the database at a path or URL; see `MemoryStore.open`.

    Args:
        path: File path, ":memory:" or PostgreSQL URL.
        schema: Schema of a new store; must fit the recorded one of an existing store.
        embedder: Embedder of a new store; must be the recorded one of an existing store.
        create: Create a missing store.
        durability: "full" or "normal".
        clock: Returns the current time.
        read_only: Write nothing.

    Returns:
        The database, its schema and its recorded embedder.

    Raises:
        StoreError: The store cannot be opened, or was made with another schema.
    """
    named_schema = load_schema(DEFAULT_SCHEMA if schema is None else schema)

    def initial_meta() -> dict[str, str]:
        chosen_embedder = DEFAULT_EMBEDDER if embedder is None else embedder
        return {"schema": named_schema.to_json(), "embedder": embedder_record(chosen_embedder)}

    if read_only:
        if is_url(path) or str(path) == ":memory:":
            raise StoreError("read_only: a store file is needed; in PostgreSQL, open as a role that may only SELECT")
        database = ReadOnlyDatabase(str(path), clock=clock)
    else:
        backend = _import_postgres() if is_url(path) else SQLiteDatabase
        database = backend(str(path), create=create, durability=durability, clock=clock, initial_meta=initial_meta)
    try:
        try:
            recorded_schema = MemorySchema.from_json(database.meta["schema"])
        except (KeyError, ValueError, TypeError, RecursionError, ConfigError) as error:
            raise DamagedStore(
                f"{database.path}: its record of the schema cannot be read ({error!r}): go back to a copy"
            ) from error
        if schema is None:
            named_schema = recorded_schema
        elif not named_schema.is_compatible_with(recorded_schema):
            raise StoreError(
                f"{database.path} was made with schema {recorded_schema.describe()}, not {named_schema.describe()}: "
                "open it without naming a schema, or give another path"
            )
        return database, named_schema, RecordedEmbedder(database.path, database.meta.get("embedder", ""), embedder)
    except BaseException:
        database.close()
        raise


def is_writable(path: str | Path) -> bool:
    """Return False for a store file that this user cannot write, or whose folder he cannot."""
    try:
        exists = not is_url(path) and Path(path).exists()
    except (OSError, StoreError):  # a path that no file can have: opening it says so
        exists = False
    return not exists or all(os.access(p, os.W_OK) for p in (path, Path(path).parent))


def open_existing(path: str | Path, *, read_only: bool = False) -> Backend:
    """Open the existing database at a path or URL for inspection, foreign objects included.

    Raises `StoreError` if there is none.
    """
    if is_url(path):
        return _import_postgres()(str(path), create=False, initial_meta=dict)
    if read_only:
        return ReadOnlyDatabase(str(path), inspect=True)
    return SQLiteDatabase(str(path), create=False, initial_meta=dict, inspect=True)


def open_namespace(database: Backend, name: str, schema: MemorySchema) -> Namespace:
    """Return a namespace that uses the statements of its database's kind.

    Args:
        database: Open database.
        name: Name of the namespace.
        schema: Schema of the store.

    Raises:
        StoreError: The name is no text, or empty.
    """
    if not is_text(name) or not name:
        raise StoreError(f"namespace {brief_repr(name)}: a non-empty text is needed")
    if isinstance(database, SQLiteDatabase):
        return Namespace(database, name, schema)
    from memalpha.store.backends.postgres.database import PostgresNamespace

    return PostgresNamespace(database, name, schema)  # pyright: ignore[reportArgumentType]: the other of the two


@contextmanager
def create_database(path: str | Path, meta: Mapping[str, str]) -> Iterator[Backend]:
    """Create a store that appears only if the block succeeds.

    For a path, a new file. For a URL, a PostgreSQL schema; stores that it already has must have the same schema and
    embedder, and tables created for a failed block are dropped. Raises `StoreError`.
    """
    if not is_url(path):
        with create_file(Path(path), meta) as file:
            yield file
        return
    required = {key: meta[key] for key in ("schema", "embedder")}
    database = _import_postgres()(str(path), create=True, initial_meta=lambda: required)
    try:
        for key, value in required.items():
            if database.meta[key] != value:
                raise StoreError(f"{database.path} holds stores with another {key}: give another with ?schema=NAME")
        yield database
    except BaseException:
        database.drop_created()
        raise
    finally:
        database.close()


@contextmanager
def create_namespace(path: str | Path, meta: Mapping[str, str], name: str, schema: MemorySchema) -> Iterator[Namespace]:
    """Yield an empty namespace of a created store, inside a write transaction.

    Args:
        path: File path or PostgreSQL URL, as in `create_database`.
        meta: Metadata of the store: schema and embedder.
        name: Name of the namespace.
        schema: Schema of the store.

    Raises:
        StoreError: The namespace has a log already.
    """
    with create_database(path, meta) as database:
        namespace = open_namespace(database, name, schema)
        with namespace.transaction():
            if namespace.log.position:
                raise StoreError(f"{database.path} has a log of the namespace {name!r} already: give another name")
            yield namespace


def _import_postgres() -> type[PostgresDatabase]:
    try:
        from memalpha.store.backends.postgres.database import PostgresDatabase
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs more packages ({error}): {install_command('postgres')}") from None
    return PostgresDatabase
