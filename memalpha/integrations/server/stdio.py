"""MCP over stdin and stdout, where every line is answered: the SDK drops a line that it cannot read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import anyio
import mcp_types as types
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from memalpha.integrations.server.mcp import mcp_server
from memalpha.integrations.server.service import MemoryService

_HALVES = re.compile("[\ud800-\udfff]")
# Of the beginning of a message, not of its arguments.
_ID = re.compile(r'\s*\{[^{}\[\]]*?"id"\s*:\s*(-?\d{1,18}(?![\d.eE])|"[^"\\]{1,200}")')


async def serve_lines(service: MemoryService) -> None:
    """Serve the MCP tools of a memory until stdin ends."""
    server, lines = mcp_server(service), _Lines()
    async with stdio_server(stdin=lines) as (incoming, outgoing):  # pyright: ignore[reportArgumentType]: only iterated
        lines.outgoing = outgoing
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Lines:
    """Lines of stdin that are messages; for others an error goes out."""

    outgoing: Any

    def __init__(self) -> None:
        self._stream = _take_stdin()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._stream.readline):
            text, error = read_line(line)
            if error is not None:
                await self.outgoing.send(SessionMessage(error))
            elif text:
                yield text


def read_line(line: bytes) -> tuple[str, types.JSONRPCError | None]:
    """Return a line as a message that the SDK reads, or the error that answers it; "" for a blank line.

    What is not UTF-8, and half of a surrogate pair, becomes U+FFFD.
    """
    text = line.decode("utf-8", "replace").strip()
    if not text:
        return "", None
    value: Any = None
    try:
        value = json.loads(text)
        if "\\u" in text:
            text = _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False))
        types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except (ValueError, RecursionError):
        is_json = value is not None
        code, fault = (
            (types.INVALID_REQUEST, "no message of JSON-RPC 2.0") if is_json else (types.PARSE_ERROR, "no JSON")
        )
        data = types.ErrorData(code=code, message=f"the line is {fault}")
        return "", types.JSONRPCError(jsonrpc="2.0", id=_find_id(value, text), error=data)
    return text, None


def _find_id(value: Any, text: str) -> str | int | None:
    """Return the id of a message, or of the beginning of one; None if it cannot be read."""
    if value is None and (match := _ID.match(text)):
        value = {"id": json.loads(match[1])}
    id = value.get("id") if isinstance(value, dict) else None
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def _take_stdin() -> BinaryIO:
    """Return stdin, and give child processes an empty one: what they read would be missing here."""
    stream = os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=False)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, sys.stdin.fileno())
    os.close(empty)
    return stream
