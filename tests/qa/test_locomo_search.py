"""Routes of search on LoCoMo: figures by hand on our small conversation, the promised recall on the real file."""

import json
import math
from pathlib import Path

import pytest

from memalpha.config import EvalConfig, load_config
from memalpha.errors import DataError
from memalpha.qa.locomo_search import run_locomo_search, turn_entries
from memalpha.qa.scoring.recall import EvidenceQuestion, EvidenceRanks, rank_evidence, recall_metrics
from memalpha.qa.search_benchmark import format_search
from memalpha.tasks.datasets.locomo import load_locomo
from memalpha.types import MemoryEntry

FIXTURE = Path(__file__).parents[1] / "data" / "locomo_like.json"
REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


def test_turns_are_spans_of_their_conversation():
    (task,) = load_locomo(FIXTURE)
    facts = turn_entries(task)
    assert [fact["chunk"] for fact in facts] == [0] * 4 + [1] * 2 + [2] * 3
    assert {fact["source"] for fact in facts} == {task.id}
    assert facts[4]["content"] == "1 June 2024 Tom: I moved into a flat by the harbour."
    assert facts[4]["turn"] == task.chunks[1].turns[0].id
    assert facts[4]["timestamp"] == task.chunks[1].timestamp


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
        "recall@5": 0.25,
        "recall@10": 0.5,
        "recall@20": 0.75,
        "mrr": 0.525,
    }


def test_shape_of_the_result(tmp_path):
    settings = load_config(EvalConfig, "locomo-search", {"data": str(FIXTURE), "out": str(tmp_path / "run")})
    result = run_locomo_search(settings)
    assert [(row["method"], row["embedder"]) for row in result["retrieval"]] == [
        ("dense", "static"),
        ("bm25", "none"),
        ("flat", "static"),
        ("soft", "static"),
    ]
    for row in result["retrieval"]:
        assert set(row) == {
            "method", "embedder", "questions", "recall@5", "recall@10", "recall@20", "mrr", "tokens@10", "by_type"
        }  # fmt: skip
        assert row["questions"] == 5  # the sixth has no evidence, the seventh is adversarial
        assert row["by_type"]["temporal"]["questions"] == 2
        assert 0 < row["tokens@10"] < 200
        assert row["recall@10"] == 1.0  # there are nine turns
    assert json.loads((tmp_path / "run" / "eval" / "locomo-search.json").read_text()) == result
    assert "soft" in format_search(result)


def test_several_embedders_share_one_bm25_row():
    config = load_config(EvalConfig, "locomo-search", {"data": str(FIXTURE), "embedders": ["hash", "static"]})
    rows = [(row["method"], row["embedder"]) for row in run_locomo_search(config)["retrieval"]]
    assert len(rows) == len(set(rows)) == 7


def test_without_data_the_message_says_what_to_give():
    with pytest.raises(DataError, match="data=PATH"):
        run_locomo_search(load_config(EvalConfig, "locomo-search"))


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_the_default_search_beats_flat_on_the_real_file():
    result = run_locomo_search(load_config(EvalConfig, "locomo-search", {"data": str(REAL)}))
    rows = {row["method"]: row for row in result["retrieval"]}
    assert rows["soft"]["questions"] == 1536
    assert rows["soft"]["recall@10"] >= 0.75
    # What a reader is shown costs no more than by the simplest route: hits are not better for being longer.
    assert rows["soft"]["tokens@10"] <= 1.03 * rows["flat"]["tokens@10"]
    assert rows["soft"]["recall@10"] >= rows["flat"]["recall@10"] + 0.1
    for kind, outcome in rows["soft"]["by_type"].items():
        assert outcome["recall@10"] >= rows["flat"]["by_type"][kind]["recall@10"] - 0.02, kind
