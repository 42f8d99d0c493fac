"""The journeys of docs/start/read-the-code.md: their modules are called in the order in which the page lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from run_kinds import small_config
from tiny import tiny_policy

import memalpha
from memalpha.agent.agent import MemoryAgent
from memalpha.config import AgentConfig, TrainConfig, WorldConfig
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.store.store import MemoryStore
from memalpha.tasks.synthetic import worlds
from memalpha.train.api import train

PACKAGE = Path(memalpha.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "start" / "read-the-code.md").read_text(encoding="utf-8")
MAX_MODULES = 10
MAX_RETURNS = 2


def journeys() -> dict[str, list[str]]:
    """Return the modules of each journey by its title."""
    section = PAGE.split("## Four journeys")[1].split("\nTwo rules")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def calls(run: Callable[[], Any]) -> list[str]:
    """Return the modules in which functions are called while `run` runs, in order, without repetitions in a row."""
    modules: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)) and frame.f_code.co_name != "<module>":
            module = name[len(str(PACKAGE)) + 1 :]
            if not modules or modules[-1] != module:
                modules.append(module)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return modules


def missing(path: Sequence[str], modules: Sequence[str]) -> str | None:
    """Return the first module of the path that is not called after those before it."""
    remaining = iter(modules)
    return next((module for module in path if module not in remaining), None)


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("journey")
    policy = tiny_policy()
    policy.model.save_pretrained(folder / "policy")
    policy.tokenizer.save_pretrained(folder / "policy")
    settings = small_config(TrainConfig, folder / "policy", folder, max_steps=1)
    return calls(lambda: train(settings))


def test_the_page_has_four_short_journeys():
    paths = journeys()
    assert len(paths) == 4
    for title, path in paths.items():
        assert len(set(path)) <= MAX_MODULES, title
        assert len(path) - len(set(path)) <= MAX_RETURNS, title


def test_a_chunk_becomes_a_row():
    store = MemoryStore.open(":memory:", embedder="hash")
    agent = MemoryAgent(ScriptedPolicy("add-all"), store, AgentConfig(embedder="hash"))
    assert (
        missing(journeys()["A chunk becomes a stored row"], calls(lambda: agent.read("Ana: I live in Porto."))) is None
    )


def test_a_logprob_becomes_a_gradient(training):
    assert missing(journeys()["A sampled log-prob becomes a gradient"], training) is None


def test_train_reaches_its_first_step(training):
    assert missing(journeys()["`train(config)` reaches its first step"], training) is None


def test_a_question_gets_its_class():
    tasks = worlds.tasks(WorldConfig(), 0, 0, 1)
    config = AgentConfig(embedder="hash")
    path = calls(lambda: evaluate(ScriptedPolicy("append-only"), tasks, config=config))
    assert missing(journeys()["A question gets its error class"], path) is None
