"""Vectors by slot, and the prototypes (mean vectors) of groups.

A slot is a small integer that the caller assigns and may reuse after `remove`. The index is a cache: it can be rebuilt
from the entries and the embedder.
"""

from __future__ import annotations

from itertools import pairwise

import faiss
import numpy as np

_FEW = 0.25  # share of the rows
BLOCK = 512  # rows copied at a time


class VectorIndex:
    """Exact inner products (by FAISS) with vectors by slot.

    The vector of a removed slot is zero, and the slot can be reused.
    """

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
            return inner_products(queries, self.rows[slots])
        scores = inner_products(queries, self.rows)
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
        return self._index.scores(queries)
