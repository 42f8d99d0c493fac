"""Find the words of passages that answer a question, without a language model.

A small network reads a question beside each of several passages. It gives each word a score to begin the answer and one
to end it, and a score to "nothing answers"; what counts is the mean of two such networks. All passages share one
normalization (Clark and Gardner 2018, arXiv:1710.10723), so they also say which passage answers, and whether one does.

Of a word it sees the vector in the shipped token table, signs of its kind, whether the question has it, and the words
of the question that are like it (aligned question embeddings, Chen et al. 2017, arXiv:1704.00051). Dilated convolutions
see the words around it. `scripts/make_answer_spans.py` trains it and names what it learnt from. A quarter of the
questions were learnt without vectors, so that languages whose words the table lacks are read by signs alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memalpha.store.embedding import StaticEmbedder
from memalpha.store.search.lexical import SIGNS, STOP_WORDS, UNSPACED, words
from memalpha.types import MemoryEntry

WEIGHTS = Path(__file__).parents[2] / "weights" / "spans" / "spans.npz"
WINDOW = 150
"""Most words of a passage that are read at once; a longer one is read in parts."""
LONGEST = 30
"""Most words of an answer."""
NO_ANSWER = -1e4
"""Score below which a span is none: all of its words are a label."""
MOST_PARTS = 60
"""Most parts of passages that are read for a question."""
MOST_PASSAGES = 50
"""Most entries that a reader reads for a question, best first."""
MOST_CHARACTERS = 100
"""Characters of a word that are looked at."""
DILATIONS = (1, 2, 4, 8, 1)
"""Distance of the words that each convolution joins."""
MIDDLE = 2
"""Convolution after which each word learns what the whole passage, and the others, hold."""

Array = NDArray[np.float32]

_CHARACTER = f"(?![\uac00-\ud7af]){UNSPACED.pattern}"  # Hangul has spaces
# A particle behind a Korean word is a word here: answers end before it. One of a syllable is known by the word that
# follows, for nouns end in the same syllables.
_LETTER = rf"(?:(?!{_CHARACTER})[\w{SIGNS}'\u2019-])"
_LONG_PARTICLE = (
    "(?:\uc5d0\uc11c\ub294|\uc5d0\uc11c|\uc5d0\uac8c|\uae4c\uc9c0|\ubd80\ud130|\uc774\ub77c\ub294|\ub77c\ub294|\uc774\ub2e4|\uc774\uba70|\uc774\uace0"
    rf"|\uc73c\ub85c)(?!{_LETTER})"
)
_PARTICLE = r"[\uc740\ub294\uc774\uac00\uc744\ub97c\uc758\uc5d0\ub85c\uc640\uacfc\ub3c4\ub9cc]\s+\w"
_WORD = re.compile(
    rf"{_CHARACTER}|(?<=\w){_LONG_PARTICLE}|{_LETTER}+?(?={_LONG_PARTICLE})"
    rf"|{_LETTER}{{2,}}?(?={_PARTICLE})|{_LETTER}+"
)
_PAUSE = re.compile("[,.;:!?\u3001\uff0c\u3002\uff1a\uff1b\u0964]\\s*$")
_OPENING = re.compile('["\u201c\u201e\u00ab\u300c\u300e(\uff08]\\s*$')
_NUMBER = re.compile(
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand|million|half|first"
    r"|second|third)$",
    re.IGNORECASE,
)


class AnswerSpan(NamedTuple):
    """Best answer of one passage.

    Attributes:
        text: its words; "" if the passage has no word.
        score: log-score of the span; higher is likelier, over all passages of the question.
        chance: probability that the answer begins in this passage.
        start: its first character in the passage.
    """

    text: str
    score: float
    chance: float
    start: int = 0


def find_answers(
    question: str, passages: Sequence[str], order: Sequence[float] = (), labels: Sequence[int] = ()
) -> list[AnswerSpan]:
    """Return the best span of each passage.

    Of a question the first `WINDOW` words are read. Of passages of more than `MOST_PARTS` parts altogether, the parts
    with most words of the question are read.

    Args:
        question: text of the question.
        passages: passages, best first, as a search found them.
        order: when each passage was said, from 0 for the oldest to 1 for the newest; `()` if that is not known.
        labels: characters at the beginning of each passage that are read but are no answer; `()` for none.

    Returns:
        A span per passage, "" with a score of -inf if nothing of it was read. What their chances lack of 1 is the
        chance that nothing answers.
    """
    spans = [AnswerSpan("", -np.inf, 0.0) for _ in passages]
    question = question[: max((match.end() for match in islice(_WORD.finditer(question), WINDOW)), default=0)]
    parts = _chosen_parts(question, passages)
    if not parts:
        return spans
    asked = question_words(question)
    read = [passage_words(question, passages[owner][start:end]) for owner, start, end, _ in parts]
    places = np.array([[1 / (1 + part[0]), order[part[0]] if len(order) else 0.5] for part in parts], np.float32)
    scores = [_scores(weights, asked, read, places) for weights in _networks()]
    begins, ends, nothing = (np.mean(kind, axis=0) for kind in zip(*scores, strict=True))
    firsts = np.cumsum([0, *(len(part.found) for part in read)])
    for (owner, start, _, is_last), part, first in zip(parts, read, firsts, strict=False):
        if not is_last:  # the next part has these words, too
            begins[first + len(part.found) - LONGEST : first + len(part.found)] = 2 * NO_ANSWER
        if len(labels):
            begins[first : first + sum(start + match.start() < labels[owner] for match in part.found)] = 2 * NO_ANSWER
    total = np.logaddexp(np.logaddexp.reduce(begins), nothing)
    for (owner, start, _, _), part, first in zip(parts, read, firsts, strict=False):
        begin, end = (scores[first : first + len(part.found)] for scores in (begins, ends))
        left, right = best_span(begin, end)
        best, score, first_character = spans[owner], float(begin[left] + end[right]), start + part.found[left].start()
        text = passages[owner][first_character : start + part.found[right].end()]
        chance = best.chance + float(np.exp(np.logaddexp.reduce(begin) - total))
        better = AnswerSpan(text, score, chance, first_character)
        spans[owner] = better if score > best.score else best._replace(chance=chance)
    return spans


def order_of(entries: Sequence[MemoryEntry]) -> list[float]:
    """Return when each entry was written, from 0 for the oldest to 1 for the newest of them."""
    times = sorted({entry.valid_from for entry in entries})
    ranks = {time: rank / max(1, len(times) - 1) for rank, time in enumerate(times)}
    return [ranks[entry.valid_from] for entry in entries]


class Words(NamedTuple):
    """Words of a text, and what the network sees of each: vectors `(n, dim)`, norms `(n, 1)`, signs `(n, s)`."""

    found: list[re.Match[str]]
    vectors: Array
    norms: Array
    signs: Array


def question_words(question: str) -> Words:
    """Return the words of a question, an empty one as one word; s is 2."""
    found = list(_WORD.finditer(question)) or list(re.finditer("^", question))
    signs = np.array([(_is_stop(word[0]), UNSPACED.match(word[0]) is not None) for word in found], np.float32)
    return Words(found, *_vectors([word[0][:MOST_CHARACTERS] for word in found]), signs)


def passage_words(question: str, text: str) -> Words:
    """Return the words of a text with at least one; s is 15."""
    found = list(_WORD.finditer(text))
    texts = [match[0][:MOST_CHARACTERS] for match in found]
    gaps = [text[start:end] for start, end in pairwise([0, *(at for match in found for at in match.span())])][::2]
    asked = {*words(question)}
    rows = [
        (
            _shared_characters(question, texts, at) if kind[0] else float(not asked.isdisjoint(_terms(word))),
            *kind,
            at == 0 or _PAUSE.search(gap) is not None,
            _OPENING.search(gap) is not None,
            at == 0,
            at == len(texts) - 1,
            gap.strip().endswith(":"),
            "\n" in gap,
        )
        for at, (word, gap) in enumerate(zip(texts, gaps, strict=True))
        for kind in (_kind(word),)
    ]
    return Words(found, *_vectors(texts), np.array(rows, np.float32))


def best_span(begins: Array, ends: Array) -> tuple[int, int]:
    """Return first and last word of the span with the highest sum of scores, of at most `LONGEST` words."""
    places = np.arange(len(begins))
    length = places[None] - places[:, None]
    sums = np.where((length >= 0) & (length < LONGEST), begins[:, None] + ends[None], -np.inf)
    left, right = np.unravel_index(sums.argmax(), sums.shape)
    return int(left), int(right)


def _chosen_parts(question: str, passages: Sequence[str]) -> list[tuple[int, int, int, bool]]:
    """Return passage, first and last character of each part to read, and whether it ends the passage."""
    parts = list[tuple[int, int, int, bool]]()
    for owner, passage in enumerate(passages):
        found = list(_WORD.finditer(passage))
        for first in range(0, max(len(found) - LONGEST, 1) if found else 0, WINDOW - LONGEST):
            part = found[first : first + WINDOW]
            start, is_last = part[0].start() if first else 0, first + WINDOW >= len(found)
            parts.append((owner, start, part[-1].end(), is_last))
            if is_last:
                break
    if len(parts) > MOST_PARTS:
        asked = {word for word in words(question) if not _is_stop(word)}
        texts = [passages[owner][start:end].lower() for owner, start, end, _ in parts]
        shares = [sum(word in text for word in asked) for text in texts]
        best = sorted(range(len(parts)), key=lambda at: -shares[at])[:MOST_PARTS]
        parts = [parts[at] for at in sorted(best)]
    return parts


@lru_cache(maxsize=50_000)
def _terms(word: str) -> frozenset[str]:
    return frozenset(words(word))


def _is_stop(word: str) -> bool:
    return word.lower() in STOP_WORDS


@lru_cache(maxsize=50_000)
def _kind(word: str) -> tuple[float, ...]:
    """Return signs of a word alone: unspaced, stop word, number, capital, kanji, katakana, digits, length."""
    has_digit = any(map(str.isdigit, word))
    return (
        float(UNSPACED.match(word) is not None),
        float(_is_stop(word)),
        float(has_digit or _NUMBER.match(word) is not None),
        float(word[:1].isupper()),
        float("\u4e00" <= word[0] <= "\u9fff"),
        float("\u30a0" <= word[0] <= "\u30ff"),
        float(has_digit),
        min(len(word), 12) / 12,
    )


def _shared_characters(question: str, texts: list[str], at: int) -> float:
    """Return 1 for a character that the question has beside one of its neighbours, .5 for one that it has alone.

    A word of Hangul has particles and endings glued to it: how it begins tells which it is.
    """
    if len(texts[at]) > 1:
        return float(texts[at][:2] in question)
    pairs = ("".join(texts[max(0, at - 1) : at + 1]), "".join(texts[at : at + 2]))
    return 1.0 if any(len(pair) > 1 and pair in question for pair in pairs) else 0.5 * (texts[at] in question)


@cache
def _table() -> StaticEmbedder:
    return StaticEmbedder()


@lru_cache(maxsize=20_000)
def _vector(word: str) -> tuple[Array, float]:
    (vector,) = _table().sums([word.lower()])
    norm = float(np.linalg.norm(vector))
    return (vector / norm if norm else vector), norm


def _vectors(texts: Sequence[str]) -> tuple[Array, Array]:
    vectors, norms = zip(*map(_vector, texts), strict=True)
    return np.stack(vectors), np.array(norms, np.float32)[:, None]


@cache
def _networks() -> list[dict[str, Array]]:
    """Return the weights of each network."""
    with np.load(WEIGHTS) as arrays:
        networks = zip(*(arrays[name].astype(np.float32) for name in arrays.files), strict=True)
        return [dict(zip(arrays.files, weights, strict=True)) for weights in networks]


def _scores(
    weights: Mapping[str, Array], asked: Words, windows: Sequence[Words], places: Array
) -> tuple[Array, Array, float]:
    """Return the scores of all words of the windows to begin and to end the answer, and that of no answer."""

    def apply(name: str, x: Array) -> Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalize(name: str, x: Array) -> Array:
        centred = x - x.mean(1, keepdims=True)
        scale = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def modulate(name: str, x: Array, by: Array, rows: NDArray[np.intp] | int) -> Array:
        scale, shift = np.split(apply(name, by), 2, axis=1)
        return x * (1 + scale[rows]) + shift[rows]

    counts = [len(window.found) for window in windows]
    of = np.repeat(np.arange(len(windows)), counts)
    firsts = np.cumsum([0, *counts[:-1]])
    vectors, norms, signs = (np.concatenate(parts) for parts in zip(*(window[1:] for window in windows), strict=True))

    projection = weights["project.weight"].T
    asked_projected = asked.vectors @ projection
    seen = np.concatenate([asked_projected, asked.signs], 1)
    one = np.zeros(len(seen), np.intp)
    hidden = np.maximum(apply("question", _neighbours(seen, 1, one)), 0)
    summary = np.tanh(apply("summary", np.concatenate([hidden.max(0), hidden.mean(0)])[None]))

    likeness = vectors @ asked.vectors.T
    importance = apply("importance", np.concatenate([asked.norms, asked.signs], 1))[:, 0]
    logits = weights["sharpness"] * likeness + importance
    attention = np.exp(logits - logits.max(1, keepdims=True))
    attention /= attention.sum(1, keepdims=True)
    projected, aligned = vectors @ projection, attention @ asked_projected
    similar = [likeness.max(1, keepdims=True), norms, (attention * likeness).sum(1, keepdims=True)]
    x = apply("words", np.concatenate([projected, aligned, 4 * projected * aligned, signs, *similar, places[of]], 1))
    x = modulate("asked", x, summary, 0)
    for number, dilation in enumerate(DILATIONS):
        around = _neighbours(normalize(f"norms.{number}", x), dilation, of)
        x = x + np.maximum(apply(f"convolutions.{number}", around), 0)
        if number == MIDDLE:
            best = np.maximum.reduceat(x, firsts)
            whole = np.broadcast_to(np.concatenate([best.max(0), summary[0]]), (len(best), 2 * best.shape[1]))
            inner = np.maximum(apply("passage", np.concatenate([best, whole], 1)), 0)
            x = modulate("told", x, inner, of)
    x = normalize("last", x)
    best = np.maximum.reduceat(x, firsts)
    of_passage = apply("holds", np.concatenate([best, best * summary], 1))
    nothing = np.maximum(apply("nothing.0", np.concatenate([best.max(0), summary[0]])[None]), 0)
    begins, ends = (apply("ends", x) + of_passage[of]).T
    return begins, ends, float(apply("nothing.2", nothing)[0, 0])


def _neighbours(x: Array, distance: int, of: NDArray[np.intp]) -> Array:
    """Return each row between those of the words at a distance before and behind it in the same text, 0 if none."""
    before, behind = np.zeros_like(x), np.zeros_like(x)
    same = (of[distance:] == of[:-distance])[:, None]
    before[distance:] = x[:-distance] * same
    behind[:-distance] = x[distance:] * same
    return np.concatenate([before, x, behind], 1)
