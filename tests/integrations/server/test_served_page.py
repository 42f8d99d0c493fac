"""The page of a server: a browser needs a key, forms need a flag, a right and the page itself; markup stays text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import listening

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from memalpha.integrations.server.auth import KeyFile
from memalpha.integrations.server.http import HttpApp
from memalpha.integrations.server.service import MemoryService
from memalpha.policy.load import load_policy
from memalpha.report.memory_page import render_memory_page
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

MARKUP = "<script>document.title='run'</script>"
ORIGIN = {"Origin": "http://localhost:8765"}


class Served:
    """A store with a fact of Ana and a claim that waits, keys with different rights, and a client of the page."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore.open(":memory:", embedder="hash")
        self.ana = self.store.namespace("ana")
        with self.ana.writing_as(speaker="Ana"):
            self.home = self.ana.insert("semantic", "Ana lives in Porto.")
        claim = Operation("update", id=self.home.id, category="semantic", content="Ana lives in Moscow. " + MARKUP)
        self.ana.apply(quarantine_operation(claim, self.home.content, "Ana said otherwise"))
        self.claim = self.ana.snapshot()
        self.store.namespace("ben").insert("semantic", "Ben lives in Riga.")
        self.keys = KeyFile(folder / "keys", create=True)
        rights = {"reader": ["read"], "editor": ["read", "write"], "reviewer": ["read", "review"], "writer": ["write"]}
        self.secrets = {name: self.keys.add(name, right, ["*"])[1] for name, right in rights.items()}
        self.secrets["ana"] = self.keys.add("ana", ["read", "write"], ["ana"])[1]
        self.web = self.client()

    def client(self, **options: Any) -> TestClient:
        service = MemoryService(self.store, load_policy("scripted:add-all"))
        app = HttpApp(service, keys=self.keys, **{"page": render_memory_page, "page_edits": True, **options})
        return TestClient(app, "http://localhost:8765", raise_server_exceptions=False, follow_redirects=False)

    def page(self, key: str, namespace: str = "ana") -> str:
        return self.web.get("/", auth=(namespace, self.secrets[key])).text

    def token(self, key: str, namespace: str = "ana") -> str:
        found = re.search('name="token" value="([0-9a-f]{64})"', self.page(key, namespace))
        assert found is not None
        return found[1]

    def send(self, key: str, headers: dict[str, str] = ORIGIN, namespace: str = "ana", **fields: object) -> Any:
        data = {"token": self.token(key) if key in ("editor", "reviewer") else "0" * 64, **fields}
        return self.web.post("/", auth=(namespace, self.secrets[key]), headers=headers, data=data)

    def content(self) -> str:
        return self.ana.get(self.home.id).content


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    yield server
    server.keys.close()


def test_a_browser_is_asked_for_a_key(served: Served) -> None:
    response = served.web.get("/")
    assert response.status_code == 401 and response.headers["WWW-Authenticate"].startswith("Basic realm=")
    assert "the password is the token or a key" in response.json()["message"]
    assert served.web.get("/", auth=("", "wrong")).status_code == 401
    assert served.web.get("/", headers={"Authorization": "Basic %%%"}).status_code == 401
    assert served.web.get("/", auth=("ana", served.secrets["writer"])).status_code == 403
    page = served.web.get("/", auth=("", served.secrets["ana"]))
    assert page.status_code == 200 and "Ana lives in Porto." in page.text and "Ben" not in page.text
    assert page.headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert MARKUP not in page.text


def test_the_user_name_is_the_namespace(served: Served) -> None:
    assert served.web.get("/", auth=("", served.secrets["reader"])).status_code == 422  # it has several
    assert "Ben lives in Riga." in served.web.get("/", auth=("ben", served.secrets["reader"])).text
    response = served.web.get("/", auth=("ben", served.secrets["ana"]))
    assert response.status_code == 403 and "Riga" not in response.text
    twice = {"Memalpha-Namespace": "ana"}
    assert served.web.get("/", auth=("ben", served.secrets["ana"]), headers=twice).status_code == 403


def test_a_search_explains_its_scores(served: Served) -> None:
    page = served.web.get("/", params={"q": "Where does Ana live?"}, auth=("", served.secrets["ana"])).text
    found = page[page.index("<h2>Found</h2>") :]
    assert found.index("Ana lives in Porto.") < found.index("</table>")
    assert "bm25 " in found and "dense " in found
    lone = served.web.get("/", params={"q": "Where does Ben live?"}, auth=("ben", served.secrets["reader"])).text
    assert '<td class="n">alone</td>' in lone  # scores compare hits, so that of a lone one is 0
    assert MARKUP not in served.web.get("/", params={"q": MARKUP}, auth=("", served.secrets["ana"])).text
    assert served.web.get("/", params={"q": "x" * 5000}, auth=("", served.secrets["ana"])).status_code == 422
    assert served.web.get("/", params={"as_of": "1"}, auth=("", served.secrets["ana"])).status_code == 422


def test_each_key_gets_the_forms_of_its_rights(served: Served) -> None:
    form = re.compile(r'<form method="post" action="/" class="(\w+)"')
    forms = {key: form.findall(served.page(key)) for key in served.secrets}
    edits = ["edit", "undo"]
    assert forms == {"reader": [], "editor": edits, "reviewer": ["decide"], "writer": [], "ana": edits}
    change = {"action": "update", "id": served.home.id, "position": 1, "content": "x"}
    for key, fields in (("reader", change), ("reviewer", change), ("editor", {"action": "accept", "position": 2})):
        response = served.send(key, **fields)
        assert response.status_code == 403 and "lacks the right" in response.json()["message"]
    assert served.content() == "Ana lives in Porto." and served.ana.snapshot() == 2


def test_without_the_flag_nothing_is_taken(served: Served) -> None:
    for web in (served.client(page_edits=False), served.client(page=None)):
        page = web.get("/", auth=("ana", served.secrets["editor"]))
        assert '<form method="post"' not in page.text
        response = web.post("/", auth=("ana", served.secrets["editor"]), headers=ORIGIN, data={"action": "undo"})
        assert response.status_code in (404, 405)


def test_an_edit_is_stored_with_its_key_and_can_be_taken_back(served: Served) -> None:
    fields = {"action": "update", "id": served.home.id, "position": 1, "content": "Ana lives in Faro.\r\n" + MARKUP}
    response = served.send("editor", **fields)
    assert response.status_code == 303 and response.headers["Location"] == "/?done=update"
    entry = served.ana.get(served.home.id)
    assert (entry.content, entry.key, entry.source) == ("Ana lives in Faro.\n" + MARKUP, "editor", "page")
    page = served.web.get("/?done=update", auth=("ana", served.secrets["editor"])).text
    assert "Saved. The earlier text" in page and MARKUP not in page
    again = served.send("editor", **fields)  # of a page that was made before the first edit
    assert again.status_code == 409 and "somebody changed this entry since" in again.text
    assert "Your text:" in again.text and MARKUP not in again.text
    assert served.send("editor", action="undo", position=2).status_code == 409
    assert served.send("editor", action="undo", position=3).status_code == 303
    assert served.content() == "Ana lives in Porto."
    last = served.ana.get(served.home.id).valid_from
    assert served.send("editor", action="delete", id=served.home.id, position=last).status_code == 303
    assert served.ana.list() == [] and len(served.ana.history(served.home.id)) == 3
    gone = served.send("editor", action="delete", id=served.home.id, position=last)
    assert gone.status_code == 404 and 'role="alert"' in gone.text
    assert served.send("editor", action="undo", position=served.ana.snapshot()).status_code == 303
    assert served.content() == "Ana lives in Porto."


def test_what_waits_is_accepted_or_rejected_once(served: Served) -> None:
    assert served.send("reviewer", action="reject", position=served.claim).status_code == 303
    assert served.content() == "Ana lives in Porto." and served.ana.quarantined() == []
    claim = Operation("insert", category="semantic", content="Ana has a dog.", speaker="Ben")
    served.ana.apply(quarantine_operation(claim, None, "nobody known"))
    position = served.ana.snapshot()
    served.ana.apply(quarantine_operation(claim, None, "once more"))
    assert served.send("reviewer", action="accept", position=position).status_code == 303
    entry = served.ana.find("semantic", "Ana has a dog.")
    assert entry is not None and entry.speaker == "Ben"
    late = served.send("reviewer", action="accept", position=position)
    assert late.status_code == 409 and "nothing there awaits one" in late.text


def test_a_form_of_another_page_is_refused(served: Served) -> None:
    fields = {"action": "update", "id": served.home.id, "position": 1, "content": "Ana lives in Moscow."}
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
    ):
        assert served.send("editor", headers, **fields).status_code == 403, headers
    for token in ("", "0" * 64, "é", served.token("reviewer"), served.token("editor", "ben")):
        assert served.send("editor", **fields, token=token).status_code == 403, token
    served.web = served.client(local=False)  # where the guard of every request lets any origin in
    for origin in ("null", "http://evil.example", "http://localhost:9999"):
        assert served.send("editor", {"Origin": origin}, **fields).json()["code"] == "foreign_origin"
    assert served.send("editor", {"Sec-Fetch-Site": "same-origin"}, **fields).status_code == 303
    for method in ("GET", "POST"):  # what a browser keeps opens the page alone
        response = served.web.request(method, "/v1/entries", auth=("ana", served.secrets["editor"]))
        assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"


def test_a_form_that_the_page_never_sends_is_refused(served: Served) -> None:
    auth, token = ("ana", served.secrets["editor"]), served.token("editor")
    form = "application/x-www-form-urlencoded"
    bodies = {
        "action=undo&position=2&position=2": form,
        f"action=undo&position=two&token={token}": form,
        f"action=drop&position=2&token={token}": form,
        "&".join(f"x{number}=1" for number in range(100)): form,
        "action=undo&position=%FF": form,
        '{"action": "undo", "position": 2}': "application/json",
        "action=undo&position=2": "text/plain",
    }
    for body, kind in bodies.items():
        response = served.web.post("/", auth=auth, headers={**ORIGIN, "Content-Type": kind}, content=body)
        assert response.status_code == 422, body
    change: dict[str, Any] = {"action": "update", "id": served.home.id, "position": 1}
    assert served.send("editor", **change, content="  ").status_code == 422
    assert served.send("editor", **change, content="x" * 20_001).status_code == 422
    assert served.send("editor", **change | {"id": "nobody"}, content="x").status_code == 404
    assert served.ana.snapshot() == 2


def test_a_reader_without_keys_has_forms_of_his_own_page(tmp_path: Path) -> None:
    store = MemoryStore.open(":memory:", embedder="hash")
    store.insert("semantic", "Ana lives in Porto.")
    app = HttpApp(MemoryService(store, load_policy("add_all")), page=render_memory_page, page_edits=True)
    with TestClient(app, "http://localhost:8765") as web:
        token = re.findall('name="token" value="([0-9a-f]{64})"', web.get("/").text)
        data = {"action": "undo", "position": 1}
        assert web.post("/", headers=ORIGIN, data={**data, "token": "0" * 64}).status_code == 403
        response = web.post("/", headers=ORIGIN, data={**data, "token": token[0]})
        assert response.status_code == 200 and "The last change is taken back." in response.text
        assert store.list() == []


def test_a_person_edits_and_reviews_in_a_browser(served: Served) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine: the page is not opened in a browser")
    secret = served.keys.add("both", ["read", "write", "review"], ["*"])[1]
    with listening(served.web.app) as url, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        options: Any = {"http_credentials": {"username": "ana", "password": secret}}
        page = browser.new_context(**options, java_script_enabled=False).new_page()
        page.goto(f"{url}/")
        page.focus(".waiting button >> nth=1")
        page.keyboard.press("Enter")  # reject, without a script
        page.wait_for_selector("text=Rejected: the memory stays")
        page.focus(".entry summary")
        page.keyboard.press("Enter")
        page.fill(".edit textarea", "Ana lives in Faro. " + MARKUP)
        page.click("text=Save")
        page.wait_for_selector("text=Saved.")
        assert served.content() == "Ana lives in Faro. " + MARKUP
        page = browser.new_context(**options).new_page()
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.goto(f"{url}/")
        page.click("#back")
        assert page.locator("form.undo").is_hidden()  # what is shown is no longer the memory of now
        page.click("#forward")
        page.click("text=Take back the last change")
        page.wait_for_selector("text=is taken back")
        assert served.content() == "Ana lives in Porto."
        assert page.title() == "memalpha: :memory:, ana"
        assert [fault for fault in faults if "favicon" not in fault] == []
        browser.close()
