"""Values for tasks: pools divided between splits by a fixed hash, pseudo-words, no collisions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import cache
from random import Random
from typing import Literal

from memalpha.errors import DataError
from memalpha.tasks.synthetic.phrases import FULL_POOLS, words

Split = Literal["train", "test"]

HELD_OUT = 0.25
"""Share of every pool that belongs to split "test"."""

_ONSETS = words("b br d dr f fl g gr h j k kl l m n p pl r s st t tr v z")
_VOWELS = words("a e i o u ai ou")
_CODAS = ("", "", "", *"lnrsxmk")


def split_values(values: Sequence[str], split: Split) -> tuple[str, ...]:
    """Return the values that `split` may use, in their order.

    The division never changes: values are ranked by SHA-256.
    """
    ranked = sorted(values, key=lambda value: hashlib.sha256(value.encode()).digest())
    held_out = set(ranked[: round(len(ranked) * HELD_OUT)])
    return tuple(value for value in values if (value in held_out) == (split == "test"))


def is_held_out(key: str, share: float = HELD_OUT) -> bool:
    """Return True if `key` belongs to split "test".

    The share `share` of all keys does. The division never changes: it is computed with SHA-256.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") < share * 2**32


@cache
def pool_values(pool: str, split: Split) -> tuple[str, ...]:
    """Return `split_values` of the pool with this name."""
    return split_values(FULL_POOLS[pool], split)


@cache
def _real_words() -> frozenset[str]:
    return frozenset(value.lower() for values in FULL_POOLS.values() for value in values)


def pseudo_word(rng: Random) -> str:
    """Draw a pronounceable lower-case word of two or three syllables that no pool has."""
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if word not in _real_words():
            return word


class ValueSource:
    """Draw values for one task.

    `pseudo` is the share of pseudo-words in place of a pool's values, in split "train" only.
    """

    def __init__(self, rng: Random, split: Split, pseudo: float = 0.0) -> None:
        self._rng = rng
        self._split: Split = split
        self._pseudo = pseudo if split == "train" else 0.0
        self._used: set[str] = set()

    def draw(self, pool: str) -> str:
        """Draw a value that `draw` never gave before.

        Raises:
            DataError: The task needs more distinct values than the split's pool holds.
        """
        value = self.draw_other(pool, self._used)
        self._used.add(value.lower())
        return value

    def draw_other(self, pool: str, excluded: Collection[str]) -> str:
        """Draw a value of the pool, or a pseudo-word capitalised like it.

        It is not in `excluded` (lower case).

        Raises:
            DataError: Every value is excluded.
        """
        rng, pool_words = self._rng, pool_values(pool, self._split)
        if self._pseudo and rng.random() < self._pseudo:
            model = rng.choice(pool_words)
            word = pseudo_word(rng)
            while word in excluded:
                word = pseudo_word(rng)
            return word.capitalize() if model[0].isupper() else word
        for _ in range(8 if len(pool_words) > 64 else 0):  # avoids listing a large pool for each draw
            value = rng.choice(pool_words)
            if value.lower() not in excluded:
                return value
        unused = [value for value in pool_words if value.lower() not in excluded]
        if not unused:
            raise DataError(f"the {self._split} pool {pool!r} has no value left for this task: ask for a smaller one")
        return rng.choice(unused)


def fill(template: str, value: str = "", old: str = "", *, when: str = "", name: str = "") -> str:
    """Fill a template with `{v}`, `{an}`, `{old}`, `{old_an}`, `{when}`, `{When}` and `{n}`.

    Args:
        template: Sentence with placeholders.
        value: The value, `{v}`, and `{an}` with its article.
        old: The value before, `{old}`, and `{old_an}` with its article.
        when: Time, `{when}`, and `{When}` with a capital.
        name: The person, `{n}`.
    """
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
    """Return `value` after its indefinite article; "" stays ""."""
    if not value:
        return ""
    return f"{'an' if value[0].lower() in 'aeio' else 'a'} {value}"
