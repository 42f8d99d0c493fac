"""Compare normalized short texts, test token containment, detect abstentions."""

from __future__ import annotations

import re

from memalpha.store.slots import normalize

_ABSTENTIONS = frozenset(
    ("unknown", "none", "not known", "not sure", "no answer", "na", "no information", "not available", "unanswerable")
)
_ABSTAINING_PHRASES = re.compile(
    r"\b(?:(?:i|we) (?:dont|do not|cannot|cant) (?:know|say|tell|answer|determine)"
    r"|(?:is|are|was|were) (?:unknown|not (?:known|mentioned|stated|specified|provided|available|given))"
    r"|no information(?: is| was)? (?:available|given|provided|found|about|on)"
    r"|not mentioned|not enough information|cannot be (?:determined|answered|known)"
    r"|not (?:stated|specified|provided) in)\b"
)


def is_same(left: str, right: str) -> bool:
    """Return True if two texts are equal after `normalize` and not empty."""
    return bool(normalize(left)) and normalize(left) == normalize(right)


def contains(text: str, part: str) -> bool:
    """Return True if `text` contains `part` as a run of whole normalized tokens.

    An empty part is never contained.
    """
    needle = normalize(part)
    return bool(needle) and f" {needle} " in f" {normalize(text)} "


def is_abstention(answer: str) -> bool:
    """Return True if an answer says that it does not know.

    An empty answer is not an abstention.
    """
    plain = normalize(answer)
    return plain in _ABSTENTIONS or bool(_ABSTAINING_PHRASES.search(plain))
