"""Administration of a sharded store: its servers, and moving namespaces between them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from memalpha.errors import StoreError, StoreUnavailable
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.shards.database import ShardedDatabase
from memalpha.store.backends.shards.move import Move, move_namespace
from memalpha.store.backends.shards.url import check_server_url, with_user
from memalpha.store.embedding import Embedder
from memalpha.store.indexing.stored_embedder import embedder_record
from memalpha.store.open import DEFAULT_EMBEDDER, DEFAULT_SCHEMA, is_sharded
from memalpha.store.schema import MemorySchema, load_schema


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server of a sharded store.

    Attributes:
        url: Its URL in the routing table.
        takes_new: True if new namespaces may get it.
        namespaces: Number of namespaces that it has.
        error: Why it cannot be reached; None if it can.
    """

    url: str
    takes_new: bool
    namespaces: int
    error: str | None


def add_server(
    store: str,
    server: str,
    *,
    schema: str | Path | MemorySchema | None = None,
    embedder: str | Embedder | None = None,
) -> list[str]:
    """Add a server to a sharded store, with the namespaces that it has; create routing table and tables if missing.

    Args:
        store: URL of the store, `postgresql+shards://…`.
        server: URL of the server, without user and password: those are the store's.
        schema: Schema of a new store; by default that of the server's store, or "mem-alpha".
        embedder: Embedder of a new store; by default that of the server's store, or "static".

    Returns:
        The namespaces that came with it.

    Raises:
        StoreError: It has another schema or embedder than the store, or a namespace that another server has.
    """
    check_server_url(server)

    def initial_meta() -> dict[str, str]:
        try:
            existing = PostgresDatabase(with_user(server, store), create=False, initial_meta=dict)
        except StoreUnavailable:
            raise
        except StoreError:  # no store yet, or one that opening it below refuses with the same reason
            named = load_schema(DEFAULT_SCHEMA if schema is None else schema)
            return {"schema": named.to_json(), "embedder": embedder_record(embedder or DEFAULT_EMBEDDER)}
        with closing(existing):
            return existing.meta

    with closing(ShardedDatabase(_check(store), create=True, initial_meta=initial_meta)) as database:
        with closing(database.open_server(server, create=True)) as opened, opened.transaction(write=False):
            names = opened.namespaces()
        database.directory.add_shard(server, names)
    return names


def list_servers(store: str) -> list[ServerStatus]:
    """Return the servers of a sharded store. Raises `StoreError` if its routing table cannot be opened."""
    servers = []
    with closing(_open(store)) as database:
        routes = list(database.directory.routes().values())
        for number, (url, takes_new) in database.directory.shards().items():
            error = None
            try:
                database.shard(number).ping()
            except StoreUnavailable as away:
                error = str(away)
            servers.append(ServerStatus(url, takes_new, routes.count(number), error))
    return servers


def remove_server(store: str, server: str) -> int:
    """Take a server out of a sharded store if it has no namespaces; if it has, let it get no new ones.

    Args:
        store: URL of the store.
        server: URL of the server, as `list_servers` returns it.

    Returns:
        Number of namespaces that it still has; 0 if it was removed.

    Raises:
        StoreError: The store has no such server.
    """
    with closing(_open(store)) as database:
        for number, (url, _) in database.directory.shards().items():
            if url == server:
                return database.directory.remove_shard(number)
        raise StoreError(f"{server} is no server of {database.path}: `memalpha shards list` lists them")


def move(store: str, namespace: str, server: str, *, progress: Callable[[str], None] = lambda stage: None) -> Move:
    """Move a namespace to another server of the store, while others read and write it; see `move_namespace`.

    Args:
        store: URL of the store.
        namespace: Name of the namespace.
        server: URL of the server, as `list_servers` returns it.
        progress: Called at the begin of each stage.

    Raises:
        StoreError: There is no such namespace or server, or one is away; the namespace stays whole.
    """
    with closing(_open(store)) as database:
        schema = MemorySchema.from_json(database.meta["schema"])
        return move_namespace(database, namespace, server, schema, progress=progress)


def _open(store: str) -> ShardedDatabase:
    return ShardedDatabase(_check(store), create=False, initial_meta=dict)


def _check(store: str) -> str:
    if not is_sharded(store):
        raise StoreError(
            f"{store.partition('://')[0]}: the URL of a store on several servers is needed, postgresql+shards://…"
        )
    return store
