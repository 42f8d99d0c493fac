"""Speakers of a transcript in plain text: labels at the start of lines, in upper or lower case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from memalpha.store.search.ranking import ASSISTANTS
from memalpha.store.values import MINUTES
from memalpha.types import Chunk

USERS = frozenset(
    {"user", "human", "me", "you", "story", "usuario", "nutzer", "benutzer", "utilisateur", "用户", "ユーザー"}
)
"""Labels in lower case of a person without a name."""

_NO_PERSONS = ASSISTANTS | {"system", "developer", "tool", "function", "agent"}
_LABEL = re.compile(
    r"\s*(?:[-*>]+\s*)?(?:\[[^\]]*\]\s*)?\**([^\W\d][\w.'\u2019\u30fb-]*(?: [\w.'\u2019\u30fb-]+){0,2}?)(?: said)?"
    rf"\**\s*[:\uff1a](?!(?<=\d.){MINUTES})\**\s*"
)
_NAME = re.compile(r"[^\W\d_][\w'\u2019\u30fb-]*(?: [^\W\d_][\w.'\u2019\u30fb-]*){0,2}")
_NOT_SPEAKERS = frozenset(
    {"Note", "Notes", "Todo", "PS", "Warning", "Update", "Example", "Question", "Answer", "Reminder", "Edit", "Tip"}
    | {"Address", "Phone", "Email", "Subject", "Re", "Date", "Time", "Summary", "Context", "Background", "Input"}
    | {"Output", "Title", "Name", "Age", "Job", "City", "Task", "Error", "Step", "Result", "Total", "Price", "FYI"}
    | {"TLDR", "Fact"}
)


def is_assistant(speaker: str) -> bool:
    """Return True if a label names an assistant, a tool or a system, in any case."""
    return speaker.strip().lower() in _NO_PERSONS


def is_anonymous(speaker: str) -> bool:
    """Return True for no label, or a label such as `user`."""
    return speaker.strip().lower() in USERS or not speaker.strip()


def spoken_lines(chunk: Chunk) -> Iterator[tuple[str, str]]:
    """Yield (speaker, line) of a chunk; the speaker is "" if no label names one.

    In plain text a label holds for its line and for the unlabelled lines after it, up to the next label.
    """
    if chunk.text is None:
        for turn in chunk.turns:
            # A turn without a speaker of its own may hold a labelled line.
            for line in turn.text.splitlines():
                yield split_label(line) if not turn.speaker else (turn.speaker, line)
        return
    speaker = ""
    for line in chunk.text.splitlines():
        label, words = split_label(line)
        speaker = label or speaker
        yield speaker, words


@lru_cache(maxsize=512)  # a line of a chunk is mostly the content of a call, too
def split_label(line: str) -> tuple[str, str]:
    """Split `Ana: words` into speaker and words; the speaker is "" if the line has no label."""
    match = _LABEL.match(line)
    if match is None:
        return "", line.strip()
    label, words = match[1], line[match.end() :].strip()
    # A name has up to three words that begin with a capital, or with a letter of a script without capitals.
    has_capitals = not any(word[0].islower() for word in label.split())
    is_name = has_capitals and _NAME.fullmatch(label) is not None and label.split()[0] not in _NOT_SPEAKERS
    if is_assistant(label) or is_anonymous(label) or (words and is_name):
        return label, words
    return "", line.strip()
