"""A server whose database is away: answers within a deadline, liveness apart from readiness, and the way back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from memalpha.errors import StoreError, StoreUnavailable
from memalpha.integrations.server import service as service_module
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.service import Availability, MemoryService, to_service_error
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore

AWAY = {"code": "store_unavailable", "message": "the database is away (nothing was done): try again later"}


def unreachable() -> None:
    raise StoreUnavailable("postgresql://db: no server can be reached")


@pytest.mark.parametrize("state", ["slow", "unreachable", "silent"])
def test_work_is_given_up_only_while_the_database_does_not_answer(monkeypatch, state):
    monkeypatch.setattr(service_module, "PATIENCE", 0.02)
    monkeypatch.setattr(service_module, "PING_SECONDS", 0.05)
    gate = Event()
    pings = {"slow": lambda: None, "unreachable": unreachable, "silent": lambda: gate.wait(30)}

    async def wait():
        with ThreadPoolExecutor(1) as pool:
            started, queued = pool.submit(gate.wait, 30), pool.submit(lambda: True)
            watch = Availability(pings[state])
            waiting = [asyncio.ensure_future(watch.wait(work)) for work in (started, queued)]
            await asyncio.wait(waiting, timeout=0.3)
            gate.set()
            return await asyncio.gather(*waiting, return_exceptions=True)

    results = asyncio.run(wait())
    if state == "slow":
        assert results == [True, True]
    else:
        assert [(error.status, error.retry_after) for error in results] == [(503, 2)] * 2
        assert "not known" in str(results[0]) and "nothing was done" in str(results[1])


def test_the_client_sees_neither_address_nor_user():
    error = to_service_error(StoreUnavailable("postgresql://ana@db: no server can be reached", "nothing was done"))
    assert {"code": error.code, "message": error.message} == AWAY and error.status == 503
    assert to_service_error(StoreError("full")).code == "store_error"


def test_liveness_needs_no_store(monkeypatch):
    store = MemoryStore.open(":memory:", embedder="hash")
    web = TestClient(HttpApp(MemoryService(store, ScriptedPolicy("add-all"))), base_url="http://localhost")
    assert [web.get(f"/health/{name}").json() for name in ("live", "ready")] == [{"status": "ok"}] * 2

    def fail(self) -> int:
        raise StoreUnavailable("gone", "nothing was done")

    monkeypatch.setattr(MemoryStore, "snapshot", fail)
    for path in ("/health/ready", "/v1/health"):
        answer = web.get(path)
        assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (503, AWAY, "2")
    assert web.get("/health/live").status_code == 200


@pytest.mark.postgres
def test_a_stopped_and_a_silent_server_give_503_in_time_and_come_back():
    from postgres_server import server

    fact = {"category": "semantic", "content": "Ana's city: Porto"}
    requests = [
        ("GET", "/health/ready", None),
        ("POST", "/v1/search", {"query": "city"}),
        ("POST", "/v1/entries", {**fact, "content": "Ana's dog: Rex"}),
        ("POST", "/v1/read", {"text": "Ana: I have a cat."}),
    ]

    def check_away(web: TestClient) -> None:
        for method, path, body in requests:
            begin = time.monotonic()
            answer = web.request(method, path, json=body)
            assert time.monotonic() - begin < 2.2, path
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert answer.headers["retry-after"] == "2"
            assert web.get("/health/live").status_code == 200

    def check_back(web: TestClient) -> None:
        end = time.monotonic() + 15
        while web.get("/health/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert web.post("/v1/search", json={"query": "city"}).json()["hits"][0]["entry"]["content"] == fact["content"]

    with server() as postgres:
        store = MemoryStore.open(postgres.url(), embedder="hash")
        app = HttpApp(MemoryService(store, ScriptedPolicy("add-all")))
        with TestClient(app, base_url="http://localhost") as web, store:
            assert web.post("/v1/entries", json=fact).status_code == 201
            postgres.stop()
            for _ in range(2):  # with the connections that were open, and without
                check_away(web)
            postgres.start()
            check_back(web)
            assert web.get("/v1/entries").json()["entries"][1:] == []  # what got 503 with nothing done was not stored
            query = "SELECT pid FROM pg_stat_activity WHERE usename = 'memalpha'"
            pids = [postgres.pid, *(pid for (pid,) in postgres.run(query))]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                check_away(web)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            check_back(web)
