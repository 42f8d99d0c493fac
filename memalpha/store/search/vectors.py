"""Vectors by slot, and the prototypes (mean vectors) of groups.

A slot is a small integer that the caller assigns and may reuse after `remove`. The index is a cache: it can be rebuilt
from the entries and the embedder.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import faiss
import numpy as np

_FEW = 0.25  # share of the rows
BLOCK = 512  # rows copied at a time
_DECODED = 256  # rows decoded at a time, so that they stay in the processor's cache

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def encode(vectors: np.ndarray, precision: Precision) -> np.ndarray:
    """Encode float32 vectors `(n, dim)` in a precision.

    An int8 row holds each number as a multiple of the row's largest / 127, and that step as float32 in four more
    columns. A row depends on its vector alone.
    """
    if precision != "int8":
        return vectors.astype(precision, copy=False)
    steps = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0).astype("<f4") / np.float32(127)
    codes = np.rint(vectors / np.where(steps > 0, steps, 1)).clip(-127, 127).astype(np.int8)
    return np.concatenate([codes, steps.astype("<f4").view(np.int8)], axis=1)


def decode(rows: np.ndarray) -> np.ndarray:
    """Decode rows of `encode` to float32 vectors `(n, dim)`."""
    if rows.dtype == np.float32:
        return rows
    if rows.dtype == np.float16:  # `astype` on the bits (for finite numbers), six times as fast
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
    """Inner products (by FAISS) with vectors by slot; exact for float32.

    The vector of a removed slot is zero, and the slot can be reused.
    """

    def __init__(
        self, dim: int, precision: Precision = "float32", storage: np.ndarray | None = None, size: int = 0
    ) -> None:
        self.precision: Precision = precision
        self._storage = encode(np.zeros((0, dim), np.float32), precision) if storage is None else storage
        self._size = size  # rows of the storage in use

    @property
    def rows(self) -> np.ndarray:
        """Encoded rows `(slots, ...)`: a view of the storage, not a copy."""
        return self._storage[: self._size]

    def vectors_at(self, slots: np.ndarray) -> np.ndarray:
        """Return a copy of the vectors at `slots` `(n,)`, decoded to float32 `(n, dim)`."""
        return decode(self.rows[slots])

    def set(self, slots: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Store `vectors` `(n, dim)` at `slots` `(n,)`, which may lie beyond the end; return them decoded."""
        rows = encode(vectors, self.precision)
        size = max(self._size, int(slots.max(initial=-1)) + 1)
        if size > len(self._storage):
            # Untouched zeros take no memory.
            room = np.zeros((max(32, size, len(self._storage) * 3 // 2), self._storage.shape[1]), self._storage.dtype)
            room[: self._size] = self.rows
            self._storage = room
        self._size = size
        self._storage[slots] = rows
        return decode(rows)

    def remove(self, slot: int) -> None:
        """Set the vector of a slot to zero."""
        self.rows[slot] = 0

    def scores(self, queries: np.ndarray, slots: np.ndarray | None = None) -> np.ndarray:
        """Return inner products with every row, or with those at `slots` `(n,)`: float64 `(queries, rows)`.

        Products are rounded to 5 decimals; those with a removed row are 0. FAISS computes each product separately,
        whereas the last bits of a BLAS product depend on the rest of the batch. Rounding removes the differences that a
        model's batching leaves. So ties are ties.
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
        """Return True if gathering the rows at `slots` costs less than the products with all rows."""
        return len(slots) < len(self.rows) * _FEW


def inner_products(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return inner products, float64 `(queries, rows)`, rounded to 5 decimals (see `VectorIndex.scores`)."""
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

    def __init__(self, dim: int, sums: np.ndarray | None = None) -> None:
        self.sums = np.zeros((0, dim)) if sums is None else sums  # float64 `(groups, dim)`
        self._index = VectorIndex(dim)
        self._stale = set(range(len(self.sums)))

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
        return self._index.scores(queries)
