"""A server over real sockets under attack: half requests, stalled bodies, wide filters, slow policies, gone clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
import httpx2
from serving import listening

from memalpha.integrations.server import auth
from memalpha.integrations.server import service as service_module
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.run import connection_limit, limited_protocol
from memalpha.integrations.server.schemas import MAX_CONDITIONS
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.chat.text import format_call
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore
from memalpha.types import Completion

LIMIT, HEAD_SECONDS, WAIT = 12, 0.5, 30
HALF = b"GET /v1/entries HTTP/1.1\r\nHost: localhost\r\nX-Half: "


def post(path: str, size: int, body: bytes) -> bytes:
    """Return a request that promises `size` bytes and has `body`."""
    head = f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {size}"
    return "\r\n".join((*head, "", "")).encode() + body


class SlowPolicy(ScriptedPolicy):
    """Policy that answers with `call` (or stores what it reads) once `gate` is open."""

    def __init__(self) -> None:
        super().__init__("add-all")
        self.gate, self.asked, self.call = threading.Event(), 0, None

    def sample(self, requests):
        self.asked += len(requests)
        assert self.gate.wait(WAIT)
        if self.call is None:
            return super().sample(requests)
        return [Completion(format_call(*self.call)) for _ in requests]


@contextmanager
def serving(policy: SlowPolicy | None = None) -> Iterator[tuple[MemoryService, str, int]]:
    """Serve a store in memory; yield the service with the server's URL and port."""
    service = MemoryService(MemoryStore.open(":memory:", embedder="hash"), policy or SlowPolicy())
    protocol = limited_protocol(LIMIT, HEAD_SECONDS)
    with listening(HttpApp(service), http=protocol, timeout_graceful_shutdown=1) as url:
        yield service, url, int(url.rpartition(":")[2])
    service._close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def connect(stack: ExitStack, port: int, sent: bytes) -> socket.socket:
    """Open a connection that sends `sent` and then nothing."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT))
    client.sendall(sent)
    return client


def start_reading(url: str, text: str) -> tuple[threading.Thread, list[httpx2.Response]]:
    """Let the server read a text in a thread; return the thread, and the list that gets the answer."""
    answers: list[httpx2.Response] = []
    body = {"text": text}
    thread = threading.Thread(target=lambda: answers.append(httpx2.post(f"{url}/v1/read", json=body, timeout=WAIT)))
    thread.start()
    return thread, answers


def is_closed(client: socket.socket) -> bool:
    """Wait until the server ends the connection."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_what_is_refused_is_read_so_that_a_sender_gets_the_answer():
    size = 2 * auth.MAX_BODY
    with serving() as (_, _, port), ExitStack() as stack:
        client = connect(stack, port, post("/v1/read", size, b""))
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):  # a proxy that is still sending takes an early end for a broken server
            client.recv(1)
        client.settimeout(WAIT)
        client.sendall(b"x" * size)
        assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_an_endless_refused_body_is_not_read_for_long(monkeypatch):
    monkeypatch.setattr(auth, "DISCARD_SECONDS", 0.2)
    with serving() as (_, _, port), ExitStack() as stack:
        client = connect(stack, port, post("/v1/read", 1 << 40, b"x"))
        assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_head_that_is_too_long_is_refused_once(caplog) -> None:
    with serving() as (_, _, port), ExitStack() as stack:
        client = connect(stack, port, b"GET /" + b"x" * 70_000)
        assert client.recv(4096).startswith(b"HTTP/1.1 400") and is_closed(client)
    assert not [record for record in caplog.records if record.exc_info]


def test_half_requests_leave_room_for_whole_ones_and_are_ended():
    with serving() as (_, url, port), ExitStack() as stack:
        halves = [connect(stack, port, HALF) for _ in range(5 * LIMIT)]
        assert httpx2.get(f"{url}/v1/health", timeout=WAIT).status_code == 200
        assert all(map(is_closed, halves))
        # The head of a second request on one connection has a deadline, too.
        second = connect(stack, port, b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF)
        assert second.recv(4096).startswith(b"HTTP/1.1 200") and is_closed(second)


def test_requests_ahead_of_their_answers_are_bounded():
    """A few requests at once are answered in order; who sends on without end is closed, and others are served."""
    ask = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as (_, url, port):
        with socket.create_connection(("localhost", port), timeout=WAIT) as polite:
            polite.sendall(ask * 20)
            received = b""
            while received.count(b"HTTP/1.1 200") < 20:
                received += polite.recv(65536)
        with socket.create_connection(("localhost", port), timeout=WAIT) as greedy:
            sent = 0
            with pytest.raises(ConnectionError):
                while sent < 200_000_000:
                    sent += greedy.send(ask * 1000)
        assert sent < 50_000_000 and httpx2.get(f"{url}/v1/health").status_code == 200


def test_a_request_that_takes_long_is_answered():
    policy = SlowPolicy()
    with serving(policy) as (service, url, _):
        threading.Timer(2 * HEAD_SECONDS, policy.gate.set).start()
        assert httpx2.post(f"{url}/v1/read", json={"text": "I have a cat."}, timeout=WAIT).status_code == 200
        assert [entry.content for entry in service._store.list()] == ["I have a cat."]


def test_a_stalled_body_is_answered_and_forgotten(monkeypatch):
    monkeypatch.setattr(auth, "BODY_SECONDS", 0.2)
    with serving() as (_, _, port), ExitStack() as stack:
        stalled = connect(stack, port, post("/v1/search", 900, b'{"query": "'))
        assert stalled.recv(4096).startswith(b"HTTP/1.1 408") and is_closed(stalled)


def test_bodies_together_are_bounded(monkeypatch):
    monkeypatch.setattr(auth, "MAX_BODIES", 1000)
    with serving() as (_, url, port), ExitStack() as stack:
        for _ in range(2):
            connect(stack, port, post("/v1/search", 900, b" " * 450))
        query = {"query": "q" * 400}

        def refused() -> bool:
            answer = httpx2.post(f"{url}/v1/search", json=query, timeout=WAIT)
            return answer.status_code == 503 and answer.json()["code"] == "busy"

        wait_for(refused)
        assert httpx2.get(f"{url}/v1/health", timeout=WAIT).status_code == 200, "small requests are served"
        stack.close()
        wait_for(lambda: not refused())
        assert httpx2.post(f"{url}/v1/search", json=query, timeout=WAIT).status_code == 200


def test_a_filter_has_a_width():
    with serving() as (_, url, _):
        conditions = [{"by": number} for number in range(MAX_CONDITIONS + 1)]
        answers = [
            httpx2.post(f"{url}/v1/search", json={"query": "q", "where": {"$or": part}}, timeout=WAIT)
            for part in (conditions, conditions[1:])
        ]
        assert [answer.status_code for answer in answers] == [422, 200]
        assert answers[0].json()["message"] == "where: of 101 conditions; 100 is the limit"


def test_edits_do_not_wait_for_the_policy_and_win_against_it():
    policy = SlowPolicy()
    with serving(policy) as (service, url, _), httpx2.Client(base_url=url, timeout=WAIT) as web:
        id = service._store.insert("semantic", "Ana lives in Porto.").id
        policy.call = "memory_update", {"id": id, "content": "Ana lives in Faro."}
        reading, answers = start_reading(url, "Ana: Faro it is.")
        wait_for(lambda: policy.asked == 1)
        assert web.post("/v1/entries", json={"category": "semantic", "content": "Tom has a dog."}).status_code == 201
        assert web.patch(f"/v1/entries/{id.replace('#', '%23')}", json={"content": "Ana lives in Oslo."}).is_success
        policy.gate.set()
        reading.join()
        [outcome] = answers[0].json()["results"]
        assert (outcome["ok"], outcome["code"]) == (False, "conflict")
        assert {entry.content for entry in service._store.list()} == {"Ana lives in Oslo.", "Tom has a dog."}
        # Without an edit meanwhile the same proposal is applied.
        assert web.post("/v1/read", json={"text": "Ana: Faro it is."}).json()["results"][0]["code"] == "updated"


def test_work_of_gone_clients_is_dropped():
    policy = SlowPolicy()
    with serving(policy) as (service, url, port):
        body = b'{"text": "I have a cat."}'
        with ExitStack() as stack:
            for _ in range(LIMIT - 2):
                connect(stack, port, post("/v1/read", len(body), body))
            wait_for(lambda: policy.asked == 1)
        wait_for(lambda: len(service._waiting) == 0)
        # All have gone; one who stays is served after the one whose policy call runs.
        staying, answers = start_reading(url, "I have a dog.")
        wait_for(lambda: len(service._waiting) == 1)
        policy.gate.set()
        staying.join()
        assert answers[0].status_code == 200 and policy.asked == 2
        assert [entry.content for entry in service._store.list()] == ["I have a dog."]


def test_too_many_waiting_requests_are_told_to_come_back(monkeypatch):
    monkeypatch.setattr("memalpha.integrations.server.schemas.MAX_MODEL_REQUESTS", 2)
    policy = SlowPolicy()
    with serving(policy) as (service, url, _):
        waiting = [start_reading(url, "I have a cat.") for _ in range(2)]
        wait_for(lambda: len(service._waiting) == 2)
        for path, body in (("ask", {"question": "Who?"}), ("read", {"text": "I have a dog."})):
            answer = httpx2.post(f"{url}/v1/{path}", json=body, timeout=WAIT)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        assert httpx2.get(f"{url}/v1/entries", timeout=WAIT).status_code == 200
        policy.gate.set()
        for thread, answers in waiting:
            thread.join()
            assert answers[0].status_code == 200
        assert httpx2.post(f"{url}/v1/ask", json={"question": "Who?"}, timeout=WAIT).status_code == 200


def test_the_limit_leaves_descriptors_for_the_store(monkeypatch):
    resource = pytest.importorskip("resource")
    for soft, limit in ((1024, 832), (100, 8), (1 << 20, 1000), (resource.RLIM_INFINITY, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert connection_limit() == limit


def test_a_slow_statement_is_stopped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    def search(store: MemoryStore, *arguments: object, **options: object) -> list[object]:
        with store.database.transaction(write=False) as connection:
            return connection.execute(endless).fetchall()

    monkeypatch.setattr(service_module, "READ_SECONDS", 0.2)
    with serving() as (_, url, _), httpx2.Client(base_url=url, timeout=WAIT) as web:
        with monkeypatch.context() as slow:
            slow.setattr(MemoryStore, "search", search)
            response = web.post("/v1/search", json={"query": "x"})
        assert response.status_code == 504 and response.json()["code"] == "deadline_exceeded"
        assert web.post("/v1/search", json={"query": "x"}).status_code == 200
