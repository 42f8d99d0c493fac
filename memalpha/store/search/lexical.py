"""Words: BM25 of whole entries (`LexicalIndex`), of passages (`PassageIndex`), and of raw spans (`NeighbourBM25`).

Scores follow Lucene's variant (Kamphuis et al., "Which BM25 do you mean?", ECIR 2020): a query term t gives document d
`idf(t) * tf / (tf + k1 * (1 - b + b * |d| / mean |d|))` with `idf = ln(1 + (N - df + 0.5) / (df + 0.5))`. Document
counts and lengths are those of the selection alone, so documents outside it have no influence on a score.

English words are stemmed by Porter's algorithm (M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980)
with the two rules of the author's later reference program that Snowball lacks: `bli -> ble` and `logi -> log`.

**Passages.** An entry of more than `WINDOW` words is about several things. Its BM25 is that of its best window of whole
sentences (passage retrieval: Kaszkiel, Zobel, "Effective ranking with arbitrary passages", JASIST 2001). A word that
the passage lacks counts as often as the rest of the entry has it, times `CONTEXT / words of the entry`. So the entry's
other words count like those of a text of `CONTEXT` words around the passage. Document frequencies stay those of whole
entries, and mean lengths assume entries cut into equal parts. So only entries that hold a word of the query are ever
cut or looked up.

**Neighbours.** A turn of a conversation often answers a question whose words stand in the turn before it. So a word
that a span lacks is taken from the spans around it in its source, up to three steps away. Each of these counts it as
often as it is there, times `(m / (m + length)) ** steps` of the receiving span, with `m` the mean length of a passage,
`NEAR` words at most. That is backing off (Katz, "Estimation of probabilities from sparse data", 1987) with the weight
of a Dirichlet prior of m words (Zhai, Lafferty: "A study of smoothing methods for language models", SIGIR 2001).

What surrounds a span counts by its length, not only by steps: a span of more than `NEAR` words lends its words, and
lets those behind it pass, by `(NEAR / length) ** 8` alone. So the turns of a dialogue help each other, and the long
replies of an assistant do not drown the short messages between them. Spans of more than `WINDOW` words neither lend nor
borrow: they are searched by passage. A span's own word never counts twice because its neighbours repeat it.

The counts, and lengths to which all neighbouring words add by the same weights, go into one BM25 (as in BM25F of
Robertson, Zaragoza, Taylor, CIKM 2004). Its document frequency is the number of documents that a word reaches with a
count of `REACHED` or more. Neighbours and means are those of the searched documents, so entries that a filter excludes
have no influence.

The lines of a list have nothing to do with each other. Where text hangs together, a word comes in bursts (Church, Gale:
"Poisson mixtures", Natural Language Engineering 1(2), 1995). So the share by which neighbours count is told by the
query's rarer words: by how many pairs of spans that hold one lie within reach, beside what chance would give.

**Scripts without spaces** are searched by bigrams of characters, Han and Hangul by single characters too. Lengths stay
numbers of words, one for two characters: if each bigram and each character counted, a Chinese sentence would be three
times as long as an English one, too long to help its neighbours. Single characters are not taken from neighbours, since
something around a span nearly always has them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from threading import local
from typing import NamedTuple

import numpy as np
import Stemmer

K1 = 1.5
B = 0.75
# Fewer documents, or a smaller share of the postings, are added one by one, which is cheaper than sorting all.
_FEW, _SHARE = 64, 500
_BLOCK = 4096  # documents whose tokens are in memory at a time

# Scripts written without spaces: kana, Han (with extensions), Thai, Lao, Khmer, Burmese. Hangul has spaces, but its
# particles are glued to the words, so bigrams serve it better as well. Of Han and Hangul one character can be a word.
_ALONE = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff" + _ALONE
# Signs that belong to the letter before them (the vowels of Devanagari or Tamil): \w leaves them out.
SIGNS = "".join(
    char for char in map(chr, (*range(0x300, 0x1E00), *range(0xA600, 0xAC00))) if unicodedata.category(char)[0] == "M"
)
# Points of Hebrew and Arabic, mostly not written, and what nobody sees: soft hyphens, joiners, marks of direction;
# tones of skin. The space of no width stays: in scripts without spaces it ends a word.
_UNWRITTEN = re.compile(
    "[\u0591-\u05c7\u0640\u064b-\u065f\u0670"
    "\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)
_ACCENT = re.compile("[\u0300-\u036f]")  # of Latin, Greek and Cyrillic letters
_LETTERS = {0xF8: "o", 0x142: "l", 0x111: "d", 0xF0: "d", 0x127: "h", 0x131: "i", 0xE6: "ae", 0x153: "oe", 0xFE: "th"}
_ELISION = re.compile(  # of French, Italian, Catalan, Portuguese articles and pronouns, before a word
    "(?:[cdjlmnstv]|qu|jusqu|lorsqu|puisqu|quoiqu|quelqu|entr|un|all|dall|dell|nell|sull|coll|quell|quest|bell|sant|tutt|"
    r"gl)'(?=\w\w)"
)
_ENDING = re.compile(r"(\w{3,})'(?!(?:[dmst]|re|ve|ll|em)$)\w+$")  # of a name: the Turkish "izmir'de"
_EMOJI = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"  # each is a word
_TOKEN = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}_])[\w{SIGNS}])+(?:['\u2019](?![{_UNSPACED}_])\w+)*|[{_EMOJI}]")
UNSPACED = re.compile(rf"[{_UNSPACED}]")
"""A character of a script that is written without spaces, or of Hangul."""
_MAY_BE_UNSPACED = re.compile("[\u0e00-\u1fff\u2e80-\U0010ffff]")  # before NFKC, which makes some of half-width kana
_WORD_ALONE = re.compile(rf"[{_ALONE}]")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z0-9]\w*)*")  # what _TOKEN finds in lower-case ASCII, four times as fast


class _Porter(local):
    """Stemmer of each thread: one is not safe for concurrent use."""

    def __init__(self) -> None:
        self.stem: Callable[[str], str] = Stemmer.Stemmer("porter", maxCacheSize=0).stemWord


_PORTER = _Porter()
_BLI_LOGI = re.compile(r"(bl|log)(?:y|i(?:e?s|ed)?)$")
_MEASURE = re.compile(r"[aeiou][^aeiou]|[^aeiouy]y[^aeiou]")  # a vowel and a consonant: Porter's m is above 0

# Function words carry no topic; most of a question consists of them. Names of months, numbers and negations stay.
_STOP_WORDS = """
    a an and are as at be been but by did do does for from had has have he her him his how i if in into is it its me
    my of on or our she so such that the their them then there these they this to was we were what when where which who
    whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """Split a text into terms, in order.

    The text is normalised to NFKC and folded case. English words are stemmed; stop words, possessive 's, the elided
    article of "l'opéra" and signs that nobody sees are dropped. A word with accents gives a second term without them.
    A run of a script written without spaces gives its character bigrams and, for Han and Hangul, its characters. So a
    word is found inside a sentence, even one of a single character. An emoji is a word.
    """
    return [word for word in map(_word, _tokens(text)) if word]


def _tokens(text: str) -> list[str]:
    """Return the words of a text in folded case, and the bigrams of scripts without spaces, in order."""
    if not text.isascii():
        return _any_tokens(text)
    tokens = _ASCII_TOKEN.findall(text.lower())
    if "'" in text and any(_forms(token) != (token,) for token in tokens if "'" in token):  # not "don't" or "it's"
        return [form for token in tokens for form in _forms(token)]
    return tokens


def _any_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    # Once more after the case is folded, which takes some letters apart: of a Turkish \u0130 a dot above the i remains.
    text = unicodedata.normalize("NFKC", _UNWRITTEN.sub("", unicodedata.normalize("NFKC", text)).casefold())
    for token in _TOKEN.findall(text.replace("i\u0307", "i")):
        if len(token) == 1 or not UNSPACED.match(token):
            tokens += (token,) if token.isalpha() and token.isascii() else _forms(token)
        else:
            tokens += [token[i : i + 2] for i in range(len(token) - 1)]
            tokens += _WORD_ALONE.findall(token)
    return tokens


@lru_cache(maxsize=65536)
def _forms(token: str) -> tuple[str, ...]:
    """Return the words that a token counts as: without its article; also without accents, and without its ending."""
    token = token.replace("\u2019", "'")
    if elided := _ELISION.match(token):
        token = token[elided.end() :]
    without_accents = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", token)))
    forms = [token, without_accents.translate(_LETTERS)]
    forms += [ending[1] for form in forms if (ending := _ENDING.match(form))]
    return tuple(dict.fromkeys(forms))


@lru_cache(maxsize=65536)
def _word(token: str) -> str:
    """Return the term of a token: a word's stem, "" for a stop word, a bigram itself."""
    token = token.removesuffix("'s")
    return "" if token in STOP_WORDS else stem(token)


def stem(word: str) -> str:
    """Return the Porter stem of one lower-case word; only a-z words of three letters or more are changed."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    ending = _BLI_LOGI.search(word)
    if ending and _MEASURE.search(word, 0, ending.start()):
        word = word[: ending.end(1)] + ("e" if ending[1] == "bl" else "")
    return _PORTER.stem(word)


@lru_cache(maxsize=65536)
def term_counts(text: str) -> Counter[str]:
    """Count the terms of a text. The result is cached, since entries recur in many rollouts: do not change it."""
    return Counter(words(text))


def word_count(terms: Iterable[str]) -> int:
    """Return the length in words of a text with these terms; two characters of a script without spaces count as one."""
    halves = [*map(_half_words, terms)]
    return (sum(halves) + 1) // 2 or min(1, len(halves))


@lru_cache(maxsize=65536)
def _half_words(term: str) -> int:
    # n characters in a row are n - 1 bigrams, each half a word. A single one stands in bigrams as well.
    return len(term) - 1 if UNSPACED.match(term) else 2


def with_room(values: np.ndarray, size: int) -> np.ndarray:
    """Return an array of at least `size` rows that begins with `values`; new rows are 0, and as many as those."""
    if size <= len(values):
        return values
    room = max(32, size, 2 * len(values)) - len(values)
    return np.concatenate([values, np.zeros((room, *values.shape[1:]), values.dtype)])


class _TokenNumbers(dict[str, int]):
    """Numbers of terms by token; -1 for a stop word."""

    def __init__(self, terms: dict[str, int]) -> None:
        super().__init__()
        self._terms = terms

    def __missing__(self, token: str) -> int:
        term = _word(token)
        number = self[token] = self._terms.setdefault(term, len(self._terms)) if term else -1
        return number


class LexicalIndex:
    """Count of each term at each slot (a small integer that the caller assigns).

    Documents are only added. A removed document is excluded by the selections until `settle` drops it; only then may
    its slot be reused. Most postings are settled, in three arrays sorted by term. Later ones lie beside them.
    """

    def __init__(self) -> None:
        self.lengths = np.zeros(0, np.int32)  # words by slot
        self._terms: dict[str, int] = {}
        self._starts = np.zeros(1, np.int64)  # settled postings of term t: _starts[t] to _starts[t + 1]
        self._slots = np.zeros(0, np.int32)
        self._counts = np.zeros(0, np.uint8)  # of the narrowest type that holds them
        self._recent: dict[int, tuple[list[int], list[int]]] = {}
        self._recent_size = 0
        self._unmerged: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # merged at the next look-up
        self._joined: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # settled and recent postings, until they change

    def add(self, slots: np.ndarray, texts: Sequence[str]) -> None:
        """Add the terms of texts at as many new slots `(n,)`."""
        if not len(slots):
            return
        self.lengths = with_room(self.lengths, int(slots.max()) + 1)
        if len(texts) < max(_FEW, len(self._slots) // _SHARE):
            for slot, text in zip(slots.tolist(), texts, strict=True):
                counts = term_counts(text)
                is_even = _MAY_BE_UNSPACED.search(text) is None
                self.lengths[slot] = counts.total() if is_even else word_count(counts.elements())
                self._add(slot, counts)
            return
        numbers, sizes, term_arrays = _TokenNumbers(self._terms), [], []
        uneven: dict[int, int] = {}  # length by slot of texts of which a term may be no word
        for start in range(0, len(texts), _BLOCK):
            tokens = list(map(_tokens, texts[start : start + _BLOCK]))
            sizes += map(len, tokens)
            for slot, text, found in zip(slots[start:].tolist(), texts[start:], tokens, strict=False):
                if _MAY_BE_UNSPACED.search(text):
                    uneven[slot] = word_count(filter(_word, found))
            term_arrays.append(np.fromiter(map(numbers.__getitem__, chain.from_iterable(tokens)), np.int64))
        terms, holders = np.concatenate(term_arrays), np.repeat(slots, sizes)
        terms, holders = terms[terms >= 0], holders[terms >= 0]
        self.lengths[slots] = np.bincount(holders, minlength=len(self.lengths))[slots]
        self.lengths[list(uneven)] = list(uneven.values())
        pairs, counts = np.unique(terms * len(self.lengths) + holders, return_counts=True)
        holders = (pairs % len(self.lengths)).astype(np.int32)
        self._unmerged.append(((pairs // len(self.lengths)).astype(np.int32), holders, counts.astype(np.int32)))
        self._joined.clear()

    def _add(self, slot: int, counts: Mapping[str, int]) -> None:
        for term, count in counts.items():
            number = self._terms.setdefault(term, len(self._terms))
            slots, term_counts_at_slots = self._recent.setdefault(number, ([], []))
            slots.append(slot)
            term_counts_at_slots.append(count)
            self._joined.pop(number, None)
        self._recent_size += len(counts)

    @property
    def needs_settling(self) -> bool:
        """True if so many postings are unsettled that settling them pays."""
        return self._recent_size > max(4096, len(self._slots) // 4)

    def settle(self, live: np.ndarray) -> None:
        """Sort all postings and drop slots that are not `live` (bool by slot)."""
        lists = list(self._recent.values())
        sizes = np.array([len(slots) for slots, _ in lists], np.int64)
        terms = np.repeat(np.array(list(self._recent), np.int64), sizes)
        slots = np.array(list(chain.from_iterable(slots for slots, _ in lists)), np.int64)
        counts = np.array(list(chain.from_iterable(counts for _, counts in lists)), np.int64)
        self._recent, self._recent_size = {}, 0
        self._merge(terms, slots, counts, live)

    def _merge(self, terms: np.ndarray, slots: np.ndarray, counts: np.ndarray, live: np.ndarray | None) -> None:
        """Merge postings into the settled ones; with `live`, keep only live slots of both."""
        settled = np.repeat(np.arange(len(self._starts) - 1, dtype=np.int32), np.diff(self._starts))
        added = [*self._unmerged, (terms, slots, counts)]
        terms = np.concatenate([settled, *(part.astype(np.int32) for part, _, _ in added)])
        slots = np.concatenate([self._slots, *(some.astype(np.int32) for _, some, _ in added)])
        counts = np.concatenate([self._counts, *(some for _, _, some in added)])
        counts = counts.astype(np.min_scalar_type(counts.max(initial=0)))
        if live is not None:
            is_live = live[slots]
            terms, slots, counts = terms[is_live], slots[is_live], counts[is_live]
        order = np.argsort(terms, kind="stable")
        self._slots, self._counts = slots[order], counts[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(terms, minlength=len(self._terms)))])
        self._unmerged = []
        self._joined.clear()

    def postings(self, term: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the slots that hold a term and its counts there, or None for an unknown term.

        Slots of removed documents are included until `settle`.
        """
        if self._unmerged:
            empty = np.zeros(0, np.int32)
            self._merge(empty, empty, empty, None)
        number = self._terms.get(term)
        if number is None:
            return None
        joined = self._joined.get(number)
        if joined is not None:
            return joined
        start, end = self._starts[number : number + 2].tolist() if number + 1 < len(self._starts) else (0, 0)
        slots, counts = self._slots[start:end], self._counts[start:end]
        if number in self._recent:
            new_slots, new_counts = self._recent[number]
            slots = np.concatenate([slots, np.array(new_slots, np.int32)])
            counts = np.concatenate([counts, np.array(new_counts, np.int32)])
            self._joined[number] = slots, counts
        return slots, counts

    def term_postings(self, query: Sequence[str]) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return count and `postings` of each distinct term of the query, empty for a term that the index lacks."""
        empty = np.zeros(0, np.int32)
        postings = [(repeats, self.postings(term) or (empty, empty)) for term, repeats in Counter(query).items()]
        return [(repeats, slots, counts) for repeats, (slots, counts) in postings]


class TermMatches(NamedTuple):
    """Matches of a query's terms among selected documents: one row per term and document, ordered by term.

    Attributes:
        repeats: Count of each distinct term of the query, `(t,)`.
        is_lent: False for terms that are not taken from neighbouring spans, bool `(t,)`.
        terms: Number of the term, `(m,)`.
        documents: Index of the document in the selection, `(m,)`.
        counts: Count of the term in the document, `(m,)`.
    """

    repeats: np.ndarray
    is_lent: np.ndarray
    terms: np.ndarray
    documents: np.ndarray
    counts: np.ndarray


class SelectedPostings:
    """Lengths and term matches of selected documents of an index, in the order of `slots`."""

    def __init__(self, index: LexicalIndex, slots: np.ndarray) -> None:
        self.lengths = index.lengths[slots]
        self._index = index
        self.document_of_slot = np.full(len(index.lengths), -1, np.int32)
        self.document_of_slot[slots] = np.arange(len(slots))

    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        """Return the matches of a query's terms; None if no document holds any."""
        terms = self._index.term_postings(query)
        if not terms:
            return None
        repeats, slots, counts = zip(*terms, strict=True)
        documents = self.document_of_slot.take(np.concatenate(slots))
        selected = np.flatnonzero(documents >= 0)
        if not len(selected):
            return None
        ends = np.searchsorted(selected, np.cumsum([0, *map(len, slots)]))
        numbers = np.repeat(np.arange(len(terms)), ends[1:] - ends[:-1])
        is_lent = np.array([len(term) > 1 or UNSPACED.match(term) is None for term in dict.fromkeys(query)])
        counts = np.concatenate(counts)[selected]
        return TermMatches(np.array(repeats), is_lent, numbers, documents[selected], counts)


class BM25:
    """BM25 of documents."""

    def __init__(self, lengths: np.ndarray, inverse_mean: float) -> None:
        """Compute the length penalties.

        Args:
            lengths: Lengths of the selected documents `(n,)`.
            inverse_mean: 1 / the mean length.
        """
        self._size, self.inverse_mean = len(lengths), inverse_mean
        self._penalties = K1 * (1.0 - B + B * lengths * inverse_mean) if lengths.any() else np.zeros(self._size)

    def scores(self, matches: TermMatches | None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and term weights for a query's matches.

        Returns:
            Scores of all documents, float64 `(n,)`, and the weight of each term `(t,)`.
        """
        if matches is None:
            return np.zeros(self._size), np.zeros(0)
        repeats, _, terms, documents, counts = matches
        holders = np.bincount(terms, minlength=len(repeats))
        idf = np.log(1.0 + (self._size - holders + 0.5) / (holders + 0.5)) * repeats
        scores = np.bincount(documents, idf[terms] * counts / (counts + self._penalties[documents]), self._size)
        return scores, idf


WINDOW = 80  # words of a passage at most
CONTEXT = 64  # words that the rest of an entry counts as
_SENTENCE = re.compile(r"(?<=[.!?\u061f\u0964])\s+|\n+|(?<=[\u3002\uff01\uff1f])")


@lru_cache(maxsize=1024)
def split_passages(text: str) -> tuple[str, ...]:
    """Split a text into windows of whole sentences, of at most `WINDOW` words each.

    A longer sentence is cut at blanks, or between characters where it has none. A text that fits is one passage.
    """
    if word_count(words(text)) <= WINDOW:
        return (text,)
    windows, start, end, size = [], 0, 0, 0
    for piece_start, piece_end, count in _pieces(text):
        if size and size + count > WINDOW:
            windows.append(text[start:end].strip())
            start, size = piece_start, 0
        end, size = piece_end, size + count
    return (*windows, text[start:end].strip())


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and word count of the sentences of a text, of parts of those that are too long."""
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    start = 0
    for end in dict.fromkeys([*ends, len(text)]):
        yield from _cut(text, start, end)
        start = end


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    count = word_count(words(text[start:end]))
    if count <= WINDOW or end - start < 2:
        yield start, end, count
        return
    middle = (start + end) // 2
    blank = text.find(" ", middle, end - 1)
    middle = middle if blank < 0 else blank + 1
    yield from _cut(text, start, middle)
    yield from _cut(text, middle, end)


def count_passages(lengths: np.ndarray) -> np.ndarray:
    """Return the number of passages of entries by their lengths in words, float64 `(n,)`: an estimate, not a count."""
    return np.ceil(np.maximum(lengths, 1) / WINDOW)


def effective_total(lengths: np.ndarray) -> tuple[int, int]:
    """Return the number of passages of entries, and their words; a passage of a long entry has `CONTEXT` more."""
    counts = count_passages(lengths).astype(np.int64)
    return int(counts.sum()), int(lengths.sum() + CONTEXT * counts[lengths > WINDOW].sum())


class PassageMatches(NamedTuple):
    """Matches of a query's terms among passages of long documents, those of one document beside each other.

    Attributes:
        terms: Number of the term, as in the matches of documents, `(m,)`.
        passages: Index of the passage, `(m,)`.
        counts: Count of the term in the passage, `(m,)`.
        documents: Index of each passage's document in the selection, `(p,)`.
        lengths: Words of each passage, `(p,)`.
        numbers: Number of each passage within its document, from 0, `(p,)`.
    """

    terms: np.ndarray
    passages: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray

    def best(
        self, idf: np.ndarray, lengths: np.ndarray, inverse_mean: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the best passage of each document that has any here.

        Args:
            idf: Weight of each term.
            lengths: Words of each document of the selection.
            inverse_mean: 1 / the mean length of `effective_total`.

        Returns:
            Index of the document, score and number of its best passage, each `(d,)`.
        """
        is_first = np.diff(self.documents, prepend=-1) != 0
        starts, owners = np.flatnonzero(is_first), np.cumsum(is_first) - 1  # of each passage, among these documents
        documents = self.documents[starts]
        document_lengths = lengths[documents]
        share = CONTEXT / document_lengths
        keys = self.terms * len(starts) + owners[self.passages]
        totals = np.bincount(keys, self.counts, len(idf) * len(starts))
        filled = np.flatnonzero(totals)
        mean_lengths = document_lengths / count_passages(document_lengths)
        rest = np.zeros(len(totals))  # of terms that a passage lacks
        terms, holders = filled // len(starts), filled % len(starts)
        counts = totals[filled] * share[holders]
        rest[filled] = idf[terms] * counts / (counts + _penalties(mean_lengths, inverse_mean)[holders])
        scores = np.bincount(holders, rest[filled], len(starts))[owners]
        penalties = _penalties(self.lengths, inverse_mean)[self.passages]
        gains = idf[self.terms] * self.counts / (self.counts + penalties) - rest[keys]
        scores += np.bincount(self.passages, gains, len(owners))
        best = np.lexsort((self.numbers, -scores, owners))[starts]
        return documents, scores[best], self.numbers[best]


def _penalties(lengths: np.ndarray, inverse_mean: float) -> np.ndarray:
    """Return the length penalties of passages of some words, with the rest of their entries."""
    return K1 * (1.0 - B + B * (lengths + CONTEXT) * inverse_mean)


class PassageIndex:
    """Count of each term in the passages of long documents, by slot of the document.

    Passages of removed documents are excluded by the selections until `settle` drops them, as in `LexicalIndex`.
    """

    def __init__(self) -> None:
        self.lexical = LexicalIndex()
        self.slots = np.zeros(0, np.int64)  # of the document, by passage; -1 where a passage was dropped
        self.numbers = np.zeros(0, np.int64)  # of the passage within its document

    def add(self, slots: np.ndarray, texts: Sequence[str]) -> None:
        """Add the passages of long documents at as many slots `(n,)`."""
        passages = [split_passages(text) for text in texts]
        sizes = list(map(len, passages))
        first = len(self.slots)
        self.slots = np.concatenate([self.slots, np.repeat(slots, sizes)])
        self.numbers = np.concatenate([self.numbers, *map(np.arange, sizes)]).astype(np.int64)
        self.lexical.add(np.arange(first, len(self.slots)), [part for parts in passages for part in parts])

    def settle(self, live: np.ndarray) -> None:
        """Drop the passages of slots that are not `live` (bool by slot)."""
        if len(self.slots):
            is_live = (self.slots >= 0) & live[self.slots]
            self.slots[~is_live] = -1
            self.lexical.settle(is_live)

    def match(self, query: Sequence[str], document_of_slot: np.ndarray) -> PassageMatches | None:
        """Return the matches among the passages of selected documents; None if there are none.

        Args:
            query: Terms of the query.
            document_of_slot: Index of each slot's document in the selection, -1 where it is not selected.
        """
        postings = self.lexical.term_postings(query)
        if not len(self.slots) or not postings:
            return None
        passages = np.concatenate([part for _, part, _ in postings])
        slots = self.slots[passages]
        selected = np.flatnonzero((slots >= 0) & (document_of_slot[slots] >= 0))
        if not len(selected):
            return None
        terms = np.repeat(np.arange(len(postings)), [len(part) for _, part, _ in postings])[selected]
        counts = np.concatenate([counts for _, _, counts in postings])[selected]
        passages = passages[selected]
        is_match = np.zeros(len(self.slots), bool)
        is_match[passages] = True
        indices = np.cumsum(is_match) - 1
        matching = np.flatnonzero(is_match)
        documents = document_of_slot[self.slots[matching]].astype(np.int64)
        lengths = self.lexical.lengths[matching].astype(np.int64)
        return PassageMatches(terms, indices[passages], counts, documents, lengths, self.numbers[matching])


REACH = 3  # steps
STEPS = range(1, REACH + 1)
NEAR = 32  # words up to which a span lends all of its words
REACHED = 0.1  # smallest count with which a document counts as holding a word
DOUBT = 8.0  # pairs added to those found and to those expected: few do not tell whether spans hang together
_SPARSE = 24  # a word that fewer than 1 / _SPARSE of the spans hold is spread from its holders alone


class Span(NamedTuple):
    """Origin of a raw span: its source, the chunk, and the log position that created it."""

    source: str
    chunk: int
    position: int

    @classmethod
    def from_origin(cls, source: str | None, chunk: int | None, turn: str | None, position: int) -> Span | None:
        """Return the span of an entry with this origin; None if it lacks a source or a turn.

        Args:
            source: Source of the entry.
            chunk: Chunk within the source; None sorts before all others.
            turn: Turn within the chunk.
            position: Log position that created the entry, by which spans of a chunk are ordered.
        """
        return None if source is None or turn is None else cls(source, -1 if chunk is None else chunk, position)


class NeighbourBM25:
    """BM25 of n documents, some of which are spans of a source.

    Attributes:
        inverse_mean: 1 / the mean length of passages, with the neighbours' words.
    """

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> None:
        """Lay out the documents, of which at least one is a span.

        Args:
            sources: Number of each span's source, 0 for documents that are no spans, `(n,)`.
            chunks: Chunk of each span `(n,)`.
            positions: Log position that created each span `(n,)`; chunk and position are unique within a source.
            lengths: Words of each document `(n,)`.
        """
        order = np.lexsort((positions, chunks, sources))
        ordered_sources, ordered_lengths = sources[order], lengths[order]
        lends = NEAR / np.maximum(ordered_lengths, NEAR)
        for _ in range(3):  # not `**`: the last digit must not depend on the index
            lends = lends * lends
        lends[(ordered_sources == 0) | (ordered_lengths > WINDOW)] = 0.0
        first = np.diff(ordered_sources, prepend=-1) != 0
        # Runs of spans that lend lie on one line, with gaps between them and at both ends, so no words cross.
        is_linked = lends > 0
        previous_linked = np.append(False, is_linked[:-1]) & ~first
        self._linked = order[is_linked]
        starts = (is_linked & ~previous_linked)[is_linked]
        self._line_indices = np.arange(len(self._linked)) + REACH * np.cumsum(starts)
        self._line_of_document = np.full(len(order), -1, np.int64)
        self._line_of_document[self._linked] = self._line_indices
        self._line_size = (int(self._line_indices[-1]) if len(self._linked) else REACH) + 1 + REACH

        near = sum(np.count_nonzero(self._line_indices[step:] - self._line_indices[:-step] <= REACH) for step in STEPS)
        self._near_share = near / max(1, math.comb(len(self._linked), 2))  # of all pairs of spans

        counts = count_passages(lengths)
        mass = min(float(NEAR), lengths.sum() / counts.sum())
        linked_lengths = lengths[self._linked]
        self._lends = self._line(lends[is_linked])
        received = self._line(mass / (mass + linked_lengths) if mass else np.zeros(len(linked_lengths)))
        inside = slice(REACH, self._line_size - REACH)
        self._weights = []  # before and after, by steps, for the indices between the ends
        weight = np.ones(self._line_size - 2 * REACH)
        before, after = weight, weight
        for steps in STEPS:
            weight = weight * received[inside]  # not a power: the last digit must not depend on the index
            before = before * self._shifted(self._lends, -steps)
            after = after * self._shifted(self._lends, steps)
            self._weights.append((weight * before, weight * after))
        around = np.zeros(self._line_size)
        around[inside] = self._sum_neighbours(self._line(linked_lengths))
        effective = lengths / counts + np.where(lengths > WINDOW, CONTEXT, 0)
        effective[self._linked] += around[self._line_indices]
        mean = math.fsum(effective * counts) / counts.sum()  # exact in any order of the documents
        self.inverse_mean = 1.0 / mean if mean else 0.0
        effective_lengths = lengths.astype(np.float64)
        effective_lengths[self._linked] = effective[self._linked]
        self._penalties = K1 * (1.0 - B + B * effective_lengths * self.inverse_mean)

    def _line(self, values: np.ndarray) -> np.ndarray:
        """Return values of the linked documents on the line, 0 in the gaps."""
        line = np.zeros(self._line_size)
        line[self._line_indices] = values
        return line

    def _shifted(self, line: np.ndarray, steps: int) -> np.ndarray:
        """Return the values some steps away, for the indices between the ends of the line."""
        return line[REACH + steps : self._line_size - REACH + steps]

    def _sum_neighbours(self, line: np.ndarray) -> np.ndarray:
        """Return the weighted sums of neighbouring values, for the indices between the ends of the line."""
        around = np.zeros(self._line_size - 2 * REACH)
        for steps, (before, after) in enumerate(self._weights, start=1):
            around += before * self._shifted(line, -steps)
            around += after * self._shifted(line, steps)
        return around

    def _spread(self, indices: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the counts of a word on the line, with those of its neighbours where a span lacks it.

        Args:
            indices: Indices on the line of the spans that hold the word.
            counts: Its counts there.
        """
        line = np.bincount(indices, counts, self._line_size).astype(np.float64, copy=False)
        if len(indices) * _SPARSE > self._line_size:
            inner = line[REACH : self._line_size - REACH]
            np.copyto(inner, self._sum_neighbours(line), where=inner == 0.0)
            return line
        around = np.zeros(self._line_size)
        for steps, (before, after) in enumerate(self._weights, start=1):
            for weights, step in ((before, steps), (after, -steps)):  # from a span to the one `step` after it
                targets = indices + step
                inside = (targets >= REACH) & (targets < self._line_size - REACH)
                around[targets[inside]] += weights[targets[inside] - REACH] * counts[inside]
        around[indices] = counts
        return around

    def relatedness(self, matches: TermMatches | None) -> float:
        """Return the share by which neighbours count for a query's matches, from 0 (as in a random order) to 1."""
        if matches is None:
            return 1.0
        lines = self._line_of_document[matches.documents]
        counted = (lines >= 0) & matches.is_lent[matches.terms]
        terms, lines = matches.terms[counted], lines[counted]
        holders = np.bincount(terms, minlength=len(matches.repeats))
        is_rare = holders <= max(REACH, math.sqrt(len(self._linked)))
        places = np.sort((terms * self._line_size + lines)[is_rare[terms]])  # those of two terms are never within reach
        found = sum(np.count_nonzero(places[step:] - places[:-step] <= REACH) for step in STEPS)
        expected = float((holders * (holders - 1) / 2)[is_rare].sum()) * self._near_share
        related = (found - expected + DOUBT) / (expected * (1.0 - self._near_share) + DOUBT)
        return min(1.0, max(0.0, related))

    def scores(self, matches: TermMatches | None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and term weights for a query's matches.

        Returns:
            Scores of all documents, float64 `(n,)`, 0 where no word reaches, and the weight of each term `(t,)`.
        """
        size = len(self._line_of_document)
        total = np.zeros(size)
        if matches is None:
            return total, np.zeros(0)
        idf = np.zeros(len(matches.repeats))
        ends = np.searchsorted(matches.terms, np.arange(len(matches.repeats) + 1))
        for term, (start, end) in enumerate(pairwise(ends.tolist())):
            if start == end:
                continue
            documents, counts = matches.documents[start:end], matches.counts[start:end].astype(np.float64)
            indices = self._line_of_document[documents]
            is_linked = indices >= 0
            holders = indices[is_linked], counts[is_linked]
            line = self._spread(*holders) if matches.is_lent[term] else np.bincount(*holders, self._line_size)
            reached = np.flatnonzero(line[self._line_indices])
            reached_documents, reached_counts = self._linked[reached], line[self._line_indices[reached]]
            alone, alone_counts = documents[~is_linked], counts[~is_linked]
            holders = len(alone) + np.count_nonzero(reached_counts >= REACHED)
            idf[term] = math.log(1.0 + (size - holders + 0.5) / (holders + 0.5)) * matches.repeats[term]
            total[alone] += idf[term] * alone_counts / (alone_counts + self._penalties[alone])
            penalties = self._penalties[reached_documents]
            total[reached_documents] += idf[term] * reached_counts / (reached_counts + penalties)
        return total, idf
