"""Vectors by slot, and the prototypes (mean vectors) of groups.

A slot is a small integer that the caller gives out and may give out again after `remove`. The index is a cache: it
holds nothing that cannot be made again from the entries and the embedder.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import faiss
import numpy as np

_FEW = 0.25  # of the rows
BLOCK = 512  # rows that are copied at once
_DECODED = 256  # rows that are made float32 at once: they stay in the processor's cache

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def encode(vectors: np.ndarray, precision: Precision) -> np.ndarray:
    """Vectors, float32 `(n, dim)`, as rows that are held: themselves; float16; or int8, each number as a multiple of
    the row's largest / 127, with that step as float32 in four more columns. A row depends on its vector alone."""
    if precision != "int8":
        return vectors.astype(precision, copy=False)
    steps = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0).astype("<f4") / np.float32(127)
    codes = np.rint(vectors / np.where(steps > 0, steps, 1)).clip(-127, 127).astype(np.int8)
    return np.concatenate([codes, steps.astype("<f4").view(np.int8)], axis=1)


def decode(rows: np.ndarray) -> np.ndarray:
    """The vectors that rows of `encode` stand for, float32 `(n, dim)`."""
    if rows.dtype == np.float32:
        return rows
    if rows.dtype == np.float16:  # `astype`, by its bits (finite numbers alone): six times as fast
        bits = rows.view(np.int16).astype(np.int32)
        bits <<= 13
        bits &= np.int32(-0x70002000)
        vectors = bits.view(np.float32)
        vectors *= np.float32(2.0**112)
        return vectors
    vectors = rows[:, :-4].astype(np.float32)
    vectors *= np.ascontiguousarray(rows[:, -4:]).view("<f4")
    return vectors


class VectorIndex:
    """Inner products (FAISS's) with vectors by slot, held in a precision; those of float32 are exact. The vector of a
    removed slot is zero, and the slot can be reused."""

    def __init__(
        self, dim: int, precision: Precision = "float32", room: np.ndarray | None = None, size: int = 0
    ) -> None:
        self.precision: Precision = precision
        self._room = encode(np.zeros((0, dim), np.float32), precision) if room is None else room
        self._size = size  # rows of the room that are in use

    @property
    def rows(self) -> np.ndarray:
        """`(slots, ...)` as `encode` gives them: the storage itself, not a copy."""
        return self._room[: self._size]

    def vectors_at(self, slots: np.ndarray) -> np.ndarray:
        """The vectors at `slots` `(n,)` as far as the precision goes: a copy, float32 `(n, dim)`."""
        return decode(self.rows[slots])

    def set(self, slots: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Put `vectors` `(n, dim)` at `slots` `(n,)`, which may lie beyond the end; returns what `at` gives then."""
        rows = encode(vectors, self.precision)
        size = max(self._size, int(slots.max(initial=-1)) + 1)
        if size > len(self._room):
            # Zeros that nobody has touched take no memory.
            room = np.zeros((max(32, size, len(self._room) * 3 // 2), self._room.shape[1]), self._room.dtype)
            room[: self._size] = self.rows
            self._room = room
        self._size = size
        self._room[slots] = rows
        return decode(rows)

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self.rows[slot] = 0

    def scores(self, queries: np.ndarray, slots: np.ndarray | None = None) -> np.ndarray:
        """Inner products with every row (0 for a removed one), or with those at `slots` `(n,)`: float64 `(queries,
        rows)`, to 5 decimals.

        FAISS computes each product by itself (a BLAS product's last bits would depend on what else is in the batch
        or the index), and rounding takes off what a model's own batching leaves: so ties are ties.
        """
        if slots is not None and self.should_gather(slots):
            return inner_products(queries, self.vectors_at(slots))
        if self.precision == "float32":
            scores = inner_products(queries, self.rows)
        else:
            blocks = [self.rows[start : start + _DECODED] for start in range(0, max(1, self._size), _DECODED)]
            scores = np.concatenate([inner_products(queries, decode(block)) for block in blocks], axis=1)
        return scores if slots is None else scores[:, slots]

    def should_gather(self, slots: np.ndarray) -> bool:
        """Whether slots are so few that gathering their rows costs less than the products with all."""
        return len(slots) < len(self.rows) * _FEW


def inner_products(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of queries with rows: float64 `(queries, rows)`, to 5 decimals (see `VectorIndex.scores`)."""
    if not len(rows):
        return np.zeros((len(queries), 0))
    # Not `pairwise_distances`, which is a BLAS product.
    left, right = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows, np.float32)
    products = np.empty((len(left), len(right)), np.float32)
    for query, line in zip(left, products, strict=True):
        pointers = map(faiss.swig_ptr, (line, query, right))
        faiss.fvec_inner_products_ny(*pointers, right.shape[1], len(right))  # pyright: ignore
    return np.round(products.astype(np.float64), 5)


def add_by_group(sums: np.ndarray, groups: np.ndarray, vectors: np.ndarray, sign: float = 1.0) -> None:
    """Add vectors `(n, dim)` to the sums, float64 `(groups, dim)`, of their groups `(n,)`, which must be in order; or
    take them off (`sign` -1)."""
    bounds = [0, *((groups[1:] != groups[:-1]).nonzero()[0] + 1).tolist(), len(groups)]
    for begin, end in pairwise(bounds):
        if begin < end:
            sums[groups[begin]] += sign * vectors[begin:end].sum(axis=0, dtype=np.float64)


def unit_directions(sums: np.ndarray) -> np.ndarray:
    """Sums of vectors `(n, dim)` as vectors of length 1; what is as good as nothing becomes the zero vector."""
    norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    return np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), 0.0).astype(np.float32)


class Prototypes:
    """The mean direction of each group's vectors, kept as running sums; searched through its own `VectorIndex`."""

    def __init__(self, dim: int, sums: np.ndarray | None = None) -> None:
        self.sums = np.zeros((0, dim)) if sums is None else sums  # float64 `(groups, dim)`
        self._index = VectorIndex(dim)
        self._stale = set(range(len(self.sums)))

    def change(self, groups: np.ndarray, vectors: np.ndarray, sign: float) -> None:
        """Add (`sign` 1) vectors `(n, dim)` to the sums of their groups `(n,)`, or take them off (`sign` -1)."""
        if not len(groups):
            return
        beyond = int(groups.max()) + 1 - len(self.sums)
        if beyond > 0:
            self.sums = np.concatenate([self.sums, np.zeros((beyond, self.sums.shape[1]))])
        for start in range(0, len(groups), BLOCK):
            some = groups[start : start + BLOCK]
            order = np.argsort(some, kind="stable")
            add_by_group(self.sums, some[order], vectors[start : start + BLOCK][order], sign)
        self._stale.update(np.flatnonzero(np.bincount(groups)).tolist())

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Inner products `(queries, groups)` of the queries with the normalised means."""
        if self._stale:
            groups = np.array(sorted(self._stale))
            self._index.set(groups, unit_directions(self.sums[groups]))
            self._stale.clear()
        return self._index.scores(queries)
