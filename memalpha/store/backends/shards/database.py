"""`ShardedDatabase`: the namespaces of several PostgreSQL servers as one store.

It holds no data and runs no statement of a namespace: it finds the server of a namespace and opens the transaction
there. What it remembers of the routing table may be old, which is no fault: a namespace that has moved is closed where
it was, in the transaction that reads or locks its row, and is then looked up again. So a server that is away, the
routing table's included, is noticed by the namespaces that need it alone.

A transaction that writes is of one server. One that reads many namespaces sees one moment of each server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from threading import Lock, local
from typing import Any

from memalpha.errors import NamespaceMoved, StoreError, StoreUnavailable
from memalpha.store.backends.base import Backend, Clock, Durability, system_clock
from memalpha.store.backends.postgres.connections import LOCK_TIMEOUT
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.namespace import PostgresNamespace
from memalpha.store.backends.postgres.statements import PostgresStatements
from memalpha.store.backends.shards.directory import Directory
from memalpha.store.backends.shards.rows import delete_rows, reopen
from memalpha.store.backends.shards.url import with_user
from memalpha.store.schema import MemorySchema

_MAX_ROUTES = 100_000  # namespaces whose server a process remembers
_POLL_SECONDS = 0.01  # between two looks at a namespace that is on its way
_OPEN_SECONDS = 2.0  # that a thread waits for another that opens the same server


class ShardedDatabase(Backend):
    """Store at `postgresql+shards://user@host/database`, the URL of its routing table (see `directory`)."""

    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        create: bool,
        initial_meta: Callable[[], dict[str, str]],
        durability: Durability = "full",
        clock: Clock = system_clock,
    ) -> None:
        """Open the routing table; its servers are opened when they are needed.

        Args:
            url: URL of the routing table.
            create: Create a missing table.
            initial_meta: Returns schema and embedder of a new store.
            durability: "full" or "normal".
            clock: Returns the current time.

        Raises:
            StoreError: The table cannot be opened.
        """
        self.directory = Directory(url, create=create, initial_meta=initial_meta)
        super().__init__(self.directory.path, durability, clock)
        self.url, self.meta = url, self.directory.meta
        self._durability: Durability = durability
        self._routes: dict[str, int] = {}
        self._shards: dict[int, PostgresDatabase] = {}
        self._opening: dict[int, Lock] = {}
        self._lock, self._local = Lock(), local()

    # ------------------------------------------------------------------------------------------------------- servers

    def shard(self, number: int) -> PostgresDatabase:
        """Return a server's database, opened on first use. Raises `StoreError`, such as `StoreUnavailable`."""
        if (shard := self._shards.get(number)) is not None:
            return shard
        with self._lock:
            opening = self._opening.setdefault(number, Lock())
        if not opening.acquire(timeout=_OPEN_SECONDS):
            raise StoreUnavailable(f"{self.path}: its server {number} does not answer", "nothing was done")
        try:
            if number not in self._shards:
                url, _ = self.directory.shards()[number]
                self._shards[number] = self.open_server(url)
            return self._shards[number]
        finally:
            opening.release()

    def open_server(self, url: str, *, create: bool = False, opens_closed: bool = False) -> PostgresDatabase:
        """Open a server's database by the URL that the routing table has.

        Args:
            url: URL without user.
            create: Create a missing store there, with schema and embedder of this one.
            opens_closed: Open namespaces that are closed, too.

        Raises:
            StoreError: There is none, or it has another schema or embedder.
        """
        required = {key: self.meta[key] for key in ("schema", "embedder")}
        server = PostgresDatabase(
            with_user(url, self.url),
            create=create,
            initial_meta=lambda: required,
            durability=self._durability,
            clock=self.clock,
            opens_closed=opens_closed,
        )
        for key, value in required.items():
            if server.meta.get(key) != value:
                server.close()
                raise StoreError(f"{server.path} has another {key} than {self.path}: all servers need the same")
        return server

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self.directory.close()

    def ping(self) -> None:
        """Check that the server of the routing table answers. Raises `StoreUnavailable` if it does not."""
        self.directory.ping()

    def ping_server(self, number: int) -> None:
        self.shard(number).ping()

    def server_of(self, namespace: str) -> int:
        return self._find([namespace], write=False)[namespace]

    def known_server(self, namespace: str) -> int | None:
        return self._routes.get(namespace)

    # -------------------------------------------------------------------------------------------------- transactions

    @contextmanager
    def transaction(self, *namespaces: str, write: bool = True) -> Iterator[Any]:
        with self._open(namespaces, write, lambda shard, names: shard.transaction(*names, write=write)):
            yield self._connection if len(set(self._current.values())) == 1 else None

    @contextmanager
    def atomic(self, *namespaces: str) -> Iterator[None]:
        with self._open(namespaces, True, lambda shard, names: shard.atomic(*names)):
            yield

    @property
    def is_atomic(self) -> bool:
        return any(shard.is_atomic for shard in self._current.values())

    @property
    def _current(self) -> dict[str, PostgresDatabase]:
        """Servers of the thread's open transaction, by namespace."""
        return getattr(self._local, "shards", None) or {}

    @contextmanager
    def _open(
        self,
        namespaces: tuple[str, ...],
        write: bool,
        begin: Callable[[PostgresDatabase, list[str]], AbstractContextManager[Any]],
    ) -> Iterator[None]:
        """Open a transaction on the servers of some namespaces, or join the one that the thread has open."""
        if current := self._current:
            if self.is_atomic and (foreign := set(namespaces) - current.keys()):
                raise StoreError(f"namespace {foreign.pop()!r}: the open transaction is of {min(current)!r} alone")
            assert current.keys() >= set(namespaces), "a transaction cannot reach namespaces that it was not opened for"
            with ExitStack() as stack:
                for shard in dict.fromkeys(current[name] for name in namespaces or current):
                    stack.enter_context(begin(shard, [name for name in namespaces if current[name] is shard]))
                yield
            return
        with ExitStack() as stack:
            self._local.shards = self._begin(stack, namespaces, write, begin)
            try:
                yield
            finally:
                self._local.shards = None

    def _begin(
        self,
        stack: ExitStack,
        namespaces: tuple[str, ...],
        write: bool,
        begin: Callable[[PostgresDatabase, list[str]], AbstractContextManager[Any]],
    ) -> dict[str, PostgresDatabase]:
        """Begin on the servers that have the namespaces, wherever they are moving."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            names_by_server: dict[int, list[str]] = {}
            for name, number in self._find(namespaces, write=write).items():
                names_by_server.setdefault(number, []).append(name)
            if write and len(names_by_server) > 1:
                raise StoreError(
                    f"{self.path}: the namespaces lie on several servers, so no transaction can write both"
                )
            number = 0
            try:
                with ExitStack() as attempt:
                    shards = {}
                    for number, names in sorted(names_by_server.items()):
                        shard = self.shard(number)
                        attempt.enter_context(begin(shard, names))
                        shards.update(dict.fromkeys(names, shard))
                    stack.push(attempt.pop_all())
                    return shards
            except NamespaceMoved as error:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{error}, for {LOCK_TIMEOUT} s already", "nothing was done") from error
            for name in names_by_server[number]:
                self._follow(name, number)

    def _find(self, namespaces: Iterable[str], *, write: bool) -> dict[str, int]:
        """Return the servers of namespaces, remembered or looked up; with `write` new ones get theirs."""
        routes = {name: self._routes[name] for name in namespaces if name in self._routes}
        unknown = [name for name in namespaces if name not in routes]
        for name, (number, is_routed) in self.directory.find(unknown).items() if unknown else ():
            if write and not is_routed:
                number = self.directory.assign(name, next(iter(routes.values()), None))
            if number is None:
                raise StoreError(f"{self.path}: no server takes new namespaces: `memalpha shards add` adds one")
            routes[name] = number
            if is_routed or write:  # an unwritten one is not remembered: somebody else may give it a server
                if len(self._routes) > _MAX_ROUTES:
                    self._routes.clear()
                self._routes[name] = number
        return routes

    def _follow(self, name: str, number: int) -> None:
        """Look up a namespace that was closed on a server; wait for its move, or end one whose process was killed."""
        self._routes.pop(name, None)
        if self.directory.find([name])[name] == (number, True) and not self.settle(name):
            time.sleep(_POLL_SECONDS)

    def settle(self, name: str) -> bool:
        """Reopen a namespace where the routing table has it, unless it is on its way; return False if it is."""
        with self.directory.move_lock(name) as lock:
            if lock is None:
                return False
            if (number := lock.shard) is not None:
                reopen(self.shard(number), name)
            return True

    # ----------------------------------------------------------------------------------- what a transaction's rows ask

    def statements(self, name: str) -> PostgresStatements:
        """Return the executor for statements of a namespace."""
        return self._current[name].statements(name)

    @property
    def _connection(self) -> PostgresStatements:
        return self._only_shard._connection

    @property
    def _only_shard(self) -> PostgresDatabase:
        (shard,) = set(self._current.values())
        return shard

    @property
    def namespace_ids(self) -> MutableMapping[str, int]:
        return _NamespaceIds(self._current)

    def add_namespace(self, name: str, namespace_id: int) -> None:
        """Show the current transaction a namespace that it has just created."""
        self._current[name].add_namespace(name, namespace_id)

    def forget_namespace(self, name: str) -> None:
        """Forget the id of a namespace that the current transaction has deleted."""
        self._current[name].forget_namespace(name)

    def analyze(self, namespace_id: int) -> None:
        """Update the statistics of a namespace's partitions, if the role owns them."""
        self._only_shard.analyze(namespace_id)

    def unlock_log(self) -> AbstractContextManager[None]:
        return self._only_shard.unlock_log()

    # ------------------------------------------------------------------------------------------------ the whole store

    def namespaces(self) -> list[str]:
        """Return the names of all written namespaces. Raises `StoreUnavailable` if a server is away."""
        names: list[str] = []
        for number in self.directory.shards():
            shard = self.shard(number)
            with shard.transaction(write=False):
                here = list(shard.all_namespaces())
            names += [name for name, place in self.directory.find(here).items() if place == (number, True)]
        return sorted(names)

    def integrity_errors(self) -> Iterable[str]:
        """Return nothing: `servers` are examined one by one."""
        return ()

    def servers(self) -> list[Callable[[], Backend]]:
        return [lambda number=number: self.shard(number) for number in self.directory.shards()]

    def routing_faults(self, *, repair: bool) -> Iterator[str]:
        """Iterate over namespaces that are not whole at exactly the server that the routing table names.

        Args:
            repair: Open what an interrupted move has left closed, and delete the rows that it has left behind.
        """
        routes, servers = self.directory.routes(), self.directory.shards()
        for number, (url, _) in servers.items():
            server = self.shard(number)
            with server.transaction(write=False):
                here = server.all_namespaces()
            faulty = [name for name, closed in here.items() if closed or routes.get(name) != number]
            with closing(self.open_server(url, opens_closed=True)) as opened:
                for name in faulty:
                    with self.directory.move_lock(name) as lock:
                        if lock is not None:  # else it moves
                            yield from self._routing_faults(opened, name, here[name], (number, lock.shard), repair)

    def _routing_faults(
        self, server: PostgresDatabase, name: str, closed: bool, places: tuple[int, int | None], repair: bool
    ) -> Iterator[str]:
        namespace = PostgresNamespace(server, name, MemorySchema.from_json(self.meta["schema"]))
        here, home = places
        if here == home and closed:
            if repair:
                reopen(server, name)
            yield f"the namespace {name!r} is closed: a move was interrupted"
        elif here != home and closed:
            with namespace.transaction(write=repair):
                has_rows = namespace.log.position > 0
                if repair:
                    delete_rows(namespace)
            if has_rows:
                yield f"{server.path} has rows of the namespace {name!r}, which is elsewhere"
        elif here != home:
            place = "nowhere" if home is None else "to another server"
            yield f"{server.path} has the namespace {name!r}, which the routing table sends {place}"


class _NamespaceIds(MutableMapping[str, int]):
    """Ids of namespaces by name, each as the open transaction of its server has it."""

    def __init__(self, shards: dict[str, PostgresDatabase]) -> None:
        self._shards = shards

    def __getitem__(self, name: str) -> int:
        return self._shards[name].namespace_ids[name]

    def __setitem__(self, name: str, namespace_id: int) -> None:
        self._shards[name].namespace_ids[name] = namespace_id

    def __delitem__(self, name: str) -> None:
        del self._shards[name].namespace_ids[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, shard in self._shards.items() if name in shard.namespace_ids)

    def __len__(self) -> int:
        return sum(1 for _ in self)
