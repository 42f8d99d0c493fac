"""The words of ERL's phases: templates and how they are filled, advice out of a reflection, the reflection memory.

A template is filled to one text. For a plain prompt that text is the new prompt; for a conversation it is its one user
message, after the conversation's own system message, if it has one: every chat template takes that. `{prompt}` is then
what the user said, or, of a longer conversation, all its messages with their roles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.errors import ConfigError

REFLECTION = """Below are a task, an attempt at it, and what was said about the attempt. Say in a few sentences what \
went wrong and what to do instead, so that the next attempt at the task succeeds.

Task:
{prompt}

Attempt:
{attempt}

Feedback:
{feedback}

Reward: {reward}

Advice that has helped before:
{memory}"""

RETRY = """{prompt}

Advice for this task, from an earlier attempt at it:
{reflection}"""

FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "reflection_system_prompt": (frozenset({"prompt", "attempt"}), frozenset({"feedback", "reward", "memory"})),
    "retry_system_prompt": (frozenset({"prompt", "reflection"}), frozenset()),
}
"""By setting: the fields that a template must have, and those it may have."""


def fields(template: str) -> set[str]:
    """The names of a template's fields. Raises `ValueError` for one that is not well formed."""
    found = set()
    for _, name, spec, _ in Formatter().parse(template):
        if name is not None:
            found.add(name)
            found |= {inner for _, inner, _, _ in Formatter().parse(spec or "") if inner is not None}
    return found


def check_template(setting: str, template: str, *, memory: bool = False) -> None:
    """Raise `ConfigError` for a template that cannot be filled, or lacks what it is for; `memory`: it must show it."""
    needed, others = FIELDS[setting]
    names = ", ".join(f"{{{name}}}" for name in sorted(needed | others))
    try:
        found = fields(template)
        if unknown := found - needed - others:
            raise ConfigError(
                f"{setting}: no field {{{min(unknown)}}}: it has {names} (a plain brace is written twice)"
            )
        template.format(**dict.fromkeys(needed | others, "") | {"reward": 0.0})
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{setting}: cannot be filled ({error}): it has {names}, a plain brace is written twice"
        ) from (error)
    if missing := (needed | ({"memory"} if memory else set())) - found:
        hint = " (or set enable_memory=False)" if missing == {"memory"} else ""
        raise ConfigError(f"{setting}: lacks {{{min(missing)}}}: put it in{hint}")


def text_of(prompt: Any) -> str:
    """A prompt or completion as text: itself, or the messages that are not the system's."""
    if isinstance(prompt, str):
        return prompt
    said = [(message["role"], _content(message)) for message in prompt if message["role"] != "system"]
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in said)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def asking(prompt: Any, text: str) -> Any:
    """`text` as a prompt of the same kind as `prompt`, whose system message it keeps."""
    if isinstance(prompt, str):
        return text
    return [*(dict(message) for message in prompt if message["role"] == "system"), {"role": "user", "content": text}]


def advice(reply: Any) -> str:
    """What a reflection says: without thinking before it and white space around it."""
    text = text_of(reply)
    return text[after_thinking(text) :].strip()


def listed(recalled: Sequence[str]) -> str:
    """Advice as the reflection template shows it."""
    return "\n".join(f"- {text}" for text in recalled) or "(none yet)"


class Reflections:
    """Advice that has helped, oldest first: at most `size`, none of it twice; what helps again is new again."""

    def __init__(self, size: int, kept: Sequence[str] = ()) -> None:
        self._kept: deque[str] = deque(kept, maxlen=size)

    def __len__(self) -> int:
        return len(self._kept)

    def newest(self, count: int) -> list[str]:
        """The last `count`, the newest last."""
        return list(self._kept)[-count:]

    def keep(self, text: str) -> None:
        """Put advice in, if there is any in it."""
        if not text:
            return
        if text in self._kept:
            self._kept.remove(text)
        self._kept.append(text)
