"""The page at / for browsers, and its forms: they change the memory only where the server was started for that.

A browser sends the key that a person typed (HTTP Basic) with every request to this server, also with one that a page of
another site made it send. So a form is taken only from this server's own page, by two signs: the browser names the same
origin, and the form has a token that is made of the key and that no other site can read.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from memalpha.errors import ConfigError, install_command
from memalpha.integrations.server.guard import SCOPE, Access, granted
from memalpha.integrations.server.keys import Right
from memalpha.integrations.server.schemas import MAX_CONTENT, MAX_QUERY, ServiceError
from memalpha.integrations.server.service import MemoryService
from memalpha.store.store import MemoryStore

try:
    from pydantic import Field
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
except ModuleNotFoundError as error:
    if error.name != "starlette":
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from None

PAGE = "/"
"""The page for browsers. They ask for its key themselves (HTTP Basic), which opens no other path."""
PAGE_SOURCE = "page"
"""Source of what is edited on the page."""
MAX_FIELDS = 8
_FORM_TYPE = "application/x-www-form-urlencoded"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page's own policy says the rest
    "Referrer-Policy": "same-origin",  # with "no-referrer" a browser would not name the origin of a form
    "X-Content-Type-Options": "nosniff",
}
_SECRET = secrets.token_bytes(32)
ACTIONS: dict[str, Right] = {
    "update": "write",
    "delete": "write",
    "undo": "write",
    "accept": "review",
    "reject": "review",
}
"""Actions of forms, and the right that each needs."""


class PageRenderer(Protocol):
    """Function that renders the page: `report.memory_page.render_memory_page`."""

    def __call__(
        self,
        store: MemoryStore,
        query: str = "",
        *,
        token: str = "",
        can_write: bool = False,
        can_review: bool = False,
        done: str = "",
        failure: str = "",
        draft: str = "",
    ) -> str:
        """Return the page of a store's namespace as HTML."""
        ...


@dataclass(frozen=True, slots=True)
class SentForm:
    """A form that a browser sent.

    Attributes:
        action: One of `ACTIONS`.
        token: Token of the page that had the form.
        id: Entry of an update or a delete.
        position: Position that the reader saw: of the entry's version, of the last change, or of what waits.
        content: New content of an update.
    """

    action: str
    token: str
    id: str
    position: int
    content: str


def page_calls(service: MemoryService, render: PageRenderer, *, edits: bool) -> dict[str, Callable[..., Any]]:
    """Return the functions that answer the page and, if the server takes them, its forms, by HTTP method.

    Args:
        service: Memory of the namespace that the server was started with.
        render: Renders the page.
        edits: Take forms from readers whose keys have the rights.
    """

    async def page(
        request: Request,
        q: Annotated[str, Field(max_length=MAX_QUERY)] = "",
        done: Annotated[str, Field(max_length=20)] = "",
    ) -> Response:
        memory = granted(service, _access(request), "read")
        rights = _rights(request, memory, edits)
        text = await memory.reading(lambda store: render(store, q, done=done, **rights))
        return HTMLResponse(text, headers=_HEADERS)

    async def submit(request: Request, content: bytes) -> Response:
        form = _parse_form(request.headers.get("content-type", ""), content)
        memory = granted(service, _access(request), ACTIONS[form.action])
        _check_own_page(request, form)
        try:
            await memory.writing(lambda store: _apply(store, form))
        except ServiceError as error:
            if error.status not in (404, 409, 422) or not _access(request).allows("read"):
                raise
            shown: dict[str, Any] = {"failure": error.message, "draft": form.content}
            shown |= _rights(request, memory, edits)
            text = await memory.reading(lambda store: render(store, **shown))
            return HTMLResponse(text, error.status, headers=_HEADERS)
        return RedirectResponse(f"{PAGE}?done={form.action}", 303, headers=_HEADERS)

    return {"GET": page, "POST": submit} if edits else {"GET": page}


def _access(request: Request) -> Access:
    return request.scope[SCOPE]


def _rights(request: Request, service: MemoryService, edits: bool) -> dict[str, Any]:
    """Return the token of the reader's forms and what they may do; without `edits` nothing."""
    access = _access(request)
    if not edits or service.read_only:
        return {}
    return {"token": _token(request), "can_write": access.allows("write"), "can_review": access.allows("review")}


def _token(request: Request) -> str:
    """Return the token of the reader's forms: it belongs to his key and his namespace, in every server process."""
    credential = request.headers.get("authorization", "").encode("latin-1") or _SECRET
    message = f"memalpha page|{_access(request).namespace}".encode("utf-8", "surrogatepass")
    return hmac.new(credential, message, sha256).hexdigest()


def _check_own_page(request: Request, form: SentForm) -> None:
    """Raise `ServiceError` unless the form comes from a page that this server gave this reader."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None:
        is_same_origin = request.headers.get("sec-fetch-site") == "same-origin"
    else:
        is_same_origin = bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    if not is_same_origin:
        raise ServiceError("foreign_origin", "forms are taken from this server's own page alone", 403)
    if not hmac.compare_digest(form.token.encode("utf-8", "surrogatepass"), _token(request).encode()):
        raise ServiceError("stale_page", "this page is not yours, or the server was started anew: load it again", 403)


def _parse_form(content_type: str, body: bytes) -> SentForm:
    if content_type.partition(";")[0].strip().lower() != _FORM_TYPE:
        raise ServiceError("invalid_arguments", f"body: a form is needed ({_FORM_TYPE})", 422)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a field is sent twice")
        position = int(fields.get("position", ""))
    except ValueError as error:
        raise ServiceError("invalid_arguments", f"body: no form of this page: {error}", 422) from error
    action = fields.get("action", "")
    if action not in ACTIONS:
        raise ServiceError("invalid_arguments", f"action: none of {', '.join(ACTIONS)}", 422)
    content = fields.get("content", "").replace("\r\n", "\n")
    return SentForm(action, fields.get("token", ""), fields.get("id", ""), position, content)


def _apply(store: MemoryStore, form: SentForm) -> None:
    """Do what a form says, in one transaction, if the memory is what its reader saw."""
    if form.action in ("accept", "reject"):
        store.review(form.position, accept=form.action == "accept")
        return
    with store.transaction():
        if form.action == "undo":
            if store.snapshot() != form.position:
                raise ServiceError("conflict", "somebody changed the memory since: look at the last change again", 409)
            store.undo()
        else:
            _change_entry(store, form)


def _change_entry(store: MemoryStore, form: SentForm) -> None:
    if store.get(form.id).valid_from != form.position:
        raise ServiceError("conflict", "somebody changed this entry since: look at what it says now", 409)
    if form.action == "delete":
        store.delete(form.id, source=PAGE_SOURCE)
        return
    if len(form.content) > MAX_CONTENT:
        message = f"content: of {len(form.content)} characters; {MAX_CONTENT} is the limit"
        raise ServiceError("invalid_arguments", message, 422)
    store.update(form.id, form.content, source=PAGE_SOURCE)
