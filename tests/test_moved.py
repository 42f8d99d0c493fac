"""Module paths that the pages of release 0.1 named still work."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from memalpha.moved import MOVED

OPTIONAL = {"openai", "agents", "langgraph", "torch", "transformers"}


@pytest.mark.parametrize("old", MOVED)
def test_old_paths_are_the_new_modules_and_warn(old: str) -> None:
    sys.modules.pop(f"memalpha.{old}", None)
    try:
        new = importlib.import_module(f"memalpha.{MOVED[old]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"needs {error.name}")
    with pytest.warns(DeprecationWarning, match=f"memalpha.{old} is now memalpha.{MOVED[old]}"):
        assert importlib.import_module(f"memalpha.{old}") is new


@pytest.mark.parametrize(
    "statement",
    [
        "from memalpha.integrations.langgraph import LangGraphSystem",
        "from memalpha.integrations.mem0 import Mem0System",
        "from memalpha.integrations.openai_ import with_memory",
        "from memalpha.qa.system import Passage",
        "from memalpha.qa.systems import Streamed",
        "from memalpha.rewards.code import failing_solutions, feedback",
        "from memalpha.tasks import arithmetic, synthetic; synthetic.tasks",
    ],
)
def test_documented_imports_of_release_0_1_work(statement: str) -> None:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_learner_is_found_in_its_old_package() -> None:
    pytest.importorskip("torch")
    from memalpha.train.learner import Learner
    from memalpha.train.learner.async_engine import Learner as now

    assert Learner is now
