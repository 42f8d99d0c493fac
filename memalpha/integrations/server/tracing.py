"""Spans of OpenTelemetry: one for each request, and within it for calls of the store and of the model.

Without a tracer provider in the process, a span costs next to nothing and leads nowhere. `start_tracing` sets one up
that sends spans by OTLP, configured by the standard variables (`OTEL_*`).
Spans name routes, keys, namespaces and tools; what people ask and what is stored is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from memalpha.errors import ConfigError, install_command
from memalpha.store.backends.deadline import deadline

try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("opentelemetry"):
        raise
    raise ConfigError(f"serving needs {error.name}: {install_command('serve')}") from None

T = TypeVar("T")

_NAME = "memalpha"


def start_tracing() -> Callable[[], None]:
    """Send spans of this process by OTLP over HTTP, in the background; return what sends the last ones.

    Raises:
        ConfigError: The SDK or the exporter of OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise ConfigError(f"otel: tracing needs {error.name}: {install_command('otel')}") from None
    provider = TracerProvider(resource=Resource.create({"service.name": _NAME}))  # OTEL_SERVICE_NAME goes before
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def request_span(method: str, headers: Any) -> AbstractContextManager[trace.Span]:
    """Open the span of a request, below that of its client if a `traceparent` names one.

    Args:
        method: Method of the request.
        headers: Headers of the request, by lower-case name.
    """
    return trace.get_tracer(_NAME).start_as_current_span(
        method,
        propagate.extract(headers),
        trace.SpanKind.SERVER,
        record_exception=False,
        set_status_on_exception=False,
    )


@contextmanager
def work_span(kind: str, work: Any) -> Iterator[None]:
    """Open a span around a call of the store or the model, named after the function that does it.

    Args:
        kind: "store" or "model".
        work: The function, or the operation's name.
    """
    name = f"{kind}.{work if isinstance(work, str) else _function_name(work)}"
    tracer = trace.get_tracer(_NAME)
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
        try:
            yield
        except Exception as error:  # its message may hold what is stored
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(trace.StatusCode.ERROR)
            raise


def traced_store(work: Callable[[], T], seconds: float | None = None) -> T:
    """Return the result of `work`, a call of the store, in a span and with a deadline of its statements."""
    with work_span("store", work), nullcontext() if seconds is None else deadline(seconds):
        return work()


def _function_name(work: Any) -> str:
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__qualname__", type(work).__name__)
    return name.removesuffix(".<locals>.<lambda>").rpartition(".")[2].strip("_")
