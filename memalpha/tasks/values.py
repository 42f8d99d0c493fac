"""Which values a split may use, and fresh ones for a task: pools split by a fixed hash, pseudo-words, no collisions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Literal

from memalpha.errors import DataError
from memalpha.tasks.phrases import POOLS, words

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


@cache
def pool_values(pool: str, split: Split) -> tuple[str, ...]:
    """`split_values` of the pool with this name."""
    return split_values(POOLS[pool], split)


@cache
def _real_words() -> frozenset[str]:
    return frozenset(value.lower() for values in POOLS.values() for value in values)


def pseudo_word(rng: Random) -> str:
    """A pronounceable lower-case word of two or three syllables that is no pool's word."""
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if word not in _real_words():
            return word


class ValueSource:
    """Draws values that no other draw of the same source gave. `pseudo` is the share of pseudo-words (split train)."""

    def __init__(self, rng: Random, split: Split, pseudo: float = 0.0) -> None:
        self._rng = rng
        self._split: Split = split
        self._pseudo = pseudo if split == "train" else 0.0
        self._used: set[str] = set()

    def draw(self, pool: str) -> str:
        """A value of the pool, or a pseudo-word in its place with the pool's capitalisation.

        Raises `DataError` when the task needs more distinct values than the split's pool holds.
        """
        rng = self._rng
        if self._pseudo and rng.random() < self._pseudo:
            model = rng.choice(pool_values(pool, self._split))
            word = pseudo_word(rng)
            while word in self._used:
                word = pseudo_word(rng)
            self._used.add(word)
            return word.capitalize() if model[0].isupper() else word
        free = [value for value in pool_values(pool, self._split) if value.lower() not in self._used]
        if not free:
            raise DataError(f"the {self._split} pool {pool!r} has no value left for this task: ask for a smaller shape")
        value = rng.choice(free)
        self._used.add(value.lower())
        return value


def fill(template: str, value: str = "", old: str = "", *, when: str = "", name: str = "") -> str:
    """A sentence from a template with `{v}`, `{an}`, `{old}`, `{old_an}`, `{when}`, `{When}`, `{n}` (the person)."""
    return template.format(
        v=value,
        an=with_article(value),
        old=old,
        old_an=with_article(old),
        when=when,
        When=when.capitalize(),
        n=name,
    )


def with_article(value: str) -> str:
    """`value` after its indefinite article; "" stays ""."""
    if not value:
        return ""
    return f"{'an' if value[0].lower() in 'aeio' else 'a'} {value}"
