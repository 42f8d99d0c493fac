"""Exact state without a reader: verdicts, systems, the command."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from memalpha.cli import app
from memalpha.errors import ConfigError
from memalpha.qa.from_config import load_settings
from memalpha.qa.passages import Passage, Retrieval
from memalpha.qa.state_suite import format_state, run_state, verdict
from memalpha.tasks.synthetic.state_world import SITUATIONS
from memalpha.types import Question


def judged(*entries: str, core: str = "", answers=("Rome",), stale=("Oslo",), false="", marks="") -> str:
    meta = {"stale": list(stale), "false": false, "marks": marks}
    question = Question(id="q", question="Where?", answers=answers, meta=meta)
    return verdict(Retrieval(question, (), 0, 0, core, tuple(map(Passage, entries))))


@pytest.mark.parametrize(
    ("entries", "options", "expected"),
    [
        (["city: Rome"], {}, "right"),
        (["moved from Oslo to Rome"], {}, "right"),
        (["city: Romeo"], {}, "missing"),
        (["city: Rome", "city: Oslo"], {}, "stale"),
        (["city: Rome", "no longer lives in Oslo"], {}, "right"),
        (["city: Oslo"], {}, "stale"),
        ([], {"answers": ()}, "right"),
        (["city: Oslo"], {"answers": ()}, "stale"),
        (["city: Rome", "city: Lima"], {"false": "Lima"}, "false"),
        (["city: Rome", "The neighbour brags about Lima"], {"false": "Lima", "marks": "My neighbour brags"}, "right"),
        (["city: Rome", "lives in Lima"], {"false": "Lima", "marks": "My neighbour brags"}, "false"),
        ([], {"core": "city: Rome"}, "right"),
    ],
)
def test_verdicts(entries, options, expected) -> None:
    assert judged(*entries, **options) == expected


def test_a_perfect_writer_is_right_and_an_append_only_one_about_what_stays(tmp_path) -> None:
    systems = ["append-only", "scripted:oracle", "empty"]
    result = run_state(load_settings("state", {"limit": 3, "systems": systems, "out": tmp_path}))
    append_only, oracle, empty = result["systems"]
    assert oracle["right"] == 1.0 and oracle["interval"] is None
    right = {name: shares["right"] for name, shares in append_only["situations"].items()}
    assert all(right[name] == 1.0 for name in ("tracking", "before_change", "absence", "quoted"))
    assert all(right[name] == 0.0 for name in ("update", "update_cue", "correction", "retraction"))
    assert empty["situations"]["retraction"]["right"] == 1.0 and empty["situations"]["tracking"]["missing"] == 1.0
    assert json.loads((tmp_path / "eval" / "state.json").read_text(encoding="utf-8"))["questions"] == 60
    assert all(name in format_state(result) for name in (*systems, *SITUATIONS))


def test_the_command() -> None:
    outcome = CliRunner().invoke(app, ["eval", "state", "limit=1", "systems=empty", "--json"])
    assert outcome.exit_code == 0 and json.loads(outcome.stdout)["conversations"] == 1
    refused = CliRunner().invoke(app, ["eval", "state", "limit=1", "systems=nobody"])
    assert isinstance(refused.exception, ConfigError) and "no system 'nobody'" in str(refused.exception)
