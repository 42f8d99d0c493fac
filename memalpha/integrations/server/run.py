"""Run the servers: address and token, connections, the transports, and a shutdown that loses nothing.

Ctrl-C and SIGTERM stop them: new requests are refused, started ones finish, the store is closed. Every acknowledged
write is in the store.

uvicorn bounds neither how many connections are open, nor how long one may take to ask, nor how far ahead it may. A
client that opens connections and sends half of a request on each would otherwise hold every file descriptor of the
process, and no other client would be heard (the attack known as Slowloris). One that sends requests without end and
reads no answer would fill the memory with them.

`memalpha watch` serves the page of a run while the run writes it; server-sent events tell the page of new steps. Only
this machine reaches that server, and only under its own names, so that no page of another site reads a run (DNS
rebinding).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.errors import ConfigError, DataError, required_packages
from memalpha.integrations.server.auth import parse_hostname
from memalpha.integrations.server.mcp import serve_lines
from memalpha.integrations.server.schemas import escape_surrogates
from memalpha.integrations.server.service import MemoryService
from memalpha.integrations.server.telemetry import start_tracing
from memalpha.store.io.jsonl import to_json

if TYPE_CHECKING:
    from memalpha.integrations.server.http import HttpApp
    from memalpha.report.page import RunPage

with required_packages("serving HTTP", "starlette", "uvicorn", "h11", extra="serve"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol

WATCH_HOST = "127.0.0.1"
LOOK_SECONDS = 1.0
"""Time between two looks at the files of a run that is watched."""
WATCH_SHUTDOWN_SECONDS = 3  # longer than a stream of news sleeps
_WATCH_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
MAX_CONNECTIONS = 1000
"""Maximum open connections."""
HEAD_SECONDS = 10
"""Time for the head of a request, and the longest that an unused connection stays open."""
AHEAD_BYTES = 16_384
"""Requests behind the one that is being answered; a connection that sends more of them is closed."""
BACKLOG = 64
"""Connections that the system accepts ahead of the server; they take descriptors too."""
OTHER_FILES = 128
"""File descriptors left for the store, its connections and the policy."""


def connection_limit() -> int:
    """Return how many connections the server may hold under this process's limit of open files."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, soft - BACKLOG - OTHER_FILES))


def limited_protocol(limit: int, head_seconds: float = HEAD_SECONDS) -> type[H11Protocol]:
    """Return a protocol whose connections share one limit.

    Over the limit the connection that has waited longest without a whole request is closed, not the new one: clients
    that ask at once are served while others hold connections open.

    Args:
        limit: Maximum open connections.
        head_seconds: Time from the connection, or from the last answer, to the end of a request's head.
    """
    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}  # in the order of their age

    class LimitedProtocol(H11Protocol):
        """HTTP/1.1 connection that is closed if its request does not come."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_request()
            if len(self.connections) > limit:
                next(iter(waiting)).close_late()  # type: ignore[attr-defined]

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), AHEAD_BYTES):
                super().data_received(data[start : start + AHEAD_BYTES])
                if self.transport.is_closing():  # an unreadable head was refused: no rest is awaited
                    return
                if len(self.conn.trailing_data[0]) > AHEAD_BYTES:
                    self.close_late()
                    return
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _look(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self not in waiting and not self.transport.is_closing():
                self._await_request()

        def _await_request(self) -> None:
            waiting[self] = self.loop.call_later(head_seconds, self.close_late)

        def _forget(self) -> None:
            if (timer := waiting.pop(self, None)) is not None:
                timer.cancel()

        def close_late(self) -> None:
            self._forget()
            self.transport.abort()

    return LimitedProtocol


TOKEN_ENV = "MEMALPHA_TOKEN"
MIN_TOKEN_LENGTH = 16
"""Minimum characters of a token; shorter ones can be guessed."""
SHUTDOWN_SECONDS = 5
"""Time for open connections to finish."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, or `[::1]:8765` for IPv6. Port 0 takes a free one. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in host and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http: {text!r} is no HOST:PORT, such as 127.0.0.1:8765 or [::1]:8765")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host. Names other than localhost may resolve to anything."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None) -> str | None:
    """Return the token from a file or else the environment; None without either. Raises `ConfigError` if invalid."""
    if file is None:
        token, origin = os.environ.get(TOKEN_ENV), TOKEN_ENV
        if token is None:
            return None
    else:
        origin = str(file)
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: the token cannot be read: {error}") from error
    token = token.strip()
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{origin}: a token of at least {MIN_TOKEN_LENGTH} letters and digits is needed: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )
    return token


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Redirect stdout to stderr in the block: in stdio mode stdout belongs to the protocol."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def serve_stdio(service: MemoryService) -> None:
    """Serve MCP on stdin and stdout until stdin ends or a signal arrives."""

    async def serve() -> None:
        stop = asyncio.Event()
        _on_stop(stop.set)
        serving, stopped = asyncio.create_task(serve_lines(service)), asyncio.create_task(stop.wait())
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        await service.close()
        if not serving.done():
            # A thread still waits for a line of stdin and cannot be interrupted.
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(0)
        stopped.cancel()
        try:
            await serving
        except* BrokenPipeError:  # the host has gone, and nobody reads its answers
            pass

    asyncio.run(serve())


def serve_http(app: HttpApp, address: tuple[str, int], *, otel: bool = False, description: str = "") -> None:
    """Serve an application until a signal arrives; then close its keys and its service.

    Args:
        app: The application.
        address: Host and port.
        otel: Send spans by OpenTelemetry, as the variables OTEL_* say.
        description: Printed on stderr with the address.

    Raises:
        ConfigError: the address cannot be used, or `otel` lacks its packages.
    """
    host, port = address
    with ExitStack() as closing:
        if otel:
            closing.callback(start_tracing())
        listening = closing.enter_context(listen(host, port))
        closing.callback(app.guard.close)
        url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        also = "".join(f", {what} at {url}{path}" for what, path in app.extras.items())
        print(f"memalpha serves {description} at {url}/v1{also}", file=sys.stderr)
        sys.stderr.flush()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # garbage from the network would fill the disk
        config = uvicorn.Config(
            app,
            log_config=None,  # warnings and errors go to stderr, nothing to stdout
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=limited_protocol(connection_limit()),
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        server: Any = uvicorn.Server(config)
        server.capture_signals = nullcontext  # uvicorn raises signals again after a clean shutdown

        async def run() -> None:
            _on_stop(partial(setattr, server, "should_exit", True))
            try:
                await server.serve(sockets=[listening])
            finally:
                await app.service.close()

        asyncio.run(run())


def check_hosts(names: Collection[str]) -> frozenset[str]:
    """Return host names in lower case. Raises `ConfigError` for what is no name (or address) of a host."""
    hosts = set()
    for name in names:
        host = parse_hostname(name)
        if host is None or host != name.lower().strip("[]"):
            raise ConfigError(f"allow-host: {name!r}: a host name without scheme and port is needed")
        hosts.add(host)
    return frozenset(hosts)


def check_token_needed(host: str, has_token: bool, hosts: Collection[str] = ()) -> None:
    """Raise `ConfigError` if other machines can reach the server and there is no token (or file of keys).

    Args:
        host: Address that it listens on.
        has_token: Requests need a token or a key.
        hosts: Names that a proxy passes on.
    """
    if not has_token and hosts:
        raise ConfigError(
            f"allow-host: others reach the server as {min(hosts)}, which needs a token: --token-file or {TOKEN_ENV}, "
            "or keys"
        )
    if not has_token and not is_loopback(host):
        raise ConfigError(
            f"http: {host} can be reached from elsewhere, which needs a token: --token-file or {TOKEN_ENV}, or keys"
        )


def _on_stop(call: Callable[[], object]) -> None:
    """Let Ctrl-C and SIGTERM make a call in this event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, call)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small parts of an answer at once (TCP_NODELAY) on sockets that say they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        try:
            if os.name == "posix":  # elsewhere it would let two servers have one port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(128)  # connections wait here until uvicorn starts, so the address can be printed now
        except OSError as error:
            raise ConfigError(
                f"http: cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}"
            ) from error
        yield listening


def watch_app(page: RunPage, is_stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """Build the application: the page at /, its news at /events, its parts at /training and /rollouts/STEP.

    Args:
        page: Page of the run.
        is_stopping: Returns True once the server shall stop; the streams of news end then.
    """

    async def show(request: Request) -> Response:
        return HTMLResponse(escape_surrogates(await run_in_threadpool(page.render, live=True)), headers=_WATCH_HEADERS)

    async def training(request: Request) -> Response:
        return HTMLResponse(escape_surrogates(await run_in_threadpool(page.training)), headers=_WATCH_HEADERS)

    async def rollouts(request: Request) -> Response:
        return as_json(await run_in_threadpool(page.rollouts.read, request.path_params["step"]))

    async def tokens(request: Request) -> Response:
        query = request.query_params
        if not query.get("rollout", "").isdecimal():
            raise DataError("rollout: the number of a rollout is needed")
        key = (query.get("task", ""), int(query["rollout"]), query.get("role", ""))
        return as_json(await run_in_threadpool(page.rollouts.tokens, request.path_params["step"], *key))

    async def events(request: Request) -> Response:
        return StreamingResponse(news(), media_type="text/event-stream", headers=_WATCH_HEADERS)

    async def news() -> AsyncIterator[str]:
        """Yield an event whenever the run's state is new, and a comment in between, which finds readers that left."""
        last: dict[str, Any] | None = None
        while not is_stopping():
            with suppress(DataError):  # a line that is not JSON: the page itself says so
                state = await run_in_threadpool(page.state)
                if state != last:
                    last = state
                    yield f"data: {to_json(state)}\n\n"
            yield ": waiting\n\n"
            await asyncio.sleep(LOOK_SECONDS)

    def refuse(request: Request, error: Exception) -> Response:
        return PlainTextResponse(escape_surrogates(str(error)), status_code=404, headers=_WATCH_HEADERS)

    def as_json(value: Any) -> Response:
        text = to_json(value, allow_nan=False, separators=(",", ":"))
        return Response(text.encode(), headers=_WATCH_HEADERS, media_type="application/json")

    return Starlette(
        routes=[
            Route("/", show),
            Route("/events", events),
            Route("/training", training),
            Route("/rollouts/{step:int}", rollouts),
            Route("/rollouts/{step:int}/tokens", tokens),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[WATCH_HOST, "localhost"])],
        exception_handlers={DataError: refuse},
    )


def serve_page(page: RunPage, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page of a run until Ctrl-C.

    Args:
        page: Page of the run.
        port: Port on 127.0.0.1; 0 takes any free one.
        announce: Called with the address when connections are accepted.

    Raises:
        ConfigError: The port is taken.
    """
    with listen(WATCH_HOST, port) as listening:
        announce(f"http://{WATCH_HOST}:{listening.getsockname()[1]}/")
        app = watch_app(page, lambda: server.should_exit)
        settings = {"access_log": False, "server_header": False, "timeout_graceful_shutdown": WATCH_SHUTDOWN_SECONDS}
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, **settings))
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
