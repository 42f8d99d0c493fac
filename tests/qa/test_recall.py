"""Recall of evidence by hand, and the promised recall of the default search on the real file of LoCoMo."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from memalpha.config import EvalConfig, load_config
from memalpha.qa.search_benchmark import EvidenceQuestion, EvidenceRanks, rank_evidence, recall_metrics, run_search
from memalpha.tasks.datasets.locomo import load_locomo
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import MemoryEntry

REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


def test_a_unit_of_several_entries_is_found_with_the_first():
    entries = [MemoryEntry(f"n{at}", "semantic", "x" * 4 * at, source=f"p{at % 3}") for at in range(12)]
    question_list = [EvidenceQuestion("?", "kind", ("p1", "p2", "p9"))]
    (outcome,) = rank_evidence(question_list, lambda queries, k: [entries], lambda entry: entry.source)
    assert outcome == EvidenceRanks("kind", (2, 3, math.inf), 45.0)
    assert (outcome.recall(2), outcome.recall(3)) == (1 / 3, 2 / 3)


def test_evidence_counts_down_to_the_hundredth_hit():
    entries = [MemoryEntry(f"n{rank}", "semantic", "x", source=f"p{rank}") for rank in range(1, 200)]
    questions = [EvidenceQuestion("?", "kind", ("p100", "p101"))]
    (outcome,) = rank_evidence(questions, lambda queries, k: [entries[:k]], lambda entry: entry.source)
    assert outcome.gold == (100, math.inf)


def test_figures_by_hand():
    ranks = [EvidenceRanks("temporal", (1, 7), 100.0), EvidenceRanks("temporal", (20, math.inf), 200.0)]
    assert recall_metrics(ranks) == {
        "questions": 2,
        "recall@1": 0.25,
        "recall@5": 0.25,
        "recall@10": 0.5,
        "recall@20": 0.75,
        "mrr": 0.525,
    }


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_the_default_search_beats_flat_on_the_real_file(tmp_path):
    save_jsonl(load_locomo(REAL), tmp_path / "locomo.jsonl")
    result = run_search(load_config(EvalConfig, "search", {"data": str(tmp_path / "locomo.jsonl")}))
    rows = {row["method"]: row for row in result["retrieval"]}
    assert rows["soft"]["questions"] == 1536
    assert rows["soft"]["recall@10"] >= 0.75
    assert rows["soft"]["recall@10"] >= rows["bm25s"]["recall@10"] + 0.1
    # What a reader is shown costs no more than by the simplest route: hits are not better for being longer.
    assert rows["soft"]["tokens@10"] <= 1.07 * rows["flat"]["tokens@10"]  # turns that ask are short, and count less
    assert rows["soft"]["recall@10"] >= rows["flat"]["recall@10"] + 0.1
    for kind, outcome in rows["soft"]["by_type"].items():
        assert outcome["recall@10"] >= rows["flat"]["by_type"][kind]["recall@10"] - 0.02, kind
