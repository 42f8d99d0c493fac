"""`memalpha search` with a lowest score, and with a cross-encoder from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memalpha.store.store import MemoryStore


def _contents(out: str) -> list[str]:
    return [hit["entry"]["content"] for hit in json.loads(out)]


def test_min_score_leaves_out_lower_hits(memalpha, store: Path) -> None:
    memalpha("add", store, "Tom likes tea.")
    words = ("search", store, "Ana lives in Lisbon.", "--route", "dense", "--json")
    hits = json.loads(memalpha(*words)[1])
    assert [hit["entry"]["content"] for hit in hits] == ["Ana lives in Lisbon.", "Tom likes tea."]
    between = (hits[0]["score"] + hits[1]["score"]) / 2
    assert _contents(memalpha(*words, "--min-score", between)[1]) == ["Ana lives in Lisbon."]
    assert memalpha(*words, "--min-score", 2)[:2] == (0, "[]\n")
    code, out, err = memalpha("search", store, "Ana", "--min-score", "nan")
    assert (code, out) == (2, "") and "min_score nan: a finite number" in err


def test_reranker_from_a_folder_sorts_the_hits(memalpha, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra embed")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ana", "tom", "lives", "likes", "in", "lisbon", "tea", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    folder = tmp_path / "cross-encoder"
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "num_labels": 1,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)

    memalpha("add", store, "Tom likes tea.")
    code, out, err = memalpha("search", store, "Ana lives", "--reranker", folder, "--json")
    assert code == 0, err
    with MemoryStore.open(store) as memory:
        plain = memory.search("Ana lives")
        expected = memory.search("Ana lives", reranker=str(folder))
    assert len({hit.score for hit in expected}) == len(plain) == 2
    assert _contents(out) == [hit.entry.content for hit in expected]
    assert [hit["explain"]["rerank"] for hit in json.loads(out)] == pytest.approx([hit.score for hit in expected])

    code, out, err = memalpha("search", store, "Ana", "--reranker", tmp_path / "nothing-here")
    assert (code, out) == (2, "") and "nothing-here" in err
