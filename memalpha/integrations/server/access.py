"""Who asks, and for which namespace: checked once for every request, over HTTP and MCP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from memalpha.integrations.server.keys import Key, KeyFile, Right
from memalpha.integrations.server.schemas import MAX_LABEL, ServiceError, check_text
from memalpha.integrations.server.service import MemoryService
from memalpha.store.trust.provenance import WRITER

NAMESPACE_HEADER = "Memalpha-Namespace"
"""Header with the namespace of a request, percent-encoded as in a URL."""
SCOPE = "memalpha.access"
"""Name of a request's `Access` in its ASGI scope."""


@dataclass(frozen=True)
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


def granted(service: MemoryService, scope: Any, right: Right) -> MemoryService:
    """Return the memory of a request's namespace.

    Every route gets its memory here, so no route can forget to ask for a right.

    Args:
        service: Memory of the namespace that the server was started with.
        scope: ASGI scope of the request, with its `Access`.
        right: The right that the request uses.

    Raises:
        ServiceError: The request lacks the right, or its quota is spent.
    """
    access: Access = scope[SCOPE]
    access.check(right)
    if access.key is not None:
        WRITER.set({"key": access.key.name})  # of this request's task
    return service.namespace(access.namespace)
