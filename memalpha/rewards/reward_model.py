"""What a reward model gives a reply (`kind: model`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.policy.load import load_reward_model
from memalpha.rewards.reply import reply_text


class ModelReward:
    """The score of the reward model at `path` (see `load_reward_model`), on a torch `device`.

    `chat`: a prompt that is a text is one user message, as the policy gets it (where the model's tokenizer has a chat
    template); False: the bare text, for a model that was trained on such. A score has no largest value, so no reply is
    `correct` by it: name a part that knows right from wrong too, with weight 0 if it is only to be recorded. Raises
    `PolicyError` for a model that is not there, and where a prompt and its reply are longer than it takes.
    """

    name = "model"
    maximum = math.inf

    def __init__(self, path: str | Path, device: str = "cpu", chat: bool = True) -> None:
        self.model = load_reward_model(path, device=device)
        self.chat = chat and self.model.tokenizer.chat_template is not None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """A score for each row."""
        if self.chat:
            prompts = [
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt for prompt in prompts
            ]
        return self.model.score(prompts, [reply_text(completion) for completion in completions])
