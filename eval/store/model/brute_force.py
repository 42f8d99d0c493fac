"""Search by brute force, in plain Python: the documented scores of a short list of facts."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from memalpha.store.schema import load_schema

DIM = 32
K1, B = 1.5, 0.75
DESCRIPTIONS = {category.name: category.description for category in load_schema("mem-alpha").categories}
Vector = tuple[float, ...]


def embed(text: str) -> Vector:
    """Return a vector of length 1 with four numbers of .5 or -.5, so that all inner products are exact."""
    digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
    vector, used = [0.0] * DIM, 0
    for byte in digest:
        index = byte % DIM
        if not vector[index] and used < 4:
            vector[index] = 0.5 if byte & 32 else -0.5
            used += 1
    return tuple(vector)


class ExactEmbedder:
    """The embedder of the stores that are compared."""

    name, dim = "exact", DIM

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row for each text."""
        return np.array([embed(text) for text in texts], np.float32).reshape(len(texts), DIM)


class Doc(NamedTuple):
    """A fact to search."""

    id: str
    category: str
    text: str
    at: int  # position of the version
    vector: Vector


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return round(sum(x * y for x, y in zip(a, b, strict=True)), 5)


def _bm25(query: Sequence[str], documents: list[list[str]]) -> list[float]:
    """Return Lucene's BM25 of each document, a list of words."""
    counts = [Counter(document) for document in documents]
    total = sum(map(len, documents))
    if not total:
        return [0.0] * len(documents)
    mean = total / len(documents)
    scores = [0.0] * len(documents)
    for word, repeats in Counter(query).items():
        holders = sum(word in count for count in counts)
        idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5)) * repeats
        for index, count in enumerate(counts):
            tf, length = count[word], len(documents[index])
            scores[index] += idf * tf / (tf + K1 * (1 - B + B * length / mean))
    return scores


def _confidence(query: Sequence[str], documents: list[list[str]]) -> float:
    """Return how much of the query the document with most of it holds, by idf, against four words of no other one."""
    idf = {}
    for word, repeats in Counter(query).items():
        holders = sum(word in document for document in documents)
        idf[word] = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5)) * repeats
    held = max(sum(weight for word, weight in idf.items() if word in document) for document in documents)
    enough = max(1, min(4, len(idf))) * math.log(1 + (len(documents) - 0.5) / 1.5)
    return min(1.0, held / enough)


def _scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / max(high - low, 1e-3) for value in values]


def _fit(groups: list[list[Doc]]) -> float:
    """Return the adjusted R squared of the vectors by group, in shares of .03, with one document of doubt."""
    docs = [doc for members in groups for doc in members]
    spread = len(docs) - _length(docs) ** 2 / len(docs)
    if len(docs) == len(groups) or spread < 1e-3 * len(docs):
        return 1.0
    within = sum(len(members) - _length(members) ** 2 / len(members) for members in groups)
    explained = 1 - within / (len(docs) - len(groups)) * (len(docs) - 1) / spread
    return max(0.0, min(1.0, (len(docs) * explained + 1) / (len(docs) * 0.03 + 1)))


def _length(docs: list[Doc]) -> float:
    return math.sqrt(sum(x * x for x in _sum(docs)))


def _sum(docs: list[Doc]) -> list[float]:
    return [sum(doc.vector[i] for doc in docs) for i in range(DIM)]


def brute_force(docs: list[Doc], query: str, route: str) -> dict[str, float]:
    """Return the score of every document that a route scores, by id.

    Args:
        docs: All documents that pass the filter.
        query: Words and spaces.
        route: One of soft, flat, dense, bm25, hard.
    """
    if not docs:
        return {}
    words, vector = query.split(), embed(query)
    prior = dict.fromkeys((doc.category for doc in docs), 0.0)
    if route in ("soft", "hard"):
        groups = {c: [doc for doc in docs if doc.category == c] for c in prior}
        fit = _fit(list(groups.values())) if route == "soft" else 1.0
        for name, members in groups.items() if len(groups) > 1 else ():
            length = _length(members)
            contents = _dot(vector, _sum(members)) / length if length > 1e-6 else 0.0
            prior[name] = fit * (contents + _dot(vector, embed(f"{name}: {DESCRIPTIONS[name]}")))
    texts = [doc.text.split() for doc in docs]
    lexical_scores, confidence = _bm25(words, texts), _confidence(words, texts)
    if route == "hard":
        threshold = sorted(prior.values())[-max(1, round(len(prior) ** 0.5))]
        pairs = [
            (doc, score) for doc, score in zip(docs, lexical_scores, strict=True) if prior[doc.category] >= threshold
        ]
        docs, lexical_scores = [doc for doc, _ in pairs], [score for _, score in pairs]
    dense = [_dot(vector, doc.vector) for doc in docs]
    if route == "dense":
        scores = dense
    elif route == "bm25":
        scores = lexical_scores
    else:
        scores = [a + confidence * b for a, b in zip(_scaled(dense), _scaled(lexical_scores), strict=True)]
        if route == "soft":
            scores = [score + prior[doc.category] for score, doc in zip(scores, docs, strict=True)]
    return {doc.id: score for doc, score in zip(docs, scores, strict=True)}


def compare_hits(hits: list[tuple[str, float]], docs: list[Doc], query: str, route: str, k: int) -> None:
    """Raise `AssertionError` unless the hits are the best `k` of all documents, best first, the newest among equals."""
    scores = brute_force(docs, query, route)
    at = {doc.id: doc.at for doc in docs}
    close: Callable[[float, float], bool] = lambda a, b: abs(a - b) < 2e-4  # noqa: E731
    assert len(hits) == min(k, len(scores)), (len(hits), k, len(scores))
    assert len({id for id, _ in hits}) == len(hits)
    for id, score in hits:
        assert close(score, scores[id]), (id, score, scores[id])
    order = [(-score, -at[id]) for id, score in hits]
    assert order == sorted(order), hits
    if hits:
        worst = hits[-1][1]
        missing: list[Any] = [id for id, score in scores.items() if score > worst + 2e-4 and id not in dict(hits)]
        assert not missing, missing
