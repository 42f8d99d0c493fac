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

REFLECTION, RETRY = REFLECTION_PROMPT, RETRY_PROMPT

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
    """What a prompt or completion says: itself, or the content of the message that `asking` would replace, or last."""
    if isinstance(prompt, str):
        return prompt
    content = prompt[_place(prompt)].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def asking(prompt: Any, text: str) -> Any:
    """`text` in the place of what `prompt` says; the other messages of a conversation stay."""
    if isinstance(prompt, str):
        return text
    place = _place(prompt)
    return [{**message, "content": text} if at == place else dict(message) for at, message in enumerate(prompt)]


def _place(messages: Sequence[Mapping[str, Any]]) -> int:
    """Of the last user message, else of the last."""
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else len(messages) - 1


def advice(reply: Any) -> str:
    """What a reflection says: without thinking before it and white space around it."""
    text = text_of(reply)
    return text[after_thinking(text) :].strip()


class Number(float):
    """A reward in a template: short, unless the template says otherwise ({reward:.2f})."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


def listed(recalled: Sequence[str]) -> str:
    """Earlier advice as the reflection template shows it: a line each, after a heading; nothing without any."""
    lines = "".join(f"- {' '.join(text.split())}\n" for text in recalled)
    return f"Earlier advice that helped:\n{lines}" if lines else ""


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
