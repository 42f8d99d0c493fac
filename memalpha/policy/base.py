"""What a policy is, and how one is loaded by name.

A policy samples completions for a batch of prompts. It knows nothing of stores, tools or rewards: the agent renders the
prompts and reads the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from memalpha.config import AgentConfig, ReaderConfig
from memalpha.errors import PolicyError
from memalpha.types import Completion, SampleRequest

S = TypeVar("S", AgentConfig, ReaderConfig)


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


def in_own_style(settings: S, policy: Policy) -> S:
    """The settings with the prompt style that `policy` was trained on, unless they set one."""
    if "prompt" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"prompt": getattr(policy, "prompt", "full")})


def load_policy(name: str | Path) -> Policy:
    """A policy by name: "tiny" (shipped weights), "scripted:KIND", or a transformers directory or hub id.

    Raises `PolicyError` for a name that cannot be loaded here. Scripted policies need no torch.
    """
    text = str(name)
    if text.startswith("scripted:"):
        from memalpha.policy.scripted import ScriptedPolicy

        return ScriptedPolicy(text.removeprefix("scripted:"))
    if text.startswith(("openai:", "http://", "https://")):
        raise PolicyError(
            f"{text!r}: endpoints are not supported yet; give a transformers directory or hub id, or scripted:KIND"
        )
    try:
        from memalpha.policy.transformers_ import TransformersPolicy
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise PolicyError(
            f"policy {text!r} needs {error.name}: pip install 'memalpha[train]' (scripted:... policies need nothing)"
        ) from error
    if text == "tiny":
        with resources.as_file(resources.files("memalpha") / "weights" / "tiny") as path:
            if not path.is_dir():
                raise PolicyError("this installation lacks the tiny policy's weights: make them from scratch first")
            policy = TransformersPolicy.from_pretrained(path)
        policy.name = "tiny"
        return policy
    return TransformersPolicy.from_pretrained(name)
