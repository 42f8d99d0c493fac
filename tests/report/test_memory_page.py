"""The page of a memory shows every moment of it, and never runs what somebody wrote into it."""

import base64
import hashlib
import html
import re
import stat
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memalpha import MemoryStore
from memalpha.cli.main import app
from memalpha.errors import StoreError
from memalpha.report import memory_page
from memalpha.report.memory_page import write_memory_page
from memalpha.store.quarantine import quarantine_operation
from memalpha.types import Operation

MARKUP = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
CLOSING = "</pre></script></style></details>--><svg onload=document.title='run'>"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "ana.db") as store:
        city = store.insert("semantic", "city: Oslo", timestamp="2024-05-01", source="chat", chunk=0, turn="0.1")
        store.core_update("Ana lives in Oslo.")
        store.update(city.id, "city: Rome")
        store.insert("episodic", MARKUP, source=CLOSING, turn=MARKUP, metadata={MARKUP: CLOSING})
        store.insert("semantic", "backwards \u202egnp.exe, red \x1b[31m, long " + "w" * 500)
        store.delete(store.insert("semantic", "allergy: nuts").id)
        store.core_update("Ana lives in Rome. " + CLOSING)
        yield store


def page_of(store: MemoryStore, folder: Path) -> str:
    write_memory_page(store, folder / "ana.html")
    return (folder / "ana.html").read_text(encoding="utf-8")


class _Elements(HTMLParser):
    """Elements of a page, and the attributes that are scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        anchors = ("#waiting", "#contradictions", "#outdated")
        self.handlers += [
            name
            for name, value in attrs
            if name.startswith("on") or name in ("src", "style") or (name == "href" and value not in anchors)
        ]


def test_texts_of_strangers_are_text(store: MemoryStore, tmp_path: Path) -> None:
    written = write_memory_page(store, tmp_path / "ana.html")
    assert written["live"] == written["entries"] - 1 == 3
    assert written["operations"] == written["all_operations"] == 8
    page = (tmp_path / "ana.html").read_text(encoding="utf-8")
    elements = _Elements(page)
    assert elements.names.count("script") == 2  # the moments, and the page's own
    assert not elements.handlers
    assert not {"img", "svg", "link", "iframe", "form"} & set(elements.names)
    assert "\\u202egnp.exe, red \\u001b[31m" in page
    assert page.count("city: Oslo") >= 2  # an earlier version, and the log
    assert stat.S_IMODE((tmp_path / "ana.html").stat().st_mode) == 0o600


def test_half_of_a_surrogate_pair_is_escaped(store: MemoryStore, tmp_path: Path) -> None:
    store.insert("semantic", "Ana has a cat.", metadata={"half": "\ud800"})
    write_memory_page(store, tmp_path / "page.html")
    pages = (tmp_path / "page.html").read_text(encoding="utf-8"), memory_page.render_memory_page(store, "cat")
    assert all("half: \\ud800" in page for page in pages) and pages[1].encode()


def test_the_policy_allows_the_page_s_own_styles_and_script_alone(store: MemoryStore, tmp_path: Path) -> None:
    page = page_of(store, tmp_path)
    policy = html.unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[0])
    blocks = {tag: re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script")}
    digests = {tag: [hashlib.sha256(block.encode()).digest() for block in found] for tag, found in blocks.items()}
    hashes = {
        tag: " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in found) for tag, found in digests.items()
    }
    assert (len(blocks["style"]), len(blocks["script"])) == (2, 1)
    rules = f"style-src {hashes['style']}; script-src {hashes['script']}; base-uri 'none'; form-action 'self'"
    assert policy == f"default-src 'none'; {rules}"


def test_a_page_replaces_a_page_and_nothing_else(store: MemoryStore, tmp_path: Path) -> None:
    write_memory_page(store, tmp_path / "ana.html")
    store.insert("semantic", "pet: a cat")
    assert "pet: a cat" in page_of(store, tmp_path)
    with pytest.raises(StoreError, match=r"ana\.db exists and is no HTML page"):
        write_memory_page(store, tmp_path / "ana.db")
    with pytest.raises(StoreError, match="cannot be written"):
        write_memory_page(store, tmp_path / "missing" / "ana.html")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".html") == ["ana.html"]


def test_what_a_page_leaves_out_is_said(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_page, "MAX_OPERATIONS", 3)
    monkeypatch.setattr(memory_page, "MAX_ENTRIES", 2)
    result = CliRunner().invoke(app, ["show", str(tmp_path / "ana.db"), "--html", str(tmp_path / "ana.html")])
    assert "the last 2 of 4 entries" in result.output and "the last 3 of 8 operations" in result.output
    page = (tmp_path / "ana.html").read_text(encoding="utf-8")
    assert "Changes up to position 5 are not on this page" in page
    assert "4 entries are too many for a page: these 2 changed last" in page
    assert "allergy: nuts" in page and "city: Rome" not in page
    result = CliRunner().invoke(app, ["show", str(tmp_path / "ana.db"), "--html", "x.html", "--limit", "2"])
    assert isinstance(result.exception, StoreError) and "leave out" in str(result.exception)


def test_what_waits_for_a_review_is_shown_apart(store: MemoryStore, tmp_path: Path) -> None:
    home = store.find("semantic", "city: Rome")
    assert home is not None
    intended = Operation("update", id=home.id, category="semantic", content="city: Moscow " + MARKUP, speaker="Mallory")
    store.apply(quarantine_operation(intended, home.content, "Ana said otherwise"))
    written = write_memory_page(store, tmp_path / "ana.html")
    page = (tmp_path / "ana.html").read_text(encoding="utf-8")
    waiting = page[page.index("Waiting for review") : page.index("<h2>Core memory")]
    assert "city: Moscow &lt;script" in waiting and "said by </span>Mallory" in waiting
    assert '<del class="text" dir="auto">city: Rome</del>' in waiting and "wants to change" in waiting
    assert "position 9" in waiting and "Held back: Ana said otherwise." in waiting
    after = page[page.index("<h2>Core memory") : page.index('<details class="log"')]
    assert "Moscow" not in after and written["live"] == 3
    assert '<a href="#waiting"><b>1</b> waits for review' in page
    store.review(9, accept=True)
    page = page_of(store, tmp_path)
    assert "Waiting for review" not in page and "said by </span>Mallory" in page


def test_what_speaks_against_entries_is_shown(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "ana.db") as store:
        with store.writing_as(speaker="Ana", key="chat-app"):
            store.insert("semantic", "job: nurse", timestamp="2024-05-01")
            store.insert("semantic", "[outdated] plays the cello")
        with store.writing_as(speaker=MARKUP):
            rival = store.insert("semantic", "job: cook " + MARKUP, timestamp="2024-05-02")
        page = page_of(store, tmp_path)
        assert '<a href="#contradictions"><b>1</b> contradiction' in page
        assert '<a href="#outdated"><b>1</b> outdated' in page  # the older job is a side of the contradiction already
        found = page[page.index("<h2>Contradictions") : page.index('<section class="category"')]
        assert found.count('<li class="side"') == 3 and "said by </span>Ana" in found
        assert "job is said to be" in found and "its own text says" in found
        assert MARKUP not in page and not _Elements(page).handlers
        store.delete(rival.id)
        assert "Contradictions" not in page_of(store, tmp_path)


def test_a_write_that_comes_meanwhile_is_on_the_next_page(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, home = store.snapshot(), store.find("semantic", "city: Rome")
    assert home is not None
    store.update(home.id, "city: Riga")
    store.insert("semantic", "pet: a cat")
    monkeypatch.setattr(MemoryStore, "snapshot", lambda store: last)  # as it was when the page began
    written = write_memory_page(store, tmp_path / "ana.html")
    page = (tmp_path / "ana.html").read_text(encoding="utf-8")
    assert written["live"] == 3 and written["operations"] == last
    assert "city: Riga" not in page and "pet: a cat" not in page
    assert f'data-to="" data-speaker=""><span class="text" dir="auto">{home.content}' in page


def test_an_erased_entry_is_on_no_page(store: MemoryStore, tmp_path: Path) -> None:
    store.erase(store.list("episodic")[0].id)
    store.erase_core_history()
    page = page_of(store, tmp_path)
    assert "onerror" not in page and "Ana lives in Oslo." not in page
    assert "erased" in page


# --------------------------------------------------------------------------------------------------------- in a browser


def test_a_browser_shows_any_moment_and_runs_nothing_else(store: MemoryStore, tmp_path: Path, browser: Any) -> None:
    write_memory_page(store, tmp_path / "ana.html")
    page = browser.new_page(viewport={"width": 320, "height": 700})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto((tmp_path / "ana.html").as_uri())
    assert page.title() == "memalpha: ana.db, default" and not faults
    assert page.evaluate("document.documentElement.scrollWidth") == 320

    def visible_texts() -> list[str]:
        texts = page.locator(".entry:visible summary .version:visible .text").all_inner_texts()
        return [text[:20] for text in texts]

    assert [text[:10] for text in visible_texts()] == ["city: Rome", "backwards ", MARKUP[:10]]
    assert page.locator(".core pre:visible").inner_text() == "Ana lives in Rome. " + CLOSING
    page.focus("#moment")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")  # before the second core text, before the deletion
    assert "allergy: nuts" in visible_texts()
    assert page.locator(".core pre:visible").inner_text() == "Ana lives in Oslo."
    page.keyboard.press("Home")
    assert visible_texts() == [] and "before the first change" in page.locator("#moment-label").inner_text()
    page.locator("#forward").click()
    assert visible_texts() == ["city: Oslo"]
    page.keyboard.press("/")
    page.keyboard.type("BERLIN")
    assert visible_texts() == [] and page.locator("#found").inner_text() == "0 of 1 entry with these words"
    page.keyboard.press("Escape")
    page.focus("#moment")
    page.keyboard.press("End")
    page.check("#ended")
    assert "allergy: nuts" in visible_texts()
    # Even markup that came into the page some other way would not run.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    page.wait_for_timeout(50)
    assert page.title() == "memalpha: ana.db, default"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_barriers(store: MemoryStore, tmp_path: Path, browser: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    store.insert("semantic", "city: Riga")  # a contradiction
    intended = Operation("insert", category="semantic", content="city: Moscow", speaker="Mallory")
    store.apply(quarantine_operation(intended, None, "Ana said otherwise"))
    write_memory_page(store, tmp_path / "ana.html")
    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    page.goto((tmp_path / "ana.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    violations = axe.Axe().run(page).response["violations"]
    assert [(found["id"], found["impact"]) for found in violations] == []


def test_a_reader_chooses_by_speaker(store: MemoryStore, tmp_path: Path, browser: Any) -> None:
    for speaker in ("Ana", MARKUP, "*"):
        with store.writing_as(speaker=speaker):
            store.insert("semantic", f"said by {speaker}")
    write_memory_page(store, tmp_path / "ana.html")
    page = browser.new_page()
    page.goto((tmp_path / "ana.html").as_uri())
    page.select_option("#speaker", "=" + MARKUP)
    assert page.locator(".entry:visible .version:visible > .text").all_inner_texts() == [f"said by {MARKUP}"]
    assert page.locator("#found").inner_text() == "1 of 6 entries"
    page.select_option("#speaker", index=0)
    assert page.locator(".entry:visible").count() == 6
    page.select_option("#speaker", "=*")
    assert page.locator(".entry:visible .version:visible > .text").all_inner_texts() == ["said by *"]
    page.locator("#back").click()
    page.locator("#back").click()
    assert page.locator(".entry:visible").count() == 0 and page.locator("#found").inner_text() == "0 of 4 entries"
    assert page.title() == "memalpha: ana.db, default"


def test_without_a_script_the_page_shows_the_memory_as_it_is(store: MemoryStore, tmp_path: Path, browser: Any) -> None:
    write_memory_page(store, tmp_path / "ana.html")
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((tmp_path / "ana.html").as_uri())
    assert page.locator(".controls").is_hidden()
    assert page.locator(".entry:visible").count() == 4
    assert page.locator(".entry.ended .text:visible").first.inner_text() == "allergy: nuts"


@pytest.mark.sqlite
def test_the_versions_of_all_entries_are_read_together(tmp_path: Path) -> None:
    counts = []
    for size in (5, 60):
        with MemoryStore.open(tmp_path / f"{size}.db", embedder="hash") as store:
            store.insert_many([{"category": "semantic", "content": f"fact {number}"} for number in range(size)])
            statements: list[str] = []
            store.database.connection.set_trace_callback(statements.append)
            write_memory_page(store, tmp_path / f"{size}.html")
            counts.append(len(statements))
    assert counts[0] == counts[1] < 40
