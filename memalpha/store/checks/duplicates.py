"""Duplicates among live entries: by text, by words, and by meaning."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from memalpha.store.checks.findings import Finding
from memalpha.store.checks.slot_checks import plain
from memalpha.store.search.bm25 import words
from memalpha.store.slots import key_value
from memalpha.store.values import normalize
from memalpha.types import MemoryEntry

CONTAINED = 0.85
"""Cosine from which two entries are near if one has all words of the other."""
_BLOCK = 2**25  # similarities in memory at a time
_NEGATIONS = {"not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot"}


def find_duplicates(entries: Sequence[MemoryEntry], vectors: np.ndarray, near: float) -> list[Finding]:
    """Return a finding for each group of entries that say the same.

    Args:
        entries: Live entries.
        vectors: Their unit vectors, float32 `(len(entries), dim)`.
        near: Cosine from which two entries mean the same.
    """
    findings = []
    heads: list[int] = []  # index of one entry of each text, then of each set of words
    for reason, message, group_key in (
        ("text", "the same but for case, spacing and closing marks", _text_key),
        ("words", "the same words", _words_key),
    ):
        groups: dict[object, list[int]] = {}
        for index in heads or range(len(entries)):
            groups.setdefault(group_key(entries[index].content, index), []).append(index)
        for indices in groups.values():
            if len(indices) > 1:
                findings.append(Finding("duplicate", reason, message, tuple(entries[index] for index in indices)))
        heads = [indices[0] for indices in groups.values()]
    return findings + _find_near(entries, vectors, sorted(heads), near)


def _text_key(content: str, index: int) -> object:
    return plain(content)


def _words_key(content: str, index: int) -> object:
    """Return the sorted words of a content, of slot and value apart; the index where there are no words.

    Values with marks (3.5, C++) belong to the key, because the words of search are without marks.
    """
    parts = key_value(content) or (content,)
    sorted_words = tuple(tuple(sorted(words(part))) for part in parts)
    marked = sorted(filter(_is_marked, normalize(content).split()))
    return (sorted_words, *marked) if all(sorted_words) else index


def _is_marked(word: str) -> bool:
    """Return True if a normalized word has a digit or a mark: it is a number, or a name such as C++."""
    return any(unicodedata.category(char)[0] in "NPS" for char in word)


def _find_near(entries: Sequence[MemoryEntry], vectors: np.ndarray, heads: list[int], near: float) -> list[Finding]:
    """Return groups of entries in which each is near to some other one.

    Groups are the connected components of the pairs, merged by union-find over positions in `heads`.
    """
    contents = [entries[index].content for index in heads]
    word_sets = [frozenset(words(content)) for content in contents]
    slots = [key_value(content) for content in contents]
    distinctive, all_words = zip(*map(_distinctive_words, contents), strict=True) if contents else ((), ())
    rows = vectors[heads] if heads else np.zeros((0, 1), np.float32)
    parents, lowest = list(range(len(heads))), {}

    def root_of(node: int) -> int:
        while parents[node] != node:
            node = parents[node]
        return node

    size = max(1, _BLOCK // max(1, len(heads)))
    for start in range(0, len(heads), size):
        scores = rows[start : start + size] @ rows[start:].T
        for row, column in np.argwhere(np.triu(scores >= min(CONTAINED, near), 1)).tolist():
            left, right, score = start + row, start + column, float(scores[row, column])
            if score < near and not (word_sets[left] <= word_sets[right] or word_sets[right] <= word_sets[left]):
                continue
            if slots[left] or slots[right]:
                continue
            if not (distinctive[left] <= all_words[right] and distinctive[right] <= all_words[left]):
                continue
            first, second = sorted((root_of(left), root_of(right)))
            parents[second] = first
            lowest[first] = min(score, lowest.get(first, 1.0), lowest.pop(second, 1.0))
    members: dict[int, list[int]] = {}
    for node in range(len(heads)):
        members.setdefault(root_of(node), []).append(node)
    return [
        Finding(
            "duplicate",
            "meaning",
            f"near: cosine {lowest[root]:.2f}",
            tuple(entries[heads[node]] for node in nodes),
        )
        for root, nodes in members.items()
        if len(nodes) > 1
    ]


def _distinctive_words(content: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words that make a fact another one, and all words, in lower case.

    Distinctive are numbers, words with marks (C++), negations and names: words with a capital that do not begin the
    content.
    """
    tokens = [word.strip("\"'.,;:!?()[]").replace("\u2019", "'").removesuffix("'s") for word in content.split()]
    distinctive = frozenset(
        word.lower()
        for index, word in enumerate(tokens)
        if word.lower() in _NEGATIONS
        or word.lower().endswith("n't")
        or _is_marked(normalize(word))
        or (index > 0 and word[:1].isupper() and word != "I")
    )
    return distinctive, frozenset(map(str.lower, tokens))
