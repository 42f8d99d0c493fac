"""BM25 over live documents, changed in place.

Scores follow Lucene's variant (Kamphuis et al., "Which BM25 do you mean?", ECIR 2020): a query term t gives document d
`idf(t) * tf / (tf + k1 * (1 - b + b * |d| / mean |d|))` with `idf = ln(1 + (N - df + 0.5) / (df + 0.5))`. Document
counts and lengths are over what is in the index now, so a removed document leaves no trace in anybody's score.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from memalpha.store.stem import stem

K1 = 1.5
B = 0.75

# Scripts written without spaces: kana, Han (with extensions), Thai, Lao, Khmer, Burmese. Hangul has spaces, but its
# particles are glued to the words, so bigrams serve it better as well.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_TOKEN = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}_])\w)+(?:['\u2019](?![{_UNSPACED}_])\w+)*")
_RUN = re.compile(rf"[{_UNSPACED}]")

# Function words carry no topic; most of a question consists of them. Names of months, numbers and negations stay.
_STOP_WORDS = """
    a an and are as at be been but by did do does for from had has have he her him his how i if in into is it its me
    my of on or our she so such that the their them then there these they this to was we were what when where which who
    whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """Tokens of `text`, in order: NFKC, lower case, English words stemmed (possessive 's dropped), stop words left out.

    A run of a script written without spaces gives its character bigrams (a lone character itself).
    """
    tokens: list[str] = []
    for match in _TOKEN.finditer(unicodedata.normalize("NFKC", text).lower()):
        token = match.group()
        if _RUN.match(token):
            tokens += [token[i : i + 2] for i in range(len(token) - 1)] or [token]
            continue
        token = token.replace("\u2019", "'").removesuffix("'s")
        if token not in STOP_WORDS:
            tokens.append(stem(token))
    return tokens


@lru_cache(maxsize=65536)
def term_counts(text: str) -> Mapping[str, int]:
    """How often each token occurs in `text`. Cached: the same entry comes back in many rollouts. Do not change it."""
    return Counter(words(text))


class BM25:
    """An index from slots (small integers, given by the caller) to term counts.

    `add(slot, counts)` may be called again for a slot: counts add up, which is how a group collects its members;
    `remove` takes counts off again.
    """

    def __init__(self) -> None:
        self._postings: dict[str, dict[int, int]] = {}
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # postings as arrays, dropped when they change
        self._lengths: dict[int, int] = {}
        self._length_array: np.ndarray | None = None
        self._total = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, slot: int, counts: Mapping[str, int]) -> None:
        """Count the terms of `counts` in at `slot`."""
        for term, count in counts.items():
            posting = self._postings.setdefault(term, {})
            posting[slot] = posting.get(slot, 0) + count
            self._arrays.pop(term, None)
        length = sum(counts.values())
        self._lengths[slot] = self._lengths.get(slot, 0) + length
        self._total += length
        self._length_array = None

    def remove(self, slot: int, counts: Mapping[str, int], *, whole: bool = True) -> None:
        """Take `counts` off `slot` again; `whole` ends the slot (False: a group whose other members stay)."""
        for term, count in counts.items():
            posting = self._postings[term]
            posting[slot] -= count
            if not posting[slot]:
                del posting[slot]
                if not posting:
                    del self._postings[term]
            self._arrays.pop(term, None)
        length = sum(counts.values())
        self._lengths[slot] -= length
        self._total -= length
        if whole:
            del self._lengths[slot]
        self._length_array = None

    def scores(self, query: Sequence[str], size: int) -> np.ndarray:
        """BM25 of every slot below `size` for the query's tokens: float64 `(size,)`, 0 where nothing matches."""
        scores = np.zeros(size)
        number = len(self._lengths)
        if not self._total:
            return scores
        penalties = self._penalties(size)
        for term, repeats in Counter(query).items():
            found = self._posting(term)
            if found is None:
                continue
            slots, counts = found
            idf = math.log(1.0 + (number - len(slots) + 0.5) / (len(slots) + 0.5))
            scores[slots] += (idf * repeats) * counts / (counts + penalties[slots])
        return scores

    def _posting(self, term: str) -> tuple[np.ndarray, np.ndarray] | None:
        arrays = self._arrays.get(term)
        if arrays is None:
            posting = self._postings.get(term)
            if posting is None:
                return None
            slots = np.fromiter(posting.keys(), np.int64, len(posting))
            counts = np.fromiter(posting.values(), np.float64, len(posting))
            arrays = self._arrays[term] = (slots, counts)
        return arrays

    def _penalties(self, size: int) -> np.ndarray:
        """k1 * (1 - b + b * |d| / mean |d|) of every slot; float64 `(size,)`."""
        if self._length_array is None or len(self._length_array) < size:
            lengths = np.zeros(size)
            slots = np.fromiter(self._lengths.keys(), np.int64, len(self._lengths))
            lengths[slots] = np.fromiter(self._lengths.values(), np.float64, len(self._lengths))
            self._length_array = K1 * (1.0 - B + B * lengths * (len(self._lengths) / self._total))
        return self._length_array
