"""Recorded tables of systems: a run that measures some of them leaves the others as they are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from runpy import run_path
from typing import Any

EVAL = Path(__file__).parents[2] / "eval"
SCRIPT = run_path(str(EVAL / "systems.py"))


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
    [one] = json.loads(stem.with_suffix(".json").read_text())
    assert [each["system"] for each in one["rows"]] == ["rag", "full", "oracle", "mine"]
    page = stem.with_suffix(".md").read_text()
    assert page.startswith("# Mine\n\n<!-- tables -->\n\n## 8,000 tokens (4 questions)\n")
    assert page.endswith("<!-- end of tables -->\n\n- a remark\n") and "old" not in page
    assert "| rag | 0.250 |" in page and "right in 0.500 of the 3 questions" in page
    SCRIPT["recorded"](stem, measured(row("full"), tasks="b"))
    [one] = json.loads(stem.with_suffix(".json").read_text())
    assert [each["system"] for each in one["rows"]] == ["full"], "figures on other tasks do not stand beside these"


def test_pages_are_what_their_figures_make_them(tmp_path):
    for name in ("babi", "locomo", "synthetic"):
        stem = tmp_path / f"systems-{name}"
        for suffix in (".json", ".md"):
            kept = (EVAL / "results" / stem.name).with_suffix(suffix).read_text(encoding="utf-8")
            stem.with_suffix(suffix).write_text(kept, encoding="utf-8")
        SCRIPT["recorded"](stem, [])
        assert stem.with_suffix(".md").read_text(encoding="utf-8") == kept, name
