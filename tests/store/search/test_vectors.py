"""Vectors by slot and group prototypes."""

import numpy as np

from memalpha.store.search.vectors import Prototypes, VectorIndex, inner_products


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


def test_prototypes_are_mean_directions_of_the_members_left():
    vectors = unit([1, 0], [0, 1], [1, 1])
    prototypes = Prototypes(2)
    prototypes.change(np.array([0, 0, 1]), vectors, 1.0)
    query = unit([1, 0])
    assert np.allclose(prototypes.scores(query), [[0.70711, 0.70711]])
    prototypes.change(np.array([0]), vectors[1:2], -1.0)
    assert np.allclose(prototypes.scores(query), [[1.0, 0.70711]])
    prototypes.change(np.array([0]), vectors[:1], -1.0)
    assert np.allclose(prototypes.scores(query), [[0.0, 0.70711]])  # an empty group is near nothing


def test_a_product_does_not_depend_on_what_else_is_there() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        query, rows = (rng.normal(size=(number, 96)).astype(np.float32) for number in (1, 41))
        some = rng.permutation(41)[: rng.integers(1, 41)]
        full_index, part = inner_products(query, rows), inner_products(np.repeat(query, 2, 0), rows[some])
        assert (full_index[:, some] == part).all()


def test_room_beyond_the_rows_in_use_is_grown_into():
    index = VectorIndex(2)
    index.set(np.arange(40), np.repeat(unit([1, 0]), 40, axis=0))
    room = index.rows.base
    index.set(np.array([44]), unit([0, 1]))
    assert len(index.rows) == 45 and index.rows.base is room  # nothing was copied
    assert index.scores(unit([1, 0]))[0].tolist() == [1] * 40 + [0] * 5
    index.set(np.array([99]), unit([0, 1]))
    assert index.rows.base is not room and index.scores(unit([0, 1]))[0].nonzero()[0].tolist() == [44, 99]
