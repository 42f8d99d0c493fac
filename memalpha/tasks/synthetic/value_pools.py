"""Which values a split may use, and fresh ones for a task: pools split by a fixed hash, pseudo-words, no collisions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import cache
from random import Random
from typing import Literal

from memalpha.errors import DataError
from memalpha.tasks.synthetic.phrases import words
from memalpha.tasks.synthetic.phrases_full import FULL_POOLS

Split = Literal["train", "test"]

HELD_OUT = 0.25
"""Share of every pool that only split "test" uses."""

_ONSETS = words("b br d dr f fl g gr h j k kl l m n p pl r s st t tr v z")
_VOWELS = words("a e i o u ai ou")
_CODAS = ("", "", "", *"lnrsxmk")


def split_values(values: Sequence[str], split: Split) -> tuple[str, ...]:
    """The part of `values` that `split` may use, in their order; the same for ever (ranked by SHA-256 of the word)."""
    ranked = sorted(values, key=lambda value: hashlib.sha256(value.encode()).digest())
    held_out = set(ranked[: round(len(ranked) * HELD_OUT)])
    return tuple(value for value in values if (value in held_out) == (split == "test"))


def is_held_out(key: str, share: float = HELD_OUT) -> bool:
    """Whether what has this name is for split "test" alone, as `share` of all is; the same for ever (by SHA-256)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") < share * 2**32


@cache
def pool_values(pool: str, split: Split) -> tuple[str, ...]:
    """`split_values` of the pool with this name."""
    return split_values(FULL_POOLS[pool], split)


@cache
def _real_words() -> frozenset[str]:
    return frozenset(value.lower() for values in FULL_POOLS.values() for value in values)


def pseudo_word(rng: Random) -> str:
    """A pronounceable lower-case word of two or three syllables that is no pool's word."""
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if word not in _real_words():
            return word


class ValueSource:
    """Draws values for one task. `pseudo` is the share of pseudo-words in place of a pool's (split train only)."""

    def __init__(self, rng: Random, split: Split, pseudo: float = 0.0) -> None:
        self._rng = rng
        self._split: Split = split
        self._pseudo = pseudo if split == "train" else 0.0
        self._used: set[str] = set()

    def draw(self, pool: str) -> str:
        """A value that `draw` never gave before.

        Raises `DataError` when the task needs more distinct values than the split's pool holds.
        """
        value = self.draw_other(pool, self._used)
        self._used.add(value.lower())
        return value

    def draw_other(self, pool: str, taken: Collection[str]) -> str:
        """A value of the pool, or a pseudo-word with the pool's capitalisation, not among `taken` (lower-case).

        Raises `DataError` when every value is taken.
        """
        rng, known = self._rng, pool_values(pool, self._split)
        if self._pseudo and rng.random() < self._pseudo:
            model = rng.choice(known)
            word = pseudo_word(rng)
            while word in taken:
                word = pseudo_word(rng)
            return word.capitalize() if model[0].isupper() else word
        for _ in range(8 if len(known) > 64 else 0):  # a large pool is not listed for each draw
            value = rng.choice(known)
            if value.lower() not in taken:
                return value
        free = [value for value in known if value.lower() not in taken]
        if not free:
            raise DataError(f"the {self._split} pool {pool!r} has no value left for this task: ask for a smaller one")
        return rng.choice(free)


def fill(template: str, value: str = "", old: str = "", *, when: str = "", name: str = "") -> str:
    """A sentence from a template with `{v}`, `{an}`, `{old}`, `{old_an}`, `{when}`, `{When}`, `{n}` (the person)."""
    return template.format(
        v=value,
        an=with_article(value),
        old=old,
        old_an=with_article(old),
        when=when,
        When=when[:1].upper() + when[1:],  # not capitalize(): last Friday
        n=name,
    )


def with_article(value: str) -> str:
    """`value` after its indefinite article; "" stays ""."""
    if not value:
        return ""
    return f"{'an' if value[0].lower() in 'aeio' else 'a'} {value}"
