"""HTTP API of a memory under /v1, described by /v1/openapi.json; every error is `{code, message}`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from memalpha import __version__
from memalpha.errors import ConfigError, install_command
from memalpha.integrations.server.access import NAMESPACE_HEADER, granted
from memalpha.integrations.server.keys import KeyFile, Right
from memalpha.integrations.server.middleware import (
    HEALTH,
    LIVE,
    PAGE,
    READY,
    RequestGuard,
    SurrogateJSONResponse,
    error_response,
)
from memalpha.integrations.server.page import PageRenderer, add_page
from memalpha.integrations.server.request_log import METRICS, RequestMetrics, RequestRecorder, log_to_stderr
from memalpha.integrations.server.schemas import (
    HTTP_SOURCE,
    MAX_BODY,
    AskRequest,
    AskResponse,
    CoreRequest,
    CoreResponse,
    EntryPage,
    EraseRequest,
    EraseResponse,
    ErrorResponse,
    FilteredSearchRequest,
    HealthResponse,
    HistoryResponse,
    InsertRequest,
    Label,
    Limit,
    ListRequest,
    LogResponse,
    Position,
    ReadRequest,
    ReadResponse,
    SearchResponse,
    ServiceError,
    Time,
    UpdateRequest,
)
from memalpha.integrations.server.service import MemoryService
from memalpha.types import MemoryEntry

try:
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi import Header as HeaderParameter
    from fastapi import Path as PathParameter
    from fastapi import Query as QueryParameter
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse
    from fastapi.security import HTTPBearer
    from starlette.background import BackgroundTask
    from starlette.exceptions import HTTPException
    from starlette.routing import Route
except ModuleNotFoundError as error:
    if error.name not in ("fastapi", "starlette"):
        raise
    raise ConfigError(f"serving HTTP needs {error.name}: {install_command('serve')}") from None

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

Id = Annotated[Label, PathParameter(description="the entry's id; write '#' in it as %23")]
AsOf = Annotated[Position | Time | None, QueryParameter(description="a past state: log position or ISO time")]

NamespaceHeader = Annotated[
    str | None,
    HeaderParameter(
        alias=NAMESPACE_HEADER, description="namespace, percent-encoded; a key of one namespace has its own by default"
    ),
]


def _granted(right: Right) -> Any:
    """Return the dependency of a route that uses `right`: the memory of the request's namespace."""

    async def memory(request: Request, namespace: NamespaceHeader = None) -> MemoryService:
        return granted(request.app.state.service, request.scope, right)  # the guard has read the header

    return Depends(memory)


Reading = Annotated[MemoryService, _granted("read")]
Writing = Annotated[MemoryService, _granted("write")]
ModelReading = Annotated[MemoryService, _granted("read-with-model")]
Erasing = Annotated[MemoryService, _granted("erase")]

_ERRORS = {
    400: "unreadable request",
    401: "missing or wrong token or key",
    403: "not allowed, or a right is missing",
    408: "the body came too slowly",
    413: "too large",
    421: "the request is for another host",
    422: "invalid arguments",
    429: "too many requests wait for the policy, or a quota is spent",
    500: "the server failed",
    503: "the store failed, or the server is busy or closing",
    504: "it took too long and was stopped",
}
# Newer versions of FastAPI trace by themselves, with paths, queries and messages; `tracing` has spans without them.
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse, "description": "no such entry"}}
_BAD_GATEWAY: dict[int | str, dict[str, Any]] = {
    502: {"model": ErrorResponse, "description": "the policy did not answer"}
}


def http_app(
    service: MemoryService,
    *,
    token: str | None = None,
    keys: KeyFile | None = None,
    find_keys: Callable[[], KeyFile | None] | None = None,
    local: bool = True,
    hosts: Collection[str] = (),
    log_requests: bool = False,
    mcp: Server[Any] | None = None,
    page: PageRenderer | None = None,
    page_edits: bool = False,
) -> FastAPI:
    """Build the application that serves a store.

    Args:
        service: The memory; the caller closes it. Keys may reach other namespaces of its store, too.
        token: Has all rights on the service's namespace; None is none.
        keys: Keys with their rights; the caller closes the file. Every request but that for health needs the token or
            a key, unless there are neither.
        find_keys: Returns the keys once they were made, while `keys` is None; the caller closes the file.
        local: The server listens on a loopback address, and only requests for such a host are accepted.
        hosts: Names that requests may be for besides localhost, as a proxy in front passes them on.
        log_requests: Write one JSON line for each request to stderr.
        mcp: MCP server to serve at /mcp beside the API.
        page: Renders the page at /; None serves no page.
        page_edits: Take the forms of the page from readers who have the rights.
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
        telemetry=_NO_TELEMETRY,
        default_response_class=SurrogateJSONResponse,
        generate_unique_id_function=lambda route: route.name,
        responses={status: {"model": ErrorResponse, "description": text} for status, text in _ERRORS.items()},
    )
    guard = {"token": token, "keys": keys, "namespace": service.name, "local": local}
    guard |= {"hosts": hosts, "find_keys": find_keys}
    if log_requests:
        log_to_stderr()
    metrics = RequestMetrics()
    app.router.routes.append(Route(METRICS, metrics.respond))
    app.add_middleware(RequestGuard, **guard)
    app.add_middleware(RequestRecorder, metrics=metrics, log=log_requests)
    sessions = None
    if mcp is not None:
        from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

        # Stateless: no tool needs a session, so clients survive a restart of the server.
        sessions = StreamableHTTPSessionManager(mcp, stateless=True, max_request_body_size=MAX_BODY)
        app.router.routes.append(Route("/mcp", StreamableHTTPASGIApp(sessions)))
    _add_error_handlers(app)

    _add_health(app, service)

    if page is not None:
        add_page(app, PAGE, page, _check_query_parameters, edits=page_edits)

    # RequestGuard checks the token; this puts it into the API description.
    token_description = [Depends(HTTPBearer(auto_error=False))] if token or keys else []
    router = APIRouter(prefix="/v1", dependencies=[Depends(_check_query_parameters), *token_description])
    app.state.service = service
    _add_routes(router)
    app.include_router(router)
    build_description = app.openapi

    def openapi() -> dict[str, Any]:
        """Build the API description on first use, with the categories of this memory."""
        if app.openapi_schema is None:
            _add_category_names(build_description(), service.schema.category_names)
        return build_description()

    app.openapi = openapi
    return app


def _add_health(app: FastAPI, service: MemoryService) -> None:
    check: asyncio.Task[int] | None = None  # health needs no token: callers take at most one of the store's threads

    @app.get(READY, name="ready", include_in_schema=False)
    @app.get(HEALTH)
    async def health() -> HealthResponse:
        """Check that the store answers. Needs no token."""
        nonlocal check
        if check is None or check.done() or check.get_loop() is not asyncio.get_running_loop():
            check = asyncio.create_task(service.position())
        await asyncio.shield(check)
        return HealthResponse()

    @app.get(LIVE, include_in_schema=False)
    async def live() -> HealthResponse:
        """Answer without the store: restart the process only if this fails. Needs no token."""
        return HealthResponse()


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def service_error(request: object, error: ServiceError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        messages = []
        for item in error.errors():
            if item["loc"] == ("body",) and item["type"] != "missing" and not _has_json_type(request):
                messages.append("body: send the header Content-Type: application/json")
                continue
            path = ".".join(part for part in map(str, item["loc"]) if "[" not in part)  # without validator names
            messages.append(f"{path}: {item['msg']}")
        return error_response(ServiceError("invalid_arguments", "; ".join(messages)))

    @app.exception_handler(HTTPException)
    async def http_error(request: object, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return error_response(ServiceError(code, str(error.detail), error.status_code), error.headers)

    @app.exception_handler(Exception)
    async def internal_error(request: object, error: Exception) -> JSONResponse:  # the server logs it afterwards
        return error_response(ServiceError("internal_error", "the server failed; its log says why", 500))


def _has_json_type(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _add_category_names(description: dict[str, Any], names: tuple[str, ...]) -> None:
    """Add the category names of this memory to the API description."""
    models, paths = description["components"]["schemas"], description["paths"]
    fields = [models[model.__name__]["properties"]["category"] for model in (InsertRequest, FilteredSearchRequest)]
    fields += [item["schema"] for item in paths["/v1/entries"]["get"]["parameters"] if item["name"] == "category"]
    for field in fields:
        for option in field.get("anyOf", [field]):
            if option["type"] == "string":
                option["enum"] = list(names)


def _check_query_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have."""
    names = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in names:
            raise ServiceError("invalid_arguments", f"query.{name}: there is no such parameter")


def _add_routes(app: APIRouter) -> None:
    @app.post("/read", responses=_BAD_GATEWAY)
    async def read(service: ModelReading, body: ReadRequest) -> ReadResponse:
        """Let the writer read a text, chunk by chunk, and return its tool calls."""
        return await service.read(body, source=HTTP_SOURCE)

    @app.post("/ask", responses=_BAD_GATEWAY)
    async def ask(service: Reading, body: AskRequest) -> AskResponse:
        """Answer a question from the memory alone."""
        answer = await service.ask(body.question, body.k, where=body.where)
        return AskResponse(answer.text, answer.abstained, answer.conflict, answer.hits)

    @app.post("/search")
    async def search(service: Reading, body: FilteredSearchRequest) -> SearchResponse:
        """Return the entries nearest to a query, with the parts of their scores."""
        hits = await service.search(body.query, body.k, category=body.category, where=body.where, as_of=body.as_of)
        return SearchResponse(hits)

    @app.get("/entries", responses=_NOT_FOUND)
    async def list_entries(
        service: Reading,
        category: Label | None = None,
        limit: Limit = 50,
        after: Label | None = None,
        as_of: AsOf = None,
    ) -> EntryPage:
        """Return a page of entries, oldest first, and the core memory.

        Args:
            category: Only this category.
            limit: Maximum number of entries.
            after: Id that ended the last page.
            as_of: A past state.
        """
        return await service.page(ListRequest(category=category, limit=limit, after=after), as_of=as_of)

    @app.post(
        "/entries",
        status_code=201,
        responses={200: {"model": MemoryEntry, "description": "the entry existed already and is unchanged"}},
    )
    async def insert(service: Writing, body: InsertRequest, response: Response) -> MemoryEntry:
        """Store a fact. What the memory states already, with the same metadata, is not stored again."""
        entry, is_new = await service.insert(body.model_dump())
        response.status_code = 201 if is_new else 200
        return entry

    @app.get("/entries/{id:path}", responses=_NOT_FOUND)
    async def get(service: Reading, id: Id, as_of: AsOf = None) -> MemoryEntry:
        """Return an entry of the current or a past state."""
        return await service.get(id, as_of)

    @app.patch(
        "/entries/{id:path}",
        responses={**_NOT_FOUND, 409: {"model": ErrorResponse, "description": "another entry has this content"}},
    )
    async def update(service: Writing, id: Id, body: UpdateRequest) -> MemoryEntry:
        """Replace the content of an entry; its id and history stay."""
        return await service.update(id, body.model_dump())

    @app.delete("/entries/{id:path}", responses=_NOT_FOUND)
    async def delete(service: Writing, id: Id) -> MemoryEntry:
        """Delete an entry and return its last version; its history stays."""
        return await service.delete(id, HTTP_SOURCE)

    @app.get("/history/{id:path}", responses=_NOT_FOUND)
    async def history(service: Reading, id: Id) -> HistoryResponse:
        """Return every version of an entry, deleted or not."""
        return HistoryResponse(await service.history(id))

    @app.delete("/history/{id:path}", responses=_NOT_FOUND)
    async def erase(service: Erasing, id: Id) -> EraseResponse:
        """Erase an entry for good, live or deleted, with all of its past."""
        return await service.erase(id)

    @app.post("/erase")
    async def erase_matching(service: Erasing, body: EraseRequest) -> EraseResponse:
        """Erase all entries for good of which any version, live or past, passes a filter."""
        return await service.erase(where=body.where)

    @app.get("/core")
    async def core(service: Reading, as_of: AsOf = None) -> CoreResponse:
        """Return the core memory."""
        return CoreResponse(await service.core(as_of))

    @app.put("/core")
    async def set_core(service: Writing, body: CoreRequest) -> CoreResponse:
        """Replace the core memory."""
        return CoreResponse(await service.set_core(body.content, HTTP_SOURCE))

    @app.get("/log")
    async def log(service: Reading, after: Position = 0, limit: Limit = 100) -> LogResponse:
        """Return the operations after a position of the log."""
        return LogResponse(await service.log(after, limit))

    @app.get(
        "/export",
        response_class=FileResponse,
        responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
    )
    async def export(service: Reading) -> FileResponse:
        """Return the whole log as JSON Lines, the format of `memalpha export` and `memalpha import`."""
        folder = TemporaryDirectory(prefix="memalpha-export-")
        file = Path(folder.name) / "log.jsonl"
        try:
            await service.export(file)
        except BaseException:
            folder.cleanup()
            raise
        return FileResponse(file, media_type="application/x-ndjson", background=BackgroundTask(folder.cleanup))
