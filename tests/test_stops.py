"""How many files of the package a public call enters: each is a stop for somebody who follows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import memalpha
from memalpha import MemoryAgent, MemoryStore, evaluate, load_policy, load_tasks
from memalpha.policy.scripted import ScriptedPolicy

PACKAGE = str(Path(memalpha.__file__).parent)


def files_entered(call: Callable[[], object]) -> set[str]:
    """Return the files of the package that a call enters."""
    entered: set[str] = set()

    def note(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


@pytest.fixture
def store(tmp_path) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "a.db") as store:
        store.insert("semantic", "Ana lives in Lisbon.")
        store.search("Lisbon")
        yield store


@pytest.mark.sqlite
def test_a_search_and_an_insert_enter_few_files(store) -> None:
    """The next step is 10 files of an insert."""
    assert len(files_entered(lambda: store.insert("semantic", "Ana has a cat.", metadata={"n": 1}))) <= 11
    assert len(files_entered(lambda: store.search("Where does Ana live?"))) <= 12


@pytest.mark.sqlite
def test_reading_a_text_enters_few_files(store) -> None:
    agent = MemoryAgent(ScriptedPolicy("add-all"), store)
    agent.read("Ana: Hello.")
    assert len(files_entered(lambda: agent.read("Ana: I moved to Porto."))) <= 24


def test_an_evaluation_enters_few_files() -> None:
    tasks, policy = load_tasks("synthetic", limit=1), load_policy("scripted:oracle")
    evaluate(policy, tasks, reader="extractive")
    assert len(files_entered(lambda: evaluate(policy, tasks, reader="extractive"))) <= 32


def test_a_training_step_enters_few_files(tmp_path) -> None:
    """A run of one step with its evaluations, whose modules the call loads."""
    small = {"group_size": 2, "tasks_per_step": 2, "eval_tasks": 2, "validation_tasks": 2}
    assert len(files_entered(lambda: memalpha.train("demo", out=tmp_path / "run", max_steps=1, **small))) <= 105
