"""The systems in eval/qa/peer_systems.py: they run if their library is installed, and name the missing package."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from memalpha.errors import ConfigError
from memalpha.qa.protocol import run_systems
from memalpha.qa.reader import load_reader
from memalpha.types import Chunk, Question, SpeakerTurn, Task

TASK = Task(
    id="t",
    chunks=(
        Chunk(
            turns=(
                SpeakerTurn(speaker="Ana", text="I moved to Porto yesterday.", id="1"),
                SpeakerTurn(speaker="Tom", text="My dog is called Rex.", id="2"),
            ),
            timestamp="2024-05-02",
        ),
        Chunk(turns=(SpeakerTurn(speaker="Ana", text="Now I work as a baker.", id="3"),), timestamp="2024-06-01"),
    ),
    questions=(
        Question(id="a", question="When did Ana move to Porto?", answers=("1 May 2024",), evidence=("1",)),
        Question(id="b", question="What does Ana work as?", answers=("baker",), evidence=("3",)),
        Question(id="c", question="What does Ana work as?", answers=("baker",), evidence=("3",), asked_after_chunk=0),
    ),
)
EVAL = Path(__file__).parents[2] / "eval" / "qa"
INSTALLED = [name for name in ("mem0", "langgraph") if find_spec(name) is not None]
SYSTEMS = (
    ("mem0", "peer_systems:Mem0System"),
    ("langgraph.store.memory", "peer_systems:LangGraphSystem"),
)


@pytest.fixture(autouse=True)
def import_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EVAL))


@pytest.mark.parametrize(("library", "name"), SYSTEMS, ids=["mem0", "langgraph"])
def test_a_store_of_another_library_is_evaluated(library, name):
    if library.split(".")[0] not in INSTALLED:
        pytest.skip(f"{library} is not installed")
    [report] = run_systems([name], [TASK], load_reader("copy"), metric="contains")
    assert [record.evidence_recall for record in report.records] == [1.0, 1.0, 0.0]
    assert (
        report.records[0].correct
        and report.summary["evidence_recall@10"] == pytest.approx(2 / 3)
        and report.summary["memory_tokens"] > 20
    )
    assert report.records[2].error_class == "never_written" and len(report.records[2].retrieved) == 2


@pytest.mark.parametrize(("library", "name"), SYSTEMS, ids=["mem0", "langgraph"])
def test_a_missing_library_is_named(library, name, monkeypatch):
    monkeypatch.setitem(sys.modules, library.split(".")[0], None)
    for module in [module for module in sys.modules if module.startswith(library.split(".")[0] + ".")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"needs .*pip install"):
        run_systems([name], [TASK], load_reader("copy"))
