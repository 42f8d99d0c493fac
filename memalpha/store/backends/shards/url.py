"""URLs of sharded stores and of their servers."""

from __future__ import annotations

import re

from memalpha.errors import StoreError
from memalpha.store.backends.postgres.url import redact_url, split_schema

SCHEMA = "memalpha_shards"
_SCHEME = re.compile(r"postgres(?:ql)?\+shards://")
_USER = re.compile(r"^\w+://([^@/?]*@)?")


def split_shards_url(url: str) -> tuple[str, str]:
    """Return the URL of the routing table's database, and the schema that the table lies in."""
    return split_schema(_SCHEME.sub("postgresql://", url, count=1), SCHEMA)


def check_server_url(url: str) -> str:
    """Return the URL of a server as the routing table keeps it.

    Raises `StoreError` if it is no PostgreSQL URL, or names a user or a password: those are the store URL's.
    """
    match = _USER.match(url)
    if not re.match(r"postgres(?:ql)?://", url) or match is None:
        raise StoreError(f"{redact_url(url)}: the URL of a PostgreSQL server is needed, postgresql://host/database")
    if match[1] or redact_url(url) != url or "user=" in url.partition("?")[2]:
        raise StoreError(f"{redact_url(url)}: leave user and password out: they are those of the store's URL")
    split_schema(url)  # its own schema, if it names one, must be a name
    return url


def with_user(server_url: str, store_url: str) -> str:
    """Return the URL of a server with user and password of the store's URL."""
    match = _USER.match(_SCHEME.sub("postgresql://", store_url, count=1))
    user = "" if match is None else match[1] or ""
    return server_url.replace("://", f"://{user}", 1)
