"""What a policy is (`load` loads one by name).

A policy samples completions for a batch of prompts. It knows nothing of stores, tools or rewards: the agent renders the
prompts and reads the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from memalpha.config import AgentConfig, ReaderConfig
from memalpha.types import Completion, SampleRequest

S = TypeVar("S", AgentConfig, ReaderConfig)

ADAPTER_CONFIG = "adapter_config.json"
"""A directory that holds this holds a LoRA adapter, and no model of its own."""

SHIPPED_POLICIES = ("babi", "tiny", "tiny-text")
"""Policies whose weights come with the package."""


_OPENAI_MODEL = re.compile(r"(gpt|chatgpt)-|o[1-9](-|$)", re.IGNORECASE)
_OTHER_HOSTED_MODEL = re.compile(r"(claude|gemini|mistral|deepseek|grok|command|sonar)-", re.IGNORECASE)


@runtime_checkable
class Policy(Protocol):
    """Samples tokens. `name` goes into reports and run directories."""

    name: str

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """One completion per request, in order.

        The sampled ids depend on the request alone (its messages, key, temperature), never on its neighbours in the
        batch; log-probs too, up to rounding, which may differ with the batch's shape. Raises `PolicyError` where the
        policy cannot answer.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Length of `text` in the policy's own tokens, special tokens not counted."""
        ...


def with_prompt_style(settings: S, policy: Policy) -> S:
    """The settings with the prompt style that `policy` was trained on, unless they set one."""
    if "prompt" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"prompt": getattr(policy, "prompt", "full")})


def endpoint_hint(name: str) -> str:
    """Return how a model behind an endpoint is named, with a suggestion if `name` looks like a provider's model."""
    hint = "A model behind an endpoint is written openai:MODEL or http://host/v1#model"
    if _OPENAI_MODEL.match(name):
        return f"{hint}: try openai:{name}"
    if _OTHER_HOSTED_MODEL.match(name):
        return f"{hint}: try https://HOST/v1#{name} with the provider's OpenAI-compatible address"
    return hint
