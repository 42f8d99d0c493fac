"""Client of a memory that `memalpha serve` serves: synchronous and asynchronous, with typed results and errors.

The methods of `MemoryClient` make a request and hand it to `_send`. Those of `AsyncMemoryClient` are the same ones: its
`_send` returns a coroutine.
"""

from __future__ import annotations

import json
import random
from asyncio import sleep as async_sleep
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from time import sleep
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter

from memalpha.arguments import brief_repr
from memalpha.endpoint_calls import split_address
from memalpha.errors import ConfigError, MemalphaError
from memalpha.integrations.server import schemas
from memalpha.store.fields import is_text
from memalpha.text_files import parse_json_or_none
from memalpha.types import Hit, MemoryEntry

P = ParamSpec("P")
T = TypeVar("T")
Transport = TypeVar("Transport")

MAX_WAIT = 60.0
"""Seconds that a client waits before it asks again; told to wait longer, it raises."""
FIRST_WAIT = 0.5
"""Seconds before the first repetition, where the server names none; doubled each time."""


class ClientError(MemalphaError):
    """A request failed. `status` is 0 if there was no answer, `code` is the server's.

    `retry_after` are the seconds after which the server may be asked again; None if it named none.
    """

    def __init__(self, message: str, *, code: str = "", status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.status, self.retry_after = code, status, retry_after


class NotAuthorized(ClientError):
    """The key is missing, wrong or revoked (401)."""


class MissingRight(ClientError):
    """The key lacks a right or a namespace, or the memory is read-only (403)."""


class EntryNotFound(ClientError):
    """No live entry has the id (404)."""


class ClientConflict(ClientError):
    """Another entry has this content (409)."""


class InvalidRequest(ClientError):
    """The server refuses the arguments (400, 413, 422), or the client cannot send them (status 0)."""


class TooManyRequests(ClientError):
    """A quota is spent, or too many requests wait for the policy (429)."""


class ServerUnavailable(ClientError):
    """The server cannot be reached, is busy or closing, or its database is away (503)."""


_ERRORS: Mapping[int, type[ClientError]] = {
    **dict.fromkeys((400, 413, 422), InvalidRequest),
    401: NotAuthorized,
    403: MissingRight,
    409: ClientConflict,
    429: TooManyRequests,
    503: ServerUnavailable,
}


_adapter = cache(TypeAdapter)


@dataclass(frozen=True, slots=True)
class _Request:
    """Hold one request and the type of its answer.

    Attributes:
        verb: HTTP method.
        path: Path with its ids encoded.
        answer: Type of the answer's JSON.
        fields: Query of GET and DELETE, JSON body of others. Those that are None are left out.
        part: Field of the answer to return; None returns the whole answer.
        is_repeatable: Doing it twice leads to the same memory as doing it once.
    """

    verb: str
    path: str
    answer: type
    fields: Mapping[str, Any] = field(default_factory=dict)
    part: str | None = None
    is_repeatable: bool = True

    def arguments(self, http: httpx2.Client | httpx2.AsyncClient) -> dict[str, Any]:
        """Return the arguments of httpx's `request`. Raises `InvalidRequest` for values that are not JSON."""
        if http.is_closed:
            raise InvalidRequest("the client is closed: make another one")
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if self.verb in ("GET", "DELETE"):
            return {"method": self.verb, "url": self.path, "params": fields}
        try:
            body = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{self.verb} {self.path}: cannot be sent as JSON: {error}") from error
        headers = {"Content-Type": "application/json"}
        return {"method": self.verb, "url": self.path, "content": body, "headers": headers}

    def parse(self, response: httpx2.Response) -> Any:
        """Return the answer. Raises `ClientError` for a failure, and for an answer of something else."""
        if not response.is_success:
            fields = parse_json_or_none(response.content)  # None: of a proxy, not of memalpha
            code, message = "", f"the server answered {response.status_code}"
            if isinstance(fields, dict) and isinstance(fields.get("message"), str):
                code, message = str(fields.get("code", "")), fields["message"]
            if location := response.headers.get("Location"):
                message += f": a redirect to {location}, which is the address to give"
            wait = response.headers.get("Retry-After", "")
            retry_after = float(wait) if wait.isdecimal() else None
            error_class = EntryNotFound if code == "unknown_id" else _ERRORS.get(response.status_code, ClientError)
            if response.status_code == 404 and error_class is ClientError:
                url = response.url  # its host, without a password
                where = f"{self.verb} {url.path} of {url.netloc.decode()}"
                message += f": {where} is no route of a memalpha server: is its address right?"
            raise error_class(message, code=code, status=response.status_code, retry_after=retry_after)
        try:
            # Not `validate_json`, which refuses halves of surrogate pairs in metadata.
            value = _adapter(self.answer).validate_python(json.loads(response.content))
        except (ValueError, RecursionError) as error:
            message = f"{self.verb} {self.path}: the answer is not of a memalpha server of this version"
            raise ClientError(message, status=response.status_code) from error
        return value if self.part is None else getattr(value, self.part)

    def wait_or_raise(self, failure: ClientError | httpx2.TransportError, attempt: int, retries: int) -> float:
        """Return the seconds before the request is sent again, or raise the failure.

        A request that was refused before any work (429, no connection) is sent again whatever it is. After a 503, or
        with no answer, only one whose repetition changes nothing more: the first may have been done.

        Args:
            failure: Error of the server, or of the connection.
            attempt: Attempts so far.
            retries: Most attempts after the first.
        """
        is_local = isinstance(failure, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol)
        kinds = TooManyRequests | httpx2.ConnectError
        is_due = isinstance(failure, kinds | ServerUnavailable | httpx2.TransportError if self.is_repeatable else kinds)
        seconds = failure.retry_after if isinstance(failure, ClientError) else None
        if seconds is None:
            seconds = FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
        if is_due and not is_local and seconds <= MAX_WAIT and attempt <= retries:
            return seconds
        if isinstance(failure, ClientError):
            raise failure
        if is_local:
            raise InvalidRequest(f"the request cannot be sent: {failure}") from failure
        raise ServerUnavailable(f"no answer from the server: {failure or type(failure).__name__}") from failure


def _entry_path(id: str, route: str = "entries") -> str:
    """Return the path of an entry. Raises `InvalidRequest` for an id that no path can hold."""
    if not is_text(id) or not id:
        raise InvalidRequest(f"id {brief_repr(id)}: a text is needed")
    if id in (".", ".."):
        raise InvalidRequest(f"id {id!r}: is a folder in a path, so no request can name it")
    return f"/v1/{route}/{quote(id, safe='')}"


class _Client(Generic[Transport]):
    _http_client: Any

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        transport: Transport | None = None,
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
            ConfigError: The address is no http or https URL, the namespace is no text, or the key is empty or has
                characters that no header has.
        """
        parts = split_address(address) if is_text(address) else None
        if parts is None or parts.query or parts.fragment:  # not shown: it may hold a password
            raise ConfigError("address: one such as http://127.0.0.1:8765 is needed, with a path at most")
        if namespace is not None and not is_text(namespace):
            raise ConfigError(f"namespace: a text is needed, not {brief_repr(namespace)}")
        headers = {}
        if key is not None:
            if not (is_text(key) and key.strip() and key.isascii() and key.isprintable()):
                raise ConfigError("key: it is empty or has a character that no key has; copy it again")
            headers["Authorization"] = f"Bearer {key}"
        if namespace is not None:
            headers["Memalpha-Namespace"] = quote(namespace, safe="")
        self._http = self._http_client(base_url=address, headers=headers, timeout=timeout, transport=transport)
        self._retries = retries


class MemoryClient(_Client[httpx2.BaseTransport]):
    """Client of one namespace of a server. Threads may share it.

    Failures are subclasses of `ClientError`.
    """

    _http_client = httpx2.Client

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> MemoryClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def search(
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
        fields = {"query": query, "k": k, "category": category, "where": where, "as_of": as_of}
        return self._send(_Request("POST", "/v1/search", schemas.SearchResponse, fields, "hits"))

    def ask(self, question: str, k: int = 8, *, where: Mapping[str, Any] | None = None) -> schemas.AskResponse:
        """Return an answer from the memory alone, with the entries that it was read from.

        Args:
            question: The question.
            k: Number of entries that the reader sees.
            where: Only entries that pass.

        Raises:
            ClientError: The request failed.
        """
        return self._send(
            _Request("POST", "/v1/ask", schemas.AskResponse, {"question": question, "k": k, "where": where})
        )

    def read(
        self,
        text: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        timestamp: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> schemas.ReadResponse:
        """Let the writer read a text or chat messages, and return every call that it made.

        It is not sent again once the server may have begun: the writer would read the text twice.

        Args:
            text: The text, or chat messages with role, content and, if known, name and timestamp.
            messages: The chat messages, in place of `text`.
            timestamp: ISO date of the text.
            source: Name of the text.
            metadata: Set on every entry that is written.

        Raises:
            ClientError: The request failed.
        """
        if messages is None and isinstance(text, list | tuple):  # as `MemoryAgent.read` takes them
            text, messages = None, text
        fields = {"text": text, "messages": messages, "timestamp": timestamp, "source": source, "metadata": metadata}
        return self._send(_Request("POST", "/v1/read", schemas.ReadResponse, fields, is_repeatable=False))

    def insert(
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
        """Store a fact. What the memory states already, with the same metadata, is not stored again.

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
        fields = {"category": category, "content": content, "timestamp": timestamp, "importance": importance}
        fields |= {"metadata": metadata, "expires": expires, "source": source}
        return self._send(_Request("POST", "/v1/entries", MemoryEntry, fields))

    def update(
        self,
        id: str,
        content: str | None = None,
        *,
        timestamp: str | None = None,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires: str | None = None,
        source: str | None = None,
    ) -> MemoryEntry:
        """Change an entry; its id and history stay. New content clears an omitted timestamp.

        Args:
            id: Id of a live entry.
            content: New content; None keeps it, also what somebody else changed meanwhile.
            timestamp: ISO date of the fact; "" clears it.
            importance: From 0 to 1.
            metadata: JSON values.
            expires: ISO time at which the entry expires; "" clears it.
            source: Where it comes from.

        Raises:
            ClientError: The request failed.
        """
        fields = {"content": content, "timestamp": timestamp, "importance": importance, "metadata": metadata}
        fields |= {"expires": expires, "source": source}
        return self._send(_Request("PATCH", _entry_path(id), MemoryEntry, fields, is_repeatable=False))

    def delete(self, id: str) -> MemoryEntry:
        """Delete an entry and return its last version; its history stays."""
        return self._send(_Request("DELETE", _entry_path(id), MemoryEntry, is_repeatable=False))

    def erase(self, id: str) -> schemas.EraseResponse:
        """Erase an entry for good, live or deleted, with all of its past."""
        return self._send(_Request("DELETE", _entry_path(id, "history"), schemas.EraseResponse, is_repeatable=False))

    def erase_where(self, where: Mapping[str, Any]) -> schemas.EraseResponse:
        """Erase all entries for good of which any version, live or past, passes a filter."""
        return self._send(_Request("POST", "/v1/erase", schemas.EraseResponse, {"where": where}, is_repeatable=False))

    def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """Return an entry of the current or a past state."""
        return self._send(_Request("GET", _entry_path(id), MemoryEntry, {"as_of": as_of}))

    def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first."""
        return self._send(_Request("GET", _entry_path(id, "history"), schemas.HistoryResponse, part="versions"))

    def page(
        self, category: str | None = None, *, limit: int = 50, after: str | None = None, as_of: int | str | None = None
    ) -> schemas.EntryPage:
        """Return a page of entries, oldest first, and the core memory.

        Args:
            category: Only this category.
            limit: Number of entries, at most 1,000.
            after: `next` of the page before.
            as_of: A past state.

        Raises:
            ClientError: The request failed.
        """
        fields = {"category": category, "limit": limit, "after": after, "as_of": as_of}
        return self._send(_Request("GET", "/v1/entries", schemas.EntryPage, fields))

    def core(self, *, as_of: int | str | None = None) -> str:
        """Return the core memory."""
        return self._send(_Request("GET", "/v1/core", schemas.CoreResponse, {"as_of": as_of}, "content"))

    def set_core(self, content: str) -> str:
        """Replace the core memory and return it as stored."""
        return self._send(_Request("PUT", "/v1/core", schemas.CoreResponse, {"content": content}, "content"))

    def log(self, after: int = 0, *, limit: int = 100) -> list[schemas.LoggedOperation]:
        """Return the operations after a position of the log."""
        fields = {"after": after, "limit": limit}
        return self._send(_Request("GET", "/v1/log", schemas.LogResponse, fields, "operations"))

    def health(self) -> schemas.HealthResponse:
        """Check that the server and its store answer. Raises `ServerUnavailable` if they do not."""
        return self._send(_Request("GET", "/v1/health", schemas.HealthResponse))

    def entries(self, category: str | None = None, *, as_of: int | str | None = None) -> Iterator[MemoryEntry]:
        """Iterate over all entries, oldest first, page by page."""
        after = None
        while True:
            page = self.page(category, limit=200, after=after, as_of=as_of)
            yield from page.entries
            if (after := page.next) is None:
                return

    def _send(self, request: _Request) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                return request.parse(self._http.request(**request.arguments(self._http)))
            except (ClientError, httpx2.TransportError) as failure:
                seconds = request.wait_or_raise(failure, attempt, self._retries)
            sleep(seconds)


def _async(
    method: Callable[Concatenate[MemoryClient, P], T],
) -> Callable[Concatenate[AsyncMemoryClient, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncMemoryClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast(Any, method)(self, *args, **kwargs)  # what the asynchronous `_send` returns

    return call


class AsyncMemoryClient(_Client[httpx2.AsyncBaseTransport]):
    """Client of one namespace of a server. Tasks of one event loop may share it.

    Methods are those of `MemoryClient`, to be awaited; `entries` is for `async for`. Failures are subclasses of
    `ClientError`.
    """

    _http_client = httpx2.AsyncClient

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncMemoryClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    search = _async(MemoryClient.search)
    ask = _async(MemoryClient.ask)
    read = _async(MemoryClient.read)
    insert = _async(MemoryClient.insert)
    update = _async(MemoryClient.update)
    delete = _async(MemoryClient.delete)
    erase = _async(MemoryClient.erase)
    erase_where = _async(MemoryClient.erase_where)
    get = _async(MemoryClient.get)
    history = _async(MemoryClient.history)
    page = _async(MemoryClient.page)
    core = _async(MemoryClient.core)
    set_core = _async(MemoryClient.set_core)
    log = _async(MemoryClient.log)
    health = _async(MemoryClient.health)

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

    async def _send(self, request: _Request) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                return request.parse(await self._http.request(**request.arguments(self._http)))
            except (ClientError, httpx2.TransportError) as failure:
                seconds = request.wait_or_raise(failure, attempt, self._retries)
            await async_sleep(seconds)
