"""The words of ERL's phases: templates and how they are filled, advice out of a reflection, the reflection memory.

A template is filled to one text, which stands in the place of the prompt, or, in a conversation, of its last user
message; `{prompt}` is what stood there. `{attempt}` is the completion, `{memory}` earlier advice with a heading, or
nothing. The default templates are those of memalpha's own text tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from memalpha.agent.parsing import after_thinking
from memalpha.environments.prompts import REFLECTION_PROMPT, RETRY_PROMPT
from memalpha.errors import ConfigError

REFLECTION_TEMPLATE, RETRY_TEMPLATE = REFLECTION_PROMPT, RETRY_PROMPT

TEMPLATE_FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "reflection_system_prompt": (frozenset({"prompt", "attempt"}), frozenset({"feedback", "reward", "memory"})),
    "retry_system_prompt": (frozenset({"prompt", "reflection"}), frozenset()),
}
"""By setting: the fields that a template must have, and those it may have."""


def template_fields(template: str) -> set[str]:
    """The names of a template's fields. Raises `ValueError` for one that is not well formed."""
    names = set()
    for _, name, spec, _ in Formatter().parse(template):
        if name is not None:
            names.add(name)
            names |= {inner for _, inner, _, _ in Formatter().parse(spec or "") if inner is not None}
    return names


def check_template(setting: str, template: str, *, memory: bool = False) -> None:
    """Raise `ConfigError` for a template that cannot be filled, or lacks what it is for; `memory`: it must show it."""
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
    """What a prompt or completion says: itself, or the content of the message that `asking` would replace, or last."""
    if isinstance(prompt, str):
        return prompt
    content = prompt[_text_index(prompt)].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def replace_text(prompt: Any, text: str) -> Any:
    """`text` in the place of what `prompt` says; the other messages of a conversation stay."""
    if isinstance(prompt, str):
        return text
    index = _text_index(prompt)
    return [{**message, "content": text} if i == index else dict(message) for i, message in enumerate(prompt)]


def _text_index(messages: Sequence[Mapping[str, Any]]) -> int:
    """Of the last user message, else of the last."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else len(messages) - 1


def extract_advice(reply: Any) -> str:
    """What a reflection says: without thinking before it and white space around it."""
    text = message_text(reply)
    return text[after_thinking(text) :].strip()


class RewardNumber(float):
    """A reward in a template: short, unless the template says otherwise ({reward:.2f})."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


def format_advice(texts: Sequence[str]) -> str:
    """Earlier advice as the reflection template shows it: a line each, after a heading; nothing without any."""
    lines = "".join(f"- {' '.join(text.split())}\n" for text in texts)
    return f"Earlier advice that helped:\n{lines}" if lines else ""


class AdviceMemory:
    """Advice that has helped, oldest first: at most `size`, none of it twice; what helps again is new again."""

    def __init__(self, size: int, texts: Sequence[str] = ()) -> None:
        self._texts: deque[str] = deque(texts, maxlen=size)

    def __len__(self) -> int:
        return len(self._texts)

    def newest(self, count: int) -> list[str]:
        """The last `count`, the newest last."""
        return list(self._texts)[-count:]

    def add(self, text: str) -> None:
        """Put advice in, if there is any in it."""
        if not text:
            return
        if text in self._texts:
            self._texts.remove(text)
        self._texts.append(text)
