"""Reduction as data: stream weights are divided once per optimizer step, then the loss is a plain sum.

Because the divisor is computed over all rows of the step before any forward pass, every split of these rows into
micro-batches, futures or processes gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from memalpha.train.samples import STREAMS, TrainingSample


def normalize(
    samples: Sequence[TrainingSample],
    how: Literal["constant", "token", "row"],
    constant: float = 16.0,
    *,
    ce: Literal["constant", "token", "row", "unit"] | None = None,
) -> list[TrainingSample]:
    """Divide each stream's weights, for the rows of ONE optimizer step.

    `constant`: by rows x `constant` (Dr. GRPO: no length bias); `token`: by the tokens the stream trains (DAPO, TRL's
    `dapo`); `row`: by rows x the row's own trained tokens (GRPO as published); `unit`: by the units that rows belong
    to. Rows, tokens and units of a stream are those whose weight is not zero, so a stream's strength does not depend
    on rows that only other streams train. `how` is that of policy gradient and KL, `ce` (default: the same) that of
    the cross-entropy; the entropy bonus and the value loss are means over tokens.
    """
    ways = {"pg": how, "kl": how, "ce": ce or how, "ent": "token", "vf": "token"}
    divided: list[dict[str, np.ndarray]] = [{} for _ in samples]
    for name in STREAMS:
        weights = [getattr(sample, name) for sample in samples]
        tokens = [0 if weight is None else int(np.count_nonzero(weight)) for weight in weights]
        rows = max(1, sum(count > 0 for count in tokens))
        units = len({sample.unit for sample, count in zip(samples, tokens, strict=True) if count})
        for place, weight, count in zip(divided, weights, tokens, strict=True):
            if weight is None:
                continue
            way = ways[name]
            if way == "constant":
                divisor = rows * constant
            elif way == "unit":
                divisor = max(1, units)
            else:
                divisor = max(1, sum(tokens)) if way == "token" else rows * max(1, count)
            place[name] = weight / np.float32(divisor)
    return [replace(sample, **streams) for sample, streams in zip(samples, divided, strict=True)]
