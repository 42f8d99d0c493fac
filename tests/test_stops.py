"""The files of the package that public calls enter: few, each is a stop for a reader, and in the order of the page.

The page is docs/start/read-the-code.md with its four journeys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import memalpha
from memalpha import MemoryAgent, MemoryStore, evaluate, load_policy, load_tasks
from memalpha.policy.scripted import ScriptedPolicy

PACKAGE = str(Path(memalpha.__file__).parent)
PAGE = (Path(PACKAGE).parent / "docs" / "start" / "read-the-code.md").read_text(encoding="utf-8")
MAX_MODULES = 10
MAX_RETURNS = 2


def files_entered(call: Callable[[], object]) -> list[str]:
    """Return the files of the package that a call enters, in order; `import FILE` where it only loads the module."""
    entered: list[tuple[str, bool]] = []

    def note(frame, event, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            place = code.co_filename, code.co_name == "<module>"
            if not entered or place != entered[-1]:
                entered.append(place)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return ["import " * is_import + name[len(PACKAGE) + 1 :] for name, is_import in entered]


def count_files(files: Sequence[str]) -> int:
    return len({name.removeprefix("import ") for name in files})


def journeys() -> dict[str, list[str]]:
    """Return the modules of each journey of the page by its title."""
    section = PAGE.split("## Four journeys")[1].split("\nTwo rules")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def missing(title: str, files: Sequence[str]) -> str | None:
    """Return the first module of a journey that is not entered after those before it."""
    remaining = iter(files)
    return next((module for module in journeys()[title] if module not in remaining), None)


@pytest.fixture
def store(tmp_path) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "a.db") as store:
        store.insert("semantic", "Ana lives in Lisbon.")
        store.search("Lisbon")
        yield store


def test_the_page_has_four_short_journeys() -> None:
    assert len(journeys()) == 4
    for title, path in journeys().items():
        assert len(set(path)) <= MAX_MODULES, title
        assert len(path) - len(set(path)) <= MAX_RETURNS, title


@pytest.mark.sqlite
def test_a_search_and_an_insert_enter_few_files(store) -> None:
    assert count_files(files_entered(lambda: store.insert("semantic", "Ana has a cat.", metadata={"n": 1}))) <= 10
    assert count_files(files_entered(lambda: store.search("Where does Ana live?"))) <= 12


@pytest.mark.sqlite
def test_reading_a_text_enters_few_files_and_a_chunk_becomes_a_row(store) -> None:
    agent = MemoryAgent(ScriptedPolicy("add-all"), store)
    agent.read("Ana: Hello.")
    files = files_entered(lambda: agent.read("Ana: I moved to Porto."))
    assert count_files(files) <= 24
    assert missing("A chunk becomes a stored row", files) is None


def test_an_evaluation_enters_few_files() -> None:
    tasks, policy = load_tasks("synthetic", limit=1), load_policy("scripted:oracle")
    evaluate(policy, tasks, reader="extractive")
    assert count_files(files_entered(lambda: evaluate(policy, tasks, reader="extractive"))) <= 32


def test_a_question_gets_its_class() -> None:
    tasks, policy = load_tasks("synthetic", limit=1), ScriptedPolicy("append-only")
    assert missing("A question gets its error class", files_entered(lambda: evaluate(policy, tasks))) is None


def test_a_training_step_enters_few_files_in_the_order_of_the_page(tmp_path) -> None:
    """A run of one step with its evaluations, whose modules the call loads."""
    small = {"group_size": 2, "tasks_per_step": 2, "eval_tasks": 2, "validation_tasks": 2}
    files = files_entered(lambda: memalpha.train("demo", out=tmp_path / "run", max_steps=1, **small))
    assert count_files(files) <= 105
    for title in ("A sampled log-prob becomes a gradient", "`train(config)` reaches its first step"):
        assert missing(title, files) is None, title
