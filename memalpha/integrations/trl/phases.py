"""Texts of ERL's phases: prompt templates, advice in a reflection, the memory of advice.

A filled template is one text. It replaces the prompt, or the last user message of a conversation. `{prompt}` is the
replaced text, `{attempt}` the completion, `{memory}` earlier advice with a heading, or nothing. The default templates
are those of memalpha's text tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.environments.engine import REFLECTION_PROMPT, RETRY_PROMPT
from memalpha.errors import ConfigError

REFLECTION_TEMPLATE, RETRY_TEMPLATE = REFLECTION_PROMPT, RETRY_PROMPT

TEMPLATE_FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "reflection_system_prompt": (frozenset({"prompt", "attempt"}), frozenset({"feedback", "reward", "memory"})),
    "retry_system_prompt": (frozenset({"prompt", "reflection"}), frozenset()),
}
"""Required and optional fields of each template, by setting."""


def template_fields(template: str) -> set[str]:
    """Return the field names of a template. Raises `ValueError` for a malformed one."""
    names = set()
    for _, name, spec, _ in Formatter().parse(template):
        if name is not None:
            names.add(name)
            names |= {inner for _, inner, _, _ in Formatter().parse(spec or "") if inner is not None}
    return names


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
    except (ValueError, TypeError) as error:
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
    content = prompt[_text_index(prompt)].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def replace_text(prompt: Any, text: str) -> Any:
    """Return `prompt` with `text` in place of `message_text(prompt)`; other messages stay."""
    if isinstance(prompt, str):
        return text
    index = _text_index(prompt)
    return [{**message, "content": text} if i == index else dict(message) for i, message in enumerate(prompt)]


def _text_index(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the last user message, or of the last message without one."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else len(messages) - 1


def extract_advice(reply: Any) -> str:
    """Return a reflection's text without thinking and surrounding white space."""
    text = message_text(reply)
    return text[after_thinking(text) :].strip()


class RewardNumber(float):
    """A reward in a template: short, unless the template has a format ({reward:.2f})."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


def format_advice(texts: Sequence[str]) -> str:
    """Format earlier advice for the reflection template: a heading and one line each; empty without advice."""
    lines = "".join(f"- {' '.join(text.split())}\n" for text in texts)
    return f"Earlier advice that helped:\n{lines}" if lines else ""


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
        """Add a text as the newest; an empty one is ignored."""
        if not text:
            return
        if text in self._texts:
            self._texts.remove(text)
        self._texts.append(text)
