"""Requests, results and errors that both clients share, and the rule of what is sent again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from memalpha.errors import ConfigError, MemalphaError, install_command

try:
    import httpx2
except ModuleNotFoundError as error:
    if error.name != "httpx2":
        raise
    raise ConfigError(f"the client needs httpx2: {install_command('client')}") from error

T = TypeVar("T")

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
    """The server refuses the arguments (400, 413, 422)."""


class TooManyRequests(ClientError):
    """A quota is spent, or too many requests wait for the policy (429)."""


class ServerUnavailable(ClientError):
    """The server cannot be reached, is busy or closing, or its database is away (503)."""


_ERRORS: Mapping[int, type[ClientError]] = {
    400: InvalidRequest,
    401: NotAuthorized,
    403: MissingRight,
    404: EntryNotFound,
    409: ClientConflict,
    413: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
    503: ServerUnavailable,
}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the type of its answer.

    Attributes:
        method: Method.
        path: Path with its ids encoded.
        answer: Adapter of the answer's type.
        body: JSON body, None for none. Fields that are None are left out.
        query: Parameters; those that are None are left out.
        is_repeatable: Doing it twice leads to the same memory as doing it once.
    """

    method: str
    path: str
    answer: TypeAdapter[T]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    is_repeatable: bool = True

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of httpx's `request`."""
        query = {name: value for name, value in self.query.items() if value is not None}
        arguments: dict[str, Any] = {"method": self.method, "url": self.path, "params": query}
        if self.body is not None:
            arguments["json"] = {name: value for name, value in self.body.items() if value is not None}
        return arguments

    def parse(self, response: httpx2.Response) -> T:
        """Return the answer. Raises `ClientError` for a failure, and for an answer of something else."""
        if not response.is_success:
            raise to_error(response)
        try:
            return self.answer.validate_json(response.content)
        except ValidationError as error:
            message = f"{self.method} {self.path}: the answer is not of a memalpha server of this version"
            raise ClientError(message, status=response.status_code) from error


def entry_path(id: str, *, history: bool = False) -> str:
    """Return the path of an entry, or of its history."""
    return f"/v1/{'history' if history else 'entries'}/{quote(id, safe='')}"


def to_error(response: httpx2.Response) -> ClientError:
    """Return the error of an answer that reports a failure."""
    code, message = "", f"the server answered {response.status_code}"
    try:
        fields = response.json()
    except ValueError:  # of a proxy, not of memalpha
        fields = None
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        code, message = str(fields.get("code", "")), fields["message"]
    kind = _ERRORS.get(response.status_code, ClientError)
    return kind(message, code=code, status=response.status_code, retry_after=_retry_after(response))


def to_unavailable(error: httpx2.TransportError) -> ServerUnavailable:
    """Return the error of a request without an answer."""
    return ServerUnavailable(f"no answer from the server: {error or type(error).__name__}")


def seconds_to_wait(call: Call[Any], failure: Exception, attempt: int) -> float | None:
    """Return after how many seconds a failed request is sent again; None is not at all.

    A request that was refused before any work (429, no connection) is sent again whatever it is. After a 503, or with
    no answer, only one whose repetition changes nothing more: the first may have been done.

    Args:
        call: The request.
        failure: Error of the server, or of the connection.
        attempt: Attempts so far.
    """
    retry_after = failure.retry_after if isinstance(failure, ClientError) else None
    if isinstance(failure, TooManyRequests | httpx2.ConnectError):
        is_due = True
    else:
        is_due = call.is_repeatable and isinstance(failure, ServerUnavailable | httpx2.TransportError)
    seconds = retry_after if retry_after is not None else FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
    return seconds if is_due and seconds <= MAX_WAIT else None


def client_options(
    key: str | None, namespace: str | None, timeout: float, transport: Any, address: str
) -> dict[str, Any]:
    """Return the arguments of an httpx client.

    Args:
        key: API key or token; None sends none.
        namespace: Namespace of all requests; None is the key's only one.
        timeout: Seconds without a byte after which a request fails.
        transport: Transport of httpx, None is the network.
        address: Address of the server.

    Raises:
        ConfigError: The address is no http or https URL, or the key has other characters than those of a header.
    """
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"{address!r:.80}: an address such as http://127.0.0.1:8765 is needed")
    headers = {}
    if key is not None:
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("key: it has a character that no key has; copy it again")
        headers["Authorization"] = f"Bearer {key}"
    if namespace is not None:
        headers["Memalpha-Namespace"] = quote(namespace, safe="")
    return {"base_url": address, "headers": headers, "timeout": timeout, "transport": transport}


def _retry_after(response: httpx2.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None
