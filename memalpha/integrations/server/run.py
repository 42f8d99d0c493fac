"""Running a served memory: its address and token, the transports, and an end that loses nothing.

Ctrl-C and SIGTERM end it: nothing new is taken, what a thread has begun is finished, the store is closed. What was
acknowledged before was in the store before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from memalpha.errors import ConfigError
from memalpha.integrations.server.service import MemoryService

TOKEN_ENV = "MEMALPHA_TOKEN"
SHORTEST = 16
"""Characters of a token: fewer can be tried out."""
GRACE = 5
"""Seconds that open connections have to end."""


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, `[::1]:8765` with an IPv6 address; raises `ConfigError`. Port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in host and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http: {text!r} is no HOST:PORT, such as 127.0.0.1:8765 or [::1]:8765")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it; a name other than localhost may resolve to anything."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def token_of(file: Path | None) -> str | None:
    """The token in a file, or else in the environment; raises `ConfigError` for one that is none."""
    if file is None:
        token, where = os.environ.get(TOKEN_ENV), TOKEN_ENV
        if token is None:
            return None
    else:
        where = str(file)
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: the token cannot be read: {error}") from error
    token = token.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: a token of at least {SHORTEST} letters and digits is needed: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )
    return token


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Stdout goes to stderr meanwhile, whoever writes to it: in stdio mode it is the protocol's alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def serve_stdio(service: MemoryService) -> None:
    """Serve MCP on stdin and stdout, until stdin ends or a signal comes."""
    from memalpha.integrations.server.mcp import mcp_server

    asyncio.run(_stdio(service, mcp_server(service)))


async def _stdio(service: MemoryService, server: Any) -> None:
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    stop = _signalled()
    serving, stopped = asyncio.create_task(run()), asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    await service.close()
    if not serving.done():
        # A thread waits for a line of stdin, and nothing but its end could wake it.
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(0)
    stopped.cancel()
    await serving


def serve_http(
    service: MemoryService, address: tuple[str, int], *, token: str | None = None, mcp: bool = False, about: str = ""
) -> None:
    """Serve the HTTP API, and MCP at /mcp, until a signal comes; `about` is said on stderr with the address.

    Raises `ConfigError` for an address that cannot be had, and one off loopback without a token.
    """
    host, port = address
    check_open(host, token)
    from memalpha.integrations.server.http import http_app

    server = None
    if mcp:
        from memalpha.integrations.server.mcp import mcp_server

        server = mcp_server(service)
    app = http_app(service, token=token, local=is_loopback(host), mcp=server)
    with _bound(host, port) as listening:
        where = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        print(f"memalpha serves {about} at {where}/v1{f', MCP at {where}/mcp' if mcp else ''}", file=sys.stderr)
        sys.stderr.flush()
        asyncio.run(_http(service, app, listening))


def check_open(host: str, token: str | None) -> None:
    """Refuse to let anybody on the network in without a token."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"http: {host} can be reached from elsewhere, which needs a token: --token-file or {TOKEN_ENV}"
        )


async def _http(service: MemoryService, app: Any, listening: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        """Signals are ours: uvicorn would raise them again after it has ended well."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        log_config=None,  # warnings and errors go to stderr, nothing to stdout
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    server, stop = Server(config), _signalled()

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    try:
        await server.serve(sockets=[listening])
    finally:
        ending.cancel()
        await service.close()


def _signalled() -> asyncio.Event:
    """What is set by Ctrl-C and SIGTERM, from now on and as often as they come."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    return stop


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        try:
            if os.name == "posix":  # elsewhere it would let two servers have one port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(128)  # from here on: the address is told before uvicorn has begun
        except OSError as error:
            raise ConfigError(f"http: {host}:{port} cannot be had: {error.strerror or error}") from error
        yield listening
