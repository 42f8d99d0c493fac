"""Records and texts of ERL's phases on one generation batch: templates, attempts, advice, prompts, metrics.

A filled template is one text. It replaces the prompt, or the last user message of a conversation. `{prompt}` is the
replaced text, `{attempt}` the completion, `{memory}` earlier advice with a heading, or nothing. The default templates
are those of memalpha's text tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import torch

from memalpha.environments.engine import last_user_index, list_advice
from memalpha.errors import ConfigError, TrainingError
from memalpha.train.rollouts.reflection import extract_advice

TEMPLATE_FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "reflection_system_prompt": (frozenset({"prompt", "attempt"}), frozenset({"feedback", "reward", "memory"})),
    "retry_system_prompt": (frozenset({"prompt", "reflection"}), frozenset()),
}
"""Required and optional fields of each template, by setting."""


def template_fields(template: str) -> set[str]:
    """Return the field names of a template. Raises `ValueError` for a malformed one."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def check_template(setting: str, template: str, *, memory: bool = False) -> None:
    """Raise `ConfigError` for a template that cannot be filled or lacks a required field.

    Args:
        setting: Name of the setting, a key of `TEMPLATE_FIELDS`.
        template: The template.
        memory: Require the field `{memory}` too.
    """
    required, optional = TEMPLATE_FIELDS[setting]
    names = ", ".join(f"{{{name}}}" for name in sorted(required | optional))
    try:
        present = template_fields(template)
        if unknown := present - required - optional:
            raise ConfigError(
                f"{setting}: no field {{{min(unknown)}}}: it has {names} (a plain brace is written twice)"
            )
        template.format(**dict.fromkeys(required | optional, "") | {"reward": 0.0})
    except (ValueError, TypeError, LookupError) as error:  # LookupError: a field within a format
        raise ConfigError(
            f"{setting}: cannot be filled ({error}): it has {names}, a plain brace is written twice"
        ) from (error)
    if missing := (required | ({"memory"} if memory else set())) - present:
        hint = " (or set enable_memory=False)" if missing == {"memory"} else ""
        raise ConfigError(f"{setting}: lacks {{{min(missing)}}}: put it in{hint}")


def message_text(prompt: Any) -> str:
    """Return the text of a prompt or completion.

    That is the string itself, or the content of the message that `replace_text` would replace.
    """
    if isinstance(prompt, str):
        return prompt
    content = prompt[last_user_index(prompt)].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def replace_text(prompt: Any, text: str) -> Any:
    """Return `prompt` with `text` in place of `message_text(prompt)`; other messages stay."""
    if isinstance(prompt, str):
        return text
    index = last_user_index(prompt)
    return [{**message, "content": text} if i == index else dict(message) for i, message in enumerate(prompt)]


class RewardNumber(float):
    """A reward in a template: short, unless the template has a format ({reward:.2f})."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


class AdviceMemory:
    """At most `size` texts of helpful advice without duplicates, oldest first; repeated advice becomes the newest."""

    def __init__(self, size: int, texts: Sequence[str] = ()) -> None:
        self._texts: deque[str] = deque(texts, maxlen=size)

    def __len__(self) -> int:
        return len(self._texts)

    def newest(self, count: int) -> list[str]:
        """Return the last `count` texts, the newest last."""
        return list(self._texts)[-count:]

    def add(self, text: str) -> None:
        """Add a text as the newest."""
        if text in self._texts:
            self._texts.remove(text)
        self._texts.append(text)


@dataclass(frozen=True, slots=True)
class FirstAttempts:
    """First attempts of this process, as TRL sampled and scored them.

    Attributes:
        prompts: One prompt per row of this process.
        completions: Their completions: texts, or lists of messages.
        completion_ids: The sampled ids.
        rewards: Rewards (rows of all processes, reward functions).
    """

    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    rewards: torch.Tensor


@dataclass(frozen=True, slots=True)
class SampledCompletion:
    """One completion with its sampled ids, and with log-probs if the sampler returns them (vLLM)."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    completion: Any
    logprobs: Sequence[float] | None


@dataclass(slots=True)
class ReflectedAttempt:
    """A failed first attempt with its reflection and its second attempt (retry).

    Attributes:
        index: Row of the first attempt in this process's batch.
        before: Reward of the first attempt.
        feedback: Feedback text on the first attempt.
        reflection: The sampled reflection; None if its prompt has no room in the context.
        retry: The second attempt; None if its prompt has no room in the context.
        reward: Reward of the second attempt; NaN if unscored.
    """

    index: int
    before: float
    feedback: str = ""
    reflection: SampledCompletion | None = None
    retry: SampledCompletion | None = None
    reward: float = float("nan")

    @property
    def advice(self) -> str:
        """Text of the reflection without thinking; empty without a reflection."""
        return "" if self.reflection is None else extract_advice(message_text(self.reflection.completion))

    def summary(self) -> dict[str, Any]:
        """Return the values that all processes share: rewards, advice, tokens of the reflection."""
        tokens = 0 if self.reflection is None else len(self.reflection.completion_ids)
        return {"before": self.before, "after": self.reward, "advice": self.advice, "tokens": tokens}


def build_reflection_prompt(
    attempt: ReflectedAttempt,
    first: FirstAttempts,
    earlier_advice: Sequence[str],
    template: str,
    fits: Callable[[Any], bool],
) -> Any:
    """Build the prompt of a reflection.

    Args:
        attempt: The attempt to reflect on.
        first: First attempts of the batch.
        earlier_advice: Advice that helped before, oldest first; the oldest is dropped until the prompt fits.
        template: Reflection template.
        fits: Tells whether a prompt leaves room for a completion.

    Returns:
        The prompt, or None if it does not fit even without earlier advice.
    """
    prompt, remaining = first.prompts[attempt.index], list(earlier_advice)
    while True:
        text = template.format(
            prompt=message_text(prompt),
            attempt=message_text(first.completions[attempt.index]),
            feedback=attempt.feedback,
            reward=RewardNumber(attempt.before),
            memory=list_advice(remaining),
        )
        if fits(replace_text(prompt, text)):
            return replace_text(prompt, text)
        if not remaining:
            return None
        del remaining[0]


def build_retry_prompt(
    attempt: ReflectedAttempt, first: FirstAttempts, template: str, fits: Callable[[Any], bool]
) -> Any:
    """Build the prompt of a second attempt; without advice it is the original prompt.

    Args:
        attempt: The attempt with its reflection.
        first: First attempts of the batch.
        template: Retry template.
        fits: Tells whether a prompt leaves room for a completion.

    Returns:
        The prompt, or None if it does not fit.
    """
    prompt = first.prompts[attempt.index]
    if not attempt.advice:
        return prompt
    text = template.format(prompt=message_text(prompt), reflection=attempt.advice)
    return replace_text(prompt, text) if fits(replace_text(prompt, text)) else None


def check_feedback(texts: Any, count: int) -> Sequence[str]:
    """Return `texts` if it holds one text per attempt. Raises `TrainingError` otherwise."""
    if not isinstance(texts, list | tuple) or len(texts) != count:
        returned = len(texts) if isinstance(texts, list | tuple) else type(texts).__name__
        raise TrainingError(f"feedback_func: returned {returned} for {count} attempts; it must be a text for each")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TrainingError(f"feedback_func: returned {text!r} as number {number}, not a text ('' for none)")
    return texts
