"""What the URL of a PostgreSQL store says, what of it may be shown, and why nobody answers there."""

from __future__ import annotations

import re
from urllib.parse import unquote

import psycopg

from memalpha.errors import StoreError

SCHEMA = "memalpha"


def parted(url: str) -> tuple[str, str]:
    """A URL without our own key `schema`, and that schema."""
    start, _, query = url.partition("?")
    keys = [item for item in query.split("&") if item]
    named = [unquote(item.partition("=")[2]) for item in keys if item.startswith("schema=")]
    rest = "&".join(item for item in keys if not item.startswith("schema="))
    schema = named[-1] if named else SCHEMA
    if not re.fullmatch(r"(?!pg_)[A-Za-z0-9_ -]{1,63}", schema):
        message = "1 to 63 letters (of a to z), digits, _, - and spaces that do not begin with pg_ are needed"
        raise StoreError(f"schema {schema!r}: {message}")
    return start + (f"?{rest}" if rest else ""), schema


def without_secrets(url: str) -> str:
    """A URL as it may be shown."""
    url = re.sub(r"^(\w+://[^:@/?]*):[^@/?]*@", r"\1@", url)
    start, _, query = url.partition("?")
    shown = "&".join(item for item in query.split("&") if item and "password" not in item.partition("=")[0])
    return start + (f"?{shown}" if shown else "")


def first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def why_not_connected(error: psycopg.Error) -> str:
    """What keeps a connection from being made, and what to do."""
    text = str(error)
    last = text.strip().splitlines()[-1].strip() if text.strip() else type(error).__name__
    if "password" in text or "authentication" in text or "pg_hba.conf" in text:
        return f"the server refuses the user ({last}): look at user and password in the URL"
    if re.search(r'database ".*" does not exist', text):
        return f"the server has no such database ({last}): make it with CREATE DATABASE, or look at the URL"
    if re.search(r'role ".*" does not exist', text):
        return f"the server has no such user ({last}): look at the URL"
    if "too many" in text or "remaining connection slots" in text:
        return f"the server takes no more connections ({last}): close some, or raise its max_connections"
    return f"no server can be reached ({last}): is it running, and are host and port right?"
