"""A memory as an HTTP API under /v1, described by /v1/openapi.json; every failure is `{code, message}`.

`Gate` stands before all of it, the MCP endpoint at /mcp included: who may come in, and with how much.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from memalpha import __version__
from memalpha.errors import ConfigError
from memalpha.integrations.server.schemas import (
    MAX_BODY,
    MAX_CONTENT,
    Asked,
    Content,
    Count,
    Importance,
    Label,
    Limit,
    List,
    Logged,
    Page,
    Plain,
    Position,
    Query,
    Read,
    Reading,
    Refused,
    Search,
    Time,
    clean,
)
from memalpha.integrations.server.service import MemoryService
from memalpha.store.io.jsonl import json_text
from memalpha.types import Hit, MemoryEntry

try:
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi import Path as InPath
    from fastapi import Query as InQuery
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse
    from fastapi.security import HTTPBearer
    from starlette.background import BackgroundTask
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    if error.name not in ("fastapi", "starlette"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: pip install 'memalpha[serve]'") from error

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEALTH = "/v1/health"
_SOURCE = "http"


@dataclass(frozen=True, slots=True)
class Error:
    """Why a request was not done."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Health:
    """The server is there, and so is its store."""

    status: str = "ok"


@dataclass(frozen=True, slots=True)
class Found:
    """Hits, best first."""

    hits: list[Hit]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the entries it was read from. `abstained`: the memory does not hold it; `conflict`: it holds two
    that contradict each other."""

    answer: str
    abstained: bool
    conflict: bool
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions of an entry, oldest first."""

    versions: list[MemoryEntry]


@dataclass(frozen=True, slots=True)
class Log:
    """Operations as they were logged, in order."""

    operations: list[Logged]


@dataclass(frozen=True, slots=True)
class Core:
    """The core memory."""

    content: str


class Ask(Asked):
    """A question to be answered from the memory alone."""

    question: Query
    k: Count = Field(default=8, description="entries that the answer is read from")


class WideSearch(Search):
    """A search with a filter over fields and metadata, of now or of a past state."""

    where: Plain | None = Field(default=None, description='such as {"user": "ana", "importance": {"$gte": 0.5}}')
    as_of: Position | Time | None = Field(default=None, description="a position of the log, or an ISO time")


class New(Asked):
    """A fact to store."""

    category: Label
    content: Content
    timestamp: Time | None = Field(default=None, description="ISO date it happened")
    importance: Importance = 1.0
    metadata: Plain | None = None
    expires: Time | None = Field(default=None, description="ISO time from which it is gone")
    source: Label = _SOURCE


class Changed(Asked):
    """What an entry says from now on; what is left out stays, but for the timestamp of another content."""

    content: Content
    timestamp: Time | None = None
    importance: Importance | None = None
    metadata: Plain | None = None
    expires: Time | None = None
    source: Label = _SOURCE


class NewCore(Asked):
    """The whole new core memory; empty text clears it."""

    content: Annotated[str, Field(max_length=MAX_CONTENT), AfterValidator(clean)]


Id = Annotated[Label, InPath(description="the entry's id; '#' in it is written %23")]
AsOf = Annotated[Position | Time | None, InQuery(description="a past state: a position of the log, or an ISO time")]

_FAILURES = {
    400: "not readable",
    401: "no token, or another",
    403: "not allowed here",
    413: "too large",
    421: "another host was meant",
    422: "arguments that cannot be used",
    500: "the server failed",
    503: "the store failed, or is closing",
}
_WHERE: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "no such entry"}}


def http_app(
    service: MemoryService, *, token: str | None = None, local: bool = True, mcp: Server[Any] | None = None
) -> FastAPI:
    """The application over one memory, which stays its caller's to close.

    `token`: every request but that for health needs it. `local`: it is served on a loopback address, so that only
    requests that mean such a host are let in. `mcp`: served at /mcp beside the API.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with nullcontext() if sessions is None else sessions.run():
            yield

    app = FastAPI(
        title="memalpha",
        version=__version__,
        description="A long-term memory, and the writer that keeps it.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        default_response_class=_Json,
        generate_unique_id_function=lambda route: route.name,
        responses={status: {"model": Error, "description": text} for status, text in _FAILURES.items()},
    )
    app.add_middleware(Gate, token=token, local=local)
    sessions = None
    if mcp is not None:
        from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

        # Stateless: no tool needs a session, and so a client goes on when the server was started anew.
        sessions = StreamableHTTPSessionManager(mcp, stateless=True, max_request_body_size=MAX_BODY)
        app.router.routes.append(Route("/mcp", StreamableHTTPASGIApp(sessions)))

    @app.exception_handler(Refused)
    async def refused(request: object, error: Refused) -> JSONResponse:
        return _failure(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: object, error: RequestValidationError) -> JSONResponse:
        faults = []
        for item in error.errors():
            place = ".".join(part for part in map(str, item["loc"]) if "[" not in part)  # but for names of validators
            faults.append(f"{place}: {item['msg']}")
        return _failure(Refused("invalid_arguments", "; ".join(faults)))

    @app.exception_handler(HTTPException)
    async def unrouted(request: object, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return _failure(Refused(code, str(error.detail), error.status_code), error.headers)

    @app.exception_handler(Exception)
    async def failed(request: object, error: Exception) -> JSONResponse:  # which the server then logs
        return _failure(Refused("internal_error", "the server failed; its log says why", 500))

    one_at_a_time = asyncio.Lock()  # it needs no token: whoever asks, and how often, takes one of the store's threads

    @app.get(HEALTH)
    async def health() -> Health:
        """Whether the store answers. It needs no token."""
        async with one_at_a_time:
            await service.position()
        return Health()

    described = [Depends(HTTPBearer(auto_error=False))] if token else []  # it is for the gate to look at it
    router = APIRouter(prefix="/v1", dependencies=[Depends(_only_known), *described])
    _routes(router, service)
    app.include_router(router)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        """The description, made when it is first asked for, with the categories that this memory has."""
        if app.openapi_schema is None:
            _name_categories(describe(), service.schema.category_names)
        return describe()

    app.openapi = openapi
    return app


def _name_categories(description: dict[str, Any], names: tuple[str, ...]) -> None:
    """Say in the description which categories this memory has."""
    models, paths = description["components"]["schemas"], description["paths"]
    asked = [models[model.__name__]["properties"]["category"] for model in (New, WideSearch)]
    asked += [item["schema"] for item in paths["/v1/entries"]["get"]["parameters"] if item["name"] == "category"]
    for field in asked:
        for option in field.get("anyOf", [field]):
            if option["type"] == "string":
                option["enum"] = list(names)


def _only_known(request: Request) -> None:
    """Refuse a query parameter that the route does not have, which is a slip."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Refused("invalid_arguments", f"query.{name}: there is no such parameter")


def _routes(app: APIRouter, service: MemoryService) -> None:
    @app.post("/read", responses={502: {"model": Error, "description": "the policy did not answer"}})
    async def read(asked: Read) -> Reading:
        """Let the writer read a text, chunk by chunk; what it did, call by call."""
        return await service.read(asked, source=_SOURCE)

    @app.post("/ask", responses={502: {"model": Error, "description": "the policy did not answer"}})
    async def ask(asked: Ask) -> Answered:
        """Answer a question from the memory alone."""
        answer = await service.ask(asked.question, asked.k)
        return Answered(answer.text, answer.abstained, answer.conflict, answer.hits)

    @app.post("/search")
    async def search(asked: WideSearch) -> Found:
        """The entries nearest to a query, with the parts of their scores."""
        wanted = {"category": asked.category, "where": asked.where, "as_of": asked.as_of}
        return Found(await service.search(asked.query, asked.k, **wanted))

    @app.get("/entries", responses=_WHERE)
    async def list_entries(
        category: Label | None = None,
        limit: Limit = 50,
        after: Label | None = None,
        as_of: AsOf = None,
    ) -> Page:
        """A page of entries, oldest first, and the core memory."""
        return await service.page(List(category=category, limit=limit, after=after), as_of=as_of)

    @app.post(
        "/entries",
        status_code=201,
        responses={200: {"model": MemoryEntry, "description": "it was there already, and is left as it was"}},
    )
    async def insert(fact: New, response: Response) -> MemoryEntry:
        """Store a fact. Exactly the same content in the same category is stored once."""
        entry, is_new = await service.insert(fact.model_dump())
        response.status_code = 201 if is_new else 200
        return entry

    @app.get("/entries/{id:path}", responses=_WHERE)
    async def get(id: Id, as_of: AsOf = None) -> MemoryEntry:
        """An entry, as it is or as it was."""
        return await service.get(id, as_of)

    @app.patch(
        "/entries/{id:path}",
        responses={**_WHERE, 409: {"model": Error, "description": "an entry says exactly this already"}},
    )
    async def update(id: Id, change: Changed) -> MemoryEntry:
        """Replace what an entry says; it keeps its id, and its past."""
        return await service.update(id, change.model_dump())

    @app.delete("/entries/{id:path}", responses=_WHERE)
    async def delete(id: Id) -> MemoryEntry:
        """End an entry, and return it as it was; its history stays."""
        return await service.delete(id, _SOURCE)

    @app.get("/history/{id:path}", responses=_WHERE)
    async def history(id: Id) -> Versions:
        """Every version of an entry, of a deleted one too."""
        return Versions(await service.history(id))

    @app.get("/core")
    async def core(as_of: AsOf = None) -> Core:
        """The core memory."""
        return Core(await service.core(as_of))

    @app.put("/core")
    async def set_core(asked: NewCore) -> Core:
        """Rewrite the core memory."""
        return Core(await service.set_core(asked.content, _SOURCE))

    @app.get("/log")
    async def log(after: Position = 0, limit: Limit = 100) -> Log:
        """The operations beyond a position of the log."""
        return Log(await service.log(after, limit))

    @app.get(
        "/export",
        response_class=FileResponse,
        responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
    )
    async def export() -> FileResponse:
        """The whole log as JSON Lines, as `memalpha export` writes it and `memalpha import` takes it."""
        folder = TemporaryDirectory(prefix="memalpha-export-")
        file = Path(folder.name) / "log.jsonl"
        try:
            await service.export(file)
        except BaseException:
            folder.cleanup()
            raise
        return FileResponse(file, media_type="application/x-ndjson", background=BackgroundTask(folder.cleanup))


class Gate:
    """What every request passes first: the host that it means, the token, its size.

    On a loopback address a page of the web could have its own name resolve to us (DNS rebinding): there the Host must
    be a loopback name, and an Origin the same. Elsewhere no foreign page has the token.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, local: bool) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body read, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(headers, scope["path"])
            receive = await _within(MAX_BODY, headers, receive)
        except Refused as error:
            await _failure(error, {"WWW-Authenticate": "Bearer"} if error.status == 401 else None)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, path: str) -> None:
        if self._local:
            host, origin = headers.get("host", ""), headers.get("origin")
            if _name(f"//{host}") not in LOOPBACK:
                raise Refused("foreign_host", "this server answers to localhost alone", 421)
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                raise Refused("foreign_origin", "pages of another origin are not let in", 403)
        if self._token is not None and path != HEALTH:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                raise Refused("unauthorized", "a token is needed: Authorization: Bearer TOKEN", 401)


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _within(limit: int, headers: Headers, receive: Receive) -> Receive:
    """What gives the body again, once all of it is there; raises `Refused` where it is over the limit."""
    too_large = Refused("too_large", f"more than {limit} bytes", 413)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body, last = b"", await receive()
    while last["type"] == "http.request":
        body += last.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not last.get("more_body", False):
            break
        last = await receive()
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    if last["type"] != "http.request":
        messages = [last]

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again


class _Json(JSONResponse):
    """JSON that may hold halves of surrogate pairs, which metadata may, as escapes."""

    def render(self, content: Any) -> bytes:
        return json_text(content, allow_nan=False, separators=(",", ":")).encode()


def _failure(error: Refused, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return _Json({"code": error.code, "message": error.message}, error.status, dict(headers or {}))
