"""Work of a request, counted: threads, tasks and encodings of JSON, not times."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from memalpha.integrations.server import http, service
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.run import listen
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.search import index
from memalpha.store.store import MemoryStore

SEARCH = ("POST", "/v1/search", {"query": "Where does Ana live?"})


@pytest.fixture
def app() -> Iterator[HttpApp]:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.insert("semantic", "Ana lives in Porto.", metadata={"user": "ana"})
        store.insert("semantic", "Ben has a dog.")
        yield HttpApp(service.MemoryService(store, ScriptedPolicy("add-all")))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count calls: hand-overs to threads, tasks begun, encodings of JSON."""
    counted: Counter[str] = Counter()

    def count(name: str, owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, call)

    monkeypatch.setattr(http, "WATCH_SECONDS", 60)  # on a busy machine a request may take longer than .05
    count("threads", ThreadPoolExecutor, "submit")
    count("tasks", asyncio.BaseEventLoop, "create_task")
    count("encodings", http.Route, "encode")
    for module in (http, service):
        count("other encodings", module, "to_json")
    return counted


async def ask(app: HttpApp, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request to the application itself, in this task."""
    content = b"" if body is None else json.dumps(body).encode()
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    sent, messages = [{"type": "http.request", "body": content}], []

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages[0]["status"], json.loads(messages[1]["body"])


def answers(app: HttpApp, counts: Counter[str], *requests: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """Return the answers to requests after a search, which is not counted."""

    async def run() -> list[tuple[int, Any]]:
        await ask(app, *SEARCH)
        counts.clear()
        results = [await ask(app, *request) for request in requests]
        counted.update(counts)
        return results

    counted: Counter[str] = Counter()
    results = asyncio.run(run())
    counts.clear()
    counts.update(counted)  # without what ends the loop
    return results


def test_a_warm_read_is_done_in_the_thread_of_the_loop_and_encoded_once(app, counts):
    [id] = [entry.id for entry in app.service._store.list("semantic") if "Ana" in entry.content]
    results = answers(app, counts, SEARCH, ("GET", f"/v1/entries/{id}"), ("GET", "/v1/core"))
    assert [status for status, _ in results] == [200] * 3
    assert results[0][1]["hits"][0]["entry"]["content"] == "Ana lives in Porto." and counts == {"encodings": 3}


def test_a_write_is_one_hand_over_and_the_search_after_it_none(app, counts):
    fact = {"category": "semantic", "content": "Ana has a cat."}
    results = answers(app, counts, ("POST", "/v1/entries", fact), SEARCH)
    assert results[0][0] == 201 and len(results[1][1]["hits"]) == 3
    assert counts == {"encodings": 2, "threads": 1}


@pytest.mark.parametrize("more", [{"where": {"user": "ana"}}, {"as_of": 1}, "_MAX_WARM", "_MAX_LAG"])
def test_a_search_that_may_take_long_has_a_thread(app, counts, more, monkeypatch):
    """With a filter, of a past state, in a large index, and in one that is far behind."""
    method, path, body = SEARCH
    if isinstance(more, str):
        monkeypatch.setattr(index, more, -1)
        more = {}
    assert answers(app, counts, (method, path, {**body, **more}))[0][0] == 200 and counts["threads"] == 1


def test_a_read_does_not_stop_the_loop_while_another_thread_has_the_database(app, counts):
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with app.service._store.transaction():
            taken.set()
            done.wait(30)

    async def run() -> int:
        await ask(app, *SEARCH)
        holder = threading.Thread(target=hold)
        holder.start()
        await asyncio.to_thread(taken.wait)
        waiting = asyncio.create_task(ask(app, *SEARCH))
        live = await ask(app, "GET", "/health/live")  # the loop answers meanwhile
        assert live[0] == 200 and not waiting.done()
        done.set()
        status, _ = await waiting
        holder.join()
        return status

    assert asyncio.run(run()) == 200


def test_answers_are_not_held_back_for_the_client_to_confirm_their_first_part():
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY on no others
