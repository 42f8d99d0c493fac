"""A row whose arrays do not fit its completion is refused where it is made: custom algorithms make rows, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.train.data.samples import (
    STREAMS,
    TrainingSample,
    balance_micro_batches,
    padded_tokens,
    split_micro_batches,
)

ARRAYS = ("logprobs", "advantages", "reference", "values", "returns", *STREAMS)
ROW = TrainingSample((1, 2), (3, 4, 5), **dict.fromkeys(ARRAYS, np.zeros(3, dtype=np.float32)))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("shape", [(2,), (4,), (1, 3), ()])
def test_an_array_of_another_length_is_refused(name, shape):
    with pytest.raises(ValueError, match=rf"{name} has shape .*, the completion has 3 tokens"):
        replace(ROW, **{name: np.zeros(shape, dtype=np.float32)})


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 5))
def test_balanced_micro_batches_hold_every_row_once_and_never_wait_longer(lengths, processes):
    arrays = dict.fromkeys(ARRAYS, np.zeros(1, dtype=np.float32))
    samples = [TrainingSample((number,) * length, (0,), **arrays) for number, length in enumerate(lengths)]
    parts = split_micro_batches(samples, 100)

    def size(part):
        return padded_tokens(samples, part)

    def time(parts):
        """Return the tokens of the largest micro-batch of each round, summed."""
        sizes = [size(part) for part in parts]
        return sum(max(sizes[first : first + processes]) for first in range(0, len(sizes), processes))

    balanced = balance_micro_batches(parts, processes, size)
    assert sorted(index for part in balanced for index in part) == list(range(len(samples)))
    assert time(balanced) <= time(parts)
    if processes == 1:
        assert balanced == parts
    else:
        assert size(balanced[0]) == max(map(size, balanced)) <= max(map(size, parts))
        last = balanced[len(balanced) // processes * processes :]
        assert all(len(part) == 1 for part in last)
