"""Vectors by slot, and the prototypes (mean vectors) of groups.

A slot is a small integer that the caller gives out and may give out again after `remove`. The index is a cache: it
holds nothing that cannot be made again from the entries and the embedder.
"""

from __future__ import annotations

import faiss
import numpy as np

_FEW = 0.25  # of the rows
_BLOCK = 512  # rows whose sums are made together


class VectorIndex:
    """Exact inner products (FAISS's) with rows by slot; a removed slot's row is zero and can be reused."""

    def __init__(self, dim: int, rows: np.ndarray | None = None) -> None:
        self.dim = dim
        self._room = np.zeros((0, dim), np.float32) if rows is None else rows
        self._size = len(self._room)

    @property
    def rows(self) -> np.ndarray:
        """float32 `(slots, dim)`: the storage itself, not a copy."""
        return self._room[: self._size]

    def set(self, slots: np.ndarray, vectors: np.ndarray) -> None:
        """Put `vectors` `(n, dim)` at `slots` `(n,)`; slots may lie beyond the end."""
        if not len(slots):
            return
        size = max(self._size, int(slots.max()) + 1)
        if size > len(self._room):
            # Zeros that nobody has touched take no memory.
            room = np.zeros((max(32, size, len(self._room) * 3 // 2), self.dim), np.float32)
            room[: self._size] = self.rows
            self._room = room
        self._size = size
        self._room[slots] = vectors

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self.rows[slot] = 0.0

    def scores(self, queries: np.ndarray, slots: np.ndarray | None = None) -> np.ndarray:
        """Inner products with every row (0 for a removed one), or with those at `slots` `(n,)`: float64 `(queries,
        rows)`, to 5 decimals.

        FAISS computes each product by itself (a BLAS product's last bits would depend on what else is in the batch
        or the index), and rounding takes off what a model's own batching leaves: so ties are ties.
        """
        rows = self.rows
        few = slots is not None and len(slots) < len(rows) * _FEW  # else gathering rows costs more than their products
        if few:
            rows = rows[slots]
        if not len(rows):
            return np.zeros((len(queries), 0))
        products = faiss.pairwise_distances(queries, rows, metric=faiss.METRIC_INNER_PRODUCT)
        if slots is not None and not few:
            products = products[:, slots]
        return np.round(products.astype(np.float64), 5)


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
        for start in range(0, len(groups), _BLOCK):
            some = groups[start : start + _BLOCK]
            touched = np.flatnonzero(np.bincount(some))
            members = (some == touched[:, None]).astype(np.float64)
            self.sums[touched] += sign * (members @ vectors[start : start + _BLOCK].astype(np.float64))
            self._stale.update(touched.tolist())

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Inner products `(queries, groups)` of the queries with the normalised means."""
        if self._stale:
            groups = np.array(sorted(self._stale))
            sums = self.sums[groups]
            norms = np.linalg.norm(sums, axis=1, keepdims=True)
            self._index.set(groups, np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), 0.0))
            self._stale.clear()
        return self._index.scores(queries)
