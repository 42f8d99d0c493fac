"""HTTP API of a memory under /v1, described by /v1/openapi.json; every error is `{code, message}`.

The application handles a request in one pass: its record, the checks of the guard, one validation of what it sends,
one encoding of the answer. FastAPI writes the description of the same routes, when it is first asked for.

Browsers have a page at /, whose forms change the memory only where the server was started for that. A browser sends
the key that a person typed (HTTP Basic) with every request to this server, also with one that a page of another site
made it send. So a form is taken only from this server's own page, by two signs: the browser names the same origin, and
the form has a token that is made of the key and that no other site can read.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from memalpha import __version__
from memalpha.agent.tools import format_validation_error
from memalpha.arguments import RepeatedKeyError, unique_keys
from memalpha.errors import DuplicateContent, required_packages
from memalpha.integrations.server import schemas
from memalpha.integrations.server.auth import NAMESPACE_HEADER, SCOPE, Access, KeyFile, RequestGuard, Right
from memalpha.integrations.server.schemas import HTTP_SOURCE, Label, Limit, Position, ServiceError, Time
from memalpha.integrations.server.service import MemoryService, check_answer_size, read_log
from memalpha.integrations.server.telemetry import REQUEST_ID_HEADER, UNKNOWN, RequestRecord, Telemetry
from memalpha.store.io.jsonl import to_json
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

with required_packages("serving HTTP", "starlette", extra="serve"):
    from starlette.background import BackgroundTask
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
    from starlette.routing import Router, compile_path
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

HEALTH, LIVE, READY, METRICS = "/v1/health", "/health/live", "/health/ready", "/metrics"
OPEN = frozenset({HEALTH, LIVE, READY})
"""Paths that need no token."""
RETRY_SECONDS = 5
"""After how long a client may ask again that was told to wait."""
WATCH_SECONDS = 0.05
"""Time of a request after which the server looks whether its client has gone."""

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

_ERRORS = {
    400: "unreadable request",
    401: "missing or wrong token or key",
    403: "not allowed, or a right is missing",
    404: "no such entry",
    408: "the body came too slowly",
    409: "another entry has this content",
    413: "too large",
    421: "the request is for another host",
    422: "invalid arguments",
    429: "too many requests wait for the policy, or a quota is spent",
    500: "the server failed",
    502: "the policy did not answer",
    503: "the store failed, or the server is busy or closing",
    504: "it took too long and was stopped",
}
"""Errors of every route, for the description."""


class Route:
    """A method, a path, and the function that answers.

    The names of its parameters say what it takes: `service` (the memory that the request has `right` on), `request`,
    `content` (the body's bytes), `body` (the body's JSON), `id` (of the path), and others of the query. One pydantic
    model checks their types.
    """

    def __init__(
        self,
        method: str,
        path: str,
        call: Callable[..., Any],
        right: Right | None = None,
        *,
        status: int = 200,
        takes_any_query: bool = False,
    ) -> None:
        """Read the function's signature.

        Args:
            method: HTTP method.
            path: Path, with `{id:path}` for an id.
            call: A coroutine function. It returns a response or a value to encode, or a pair of a value and its status.
            right: The right that it uses; None if it asks for none, or by itself.
            status: Status of its answers.
            takes_any_query: Ignore parameters of the query that it does not have.
        """
        self.method, self.path, self.call = method, path, call
        self.right: Right | None = right
        self.status = status
        self.pattern = compile_path(path)[0]
        self.parameters = inspect.signature(call).parameters
        self.hints = get_type_hints(call, include_extras=True)
        result = self.hints["return"]
        self.result = get_args(result)[0] if get_origin(result) is tuple else result
        self.has_response = isinstance(self.result, type) and issubclass(self.result, Response)
        self._encoder = TypeAdapter(Any if self.has_response else self.result)
        fields: dict[str, Any] = {
            name: (self.hints[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in self.parameters.items()
            if name not in ("service", "request", "content")
        }
        self._arguments = create_model(call.__name__, **fields) if fields else None
        self._names, self._takes_any_query = fields.keys() - {"id", "body"}, takes_any_query

    def encode(self, value: Any) -> bytes:
        """Return a value as JSON."""
        try:
            return self._encoder.dump_json(value)
        except PydanticSerializationError:  # half of a surrogate pair, which metadata may hold
            python = self._encoder.dump_python(value, mode="json")
            return to_json(python, allow_nan=False, separators=(",", ":")).encode()

    async def answer(
        self, scope: Scope, headers: Mapping[bytes, bytes], content: bytes, ids: Mapping[str, str], service: Any
    ) -> Any:
        """Check a request and return the function's result.

        Args:
            scope: ASGI scope, with the request's `Access`.
            headers: Headers by lower-case name.
            content: The body.
            ids: Parameters of the path.
            service: Memory of the namespace that the server was started with.

        Raises:
            ServiceError: The request is invalid or not allowed, or it failed.
        """
        sent: dict[str, Any] = {"body": _parse_json(headers, content)} if "body" in self.parameters and content else {}
        query = QueryParams(scope["query_string"]) if scope["query_string"] else QueryParams()
        for name in () if self._takes_any_query else query:
            if name not in self._names:
                raise ServiceError("invalid_arguments", f"query.{name}: there is no such parameter")
            if len(query.getlist(name)) > 1:
                raise ServiceError("invalid_arguments", f"query.{name}: is sent more than once")
        context: dict[str, Any] = {"request": Request(scope), "content": content}
        if self.right is not None:
            context["service"] = service.granted(scope[SCOPE], self.right)
        values = {name: value for name, value in context.items() if name in self.parameters}
        if self._arguments is not None:
            sent |= {**{name: query[name] for name in query if name in self._names}, **ids}
            try:
                values |= vars(self._arguments.model_validate(sent, from_attributes=True))
            except ValidationError as error:
                raise ServiceError("invalid_arguments", _message(error, sent.get("body"))) from error
        return await self.call(**values)


def _parse_json(headers: Mapping[bytes, bytes], content: bytes) -> Any:
    """Return the JSON value of a body, and the bytes of one that says it is none."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return content
    try:
        return json.loads(content, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise ServiceError("invalid_arguments", f"body.{error}") from error
    except json.JSONDecodeError as error:
        raise ServiceError("invalid_arguments", f"body.{error.pos}: JSON decode error") from error
    except (ValueError, RecursionError) as error:  # compressed, other encodings, numbers of thousands of digits
        raise ServiceError("bad_request", f"body: JSON in UTF-8 is needed, uncompressed: {error}", 400) from error


def _message(error: ValidationError, body: Any) -> str:
    """Return what is wrong with a request, each part with its path, without the names of validators."""
    messages = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        names, message = [str(part) for part in item["loc"] if "[" not in str(part)], item["msg"]
        if names[0] != "body":
            names.insert(0, "path" if names[0] == "id" else "query")
        elif isinstance(body, bytes):
            message = "send the header Content-Type: application/json"
        messages.append(f"{'.'.join(names)}: {message}")
    return "; ".join(messages)


_ROUTES: list[Route] = []
AsOf = Annotated[Position | Time | None, Field(description="a past state: log position or ISO time")]
Id = Annotated[Label, Field(description="the entry's id; write '#' in it as %23")]


def _route(method: str, path: str, right: Right, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the routes of the API."""

    def add(call: Callable[..., Any]) -> Callable[..., Any]:
        _ROUTES.append(Route(method, f"/v1{path}", call, right, **options))
        return call

    return add


@_route("POST", "/read", "read-with-model")
async def read(service: MemoryService, body: schemas.ReadRequest) -> schemas.ReadResponse:
    """Let the writer read a text, chunk by chunk, and return its tool calls."""
    return await service.read(body, source=HTTP_SOURCE)


@_route("POST", "/ask", "read")
async def ask(service: MemoryService, body: schemas.AskRequest) -> schemas.AskResponse:
    """Answer a question from the memory alone."""
    answer = await service.ask(body.question, body.k, where=body.where)
    return schemas.AskResponse(answer.text, answer.abstained, answer.conflict, answer.hits, answer.truncated)


@_route("POST", "/search", "read")
async def search(service: MemoryService, body: schemas.FilteredSearchRequest) -> schemas.SearchResponse:
    """Return the entries nearest to a query, with the parts of their scores."""
    hits = await service.search(body.query, body.k, category=body.category, where=body.where, as_of=body.as_of)
    return schemas.SearchResponse(hits)


@_route("GET", "/entries", "read")
async def list_entries(
    service: MemoryService,
    category: Label | None = None,
    limit: Limit = 50,
    after: Label | None = None,
    as_of: AsOf = None,
) -> schemas.EntryPage:
    """Return a page of entries, oldest first, and the core memory.

    Args:
        category: Only this category.
        limit: Maximum number of entries.
        after: Id that ended the last page.
        as_of: A past state.
    """
    return await service.page(category, limit, after, as_of=as_of)


@_route("POST", "/entries", "write", status=201)
async def insert(service: MemoryService, body: schemas.InsertRequest) -> tuple[MemoryEntry, int]:
    """Store a fact. What the memory states already, with the same metadata, is not stored again."""

    def insert(store: MemoryStore) -> tuple[Any, int]:
        try:
            return store.change(Operation("insert", **body.model_dump())).entry, 201
        except DuplicateContent as duplicate:
            return store.get(duplicate.entry_id), 200

    return await service.writing(insert)


@_route("GET", "/entries/{id:path}", "read")
async def get(service: MemoryService, id: Id, as_of: AsOf = None) -> MemoryEntry:
    """Return an entry of the current or a past state."""
    return await service.reading(lambda store: store.get(id, as_of=as_of), at_once="read" if as_of is None else None)


@_route("PATCH", "/entries/{id:path}", "write")
async def update(service: MemoryService, id: Id, body: schemas.UpdateRequest) -> MemoryEntry:
    """Change content or fields of an entry; its id and history stay."""
    return await service.writing(lambda store: store.update(id, **body.model_dump()))


@_route("DELETE", "/entries/{id:path}", "write")
async def delete(service: MemoryService, id: Id) -> MemoryEntry:
    """Delete an entry and return its last version; its history stays."""
    return await service.writing(lambda store: store.delete(id, source=HTTP_SOURCE))


@_route("GET", "/history/{id:path}", "read")
async def history(service: MemoryService, id: Id) -> schemas.HistoryResponse:
    """Return every version of an entry, deleted or not."""
    versions = await service.reading(lambda store: store.history(id))
    check_answer_size(versions, "read it with as_of, or /v1/log")
    return schemas.HistoryResponse(versions)


@_route("DELETE", "/history/{id:path}", "erase")
async def erase(service: MemoryService, id: Id) -> schemas.EraseResponse:
    """Erase an entry for good, live or deleted, with all of its past."""
    return await service.erase(id)


@_route("POST", "/erase", "erase")
async def erase_matching(service: MemoryService, body: schemas.EraseRequest) -> schemas.EraseResponse:
    """Erase all entries for good of which any version, live or past, passes a filter."""
    return await service.erase(where=body.where)


@_route("GET", "/core", "read")
async def core(service: MemoryService, as_of: AsOf = None) -> schemas.CoreResponse:
    """Return the core memory."""
    text = await service.reading(lambda store: store.core_at(as_of), at_once="read" if as_of is None else None)
    return schemas.CoreResponse(text)


@_route("PUT", "/core", "write")
async def set_core(service: MemoryService, body: schemas.CoreRequest) -> schemas.CoreResponse:
    """Replace the core memory."""
    if not service.schema.core:
        raise ServiceError("no_core_memory", f"the schema {service.schema.name!r} has no core memory")

    def rewrite(store: MemoryStore) -> str:
        store.core_update(body.content, source=HTTP_SOURCE)
        return store.core

    return schemas.CoreResponse(await service.writing(rewrite))


@_route("GET", "/log", "read")
async def log(service: MemoryService, after: Position = 0, limit: Limit = 100) -> schemas.LogResponse:
    """Return the operations after a position of the log."""
    return schemas.LogResponse(await service.reading(lambda store: read_log(store, after, limit)))


@_route("GET", "/export", "read")
async def export(service: MemoryService) -> FileResponse:
    """Return the whole log as JSON Lines, the format of `memalpha export` and `memalpha import`."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(TemporaryDirectory(prefix="memalpha-export-"))) / "log.jsonl"
        await service.reading(lambda store: store.export_jsonl(file), has_deadline=False)
        return FileResponse(file, media_type="application/x-ndjson", background=BackgroundTask(stack.pop_all().close))


class SentForm(BaseModel):
    """A form that a browser sent.

    Attributes:
        action: What to do; `ACTIONS` has the right that it needs.
        position: Position that the reader saw: of the entry's version, of the last change, or of what waits.
        token: Token of the page that had the form.
        id: Entry of an update or a delete.
        content: New content of an update.
    """

    action: Literal["update", "delete", "undo", "accept", "reject"]
    position: int
    token: str = ""
    id: str = ""
    content: str = ""


def page_calls(service: MemoryService, render: Callable[..., str], *, edits: bool) -> dict[str, Callable[..., Any]]:
    """Return the functions that answer the page and, if the server takes them, its forms, by HTTP method.

    Args:
        service: Memory of the namespace that the server was started with.
        render: Renders the page (`report.memory_page.render_memory_page`).
        edits: Take forms from readers whose keys have the rights.
    """

    async def show(request: Request, memory: MemoryService, status: int = 200, **shown: Any) -> Response:
        access: Access = request.scope[SCOPE]
        if edits and not memory.read_only:  # else the page has no forms
            shown |= {"can_write": access.allows("write"), "can_review": access.allows("review")}
            shown["token"] = _token(request)
        text = await memory.reading(lambda store: render(store, **shown))
        return HTMLResponse(text, status, headers=_HEADERS)

    async def page(
        request: Request,
        q: Annotated[str, Field(max_length=schemas.MAX_QUERY)] = "",
        done: Annotated[str, Field(max_length=20)] = "",
    ) -> Response:
        return await show(request, service.granted(request.scope[SCOPE], "read"), query=q, done=done)

    async def submit(request: Request, content: bytes) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
            raise ServiceError("invalid_arguments", f"body: a form is needed ({_FORM_TYPE})", 422)
        try:
            text = content.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
            if len(dict(pairs)) != len(pairs):
                raise ValueError("a field is sent twice")
            form = SentForm.model_validate({name: text.replace("\r\n", "\n") for name, text in pairs})
        except ValidationError as error:
            raise ServiceError("invalid_arguments", format_validation_error(error)) from error
        except ValueError as error:
            raise ServiceError("invalid_arguments", f"body: no form of this page: {error}") from error
        memory = service.granted(request.scope[SCOPE], ACTIONS[form.action])
        _check_own_page(request, form)
        try:
            await memory.writing(lambda store: _apply(store, form))
        except ServiceError as error:
            if error.status not in (404, 409, 422) or not request.scope[SCOPE].allows("read"):
                raise
            return await show(request, memory, error.status, failure=error.message, draft=form.content)
        return RedirectResponse(f"{PAGE}?done={form.action}", 303, headers=_HEADERS)

    return {"GET": page, "POST": submit} if edits else {"GET": page}


def _token(request: Request) -> str:
    """Return the token of the reader's forms: it belongs to his key and his namespace, in every server process."""
    credential = request.headers.get("authorization", "").encode("latin-1") or _SECRET
    message = f"memalpha page|{request.scope[SCOPE].namespace}".encode("utf-8", "surrogatepass")
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
        elif store.get(form.id).valid_from != form.position:
            raise ServiceError("conflict", "somebody changed this entry since: look at what it says now", 409)
        elif form.action == "delete":
            store.delete(form.id, source=PAGE_SOURCE)
        elif len(form.content) > schemas.MAX_CONTENT:
            message = f"content: of {len(form.content)} characters; {schemas.MAX_CONTENT} is the limit"
            raise ServiceError("invalid_arguments", message, 422)
        else:
            store.update(form.id, form.content, source=PAGE_SOURCE)


class HttpApp:
    """ASGI application of a served memory.

    Attributes:
        service: The memory.
        guard: What it lets in.
        needs_token: True if requests need a token or a key.
        extras: Paths of what it serves beside the API, by name.
    """

    def __init__(
        self,
        service: MemoryService,
        *,
        token: str | None = None,
        keys: KeyFile | None = None,
        find_keys: Callable[[], KeyFile | None] | None = None,
        local: bool = True,
        hosts: Collection[str] = (),
        log_requests: bool = False,
        mcp: Server[Any] | None = None,
        page: Callable[..., str] | None = None,
        page_edits: bool = False,
    ) -> None:
        """Prepare what serves a store.

        Args:
            service: The memory; the caller closes it. Keys may reach other namespaces of its store, too.
            token: Has all rights on the service's namespace; None is none.
            keys: Keys with their rights, closed by `guard.close`. Every request but that for health needs the token
                or a key, unless there are neither.
            find_keys: Returns the keys once they were made, while `keys` is None.
            local: The server listens on a loopback address, and only requests for such a host are accepted.
            hosts: Names that requests may be for besides localhost, as a proxy in front passes them on.
            log_requests: Write one JSON line for each request to stderr.
            mcp: MCP server to serve at /mcp beside the API.
            page: Renders the page at / (`report.memory_page.render_memory_page`); None serves no page.
            page_edits: Take the forms of the page from readers who have the rights.
        """
        self.service, self.needs_token = service, bool(token or keys)
        self.guard = RequestGuard(service.name, token, keys, find_keys, local, frozenset(hosts))
        self._telemetry = Telemetry(log=log_requests)
        self._description: bytes | None = None
        check: asyncio.Task[int] | None = None  # health needs no token: callers take at most one store thread

        async def health() -> schemas.HealthResponse:
            """Check that the store answers. Needs no token."""
            nonlocal check
            if check is None or check.done() or check.get_loop() is not asyncio.get_running_loop():
                check = asyncio.create_task(service.reading(lambda store: store.snapshot()))
            await asyncio.shield(check)
            return schemas.HealthResponse()

        async def live() -> schemas.HealthResponse:  # without the store: restart the process only if this fails
            return schemas.HealthResponse()

        async def metrics(request: Request) -> Response:
            request.scope[SCOPE].check("admin")
            headers = {"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"}
            return Response(generate_latest(self._telemetry.registry), headers=headers)

        async def openapi() -> Response:
            if self._description is None:
                description = await asyncio.to_thread(self.openapi)
                self._description = json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode()
            return Response(self._description, media_type="application/json")

        calls = {HEALTH: health, READY: health, LIVE: live, METRICS: metrics, "/v1/openapi.json": openapi}
        opened = [Route("GET", path, call, takes_any_query=True) for path, call in calls.items()]
        self._health = opened[0]
        forms = {} if page is None else page_calls(service, page, edits=page_edits)
        self._routes = [*opened, *(Route(method, PAGE, call) for method, call in forms.items()), *_ROUTES]
        self.extras = ({"MCP": "/mcp"} if mcp else {}) | ({"a page": PAGE} if page else {})
        self._mcp: ASGIApp | None = None
        sessions = None
        if mcp is not None:
            from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

            # Stateless: no tool needs a session, so clients survive a restart of the server.
            sessions = StreamableHTTPSessionManager(mcp, stateless=True, max_request_body_size=schemas.MAX_BODY)
            self._mcp = StreamableHTTPASGIApp(sessions)

        # Of what is no request.
        self._router = Router(lifespan=lambda app: nullcontext() if sessions is None else sessions.run())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and record how it ended.

        Args:
            scope: ASGI scope of the connection.
            receive: Source of the request's messages.
            send: Sink of the response's messages.
        """
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        sent_headers: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(reversed(sent_headers))  # the first of a name counts
        is_answering = False

        async def note_and_send(message: Message) -> None:
            nonlocal is_answering
            if message["type"] == "http.response.start":
                record.status, is_answering = message["status"], True
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, record.id.encode())]
            elif message["type"] == "http.response.body":
                record.sent += len(message.get("body", b""))
            await send(message)

        with self._telemetry.observe(scope["method"], scope["path"], headers) as record:
            try:
                await self._serve(scope, headers, receive, note_and_send, record)
            except ServiceError as error:
                await _error_response(error, scope["path"])(scope, receive, note_and_send)
            except Exception:
                if not is_answering:
                    error = ServiceError("internal_error", "the server failed; its log says why", 500)
                    await _error_response(error, "")(scope, receive, note_and_send)
                record.status = 500
                raise  # the server logs it

    async def _serve(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        """Check a request and answer it; what is done for a client that has gone is dropped unless it is a write."""
        path, guard = scope["path"], self.guard
        guard.check_origin(headers)
        access = None
        if path not in OPEN:
            access = guard.authorize(headers, [name for name, _ in scope["headers"]], for_page=path == PAGE)
        content = await guard.read_body(headers, receive)
        if content is None:
            return
        try:
            if access is not None:
                access.body_size = record.received = len(content)
                record.key = None if access.key is None else access.key.name
                record.namespace, scope[SCOPE] = access.namespace, access
            if path == "/mcp" and self._mcp is not None:
                record.route = path
                messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

                async def replay() -> Message:
                    return messages.pop() if messages else await receive()

                await self._mcp(scope, replay, send)
                return
            route, ids = self._find(scope["method"], path, record)
            with _watch_client(receive) if path.startswith("/v1/") else nullcontext():
                result, status = await route.answer(scope, headers, content, ids, self.service), route.status
                if isinstance(result, Response):
                    await result(scope, receive, send)
                    return
                if type(result) is tuple:
                    result, status = result
                data = route.encode(result)
                fields = [(b"content-length", b"%d" % len(data)), (b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": status, "headers": fields})
                await send({"type": "http.response.body", "body": data})
        finally:
            guard.forget_body(content)

    def _find(self, method: str, path: str, record: RequestRecord) -> tuple[Route, dict[str, str]]:
        """Return the route of a request and the parameters in its path. Raises `ServiceError` if there is none."""
        method = "GET" if method == "HEAD" else method  # the server sends no body then
        record.route = "/mcp" if path == "/mcp" or path.startswith("/mcp/") else UNKNOWN
        methods: list[str] = []
        for route in self._routes:
            if (match := route.pattern.match(path)) is None:
                continue
            record.route = route.path
            if route.method == method:
                return route, match.groupdict()
            methods += ["GET", "HEAD"] if route.method == "GET" else [route.method]
        status, headers = (405, {"Allow": ", ".join(methods)}) if methods else (404, {})
        phrase = HTTPStatus(status).phrase
        raise ServiceError(phrase.lower().replace(" ", "_"), phrase, status, headers=headers)

    def openapi(self) -> dict[str, Any]:
        """Return the API description."""
        from fastapi import Depends, FastAPI, Header
        from fastapi.security import HTTPBearer

        app = FastAPI(
            title="memalpha",
            version=__version__,
            description="A long-term memory, and the writer that keeps it.",
            generate_unique_id_function=lambda route: route.name,
            responses={
                status: {"model": schemas.ErrorResponse, "description": text} for status, text in _ERRORS.items()
            },
        )
        about = "namespace, percent-encoded; a key of one namespace has its own by default"
        header = Annotated[str | None, Header(alias=NAMESPACE_HEADER, description=about)]
        namespace = inspect.Parameter("service", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=header)
        for route in (self._health, *_ROUTES):
            parameters = [
                namespace if name == "service" else parameter.replace(kind=namespace.kind, annotation=route.hints[name])
                for name, parameter in route.parameters.items()
            ]

            async def call() -> None: ...

            call.__name__, call.__doc__ = route.call.__name__, route.call.__doc__
            call.__signature__ = inspect.Signature(parameters)
            responses: dict[int | str, dict[str, Any]] = {}
            extra: dict[str, Any] = {"response_model": route.result}
            if route.has_response:
                responses[200] = {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
                extra = {"response_class": route.result}
            elif route.status == 201:
                text = "the entry existed already and is unchanged"
                responses[200] = {"model": route.result, "description": text}
            if self.needs_token and route is not self._health:
                extra["dependencies"] = [Depends(HTTPBearer(auto_error=False))]
            app.add_api_route(
                route.path, call, methods=[route.method], status_code=route.status, responses=responses, **extra
            )
        return app.openapi()


@contextmanager
def _watch_client(receive: Receive) -> Iterator[None]:
    """Cancel the block if the client leaves before it has its answer; what has begun to write is written."""
    task, has_left = asyncio.current_task(), False
    watches: list[asyncio.Task[None]] = []
    assert task is not None

    async def wait() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, lambda: watches.append(asyncio.create_task(wait())))
    try:
        yield
    except asyncio.CancelledError:
        if not has_left or task.uncancel() > 0:
            raise
    finally:
        timer.cancel()
        for watch in watches:
            watch.cancel()


def _error_response(error: ServiceError, path: str) -> Response:
    """Return the response `{code, message}` of a failed request."""
    headers = dict(error.headers)
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after or RETRY_SECONDS)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="memalpha", charset="UTF-8"' if path == PAGE else "Bearer"
    text = to_json({"code": error.code, "message": error.message}, separators=(",", ":"))
    return Response(text.encode(), error.status, headers, "application/json")
