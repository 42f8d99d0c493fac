"""Porter's stemmer for English (M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980).

Two departures, both of the author's own later reference program: words of one or two letters are left alone, and
step 2 has `bli -> ble` and `logi -> log`. `stem` is used for lexical search; `nltk_stem` is NLTK's default
variant, with which LoCoMo's official script counts.
"""

from __future__ import annotations

from functools import lru_cache

_STEP2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_STEP3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def _shape(word: str) -> str:
    """Return `c` or `v` for each letter; y is a vowel after a consonant."""
    shape = ""
    for index, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and index > 0 and shape[-1] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(stem: str) -> int:
    """Return Porter's m: the number of consonants that follow a vowel sequence."""
    return _shape(stem).count("vc")


def _has_vowel(stem: str) -> bool:
    return "v" in _shape(stem)


def _double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _cvc(word: str, *, short: bool = False) -> bool:
    """Return True for *o: a consonant-vowel-consonant end without w, x or y, or with `short` a vowel and consonant."""
    shape = _shape(word)
    return (len(word) > 2 and shape[-3:] == "cvc" and word[-1] not in "wxy") or (short and shape == "vc")


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Apply the longest matching suffix rule if the stem before it has m > 0."""
    for suffix, new in sorted(rules, key=lambda rule: -len(rule[0])):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + new if _measure(stem) > 0 else word
    return word


def _plural(word: str) -> str:
    """Apply step 1a."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _inflected(word: str, *, short: bool = False) -> str:
    """Apply step 1b; `short` as in `_cvc`."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = "ed" if word.endswith("ed") else "ing" if word.endswith("ing") else ""
    if not suffix or not _has_vowel(word[: -len(suffix)]):
        return word
    word = word[: -len(suffix)]
    if word.endswith(("at", "bl", "iz")) or (_measure(word) == 1 and _cvc(word, short=short)):
        return word + "e"
    return word[:-1] if _double(word) and word[-1] not in "lsz" else word


def _step1(word: str) -> str:
    word = _inflected(_plural(word))
    return word[:-1] + "i" if word.endswith("y") and _has_vowel(word[:-1]) else word


def _step4(word: str) -> str:
    for suffix in sorted(_STEP4, key=len, reverse=True):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if _measure(stem) > 1 and (suffix != "ion" or stem.endswith(("s", "t"))):
                return stem
            return word
    return word


def _step5(word: str, *, short: bool = False) -> str:
    if word.endswith("e"):
        stem = word[:-1]
        if _measure(stem) > 1 or (_measure(stem) == 1 and not _cvc(stem, short=short)):
            word = stem
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the Porter stem of one lower-case word; only a-z words of three letters or more are changed."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _step1(word)
    word = _replace(word, _STEP2)
    word = _replace(word, _STEP3)
    return _step5(_step4(word))


_NLTK_IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "innings": "inning",
    "inning": "inning", "outings": "outing", "outing": "outing", "cannings": "canning", "canning": "canning",
    "howe": "howe", "proceed": "proceed", "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip


@lru_cache(maxsize=65536)
def nltk_stem(word: str) -> str:
    """Return the stem of one lower-case token by NLTK's default variant of Porter's algorithm.

    It differs from `stem` in a table of irregular words; in `dies`, `died` -> `die`; y -> i after any consonant but a
    first letter ("fly"), never after a vowel ("enjoy"); *o holds of the `us` of "using"; step 2 takes `alli` off first,
    has `fulli -> ful` and a milder `logi`; and tokens that are no a-z words are stemmed too ("1980s").
    """
    if word in _NLTK_IRREGULAR or len(word) < 3:
        return _NLTK_IRREGULAR.get(word, word)
    word = word[:-1] if len(word) == 4 and word.endswith("ies") else _plural(word)
    ended = word[:-1] if len(word) == 4 else word[:-2]
    word = ended if word.endswith("ied") else _inflected(word, short=True)
    if len(word) > 2 and word.endswith("y") and _shape(word)[-2] == "c":
        word = word[:-1] + "i"
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        word = _replace(word, (*_STEP2, ("fulli", "ful")))
    return _step5(_step4(_replace(word, _STEP3)), short=True)
