"""Embedder behind an endpoint, against a server on a real socket: batches, retries, checks, keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from standin import Answer, HttpStandIn

from memalpha.errors import EmbedderError, StoreError
from memalpha.store import embedding
from memalpha.store.embedding import TRIES, EndpointEmbedder, HashEmbedder, load_embedder
from memalpha.store.store import MemoryStore

REFERENCE = HashEmbedder(8)


class Server(HttpStandIn):
    """Answer with three times the hash embedder's rows, in reverse order, unless `replace` has an answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.replace: Callable[[dict[str, Any], int], tuple[int, Any] | None] = lambda body, number: None
        super().__init__(self.answer)
        self.url += "/v1"
        self.name = f"{self.url}#model"

    def answer(self, method: str, path: str, data: bytes) -> Answer:
        body = json.loads(data)
        self.bodies.append(body)
        rows = [{"index": n, "embedding": row.tolist()} for n, row in enumerate(3.0 * REFERENCE.encode(body["input"]))]
        status, answer = self.replace(body, len(self.bodies)) or (200, {"data": rows[::-1], "model": body["model"]})
        headers = {302: {"Location": f"{self.url}/elsewhere"}, 429: {"Retry-After": "3"}}.get(status, {})
        return status, headers, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for variable in (embedding.KEY_VARIABLE, "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with Server() as server:
        yield server


def test_what_may_pass_is_tried_again_a_bounded_number_of_times(server: Server) -> None:
    waits: list[float] = []
    embedder = EndpointEmbedder(server.name, sleep=waits.append)
    faults = {2: (429, {"error": {"message": "slow down"}}), 3: (503, b"busy"), 4: (200, b'{"data": [')}
    server.replace = lambda body, number: faults.get(number)
    np.testing.assert_allclose(embedder.encode(["x"]), REFERENCE.encode(["x"]), atol=1e-6)
    assert len(waits) == 3
    assert waits[0] >= 3.0  # Retry-After
    server.replace = lambda body, number: (500, b"down")
    before = len(server.bodies)
    with pytest.raises(EmbedderError, match=rf"no answer in {TRIES} tries, the last: status 500: down"):
        embedder.encode(["y"])
    assert len(server.bodies) - before == TRIES


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, {"error": {"message": "too long"}}, "refused a request .status 400: too long"),
        (401, {"error": "who are you"}, "MEMALPHA_EMBEDDING_KEY, which is not set"),
        (302, b"", "status 302: a redirect to http.*/elsewhere"),
        (200, {"data": []}, "returned 0 vectors for 1 texts"),
        (200, {"object": "list"}, "returned no vectors for 1 texts"),
        (200, {"data": [{"index": 1, "embedding": [1.0] * 8}]}, "indices"),
        (200, {"data": [{"index": 0, "embedding": [1.0] * 7}]}, "returned 7 numbers for 'x', 8 before"),
        (200, b'{"data": [{"index": 0, "embedding": [NaN, 1, 1, 1, 1, 1, 1, 1]}]}', "0 or not finite for 'x'"),
        (200, {"data": [{"index": 0, "embedding": [0.0] * 8}]}, "0 or not finite for 'x'"),
        (200, {"data": [{"index": 0, "embedding": "AACAPw=="}]}, "no vectors of one length"),
        (200, {"data": [{"index": 0, "embedding": [10**400] * 8}]}, "no vectors of one length"),
        (200, {"data": [{"index": 0, "embedding": [[1.0] * 8]}]}, "shape"),
    ],
)
def test_what_is_no_vector_is_refused_at_once(server: Server, status: int, answer: Any, message: str) -> None:
    embedder = EndpointEmbedder(server.name, sleep=lambda seconds: pytest.fail("no retry is due"))
    server.replace = lambda body, number: (status, answer)
    with pytest.raises(EmbedderError, match=message):
        embedder.encode(["x"])
    assert len(server.bodies) == 2


def test_keys_come_from_variables_and_reach_no_other_host(server: Server, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EmbedderError, match="set the environment variable OPENAI_API_KEY"):
        EndpointEmbedder("openai:text-embedding-3-small")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    EndpointEmbedder("openai:text-embedding-3-small")
    EndpointEmbedder(server.name)  # an address gets no key of OpenAI's
    monkeypatch.setenv(embedding.KEY_VARIABLE, "other")
    EndpointEmbedder(server.name)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer sk-1", None, "Bearer other"]
    with pytest.raises(EmbedderError, match="names no model"):
        EndpointEmbedder(server.url)
    server.replace = lambda body, number: (400, {"error": "bad key other"})
    with pytest.raises(EmbedderError, match=r"bad key \*\*\*"):
        EndpointEmbedder(server.name)


def test_a_store_is_searched_with_it_and_not_by_its_files_word(server: Server, tmp_path) -> None:
    path = tmp_path / "a.db"
    load_embedder.cache_clear()
    with MemoryStore.open(path, embedder=server.name) as store:
        store.insert_many(
            [{"category": "semantic", "content": text} for text in ("Ana keeps bees.", "Tom plays chess.")]
        )
        assert store.search("bees", 1, route="dense")[0].entry.content == "Ana keeps bees."
    sent = len(server.bodies)
    with MemoryStore.open(path) as store, pytest.raises(StoreError, match="not loaded by a file's word alone"):
        store.search("bees")
    assert len(server.bodies) == sent
    with MemoryStore.open(path, embedder=server.name) as store:
        assert store.search("chess", 1)[0].entry.content == "Tom plays chess."
