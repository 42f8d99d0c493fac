"""The rollouts of a run: read while it writes, shown in a file and in a page that follows the run."""

import json
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import listening
from test_evaluation import record, save

from memalpha.errors import DataError
from memalpha.report import page as run_files
from memalpha.report.page import Rollouts, RunPage, StepFile, write_report

MARKUP = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


def rollout(step: int, number: int, task: str = "t1") -> dict[str, Any]:
    """A rollout of two turns: it writes Oslo, and rollout 0 then makes it Rome."""
    first = {"chunk": 0, "text": f"+semantic city: Oslo {MARKUP}", "results": ["inserted"], "advantage": 0.25}
    first |= {"changes": [["city#e", None, f"city: Oslo {MARKUP}"]], "credit": [0.5, -0.25]}
    first |= {"credit_from": [[["q1", 0.5]], []]}
    second = {"chunk": 1, "text": "~city#e city: Rome", "results": ["updated"], "advantage": -0.5}
    second |= {"changes": [["city#e", f"city: Oslo {MARKUP}", "city: Rome"]]}
    if number:
        second |= {"text": "nonsense", "results": ["malformed"], "changes": [None]}
    fields = {"step": step, "task": task, "rollout": number, "role": "attempt", "reward": 1.5 - number}
    fields |= {"components": {"r1": [1.0, 0.0]}, "turns": [first, second], "memory": ["city: Rome"]}
    return fields | {"answers": [["q1", "Rome" if not number else MARKUP, 1.0 - number]]}


def append(path: Path, *lines: dict[str, Any], end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(map(json.dumps, lines)) + end)


def add_step(folder: Path, step: int) -> None:
    chunks = [{"text": f"Ana: I live in Oslo. {MARKUP}", "timestamp": "2024-05-01"}, {"text": "Ana: now in Rome"}]
    question = {"id": "q1", "question": f"Where do I live? {MARKUP}", "answers": ["Rome"], "chunk": 1}
    append(folder / "tasks.jsonl", {"step": step, "task": "t1", "chunks": chunks, "questions": [question]})
    append(folder / "trajectories.jsonl", rollout(step, 0), rollout(step, 1))
    append(folder / "metrics.jsonl", {"step": step, "reward": 1.0 + step, "accuracy": 0.5})


@pytest.fixture
def going(tmp_path: Path) -> Path:
    """A run that has made two steps and goes on."""
    folder = tmp_path / "going"
    folder.mkdir()
    (folder / "config.yaml").write_text("policy: tiny\n")
    for step in (0, 1):
        add_step(folder, step)
    return folder


def test_a_file_that_grows_and_is_cut_is_read_by_step(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    file = StepFile(path)
    assert file.steps() == []
    append(path, {"step": 0, "a": 1}, {"step": 0, "a": 2}, {"step": 1, "a": 3})
    append(path, {"step": 2, "a": 4}, end="")  # half a line
    assert file.steps() == [0, 1]
    append(path, end="")
    path.write_bytes(path.read_bytes() + b"\n")
    assert file.steps() == [0, 1, 2] and file.read(0) == [{"step": 0, "a": 1}, {"step": 0, "a": 2}]
    path.write_text('{"step": 0, "a": 9}\n')  # a resumed run cuts what it repeats
    assert file.steps() == [0] and file.read(0) == [{"step": 0, "a": 9}] and file.read(7) == []
    append(path, end='{"step": 1, oops}\n')
    assert file.steps() == [0, 1]
    with pytest.raises(DataError, match=r"lines\.jsonl: a line of step 1: not JSON"):
        file.read(1)


def test_a_file_holds_evenly_spaced_steps_and_says_how_many(going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2, 9):
        add_step(going, step)
    size = StepFile(going / "trajectories.jsonl")
    size.steps()
    monkeypatch.setattr(run_files, "MAX_EMBEDDED", 3 * size.size(0))
    assert [step["step"] for step in Rollouts(going).embed()] == [0, 4, 8]
    assert "This file holds 3 of 9 steps" in write_report(going).read_text()
    monkeypatch.setattr(run_files, "MAX_EMBEDDED", 1)
    assert Rollouts(going).embed() == []


def test_hostile_rollouts_do_not_end_the_script(going: Path) -> None:
    page = write_report(going).read_text()
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2 and "<img" not in page
    assert [step["step"] for step in json.loads(scripts[0])] == [0, 1]
    assert json.loads(scripts[0])[0]["rollouts"][1]["answers"][0][1] == MARKUP


def test_a_step_without_rollouts_is_named(going: Path) -> None:
    with pytest.raises(DataError, match="no rollouts of step 7"):
        Rollouts(going).read(7)
    assert Rollouts(going).tokens(0, "t1", 0, "attempt") == []  # without turns.jsonl


def test_a_run_that_has_made_no_step_has_a_live_page(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("policy: tiny\n")
    page = RunPage(tmp_path)
    state = {"rollouts": [], "text": "no step yet", "steps": 0, "finished": False, "stopped": False}
    assert page.state() == state
    assert "going on" in page.render(live=True) and page.training() == ""
    with pytest.raises(DataError, match="is not a run directory"):
        page.render()


# --------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture
def address(going: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of the page of the run that goes on."""
    pytest.importorskip("uvicorn")
    from memalpha.integrations.server import run

    monkeypatch.setattr(run, "LOOK_SECONDS", 0.1)
    stopping = threading.Event()
    with listening(run.watch_app(RunPage(going), stopping.is_set)) as url:
        yield f"{url}/"
        stopping.set()


def open_page(browser: Any, url: str) -> tuple[Any, list[str]]:
    page, faults = browser.new_page(viewport={"width": 390, "height": 800}), []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url)
    page.wait_for_selector("#rollout .card")
    return page, faults


def test_a_file_shows_rollouts_by_keys_and_links_and_hostile_text_is_text(going: Path, browser: Any) -> None:
    url = write_report(going).as_uri()
    page, faults = open_page(browser, url)
    assert page.input_value("#step") == "1" and MARKUP in page.inner_text("#part-0 + pre")
    assert "credit +0.50" in page.inner_text("#rollout") and "+0.50 Where do I live?" in page.inner_text("#rollout")
    assert "✓ Rome" in page.inner_text("#rollout table") and "written in part 2" in page.inner_text("#rollout table")
    page.keyboard.press("c")  # the other rollout beside it
    assert MARKUP in page.inner_text("#rollout table") and page.locator("#rollout .two").count() == 2
    page.keyboard.press("ArrowLeft")
    link = page.evaluate("location.href")  # `page.url` follows a moment later
    assert page.input_value("#step") == "0" and "with=attempt%3A1" in link
    page.check("#failed")
    assert page.locator("#choice .dim").count() == 1
    page.fill("#filter", "no such word")
    assert page.inner_text("#rollouts-state").startswith("0 of 2 rollouts of this step match")
    again, _ = open_page(browser, link)
    assert again.input_value("#step") == "0" and again.locator("#choice [aria-pressed=true]").count() == 2
    assert page.title() == "memalpha: going" and faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_id_without_blanks_stays_within_the_page(tmp_path: Path, browser: Any) -> None:
    save(tmp_path, "rag", [record(n, "never_written", task="x" * 150) for n in range(2)])
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(write_report(tmp_path).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert "x" * 150 in page.inner_text(".failures")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_conflict_and_the_memory_that_went_on_are_said(going: Path, browser: Any) -> None:
    url = write_report(going).as_uri()
    page, _ = open_page(browser, url)
    assert "conflict" not in page.inner_text("#rollout") and "was read after" not in page.inner_text("#rollout")
    append(going / "tasks.jsonl", Rollouts(going).read(1)["tasks"][0] | {"step": 2})
    own, other = rollout(2, 0), rollout(2, 1)
    own |= {"went_on": [False], "answers": [["q1", "Rome or Oslo", 0.0, "conflict"]]}
    append(going / "trajectories.jsonl", own, other | {"went_on": [True]})
    page, faults = open_page(browser, write_report(going).as_uri())
    text = page.inner_text("#rollout")
    assert "✗ Rome or Oslo" in text and "conflict: two entries give this slot different values" in text
    assert "The next chunk was read after the memory of rollout 1: what this reply changed ends here." in text
    assert "This chunk was read after the memory of rollout 1, not after this rollout's own." in text
    page.keyboard.press("j")
    assert "was read after" not in page.inner_text("#rollout") and faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_barriers(going: Path, browser: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    page.goto(write_report(going).as_uri())
    page.wait_for_selector("#rollout .card")
    page.keyboard.press("c")
    violations = axe.Axe().run(page).response["violations"]
    assert [(found["id"], found["impact"], found["nodes"][0]["html"]) for found in violations] == []


def test_a_live_page_gets_new_steps_by_itself(going: Path, address: str, browser: Any) -> None:
    page, faults = open_page(browser, address)
    page.wait_for_selector("#progress:has-text('step 2')")
    add_step(going, 2)
    page.wait_for_selector("#training:has-text('Steps 1 to 3')")
    assert page.input_value("#step") == "2"
    page.select_option("#step", "0")
    add_step(going, 3)
    page.wait_for_selector("#step option:nth-child(4)", state="attached")
    assert page.input_value("#step") == "0", "who looks at a step keeps it"
    with page.expect_navigation():  # the result stands at the top, once
        (going / "summary.json").write_text("{}")
    page.wait_for_selector("#rollouts[data-finished=yes]")
    page.evaluate("window.stays = true")
    page.wait_for_selector("#progress:has-text('step 4')")
    page.wait_for_timeout(300)
    assert page.evaluate("window.stays"), "a finished run is not loaded again and again"
    assert [fault for fault in faults if "favicon" not in fault and "tokens" not in fault] == []


def test_the_page_is_served_under_this_machine_s_names_alone(going: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from memalpha.integrations.server.run import watch_app

    client = testclient.TestClient(watch_app(RunPage(going)), base_url="http://127.0.0.1")
    assert client.get("/").status_code == 200 and "Steps 1 to 2" in client.get("/training").text
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert [line["rollout"] for line in client.get("/rollouts/1").json()["rollouts"]] == [0, 1]
    missing = client.get("/rollouts/9")
    assert (missing.status_code, "no rollouts of step 9" in missing.text) == (404, True)
    assert client.get("/rollouts/1/tokens?rollout=x").status_code == 404
    assert client.get("/rollouts/1/tokens?task=t1&rollout=0&role=attempt").json() == []


def test_a_run_that_stopped_or_was_killed_is_not_called_going_on(going: Path) -> None:
    page = RunPage(going)
    start = {"step": 0, "host": platform.node(), "pid": os.getpid()}
    append(going / "starts.jsonl", start)
    assert "going on" in page.render(live=True) and page.state()["text"].startswith("step 2 · ")
    earlier = time.time() - 660
    os.utime(going / "metrics.jsonl", (earlier, earlier))
    assert page.state()["text"].endswith("no step for 11 minutes") and not page.state()["stopped"]
    process = subprocess.Popen(["true"])
    process.wait()
    append(going / "starts.jsonl", start | {"host": "elsewhere", "pid": process.pid})
    assert not page.state()["stopped"], "another host's processes are not seen from here"
    append(going / "starts.jsonl", start | {"pid": process.pid})
    assert page.state()["stopped"] and page.state()["text"].endswith(f"its process ({process.pid}) is gone")
    (going / "stopped.json").write_text('{"step": 2, "reason": "Ctrl-C"}')
    html = page.render(live=True)
    assert "going: stopped</h1><p>Reason: Ctrl-C." in html and f"memalpha train {going}" in html
    assert "resumes it from its last checkpoint" in html and "is missing (Ctrl-C)" in page.render()
    (going / "metrics.jsonl").unlink()
    assert "starts it again, and this page" in page.render(live=True)  # it has no step and no checkpoint
    (going / "summary.json").write_text("{}")
    assert page.state()["stopped"] is False


def test_a_run_is_over_when_its_summary_is_of_its_last_start(going: Path) -> None:
    page = RunPage(going)
    assert page.state()["finished"] is False
    append(going / "starts.jsonl", {"step": 0, "scheduled_steps": 2})
    accuracy = {"accuracy": 0.5}
    (going / "summary.json").write_text(json.dumps({"steps": 2, "before": accuracy, "after": accuracy}))
    later = time.time() + 5
    os.utime(going / "metrics.jsonl", (later, later))  # as in a copy of the folder
    assert page.state()["finished"] is True and 'data-finished="yes"' in page.render(live=True)
    assert "resumed since" not in page.render()
    append(going / "starts.jsonl", {"step": 2, "scheduled_steps": 4})
    (going / "stopped.json").write_text('{"step": 3, "reason": "Ctrl-C"}')
    assert "These results are of step 2. The run was resumed since and stopped (Ctrl-C):" in page.render()
    add_step(going, 2)
    assert page.state()["finished"] is False and page.state()["rollouts"] == [0, 1, 2]
    append(going / "trajectories.jsonl", rollout(3, 0))  # the step goes on
    assert page.state()["rollouts"] == [0, 1, 2]
