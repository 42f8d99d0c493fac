"""API keys: rights and namespaces over HTTP and MCP, quotas, the file of the keys, and the commands."""

from __future__ import annotations

import json
import re
import stat
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("mcp")
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from memalpha.cli.main import app as commands
from memalpha.cli.serve import find_keys
from memalpha.errors import ConfigError
from memalpha.integrations.server import auth as keys_module
from memalpha.integrations.server.auth import PREFIX, RIGHTS, KeyFile
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.mcp import mcp_server
from memalpha.integrations.server.service import MAX_NAMESPACES, MemoryService
from memalpha.policy.load import load_policy
from memalpha.store.store import MemoryStore

TOKEN = "a-token-of-the-tests"
FACT = {"category": "semantic", "content": "Somebody's dog: Rex"}
NAMESPACES = ("default", "user-1", "user-2", "other")
SECRETS = {name: f"Secret of {name}" for name in NAMESPACES}

HTTP = {  # verb: right, method, path, body
    "search": ("read", "POST", "/v1/search", {"query": "secret"}),
    "ask": ("read", "POST", "/v1/ask", {"question": "What is the secret?"}),
    "list": ("read", "GET", "/v1/entries", None),
    "get": ("read", "GET", "/v1/entries/{id}", None),
    "history": ("read", "GET", "/v1/history/{id}", None),
    "core": ("read", "GET", "/v1/core", None),
    "log": ("read", "GET", "/v1/log", None),
    "export": ("read", "GET", "/v1/export", None),
    "insert": ("write", "POST", "/v1/entries", FACT),
    "update": ("write", "PATCH", "/v1/entries/{id}", {"content": "changed"}),
    "delete": ("write", "DELETE", "/v1/entries/{id}", None),
    "set_core": ("write", "PUT", "/v1/core", {"content": "core"}),
    "read": ("read-with-model", "POST", "/v1/read", {"text": "I have a cat."}),
    "erase": ("erase", "DELETE", "/v1/history/{id}", None),
    "erase where": ("erase", "POST", "/v1/erase", {"where": {"user": "nobody"}}),
}
MCP = {  # tool: right, arguments
    "memory_search": ("read", {"query": "secret"}),
    "memory_list": ("read", {}),
    "memory_insert": ("write", {"category": "semantic", "content": "Somebody's cat: Tom"}),
    "memory_update": ("write", {"id": "{id}", "content": "changed"}),
    "memory_delete": ("write", {"id": "{id}"}),
    "memory_read": ("read-with-model", {"text": "I have a fish."}),
}


class Served:
    """A store with a secret in each of `NAMESPACES`, served with keys."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore.open(":memory:", embedder="hash")
        self.memories = {name: self.store.namespace(name) for name in NAMESPACES}
        self.fill()
        self.keys = KeyFile(folder / "keys", create=True)
        self.own = self.keys.add("own", ["admin"], ["user-1", "mine-*"])[1]
        self.revoked = self.keys.add("revoked", ["admin"], ["*"])[1]
        self.keys.revoke("revoked")
        service = MemoryService(self.store, load_policy("scripted:add-all"))
        app = HttpApp(service, token=TOKEN, keys=self.keys, mcp=mcp_server(service))
        self.web = TestClient(app, "http://localhost:8765", raise_server_exceptions=False)

    def fill(self) -> None:
        for name, memory in self.memories.items():
            memory.undo() if memory.log else None
            if not any(entry.content == SECRETS[name] for entry in memory.list()):
                memory.insert("semantic", SECRETS[name])

    def id(self, namespace: str) -> str:
        entries = self.memories[namespace].list() if namespace in self.memories else []
        return next((entry.id for entry in entries if entry.content == SECRETS[namespace]), "nobody")

    def send(self, verb: str, secret: str, namespace: str | None, id: str = "") -> Any:
        _, method, path, body = HTTP[verb]
        return self.web.request(method, path.format(id=quote(id)), json=body, headers=head(secret, namespace))

    def post_mcp(self, secret: str, namespace: str | None, method: str, **parameters: Any) -> Any:
        headers = {**head(secret, namespace), "Accept": "application/json, text/event-stream"}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
        return self.web.post("/mcp", json=message, headers=headers)


def head(secret: str, namespace: str | None = None) -> dict[str, str]:
    chosen = {} if namespace is None else {"Memalpha-Namespace": quote(namespace)}
    return {"Authorization": f"Bearer {secret}", **chosen}


def result(response: Any) -> Any:
    """Return the result of a JSON-RPC response, in JSON or an event stream."""
    text = response.text
    line = text if text.startswith("{") else next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
    return json.loads(line)["result"]


@pytest.fixture
def served(tmp_path):
    server = Served(tmp_path)
    with server.web:
        yield server
    server.keys.close()


def test_every_right_opens_its_verbs_in_its_namespaces_alone(served):
    for right in RIGHTS:
        _, secret = served.keys.add(right, [right], ["user-*"])
        for namespace, is_covered in (("user-1", True), ("other", False)):
            for verb, (needed, *_) in HTTP.items():
                served.fill()
                response = served.send(verb, secret, namespace, served.id(namespace))
                is_allowed = is_covered and right in (needed, "admin")
                assert response.is_success == is_allowed, (right, namespace, verb, response.text)
                if not is_allowed:
                    assert response.status_code == 403 and response.json()["code"] == "forbidden"
                    assert SECRETS[namespace] not in response.text
    assert served.memories["other"].list()[0].content == SECRETS["other"]


def test_every_route_is_in_the_table_of_rights(served):
    paths = served.web.get("/v1/openapi.json", headers=head(TOKEN)).json()["paths"]
    routes = {(method.upper(), re.sub(r"{.*?}", "{id}", path)) for path, item in paths.items() for method in item}
    assert routes - {("GET", "/v1/health")} == {(method, path) for _, method, path, _ in HTTP.values()}


def test_a_header_that_is_sent_twice_is_refused(served):
    once = head(served.own, "user-1")
    for twice in ("Authorization", "Memalpha-Namespace"):
        response = served.web.get("/v1/entries", headers=[*once.items(), (twice, once[twice])])
        assert response.status_code == 400 and "more than once" in response.json()["message"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_keys_of_a_removed_or_replaced_file_open_nothing(served, is_replaced):
    path = served.keys.path
    assert served.send("list", served.own, "user-1").is_success
    path.rename(path.with_name("elsewhere"))
    if is_replaced:
        KeyFile(path, create=True).close()
    response = served.send("list", served.own, "user-1")
    assert response.status_code == 503 and SECRETS["user-1"] not in response.text
    assert path.exists() == is_replaced


def test_every_right_opens_its_tools_over_mcp(served):
    for right in RIGHTS:
        _, secret = served.keys.add(right, [right], ["user-1"])
        tools = {tool["name"] for tool in result(served.post_mcp(secret, None, "tools/list"))["tools"]}
        assert tools == {name for name, (needed, _) in MCP.items() if right in (needed, "admin")}
        assert served.post_mcp(secret, "user-2", "tools/list").status_code == 403
        for name, (_, arguments) in MCP.items():
            served.fill()
            values = {key: value.format(id=served.id("user-1")) for key, value in arguments.items()}
            response = served.post_mcp(secret, None, "tools/call", name=name, arguments=values)
            answer = result(response)
            assert answer["isError"] == (name not in tools), (right, name, response.text)
            if name not in tools:
                assert answer["structuredContent"]["code"] == "forbidden" and SECRETS["user-1"] not in response.text
            assert not any(SECRETS[other] in response.text for other in NAMESPACES if other != "user-1")


def test_the_token_is_an_admin_key_of_the_served_namespace(served):
    served.keys.add("prefix", ["read"], ["user-*"])
    for namespace in (None, "default"):
        assert SECRETS["default"] in served.send("list", TOKEN, namespace).text
    assert served.send("erase", TOKEN, None, served.id("default")).json()["pending"] is False
    assert served.send("list", TOKEN, "user-1").status_code == 403
    assert served.web.get("/v1/entries").status_code == 401
    assert served.web.get("/v1/health", headers=head("nonsense")).status_code == 200


def test_a_key_of_several_namespaces_names_one(served):
    _, secret = served.keys.add("two", ["read"], ["user-1", "Zoë*"])
    response = served.send("list", secret, None)
    assert response.status_code == 422 and "Memalpha-Namespace" in response.json()["message"]
    assert SECRETS["user-1"] in served.send("list", secret, "user-1").text
    assert served.send("list", secret, "Zoë 2").json()["entries"] == []
    assert "Zoë 2" not in served.store.namespaces(), "reading makes no namespace"
    for value in ("%ff", "", "%00", "a" * 300):
        headers = {**head(secret), "Memalpha-Namespace": value}
        assert served.web.get("/v1/entries", headers=headers).status_code == 422


PATHS = [path for _, _, path, _ in HTTP.values()]


def secrets_shown_to_a_stranger(served: Served, data: st.DataObject) -> list[str]:
    """Send a random request, with a wrong key or the key of `user-1`; return the foreign secrets that come back."""
    own = served.own
    secret = data.draw(
        st.sampled_from(
            [own, served.revoked, own[:-1], own + "x", own.upper(), PREFIX, own.split("_")[1], "", TOKEN[:-1]]
        )
        | st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40)
    )
    namespace = data.draw(st.sampled_from([*NAMESPACES, "mine-1", "user-*", "*", "user-1/../other"]) | st.text())
    spelled = data.draw(st.sampled_from([quote(namespace), namespace.encode("ascii", "ignore").decode()]))
    path = data.draw(st.sampled_from([*PATHS, "/v1//entries", "/v1/entries/../export", "/other/v1/entries", "/v1"]))
    id = data.draw(st.sampled_from([served.id(name) for name in NAMESPACES]) | st.text(max_size=10))
    method = data.draw(st.sampled_from(["GET", "POST", "PATCH", "PUT", "HEAD", "OPTIONS"]))
    header = data.draw(st.sampled_from(["Memalpha-Namespace", "X-Namespace", "memalpha-namespace", "Namespace"]))
    body = data.draw(st.sampled_from([body for *_, body in HTTP.values()]))
    query = data.draw(st.sampled_from([None, {"namespace": "other"}, {"limit": "5"}]))
    headers = {
        b"Authorization": f"Bearer {secret}".encode("latin-1"),
        header.encode(): spelled.encode("latin-1", "ignore"),
    }
    try:
        url = path.format(id=quote(id))
        response = served.web.request(method, url, json=body, params=query, headers=headers)
    except ValueError:  # a header that no client can send
        return []
    visible = {"user-1"} if secret == own else set()
    return [f"{name}: {method} {url}" for name in NAMESPACES if name not in visible and SECRETS[name] in response.text]


@pytest.mark.parametrize("examples", [30, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_request_of_a_stranger_gets_a_secret(served, examples):
    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        assert secrets_shown_to_a_stranger(served, data) == []

    check()


def test_quotas_answer_429_with_the_time_to_wait(served, monkeypatch):
    _, secret = served.keys.add("slow", ["read"], ["user-1"], requests_per_minute=3)
    statuses = [served.send("list", secret, None).status_code for _ in range(4)]
    refused = served.send("list", secret, None)
    assert statuses == [200, 200, 200, 429] and 15 <= int(refused.headers["Retry-After"]) <= 20
    now = keys_module.time.monotonic() + 20.1
    monkeypatch.setattr(keys_module.time, "monotonic", lambda: now)
    assert [served.send("list", secret, None).status_code for _ in range(2)] == [200, 429]
    monkeypatch.undo()
    size = len(json.dumps(FACT, separators=(",", ":")))
    _, secret = served.keys.add("small", ["read", "write"], ["user-1"], bytes_per_day=2 * size + 1)
    assert [served.send("insert", secret, None).status_code for _ in range(3)] == [201, 200, 429]
    assert int(served.send("insert", secret, None).headers["Retry-After"]) <= 86_400
    assert served.send("list", secret, None).is_success, "reading is not counted"
    again = KeyFile(served.keys.path)  # a server that starts anew
    key = again.authenticate(secret)
    assert key is not None
    again.count_bytes(key, 1)
    with pytest.raises(Exception, match="bytes a day"):
        again.count_bytes(key, 1)
    again.close()


def test_the_file_has_no_secret_and_a_revocation_holds_at_once(tmp_path):
    path = tmp_path / "keys"
    server = KeyFile(path, create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    administrator = KeyFile(path)
    key, secret = administrator.add("app", ["write", "read"], ["default", "default"])
    assert key.rights == ("read", "write") and key.namespaces == ("default",) and key.last_used is None
    assert server.authenticate(secret) == key and server.authenticate(secret + "x") is None
    assert administrator.list()[0].last_used is not None
    assert not any(secret.split("_", 2)[2].encode() in file.read_bytes() for file in tmp_path.iterdir())
    with pytest.raises(ConfigError, match="revoke it"):
        administrator.add("app", ["read"], ["default"])
    assert administrator.revoke("app").revoked is not None
    assert server.authenticate(secret) is None
    assert administrator.add("app", ["read"], ["default"])[0].id != key.id
    administrator.close()
    server.close()
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyFile(path)
    (tmp_path / "text").write_text("no database, but text of some length\n" * 20)
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(ConfigError, match="no file of keys"):
        KeyFile(tmp_path / "text")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rights": ["own"]}, "choose among read"),
        ({"rights": []}, "right: a key needs"),
        ({"namespaces": []}, "namespace: a key needs"),
        ({"name": "a\nb"}, "printable"),
        ({"namespaces": ["a\x1b"]}, "printable"),
        ({"requests_per_minute": 0}, "requests-per-minute"),
    ],
)
def test_a_bad_key_is_refused_by_name(tmp_path, changes, says):
    file = KeyFile(tmp_path / "keys", create=True)
    with pytest.raises(ConfigError, match=says):
        file.add(**{"name": "app", "rights": ["read"], "namespaces": ["default"], **changes})
    file.close()


def test_commands_add_list_and_revoke(tmp_path):
    store, run = str(tmp_path / "ana.db"), CliRunner().invoke
    words = ["keys", "add", store, "app", "--right", "read", "--right", "erase", "--namespace", "user-*", "--json"]
    made = json.loads(run(commands, words).stdout)
    assert made["secret"].startswith(f"mem_{made['id']}_") and (tmp_path / "ana.db.keys").exists()
    text = run(commands, ["keys", "list", store]).stdout
    assert "app  read,erase  user-*" in text and "last used never" in text and made["secret"] not in text
    assert "revoked" in run(commands, ["keys", "revoke", store, made["id"]]).stdout
    assert isinstance(run(commands, ["keys", "revoke", store, "app"]).exception, ConfigError)
    assert "--keys FILE" in str(run(commands, ["keys", "list", "postgresql://h/d"]).exception)


def test_namespaces_that_were_not_used_for_long_are_let_go(served):
    service = served.web.app.service
    first = service.namespace("n-0")
    assert service.namespace("n-0") is first and service.namespace("default") is service
    for number in range(1, MAX_NAMESPACES + 1):
        service.namespace(f"n-{number}")
    assert service.namespace("n-0") is not first and service._open.cache_info().currsize == MAX_NAMESPACES


def test_every_write_carries_the_name_of_its_key(served):
    _, other = served.keys.add("other-app", ["admin"], ["user-1"])
    start = served.memories["user-1"].snapshot()
    for verb, (right, *_) in HTTP.items():
        if right in ("write", "read-with-model"):
            served.fill()
            assert served.send(verb, other, "user-1", served.id("user-1")).is_success
    served.post_mcp(other, None, "tools/call", name="memory_insert", arguments={"category": "semantic", "content": "m"})
    keys = [operation.key for _, _, operation in served.memories["user-1"].log(start)]
    assert keys.count("other-app") >= 6 and set(keys) == {None, "other-app"}  # `fill` has no key
    served.send("insert", TOKEN, None)
    assert [operation.key for _, _, operation in served.store.log()][-1] is None


def test_the_first_key_holds_for_a_server_that_runs_already(tmp_path):
    path = tmp_path / "ana.db"
    service = MemoryService(MemoryStore.open(path, embedder="hash"), load_policy("scripted:add-all"))
    with TestClient(HttpApp(service, find_keys=partial(find_keys, str(path), None)), "http://localhost") as web:
        assert web.get("/v1/entries").status_code == 200
        added = CliRunner().invoke(commands, ["keys", "add", str(path), "ana", "--json"])
        assert web.get("/v1/entries").status_code == 401
        assert web.get("/v1/entries", headers=head(json.loads(added.stdout)["secret"])).status_code == 200
        Path(f"{path}.keys").unlink()
        assert web.get("/v1/entries").status_code == 503, "the server does not open up again"
