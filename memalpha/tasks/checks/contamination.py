"""Whether a test set leaks into a training set: shared questions, shared passages, shared n-grams.

Texts are compared as words: runs of letters and digits, in lower case. A *passage* is a turn or, of a chunk of plain
text, the chunk and each of its lines. A question rests on the passages that its evidence names; without evidence, on
all that may have been read when it is asked. What is found of a test question:

| reason          | meaning                                                                                   |
|-----------------|-------------------------------------------------------------------------------------------|
| question        | the training set asks it, word for word                                                   |
| said            | it stands in the training text, word for word, as a passage                               |
| question n-gram | n consecutive words of it stand in a training text or question                            |
| within          | it has at least 5 and fewer than n words, and stands inside a longer training text        |
| passage         | a passage of n words or more that it rests on stands in the training text, word for word  |
| passage n-gram  | n consecutive words of a passage that it rests on stand in a training text or question    |

By the first three a question is leaked. Whether it is by the fourth, one has to look: what is around it may be a frame
("Sentence: ... Label: 3"), or make another question of it. By the others it rests on what was trained on, as every
question on a public text may.

n-grams are those of the contamination study of GPT-3 (Brown et al. 2020, appendix C): n = 13, and one that occurs in
more than ten different training texts is a phrase, not a leak. There a text is a document, here a passage or question.
Passages shorter than n words are found by equality alone; so are languages without blanks between words.

The test set's n-grams are held as sorted 64-bit hashes while the training set streams by, one task at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from memalpha.errors import DataError
from memalpha.types import Chunk, Question, Task

N = 13
COMMON = 10
"""In more training texts than this, an n-gram is a common phrase."""
WITHIN = 5
"""Of fewer words than this, a question that stands inside a longer text may be chance."""
LEAKED = ("question", "said", "question n-gram")
INSIDE = ("within",)
RESTING = ("passage", "passage n-gram")
REASONS = LEAKED + INSIDE + RESTING

_WORD = re.compile(r"[^\W_]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, with well-mixed bits (the golden ratio's)
_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Example:
    """A test question: the reason, the test text that is shared, and where the training set has it."""

    reason: str
    question: str
    task: str
    text: str
    train: str
    train_text: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a training and a test set share. `reasons` counts test questions, one for every reason that it has.

    `leaked`, `inside` and `resting` name test questions as `task/question`: those with a reason of `LEAKED`, of
    `INSIDE` and no such, and of `RESTING`.
    `passages` counts the different test passages of n words or more that stand in the training set, by how: "whole" or
    "n-gram". `sizes` has `tasks`, `questions`, `passages` and `words` of "train" and "test".
    """

    n: int
    questions: int
    leaked: tuple[str, ...]
    inside: tuple[str, ...]
    resting: tuple[str, ...]
    reasons: dict[str, int]
    passages: dict[str, int]
    sizes: dict[str, dict[str, int]]
    examples: tuple[Example, ...] = ()


@dataclass(slots=True)
class _Texts:
    """The different texts of a test set, by number; `words` are the hashes of the words of each."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    words: list[np.ndarray] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def number(self, text: str, words: np.ndarray) -> int:
        key = words.tobytes()
        if key not in self.numbers:
            self.numbers[key] = len(self.words)
            self.words.append(words)
            self.shown.append(text)
        return self.numbers[key]


class _Hasher:
    """Words as 64-bit hashes, each computed once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> np.ndarray:
        found, known = words(text), self._known
        for word in found:
            if word not in known:
                known[word] = int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
        return np.fromiter((known[word] for word in found), np.uint64, len(found))


def overlap(
    train: Iterable[Task],
    test: Sequence[Task],
    *,
    n: int = N,
    common: int = COMMON,
    examples: int = 20,
    progress: Callable[[], object] | None = None,
) -> Overlap:
    """What `train` has of `test`, with the first `examples` of each reason; `progress` is called after every task.

    Raises `DataError` for `n` or `common` below 1, or `examples` below 0.
    """
    if n < 1 or common < 1:
        raise DataError(f"n={n}, common={common}: each must be at least 1")
    if examples < 0:
        raise DataError(f"examples={examples}: a number of examples is needed, 0 for none")
    hashed, texts = _Hasher(), _Texts()
    asked = [
        (task.id, question, texts.number(wording(question), hashed(wording(question))), rests)
        for task in test
        for question, rests in _resting(task, texts, hashed)
    ]
    seen = _Seen(texts, n, {own for _, _, own, _ in asked})
    for task in train:
        seen.read(task, hashed)
        if progress is not None:
            progress()
    return _report(asked, texts, seen, n, common, examples)


def words(text: str) -> list[str]:
    """A text as it is compared."""
    return _WORD.findall(text.lower())


def wording(question: Question) -> str:
    """The question without what a loader put around it: `meta["text"]`, where it is a text."""
    text = question.meta.get("text")
    return text if isinstance(text, str) else question.question


def passages(chunk: Chunk) -> list[str]:
    """The texts of a chunk that may be shared: its turns; or all of it, and each of its lines."""
    if chunk.text is None:
        return [turn.text for turn in chunk.turns]
    lines = [line for line in chunk.text.splitlines() if line.strip()]
    return [chunk.text] if len(lines) < 2 else [chunk.text, *lines]


def _told(task: Task) -> Iterator[tuple[str, str, str, bool]]:
    """Kind, place and text of all that a training task says, and whether it is a line of a text that came before."""
    for question in task.questions:
        yield "questions", question.id, wording(question), False
    for chunk in task.chunks:
        for number, text in enumerate(passages(chunk)):
            yield "passages", f"chunk {chunk.index}", text, chunk.text is not None and number > 0


def _resting(task: Task, texts: _Texts, hashed: _Hasher) -> Iterator[tuple[Question, list[int]]]:
    """Every question of a task with the numbers of the passages that it rests on."""
    by_chunk: list[list[int]] = []
    by_turn: dict[str, int] = {}
    for chunk in task.chunks:
        numbers = [texts.number(text, hashed(text)) for text in passages(chunk)]
        by_chunk.append(numbers)
        if chunk.text is None:
            by_turn |= {turn.id: number for turn, number in zip(chunk.turns, numbers, strict=True) if turn.id}
    for question in task.questions:
        named = [by_turn[id] for id in question.evidence if id in by_turn]
        last = len(task.chunks) if question.asked_after_chunk is None else question.asked_after_chunk + 1
        yield question, named or [number for numbers in by_chunk[:last] for number in numbers]


class _Seen:
    """What of the test set's texts has been met in the training set."""

    def __init__(self, texts: _Texts, n: int, questions: set[int]) -> None:
        self.n, self._numbers = n, texts.numbers
        grams = [_grams(words, n) for words in texts.words]
        self.owners = np.repeat(np.arange(len(grams)), [len(of) for of in grams])
        """The text of every n-gram of the test set."""
        self.keys, self.of = np.unique(np.concatenate([np.empty(0, np.uint64), *grams]), return_inverse=True)
        self.counts = np.zeros(len(self.keys), np.int64)
        self.places: dict[int, tuple[str, str]] = {}
        """Where an n-gram was met first: the place and its text; `asked` and `said` likewise, by text."""
        self.asked: dict[int, tuple[str, str]] = {}
        self.said: dict[int, tuple[str, str]] = {}
        self.within: dict[int, tuple[str, str]] = {}
        self._short: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Questions of fewer than n words by their length: sorted hashes, and the texts that these are of."""
        for size in range(WITHIN, n):
            own = np.array([number for number in questions if len(texts.words[number]) == size], np.int64)
            if len(own):
                hashes = np.concatenate([_grams(texts.words[number], size) for number in own])
                order = np.argsort(hashes)
                self._short[size] = hashes[order], own[order]
        self._least = min([n, *self._short])
        self.sizes: dict[str, int] = dict.fromkeys(("tasks", "questions", "passages", "words"), 0)
        self._met: set[bytes] = set()

    def read(self, task: Task, hashed: _Hasher) -> None:
        self.sizes["tasks"] += 1
        units: list[np.ndarray] = []
        where: list[tuple[str, str]] = []
        for kind, place, text, line in _told(task):
            words = hashed(text)
            if not line:  # else it has been counted with its chunk, and its n-grams are the chunk's
                self.sizes[kind] += 1
                self.sizes["words"] += len(words)
            key, at = words.tobytes(), (f"{task.id}, {place}", text)
            if key in self._numbers:
                (self.asked if kind == "questions" else self.said).setdefault(self._numbers[key], at)
            # A text that comes again (an example of several tasks) is no other text.
            digest = blake2b(key, digest_size=16).digest()
            if len(words) >= self._least and not line and digest not in self._met:
                self._met.add(digest)
                units.append(words)
                where.append(at)
        if units:
            self._count(units, where)

    def _count(self, units: Sequence[np.ndarray], where: Sequence[tuple[str, str]]) -> None:
        """Each n-gram of the test set counts once for every unit that it occurs in."""
        lengths = np.array([len(words) for words in units])
        unit, words = np.repeat(np.arange(len(units)), lengths), np.concatenate(units)
        met, number = np.divmod(np.unique(self._hits(self.keys, words, unit, self.n, len(units))), len(units))
        np.add.at(self.counts, met, 1)
        for gram, at in zip(met.tolist(), number.tolist(), strict=True):
            self.places.setdefault(gram, where[at])
        for size, (keys, texts) in self._short.items():
            for hit in self._hits(keys, words, unit, size, len(units)).tolist():
                found, at = divmod(hit, len(units))
                if lengths[at] > size:  # else they are equal
                    self.within.setdefault(int(texts[found]), where[at])

    @staticmethod
    def _hits(keys: np.ndarray, words: np.ndarray, unit: np.ndarray, n: int, units: int) -> np.ndarray:
        """Where n-grams that lie in one unit are among the sorted `keys`: the key's number times `units`, plus unit."""
        if not len(keys) or len(words) < n:
            return np.empty(0, np.int64)
        grams, unit = _grams(words, n), np.where(unit[: len(unit) - n + 1] == unit[n - 1 :], unit[n - 1 :], -1)
        place = np.minimum(np.searchsorted(keys, grams), len(keys) - 1)
        hit = (keys[place] == grams) & (unit >= 0)
        return place[hit] * units + unit[hit]


def _grams(words: np.ndarray, n: int) -> np.ndarray:
    """The hash of every n consecutive words, in order."""
    size = len(words) - n + 1
    total = np.zeros(max(size, 0), np.uint64)
    for shift in range(n if size > 0 else 0):
        total = total * _BASE + words[shift : shift + size]
    return total


def _report(
    asked: Sequence[tuple[str, Question, int, list[int]]],
    texts: _Texts,
    seen: _Seen,
    n: int,
    common: int,
    shown: int,
) -> Overlap:
    known = (seen.counts > 0) & (seen.counts <= common)
    first: dict[int, int] = {}  # text -> its first leaked n-gram
    for owner, gram in zip(seen.owners[known[seen.of]].tolist(), seen.of[known[seen.of]].tolist(), strict=True):
        first.setdefault(owner, gram)
    long = [number for number, words in enumerate(texts.words) if len(words) >= n]
    rested = {number for _, _, _, rests in asked for number in rests}
    leaked: list[str] = []
    inside: list[str] = []
    resting: list[str] = []
    reasons: dict[str, int] = dict.fromkeys(REASONS, 0)
    examples: list[Example] = []
    whole = {number for number in long if number in seen.said}
    for task, question, own, rests in asked:
        found: dict[str, tuple[int, tuple[str, str]]] = {}
        if len(texts.words[own]):
            found |= {"question": (own, seen.asked[own])} if own in seen.asked else {}
            found |= {"said": (own, seen.said[own])} if own in seen.said else {}
            found |= {"within": (own, seen.within[own])} if own in seen.within else {}
        found |= {"question n-gram": (own, seen.places[first[own]])} if own in first else {}
        if (number := next((number for number in rests if number in whole), None)) is not None:
            found["passage"] = (number, seen.said[number])
        if (number := next((number for number in rests if number in first), None)) is not None:
            found["passage n-gram"] = (number, seen.places[first[number]])
        id = f"{task}/{question.id}"
        if found.keys() & set(LEAKED):
            leaked.append(id)
        elif found.keys() & set(INSIDE):
            inside.append(id)
        if found.keys() & set(RESTING):
            resting.append(id)
        for reason, (number, (place, text)) in found.items():
            reasons[reason] += 1
            if reasons[reason] <= shown:
                examples.append(Example(reason, question.id, task, _short(texts.shown[number]), place, _short(text)))
    tested = {
        "tasks": len({task for task, *_ in asked}),
        "questions": len(asked),
        "passages": len(rested),
        "words": sum(len(texts.words[number]) for number in rested | {own for _, _, own, _ in asked}),
    }
    return Overlap(
        n=n,
        questions=len(asked),
        leaked=tuple(leaked),
        inside=tuple(inside),
        resting=tuple(resting),
        reasons=reasons,
        passages={"whole": len(whole & rested), "n-gram": len(rested & first.keys())},
        sizes={"train": seen.sizes, "test": tested},
        examples=tuple(sorted(examples, key=lambda example: REASONS.index(example.reason))),
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
