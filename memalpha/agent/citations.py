"""Replies that cite evidence: the reader's instruction and the reply parser.

A reply has three lines, each at most once and in any order: `Answer: ...`, `Evidence: [2], [5]` (numbers of the notes,
or `none`), `Reasoning: ...`. A line that is missing, empty or repeated is None. Evidence that is not a list of numbers
is None too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

INSTRUCTION = """\
Reply with three lines:
Answer: the answer (of a choice, its letter in brackets)
Evidence: the numbers of the notes that it rests on, as in [2], [5]; none where no note helps
Reasoning: why, in one sentence\
"""

_LINE = re.compile(r"^[ \t]*(answer|evidence|reasoning)[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_BETWEEN = re.compile(r"[\[\](),;.]|\band\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cited:
    """Three parts of a reply; None for a missing or invalid part.

    `evidence` holds the cited note numbers without duplicates.
    """

    answer: str | None
    evidence: tuple[int, ...] | None
    reasoning: str | None


def parse_cited(text: str) -> Cited:
    """Parse a reply into its parts; never raises."""
    lines_by_part: dict[str, list[str]] = {}
    for match in _LINE.finditer(text):
        lines_by_part.setdefault(match[1].lower(), []).append(match[2].strip())
    parts = {name: lines[0] for name, lines in lines_by_part.items() if len(lines) == 1 and lines[0]}
    return Cited(parts.get("answer"), _numbers(parts.get("evidence")), parts.get("reasoning"))


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = _BETWEEN.sub(" ", text).split()
    if [word.lower() for word in words] == ["none"]:
        return ()
    if not all(word.isascii() and word.isdecimal() and len(word) < 5 for word in words):
        return None
    return tuple(dict.fromkeys(map(int, words)))
