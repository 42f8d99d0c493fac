"""eval/PUBLISHED.md says of every published average what comes out of the same table."""

import runpy
from pathlib import Path

import pytest

EVAL = Path(__file__).parents[2] / "eval"
SCRIPT = runpy.run_path(str(EVAL / "qa" / "published.py"))
TEXT = (EVAL / "PUBLISHED.md").read_text(encoding="utf-8")


def test_every_average_comes_out_as_it_says():
    averages = list(SCRIPT["averages"](TEXT))
    assert len(averages) > 80
    assert [(average.row, average.weights, average.wrong) for average in averages if average.wrong] == []
    headline = {
        (average.printed, average.claimed, average.bold) for average in averages if average.row == "Mem-alpha-4B"
    }
    assert headline == {("0.642", "0.619", True), ("0.592", "0.592", False)}


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("0.786", "0.886", "comes out as 0.6333"),
        ("**0.619**", "0.619", "should be in bold"),
        ("0.052 | 0.588 | 0.588", "0.052 | 0.588 | **0.588**", "should not be in bold"),
    ],
)
def test_a_changed_figure_is_seen(before, after, wrong):
    assert before in TEXT
    assert [average.wrong for average in SCRIPT["averages"](TEXT.replace(before, after, 1)) if average.wrong] == [wrong]
