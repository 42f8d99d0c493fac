"""Reduction as data: stream weights are divided once per optimizer step, then the loss is a plain sum.

Because the divisor is computed over all rows of the step before any forward pass, every split of these rows into
micro-batches, futures or processes gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from memalpha.train.samples import TrainingSample

STREAMS = ("pg", "ce", "kl")


def normalize(
    samples: Sequence[TrainingSample], how: Literal["constant", "token", "row"], constant: float = 16.0
) -> list[TrainingSample]:
    """Divide each stream's weights, for the rows of ONE optimizer step.

    `constant`: by rows x `constant` (Dr. GRPO: no length bias); `token`: by the tokens the stream trains (DAPO, TRL's
    `dapo`); `row`: by rows x the row's own trained tokens (GRPO as published). Rows and tokens of a stream are those
    whose weight is not zero, so a stream's strength does not depend on rows that only other streams train.
    """
    divisors: dict[str, list[float]] = {}
    for name in STREAMS:
        tokens = [int(np.count_nonzero(getattr(sample, name))) for sample in samples]
        rows = max(1, sum(count > 0 for count in tokens))
        if how == "constant":
            divisors[name] = [rows * constant] * len(samples)
        elif how == "token":
            divisors[name] = [float(max(1, sum(tokens)))] * len(samples)
        else:
            divisors[name] = [float(rows * max(1, count)) for count in tokens]
    return [
        replace(sample, **{name: getattr(sample, name) / np.float32(divisors[name][i]) for name in STREAMS})
        for i, sample in enumerate(samples)
    ]
