"""What reflection on a reply, and the second reply, are asked (`algorithm: erl`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REFLECTION_PROMPT = (
    "{prompt}\n\nYour reply:\n{attempt}\n\nReward {reward}. {feedback}\n{memory}What should the next reply do "
    "differently? Answer in one or two sentences."
)
"""In the place of the task's last user message (`{prompt}`), where a reply is looked at again."""

RETRY_PROMPT = "{prompt}\n\nAdvice: {reflection}"
"""In the place of the task's last user message, for the second reply."""

Messages = tuple[Mapping[str, str], ...]


def with_advice(messages: Messages, advice: str, template: str | None = None) -> Messages:
    """The messages with advice in the last one of the user's; as they are without any."""
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
    """What a reflection is asked: the prompt, the reply, what it earned, what was wrong, advice that helped before."""
    memory = "".join(f"- {' '.join(text.split())}\n" for text in earlier)
    parts = {
        "attempt": attempt,
        "reward": f"{reward:g}",
        "feedback": feedback,
        "memory": f"Earlier advice that helped:\n{memory}" if memory else "",
    }
    return _fill(messages, template or REFLECTION_PROMPT, parts)


def _fill(messages: Messages, template: str, parts: Mapping[str, str]) -> Messages:
    """The last user message replaced by the template; nothing that is put in is read as a template again."""
    user_indices = [index for index, message in enumerate(messages) if message["role"] == "user"]
    index = user_indices[-1] if user_indices else len(messages) - 1
    values = {**parts, "prompt": messages[index]["content"]}
    text = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)
    return (*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :])
