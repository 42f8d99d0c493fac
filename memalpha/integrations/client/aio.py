"""`AsyncMemoryClient`: the asynchronous client of a served memory."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx2

from memalpha.integrations.client.answers import (
    ASK,
    CORE,
    ENTRY,
    ERASE,
    HEALTH,
    HISTORY,
    LOG,
    PAGE,
    READ,
    SEARCH,
    AskResponse,
    EntryPage,
    EraseResponse,
    LoggedOperation,
    ReadResponse,
)
from memalpha.integrations.client.calls import (
    Call,
    ClientError,
    client_options,
    entry_path,
    seconds_to_wait,
    to_unavailable,
)
from memalpha.types import Hit, MemoryEntry

T = TypeVar("T")


class AsyncMemoryClient:
    """Client of one namespace of a server. Tasks of one event loop may share it.

    Methods are those of `MemoryClient`, to be awaited; `entries` is for `async for`. Failures are subclasses of
    `ClientError`.
    """

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            address: Address of the server, such as `http://127.0.0.1:8765`.
            key: API key or token; None sends none.
            namespace: Namespace of all requests; None is the key's only one.
            timeout: Seconds without a byte after which a request fails. A writer that is a model may need more.
            retries: How often a request is sent again that was refused or that changes nothing when done twice. The
                server's Retry-After is heeded, up to a minute.
            transport: Transport of httpx2, for tests and proxies.

        Raises:
            ConfigError: The address is no http or https URL.
        """
        self._http = httpx2.AsyncClient(**client_options(key, namespace, timeout, transport, address))
        self._retries = retries

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncMemoryClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def search(
        self,
        query: str,
        k: int = 8,
        *,
        category: str | None = None,
        where: Mapping[str, Any] | None = None,
        as_of: int | str | None = None,
    ) -> list[Hit]:
        """Return the entries nearest to a query, best first, with the parts of their scores.

        Args:
            query: A question or a few words.
            k: Number of entries, at most 100.
            category: Only this category.
            where: Filter over fields and metadata.
            as_of: A past state: log position or ISO time.

        Raises:
            ClientError: The request failed.
        """
        body = {"query": query, "k": k, "category": category, "where": where, "as_of": as_of}
        return (await self._send(Call("POST", "/v1/search", SEARCH, body))).hits

    async def ask(self, question: str, k: int = 8, *, where: Mapping[str, Any] | None = None) -> AskResponse:
        """Return an answer from the memory alone, with the entries that it was read from.

        Args:
            question: The question.
            k: Number of entries that the reader sees.
            where: Only entries that pass.

        Raises:
            ClientError: The request failed.
        """
        return await self._send(Call("POST", "/v1/ask", ASK, {"question": question, "k": k, "where": where}))

    async def read(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        timestamp: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ReadResponse:
        """Let the writer read a text or chat messages, and return every call that it made.

        It is not sent again once the server may have begun: the writer would read the text twice.

        Args:
            text: The text; or else `messages`.
            messages: Chat messages with role, content and, if known, name and timestamp.
            timestamp: ISO date of the text.
            source: Name of the text.
            metadata: Set on every entry that is written.

        Raises:
            ClientError: The request failed.
        """
        body = {"text": text, "messages": messages, "timestamp": timestamp, "source": source, "metadata": metadata}
        return await self._send(Call("POST", "/v1/read", READ, body, is_repeatable=False))

    async def insert(
        self,
        category: str,
        content: str,
        *,
        timestamp: str | None = None,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires: str | None = None,
        source: str | None = None,
    ) -> MemoryEntry:
        """Store a fact. The same content in the same category is stored once.

        Args:
            category: Category of the schema.
            content: The fact.
            timestamp: ISO date of the fact.
            importance: From 0 to 1.
            metadata: JSON values.
            expires: ISO time at which the entry expires.
            source: Where it comes from.

        Raises:
            ClientError: The request failed.
        """
        body = {"category": category, "content": content, "timestamp": timestamp, "importance": importance}
        body |= {"metadata": metadata, "expires": expires, "source": source}
        return await self._send(Call("POST", "/v1/entries", ENTRY, body))

    async def update(
        self,
        id: str,
        content: str,
        *,
        timestamp: str | None = None,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires: str | None = None,
        source: str | None = None,
    ) -> MemoryEntry:
        """Replace the content of an entry; its id and history stay. New content clears an omitted timestamp.

        Args:
            id: Id of a live entry.
            content: New content.
            timestamp: ISO date of the fact.
            importance: From 0 to 1.
            metadata: JSON values.
            expires: ISO time at which the entry expires.
            source: Where it comes from.

        Raises:
            ClientError: The request failed.
        """
        body = {"content": content, "timestamp": timestamp, "importance": importance, "metadata": metadata}
        body |= {"expires": expires, "source": source}
        return await self._send(Call("PATCH", entry_path(id), ENTRY, body, is_repeatable=False))

    async def delete(self, id: str) -> MemoryEntry:
        """Delete an entry and return its last version; its history stays."""
        return await self._send(Call("DELETE", entry_path(id), ENTRY, is_repeatable=False))

    async def erase(self, id: str) -> EraseResponse:
        """Erase an entry for good, live or deleted, with all of its past."""
        return await self._send(Call("DELETE", entry_path(id, history=True), ERASE, is_repeatable=False))

    async def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """Return an entry of the current or a past state."""
        return await self._send(Call("GET", entry_path(id), ENTRY, query={"as_of": as_of}))

    async def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first."""
        return (await self._send(Call("GET", entry_path(id, history=True), HISTORY))).versions

    async def page(
        self,
        category: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        as_of: int | str | None = None,
    ) -> EntryPage:
        """Return a page of entries, oldest first, and the core memory.

        Args:
            category: Only this category.
            limit: Number of entries, at most 1,000.
            after: `next` of the page before.
            as_of: A past state.

        Raises:
            ClientError: The request failed.
        """
        query = {"category": category, "limit": limit, "after": after, "as_of": as_of}
        return await self._send(Call("GET", "/v1/entries", PAGE, query=query))

    async def entries(
        self, category: str | None = None, *, as_of: int | str | None = None
    ) -> AsyncIterator[MemoryEntry]:
        """Iterate over all entries, oldest first, page by page."""
        after = None
        while True:
            page = await self.page(category, limit=200, after=after, as_of=as_of)
            for entry in page.entries:
                yield entry
            if (after := page.next) is None:
                return

    async def core(self, *, as_of: int | str | None = None) -> str:
        """Return the core memory."""
        return (await self._send(Call("GET", "/v1/core", CORE, query={"as_of": as_of}))).content

    async def set_core(self, content: str) -> str:
        """Replace the core memory and return it as stored."""
        return (await self._send(Call("PUT", "/v1/core", CORE, {"content": content}))).content

    async def log(self, after: int = 0, *, limit: int = 100) -> list[LoggedOperation]:
        """Return the operations after a position of the log."""
        return (await self._send(Call("GET", "/v1/log", LOG, query={"after": after, "limit": limit}))).operations

    async def health(self) -> None:
        """Check that the server and its store answer. Raises `ServerUnavailable` if they do not."""
        await self._send(Call("GET", "/v1/health", HEALTH))

    async def _send(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                return call.parse(await self._http.request(**call.arguments()))
            except (ClientError, httpx2.TransportError) as failure:
                seconds = seconds_to_wait(call, failure, attempt)
                if attempt > self._retries or seconds is None:
                    if isinstance(failure, httpx2.TransportError):
                        raise to_unavailable(failure) from failure
                    raise
            await sleep(seconds)
