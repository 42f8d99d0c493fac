"""Reduction as data: stream weights are divided once per optimizer step, then the loss is a plain sum.

The divisor is computed over all rows of the step before any forward pass. So any split of these rows into
micro-batches, futures or processes gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from memalpha.train.data.samples import STREAMS, TrainingSample


@dataclass(frozen=True, slots=True)
class StreamCount:
    """Rows, tokens and units whose weight in a stream is not zero."""

    rows: int
    tokens: int
    units: int


def count_streams(samples: Sequence[TrainingSample]) -> dict[str, StreamCount]:
    """Count trained rows, tokens and units of each stream, by its name.

    Masked rows count as rows where others are trained by policy gradient or KL, as in TRL, but their tokens do not.
    """
    masked = sum(sample.masked for sample in samples)
    counts = {}
    for name in STREAMS:
        tokens = _trained_tokens(samples, name)
        units = len({sample.unit for sample, token_count in zip(samples, tokens, strict=True) if token_count})
        rows = sum(number > 0 for number in tokens)
        counts[name] = StreamCount(rows + (masked if rows and name in ("pg", "kl") else 0), sum(tokens), units)
    return counts


def has_weight(sample: TrainingSample) -> bool:
    """Return True if the row has a gradient: a weight in some stream, and an advantage in the policy gradient."""
    weights = (getattr(sample, name) for name in STREAMS if name != "pg")
    return bool((sample.pg * sample.advantages).any()) or any(weight is not None and weight.any() for weight in weights)


def _trained_tokens(samples: Sequence[TrainingSample], name: str) -> list[int]:
    weights = [getattr(sample, name) for sample in samples]
    return [0 if weight is None else int(np.count_nonzero(weight)) for weight in weights]


def normalize(
    samples: Sequence[TrainingSample],
    normalizer: Literal["constant", "token", "row"],
    constant: float = 16.0,
    *,
    ce_normalizer: Literal["constant", "token", "row", "unit"] | None = None,
) -> list[TrainingSample]:
    """Divide each stream's weights, for the rows of ONE optimizer step.

    Only rows, tokens and units with a non-zero weight count. So a stream's strength does not depend on rows that only
    other streams train. The entropy bonus and the value loss are always means over tokens.

    Args:
        samples: Rows of the step.
        normalizer: Divisor of policy gradient and KL. "constant": rows x `constant` (Dr. GRPO, no length bias);
            "token": trained tokens of the stream (DAPO, TRL's `dapo`); "row": rows x trained tokens of the row (GRPO as
            published).
        constant: Tokens per row for "constant".
        ce_normalizer: Divisor of the cross-entropy, by default `normalizer`; "unit" divides by the number of units.

    Returns:
        The rows with divided weights.
    """
    normalizers = {"pg": normalizer, "kl": normalizer, "ce": ce_normalizer or normalizer, "ent": "token", "vf": "token"}
    divided: list[dict[str, np.ndarray]] = [{} for _ in samples]
    counts = count_streams(samples)
    for name in STREAMS:
        rows, tokens, units = max(1, counts[name].rows), counts[name].tokens, counts[name].units
        for streams_of_row, sample, row_tokens in zip(divided, samples, _trained_tokens(samples, name), strict=True):
            weight, stream_normalizer = getattr(sample, name), normalizers[name]
            if weight is None:
                continue
            if stream_normalizer == "constant":
                divisor = rows * constant
            elif stream_normalizer == "unit":
                divisor = max(1, units)
            else:
                divisor = max(1, tokens) if stream_normalizer == "token" else rows * max(1, row_tokens)
            streams_of_row[name] = weight / np.float32(divisor)
    return [replace(sample, **streams) for sample, streams in zip(samples, divided, strict=True)]
