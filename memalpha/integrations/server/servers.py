"""The database servers behind a service: threads for reads and a watch for each, so that one holds up no other.

A file, or a store on one PostgreSQL server, has one. Of a store on several, requests for namespaces of a server that is
away get 503, while all others are served.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from memalpha.integrations.server.availability import Availability
from memalpha.store.backends.base import Backend

READ_THREADS = 4
"""Threads for requests that only read, for each server."""


@dataclass(frozen=True)
class DatabaseServer:
    """One server: its watch, and the threads of reads."""

    availability: Availability
    read_pool: ThreadPoolExecutor


class Servers:
    """The servers of a store."""

    def __init__(self, database: Backend) -> None:
        self._database = database
        self._servers: dict[int, DatabaseServer] = {}
        self._lookup_pool = ThreadPoolExecutor(READ_THREADS, "memalpha-lookup")
        self._lookups = Availability(database.ping if database.is_remote else None)

    async def of(self, namespace: str) -> DatabaseServer:
        """Return the server that has a namespace.

        Raises:
            ServiceError: The server of the routing table is away (503).
            StoreError: The store has no server.
        """
        number = self._database.known_server(namespace)
        if number is None:
            await self._lookups.check()
            number = await self._lookups.wait(self._lookup_pool.submit(self._database.server_of, namespace))
        if (server := self._servers.get(number)) is None:
            ping = partial(self._database.ping_server, number) if self._database.is_remote else None
            server = DatabaseServer(Availability(ping), ThreadPoolExecutor(READ_THREADS, f"memalpha-read-{number}"))
            self._servers[number] = server
        return server

    def shut_down(self) -> None:
        """Refuse new work, and wait for what has begun."""
        self._lookup_pool.shutdown(cancel_futures=True)
        for server in self._servers.values():
            server.read_pool.shutdown(cancel_futures=True)
