"""The Python clients against a real server: every route, typed errors, and what is sent again."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import listening
from standin import Answer, HttpStandIn

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")
import httpx2

from memalpha.errors import ConfigError, MemalphaError
from memalpha.integrations import client
from memalpha.integrations.client import (
    AsyncMemoryClient,
    ClientError,
    EntryNotFound,
    InvalidRequest,
    MemoryClient,
    MissingRight,
    NotAuthorized,
    ServerUnavailable,
    TooManyRequests,
)
from memalpha.integrations.server.auth import KeyFile
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.load import load_policy
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry


class Served:
    """A running server with a key for three namespaces, one that reads, and one with a quota."""

    def __init__(self, folder: Path) -> None:
        store = MemoryStore.open(":memory:", embedder="hash")
        self.keys = KeyFile(folder / "keys", create=True)
        self.all = self.keys.add("all", ["admin"], ["ana", "bén/#1", "guide"])[1]
        self.reader = self.keys.add("reader", ["read"], ["ana"])[1]
        self.slow = self.keys.add("slow", ["read"], ["ana"], requests_per_minute=1)[1]
        self.app = HttpApp(MemoryService(store, load_policy("add_all")), keys=self.keys)
        self.address = ""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("client"))
    with listening(server.app) as server.address:
        yield server
    server.keys.close()


def test_the_example_of_the_guide_runs(served):
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")
    [example] = [text for text in re.findall(r"```py\n(.*?)```", guide, re.DOTALL) if "MemoryClient" in text]
    for shown, real in (("http://127.0.0.1:8765", served.address), ("mem_…", served.all), ("user-ana", "guide")):
        assert shown in example
        example = example.replace(shown, real)
    names: dict[str, Any] = {}
    exec(compile(example, "serve.md", "exec"), names)
    assert [hit.entry.id for hit in names["hits"]] == [names["dog"].id] and "Rex" in names["answer"]
    assert names["dog"].id in {entry.id for entry in names["everything"]}
    with pytest.raises(ConfigError, match="copy it again"):
        MemoryClient(served.address, key="mem_…")
    with pytest.raises(ConfigError, match="key: it is empty"):
        MemoryClient(served.address, key="")


def test_every_route_of_the_server(served: Served) -> None:
    with MemoryClient(served.address, served.all, namespace="bén/#1") as memory:
        memory.health()
        dog = memory.insert("semantic", "Ana's dog: Rex", timestamp="2024-05-01", metadata={"user": "ana"})
        assert memory.insert("semantic", "Ana's dog: Rex", metadata={"user": "ana"}) == dog and dog.key == "all"
        assert memory.update(dog.id, "Ana's dog: Max").content == "Ana's dog: Max"
        assert memory.get(dog.id, as_of=dog.valid_from).content == "Ana's dog: Rex"
        assert [version.content for version in memory.history(dog.id)] == ["Ana's dog: Rex", "Ana's dog: Max"]
        (hit,) = memory.search("dog", 3, where={"user": "ana"})
        assert hit.entry.content == "Ana's dog: Max" and "bm25" in hit.explain
        assert "Max" in memory.ask("What is Ana's dog called?").answer
        outcome = memory.read(messages=[{"role": "user", "content": "I live in Porto."}], metadata={"user": "ana"})
        assert [call.code for call in outcome.results] == ["inserted"]
        assert [call.code for call in memory.read("Ana: I have a cat.").results] == ["inserted"]
        outcome = memory.read([{"role": "user", "content": "I have a fish."}])  # as `MemoryAgent.read` takes them
        assert [call.code for call in outcome.results] == ["inserted"]
        for number in range(3):
            memory.insert("episodic", f"event {number}")
        page = memory.page("episodic", limit=2)
        assert len(page.entries) == 2 and page.next == page.entries[1].id
        assert len(list(memory.entries())) == 7 and len(list(memory.entries("episodic"))) == 6
        assert memory.set_core("Ana.") == memory.core() == "Ana."
        assert memory.delete(dog.id).content == "Ana's dog: Max"
        assert [line.operation.kind for line in memory.log(1, limit=2)] == ["update", "insert"]
        assert memory.erase(dog.id).id == dog.id
        cat = memory.insert("semantic", "Ana's cat: Tom", metadata={"user": "eva"})
        assert memory.update(cat.id, importance=0.5, timestamp="2024-05-01").content == cat.content
        assert memory.update(cat.id, timestamp="").timestamp is None
        memory.delete(cat.id)
        erased = memory.erase_where({"user": "eva"})
        assert erased.ids == [cat.id] and not erased.pending and memory.erase_where({"user": "eva"}).ids == []
        with pytest.raises(ClientError, match="where"):
            memory.erase_where({})
        with pytest.raises(EntryNotFound, match="no live entry"):
            memory.get(dog.id)


def test_the_asynchronous_client_does_the_same(served: Served) -> None:
    async def run() -> list[str]:
        async with AsyncMemoryClient(served.address, served.all, namespace="ana") as memory:
            assert (await memory.health()).status == "ok" and await memory.core() == ""
            entry = await memory.insert("semantic", "Ana's cat: Tom")
            assert (await memory.search("cat"))[0].entry == entry
            await asyncio.gather(*(memory.insert("episodic", f"event {number}") for number in range(3)))
            with pytest.raises(InvalidRequest) as caught:
                await memory.insert("nonsense", "x")
            assert (caught.value.status, caught.value.code) == (422, "unknown_category")
            return [entry.content async for entry in memory.entries()]

    assert sorted(asyncio.run(run())) == ["Ana's cat: Tom", "event 0", "event 1", "event 2"]
    names = {name for name in vars(MemoryClient) if not name.startswith("_")} - {"close"}
    assert names == {name for name in vars(AsyncMemoryClient) if not name.startswith("_")} - {"aclose"}


@pytest.mark.parametrize("value", [float("nan"), "half \ud800", {1, 2}, b"bytes"])
def test_what_is_not_json_is_an_invalid_request(served: Served, value: Any) -> None:
    refused = pytest.raises(InvalidRequest, match="cannot be sent as JSON")
    with MemoryClient(served.address, key=served.all, namespace="ana") as memory, refused:
        memory.insert("semantic", "Ana has a cat.", metadata={"value": value})


@pytest.mark.parametrize("id", ["\ud800", None, 5, "", ".", ".."])
@pytest.mark.parametrize("name", ["get", "update", "delete", "erase", "history"])
def test_an_id_that_no_path_can_hold_is_not_sent(name: str, id: Any) -> None:
    with MemoryClient("http://127.0.0.1:9") as memory, pytest.raises(InvalidRequest, match=r"^id .*(needed|folder)"):
        getattr(memory, name)(id)


def test_a_closed_client_says_so() -> None:
    async def ask_closed() -> None:
        async with AsyncMemoryClient("http://127.0.0.1:9") as memory:
            pass
        await memory.core()

    memory = MemoryClient("http://127.0.0.1:9")
    memory.close()
    for ask in (memory.core, lambda: asyncio.run(ask_closed())):
        with pytest.raises(InvalidRequest, match="the client is closed"):
            ask()


@pytest.mark.parametrize("kind", [httpx2.LocalProtocolError, httpx2.UnsupportedProtocol])
def test_what_cannot_be_sent_is_not_tried_again(kind: type[Exception]) -> None:
    requests: list[httpx2.Request] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        raise kind("Illegal header value")

    transport = httpx2.MockTransport(refuse)
    with MemoryClient("http://a", transport=transport) as memory, pytest.raises(InvalidRequest, match="Illegal header"):
        memory.core()
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("address", address) for address in ("127.0.0.1:8765", "u:secret@h:1", "http://h:99999", "http://[h")),
        *(("address", f"http://{address}") for address in ("", "u:sec/secret@h:1", "h?secret=1", "h/#secret")),
        *(("namespace", value) for value in (5, "half \ud800")),
        *(("key", value) for value in (5, " ", "secret\nkey", "sécret")),
        ("address", None),
    ],
)
def test_no_client_is_made_with_what_no_request_can_hold(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: ") as error:
        MemoryClient(**{"address": "http://h", name: value})
    assert "secret" not in str(error.value)


def test_half_of_a_surrogate_pair_in_metadata_is_read() -> None:
    entry = MemoryEntry("a", "semantic", "Ana", metadata={"cut": "\ud83d", "n": 2**70})
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=json.dumps(entry.to_dict())))
    with MemoryClient("http://a", transport=transport) as memory:
        assert memory.get("a") == entry


def test_no_error_shows_a_password_of_the_address():
    transport = httpx2.MockTransport(lambda request: httpx2.Response(404, text="nope"))
    memory = MemoryClient("http://user:secretpw@host:81/app", transport=transport)
    with memory, pytest.raises(ClientError, match=r"GET /app/v1/entries/x of host:81 is no route") as error:
        memory.get("x")
    assert "secretpw" not in str(error.value)


@pytest.mark.parametrize("status", [200, 502])
def test_nesting_without_end_is_no_answer_of_a_server(status: int) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, text="[" * 100_000))
    with MemoryClient("http://a", transport=transport) as memory, pytest.raises(ClientError, match="answer"):
        memory.core()


def test_refusals_have_types_and_no_secret(served: Served) -> None:
    for key, namespace, kind, code in (
        (None, None, NotAuthorized, "unauthorized"),
        ("mem_wrong", None, NotAuthorized, "unauthorized"),
        (served.reader, "ben", MissingRight, "forbidden"),
        (served.all, None, InvalidRequest, "invalid_arguments"),
    ):
        with MemoryClient(served.address, key, namespace=namespace) as memory, pytest.raises(kind) as caught:
            memory.core()
        assert caught.value.code == code and isinstance(caught.value, MemalphaError)
        assert key is None or key not in str(caught.value) + repr(memory)
        assert ("unknown or revoked" in str(caught.value)) == (key == "mem_wrong")
    with MemoryClient(served.address, served.reader) as memory, pytest.raises(MissingRight, match="lacks the right"):
        memory.insert("semantic", "x")
    with MemoryClient(served.address, served.slow, retries=0) as memory:
        memory.core()
        with pytest.raises(TooManyRequests) as caught:
            memory.core()
        assert 0 < (caught.value.retry_after or 0) <= 60
    with MemoryClient(f"{served.address}/v1", served.reader) as memory, pytest.raises(ClientError, match="is no route"):
        memory.get("a")  # no `EntryNotFound`


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_was_refused_is_sent_again_after_the_time_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(client, "sleep", waits.append)
    monkeypatch.setattr(client, "async_sleep", sleep)

    def call(name: str, *arguments: Any, answers: list[Any], retries: int = 3) -> tuple[Any, int]:
        requests: list[str] = []

        def answer(method: str, path: str, body: bytes) -> Answer:
            requests.append(path)
            status, headers = answers[len(requests) - 1]
            return status, headers, b'{"content": "core"}' if status == 200 else b'{"code": "busy", "message": "later"}'

        async def run(address: str) -> Any:
            async with AsyncMemoryClient(address, retries=retries) as memory:
                return await getattr(memory, name)(*arguments)

        with HttpStandIn(answer) as server:
            try:
                if kind == "async":
                    return asyncio.run(run(server.url)), len(requests)
                with MemoryClient(server.url, retries=retries) as memory:
                    return getattr(memory, name)(*arguments), len(requests)
            except ClientError as error:
                return error, len(requests)

    busy, away, done = (429, {"Retry-After": "7"}), (503, {}), (200, {})
    assert call("core", answers=[busy, away, done]) == ("core", 3)
    assert waits[0] == 7 and 0.7 < waits[1] < 1.3
    waits.clear()
    error, count = call("read", "a text", answers=[busy, away])  # the second may have been done
    assert isinstance(error, ServerUnavailable) and count == 2 and waits == [7]
    error, count = call("update", "x", "y", answers=[away])
    assert isinstance(error, ServerUnavailable) and (error.code, count) == ("busy", 1)
    error, count = call("core", answers=[busy] * 3, retries=2)
    assert isinstance(error, TooManyRequests) and count == 3
    waits.clear()
    error, count = call("core", answers=[(429, {"Retry-After": "3600"})])
    assert isinstance(error, TooManyRequests) and (error.retry_after, count, waits) == (3600, 1, [])
    error, count = call("core", answers=[(302, {"Location": "http://127.0.0.1:1/"})])
    assert (error.status, count) == (302, 1) and "a redirect to http://127.0.0.1:1/" in str(error)
    error, count = call("search", "x", answers=[done])
    assert "not of a memalpha server" in str(error)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(client, "sleep", waits.append)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with MemoryClient(address, retries=2) as memory, pytest.raises(ServerUnavailable, match="no answer"):
        memory.read("a text")  # nothing was sent, so it may be sent again
    assert len(waits) == 2
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with MemoryClient(address, timeout=0.1) as memory, pytest.raises(ServerUnavailable):
            memory.read("a text")
    assert len(waits) == 2
