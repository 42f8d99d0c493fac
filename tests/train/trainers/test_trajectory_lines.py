"""What a line of trajectories.jsonl says of an answer."""

from __future__ import annotations

from dataclasses import replace

from memalpha.qa.report import Record
from memalpha.train.trainers.rl import answer_fields


def test_an_answer_that_the_conflict_rule_refused_says_so():
    record = Record("t", 0, "q", "", None, "?", "17.5 kilos or 17.5", ("17.5 kilos",), 0.0, False)
    assert answer_fields(record) == ["q", "17.5 kilos or 17.5", 0.0]
    assert answer_fields(replace(record, conflict=True))[3:] == ["conflict"]
