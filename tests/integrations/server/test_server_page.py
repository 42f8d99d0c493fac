"""The server's page: for a browser with a key, read-only, and hostile text on it is text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from memalpha.integrations.server.auth import KeyFile
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.load import load_policy
from memalpha.report.memory_page import render_memory_page
from memalpha.store.store import MemoryStore

MARKUP = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


class Served:
    """A store with two namespaces, and keys for them."""

    def __init__(self, folder: Path) -> None:
        store = MemoryStore.open(":memory:", embedder="hash")
        store.namespace("ana").insert("semantic", "Ana lives in Porto.")
        store.namespace("ana").insert("semantic", "Ana's note: " + MARKUP)
        store.namespace("ben").insert("semantic", "Ben lives in Riga.")
        self.keys = KeyFile(folder / "keys", create=True)
        self.ana = self.keys.add("ana", ["read", "write"], ["ana"])[1]
        self.both = self.keys.add("both", ["read"], ["*"])[1]
        self.writer = self.keys.add("writer", ["write"], ["ana"])[1]
        service = MemoryService(store, load_policy("scripted:add-all"))
        self.app = HttpApp(service, keys=self.keys, page=render_memory_page)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    yield server
    server.keys.close()


@pytest.fixture
def web(served: Served) -> Iterator[TestClient]:
    with TestClient(served.app, "http://localhost:8765", raise_server_exceptions=False) as web:
        yield web


def test_a_browser_is_asked_for_a_key(served: Served, web: TestClient) -> None:
    response = web.get("/")
    assert response.status_code == 401 and response.headers["WWW-Authenticate"].startswith("Basic realm=")
    assert "the password is the token or a key" in response.json()["message"]
    assert web.get("/", auth=("", "wrong")).status_code == 401
    assert web.get("/", headers={"Authorization": "Basic %%%"}).status_code == 401
    assert web.get("/", auth=("", served.writer)).status_code == 403
    page = web.get("/", auth=("", served.ana))
    assert page.status_code == 200 and "Ana lives in Porto." in page.text and "Ben" not in page.text
    assert (
        page.headers["Cache-Control"] == "no-store"
        and "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    )
    assert MARKUP not in page.text


def test_the_user_name_is_the_namespace(served: Served, web: TestClient) -> None:
    assert web.get("/", auth=("", served.both)).status_code == 422  # it has several
    assert "Ben lives in Riga." in web.get("/", auth=("ben", served.both)).text
    response = web.get("/", auth=("ben", served.ana))
    assert response.status_code == 403 and "Riga" not in response.text
    twice = {"Memalpha-Namespace": "ana"}
    assert web.get("/", auth=("ben", served.ana), headers=twice).status_code == 403


def test_what_a_browser_keeps_opens_the_page_alone(served: Served, web: TestClient) -> None:
    for method, path in (
        ("GET", "/v1/entries"),
        ("POST", "/v1/search"),
        ("DELETE", "/v1/entries/x"),
        ("PUT", "/v1/core"),
    ):
        response = web.request(method, path, auth=("", served.ana), json={} if method != "GET" else None)
        assert response.status_code == 401, path
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert web.post("/", auth=("", served.ana)).status_code == 405


def test_a_search_explains_its_scores(served: Served, web: TestClient) -> None:
    page = web.get("/", params={"q": "Where does Ana live?"}, auth=("", served.ana)).text
    found = page[page.index("<h2>Found</h2>") :]
    assert found.index("Ana lives in Porto.") < found.index("</table>")
    assert "bm25 " in found and "dense " in found
    assert MARKUP not in web.get("/", params={"q": MARKUP}, auth=("", served.ana)).text
    assert web.get("/", params={"q": "x" * 5000}, auth=("", served.ana)).status_code == 422
    assert web.get("/", params={"as_of": "1"}, auth=("", served.ana)).status_code == 422
