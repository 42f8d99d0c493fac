"""Opening databases: choose SQLite or PostgreSQL by path or URL, create, check and copy stores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.arguments import brief_repr, check_path
from memalpha.errors import ConfigError, DamagedStore, StoreError, install_command
from memalpha.store.backends.base import Backend, Clock, Durability, system_clock
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.sqlite import ReadOnlyDatabase, SQLiteDatabase, create_file
from memalpha.store.embedding import Embedder, RecordedEmbedder, embedder_record
from memalpha.store.fields import is_text, prefix_errors
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.types import Operation

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
    schema: str | Path | MemorySchema | None = None,
    embedder: str | Embedder | None = None,
    *,
    create: bool = False,
    durability: Durability = "full",
    clock: Clock = system_clock,
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


def copy_store(source: str | Path, target: str | Path) -> dict[str, int]:
    """Copy all namespaces of a store into a new one.

    Both may be a file or a PostgreSQL URL.

    Logs are copied unchanged, with positions, times, ids and erasure stubs, and so are versions and vectors. Nothing
    is embedded again, and every past state, undo and redo is the same in both. The copy shows one moment of the
    source, and either all of it exists or nothing. A target URL may name a store without namespaces, of the same
    schema and embedder.

    Args:
        source: Store to read.
        target: Store to create.

    Returns:
        Number of operations by namespace.

    Raises:
        StoreError: The source is no store, or the target is not empty or cannot hold the source.
    """
    source_database, schema, _ = open_database(source)
    with closing(source_database):
        return _copy_database(source_database, schema, target)


def back_up(database: Backend, schema: MemorySchema, target: str | Path) -> dict[str, int]:
    """Copy all namespaces of an open store into a new file, as `copy_store` does.

    A store file is read through a connection of its own, so that threads that use this one do not wait.

    Args:
        database: The open store.
        schema: Its schema.
        target: New file.

    Returns:
        Number of operations by namespace.

    Raises:
        StoreError: The file exists already or cannot be written.
    """
    if not isinstance(database, SQLiteDatabase) or database.path == ":memory:":
        return _copy_database(database, schema, target)
    reader, _, _ = open_database(database.file, clock=database.clock, read_only=database.is_read_only)
    with closing(reader):
        return _copy_database(reader, schema, target)


def _copy_database(source: Backend, schema: MemorySchema, target: str | Path) -> dict[str, int]:
    with source.transaction(write=False):
        names = source.namespaces()
    with (
        source.transaction(*names, write=False),
        create_database(target, source.meta) as target_database,
        target_database.transaction(*names),
    ):
        if target_database.namespaces():
            raise StoreError(f"{target_database.path} holds namespaces already: give another with ?schema=NAME")
        positions: dict[str, int] = {}
        for name in names:
            original, copy = open_namespace(source, name, schema), open_namespace(target_database, name, schema)
            position = positions[name] = original.log.position
            with prefix_errors(f"namespace {name!r}"):
                original.copy_to(copy, position)
        return positions


def is_written(database: Backend, name: str, schema: MemorySchema) -> bool:
    """Return True if a namespace was ever written, without operations too.

    Args:
        database: Open database.
        name: Name of the namespace.
        schema: Schema of the store.
    """
    namespace = open_namespace(database, name, schema)
    with namespace.transaction(write=False):
        is_present = namespace.scope.namespace_id >= 0
        database.namespace_ids.pop(name, None)  # so that memory does not grow with the number of namespaces
        return is_present


def write_log(
    database: Backend, name: str, schema: MemorySchema, operations: Sequence[Operation], embedder: RecordedEmbedder
) -> bool:
    """Write operations into a new namespace in one transaction.

    Without operations the namespace is created all the same.

    Args:
        database: Open database.
        name: Name of the namespace.
        schema: Schema of the store.
        operations: Complete log, as a memory in RAM of the same schema returned it.
        embedder: Recorded embedder of the store.

    Returns:
        False, with nothing written, if the namespace is there already.

    Raises:
        StoreError: The operations do not make a log, or the database cannot be written.
        EmbedderError: The embedder returned vectors that cannot be stored.
    """
    kinds = ("insert", "update")
    contents = list(dict.fromkeys(item.content for item in operations if item.kind in kinds and item.content))
    # Embed before the transaction, so that a slow embedder blocks no other process.
    vectors = dict(zip(contents, embedder.load().encode(contents), strict=True)) if contents else {}
    namespace = open_namespace(database, name, schema)
    with namespace.transaction():
        is_new = namespace.scope.namespace_id < 0
        if is_new:
            namespace.scope.create()
            for operation in operations:
                namespace.write(operation, vectors)
        database.namespace_ids.pop(name, None)
    return is_new
