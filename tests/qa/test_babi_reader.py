"""The reader of bAbI by rules, which eval/qa/systems.py compares systems with."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from runpy import run_path

import pytest

from memalpha.config import BabiConfig
from memalpha.qa.protocol import run_systems
from memalpha.tasks.datasets import babi

EVAL = Path(__file__).parents[2] / "eval"
sys.path.insert(0, str(EVAL / "qa"))
READER = run_path(str(EVAL / "qa" / "babi_reader.py"))


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
