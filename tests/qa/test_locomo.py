"""The LoCoMo benchmark: figures by hand on our small conversation, the promised recall on the real file."""

import json
import math
from pathlib import Path

import pytest

from memalpha.config import EvalConfig, load_config
from memalpha.errors import DataError
from memalpha.qa.locomo import _figures, _Ranks, documents, format_locomo, run_locomo
from memalpha.tasks.locomo import load_locomo

FIXTURE = Path(__file__).parents[1] / "data" / "locomo_like.json"
REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


def test_documents_have_date_speaker_and_neighbours_of_the_session():
    (task,) = load_locomo(FIXTURE)
    own, around = documents(task, "own"), documents(task, "neighbours")
    assert [document.group for document in own] == ["0"] * 4 + ["1"] * 2 + ["2"] * 3
    assert own[4].text == "1 June 2024 Tom: I moved into a flat by the harbour."
    assert own[4].lexical_text is None
    assert around[4].text == own[4].text
    assert around[4].lexical_text == (
        "1 June 2024\nTom: I moved into a flat by the harbour.\n"
        "Mira: Congratulations! My first vase cracked in the kiln."
    )
    assert around[1].lexical_text.count("\n") == 3


def test_figures_by_hand():
    ranks = [_Ranks("temporal", (1, 7), 100.0), _Ranks("temporal", (20, math.inf), 200.0)]
    assert _figures(ranks) == {"questions": 2, "recall@5": 0.25, "recall@10": 0.5, "recall@20": 0.75, "mrr": 0.525}


def test_shape_of_the_result(tmp_path):
    result = run_locomo(load_config(EvalConfig, "locomo", {"data": str(FIXTURE), "out": str(tmp_path / "run")}))
    assert [(row["method"], row["embedder"]) for row in result["retrieval"]] == [
        ("dense", "static"),
        ("bm25", "none"),
        ("flat", "static"),
        ("two-layer", "static"),
        ("hard", "static"),
    ]
    for row in result["retrieval"]:
        assert set(row) == {
            "method", "embedder", "questions", "recall@5", "recall@10", "recall@20", "mrr", "tokens@10", "by_type"
        }  # fmt: skip
        assert row["questions"] == 5  # the sixth has no evidence, the seventh is adversarial
        assert row["by_type"]["temporal"]["questions"] == 2
        assert 0 < row["tokens@10"] < 200
        if row["method"] != "hard":
            assert row["recall@10"] == 1.0  # there are nine turns
    (floor,) = result["qa"]
    assert floor["reader"].startswith("extractive floor")
    assert (floor["metric"], floor["questions"]) == ("locomo-f1", 6)
    assert floor["by_type"]["temporal"] >= 0.5  # "yesterday" on 3 July 2024 is 2 July 2024
    assert json.loads((tmp_path / "run" / "eval" / "locomo.json").read_text()) == result
    assert "two-layer" in format_locomo(result)


def test_several_embedders_share_one_bm25_row():
    config = load_config(EvalConfig, "locomo", {"data": str(FIXTURE), "embedders": ["hash", "static"]})
    rows = [(row["method"], row["embedder"]) for row in run_locomo(config)["retrieval"]]
    assert len(rows) == len(set(rows)) == 9


def test_without_data_the_message_says_what_to_give():
    with pytest.raises(DataError, match="data=PATH"):
        run_locomo(load_config(EvalConfig, "locomo"))


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_two_layers_beat_flat_on_the_real_file():
    result = run_locomo(load_config(EvalConfig, "locomo", {"data": str(REAL)}))
    rows = {row["method"]: row for row in result["retrieval"]}
    assert rows["two-layer"]["questions"] == 1536
    assert rows["two-layer"]["recall@10"] >= 0.74
    assert rows["two-layer"]["tokens@10"] <= 450
    assert rows["two-layer"]["recall@10"] >= rows["flat"]["recall@10"] + 0.08
    assert rows["two-layer"]["recall@10"] > rows["hard"]["recall@10"]
    for kind, figures in rows["two-layer"]["by_type"].items():
        assert figures["recall@10"] >= rows["flat"]["by_type"][kind]["recall@10"] - 0.02, kind
