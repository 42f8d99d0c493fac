"""Vectors by slot and group prototypes."""

import numpy as np

from memalpha.store.search.ranking import VectorIndex


def unit(*rows):
    rows = np.array(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_slots_are_set_removed_and_reused():
    index = VectorIndex(3)
    query = unit([1, 0, 0])
    assert index.scores(query).shape == (1, 0)
    index.set(np.array([0, 2]), unit([1, 0, 0], [0, 1, 0]))
    assert index.scores(query).tolist() == [[1, 0, 0]]
    index.set(np.array([1]), unit([1, 1, 0]))
    assert index.scores(query).tolist() == [[1, 0.70711, 0]]
    index.remove(0)
    assert index.scores(query).tolist() == [[0, 0.70711, 0]]
    index.set(np.array([0]), unit([-1, 0, 0]))
    assert index.scores(query).tolist() == [[-1, 0.70711, 0]]
