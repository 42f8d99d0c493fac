"""Which database a path or URL means: an SQLite file, or PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.errors import StoreError, install_command
from memalpha.store.backends.base import Backend, Clock, Durability
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.sqlite import SQLiteDatabase, create_file
from memalpha.store.embedding import Embedder
from memalpha.store.indexing.namespace_index import NamespaceIndex
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, embedder_record
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.search.vectors import Precision

if TYPE_CHECKING:
    from memalpha.store.backends.postgres.database import PostgresDatabase
    from memalpha.store.backends.postgres.search import PostgresIndex

DEFAULT_SCHEMA = "mem-alpha"
DEFAULT_EMBEDDER = "static"
_URL = re.compile(r"postgres(?:ql)?://")


def is_url(path: str | Path) -> bool:
    """Whether it is a URL, not a file's path; raises `StoreError` for one that is not of PostgreSQL."""
    text = str(path)
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
) -> tuple[Backend, MemorySchema, RecordedEmbedder]:
    """The database at a path or URL, with its schema and embedder; see `MemoryStore.open`."""
    named_schema = load_schema(DEFAULT_SCHEMA if schema is None else schema)

    def initial_meta() -> dict[str, str]:
        return {"schema": named_schema.to_json(), "embedder": embedder_record(embedder or DEFAULT_EMBEDDER)}

    backend = _import_postgres() if is_url(path) else SQLiteDatabase
    database = backend(str(path), create=create, durability=durability, clock=clock, initial_meta=initial_meta)
    try:
        recorded_schema = MemorySchema.from_json(database.meta["schema"])
        if schema is None:
            named_schema = recorded_schema
        elif not named_schema.is_compatible_with(recorded_schema):
            raise StoreError(
                f"{database.path} was made with schema {recorded_schema.describe()}, not {named_schema.describe()}: "
                "open it without naming a schema, or give another path"
            )
        return database, named_schema, RecordedEmbedder(database.path, database.meta["embedder"], embedder)
    except BaseException:
        database.close()
        raise


def open_existing(path: str | Path) -> Backend:
    """The database at a path or URL, if there is a store; raises `StoreError`."""
    backend = _import_postgres() if is_url(path) else SQLiteDatabase
    return backend(str(path), create=False, initial_meta=dict)


def open_namespace(database: Backend, name: str, schema: MemorySchema) -> Namespace:
    """The rows of a namespace, in the database's own statements."""
    if isinstance(database, SQLiteDatabase):
        return Namespace(database, name, schema)
    from memalpha.store.backends.postgres.namespace import PostgresNamespace

    return PostgresNamespace(database, name, schema)  # pyright: ignore[reportArgumentType]: the other of the two


def open_index(namespace: Namespace, embedder: RecordedEmbedder, vectors: Precision) -> NamespaceIndex | PostgresIndex:
    """What searches a namespace; raises `StoreError` for vectors of a precision that its database has not."""
    if isinstance(namespace.database, SQLiteDatabase):
        return NamespaceIndex(namespace, embedder, vectors)
    if vectors != "float32":
        raise StoreError(f"vectors {vectors!r}: searches of a PostgreSQL store hold none, and the server has float32")
    from memalpha.store.backends.postgres.search import PostgresIndex

    return PostgresIndex(namespace, embedder)  # pyright: ignore[reportArgumentType]: the other of the two


@contextmanager
def create_database(path: str | Path, meta: Mapping[str, str]) -> Iterator[Backend]:
    """A new file, which is there when the block has ended well, or a PostgreSQL schema, whose stores must be of the
    same schema and embedder if there are any, and whose tables go again if they were made for a block that ended badly.
    Raises `StoreError`."""
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
    """A namespace without a log, in a transaction, of what `new_database` gives. Raises `StoreError`."""
    with create_database(path, meta) as database:
        namespace = open_namespace(database, name, schema)
        with namespace.transaction():
            if namespace.position:
                raise StoreError(f"{database.path} has a log of the namespace {name!r} already: give another name")
            yield namespace


def _import_postgres() -> type[PostgresDatabase]:
    try:
        from memalpha.store.backends.postgres.database import PostgresDatabase
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs more packages ({error}): {install_command('postgres')}") from error
    return PostgresDatabase
