"""URLs of PostgreSQL stores: the schema they name, and the form that may be shown."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from memalpha.errors import StoreError

SCHEMA = "memalpha"
MAX_LAG = 1.0
"""Seconds by which a read of a replica may be behind, unless the URL says otherwise."""
CONNECTIONS = 10
"""Connections of a store to a server at most, unless the URL says otherwise; further threads wait."""


def split_schema(url: str, default: str = SCHEMA) -> tuple[str, str]:
    """Split our own key `schema` off a URL; return the rest and the schema (`default` without one)."""
    start, _, query = url.partition("?")
    keys = [item for item in query.split("&") if item]
    schemas = [unquote(item.partition("=")[2]) for item in keys if item.startswith("schema=")]
    other_keys = "&".join(item for item in keys if not item.startswith("schema="))
    schema = schemas[-1] if schemas else default
    if not re.fullmatch(r"(?!pg_)[A-Za-z0-9_ -]{1,63}", schema):
        message = "1 to 63 letters (of a to z), digits, _, - and spaces that do not begin with pg_ are needed"
        raise StoreError(f"schema {schema!r}: {message}")
    return start + (f"?{other_keys}" if other_keys else ""), schema


class ServerOptions(NamedTuple):
    """Our own keys of a URL, beside `schema`: a replica to read from, how far it may be behind, and the pool's size."""

    replica: str | None
    max_lag: float
    connections: int


def split_options(url: str) -> tuple[str, ServerOptions]:
    """Split our own keys but `schema` off a URL. Raises `StoreError` for a value that cannot be."""
    start, _, query = url.partition("?")
    items = [item.partition("=")[::2] for item in query.split("&") if item]
    options = {name: unquote(value) for name, value in items if name in ServerOptions._fields}
    other_keys = "&".join(f"{name}={value}" for name, value in items if name not in options)
    numbers = {"max_lag": MAX_LAG, "connections": float(CONNECTIONS)}
    for name in numbers:
        if name in options:
            if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", options[name]) or not float(options[name]):
                raise StoreError(f"{name}={options[name]!r:.40}: a number above 0 is needed")
            numbers[name] = float(options[name])
    rest = start + (f"?{other_keys}" if other_keys else "")
    return rest, ServerOptions(options.get("replica"), numbers["max_lag"], max(1, int(numbers["connections"])))


def split_host(text: str) -> dict[str, str]:
    """Return host and port of `HOST`, `HOST:PORT` or the folder of a socket, as the client library names them."""
    host, colon, port = text.rpartition(":")
    return {"host": host.strip("[]"), "port": port} if colon and port.isdecimal() else {"host": text.strip("[]")}


def redact_url(url: str) -> str:
    """Return a URL without its passwords."""
    url = re.sub(r"^([\w+]+://[^:@/?]*):[^@/?]*@", r"\1@", url)
    start, _, query = url.partition("?")
    visible = "&".join(item for item in query.split("&") if item and "password" not in item.partition("=")[0])
    return start + (f"?{visible}" if visible else "")
