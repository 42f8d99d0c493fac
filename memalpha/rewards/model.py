"""What a reward model gives a reply (`kind: model`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.policy.base import load_reward_model
from memalpha.rewards.base import reply_text


class ModelReward:
    """The score of the reward model at `path` (see `load_reward_model`), on a torch `device`.

    A score has no largest value, so no reply is `correct` by it: put a part that knows right from wrong before it, with
    weight 0 if it is only to be recorded. Raises `PolicyError` for a model that is not there, and where a prompt and
    its reply are longer than it takes.
    """

    name = "model"
    maximum = math.inf

    def __init__(self, path: str | Path, device: str = "cpu") -> None:
        self.model = load_reward_model(path, device=device)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """A score for each row."""
        return self.model.score(prompts, [reply_text(completion) for completion in completions])
