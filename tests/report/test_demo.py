"""What the demo says when it is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memalpha
from memalpha.cli.train import format_outcome, run_demo


def test_the_demo_says_where_the_page_is_and_what_to_try(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {}

    def train(config: str, **overrides: object) -> dict[str, object]:
        arguments.update(overrides, config=config)
        return json.loads((run / "summary.json").read_text())

    monkeypatch.setattr(memalpha, "train", train)
    messages: list[str] = []
    page = run_demo(seed=7, out=run, policy="tiny", say=messages.append)
    assert arguments == {"config": "demo", "seed": 7, "out": run, "policy": "tiny"}
    text = "\n".join(messages)
    assert page == run / "report.html" and page.exists() and str(page) in text
    assert "memalpha search ana.db" in text and "--seed 8" in text


def test_the_outcome_is_a_table_of_the_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    lines = format_outcome(summary)
    [after] = [line for line in lines if line.startswith("after training")]
    assert after.split()[2:] == ["0.80", "0.80", "0.80", "0.03"]
    assert any(line.startswith("append only") for line in lines) and any(line.startswith("oracle") for line in lines)
    assert "200 conversations" in lines[0] and "1,431 questions" in lines[0]
