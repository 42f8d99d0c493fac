"""HTTP API: operations, refusals, and agreement with its OpenAPI description (schemathesis)."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import pytest
from fake_policy import FakePolicy

pytest.importorskip("fastapi")
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from memalpha.integrations.server import service as service_module
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.schemas import MAX_BODY, MAX_TEXT
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.base import Policy
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore
from memalpha.types import Completion

TOKEN = "a-token-of-the-tests"
BEARER, JSON = {"Authorization": f"Bearer {TOKEN}"}, {"Content-Type": "application/json"}


def served(store: MemoryStore, policy: Policy | None = None, **options: Any) -> TestClient:
    """Return a client of an application over `store`; server errors are responses, as over a network."""
    read_only = options.pop("read_only", False)
    service = MemoryService(store, policy or load_policy("scripted:add-all"), read_only=read_only)
    return TestClient(HttpApp(service, **options), "http://localhost:8765", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def empty() -> tuple[MemoryStore, TestClient, TestClient]:
    """Return an empty store with two clients: on loopback, and elsewhere with a token."""
    store = MemoryStore.open(":memory:", embedder="hash")
    return store, served(store), served(store, token=TOKEN, local=False)


def test_insert_update_and_delete_of_an_entry(store):
    web = served(store)
    fact = {"category": "semantic", "content": "Ana's city: Porto"}
    created = web.post("/v1/entries", json={**fact, "metadata": {"by": 1}})
    entry = created.json()
    assert created.status_code == 201 and entry == {**entry, **fact, "source": "http"}
    again = web.post("/v1/entries", json={**fact, "metadata": {"by": 1}})
    assert again.status_code == 200 and again.json() == entry
    ben = web.post("/v1/entries", json={**fact, "metadata": {"by": 3}})  # nobody gets an entry of somebody else
    assert ben.status_code == 201 and ben.json()["metadata"] == {"by": 3}
    path = f"/v1/entries/{entry['id'].replace('#', '%23')}"
    moved = web.patch(path, json={"content": "Ana's city: Oslo", "timestamp": "2024-05-01"})
    assert moved.json()["version"] == 2 and moved.json()["metadata"] == {"by": 1}
    assert web.patch(path, json={"content": "Ana's city: Oslo", "timestamp": "2024-05-01"}).status_code == 409
    assert web.get(path, params={"as_of": 1}).json() == {**entry, "valid_to": None}
    assert web.post("/v1/ask", json={"question": "Which zebra?"}).json()["abstained"]
    thinking = served(store, FakePolicy(lambda request: Completion("", stop_reason="length")))
    cut = thinking.post("/v1/ask", json={"question": "What is Ana's city?"}).json()
    assert (cut["answer"], cut["abstained"], cut["truncated"]) == ("", False, True)
    assert web.delete(path).json()["content"] == "Ana's city: Oslo"
    assert web.get(path).json() == {"code": "unknown_id", "message": f"no live entry has the id '{entry['id']}'"}


def test_a_long_line_stays_with_its_speaker(store):
    web = served(store, load_policy("scripted:add-all"))
    advice = "You could walk by the river. " * 120
    reading = web.post("/v1/read", json={"text": f"Ana: {'I like rivers. ' * 40}\nBen: {advice}"}).json()
    assert reading["chunks"] == 2 and len(advice) > 3000
    assert [entry.content[:4] for entry in store.list()] == ["Ana:", "Ben:"], "no piece without a name"


def test_chunks_are_numbered_across_requests(store):
    web = served(store, load_policy("scripted:add-all"))
    text = "\n".join(f"I have {number} cats." for number in range(400))
    reading = web.post("/v1/read", json={"text": text, "timestamp": "2024-05-01", "source": "cats.txt"}).json()
    assert reading["chunks"] > 1 and [item["code"] for item in reading["results"]] == ["inserted"] * 400
    assert [entry.content for entry in store.list()] == text.splitlines()
    assert {entry.source for entry in store.list()} == {"cats.txt"} and store.list()[0].timestamp == "2024-05-01"
    web.post("/v1/read", json={"text": "I have a dog.", "source": "cats.txt"})
    assert {entry.chunk for entry in store.list()[:400]} == set(range(reading["chunks"]))
    assert store.list()[-1].chunk == reading["chunks"], "no two chunks of a source have one place"


def test_an_expiry_is_changed_and_cleared(store):
    entry = store.insert("semantic", "Ana is away.", expires="2099-01-01")
    client, path = served(store), f"/v1/entries/{quote(entry.id)}"
    for expires, expected in [("2099-02-01", "2099-02-01T00:00:00.000000+00:00"), ("", None)]:
        changed = client.patch(path, json={"expires": expires}).json()
        assert (changed["expires"], changed["content"]) == (expected, "Ana is away.")
    assert client.patch(path, json={"content": "x", "expires": "May"}).status_code == 422


def test_a_lone_surrogate_in_metadata_is_escaped(store):
    entry = store.insert("semantic", "Ana lives in Porto.", metadata={"half": "\ud800"})
    client, id = served(store), quote(entry.id)
    responses = [client.get(f"/v1/{path}") for path in ("entries", f"entries/{id}", f"history/{id}", "log")]
    responses.append(client.post("/v1/search", json={"query": "Where does Ana live?"}))
    assert [response.status_code for response in responses] == [200] * 5
    assert all('"half":"\\ud800"' in response.text for response in responses)


def test_an_export_can_be_imported(store, tmp_path):
    store.insert("semantic", "Ana lives in Lisbon.")
    store.update(store.list()[0].id, "Ana lives in Porto.")
    answer = served(store).get("/v1/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    (tmp_path / "log.jsonl").write_bytes(answer.content)
    copy = MemoryStore.open(":memory:", embedder="hash")
    assert copy.import_jsonl(tmp_path / "log.jsonl") == 2 and copy.state == store.state


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/entries", {"category": "nonsense", "content": "x"}, 422, "use semantic, episodic"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "  "}, 422, "body.content: Value error, is empty"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "a\x00"}, 422, "NUL"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "a\ud800"}, 422, "unicode"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "a", "namespace": "b"}, 422, "body.namespace"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "a", "timestamp": "May"}, 422, "ISO 8601"),
        ("POST", "/v1/entries", {"category": "semantic", "content": "a", "metadata": {"b": "\x00"}}, 422, "NUL"),
        ("POST", "/v1/search", {"query": "x", "where": {"a": {"$near": 1}}}, 422, "unknown operator '$near'"),
        ("POST", "/v1/search", {"query": "x", "k": 101}, 422, "less than or equal to 100"),
        ("POST", "/v1/search", {"query": "x", "as_of": -1}, 422, "body.as_of: Input should be greater"),
        ("POST", "/v1/read", {"text": "x" * (MAX_TEXT + 1)}, 422, "at most 200000 characters"),
        ("POST", "/v1/read", {}, 422, "either 'text' or 'messages'"),
        ("POST", "/v1/read", {"text": "x", "messages": [{}]}, 422, "either 'text' or 'messages'"),
        ("POST", "/v1/read", {"messages": []}, 422, "body.messages"),
        ("POST", "/v1/read", {"messages": [{"role": "user"}]}, 422, "messages[0].content: is missing"),
        ("POST", "/v1/read", {"messages": [{"role": "user", "content": "a\x00"}]}, 422, "NUL"),
        ("POST", "/v1/read", {"messages": [{"role": "system", "content": "a"}]}, 422, "no words of a user"),
        ("POST", "/v1/read", {"messages": [{"role": "user", "content": "x" * 150000}] * 2}, 422, "200000 is the limit"),
        ("GET", "/v1/entries?catgory=semantic", None, 422, "query.catgory: there is no such parameter"),
        ("GET", "/v1/entries?limit=1&limit=2", None, 422, "query.limit: is sent more than once"),
        ("GET", "/v1/entries?after=nobody", None, 404, "nobody"),
        ("POST", "/v1/erase", {"where": {"user": None}}, 422, "erase: user is None"),
        ("GET", "/v1/entries?as_of=2020", None, 422, "as_of 2020: the log ends at position 0"),
        ("POST", "/v1/search", {"query": "x", "as_of": 2020}, 422, "as_of 2020: the log ends at position 0"),
        ("GET", "/v1/nothing", None, 404, "Not Found"),
        ("PUT", "/v1/entries", {}, 405, "Method Not Allowed"),
    ],
)
def test_refusals_name_the_problem(empty, method, path, body, status, says):
    store, web, _ = empty
    content = None if body is None else json.dumps(body)
    answer = web.request(method, path, content=content, headers=JSON)
    assert answer.status_code == status and set(answer.json()) == {"code", "message"}, answer.text
    assert says in answer.json()["message"] and store.snapshot() == 0


def test_probes_and_proxies_get_answers_of_the_standard(store):
    web = served(store)
    assert web.head("/v1/health").status_code == 200, "as `wget --spider` asks"
    assert web.put("/v1/entries").headers["allow"] == "GET, HEAD, POST"
    packed = gzip.compress(b'{"query": "x"}')
    refused = web.post("/v1/search", content=packed, headers=JSON)
    assert refused.status_code == 400 and "uncompressed" in refused.json()["message"]


def test_deep_and_large_bodies(store):
    web = served(store)
    deep: Any = 1
    for _ in range(30):
        deep = {"a": deep}
    assert "deeper than 20" in web.post("/v1/search", json={"query": "x", "where": deep}).json()["message"]
    nested = '{"query": "x", "where": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    assert web.post("/v1/search", content=nested, headers=JSON).status_code in (400, 422)
    large = b"x" * (MAX_BODY + 1)
    parts = (large[start : start + 65536] for start in range(0, len(large), 65536))  # no declared total
    for body in (large, parts):
        assert web.post("/v1/read", content=body).json()["code"] == "too_large"


def test_read_only(store):
    store.insert("semantic", "city: Porto")
    service = MemoryService(store, None, read_only=True)
    web = TestClient(HttpApp(service), "http://localhost")
    for method, path, body in [
        ("POST", "/v1/entries", {"category": "semantic", "content": "a"}),
        ("POST", "/v1/read", {"text": "I live in Oslo."}),
        ("PATCH", "/v1/entries/a", {"content": "a"}),
        ("DELETE", "/v1/entries/a", None),
        ("PUT", "/v1/core", {"content": "a"}),
    ]:
        answer = web.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "read_only")
    assert web.post("/v1/ask", json={"question": "Which city?"}).json()["answer"] == "Porto" and store.snapshot() == 1


class Broken(ScriptedPolicy):
    """Policy that fails after two chunks with a message that must not leave the server."""

    def __init__(self, error: Exception) -> None:
        super().__init__("add-all")
        self.error, self.left = error, 2

    def sample(self, requests):
        if not self.left:
            raise self.error
        self.left -= 1
        return super().sample(requests)


@pytest.mark.parametrize("kind", ["policy", "bug of a policy", "bug"])
def test_internal_errors_get_a_general_message_and_a_full_log(store, kind, caplog, monkeypatch):
    from memalpha.errors import PolicyError

    error = PolicyError("http://inside:8000 said sk-secret") if kind == "policy" else ZeroDivisionError("/root/secret")
    if kind == "bug":  # one of memalpha's own classes has it
        monkeypatch.setattr(Broken, "__module__", "memalpha.policy.scripted")
    web = served(store, Broken(error))
    text = "\n".join(f"I have {number} cats and {number} dogs." for number in range(400))
    answer = web.post("/v1/read", json={"text": text})
    assert answer.status_code == (500 if kind == "bug" else 502) and "secret" not in answer.text
    assert "2 of 3 chunks were read" in answer.json()["message"] and "secret" in caplog.text
    assert 0 < len(store.list()) < 400 and web.get("/v1/health").status_code == 200


@pytest.mark.sqlite
def test_a_locked_store_tells_clients_to_come_back(tmp_path):
    store = MemoryStore.open(tmp_path / "ana.db", embedder="hash")
    store.database.connection.execute("PRAGMA busy_timeout = 20")
    web, other = served(store), sqlite3.connect(tmp_path / "ana.db")
    other.execute("BEGIN IMMEDIATE")
    answer = web.post("/v1/entries", json={"category": "semantic", "content": "x"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5") and store.list() == []
    other.rollback()
    assert web.post("/v1/entries", json={"category": "semantic", "content": "x"}).status_code == 201
    other.close()
    store.close()


def test_health_requests_use_one_thread(store, monkeypatch):
    running, most = 0, 0

    async def reading(self, work, **options: MemoryService) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 0

    monkeypatch.setattr(MemoryService, "reading", reading)
    with served(store, token=TOKEN, local=False) as web, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: web.get("/v1/health").status_code, range(16)))
    assert answers == [200] * 16 and most == 1


# ------------------------------------------------------------------------------------------------------- the guard


def test_a_token_is_required(empty):
    _, _, web = empty
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer é"}):
        for path in ("/v1/entries", "/v1/openapi.json", "/mcp", "/nothing"):
            answer = web.get(path, headers={name: value.encode() for name, value in headers.items()})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert web.get("/v1/entries", headers=BEARER).status_code == 200 and web.get("/v1/health").status_code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_without_the_json_content_type_is_refused_by_name(empty, kind):
    _, client, _ = empty
    body, headers = b'{"query": "Where does Ana live?"}', {"Content-Type": kind} if kind else {}
    answer = client.post("/v1/search", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_arguments")
    assert answer.json()["message"] == "body: send the header Content-Type: application/json"
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert client.post("/v1/search", content=body, headers={"Content-Type": kind}).json() == {"hits": []}
    wrong = client.post("/v1/search", content=b"[]", headers=JSON).json()["message"]
    assert wrong.startswith("body: Input should be a valid dictionary")
    assert client.post("/v1/search", headers=headers).json()["message"] == "body: Field required"
    twice = client.post("/v1/search", content=b'{"query": "a", "query": "b"}', headers={"Content-Type": kind})
    assert twice.json()["message"] == "body.query: the key occurs twice in one object"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "foreign_host"),
        ({"Host": "localhost.evil.example"}, "foreign_host"),
        ({"Host": "[::1"}, "foreign_host"),
        ({"Host": "evil.example@localhost:8765"}, "foreign_host"),
        ({"Origin": "http://evil.example"}, "foreign_origin"),
        ({"Origin": "null"}, "foreign_origin"),
        ({"Host": "127.0.0.1:8765"}, None),
        ({"Host": "[::1]:8765"}, None),
        ({"Origin": "http://localhost:8765"}, None),
    ],
)
def test_loopback_accepts_only_loopback_hosts(empty, headers, code):
    _, web, elsewhere = empty
    assert web.get("/v1/entries", headers=headers).json().get("code") == code
    assert elsewhere.get("/v1/entries", headers={**headers, **BEARER}).status_code == 200


# ------------------------------------------------------------------------------------------------- API description

RELAXED = list(HealthCheck)


@lru_cache(1)
def described() -> Any:
    """Return the operations in the API description of a server over a small store."""
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.config import SchemathesisConfig

    store = MemoryStore.open(":memory:", embedder="hash")
    store.insert("semantic", "Ana lives in Lisbon.", metadata={"user": "ana"})
    app = HttpApp(MemoryService(store, load_policy("scripted:add-all")), token=TOKEN, local=False)
    config = SchemathesisConfig.from_dict({"generation": {"allow-x00": False}})  # no schema can say that NUL is refused
    api = schemathesis.openapi.from_asgi("/v1/openapi.json", app, config=config, headers=BEARER)
    return {result.ok().label: result.ok() for result in api.get_all_operations()}


QUICK = [
    *("GET /v1/health", "GET /v1/entries", "GET /v1/entries/{id}", "DELETE /v1/entries/{id}", "GET /v1/history/{id}"),
    *("DELETE /v1/history/{id}", "GET /v1/core", "PUT /v1/core", "GET /v1/log", "GET /v1/export"),
]
OPERATIONS = [
    *QUICK,
    *("POST /v1/read", "POST /v1/ask", "POST /v1/search", "POST /v1/entries", "PATCH /v1/entries/{id}"),
    "POST /v1/erase",
]


def test_every_operation_is_listed():
    assert sorted(described()) == sorted(OPERATIONS)


MANY = [pytest.param(label, 150, marks=pytest.mark.slow) for label in OPERATIONS]


@pytest.mark.parametrize(("label", "examples"), [*((label, 2) for label in QUICK), *MANY])
def test_responses_match_the_api_description(label, examples):
    """Every response of an operation matches its description: status, type and content."""
    operation = described()[label]
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    needless = [positive_data_acceptance]  # a schema cannot express valid filters

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=RELAXED)
    @given(case=operation.as_strategy())
    def check(case):
        filtered = isinstance(case.body, dict) and case.body.get("where")
        case.call_and_validate(headers=BEARER, excluded_checks=needless if filtered else [])

    check()


def test_an_answer_has_a_limit_in_bytes(store, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_ANSWER", 40_000)
    web = served(store)
    huge = {"category": "semantic", "content": "x", "metadata": {"a": "é" * 33_000}}
    refused = web.post("/v1/entries", json=huge)
    assert refused.status_code == 422 and "65536 is the limit" in refused.json()["message"]
    for number in range(5):
        fact = {"category": "semantic", "content": f"{number}", "metadata": {"a": "x" * 15_000}}
        entry = web.post("/v1/entries", json=fact).json()
    pages, after = [], {}
    while after is not None:
        page = web.get("/v1/entries", params={"limit": 1000, **after}).json()
        pages.append([entry["content"] for entry in page["entries"]])
        after = {"after": page["next"]} if page["next"] else None
    assert pages == [["0", "1"], ["2", "3"], ["4"]]
    assert len(web.get("/v1/log").json()["operations"]) == 2
    assert len(web.get("/v1/log", params={"after": 4}).json()["operations"]) == 1
    refused = web.post("/v1/search", json={"query": "x"})
    assert refused.json()["code"] == "answer_too_large" and "fewer hits (k)" in refused.json()["message"]
    assert len(web.post("/v1/search", json={"query": "x", "k": 2}).json()["hits"]) == 2
    path = f"/v1/entries/{entry['id'].replace('#', '%23')}"
    assert all(web.patch(path, json={"content": f"new {number}"}).status_code == 200 for number in range(2))
    assert web.get(path.replace("entries", "history")).json()["code"] == "answer_too_large"
    monkeypatch.setattr(service_module, "PAGE_STEP", 2)
    monkeypatch.setattr(service_module, "MAX_ANSWER", 10**6)
    for limit in (1, 3, 4, 5, 6):
        page = web.get("/v1/entries", params={"limit": limit}).json()
        assert len(page["entries"]) == min(limit, 5) and (page["next"] is None) == (limit >= 5)
    assert web.get("/v1/entries", params={"category": "episodic"}).json() == {"core": "", "entries": [], "next": None}
