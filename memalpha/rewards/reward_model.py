"""Reward from a reward model (`kind: model`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.policy.load import load_reward_model
from memalpha.rewards.reply import reply_text


class ModelReward:
    """Score of the reward model at `path` (see `load_reward_model`).

    A score has no maximum, so it cannot mark a reply as correct. Add a part that can, with weight 0 if it should only
    be recorded.

    Args:
        path: Directory, run directory or hub id of the model.
        device: Torch device.
        chat: Turn a text prompt into one user message if the tokenizer has a chat template. Set False for a model
            trained on plain text.

    Raises:
        PolicyError: The model does not exist, or a prompt and its reply exceed its context.
    """

    name = "model"
    maximum = math.inf

    def __init__(self, path: str | Path, device: str = "cpu", chat: bool = True) -> None:
        self.model = load_reward_model(path, device=device)
        self.chat = chat and self.model.tokenizer.chat_template is not None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Return a score for each row.

        Args:
            prompts: Texts or lists of messages.
            completions: One per prompt.
            columns: Ignored.
        """
        if self.chat:
            prompts = [
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt for prompt in prompts
            ]
        return self.model.score(prompts, [reply_text(completion) for completion in completions])
