"""Vectors in FAISS by slot, and the prototypes (mean vectors) of groups.

A slot is a small integer that the caller gives out and may give out again after `remove`. The index is a cache: it
holds nothing that cannot be made again from the entries and the embedder.
"""

from __future__ import annotations

import faiss
import numpy as np

_FEW = 0.25  # of the rows
_BLOCK = 512  # rows whose sums are made together


class VectorIndex:
    """Exact inner-product index (FAISS flat) whose rows are slots; a removed slot's row is zero and can be reused."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._flat = faiss.IndexFlatIP(dim)
        self._rows: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """float32 `(slots, dim)`: FAISS's own storage, not a copy."""
        if self._rows is None or len(self._rows) != self._flat.ntotal:
            size = self._flat.ntotal
            flat = faiss.rev_swig_ptr(self._flat.get_xb(), size * self.dim) if size else np.zeros(0, np.float32)
            self._rows = flat.reshape(size, self.dim)
        return self._rows

    def set(self, slots: np.ndarray, vectors: np.ndarray) -> None:
        """Put `vectors` `(n, dim)` at `slots` `(n,)`; slots may lie beyond the end."""
        if not len(slots):
            return
        end = self._flat.ntotal
        beyond = int(slots.max()) + 1 - end
        if beyond == len(slots) and slots[0] == end and np.all(np.diff(slots) == 1):
            self._flat.add(np.ascontiguousarray(vectors, np.float32))
            return
        if beyond > 0:
            self._flat.add(np.zeros((beyond, self.dim), np.float32))
        self.rows[slots] = vectors

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

    def __init__(self, dim: int) -> None:
        self._sums = np.zeros((0, dim))
        self._index = VectorIndex(dim)
        self._stale: set[int] = set()

    def change(self, groups: np.ndarray, vectors: np.ndarray, sign: float) -> None:
        """Add (`sign` 1) vectors `(n, dim)` to the sums of their groups `(n,)`, or take them off (`sign` -1)."""
        if not len(groups):
            return
        beyond = int(groups.max()) + 1 - len(self._sums)
        if beyond > 0:
            self._sums = np.concatenate([self._sums, np.zeros((beyond, self._sums.shape[1]))])
        for start in range(0, len(groups), _BLOCK):
            some = groups[start : start + _BLOCK]
            touched = np.flatnonzero(np.bincount(some))
            members = (some == touched[:, None]).astype(np.float64)
            self._sums[touched] += sign * (members @ vectors[start : start + _BLOCK].astype(np.float64))
            self._stale.update(touched.tolist())

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Inner products `(queries, groups)` of the queries with the normalised means."""
        if self._stale:
            groups = np.array(sorted(self._stale))
            sums = self._sums[groups]
            norms = np.linalg.norm(sums, axis=1, keepdims=True)
            self._index.set(groups, np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), 0.0))
            self._stale.clear()
        return self._index.scores(queries)
