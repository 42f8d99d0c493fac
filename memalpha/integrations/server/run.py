"""Run the server: its address and token, the transports, and a shutdown that loses nothing.

Ctrl-C and SIGTERM stop it: new requests are refused, started ones finish, the store is closed. Every acknowledged write
is in the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memalpha.errors import ConfigError
from memalpha.integrations.server.keys import KeyFile
from memalpha.integrations.server.service import MemoryService
from memalpha.integrations.server.tracing import start_tracing

if TYPE_CHECKING:
    from memalpha.integrations.server.page import PageRenderer

TOKEN_ENV = "MEMALPHA_TOKEN"
MIN_TOKEN_LENGTH = 16
MIN_DESCRIPTORS = 24  # loop, listener, store, keys, and about ten connections
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
    asyncio.run(_stdio(service))


async def _stdio(service: MemoryService) -> None:
    from memalpha.integrations.server.stdio import serve_lines

    stop = _stop_event()
    serving, stopped = asyncio.create_task(serve_lines(service)), asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    await service.close()
    if not serving.done():
        # A thread still waits for a line of stdin and cannot be interrupted.
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(0)
    stopped.cancel()
    await serving


def serve_http(
    service: MemoryService,
    address: tuple[str, int],
    *,
    token: str | None = None,
    keys: KeyFile | None = None,
    find_keys: Callable[[], KeyFile | None] | None = None,
    hosts: Collection[str] = (),
    log_requests: bool = False,
    mcp: bool = False,
    page: PageRenderer | None = None,
    page_edits: bool = False,
    otel: bool = False,
    description: str = "",
) -> None:
    """Serve the HTTP API until a signal arrives.

    Args:
        service: The memory to serve.
        address: Host and port.
        token: Has all rights on the service's namespace; None is none.
        keys: Keys with their rights; closed in the end. Without a token and without keys, requests need neither.
        find_keys: Opens the keys once they were made, while `keys` is None; called for each request until then.
        hosts: Names that requests may be for besides localhost, as a proxy in front passes them on.
        log_requests: Write one JSON line for each request to stderr.
        mcp: Also serve MCP at /mcp.
        page: Renders the page at /; None serves no page.
        page_edits: Take the forms of the page from readers who have the rights.
        otel: Send spans by OpenTelemetry, as the variables OTEL_* say.
        description: Printed on stderr with the address.

    Raises:
        ConfigError: the address or a name of `hosts` cannot be used, other machines can reach the server and there are
            no token and no keys, `otel` lacks its packages, or the process may open too few files.
    """
    host, port = address
    hosts = check_hosts(hosts)
    check_token_needed(host, token or keys, hosts)
    from memalpha.integrations.server.http import http_app

    stop_tracing = start_tracing() if otel else None
    server = None
    if mcp:
        from memalpha.integrations.server.mcp import mcp_server

        server = mcp_server(service)
    key_files = [] if keys is None else [keys]

    def find_new_keys() -> KeyFile | None:
        key_file = None if find_keys is None else find_keys()
        key_files.extend([] if key_file is None else [key_file])
        return key_file

    app = http_app(
        service,
        token=token,
        keys=keys,
        find_keys=find_new_keys,
        local=is_loopback(host),
        hosts=hosts,
        log_requests=log_requests,
        mcp=server,
        page=page,
        page_edits=page_edits,
    )
    _check_descriptors()
    with listen(host, port) as listening:
        url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        also = (f", MCP at {url}/mcp" if mcp else "") + (f", a page at {url}/" if page else "")
        print(f"memalpha serves {description} at {url}/v1{also}", file=sys.stderr)
        sys.stderr.flush()
        try:
            asyncio.run(_http(service, app, listening))
        finally:
            for key_file in key_files:
                key_file.close()
            if stop_tracing is not None:
                stop_tracing()


def _check_descriptors() -> None:
    """Raise `ConfigError` unless the process may open enough files for a loop and a few clients."""
    opened = []
    try:
        for _ in range(MIN_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise ConfigError(
            f"serve: {error.strerror}: {MIN_DESCRIPTORS} more are needed to serve a few clients (ulimit -n)"
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_hosts(names: Collection[str]) -> frozenset[str]:
    """Return host names in lower case. Raises `ConfigError` for what is no name (or address) of a host."""
    hosts = set()
    for name in names:
        try:
            host = urlsplit(f"//{name}").hostname
        except ValueError:
            host = None
        if host is None or host != name.lower().strip("[]"):
            raise ConfigError(f"allow-host: {name!r}: a host name without scheme and port is needed")
        hosts.add(host)
    return frozenset(hosts)


def check_token_needed(host: str, token: str | KeyFile | None, hosts: Collection[str] = ()) -> None:
    """Raise `ConfigError` if other machines can reach the server and there is no token (or file of keys).

    Args:
        host: Address that it listens on.
        token: Token or keys.
        hosts: Names that a proxy passes on.
    """
    if token is None and hosts:
        raise ConfigError(
            f"allow-host: others reach the server as {min(hosts)}, which needs a token: --token-file or {TOKEN_ENV}, "
            "or keys"
        )
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"http: {host} can be reached from elsewhere, which needs a token: --token-file or {TOKEN_ENV}, or keys"
        )


async def _http(service: MemoryService, app: Any, listening: socket.socket) -> None:
    import uvicorn

    from memalpha.integrations.server.connections import BACKLOG, OncePerSecond, connection_limit, limited_protocol

    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(OncePerSecond())

    class Server(uvicorn.Server):
        """Server without uvicorn's signal handling, which raises signals again after a clean shutdown."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

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
    server, stop = Server(config), _stop_event()

    async def exit_on_signal() -> None:
        await stop.wait()
        server.should_exit = True

    exit_task = asyncio.create_task(exit_on_signal())
    try:
        await server.serve(sockets=[listening])
    finally:
        exit_task.cancel()
        await service.close()


def _stop_event() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    return stop


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
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
