"""Serve the page of a run on this machine while the run writes it: `memalpha watch`.

Server-sent events tell the page of new steps. Only this machine reaches the server, and only under its own names, so
that no page of another site reads a run (DNS rebinding).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

from memalpha.errors import ConfigError, DataError, install_command
from memalpha.integrations.server.middleware import SurrogateJSONResponse
from memalpha.integrations.server.run import listen
from memalpha.store.io.jsonl import to_json

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as error:
    if error.name not in ("starlette", "uvicorn"):
        raise
    raise ConfigError(f"watching a run needs {error.name}: {install_command('serve')}") from None

HOST = "127.0.0.1"
LOOK_SECONDS = 1.0
"""Time between two looks at the files of the run."""
SHUTDOWN_SECONDS = 3  # longer than a stream of news sleeps
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class RunRollouts(Protocol):
    """Rollouts of a run: `report.page.Rollouts`."""

    def read(self, step: int) -> dict[str, Any]:
        """Return tasks and rollouts of a step. Raises `DataError` if it has none."""
        ...

    def tokens(self, step: int, task: str, rollout: int, role: str) -> list[dict[str, Any]]:
        """Return the turns of a rollout as tokens with log-probs."""
        ...


class LivePage(Protocol):
    """Page of a run: `report.page.RunPage`."""

    @property
    def rollouts(self) -> RunRollouts:
        """The rollouts."""
        ...

    def render(self, *, live: bool) -> str:
        """Return the page."""
        ...

    def training(self) -> str:
        """Return its part on training."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the page has to know; equal values mean that nothing is new."""
        ...


def watch_app(page: LivePage, is_stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """Build the application: the page at /, its news at /events, its parts at /training and /rollouts/STEP.

    Args:
        page: Page of the run.
        is_stopping: Returns True once the server shall stop; the streams of news end then.
    """

    async def show(request: Request) -> Response:
        return HTMLResponse(_encode(await run_in_threadpool(page.render, live=True)), headers=_HEADERS)

    async def training(request: Request) -> Response:
        return HTMLResponse(_encode(await run_in_threadpool(page.training)), headers=_HEADERS)

    async def rollouts(request: Request) -> Response:
        lines = await run_in_threadpool(page.rollouts.read, request.path_params["step"])
        return SurrogateJSONResponse(lines, headers=_HEADERS)

    async def tokens(request: Request) -> Response:
        query = request.query_params
        if not query.get("rollout", "").isdecimal():
            raise DataError("rollout: the number of a rollout is needed")
        key = (query.get("task", ""), int(query["rollout"]), query.get("role", ""))
        turns = await run_in_threadpool(page.rollouts.tokens, request.path_params["step"], *key)
        return SurrogateJSONResponse(turns, headers=_HEADERS)

    async def events(request: Request) -> Response:
        return StreamingResponse(_news(page, is_stopping), media_type="text/event-stream", headers=_HEADERS)

    def refuse(request: Request, error: Exception) -> Response:
        return PlainTextResponse(_encode(str(error)), status_code=404, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/events", events),
            Route("/training", training),
            Route("/rollouts/{step:int}", rollouts),
            Route("/rollouts/{step:int}/tokens", tokens),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
        exception_handlers={DataError: refuse},
    )


async def _news(page: LivePage, is_stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield an event whenever the state of the run is new, and a comment in between, which finds readers that left."""
    last: dict[str, Any] | None = None
    while not is_stopping():
        with suppress(DataError):  # a line that is not JSON: the page itself says so
            state = await run_in_threadpool(page.state)
            if state != last:
                last = state
                yield f"data: {to_json(state)}\n\n"
        yield ": waiting\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # a model may write half a surrogate pair


def serve_page(page: LivePage, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page of a run until Ctrl-C.

    Args:
        page: Page of the run.
        port: Port on 127.0.0.1; 0 takes any free one.
        announce: Called with the address when connections are accepted.

    Raises:
        ConfigError: The port is taken.
    """
    with listen(HOST, port) as listening:
        announce(f"http://{HOST}:{listening.getsockname()[1]}/")
        app = watch_app(page, lambda: server.should_exit)
        settings = {"access_log": False, "server_header": False, "timeout_graceful_shutdown": SHUTDOWN_SECONDS}
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, **settings))
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
