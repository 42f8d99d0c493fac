"""Recorded tables of systems: a run that measures some of them leaves the others as they are recorded."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from memalpha.config import BabiConfig
from memalpha.qa.protocol import run_systems
from memalpha.tasks.datasets import babi

EVAL = Path(__file__).parents[2] / "eval"
sys.path.insert(0, str(EVAL / "qa"))
SCRIPT = run_path(str(EVAL / "qa" / "systems.py"))
READER = run_path(str(EVAL / "qa" / "babi_reader.py"))


def row(system: str, **more: Any) -> dict[str, Any]:
    figures = {**dict.fromkeys(SCRIPT["FIGURES"], 0.5), "ceiling_n": 3, "losses": {"not_found": 2}}
    return {"system": system, "questions": 4, **figures, "by_ability": {}, "cpu_s": 1.0, **more}


def measured(*rows: dict[str, Any], tasks: str = "a") -> list[dict[str, Any]]:
    return [{"set": "8,000 tokens", "rows": list(rows), "tasks_sha256": tasks, "config": {"world": {"tokens": 8000}}}]


def test_rows_are_put_among_those_of_the_same_tasks(tmp_path):
    stem = tmp_path / "systems-synthetic"
    stem.with_suffix(".md").write_text("# Mine\n\n<!-- tables -->\nold\n<!-- end of tables -->\n\n- a remark\n")
    SCRIPT["recorded"](stem, measured(row("oracle"), row("rag"), row("mine")))
    SCRIPT["recorded"](stem, measured(row("full"), row("rag", accuracy=0.25)))
    [section] = json.loads(stem.with_suffix(".json").read_text())
    assert [each["system"] for each in section["rows"]] == ["rag", "full", "oracle", "mine"]
    page = stem.with_suffix(".md").read_text()
    assert page.startswith("# Mine\n\n<!-- tables -->\n\n## 8,000 tokens (4 questions)\n")
    assert page.endswith("<!-- end of tables -->\n\n- a remark\n") and "old" not in page
    assert "| rag | 0.250 |" in page and "right in 0.500 of the 3 questions" in page
    SCRIPT["recorded"](stem, measured(row("full"), tasks="b"))
    [section] = json.loads(stem.with_suffix(".json").read_text())
    assert [each["system"] for each in section["rows"]] == ["full"], "figures on other tasks do not stand beside these"


def test_pages_are_what_their_figures_make_them(tmp_path):
    for name in ("babi", "locomo", "synthetic"):
        stem = tmp_path / f"systems-{name}"
        for suffix in (".json", ".md"):
            recorded = (EVAL / "results" / stem.name).with_suffix(suffix).read_text(encoding="utf-8")
            stem.with_suffix(suffix).write_text(recorded, encoding="utf-8")
        SCRIPT["recorded"](stem, [])
        assert stem.with_suffix(".md").read_text(encoding="utf-8") == recorded, name


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        ("Mary and Tom went to the hall. Then they moved to the garden.", "Where is Tom?", "garden"),
        ("Mary is no longer in the hall.", "Is Mary in the hall?", "no"),
        ("Mary is no longer in the hall.", "Is Mary in the garden?", "unknown"),
        ("Mary took the milk. Mary went to the hall.", "Where is the milk?", "hall"),
        ("Mary took the milk. Mary went to the hall. Mary dropped the milk.", "What is Mary carrying?", "nothing"),
        ("Mary went to the hall. Mary dropped the milk. Mary went to the garden.", "Where is the milk?", "hall"),
        ("mary: hall; has milk, apple", "What is Mary carrying?", "milk, apple"),
        ("mary: hall; has milk|mary: garden", "What is Mary carrying?", "nothing"),
        ("mary: not hall|milk: garden", "Is Mary in the hall?", "no"),
        ("mary: hall; has milk", "Where is the milk?", "hall"),
        ("", "What is Mary carrying?", "unknown"),
    ],
)
def test_the_reader_by_rule_knows_what_follows(text, question, answer):
    view = READER["View"]()
    for line in re.split(r"(?<=\.) |\|", text):
        view.add_line(line)
    assert view.answer(question) == answer


def test_of_all_statements_or_perfect_facts_every_answer_follows():
    tasks = babi.streams(BabiConfig(stories=6), "test", 0, 0, 2)
    reports = run_systems(["full", "scripted:oracle"], tasks, READER["RuleReader"](), metric="exact", k=200)
    assert [report.summary["accuracy"] for report in reports] == [1.0, 1.0]
