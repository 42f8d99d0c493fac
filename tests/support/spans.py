"""Log-probs of a completion's spans against the weights that they name, computed from scratch in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def span_gaps(
    models: Mapping[int, Any],
    prompt: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float],
    spans: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> list[dict[int, float]]:
    """Return for each span, by step, the largest gap of its log-probs to those of that step's float64 model."""
    assert sum(count for _, count in spans) == len(ids) == len(logprobs)
    truth = {}
    for step, model in models.items():
        assert model.dtype == torch.float64
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        rows = torch.log_softmax(logits / temperature, -1)
        truth[step] = rows.gather(1, torch.tensor(ids)[:, None])[:, 0] - torch.tensor(logprobs)
    gaps, first = [], 0
    for _, count in spans:
        gaps.append({step: float(gap[first : first + count].abs().max()) for step, gap in truth.items()})
        first += count
    return gaps
