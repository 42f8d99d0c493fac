"""URLs of PostgreSQL stores: the schema they name, and the form that may be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote

from memalpha.errors import StoreError

SCHEMA = "memalpha"
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


def split_connections(url: str) -> tuple[str, int]:
    """Split our own key `connections` off a URL. Raises `StoreError` unless its value is a number above 0."""
    start, _, query = url.partition("?")
    items = [item for item in query.split("&") if item]
    own = [item.partition("=")[2] for item in items if item.startswith("connections=")]
    if own and not re.fullmatch(r"0*[1-9][0-9]{0,3}", own[-1]):
        raise StoreError(f"connections={own[-1]!r:.40}: a number above 0 is needed")
    other_keys = "&".join(item for item in items if not item.startswith("connections="))
    return start + (f"?{other_keys}" if other_keys else ""), int(own[-1]) if own else CONNECTIONS


def redact_url(url: str) -> str:
    """Return a URL without its passwords."""
    url = re.sub(r"^([\w+]+://[^:@/?]*):[^@/?]*@", r"\1@", url)
    start, _, query = url.partition("?")
    visible = "&".join(item for item in query.split("&") if item and "password" not in item.partition("=")[0])
    return start + (f"?{visible}" if visible else "")
