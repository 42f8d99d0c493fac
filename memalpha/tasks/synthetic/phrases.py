"""Words of the synthetic worlds: value pools and sentences, from `memalpha/data/synthetic_worlds.yaml`.

Sentences state, change, retract and ask. The demo's pools are pairwise disjoint (ignoring case) and no sentence
contains a pool's word, so a value in a text always comes from the generator. In a sentence `{v}` is the value, `{an}`
the value with its article, `{old}` the value it replaces and `{old_an}` that one with its article. In a sentence of the
full world `{n}` is the person: a name, or "my mentor" where a question goes through a relation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random
from typing import Literal, get_args

from pydantic import TypeAdapter

from memalpha.errors import DataError
from memalpha.tasks.formats.files import load_shipped_yaml


@dataclass(frozen=True, slots=True)
class Attribute:
    """Describe a single-valued attribute of a person; `key` is its name in an entry (`city: Oslo`).

    A `states` sentence about a filled slot is an update without a cue word. `distractors` name a value without stating
    the fact (third person, hypothetical, negated). The user's `questions` name the key, so that a reader without a
    language model can answer from a perfect memory. Questions about other people need not.
    """

    key: str
    states: tuple[str, ...]
    updates: tuple[str, ...]
    retracts: tuple[str, ...]
    questions: tuple[str, ...]
    distractors: tuple[str, ...]
    pool: str = ""
    """Pool of its values; "" stands for the pool named like the key."""

    def __post_init__(self) -> None:
        if not self.pool:
            object.__setattr__(self, "pool", self.key)


@dataclass(frozen=True, slots=True)
class EventKind:
    """Describe a kind of event of the user (`trip: Rome`).

    `{when}` is "today", "yesterday" or the like. `distractors` are about a third person, hypothetical and negated, in
    this order.
    """

    key: str
    pool: str
    states: tuple[str, ...]
    counts: tuple[str, ...]
    whens: tuple[str, ...]
    distractors: tuple[str, ...]


def words(text: str) -> tuple[str, ...]:
    """Split a text at white space."""
    return tuple(text.split())


def _relation(key: str, changes: bool) -> Attribute:
    states = (f"My {key} is {{v}}.", f"{{v}} is my {key}.", f"I have a {key} called {{v}}.")
    updates = (f"My new {key} is {{v}}.", f"{{v}} is my {key} now.", f"My {key} is no longer {{old}} but {{v}}.")
    questions = (f"Who is my {key}?", f"What is the name of my {key}?")
    distractors = (f"I wish {{v}} were my {key}.", f"{{v}} was never my {key}.", f"People take {{v}} for my {key}.")
    return Attribute(key, states, updates if changes else (), (), questions, distractors, pool="person")


_DATA = load_shipped_yaml("synthetic_worlds.yaml")
_PARTS = {name: words(text) for name, text in _DATA["parts"].items()}

POOLS: dict[str, tuple[str, ...]] = {name: words(text) for name, text in _DATA["pools"].items()}
PEOPLE = _PARTS["people"]
FULL_POOLS: dict[str, tuple[str, ...]] = {
    **POOLS,
    "person": PEOPLE,
    "place": tuple(start + end for start, end in product(_PARTS["place_starts"], _PARTS["place_ends"])),
    "title": tuple(f"The {adjective} {noun}" for adjective, noun in product(_PARTS["adjectives"], _PARTS["nouns"])),
    "group": tuple(f"{adjective} {noun}s" for adjective, noun in product(_PARTS["adjectives"], _PARTS["nouns"])),
    "guest": tuple(f"{first} {last}" for first, last in product(POOLS["name"], _PARTS["surnames"])),
}
"""All pools: the demo's, names of people, and large composed ones for events."""

_attributes = TypeAdapter(tuple[Attribute, ...])
ATTRIBUTES = _attributes.validate_python(_DATA["attributes"])
PERSON_ATTRIBUTES = _attributes.validate_python(_DATA["person_attributes"])
"""Attributes of named people; an entry reads `Tom city: Oslo`."""
RELATIONS: tuple[Attribute, ...] = tuple(
    _relation(key, key not in ("niece", "nephew", "stepson"))
    for key in words("niece nephew stepson manager landlord tutor roommate mentor therapist trainer")
)
"""Single-valued relations of the user; their values are people, so questions can chain through them."""

EVENTS = TypeAdapter(tuple[EventKind, ...]).validate_python(_DATA["events"])
FULL_EVENTS = tuple(replace(event, pool=_DATA["event_pools"][event.key]) for event in EVENTS)
EVENT_NAMES: dict[str, str] = _DATA["event_names"]
"""Wording of an event inside a question about two events."""

ORDER = ("What came first, {a} or {b}?", "Which was earlier, {a} or {b}?")
BETWEEN = ("How many days lie between {a} and {b}?", "How many days were there between {a} and {b}?")
PREVIOUS = ("What was {whose} {key} before {v}?", "Before {v}, what was {whose} {key}?")

CHITCHAT = tuple(_DATA["chitchat"])
REPLIES = tuple(_DATA["replies"])
ECHOES = tuple(_DATA["echoes"])
STALE_ECHOES = tuple(_DATA["stale_echoes"])
"""Frames in which the assistant repeats a user's statement, which may be stale."""
QUOTES = tuple(_DATA["quotes"])
"""Frames of a quoted first-person statement that is not the user's."""
FILLER: tuple[tuple[str, ...], ...] = tuple(map(tuple, _DATA["filler"]))
"""Columns of filler sentences: one phrase of each, in order."""
FILLER_REPLIES: tuple[tuple[str, ...], ...] = tuple(map(tuple, _DATA["filler_replies"]))

WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
DAYS_AGO = {0: "today", 1: "yesterday", 2: "two days ago", 3: "three days ago", 4: "four days ago", 7: "a week ago"}


Split = Literal["train", "test"]
Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Levels of generated problems."""

HELD_OUT = 0.25
"""Share of every pool that belongs to split "test"."""

_ONSETS = words("b br d dr f fl g gr h j k kl l m n p pl r s st t tr v z")
_VOWELS = words("a e i o u ai ou")
_CODAS = ("", "", "", *"lnrsxmk")
_REAL_WORDS = frozenset(value.lower() for values in FULL_POOLS.values() for value in values)


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


def pseudo_word(rng: Random) -> str:
    """Draw a pronounceable lower-case word of two or three syllables that no pool has."""
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if word not in _REAL_WORDS:
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
