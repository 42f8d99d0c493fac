"""What a server tells its operator: one JSON line a request, and counts for Prometheus at /metrics."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalpha.errors import ConfigError, install_command
from memalpha.integrations.server.access import SCOPE, Access
from memalpha.integrations.server.tracing import request_span

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        ProcessCollector,
        generate_latest,
    )
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    if error.name not in ("prometheus_client", "starlette"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from None

METRICS = "/metrics"
REQUEST = "memalpha.request"
"""Name of a request's `RequestRecord` in its ASGI scope."""
REQUEST_ID_HEADER = "X-Request-Id"
REFUSED, UNKNOWN = "(refused)", "(unknown)"
"""Routes of requests that the guard refused, and of paths that are none of the server's: labels stay few."""
CLIENT_CLOSED = 499
"""Status of a request whose client left before its answer, as in the logs of nginx."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_PATH = 300
"""Characters of a path in the log."""
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_log = logging.getLogger("memalpha.requests")


@dataclass(slots=True)
class RequestRecord:
    """The record of a request so far.

    Attributes:
        id: The client's `REQUEST_ID_HEADER` if it is short and plain, else a random one; the answer has it, too.
        route: Template of the path, as in `/v1/entries/{id}`.
        key: Name of its key; None is the token, or none.
        namespace: Namespace that it is for.
        received: Bytes of its body.
        sent: Bytes of the answer's body.
        status: Status of the answer.
    """

    id: str
    route: str = REFUSED
    key: str | None = None
    namespace: str | None = None
    received: int = 0
    sent: int = 0
    status: int = CLIENT_CLOSED

    def note_access(self, access: Access) -> None:
        """Note who asks, and for what."""
        self.key = None if access.key is None else access.key.name
        self.namespace, self.received = access.namespace, access.body_size

    def note_route(self, scope: Scope) -> None:
        """Note the route that answered, from the scope that the router has filled in."""
        path: str = scope["path"]
        if path == "/mcp" or path.startswith("/mcp/"):
            self.route = "/mcp"
        elif (template := getattr(scope.get("route"), "path", None)) is not None:
            self.route = template
        elif "endpoint" in scope and not scope.get("path_params"):
            self.route = path
        else:
            self.route = UNKNOWN


class RequestMetrics:
    """Counts and times of a server's requests."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("memalpha_requests", "Answered requests.", labels, registry=self.registry)
        self._seconds = Histogram(
            "memalpha_request_seconds", "Time of a request to the last byte.", ("route",), registry=self.registry
        )
        self.running = Gauge("memalpha_requests_running", "Requests without an answer yet.", registry=self.registry)
        ProcessCollector(registry=self.registry)

    def count(self, method: str, record: RequestRecord, seconds: float) -> None:
        """Count a request that has ended.

        Args:
            method: HTTP method; one that is none of `METHODS` counts as "other".
            record: Its record.
            seconds: Seconds to the last byte of its answer.
        """
        name = method if method in METHODS else "other"
        self._requests.labels(name, record.route, str(record.status)).inc()
        self._seconds.labels(record.route).observe(seconds)

    async def respond(self, request: Request) -> Response:
        """Answer /metrics, for the token and for keys with the right `admin`."""
        access: Access = request.scope[SCOPE]
        access.check("admin")
        return Response(
            generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"}
        )


class RequestRecorder:
    """ASGI middleware that counts and logs every request, those that the guard refuses included."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics, log: bool) -> None:
        """Record the requests of an application.

        Args:
            app: The application.
            metrics: Where they are counted.
            log: Also write a line for each to the logger `memalpha.requests`.
        """
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and record how it ended.

        Args:
            scope: ASGI scope of the connection; other than "http" it is passed on.
            receive: Source of the request's messages.
            send: Sink of the response's messages.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sent_id = headers.get(REQUEST_ID_HEADER, "")
        record = RequestRecord(sent_id if _REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(8))
        started = time.perf_counter()

        async def note_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                named = (REQUEST_ID_HEADER.lower().encode(), record.id.encode())
                message = {**message, "headers": [*message.get("headers", ()), named]}
            elif message["type"] == "http.response.body":
                record.sent += len(message.get("body", b""))
            await send(message)

        try:
            with self._metrics.running.track_inprogress(), request_span(scope["method"], headers) as span:
                try:
                    await self._app({**scope, REQUEST: record}, receive, note_and_send)
                finally:
                    _describe(span, scope, record)
        except Exception:
            record.status = 500  # answered further out
            raise
        finally:
            seconds = time.perf_counter() - started
            self._metrics.count(scope["method"], record, seconds)
            if self._log:
                _log.info("%s", _line(scope, record, seconds))


def _describe(span: Any, scope: Scope, record: RequestRecord) -> None:
    """Name a request's span and set its attributes, by the semantic conventions of HTTP where they have a name."""
    if not span.is_recording():
        return
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    span.update_name(f"{method} {record.route}")
    values = {
        "http.request.method": method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "memalpha.request_id": record.id,
        "memalpha.key": record.key,
        "memalpha.namespace": record.namespace,
    }
    span.set_attributes({name: value for name, value in values.items() if value is not None})


def log_to_stderr() -> None:
    """Write the lines of `memalpha.requests` to stderr as they are, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers, _log.propagate = [handler], False
    _log.setLevel(logging.INFO)


def _line(scope: Scope, record: RequestRecord, seconds: float) -> str:
    """Return the log line. It has no query and no header: they hold what people ask, and keys."""
    values: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": record.id,
        "method": scope["method"],
        "path": scope["path"][:MAX_PATH],
        "route": record.route,
        "status": record.status,
        "ms": round(1000 * seconds, 1),
        "key": record.key,
        "namespace": record.namespace,
        "received": record.received,
        "sent": record.sent,
    }
    return json.dumps(values)  # ASCII: control characters of a hostile path are escaped
