"""PostgreSQL's errors in the store's words: what happened, what is known of the transaction, what to do."""

from __future__ import annotations

import re
from typing import NoReturn

import psycopg
from psycopg_pool import PoolClosed

from memalpha.errors import DamagedStore, DeadlineExceeded, StoreError, StoreUnavailable

_CONNECTION_LOST = ("08", "57P01", "57P02", "57P03")  # error classes and codes after which the connection is gone
_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout


def raise_store_error(error: psycopg.Error, path: str, state: str, admit: str | None) -> NoReturn:
    """Raise a PostgreSQL error as a `StoreError`.

    Args:
        error: Error of the server or the driver.
        path: URL of the store, without secrets.
        state: Known outcome of the transaction; may be "".
        admit: Call of the function `admit` for the hint; None while the store is being opened.
    """
    code, outcome = error.sqlstate or "", f": {state}" if state else ""
    if isinstance(error, PoolClosed):
        raise StoreError(f"the store {path} is closed") from error
    if is_connection_lost(error):
        raise StoreUnavailable(f"{path}: the connection was lost{outcome} ({first_line(error)})", state) from error
    if code == "57014":  # statement_timeout
        raise DeadlineExceeded from error
    if code in _CONFLICTS:
        raise StoreError(f"{path}: another transaction conflicted, or kept it locked{outcome}: try again") from error
    if code.startswith("XX00"):
        raise DamagedStore(f"{path} is damaged ({first_line(error)}): restore a backup") from error
    if code == "42501":
        if admit is None:
            hint = "the role needs CREATE on the database, or on that schema; or give another with ?schema=NAME"
            raise StoreError(f"{path}: {first_line(error)}: {hint}") from error
        raise StoreError(
            f"{path}: {first_line(error)}: the tables' owner may admit a role to a namespace with SELECT {admit}"
        ) from error
    raise StoreError(f"{path}: {first_line(error)}{outcome}") from error


def first_line(error: psycopg.Error) -> str:
    """Return the first line of an error's message."""
    text = error.diag.message_primary or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def explain_connection_error(error: psycopg.Error) -> str:
    """Return why a connection failed, and what to do."""
    text = str(error)
    last_line = text.strip().splitlines()[-1].strip() if text.strip() else type(error).__name__
    if "password" in text or "authentication" in text or "pg_hba.conf" in text:
        return f"the server refuses the user ({last_line}): look at user and password in the URL"
    if re.search(r'database ".*" does not exist', text):
        return f"the server has no such database ({last_line}): make it with CREATE DATABASE, or look at the URL"
    if re.search(r'role ".*" does not exist', text):
        return f"the server has no such user ({last_line}): look at the URL"
    if "too many" in text or "remaining connection slots" in text:
        return f"the server takes no more connections ({last_line}): close some, or raise its max_connections"
    return f"no server can be reached ({last_line}): is it running, and are host and port right?"


def is_connection_lost(error: psycopg.Error) -> bool:
    """Return True if the connection is gone: the server answered nothing, or that it is stopping."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_CONNECTION_LOST)
