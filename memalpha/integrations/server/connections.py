"""Connections of the HTTP server: how many may be open, how long one may take to ask, and how far ahead it may.

uvicorn bounds none of them. A client that opens connections and sends half of a request on each would otherwise hold
every file descriptor of the process, and no other client would be heard (the attack known as Slowloris). One that sends
requests without end and reads no answer would fill the memory with them.
"""

from __future__ import annotations

import asyncio
import logging
import time

from memalpha.errors import ConfigError, install_command

try:
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:
    if error.name not in ("uvicorn", "h11"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from None

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
                next(iter(waiting))._close()  # type: ignore[attr-defined]

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), AHEAD_BYTES):
                super().data_received(data[start : start + AHEAD_BYTES])
                if len(self.conn.trailing_data[0]) > AHEAD_BYTES and not self.transport.is_closing():
                    self._close()
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
            waiting[self] = self.loop.call_later(head_seconds, self._close)

        def _forget(self) -> None:
            if (timer := waiting.pop(self, None)) is not None:
                timer.cancel()

        def _close(self) -> None:
            self._forget()
            self.transport.abort()

    return LimitedProtocol


class OncePerSecond(logging.Filter):
    """Let each kind of message through once a second, with a count of those left out.

    Garbage from the network would otherwise fill the disk with warnings.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written."""
        now, message = time.monotonic(), str(record.msg)
        last, left_out = self._last.get(message, (float("-inf"), 0))
        if now - last < 1:
            self._last[message] = (last, left_out + 1)
            return False
        if len(self._last) > 100:  # messages with their values written into them
            self._last.clear()
        self._last[message] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more such messages left out)"
        return True
