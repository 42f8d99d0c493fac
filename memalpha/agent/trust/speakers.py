"""Whose words a tool call rests on: the speaker of the line that its content shares most words with.

Speakers come from the caller (`speaker=`), from the turns of a chunk, or from the labels of a plain text. A model's
reply never names one.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

from memalpha.agent.transcript import is_anonymous, is_assistant, split_label, spoken_lines
from memalpha.store.search.bm25 import words
from memalpha.types import Chunk

USER = "user"
"""Name of a person without a name: the role of a chat."""
NOBODY = "unknown"
"""Name under which a trust rule stores what nobody known said."""


class SpokenLine(NamedTuple):
    """Line of a chunk: its speaker, or None, and its words."""

    speaker: str | None
    words: frozenset[str]


class AttributedLines:
    """Lines of a chunk, found once for all calls of a reply.

    Args:
        chunk: The chunk.
        speaker: Person who said all of it, by the caller's word; None reads turns and labels. A line without a speaker
            has None.
    """

    def __init__(self, chunk: Chunk, speaker: str | None) -> None:
        if speaker is not None:
            spoken = [(speaker, chunk.render())]
        else:
            spoken = [(name or None, line) for name, line in spoken_lines(chunk) if line.strip()]
        self.words_by_text = {line: frozenset(words(line)) for _, line in spoken}
        self.lines = [SpokenLine(name, self.words_by_text[line]) for name, line in spoken]
        self.speakers_by_words: dict[frozenset[str], dict[str | None, None]] = defaultdict(dict)  # a set in order
        for line in self.lines:
            self.speakers_by_words[line.words][line.speaker] = None

    @cached_property
    def line_numbers(self) -> dict[str, list[int]]:
        """Numbers of the lines that have each word."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for number, line in enumerate(self.lines):
            for word in line.words:
                numbers[word].append(number)
        return numbers


def normalize_name(speaker: str | None) -> str | None:
    """Return a speaker's name for comparison: lower case, and `USER` for a person without a name."""
    if speaker is None or not speaker.strip():
        return None
    return USER if is_anonymous(speaker) else " ".join(speaker.lower().split())


def is_same(left: str | None, right: str | None) -> bool:
    """Return True if two speakers are known and have the same name."""
    name = normalize_name(left)
    return name is not None and name == normalize_name(right)


def attribute(content: str, chunk_lines: AttributedLines, *, owner: str = USER) -> tuple[str | None, str | None]:
    """Return whose right a content needs, and on whose word it is recorded.

    Lines are scored by the words that they share with the content, rare ones above all. The right is that of the best
    line's speaker; without shared words, and among equals, of the one of least rank (`rank`): a doubt gives no right.
    Recorded is the speaker of highest rank whose line shares half as many words as the best: who repeats another's
    statement does not become its author. Where lines have just the words of the content, they alone count.

    Args:
        content: What is to be written, or what is to be removed.
        chunk_lines: Lines of the chunk.
        owner: Person of the highest rank.
    """
    lines = chunk_lines.lines
    if not lines:
        return None, None
    statement = split_label(content)[1]
    terms = chunk_lines.words_by_text.get(statement) or frozenset(words(statement))
    if terms and (speakers := chunk_lines.speakers_by_words.get(terms)):
        if len(speakers) == 1:
            [speaker] = speakers
            return speaker, speaker
        return min(speakers, key=lambda name: rank(name, owner)), max(speakers, key=lambda name: rank(name, owner))
    weights: list[list[float]] = [[] for _ in lines]  # of the words that a line shares with the content
    for word in sorted(terms & chunk_lines.line_numbers.keys()):
        numbers = chunk_lines.line_numbers[word]
        for number in numbers:
            weights[number].append(1 / len(numbers))
    scores = [round(sum(values), 6) for values in weights]
    best = max(scores)
    names = [line.speaker for line in lines]
    nearest = [name for name, score in zip(names, scores, strict=True) if score == best]
    speaker = min(nearest, key=lambda name: rank(name, owner))
    most = max(map(len, weights))
    sources = [name for name, values in zip(names, weights, strict=True) if values and 2 * len(values) >= most]
    return speaker, max(sources, key=lambda name: rank(name, owner), default=speaker)


def rank(speaker: str | None, owner: str) -> int:
    """Return the rank of a speaker: 0 an assistant, 1 nobody known, 2 a person, 3 the owner."""
    if speaker is not None and is_assistant(speaker):
        return 0
    name = normalize_name(speaker)
    if name is None:
        return 1
    return 3 if name == normalize_name(owner) else 2


def statement_words(content: str) -> frozenset[str]:
    """Return the words of a statement without the label of its speaker."""
    return frozenset(words(split_label(content)[1]))
