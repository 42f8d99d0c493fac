"""What kind of turn a raw span is: an assistant's, or a question.

What people ask of a memory was mostly said by themselves. An assistant's replies are longer and repeat their words, so
they crowd them out. The default search counts them less (`ranking.ROLE_WEIGHT`), unless the question is about what the
assistant said. A turn that asks has the words of a question and seldom its answer, which follows: it counts less, too.
"""

from __future__ import annotations

import re

ASSISTANTS = frozenset(
    {"assistant", "ai", "bot", "chatbot", "model", "chatgpt", "gpt", "claude", "gemini", "copilot", "asistente"}
    | {"assistent", "assistente", "助手", "アシスタント", "ассистент"}
)
"""Labels in lower case of an assistant in a chat."""

_LABEL = re.compile(rf"(?:\d{{1,2}} \w+ \d{{4}} )?(?:{'|'.join(sorted(ASSISTANTS))})\s*[:\uff1a]", re.IGNORECASE)
_SAID = (
    "said|told|gave|suggested|recommended|advised|proposed|explained|described|listed|mentioned|provided|wrote|answered"
    "|replied|showed|offered|outlined|promised"
)
_ABOUT_ASSISTANT = re.compile(
    rf"\b(?:did|had|have|were) you\b|\byou(?: had| have|['\u2019](?:d|ve))? (?:{_SAID})\b|\b(?:assistant|chatbot)\b"
    r"|\byour (?:\w+ )?(?:suggestion|recommendation|advice|answer|reply|response|explanation|proposal|instruction)s?\b",
    re.IGNORECASE,
)


def is_assistants(text: str) -> bool:
    """Return True if a raw span is an assistant's, by its label (`assistant: ...`) at the start or after a date."""
    return _LABEL.match(text) is not None


def is_question(text: str) -> bool:
    """Return True if a text ends with a question mark of any script."""
    return text.rstrip().endswith(("?", "\uff1f", "\u061f", "\u037e"))


def asks_for_assistants(query: str) -> bool:
    """Return True if a question in English is about what an assistant said: "What did you recommend?"."""
    return _ABOUT_ASSISTANT.search(query) is not None
