"""HTTP middleware of the server: checks of host, origin, token and keys, limits, gone clients, JSON error responses."""

from __future__ import annotations

import asyncio
import base64
import hmac
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from memalpha.errors import ConfigError, install_command
from memalpha.integrations.server.access import NAMESPACE_HEADER, SCOPE, Access, choose_namespace
from memalpha.integrations.server.availability import log
from memalpha.integrations.server.keys import Key, KeyFile
from memalpha.integrations.server.request_log import REQUEST
from memalpha.integrations.server.schemas import MAX_BODY, ServiceError
from memalpha.store.io.jsonl import to_json

try:
    from fastapi.responses import JSONResponse
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    if error.name not in ("fastapi", "starlette"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from None

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEALTH = "/v1/health"
PAGE = "/"
"""The page for browsers. They ask for its key themselves (HTTP Basic), which opens no other path."""
LIVE, READY = "/health/live", "/health/ready"
OPEN = frozenset({HEALTH, LIVE, READY})
"""Paths that need no token."""
BODY_SECONDS = 30.0
"""Time for the body of a request."""
MAX_BODIES = 64 * MAX_BODY
"""Maximum bytes of all bodies that are held at one time."""
MAX_DISCARDED, DISCARD_SECONDS = 4 * MAX_BODY, 2.0
"""What is read of a body that is refused, and for how long."""
_NOT_IN_HOST = frozenset("@/?#\\")  # they part a URL, and a Host is no URL
RETRY_SECONDS = 5
"""After how long a client may ask again that was told to wait."""


class SurrogateJSONResponse(JSONResponse):
    """JSON response that escapes lone surrogates, which metadata may contain."""

    def render(self, content: Any) -> bytes:
        return to_json(content, allow_nan=False, separators=(",", ":")).encode()


def error_response(error: ServiceError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response `{code, message}` of a failed request."""
    sent = dict(headers or {})
    if error.status in (429, 503):
        sent["Retry-After"] = str(error.retry_after or RETRY_SECONDS)
    return SurrogateJSONResponse({"code": error.code, "message": error.message}, error.status, sent)


class RequestGuard:
    """ASGI middleware that checks host, origin, key, namespace and body of every request, those to /mcp included.

    Work for a client that has gone is dropped, unless it has begun to write.

    On a loopback address a web page could point its own name at this server (DNS rebinding). There Host must be a
    loopback name or one of `hosts`, and Origin must equal it. On other addresses the token keeps foreign pages out;
    with `hosts` Host is checked there, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        keys: KeyFile | None,
        namespace: str,
        local: bool,
        hosts: Collection[str] = (),
        find_keys: Callable[[], KeyFile | None] | None = None,
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            token: The single token, with all rights on `namespace`; None is none.
            keys: Keys with their rights, or None. Without a token and without keys, every request has all rights.
            namespace: Namespace of the token.
            local: Accept only requests for a loopback host, or one of `hosts`.
            hosts: Further names of this server, in lower case and without port, as a proxy in front passes them on.
            find_keys: Called for each request while there are no keys, which may be made while the server runs.
        """
        self._app = app
        self._token = None if token is None else token.encode()
        self._keys, self._namespace = keys, namespace
        self._hosts = frozenset({*LOOPBACK, *hosts}) if local or hosts else None
        self._find_keys = find_keys
        self._body_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body read, or answer with an error.

        Args:
            scope: ASGI scope of the connection; other than "http" it is passed on.
            receive: Source of the request's messages.
            send: Sink of the response's messages.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, record = Headers(scope=scope), scope[REQUEST]
        try:
            self._check_origin(headers)
            access = None if scope["path"] in OPEN else self._authorize(headers, for_page=scope["path"] == PAGE)
            async with self._body(headers, receive) as (replay, size):
                if access is not None:
                    access = replace(access, body_size=size)
                    record.note_access(access)
                    scope = {**scope, SCOPE: access}
                try:
                    await self._run(scope, replay, receive, send)
                finally:
                    record.note_route(scope)
        except ServiceError as error:
            scheme = 'Basic realm="memalpha", charset="UTF-8"' if scope["path"] == PAGE else "Bearer"
            challenge = {"WWW-Authenticate": scheme} if error.status == 401 else None
            await error_response(error, challenge)(scope, receive, send)

    async def _run(self, scope: Scope, replay: Receive, receive: Receive, send: Send) -> None:
        """Run the application; cancel it if the client leaves before it has its answer."""
        if not scope["path"].startswith("/v1/"):  # MCP's transport watches for that itself
            await self._app(scope, replay, send)
            return
        answered = False

        async def send_and_note(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def client_left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work, leaving = (
            asyncio.ensure_future(self._app(scope, replay, send_and_note)),
            asyncio.create_task(client_left()),
        )
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answered or work.done():
                await work
        finally:
            for task in (work, leaving):
                task.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)

    def _check_origin(self, headers: Headers) -> None:
        if self._hosts is not None:
            host, origin = headers.get("host", ""), headers.get("origin")
            if _NOT_IN_HOST.intersection(host) or hostname(f"//{host}") not in self._hosts:
                how = "this server answers to localhost and the names of --allow-host alone"
                raise ServiceError("foreign_host", how, 421)
            if headers.get("sec-fetch-site") == "cross-site":
                raise ServiceError("foreign_origin", "pages of another site are not let in", 403)
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                raise ServiceError("foreign_origin", "pages of another origin are not let in", 403)

    def _authorize(self, headers: Headers, *, for_page: bool) -> Access:
        """Return what the request may do. Raises `ServiceError` without a valid token or key.

        A browser sends what a person typed with every request to this server, also where another site made it ask.
        So Basic is taken for the page alone, which checks that its forms come from itself.
        """
        for name in ("Authorization", NAMESPACE_HEADER):
            if len(headers.getlist(name)) > 1:  # a proxy in front may have checked another one than is read here
                raise ServiceError("invalid_arguments", f"{name}: the header is sent more than once", 400)
        if self._keys is None and self._find_keys is not None:
            try:
                self._keys = self._find_keys()
            except ConfigError as error:
                log.error("%s", error)
                raise ServiceError("store_error", "the keys cannot be read; the server's log says why", 503) from error
        key, namespace = None, headers.get(NAMESPACE_HEADER)
        if self._token is not None or self._keys is not None:
            scheme, _, credential = headers.get("authorization", "").partition(" ")
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

    @asynccontextmanager
    async def _body(self, headers: Headers, receive: Receive) -> AsyncIterator[tuple[Receive, int]]:
        """Read the whole body and yield a `receive` that gives it again, and its size in bytes.

        Raises:
            ServiceError: The body is too large or too slow, or too many others are held.
        """
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    last = await self._read_body(headers, receive, body)
            except TimeoutError:
                raise ServiceError("slow_body", f"the body did not come within {BODY_SECONDS:g} s", 408) from None
            messages: list[Message] = [last]
            if last["type"] == "http.request":
                messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]

            async def replay() -> Message:
                return messages.pop(0) if messages else await receive()

            yield replay, len(body)
        finally:
            self._body_bytes -= len(body)

    async def _read_body(self, headers: Headers, receive: Receive, body: bytearray) -> Message:
        """Read into `body` and return the last message."""
        too_large = ServiceError("too_large", f"more than {MAX_BODY} bytes", 413)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_BODY:
            if "expect" not in headers:
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
                break
        return message


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


def hostname(url: str) -> str | None:
    """Return the host of a URL in lower case and without port; None if it has none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
