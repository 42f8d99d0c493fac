"""HTTP middleware of the server: host, origin and token checks, body size limit, JSON error responses."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from memalpha.errors import ConfigError, install_command
from memalpha.integrations.server.schemas import MAX_BODY, ServiceError
from memalpha.store.io.jsonl import to_json

try:
    from fastapi.responses import JSONResponse
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    if error.name not in ("fastapi", "starlette"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from error

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEALTH = "/v1/health"


class SurrogateJSONResponse(JSONResponse):
    """JSON response that escapes lone surrogates, which metadata may contain."""

    def render(self, content: Any) -> bytes:
        return to_json(content, allow_nan=False, separators=(",", ":")).encode()


def error_response(error: ServiceError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response `{code, message}` of a failed request."""
    return SurrogateJSONResponse({"code": error.code, "message": error.message}, error.status, dict(headers or {}))


class RequestGuard:
    """ASGI middleware that checks host, origin, token and body size of every request, those to /mcp included.

    On a loopback address a web page could point its own name at this server (DNS rebinding). There Host must be a
    loopback name, and Origin must equal it. On other addresses the token keeps foreign pages out.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, local: bool) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._local = local

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
        headers = Headers(scope=scope)
        try:
            self._check(headers, scope["path"])
            receive = await _read_body(MAX_BODY, headers, receive)
        except ServiceError as error:
            challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
            await error_response(error, challenge)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, path: str) -> None:
        if self._local:
            host, origin = headers.get("host", ""), headers.get("origin")
            if _hostname(f"//{host}") not in LOOPBACK:
                raise ServiceError("foreign_host", "this server answers to localhost alone", 421)
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                raise ServiceError("foreign_origin", "pages of another origin are not let in", 403)
        if self._token is not None and path != HEALTH:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
                raise ServiceError("unauthorized", "a token is needed: Authorization: Bearer TOKEN", 401)


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _read_body(limit: int, headers: Headers, receive: Receive) -> Receive:
    """Read the whole body and return a `receive` that gives it again.

    Args:
        limit: Maximum size in bytes.
        headers: Headers of the request; a content-length over the limit is refused unread.
        receive: Source of the request's messages.

    Raises:
        ServiceError: the body is over the limit.
    """
    too_large = ServiceError("too_large", f"more than {limit} bytes", 413)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body, last = b"", await receive()
    while last["type"] == "http.request":
        body += last.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not last.get("more_body", False):
            break
        last = await receive()
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    if last["type"] != "http.request":
        messages = [last]

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay
