"""Who may ask what of a server: checks of host, origin, token, key, namespace and body of every request."""

from __future__ import annotations

import asyncio
import base64
import hmac
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from memalpha.errors import ConfigError
from memalpha.integrations.server.keys import Key, KeyFile, Right
from memalpha.integrations.server.schemas import MAX_BODY, MAX_LABEL, ServiceError, check_text
from memalpha.integrations.server.service import MemoryService, log
from memalpha.store.trust.quarantine import WRITER

if TYPE_CHECKING:
    from starlette.types import Receive

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BODY_SECONDS = 30.0
"""Time for the body of a request."""
MAX_BODIES = 64 * MAX_BODY
"""Maximum bytes of all bodies that are held at one time."""
MAX_DISCARDED, DISCARD_SECONDS = 4 * MAX_BODY, 2.0
"""What is read of a body that is refused, and for how long."""
_NOT_IN_HOST = frozenset("@/?#\\")  # they part a URL, and a Host is no URL
NAMESPACE_HEADER = "Memalpha-Namespace"
"""Header with the namespace of a request, percent-encoded as in a URL."""
SCOPE = "memalpha.access"
"""Name of a request's `Access` in its ASGI scope."""


@dataclass(slots=True)
class Access:
    """Rights of one request, and the namespace that it is for.

    Attributes:
        namespace: Namespace of the request.
        key: Its key; None is the server's single token, or no token on a loopback address, with all rights.
        keys: File of the key, whose quota writes count against.
        body_size: Bytes of the request's body.
    """

    namespace: str
    key: Key | None = None
    keys: KeyFile | None = None
    body_size: int = 0

    def allows(self, right: Right) -> bool:
        """Return True if the request has the right."""
        return self.key is None or self.key.allows(right)

    def check(self, right: Right) -> None:
        """Count a request that uses `right`.

        Raises:
            ServiceError: The key lacks the right (403), or its bytes of the day are spent (429).
        """
        if not self.allows(right):
            raise ServiceError("forbidden", f"this key lacks the right {right!r}", 403)
        if self.key is not None and self.keys is not None and right in ("write", "read-with-model"):
            self.keys.count_bytes(self.key, self.body_size)


def choose_namespace(header: str | None, key: Key | None, served: str) -> str:
    """Return the namespace of a request.

    Args:
        header: Value of `NAMESPACE_HEADER`; without one, a key of one namespace, or the token, has its own.
        key: The request's key; None is the token.
        served: The token's namespace.

    Raises:
        ServiceError: The name is missing or invalid (422), or not the key's (403), whether it exists or not.
    """
    if header is None:
        name = served if key is None else key.only_namespace
        if name is None:
            raise ServiceError("invalid_arguments", f"this key has several namespaces: send {NAMESPACE_HEADER}: NAME")
        return name
    try:
        name = check_text(unquote(header, errors="strict"))
    except ValueError as error:
        raise ServiceError("invalid_arguments", f"{NAMESPACE_HEADER}: no name in percent-encoded UTF-8") from error
    if not 1 <= len(name) <= MAX_LABEL:
        raise ServiceError("invalid_arguments", f"{NAMESPACE_HEADER}: 1 to {MAX_LABEL} characters are needed")
    if not (name == served if key is None else key.covers(name)):
        raise ServiceError("forbidden", "this key has no such namespace", 403)
    return name


def granted(service: MemoryService, access: Access, right: Right) -> MemoryService:
    """Return the memory of a request's namespace.

    Every route gets its memory here, so no route can forget to ask for a right.

    Args:
        service: Memory of the namespace that the server was started with.
        access: Rights of the request.
        right: The right that the request uses.

    Raises:
        ServiceError: The request lacks the right, or its quota is spent.
    """
    access.check(right)
    WRITER.set({} if access.key is None else {"key": access.key.name})  # of this request's task
    return service.namespace(access.namespace)


class RequestGuard:
    """Checks of every request, those to /mcp included.

    On a loopback address a web page could point its own name at this server (DNS rebinding). There Host must be a
    loopback name or one of `hosts`, and Origin must equal it. On other addresses the token keeps foreign pages out;
    with `hosts` Host is checked there, too.
    """

    def __init__(
        self,
        *,
        token: str | None,
        keys: KeyFile | None,
        namespace: str,
        local: bool,
        hosts: Collection[str],
        find_keys: Callable[[], KeyFile | None] | None,
    ) -> None:
        """Set what is let in.

        Args:
            token: The single token, with all rights on `namespace`; None is none.
            keys: Keys with their rights, or None. Without a token and without keys, every request has all rights.
            namespace: Namespace of the token.
            local: Accept only requests for a loopback host, or one of `hosts`.
            hosts: Further names of this server, in lower case and without port, as a proxy in front passes them on.
            find_keys: Called for each request while there are no keys, which may be made while the server runs.
        """
        self._token = None if token is None else token.encode()
        self._keys, self._namespace = keys, namespace
        self.other_hosts = frozenset(hosts)
        self._hosts = self.other_hosts.union(LOOPBACK) if local or hosts else None
        self._find_keys = find_keys
        self._body_bytes = 0

    def close(self) -> None:
        """Close the file of the keys, if there is one."""
        if self._keys is not None:
            self._keys.close()

    def check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `ServiceError` if the request is for another host, or was made by a page of another site."""
        if self._hosts is None:
            return
        host, origin = _text(headers, b"host"), headers.get(b"origin")
        if _NOT_IN_HOST.intersection(host) or _hostname(host) not in self._hosts:
            how = "this server answers to localhost and the names of --allow-host alone"
            raise ServiceError("foreign_host", how, 421)
        if headers.get(b"sec-fetch-site") == b"cross-site":
            raise ServiceError("foreign_origin", "pages of another site are not let in", 403)
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise ServiceError("foreign_origin", "pages of another origin are not let in", 403)

    def authorize(self, headers: Mapping[bytes, bytes], names: list[bytes], *, for_page: bool) -> Access:
        """Return what the request may do. Raises `ServiceError` without a valid token or key.

        A browser sends what a person typed with every request to this server, also where another site made it ask.
        So Basic is taken for the page alone, which checks that its forms come from itself.

        Args:
            headers: Headers by lower-case name.
            names: Names of all headers, as often as each was sent.
            for_page: The request is for the page.
        """
        for name in ("Authorization", NAMESPACE_HEADER):
            if names.count(name.lower().encode()) > 1:  # a proxy in front may have checked another one than is read
                raise ServiceError("invalid_arguments", f"{name}: the header is sent more than once", 400)
        if self._keys is None and self._find_keys is not None:
            try:
                self._keys = self._find_keys()
            except ConfigError as error:
                log.error("%s", error)
                raise ServiceError("store_error", "the keys cannot be read; the server's log says why", 503) from error
        key, header = None, NAMESPACE_HEADER.lower().encode()
        namespace = _text(headers, header) if header in headers else None
        if self._token is not None or self._keys is not None:
            scheme, _, credential = _text(headers, b"authorization").partition(" ")
            if for_page and scheme.lower() == "basic":
                name, credential = _basic_credentials(credential)
                namespace = quote(name) or namespace
            else:
                credential = credential.strip() if scheme.lower() == "bearer" else ""
            is_token = self._token is not None and hmac.compare_digest(credential.encode(), self._token)
            if not is_token:
                key = self._authenticate(credential)
                if key is None or self._keys is None:
                    how = "Authorization: Bearer TOKEN"
                    if for_page:
                        how = "the password is the token or a key, the user name the namespace (or empty)"
                    raise ServiceError("unauthorized", f"a token is needed: {how}", 401)
                self._keys.count_request(key)
        return Access(choose_namespace(namespace, key, self._namespace), key, self._keys)

    def _authenticate(self, credential: str) -> Key | None:
        if self._keys is None:
            return None
        try:
            key = self._keys.authenticate(credential)
        except sqlite3.Error as error:
            log.error("%s cannot be read", self._keys.path, exc_info=error)
            raise ServiceError("store_error", "the keys cannot be read; the server's log says why", 503) from error
        if self._keys.is_flush_due:
            asyncio.get_running_loop().run_in_executor(None, self._flush)
        return key

    def _flush(self) -> None:
        assert self._keys is not None
        try:
            self._keys.flush()
        except sqlite3.Error as error:
            log.error("%s cannot be written", self._keys.path, exc_info=error)

    async def read_body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client has gone. The caller gives it back to `forget_body`.

        Raises:
            ServiceError: The body is too large or too slow, or too many others are held.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                is_whole = await self._read_body(headers, receive, body)
        except BaseException as error:
            self.forget_body(body)
            if isinstance(error, TimeoutError):
                raise ServiceError("slow_body", f"the body did not come within {BODY_SECONDS:g} s", 408) from None
            raise
        if is_whole:
            return bytes(body)
        self.forget_body(body)
        return None

    def forget_body(self, body: bytes | bytearray) -> None:
        """Count the bytes of a body as free."""
        self._body_bytes -= len(body)

    async def _read_body(self, headers: Mapping[bytes, bytes], receive: Receive, body: bytearray) -> bool:
        """Read into `body` and return True if it is whole."""
        too_large = ServiceError("too_large", f"more than {MAX_BODY} bytes", 413)
        declared = _text(headers, b"content-length")
        if declared.isdecimal() and int(declared) > MAX_BODY:
            if b"expect" not in headers:
                await _discard(receive)
            raise too_large
        while (message := await receive())["type"] == "http.request":
            part = message.get("body", b"")
            if len(body) + len(part) > MAX_BODY:
                if message.get("more_body", False):
                    await _discard(receive)
                raise too_large
            if self._body_bytes + len(part) > MAX_BODIES:
                raise ServiceError("busy", "too many large requests at one time; try again later", 503)
            body += part
            self._body_bytes += len(part)
            if not message.get("more_body", False):
                return True
        return False


async def _discard(receive: Receive) -> None:
    """Read on for a while what is refused: a proxy that is still sending as the connection closes answers 502."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                size += len(message.get("body", b""))
                if size > MAX_DISCARDED:
                    return


def _basic_credentials(text: str) -> tuple[str, str]:
    """Return name and password of HTTP Basic (RFC 7617); empty ones for what cannot be read."""
    try:
        name, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


@lru_cache(1000)
def _hostname(host: str) -> str | None:
    """Return a Host in lower case and without port; None if it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
