"""Find the words of a passage that answer a question, without a language model.

A small network gives each word a chance to belong to the answer, from how the words around it look and whether the
question has them. The answer is the span with the best expected token F1: twice the sum of its chances, by the number
of its words and the sum of all chances. `scripts/make_answer_spans.py` trained the network on half of XQuAD's
articles in eleven languages and on FriendsQA's development episodes. It sees no word, only signs of its kind, so other
languages fare alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memalpha.store.search.lexical import SIGNS, STOP_WORDS, UNSPACED, words

WEIGHTS = Path(__file__).parents[1] / "weights" / "spans" / "spans.npz"
SHORT, LONGEST = 20, 200
"""Words of a passage that is read whole, and of the longest part that is read of a longer one."""

_CHARACTER = f"(?![\uac00-\ud7af]){UNSPACED.pattern}"  # Hangul has spaces
_WORD = re.compile(rf"{_CHARACTER}|(?:(?!{_CHARACTER})[\w{SIGNS}'\u2019-])+")
_SENTENCE_END = re.compile("(?<=[.!?\u0964])\\s+|(?<=[\u3002\uff01\uff1f])|[\\[\\]]")
_PAUSE = re.compile("[,.;:!?\u3001\uff0c\u3002\uff1a\uff1b\u0964]\\s*$")
_OPENING = re.compile('["\u201c\u201e\u00ab\u300c\u300e(\uff08]\\s*$')
_ASKED = tuple(  # for a number or a time, a person, a place, a reason or a manner
    re.compile(cue, re.IGNORECASE)
    for cue in (
        r"\bhow (?:many|much|old|long|far|tall|high|big|often)\b|\bwhen\b"
        r"|\b(?:what|which) (?:percent|year|number|time|age|date|day)",
        r"\bwho(?:se|m)?\b",
        r"\bwhere\b",
        r"\bwhy\b|\bhow (?:do|did|does|is|was|are|can|could|would)\b",
    )
)
_NUMBER = re.compile(
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand|million|half|first"
    r"|second|third)$",
    re.IGNORECASE,
)
_NEAR, _WINDOW = 15, 17
_KNOWN, _STOP = 10, 11  # features of the word itself: the question has it, it is a stop word


def best_span(question: str, text: str) -> str:
    """Return the words of a text that best answer a question; the whole text if it has no word."""
    text = _nearest_part(question, text)
    if _WORD.search(text) is None:
        return text
    found, features = word_features(question, text)
    hidden, hidden_bias, out, out_bias = _weights()
    scores = np.maximum(features @ hidden.T + hidden_bias, 0) @ out + out_bias
    start, end = best_interval(1 / (1 + np.exp(-scores)))
    answering = np.flatnonzero((features[start:end, _KNOWN] < 1) & (features[start:end, _STOP] < 1))
    if len(answering):  # what stands at the ends of a span and is asked itself answers nothing
        start, end = start + answering[0], start + answering[-1] + 1
    return text[found[start].start() : found[end - 1].end()]


def word_features(question: str, text: str) -> tuple[list[re.Match[str]], NDArray[np.float64]]:
    """Return the words of a text, characters where nothing parts words, and what the network sees of each.

    Args:
        question: text of the question.
        text: a passage of n > 0 words.

    Returns:
        The n words as matches, and their features, of shape (n, 42).
    """
    found = list(_WORD.finditer(text))
    texts = [match[0] for match in found]
    gaps = [text[(found[at - 1].end() if at else 0) : match.start()] for at, match in enumerate(found)]
    count, places = len(found), np.arange(len(found))
    asked = {*words(question)}
    is_unspaced = np.array([UNSPACED.match(word) is not None for word in texts], dtype=float)
    known = np.array(
        [
            _shared_characters(question, texts, at) if is_unspaced[at] else float(not asked.isdisjoint(words(word)))
            for at, word in enumerate(texts)
        ]
    )
    signs = (
        known,
        _flags(word.lower() in STOP_WORDS for word in texts),
        _flags(map(_is_number, texts)),
        _flags(word[:1].isupper() for word in texts),
        _flags(at == 0 or _PAUSE.search(gap) for at, gap in enumerate(gaps)),
    )
    is_opened = _flags(map(_OPENING.search, gaps))
    shared = np.flatnonzero(known > 0.9)
    distance = np.abs(places[:, None] - shared[None]).min(1) if len(shared) else np.full(count, 30)
    density = (
        np.convolve(known, np.ones(_WINDOW) / _WINDOW, "same") if count >= _WINDOW else np.full(count, known.mean())
    )
    columns = [
        *(_shifted(sign, by) for by in (-2, -1, 0, 1, 2) for sign in signs),
        is_unspaced,
        is_opened,
        _shifted(is_opened, 1),
        _flags("\u4e00" <= word[0] <= "\u9fff" for word in texts),
        _flags("\u30a0" <= word[0] <= "\u30ff" for word in texts),
        np.minimum(distance, _NEAR) / _NEAR,
        1 / (1 + distance),
        density,
        places / count,
        np.full(count, np.log(count) / 3),
        np.full(count, known.mean()),
        places > (shared[-1] if len(shared) else count),
        places < (shared[0] if len(shared) else 0),
        *(np.full(count, float(cue.search(question) is not None)) for cue in _ASKED),
    ]
    return found, np.column_stack(columns).astype(float)


def _nearest_part(question: str, text: str) -> str:
    """Return a short text, of a longer one the sentence, or part of a sentence, with most words of the question."""
    if len(_WORD.findall(text)) <= SHORT:
        return text
    asked = {*words(question)}
    return max(_parts(text), key=lambda part: len(asked.intersection(words(part))))


def _parts(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(text):
        found = list(_WORD.finditer(sentence))
        for start in range(0, len(found), LONGEST):
            yield sentence[found[start].start() : found[start:][:LONGEST][-1].end()]


def _shared_characters(question: str, texts: list[str], at: int) -> float:
    """Return 1 for a character that the question has beside one of its neighbours, .5 for one that it has alone.

    A word of Hangul has particles and endings glued to it: how it begins tells which it is.
    """
    if len(texts[at]) > 1:
        return float(texts[at][:2] in question)
    pairs = ("".join(texts[max(0, at - 1) : at + 1]), "".join(texts[at : at + 2]))
    return 1.0 if any(len(pair) > 1 and pair in question for pair in pairs) else 0.5 * (texts[at] in question)


def _is_number(word: str) -> bool:
    return _NUMBER.match(word) is not None or any(map(str.isdigit, word))


def _flags(values: Iterable[object]) -> NDArray[np.float64]:
    return np.array([bool(value) for value in values], dtype=float)


def _shifted(values: NDArray[np.float64], by: int) -> NDArray[np.float64]:
    """Return for each word the value of the word `by` places before it; 0 beyond the ends."""
    moved = np.zeros_like(values)
    if by >= 0:
        moved[by:] = values[: max(0, len(values) - by)]
    else:
        moved[:by] = values[-by:]
    return moved


def best_interval(chances: NDArray[np.float64]) -> tuple[int, int]:
    """Return start and end of the span with the best expected F1, given each word's chance to be of the answer."""
    ends = np.arange(len(chances) + 1)
    sums = np.concatenate([[0.0], np.cumsum(chances)])
    lengths = ends[None] - ends[:, None]
    expected = np.where(lengths > 0, 2 * (sums[None] - sums[:, None]) / (np.maximum(lengths, 1) + sums[-1]), -1)
    start, end = np.unravel_index(expected.argmax(), expected.shape)
    return int(start), int(end)


@cache
def _weights() -> tuple[NDArray[np.float64], ...]:
    with np.load(WEIGHTS) as arrays:
        return tuple(arrays[name].astype(float) for name in ("hidden", "hidden_bias", "out", "out_bias"))
