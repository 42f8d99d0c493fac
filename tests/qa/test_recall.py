"""Recall of evidence by hand, and the promised recall of the default search on the real file of LoCoMo."""

from __future__ import annotations

from pathlib import Path

import pytest

from memalpha.config import EvalConfig, load_config
from memalpha.qa.search_benchmark import run_search
from memalpha.tasks.datasets import locomo
from memalpha.tasks.formats.jsonl import save_jsonl

REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_the_default_search_beats_flat_on_the_real_file(tmp_path):
    save_jsonl(locomo.load(REAL), tmp_path / "locomo.jsonl")
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
