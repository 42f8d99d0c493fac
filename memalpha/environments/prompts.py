"""Prompts for reflection on a reply and for the retry (`algorithm: erl`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REFLECTION_PROMPT = (
    "{prompt}\n\nYour reply:\n{attempt}\n\nReward {reward}. {feedback}\n{memory}What should the next reply do "
    "differently? Answer in one or two sentences."
)
"""Replaces the task's last user message (`{prompt}`) for a reflection."""

RETRY_PROMPT = "{prompt}\n\nAdvice: {reflection}"
"""Replaces the task's last user message for the retry."""

Messages = tuple[Mapping[str, str], ...]


def with_advice(messages: Messages, advice: str, template: str | None = None) -> Messages:
    """Insert advice into the last user message; return the messages unchanged if there is none.

    Args:
        messages: The task's messages.
        advice: Result of the reflection, or "".
        template: Text with `{prompt}` and `{reflection}` (default: `RETRY_PROMPT`).
    """
    if not advice:
        return messages
    return _fill(messages, template or RETRY_PROMPT, {"reflection": advice})


def reflection_messages(
    messages: Messages,
    attempt: str,
    reward: float,
    feedback: str,
    earlier: Sequence[str],
    template: str | None = None,
) -> Messages:
    """Build the messages that ask for a reflection on a reply.

    Args:
        messages: The task's messages; the last user message is replaced.
        attempt: The reply.
        reward: Its reward.
        feedback: Description of its errors.
        earlier: Advice that helped before, in the order shown.
        template: Text with the fields of `REFLECTION_PROMPT` (default: `REFLECTION_PROMPT`).
    """
    memory = "".join(f"- {' '.join(text.split())}\n" for text in earlier)
    parts = {
        "attempt": attempt,
        "reward": f"{reward:g}",
        "feedback": feedback,
        "memory": f"Earlier advice that helped:\n{memory}" if memory else "",
    }
    return _fill(messages, template or REFLECTION_PROMPT, parts)


def _fill(messages: Messages, template: str, parts: Mapping[str, str]) -> Messages:
    """Replace the last user message by the template; inserted texts are not expanded again."""
    user_indices = [index for index, message in enumerate(messages) if message["role"] == "user"]
    index = user_indices[-1] if user_indices else len(messages) - 1
    values = {**parts, "prompt": messages[index]["content"]}
    text = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)
    return (*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :])
