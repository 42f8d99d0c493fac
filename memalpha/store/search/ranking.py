"""Scoring of a set of documents: options of a search, vectors, the parts of scores, their sums, the priors of groups.

A `Selection` gives the statistics of the documents that a search covers. `corpus` explains the score. Vectors stand
by slot, a small integer that the caller assigns and may use again; a group's prototype is their mean.

A raw span may be an assistant's, or a question. What people ask of a memory was mostly said by themselves. An
assistant's replies are longer and repeat their words, so they crowd them out: they count less (`ROLE_WEIGHT`), unless
the question is about what the assistant said. A turn that asks has the words of a question and seldom its answer, which
follows: it counts less, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Literal, NamedTuple

import faiss
import numpy as np

from memalpha.arguments import brief_repr, check_count, check_flag, check_type, is_finite_number
from memalpha.errors import StoreError
from memalpha.store.embedding import normalize_vectors
from memalpha.store.fields import parse_time
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.store.search.lexical import BM25, NeighbourBM25, SelectedPostings, TermMatches, effective_total
from memalpha.types import is_iso_time

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Corpus

Reranker = Callable[[str, Sequence[str]], Sequence[float]]
Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")
COMBINED_ROUTES: tuple[Route, ...] = ("soft", "flat", "hard")
WEIGHTED_PARTS = ("dense", "bm25", "group", "category", "role", "question")


@dataclass(frozen=True, slots=True)
class Boost:
    """Weights of importance and recency, added to the score of any route.

    Attributes:
        importance: Weight of the entry's importance.
        recency: Weight of `0.5 ** (age / half_life)`, where age is the number of days from the entry's timestamp to
            `now`. An entry without a timestamp gets 0, one of the future the full weight.
        half_life: Days in which recency halves.
        now: ISO 8601 date or time, in UTC unless it names a zone; no clock is read. Required for recency.

    Raises:
        StoreError: A weight is not a finite number, `now` is no date, or recency lacks `now`.
    """

    importance: float = 0.0
    recency: float = 0.0
    half_life: float = 30.0
    now: str | None = None

    def __post_init__(self) -> None:
        for name in ("importance", "recency", "half_life"):
            value = getattr(self, name)
            if not is_finite_number(value):
                raise StoreError(f"boost: {name} {brief_repr(value)}: a finite number is needed")
        if self.half_life <= 0:
            raise StoreError(f"boost: half_life {self.half_life!r}: days above 0 are needed")
        if self.now is None and self.recency:
            raise StoreError('boost: recency needs now, such as now="2025-01-10"')
        if self.now is not None and not (isinstance(self.now, str) and is_iso_time(self.now)):
            raise StoreError(f"boost: now {brief_repr(self.now)} is no ISO 8601 date or time (2024-05-01)")

    def terms(self, numbers: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the score terms by name; `numbers` returns a field of the entries as numbers `(n,)`."""
        terms = {}
        if self.importance:
            terms["importance"] = self.importance * numbers("importance")
        if self.recency and self.now is not None:
            age = np.maximum(parse_time(self.now).timestamp() - numbers("timestamp"), 0.0) / 86400
            terms["recency"] = self.recency * np.nan_to_num(0.5 ** (age / self.half_life))
        return terms


@dataclass(frozen=True)
class SearchOptions:
    """Keywords of `Memory.search`, where they are explained, as one checked value.

    `filter` combines `category` and `where`; None matches everything. Raises `StoreError` for an invalid value.
    """

    k: int = 10
    _: KW_ONLY
    category: str | None = None
    where: Where = None
    route: Route = "soft"
    boost: Boost | None = None
    as_of: int | str | None = None
    around: int = 0
    exact: bool = False
    weights: Mapping[str, float] | None = None
    min_score: float | None = None
    vector: Sequence[float] | np.ndarray | None = None
    reranker: Reranker | str | None = None
    filter: Filter | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.route, str) or self.route not in ROUTES:
            raise StoreError(f"route {brief_repr(self.route)} is not one of {', '.join(ROUTES)}")
        check_count("k", self.k)
        check_count("around", self.around)
        check_flag("exact", self.exact)
        check_type("boost", self.boost, (Boost, NoneType))
        check_type("weights", self.weights, (Mapping, NoneType))
        if self.reranker is not None and not isinstance(self.reranker, str) and not callable(self.reranker):
            raise StoreError(f"reranker {brief_repr(self.reranker)}: a function or the name of a model is needed")
        for name, value in {"min_score": self.min_score, **(self.weights or {})}.items():
            if name not in ("min_score", *WEIGHTED_PARTS):
                raise StoreError(f"weights: {brief_repr(name)} is not one of {', '.join(WEIGHTED_PARTS)}")
            is_number = is_finite_number(value)
            if not (is_number or (name == "min_score" and value is None)):
                raise StoreError(f"{name} {brief_repr(value)}: a finite number is needed")
        if self.where is not None or self.category is not None:
            object.__setattr__(self, "filter", parse_filter(self.where, category=self.category))

    def query_vectors(self, number: int, dim: int) -> np.ndarray | None:
        """Return the given vector for each of `number` queries, float32 `(number, dim)` of length 1; None without one.

        Raises:
            StoreError: It is not `dim` finite numbers, or all of them are 0.
        """
        if self.vector is None:
            return None
        try:
            unit = normalize_vectors(1, np.asarray(self.vector)[None], dim)
        except (StoreError, ValueError) as error:  # ValueError: rows of several lengths
            problem = f"vector: {dim} finite numbers, not all 0, are needed, as the store's embedder gives them"
            raise StoreError(problem) from error
        return np.repeat(unit, number, axis=0)


SEARCH_KEYWORDS = frozenset(option.name for option in fields(SearchOptions) if option.init) - {"k"}
"""Keywords of `Memory.search`."""

_FEW = 0.25  # share of the rows
BLOCK = 512  # rows copied at a time


class VectorIndex:
    """Vectors by slot, which may be set anew."""

    def __init__(self, dim: int) -> None:
        self._storage = np.zeros((0, dim), np.float32)
        self._size = 0  # rows of the storage in use

    @property
    def rows(self) -> np.ndarray:
        """Vectors by slot, float32 `(slots, dim)`: a view of the storage, not a copy."""
        return self._storage[: self._size]

    def set(self, slots: np.ndarray, vectors: np.ndarray) -> None:
        """Store `vectors` `(n, dim)` at `slots` `(n,)`, which may lie beyond the end."""
        size = max(self._size, int(slots.max(initial=-1)) + 1)
        if size > len(self._storage):
            # Untouched zeros take no memory.
            room = np.zeros((max(32, size * 3 // 2), self._storage.shape[1]), np.float32)
            room[: self._size] = self.rows
            self._storage = room
        self._size = size
        self._storage[slots] = vectors


def inner_products(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return inner products, float64 `(queries, rows)`, rounded to 5 decimals.

    FAISS computes each product separately, whereas the last bits of a BLAS product depend on the rest of the batch.
    Rounding removes the differences that a model's batching leaves. So ties are ties.
    """
    if not len(rows):
        return np.zeros((len(queries), 0))
    # Not `pairwise_distances`, which is a BLAS product.
    left, right = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows, np.float32)
    products = np.empty((len(left), len(right)), np.float32)
    for query, row in zip(left, products, strict=True):
        pointers = map(faiss.swig_ptr, (row, query, right))
        faiss.fvec_inner_products_ny(*pointers, right.shape[1], len(right))  # pyright: ignore
    return np.round(products.astype(np.float64), 5)


def add_by_group(sums: np.ndarray, groups: np.ndarray, vectors: np.ndarray, sign: float = 1.0) -> None:
    """Add vectors to the sums of their groups, in place.

    Args:
        sums: Sums by group, float64 `(groups, dim)`.
        groups: Group of each vector `(n,)`, in ascending order.
        vectors: Vectors `(n, dim)`.
        sign: 1 adds, -1 subtracts.
    """
    bounds = [0, *((groups[1:] != groups[:-1]).nonzero()[0] + 1).tolist(), len(groups)]
    for begin, end in pairwise(bounds):
        if begin < end:
            sums[groups[begin]] += sign * vectors[begin:end].sum(axis=0, dtype=np.float64)


def unit_directions(sums: np.ndarray) -> np.ndarray:
    """Scale sums of vectors `(n, dim)` to length 1; sums near zero become zero vectors."""
    norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    return np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), 0.0).astype(np.float32)


class Prototypes:
    """Mean direction of each group's vectors, from running sums, in a `VectorIndex` of its own."""

    def __init__(self, dim: int) -> None:
        self.sums = np.zeros((0, dim))  # float64 `(groups, dim)`
        self._index = VectorIndex(dim)
        self._stale: set[int] = set()

    def change(self, groups: np.ndarray, vectors: np.ndarray, sign: float) -> None:
        """Add vectors to the sums of their groups, or subtract them.

        Args:
            groups: Group of each vector `(n,)`.
            vectors: Vectors `(n, dim)`.
            sign: 1 adds, -1 subtracts.
        """
        if not len(groups):
            return
        missing = int(groups.max()) + 1 - len(self.sums)
        if missing > 0:
            self.sums = np.concatenate([self.sums, np.zeros((missing, self.sums.shape[1]))])
        for start in range(0, len(groups), BLOCK):
            block_groups = groups[start : start + BLOCK]
            order = np.argsort(block_groups, kind="stable")
            add_by_group(self.sums, block_groups[order], vectors[start : start + BLOCK][order], sign)
        self._stale.update(np.flatnonzero(np.bincount(groups)).tolist())

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Return inner products `(queries, groups)` of the queries with the normalised means."""
        if self._stale:
            groups = np.array(sorted(self._stale))
            self._index.set(groups, unit_directions(self.sums[groups]))
            self._stale.clear()
        return inner_products(queries, self._index.rows)


ASSISTANTS = frozenset(
    {"assistant", "ai", "bot", "chatbot", "model", "chatgpt", "gpt", "claude", "gemini", "copilot", "asistente"}
    | {"assistent", "assistente", "助手", "アシスタント", "ассистент"}
)
"""Labels in lower case of an assistant in a chat."""

_LABEL = re.compile(rf"(?:\d{{1,2}} \w+ \d{{4}} )?(?:{'|'.join(sorted(ASSISTANTS))})\s*[:\uff1a]", re.IGNORECASE)
_ABOUT_ASSISTANT = re.compile(
    "|".join(
        line.strip()
        for line in (Path(__file__).parents[2] / "data/asks-for-assistants.txt")
        .read_text(encoding="utf-8")
        .splitlines()
        if line.strip() and not line.startswith("#")
    ),
    re.IGNORECASE,
)


def is_assistants(text: str) -> bool:
    """Return True if a raw span is an assistant's, by its label (`assistant: ...`) at the start or after a date."""
    return _LABEL.match(text) is not None


def is_question(text: str) -> bool:
    """Return True if a text ends with a question mark of any script."""
    return text.rstrip().endswith(("?", "\uff1f", "\u061f", "\u037e"))


def asks_for_assistants(query: str) -> bool:
    """Return True if a question is about what an assistant said: "What did you recommend?".

    English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese, Japanese and Korean are read.
    """
    return _ABOUT_ASSISTANT.search(query) is not None


SURE_WORDS = 4.0  # words of no other document, from which on words count fully beside vectors
SURE_WORDS_OF_TURNS = 1.5  # the same for raw turns, whose neighbours hold other words of the question
WELL_SORTED = 0.03  # share of the vectors' variance that groups explain, from which on they count fully
ROLE_WEIGHT = 0.3  # of an assistant's words; chosen on BEAM's even conversations
QUESTION_WEIGHT = 0.15  # of a span that asks; chosen on LoCoMo's even conversations and FriendsQA's development set
SMALLEST_RANGE = 1e-3  # of scores that are scaled; inner products are rounded to 1e-5


def scale(scores: np.ndarray, score_range: tuple[float, float] | None) -> np.ndarray:
    """Scale scores to 0..1 by minimum and maximum; equal scores become zeros.

    A range below `SMALLEST_RANGE` counts as that, so that rounding is not scaled up to a difference of 1.

    Args:
        scores: Scores `(n,)`.
        score_range: Minimum and maximum over more documents than these; None takes those of `scores`.
    """
    low, high = score_range or (scores.min(), scores.max())
    return (scores - low) / max(high - low, SMALLEST_RANGE)


def indices_of_largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values, and of those equal to the last, in ascending order."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])


def top_k(scores: np.ndarray, orders: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k largest scores, best first.

    Args:
        scores: Scores `(n,)`.
        orders: Tie-breakers `(n,)`; among equal scores the larger comes first.
        k: Number of indices; fewer are returned if there are fewer scores.
    """
    candidates = indices_of_largest(scores, k)
    return candidates[np.lexsort((-orders[candidates], -scores[candidates]))][:k]


class ScoredEntry(NamedTuple):
    """One search result.

    Attributes:
        id: Id of the entry.
        score: Score; larger is better.
        explain: The parts of the score that were used: raw `dense` and `bm25`, `group`, `category`, terms of a `Boost`.
            With spans, `bm25` is of the span's words alone, and `around` is what its neighbours add.
    """

    id: str
    score: float
    explain: Mapping[str, float]


class LexicalScores(NamedTuple):
    """BM25 of documents.

    Attributes:
        scores: Score of each document, float64 `(n,)`.
        passages: Number of the best passage of each long document, NaN elsewhere, float64 `(n,)`.
        own: Score without the words of neighbouring spans, float64 `(n,)`; None if they do not count.
        confidence: Share by which words count beside the vectors, 0 to 1.
    """

    scores: np.ndarray
    passages: np.ndarray
    own: np.ndarray | None = None
    confidence: float = 1.0


class Features(NamedTuple):
    """Raw parts of the scores of n documents for one query; a part is None where the route does not add it.

    Attributes:
        slots: Slots of the documents, int64 `(n,)`.
        dense: Inner products of the query's vector with the documents', float64 `(n,)`.
        lexical: BM25 of each document.
        group: Similarity of the query to the contents of each document's group (layer one), float64 `(n,)`.
        category: The same, to what its group is for.
        marks: Which documents are spans that an assistant said, and which are spans that ask, bool `(n, 2)`.
        score_ranges: Minimum and maximum over more documents than these, by part of the score.
    """

    slots: np.ndarray
    dense: np.ndarray | None = None
    lexical: LexicalScores | None = None
    group: np.ndarray | None = None
    category: np.ndarray | None = None
    marks: np.ndarray | None = None
    score_ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})


class Selection:
    """Documents of a corpus that a search covers, with the statistics of these alone.

    Attributes:
        slots: Slots of the documents, int64 `(n,)`, in the order of their groups unless they are the whole memory.
        groups: Group of each document, int64 `(n,)`, below `size`.
        size: Number of groups.
    """

    def __init__(self, corpus: Corpus, slots: np.ndarray, *, is_whole: bool) -> None:
        groups = corpus.groups[slots]
        if not is_whole:
            order = np.argsort(groups, kind="stable")
            slots, groups = slots[order], groups[order]
        self.slots, self.groups, self.size = slots, groups, len(corpus.group_numbers)
        self._corpus, self._is_whole = corpus, is_whole

    def features(self, query: Sequence[str], vector: np.ndarray | None, route: Route) -> Features:
        """Return the parts of the scores that a route needs.

        Args:
            query: Terms of the query.
            vector: Embedding of the query `(1, dim)`; None for the route "bm25".
            route: The route, which `corpus` explains.
        """
        dense = None
        if vector is not None and self._rows is not None:
            dense = inner_products(vector, self._rows)[0]
        elif vector is not None:
            dense = inner_products(vector, self._corpus.vectors.rows)[0, self.slots]
        lexical = None
        if route != "dense":
            lexical = (self._neighbour_scores(query) if route == "soft" else None) or self.bm25_scores(query)
        features = Features(self.slots, dense, lexical)
        if vector is None:
            return features
        if route == "soft":
            priors = self.soft_priors(vector)
            group, category = (None, None) if priors is None else (values[self.groups] for values in priors)
            return features._replace(group=group, category=category, marks=self._corpus.marks[self.slots])
        if route == "hard" and dense is not None and lexical is not None:
            contents, purposes = self.group_priors(vector)
            prior = contents + purposes
            sorted_priors = np.sort(prior[np.unique(self.groups)])  # the best round(sqrt(groups)) groups are searched
            best = prior[self.groups] >= sorted_priors[-max(1, round(len(sorted_priors) ** 0.5))]
            lexical = lexical._replace(scores=lexical.scores[best], passages=lexical.passages[best])
            return Features(self.slots[best], dense[best], lexical)
        return features

    @cached_property
    def _lexical(self) -> SelectedPostings:
        return SelectedPostings(self._corpus.lexical, self.slots)

    @cached_property
    def _rows(self) -> np.ndarray | None:
        """Vectors of the documents; None if the products with all vectors cost less than gathering these."""
        rows = self._corpus.vectors.rows
        return rows[self.slots] if len(self.slots) < len(rows) * _FEW else None

    @cached_property
    def _sums(self) -> np.ndarray:
        """Sums of each group's vectors, float64 `(groups, dim)`."""
        if self._is_whole:
            return self._corpus.prototypes.sums
        sums = np.zeros((self.size, self._corpus.embedder.dim))
        for start in range(0, len(self.slots), BLOCK):
            block = slice(start, start + BLOCK)
            rows = self._corpus.vectors.rows[self.slots[block]] if self._rows is None else self._rows[block]
            add_by_group(sums, self.groups[block], rows)
        return sums

    @cached_property
    def _fit(self) -> float:
        """Share by which groups count, from 0 (documents lie in them as if at random) to 1.

        It is the adjusted R squared of an analysis of variance of the vectors by group, in shares of `WELL_SORTED`.
        """
        total, sizes = len(self.slots), self.group_sizes[: len(self._sums)]
        sums, sizes = self._sums[sizes > 0], sizes[sizes > 0]
        mean = sums.sum(0) / max(1, total)
        varied, within = total - total * (mean @ mean), total - ((sums * sums).sum(1) / sizes).sum()
        if total == len(sizes) or varied < total * SMALLEST_RANGE:
            return 1.0
        explained = 1.0 - within / (total - len(sizes)) * (total - 1) / varied
        # One document of doubt: two or three tell nothing. Rounded, since sums depend on their order.
        return round(float(np.clip((total * explained + 1.0) / (total * WELL_SORTED + 1.0), 0.0, 1.0)), 4)

    def soft_priors(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return `group_priors` as far as documents lie in the groups with their like; None for a single group."""
        if np.count_nonzero(self.group_sizes) < 2:
            return None
        contents, purposes = self.group_priors(vector)
        return self._fit * contents, self._fit * purposes

    def documents_at(self, slots: np.ndarray) -> np.ndarray:
        """Return the documents of slots by their index in this selection, without removed ones."""
        documents = self._lexical.document_of_slot[slots]
        return documents[documents >= 0]

    @cached_property
    def group_sizes(self) -> np.ndarray:
        """Return the number of documents of each group, int64 `(size,)`."""
        return np.bincount(self.groups, minlength=self.size)

    def slots_in_group(self, group: int) -> np.ndarray:
        """Return a mask of a group's slots, bool `(slots,)`."""
        return self._corpus.groups == group

    def products(self, vector: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return the inner products of a query's vector `(1, dim)` with those of some documents, float64 `(n,)`."""
        return inner_products(vector, self._corpus.vectors.rows[self.slots[documents]])[0]

    @cached_property
    def _neighbours(self) -> NeighbourBM25 | None:
        if not self._corpus.source_numbers:
            return None
        sources, chunks, positions = self._corpus.spans[self.slots].T
        return NeighbourBM25(sources, chunks, positions, self._lexical.lengths) if sources.any() else None

    @cached_property
    def _bm25(self) -> BM25:
        passages, total = effective_total(self._lexical.lengths)
        return BM25(self._lexical.lengths, passages / total if total else 0.0)

    def bm25_scores(self, query: Sequence[str]) -> LexicalScores:
        """Return BM25 of each document (layer two)."""
        matches = self._lexical.match_terms(query)
        scores, idf = self._bm25.scores(matches)
        scored = self._with_passages(query, scores, idf, self._bm25.inverse_mean)
        return scored if self._neighbours else scored._replace(confidence=self._confidence(matches, idf, SURE_WORDS))

    def _confidence(self, matches: TermMatches | None, idf: np.ndarray, sure_words: float) -> float:
        """Return the share by which words count: scaling makes the best match a 1 even where it shares a common word.

        They count fully where a document holds as much of the query as `sure_words` words that no other one holds, or
        as all words of a shorter query.
        """
        if matches is None:
            return 0.0
        unique_idf = np.log(1 + (len(self.slots) - 0.5) / 1.5)
        held = np.bincount(matches.documents, idf[matches.terms]).max()
        return min(1.0, held / (min(sure_words, len(matches.repeats)) * unique_idf))

    def _neighbour_scores(self, query: Sequence[str]) -> LexicalScores | None:
        """Return BM25 with the words of neighbouring spans; None without spans."""
        if self._neighbours is None:
            return None
        matches = self._lexical.match_terms(query)
        own_scores, own_idf = self._bm25.scores(matches)
        scores, idf = self._neighbours.scores(matches)
        related = self._neighbours.relatedness(matches)
        scores = related * scores + (1.0 - related) * own_scores
        scored = self._with_passages(query, scores, idf, self._neighbours.inverse_mean)
        scored = scored._replace(confidence=self._confidence(matches, own_idf, SURE_WORDS_OF_TURNS))
        # A long entry is searched without its neighbours.
        return scored._replace(own=np.where(np.isnan(scored.passages), own_scores, scored.scores))

    def _with_passages(
        self, query: Sequence[str], scores: np.ndarray, idf: np.ndarray, inverse_mean: float
    ) -> LexicalScores:
        """Score long documents by their best passage instead, in place."""
        numbers = np.full(len(scores), np.nan)
        matches = self._corpus.passages.match(query, self._lexical.document_of_slot) if len(idf) else None
        if matches is not None:
            documents, best, number = matches.best(idf, self._lexical.lengths, inverse_mean)
            scores[documents], numbers[documents] = best, number
        return LexicalScores(scores, numbers)

    def group_priors(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inner products with the mean of each group's vectors, and with what it is for, both `(size,)`."""
        contents = np.zeros(self.size)
        if self._is_whole:
            prototypes = self._corpus.prototypes.scores(vector)[0]
        else:
            prototypes = inner_products(vector, unit_directions(self._sums))[0]
        contents[: len(prototypes)] = prototypes
        return contents, self._corpus.description_scores(vector)


def score_documents(
    features: Features,
    options: SearchOptions,
    numbers: Callable[[str], np.ndarray],
    coverage: float = 1.0,
    uses_roles: bool = False,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Score documents for one query.

    Args:
        features: Raw parts of their scores.
        options: Options of the search.
        numbers: Returns a field of the entries as numbers, in the order of the features.
        coverage: Share of the query that the embedder knows, by which its part counts.
        uses_roles: True counts what an assistant said less on route "soft"; what asks always counts less there.

    Returns:
        Scores `(n,)`, and the values `(n,)` that explain them, by name; NaN where a document has no such part.
    """
    weights, dense, lexical = options.weights or {}, features.dense, features.lexical
    parts: dict[str, np.ndarray] = {}
    if dense is not None:
        parts["dense"] = dense
    if lexical is not None:
        parts["bm25"] = lexical.scores if lexical.own is None else lexical.own
        if lexical.own is not None:
            parts["around"] = lexical.scores - lexical.own
        if not np.isnan(lexical.passages).all():
            parts["passage"] = lexical.passages
    if dense is None or lexical is None:
        scores = None if lexical is None else lexical.scores
        terms = [values for values in (dense, scores) if values is not None]
    else:
        terms = [
            coverage**2 * weights.get("dense", 1.0) * scale(dense, features.score_ranges.get("dense")),
            lexical.confidence * weights.get("bm25", 1.0) * scale(lexical.scores, features.score_ranges.get("bm25")),
        ]
    for name, values in (("group", features.group), ("category", features.category)):
        if values is not None:
            parts[name] = values
            terms.append(coverage**2 * weights.get(name, 1.0) * values)
    named = (("role", ROLE_WEIGHT if uses_roles else 0.0), ("question", QUESTION_WEIGHT))
    for mask, (name, weight) in zip(features.marks.T, named, strict=True) if features.marks is not None else ():
        if weight and mask.any():
            parts[name] = np.where(mask, -1.0, np.nan)
            terms.append(-weights.get(name, weight) * mask)
    if options.boost is not None:
        boosts = options.boost.terms(numbers)
        parts |= boosts
        terms += boosts.values()
    return sum(terms[1:], terms[0]), parts


def explain(parts: dict[str, np.ndarray], indices: np.ndarray) -> list[dict[str, float]]:
    """Return the parts of some documents' scores by name, without those that a document lacks."""
    columns = [values[indices].tolist() for values in parts.values()]
    return [
        {name: value for name, value in zip(parts, row, strict=True) if value == value}  # NaN differs from itself
        for row in zip(*columns, strict=True)
    ]
