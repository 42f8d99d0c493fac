"""Who may ask what of a server: API keys, and the checks of host, origin, token, key, namespace and body of a request.

Keys are a SQLite file with the hash, the rights, the namespaces and the quotas of each. The file lies beside the store,
not in it. Copies, exports and backups of a store then carry no keys, no role of a database can give itself rights, and
both kinds of stores have the same keys.

A secret is 256 random bits, so it cannot be guessed, and SHA-256 is enough. Slow hashes (argon2, bcrypt) protect
passwords, which people choose; here they would let clients with wrong keys burn the server's time.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import quote, unquote, urlsplit

from memalpha.arguments import check_path
from memalpha.errors import ConfigError
from memalpha.integrations.server.schemas import MAX_BODY, MAX_LABEL, ServiceError, check_text

if TYPE_CHECKING:
    from starlette.types import Receive

log = logging.getLogger("memalpha.serve")

Right = Literal["read", "write", "read-with-model", "review", "erase", "admin"]
"""read: search, list, ask. write: insert, update, delete, core memory. read-with-model: let the policy read a text into
the memory. review: accept or reject what waits. erase: remove entries for good. admin: all of these."""
RIGHTS: tuple[Right, ...] = get_args(Right)
PREFIX = "mem_"
"""Begin of every secret, by which scanners for leaked secrets find one."""
NOTE_SECONDS = 10.0
"""How often the last use of a key is stored."""
DAY = 86_400

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BODY_SECONDS = 30.0
"""Time for the body of a request."""
MAX_BODIES = 64 * MAX_BODY
"""Maximum bytes of all bodies that are held at one time."""
MAX_DISCARDED, DISCARD_SECONDS = 4 * MAX_BODY, 2.0
"""What is read of a body that is refused, and for how long."""
_NOT_IN_HOST = frozenset("@/?#\\")  # they part a URL, and a Host is no URL
NAMESPACE_HEADER = "Memalpha-Namespace"
"""Header with the namespace of a request, percent-encoded as in a URL."""
SCOPE = "memalpha.access"
"""Name of a request's `Access` in its ASGI scope."""


_TABLES = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, hash TEXT NOT NULL, rights TEXT NOT NULL, namespaces TEXT NOT NULL,
    requests_per_minute INTEGER, bytes_per_day INTEGER, created TEXT NOT NULL, last_used TEXT, revoked TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS active_names ON keys (name) WHERE revoked IS NULL;
CREATE TABLE IF NOT EXISTS written (id TEXT, day INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY (id, day));
"""
_ADD_BYTES = """
INSERT INTO written VALUES (:id, :day, :size)
ON CONFLICT (id, day) DO UPDATE SET bytes = bytes + :size WHERE bytes + :size <= :quota
"""
_COLUMNS = "id, name, rights, namespaces, requests_per_minute, bytes_per_day, created, last_used, revoked"


@dataclass(frozen=True)
class Key:
    """An API key without its secret.

    Attributes:
        id: Public part of the key.
        name: Name that the administrator chose.
        rights: What it may do.
        namespaces: Names of namespaces; one that ends in `*` stands for all with this prefix.
        requests_per_minute: Quota, or None.
        bytes_per_day: Quota of the bodies of writing requests, by days of UTC, or None.
        created: ISO time.
        last_used: ISO time, exact to `NOTE_SECONDS`, or None.
        revoked: ISO time, or None.
    """

    id: str
    name: str
    rights: tuple[str, ...]
    namespaces: tuple[str, ...]
    requests_per_minute: int | None
    bytes_per_day: int | None
    created: str
    last_used: str | None = None
    revoked: str | None = None

    def allows(self, right: Right) -> bool:
        """Return True if the key has the right."""
        return right in self.rights or "admin" in self.rights

    def covers(self, namespace: str) -> bool:
        """Return True if the namespace is one of the key's."""
        return any(
            namespace.startswith(name[:-1]) if name.endswith("*") else namespace == name for name in self.namespaces
        )

    @property
    def only_namespace(self) -> str | None:
        """Namespace of a key that has exactly one."""
        is_one = len(self.namespaces) == 1 and not self.namespaces[0].endswith("*")
        return self.namespaces[0] if is_one else None


class KeyFile:
    """The keys of one file. Changes of other processes, such as a revocation, hold from the next request on."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open the file.

        Args:
            path: The file.
            create: Create a missing one, for its owner alone.

        Raises:
            ConfigError: It is missing, is no file of keys, or other users may read or write it.
        """
        check_path("keys", path, error=ConfigError)
        self.path = path
        if create and not path.exists():
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except OSError as error:
                raise ConfigError(f"{path}: the keys cannot be stored: {error.strerror}") from error
        if not path.is_file():
            raise ConfigError(f"{path}: there are no keys; `memalpha keys add` makes one")
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path}: other users may read or write the keys; chmod 600 {path}")
        try:
            # The server's event loop waits for a lock: a moment, as writers hold it for one statement.
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            self._connection.execute("PRAGMA journal_mode = WAL")  # the server reads while a command writes
            self._connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may take notes of uses, no keys
            self._connection.executescript(_TABLES)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: no file of keys: {error}") from error
        self._file_id = self._read_file_id()
        self._noted: dict[str, float] = {}  # when a use was stored
        self._buckets: dict[str, tuple[float, float]] = {}  # requests left, at which time

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # ------------------------------------------------------------------------------------------------ administration

    def add(
        self,
        name: str,
        rights: Sequence[str],
        namespaces: Sequence[str],
        *,
        requests_per_minute: int | None = None,
        bytes_per_day: int | None = None,
    ) -> tuple[Key, str]:
        """Make a key.

        Args:
            name: Name that no active key has.
            rights: At least one of `RIGHTS`.
            namespaces: Names or prefixes (`user-*`) of namespaces, at least one.
            requests_per_minute: Quota; None is no limit.
            bytes_per_day: Quota of the bodies of writing requests; None is no limit.

        Returns:
            The key and its secret, which is stored nowhere.

        Raises:
            ConfigError: An argument is invalid, or the name is taken.
        """
        for right in rights:
            if right not in RIGHTS:
                raise ConfigError(f"right: {right!r} is none; choose among {', '.join(RIGHTS)}")
        if not rights or not namespaces:
            raise ConfigError(f"{'namespace' if rights else 'right'}: a key needs at least one")
        for field, label in (("name", name), *(("namespace", namespace) for namespace in namespaces)):
            check_label(field, label)
        for field, quota in (("requests-per-minute", requests_per_minute), ("bytes-per-day", bytes_per_day)):
            if quota is not None and quota < 1:
                raise ConfigError(f"{field}: {quota} lets nothing in; at least 1 is needed")
        id, random = secrets.token_hex(6), secrets.token_urlsafe(32)
        secret = f"{PREFIX}{id}_{random}"
        ordered_rights = tuple(right for right in RIGHTS if right in rights)
        unique_namespaces = tuple(dict.fromkeys(namespaces))
        rest = (requests_per_minute, bytes_per_day, _iso_time(), None, None)
        row = (id, name, _hash(secret), " ".join(ordered_rights), "\n".join(unique_namespaces), *rest)
        try:
            self._change("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            raise ConfigError(f"name: an active key is named {name!r}; revoke it, or choose another name") from error
        self._connection.execute("DELETE FROM written WHERE day < ?", (int(time.time() // DAY) - 1,))
        return Key(id, name, ordered_rights, unique_namespaces, *rest), secret

    def list(self) -> list[Key]:
        """Return all keys, revoked ones too, oldest first."""
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY rowid").fetchall()
        return [_key(row) for row in rows]

    def revoke(self, name_or_id: str) -> Key:
        """Revoke an active key: no request with it succeeds from now on. Raises `ConfigError` if there is none."""
        keys = [key for key in self.list() if key.revoked is None and name_or_id in (key.name, key.id)]
        keys.sort(key=lambda key: key.id != name_or_id)  # a name may look like another key's id
        if not keys:
            raise ConfigError(f"{name_or_id}: no active key has this name or id; `memalpha keys list` shows them")
        self._change("UPDATE keys SET revoked = ? WHERE id = ?", (_iso_time(), keys[0].id))
        return next(key for key in self.list() if key.id == keys[0].id)

    def _change(self, statement: str, values: Sequence[object]) -> None:
        """Change the keys; the change outlasts a power cut."""
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(statement, values)

    # ------------------------------------------------------------------------------------------------------- requests

    def authenticate(self, secret: str) -> Key | None:
        """Return the active key with this secret; None if there is none. Note its use and count the request.

        Raises:
            ServiceError: The file cannot be read, or was removed or replaced since it was opened (503), or no request
                is left in the key's quota (429).
        """
        id = secret.removeprefix(PREFIX).partition("_")[0]
        select = f"SELECT hash, {_COLUMNS} FROM keys WHERE id = ? AND revoked IS NULL"
        try:
            if self._read_file_id() != self._file_id:  # the open connection would go on with the old file's keys
                raise sqlite3.OperationalError("the file was removed or replaced: restart the server")
            stored_hash, *row = self._connection.execute(select, (id,)).fetchone() or ("",)
        except sqlite3.Error as error:
            log.error("%s cannot be read", self.path, exc_info=error)
            raise ServiceError("store_error", "the keys cannot be read; the server's log says why", 503) from error
        if not hmac.compare_digest(_hash(secret), stored_hash):
            return None
        key = _key(row)
        now = time.time()
        if now - self._noted.get(key.id, 0.0) > NOTE_SECONDS:
            self._noted[key.id] = now
            try:
                self._connection.execute("UPDATE keys SET last_used = ? WHERE id = ?", (_iso_time(), key.id))
            except sqlite3.Error as error:  # the key is good all the same
                log.error("%s cannot be written", self.path, exc_info=error)
        if key.requests_per_minute is None:
            return key
        rate, now = key.requests_per_minute / 60, time.monotonic()
        left, then = self._buckets.get(key.id, (float(key.requests_per_minute), now))
        left = min(float(key.requests_per_minute), left + (now - then) * rate)
        self._buckets[key.id] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            message = f"this key may send {key.requests_per_minute} requests a minute"
            raise ServiceError("too_many_requests", message, 429, retry_after=ceil((1 - left) / rate))
        return key

    def count_bytes(self, key: Key, size: int) -> None:
        """Take the body of a writing request from the key's quota. Raises `ServiceError` (429) if it is too large."""
        if key.bytes_per_day is None:
            return
        now = time.time()
        values = {"id": key.id, "day": int(now // DAY), "size": size, "quota": key.bytes_per_day}
        try:
            is_counted = size <= key.bytes_per_day and self._connection.execute(_ADD_BYTES, values).rowcount > 0
        except sqlite3.Error as error:
            log.error("%s cannot be written", self.path, exc_info=error)
            raise ServiceError("store_error", "the quota cannot be stored; the server's log says why", 503) from error
        if not is_counted:
            message = f"this key may write {key.bytes_per_day} bytes a day (of UTC)"
            raise ServiceError("too_many_bytes", message, 429, retry_after=ceil(DAY - now % DAY))

    def _read_file_id(self) -> tuple[int, int] | None:
        """Return what tells the file at the path from any other; None if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def check_label(field: str, label: str) -> None:
    """Raise `ConfigError` if a name cannot be stored or printed in one line."""
    try:
        check_text(label)
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from error
    if not label or len(label) > MAX_LABEL or not label.isprintable():
        raise ConfigError(f"{field}: 1 to {MAX_LABEL} printable characters are needed, not {label!r:.80}")


def _key(row: Sequence[object]) -> Key:
    id, name, rights, namespaces, *rest = row
    return Key(id, name, tuple(rights.split()), tuple(namespaces.split("\n")), *rest)  # type: ignore[attr-defined,arg-type]


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _iso_time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class Access:
    """Rights of one request, and the namespace that it is for.

    Attributes:
        namespace: Namespace of the request.
        key: Its key; None is the server's single token, or no token on a loopback address, with all rights.
        keys: File of the key, whose quota writes count against.
        body_size: Bytes of the request's body.
    """

    namespace: str
    key: Key | None = None
    keys: KeyFile | None = None
    body_size: int = 0

    def allows(self, right: Right) -> bool:
        """Return True if the request has the right."""
        return self.key is None or self.key.allows(right)

    def check(self, right: Right) -> None:
        """Count a request that uses `right`.

        Raises:
            ServiceError: The key lacks the right (403), or its bytes of the day are spent (429).
        """
        if not self.allows(right):
            raise ServiceError("forbidden", f"this key lacks the right {right!r}", 403)
        if self.key is not None and self.keys is not None and right in ("write", "read-with-model"):
            self.keys.count_bytes(self.key, self.body_size)


def choose_namespace(header: str | None, key: Key | None, served: str) -> str:
    """Return the namespace of a request.

    Args:
        header: Value of `NAMESPACE_HEADER`; without one, a key of one namespace, or the token, has its own.
        key: The request's key; None is the token.
        served: The token's namespace.

    Raises:
        ServiceError: The name is missing or invalid (422), or not the key's (403), whether it exists or not.
    """
    if header is None:
        name = served if key is None else key.only_namespace
        if name is None:
            raise ServiceError("invalid_arguments", f"this key has several namespaces: send {NAMESPACE_HEADER}: NAME")
        return name
    try:
        name = check_text(unquote(header, errors="strict"))
    except ValueError as error:
        raise ServiceError("invalid_arguments", f"{NAMESPACE_HEADER}: no name in percent-encoded UTF-8") from error
    if not 1 <= len(name) <= MAX_LABEL:
        raise ServiceError("invalid_arguments", f"{NAMESPACE_HEADER}: 1 to {MAX_LABEL} characters are needed")
    if not (name == served if key is None else key.covers(name)):
        raise ServiceError("forbidden", "this key has no such namespace", 403)
    return name


@dataclass
class RequestGuard:
    """Checks of every request, those to /mcp included.

    On a loopback address a web page could point its own name at this server (DNS rebinding). There Host must be a
    loopback name or one of `hosts`, and Origin must equal it. On other addresses the token keeps foreign pages out;
    with `hosts` Host is checked there, too.

    Attributes:
        namespace: Namespace of the token.
        token: The single token, with all rights on `namespace`; None is none.
        keys: Keys with their rights, or None. Without a token and without keys, every request has all rights.
        find_keys: Called for each request while there are no keys, which may be made while the server runs.
        local: Accept only requests for a loopback host, or one of `other_hosts`.
        other_hosts: Names of this server, in lower case and without port, as a proxy in front passes them on.
    """

    namespace: str
    token: str | None
    keys: KeyFile | None
    find_keys: Callable[[], KeyFile | None] | None
    local: bool
    other_hosts: frozenset[str]

    def __post_init__(self) -> None:
        """Hold no body, and read the hosts."""
        self._hosts = self.other_hosts.union(LOOPBACK) if self.local or self.other_hosts else None
        self._body_bytes = 0

    def close(self) -> None:
        """Close the file of the keys, if there is one."""
        if self.keys is not None:
            self.keys.close()

    def check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `ServiceError` if the request is for another host, or was made by a page of another site."""
        if self._hosts is None:
            return
        host, origin = _text(headers, b"host"), headers.get(b"origin")
        if _NOT_IN_HOST.intersection(host) or parse_hostname(host) not in self._hosts:
            how = "this server answers to localhost and the names of --allow-host alone"
            raise ServiceError("foreign_host", how, 421)
        if headers.get(b"sec-fetch-site") == b"cross-site":
            raise ServiceError("foreign_origin", "pages of another site are not let in", 403)
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise ServiceError("foreign_origin", "pages of another origin are not let in", 403)

    def authorize(self, headers: Mapping[bytes, bytes], names: list[bytes], *, for_page: bool) -> Access:
        """Return what the request may do. Raises `ServiceError` without a valid token or key.

        A browser sends what a person typed with every request to this server, also where another site made it ask.
        So Basic is taken for the page alone, which checks that its forms come from itself.

        Args:
            headers: Headers by lower-case name.
            names: Names of all headers, as often as each was sent.
            for_page: The request is for the page.
        """
        for name in ("Authorization", NAMESPACE_HEADER):
            if names.count(name.lower().encode()) > 1:  # a proxy in front may have checked another one than is read
                raise ServiceError("invalid_arguments", f"{name}: the header is sent more than once", 400)
        if self.keys is None and self.find_keys is not None:
            try:
                self.keys = self.find_keys()
            except ConfigError as error:
                log.error("%s", error)
                raise ServiceError("store_error", "the keys cannot be read; the server's log says why", 503) from error
        key, header = None, NAMESPACE_HEADER.lower().encode()
        namespace = _text(headers, header) if header in headers else None
        if self.token is not None or self.keys is not None:
            scheme, _, credential = _text(headers, b"authorization").partition(" ")
            if for_page and scheme.lower() == "basic":
                try:  # name and password (RFC 7617)
                    name, _, credential = base64.b64decode(credential.strip(), validate=True).decode().partition(":")
                except ValueError:
                    name, credential = "", ""
                namespace = quote(name) or namespace
            else:
                credential = credential.strip() if scheme.lower() == "bearer" else ""
            if self.token is None or not hmac.compare_digest(credential.encode(), self.token.encode()):
                key = None if self.keys is None else self.keys.authenticate(credential)
                if key is None:
                    how = "Authorization: Bearer TOKEN"
                    if for_page:
                        how = "the password is the token or a key, the user name the namespace (or empty)"
                    reason = "this token or key is unknown or revoked" if credential else "a token is needed"
                    raise ServiceError("unauthorized", f"{reason}: {how}", 401)
        return Access(choose_namespace(namespace, key, self.namespace), key, self.keys)

    async def read_body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client has gone. The caller gives it back to `forget_body`.

        Raises:
            ServiceError: The body is too large or too slow, or too many others are held.
        """
        body, is_whole, declared = bytearray(), False, _text(headers, b"content-length")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if declared.isdecimal() and int(declared) > MAX_BODY:
                    raise await _refuse_body(receive, has_more=b"expect" not in headers)
                while not is_whole and (message := await receive())["type"] == "http.request":
                    part, has_more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(part) > MAX_BODY:
                        raise await _refuse_body(receive, has_more=has_more)
                    if self._body_bytes + len(part) > MAX_BODIES:
                        raise ServiceError("busy", "too many large requests at one time; try again later", 503)
                    body += part
                    self._body_bytes += len(part)
                    is_whole = not has_more
        except TimeoutError:
            raise ServiceError("slow_body", f"the body did not come within {BODY_SECONDS:g} s", 408) from None
        finally:
            if not is_whole:
                self.forget_body(body)
        return bytes(body) if is_whole else None

    def forget_body(self, body: bytes | bytearray) -> None:
        """Count the bytes of a body as free."""
        self._body_bytes -= len(body)


async def _refuse_body(receive: Receive, *, has_more: bool) -> ServiceError:
    """Return the error of a body that is too large, of which the rest is read for a while.

    A proxy that is still sending as the connection closes answers 502.
    """
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while has_more and size <= MAX_DISCARDED:
                message = await receive()
                size += len(message.get("body", b""))
                has_more = message["type"] == "http.request" and message.get("more_body", False)
    return ServiceError("too_large", f"body: more than {MAX_BODY} bytes", 413)


@lru_cache(1000)
def parse_hostname(host: str) -> str | None:
    """Return a Host in lower case and without port; None if it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
