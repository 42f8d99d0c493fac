"""What a server tells its operator: a JSON line a request, counts for Prometheus, and spans of OpenTelemetry.

Without a tracer provider in the process there are no spans. `start_tracing` sets one up that sends spans by OTLP,
configured by the standard variables (`OTEL_*`). One span is for each request, and within it one for each call of the
store and of the model. Spans name routes, keys, namespaces and tools; what people ask and what is stored is not in
them, nor in the log.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from memalpha.errors import required_packages
from memalpha.store.backends.base import deadline

with required_packages("serving", "opentelemetry", "prometheus_client", extra="serve"):
    from opentelemetry import propagate, trace
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

T = TypeVar("T")

_NAME = "memalpha"
REQUEST_ID_HEADER = b"x-request-id"
REFUSED, UNKNOWN = "(refused)", "(unknown)"
"""Routes of requests that the guard refused, and of paths that are none of the server's: labels stay few."""
CLIENT_CLOSED = 499
"""Status of a request whose client left before its answer, as in the logs of nginx."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_PATH = 300
"""Characters of a path in the log."""
_REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")
_QUIET: Any = {"record_exception": False, "set_status_on_exception": False}  # messages may hold what is stored
_log = logging.getLogger("memalpha.requests")


@dataclass(slots=True)
class RequestRecord:
    """The record of a request so far: the fields of its line in the log, in their order.

    Attributes:
        id: The client's `REQUEST_ID_HEADER` if it is short and plain, else a random one; the answer has it, too.
        method: HTTP method.
        path: First `MAX_PATH` characters of the path, without the query.
        route: Template of the path, as in `/v1/entries/{id}`.
        status: Status of the answer.
        ms: Milliseconds to the last byte.
        key: Name of its key; None is the token, or none.
        namespace: Namespace that it is for.
        received: Bytes of its body.
        sent: Bytes of the answer's body.
    """

    id: str
    method: str
    path: str
    route: str = REFUSED
    status: int = CLIENT_CLOSED
    ms: float = 0.0
    key: str | None = None
    namespace: str | None = None
    received: int = 0
    sent: int = 0

    def describe(self, span: trace.Span, method: str) -> None:
        """Name the request's span and set its attributes, by OpenTelemetry's conventions where they have a name."""
        span.update_name(f"{method} {self.route}")
        values = {
            "http.request.method": method,
            "http.route": self.route,
            "http.response.status_code": self.status,
            "memalpha.request_id": self.id,
            "memalpha.key": self.key,
            "memalpha.namespace": self.namespace,
        }
        span.set_attributes({name: value for name, value in values.items() if value is not None})


class Telemetry:
    """Tell of a server's requests: counts and times, a span, and a line of the log for each.

    Attributes:
        registry: Counts and times for Prometheus.
    """

    def __init__(self, *, log: bool) -> None:
        """Start at zero.

        Args:
            log: Write the lines of `memalpha.requests` to stderr as they are, and nowhere else.
        """
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("memalpha_requests", "Answered requests.", labels, registry=self.registry)
        self._seconds = Histogram(
            "memalpha_request_seconds", "Time of a request to the last byte.", ("route",), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self._log = log
        if log:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(message)s"))
            _log.handlers, _log.propagate = [handler], False
            _log.setLevel(logging.INFO)

    @contextmanager
    def observe(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Iterator[RequestRecord]:
        """Record a request while it is answered.

        The log line has no query and no header: they hold what people ask, and keys.

        Args:
            method: HTTP method; one that is none of `METHODS` counts as "_OTHER".
            path: Path without the query; its first `MAX_PATH` characters are logged.
            headers: Headers of the request, by lower-case name.
        """
        sent_id = headers.get(REQUEST_ID_HEADER, b"")
        id = sent_id.decode() if _REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(8)
        record = RequestRecord(id, method, path[:MAX_PATH])
        kind, started = method if method in METHODS else "_OTHER", time.perf_counter()
        opened: AbstractContextManager[trace.Span] = nullcontext(trace.INVALID_SPAN)
        try:
            if (tracer := _tracer()) is not None:  # below the client's span if a `traceparent` names one
                names = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
                opened = tracer.start_as_current_span(kind, propagate.extract(names), trace.SpanKind.SERVER, **_QUIET)
            with opened as span:
                try:
                    yield record
                finally:
                    if span.is_recording():
                        record.describe(span, kind)
        finally:
            seconds = time.perf_counter() - started
            self._requests.labels(kind, record.route, str(record.status)).inc()
            self._seconds.labels(record.route).observe(seconds)
            if self._log:
                record.ms = round(1000 * seconds, 1)
                line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **asdict(record)}
                _log.info("%s", json.dumps(line))  # ASCII: control characters of a hostile path are escaped


def start_tracing() -> Callable[[], None]:
    """Send spans of this process by OTLP over HTTP, in the background; return what sends the last ones.

    Raises:
        ConfigError: The SDK or the exporter of OpenTelemetry is not installed.
    """
    with required_packages("otel: tracing", "opentelemetry", extra="otel"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider(resource=Resource.create({"service.name": _NAME}))  # OTEL_SERVICE_NAME goes before
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


@contextmanager
def work_span(kind: str, work: Any) -> Iterator[None]:
    """Open a span around a call of the store or the model, named after the function that does it.

    Args:
        kind: "store" or "model".
        work: The function, or the operation's name.
    """
    if (tracer := _tracer()) is None:
        yield
        return
    while isinstance(work, partial):
        work = work.func
    name = work if isinstance(work, str) else getattr(work, "__qualname__", type(work).__name__)
    name = f"{kind}.{name.removesuffix('.<locals>.<lambda>').rpartition('.')[2].strip('_')}"
    with tracer.start_as_current_span(name, **_QUIET) as span:
        try:
            yield
        except Exception as error:  # its message may hold what is stored
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(trace.StatusCode.ERROR)
            raise


def _tracer() -> trace.Tracer | None:
    """Return the tracer of this process; None if nobody has set up a provider, which is most often so."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider.get_tracer(_NAME)


def traced_store(work: Callable[[], T], seconds: float | None = None) -> T:
    """Return the result of `work`, a call of the store, in a span and with a deadline of its statements."""
    with work_span("store", work), nullcontext() if seconds is None else deadline(seconds):
        return work()
