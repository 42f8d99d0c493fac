"""A row whose arrays do not fit its completion is refused where it is made: custom algorithms make rows, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memalpha.train.data.samples import STREAMS, TrainingSample

ARRAYS = ("logprobs", "advantages", "reference", "values", "returns", *STREAMS)
ROW = TrainingSample((1, 2), (3, 4, 5), **dict.fromkeys(ARRAYS, np.zeros(3, dtype=np.float32)))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("shape", [(2,), (4,), (1, 3), ()])
def test_an_array_of_another_length_is_refused(name, shape):
    with pytest.raises(ValueError, match=rf"{name} has shape .*, the completion has 3 tokens"):
        replace(ROW, **{name: np.zeros(shape, dtype=np.float32)})
