"""Contamination of a test set by a training set: shared questions, passages and n-grams.

Texts are compared as words: runs of letters and digits, in lower case. A *passage* is a turn. In a chunk of plain text
it is the whole chunk and each of its lines. A question rests on the passages that its evidence names; without evidence,
on all that may have been read when it is asked. A test question can have these reasons:

| reason          | meaning                                                                                   |
|-----------------|-------------------------------------------------------------------------------------------|
| question        | the training set asks it, word for word                                                   |
| said            | it stands in the training text, word for word, as a passage                               |
| question n-gram | n consecutive words of it stand in a training text or question                            |
| within          | it has at least 5 and fewer than n words, and stands inside a longer training text        |
| passage         | a passage of n words or more that it rests on stands in the training text, word for word  |
| passage n-gram  | n consecutive words of a passage that it rests on stand in a training text or question    |

The first three mean that the question is leaked. The fourth has to be looked at: the text around it may be a frame
("Sentence: ... Label: 3"), or make another question of it. The last two mean that it rests on text that was trained on,
as every question on a public text may.

n-grams are those of the contamination study of GPT-3 (Brown et al. 2020, appendix C): n = 13. An n-gram that occurs in
more than ten different training texts is a phrase, not a leak. There a text is a document, here a passage or question.
Passages shorter than n words are found by equality alone; so are languages without blanks between words.

The test set's n-grams are held as sorted 64-bit hashes while the training set streams by, one task at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np

from memalpha.errors import DataError
from memalpha.types import Chunk, Question, Task

N = 13
COMMON = 10
"""An n-gram in more training texts than this is a common phrase."""
WITHIN = 5
"""A question of fewer words than this may stand inside a longer text by chance."""
LEAKED = ("question", "said", "question n-gram")
INSIDE = ("within",)
RESTING = ("passage", "passage n-gram")
REASONS = LEAKED + INSIDE + RESTING

_WORD = re.compile(r"[^\W_]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, with well-mixed bits (the golden ratio's)
_EXCERPT_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Example:
    """Hold one reason of a test question: the shared text and its training source."""

    reason: str
    question: str
    task: str
    text: str
    train: str
    train_text: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Hold the overlap of a training and a test set.

    Attributes:
        n: Length of the n-grams in words.
        questions: Number of test questions.
        leaked: Test questions, as `task/question`, with a reason of `LEAKED`.
        inside: Test questions with a reason of `INSIDE` and none of `LEAKED`.
        resting: Test questions with a reason of `RESTING`.
        reasons: Number of test questions by reason.
        passages: Number of different test passages of n words or more in the training set: "whole" or by "n-gram".
        sizes: `tasks`, `questions`, `passages` and `words` of "train" and "test".
        examples: First examples of each reason.
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


_Asked = tuple[str, Question, int, list[int]]
"""Id of the task, question, number of its text, numbers of the passages that it rests on."""


class _Texts:
    """Number the different texts of a test set; hash the words of any text to 64 bits, each word once."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.words: list[np.ndarray] = []
        self.originals: list[str] = []
        self._hashes: dict[str, int] = {}

    def hash_words(self, text: str) -> np.ndarray:
        text_words, hashes = words(text), self._hashes
        for word in text_words:
            if word not in hashes:
                digest = blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
                hashes[word] = int.from_bytes(digest, "little")
        return np.fromiter((hashes[word] for word in text_words), np.uint64, len(text_words))

    def number(self, text: str) -> int:
        hashed = self.hash_words(text)
        number = self.numbers.setdefault(hashed.tobytes(), len(self.words))
        if number == len(self.words):
            self.words.append(hashed)
            self.originals.append(text)
        return number


def find_overlap(
    train: Iterable[Task],
    test: Sequence[Task],
    *,
    n: int = N,
    common: int = COMMON,
    examples: int = 20,
    progress: Callable[[], object] | None = None,
) -> Overlap:
    """Find the test questions and passages that a training set shares.

    Args:
        train: Training tasks; read once, one at a time.
        test: Test tasks.
        n: Length of the n-grams in words.
        common: An n-gram in more training texts than this is a common phrase.
        examples: Number of examples of each reason.
        progress: Called after every training task.

    Raises:
        DataError: `n` or `common` is below 1, or `examples` below 0.
    """
    if n < 1 or common < 1:
        raise DataError(f"n={n}, common={common}: each must be at least 1")
    if examples < 0:
        raise DataError(f"examples={examples}: a number of examples is needed, 0 for none")
    texts = _Texts()
    test_questions: list[_Asked] = []
    for task in test:
        by_chunk = [[texts.number(text) for text in passages(chunk)] for chunk in task.chunks]
        pairs = zip((chunk.turns for chunk in task.chunks), by_chunk, strict=True)
        by_turn = {turn.id: number for pair in pairs for turn, number in zip(*pair, strict=False) if turn.id}
        for question in task.questions:
            numbers = [by_turn[id] for id in question.evidence if id in by_turn]
            numbers = numbers or list(chain.from_iterable(by_chunk[: task.asked_after(question) + 1]))
            test_questions.append((task.id, question, texts.number(wording(question)), numbers))
    matches = _TrainingMatches(texts, n, {number for _, _, number, _ in test_questions})
    for task in train:
        matches.add_task(task, texts)
        if progress is not None:
            progress()
    return _report(test_questions, texts, matches, common, examples)


def words(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    return _WORD.findall(text.lower())


def wording(question: Question) -> str:
    """Return the question without the loader's frame: `meta["text"]` if it is a text."""
    text = question.meta.get("text")
    return text if isinstance(text, str) else question.question


def passages(chunk: Chunk) -> list[str]:
    """Return the shareable texts of a chunk: its turns, or the text and each of its lines."""
    if chunk.text is None:
        return [turn.text for turn in chunk.turns]
    lines = [line for line in chunk.text.splitlines() if line.strip()]
    return [chunk.text] if len(lines) < 2 else [chunk.text, *lines]


class _TrainingMatches:
    """Count matches of the test set's texts in the training set."""

    def __init__(self, texts: _Texts, n: int, questions: set[int]) -> None:
        self.n, self._numbers = n, texts.numbers
        grams = [_grams(words, n) for words in texts.words]
        self.owners = np.repeat(np.arange(len(grams)), [len(text_grams) for text_grams in grams])
        """Text number of every n-gram of the test set."""
        self.keys, self.key_index = np.unique(np.concatenate([np.empty(0, np.uint64), *grams]), return_inverse=True)
        self.counts = np.zeros(len(self.keys), np.int64)
        self.ngram_sources: dict[int, tuple[str, str]] = {}
        """First training source of an n-gram and its text; in `sources` by reason and text number."""
        self.sources: dict[str, dict[int, tuple[str, str]]] = {"question": {}, "said": {}, "within": {}}
        self._short: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Questions of fewer than n words by length: sorted hashes, and their text numbers."""
        for size in range(WITHIN, n):
            text_numbers = np.array([number for number in questions if len(texts.words[number]) == size], np.int64)
            if len(text_numbers):
                hashes = np.concatenate([_grams(texts.words[number], size) for number in text_numbers])
                order = np.argsort(hashes)
                self._short[size] = hashes[order], text_numbers[order]
        self._shortest = min([n, *self._short])
        self.sizes: dict[str, int] = dict.fromkeys(("tasks", "questions", "passages", "words"), 0)
        self._digests: set[bytes] = set()

    def add_task(self, task: Task, texts: _Texts) -> None:
        self.sizes["tasks"] += 1
        units: list[np.ndarray] = []
        locations: list[tuple[str, str]] = []
        items = [("questions", question.id, wording(question), False) for question in task.questions]
        items += [
            ("passages", f"chunk {chunk.index}", text, chunk.text is not None and number > 0)
            for chunk in task.chunks
            for number, text in enumerate(passages(chunk))
        ]
        for kind, source, text, is_line in items:
            words = texts.hash_words(text)
            if not is_line:  # a line was counted with its chunk, and its n-grams are the chunk's
                self.sizes[kind] += 1
                self.sizes["words"] += len(words)
            key, entry = words.tobytes(), (f"{task.id}, {source}", text)
            if key in self._numbers:
                self.sources["question" if kind == "questions" else "said"].setdefault(self._numbers[key], entry)
            # A repeated text (an example of several tasks) counts once.
            digest = blake2b(key, digest_size=16).digest()
            if len(words) >= self._shortest and not is_line and digest not in self._digests:
                self._digests.add(digest)
                units.append(words)
                locations.append(entry)
        if not units:
            return
        # Count each n-gram of the test set once for every unit that it occurs in.
        lengths = np.array([len(words) for words in units])
        unit, words = np.repeat(np.arange(len(units)), lengths), np.concatenate(units)
        hits, unit_indices = np.divmod(np.unique(self._hits(self.keys, words, unit, self.n, len(units))), len(units))
        np.add.at(self.counts, hits, 1)
        for gram, unit_index in zip(hits.tolist(), unit_indices.tolist(), strict=True):
            self.ngram_sources.setdefault(gram, locations[unit_index])
        for size, (keys, numbers) in self._short.items():
            for hit in self._hits(keys, words, unit, size, len(units)).tolist():
                text_index, unit_index = divmod(hit, len(units))
                if lengths[unit_index] > size:  # equal lengths: the texts are equal
                    self.sources["within"].setdefault(int(numbers[text_index]), locations[unit_index])

    @staticmethod
    def _hits(keys: np.ndarray, words: np.ndarray, unit: np.ndarray, n: int, units: int) -> np.ndarray:
        """Find the n-grams inside one unit among the sorted `keys`.

        Returns:
            For each hit, the index of its key times `units` plus its unit.
        """
        if not len(keys) or len(words) < n:
            return np.empty(0, np.int64)
        grams, unit = _grams(words, n), np.where(unit[: len(unit) - n + 1] == unit[n - 1 :], unit[n - 1 :], -1)
        index = np.minimum(np.searchsorted(keys, grams), len(keys) - 1)
        hit = (keys[index] == grams) & (unit >= 0)
        return index[hit] * units + unit[hit]


def _grams(words: np.ndarray, n: int) -> np.ndarray:
    """Hash every n consecutive words, in order."""
    size = len(words) - n + 1
    total = np.zeros(max(size, 0), np.uint64)
    for shift in range(n if size > 0 else 0):
        total = total * _BASE + words[shift : shift + size]
    return total


def _report(
    test_questions: Sequence[_Asked], texts: _Texts, matches: _TrainingMatches, common: int, limit: int
) -> Overlap:
    """Return the overlap, with at most `limit` examples of each reason."""
    n, is_leak = matches.n, ((matches.counts > 0) & (matches.counts <= common))[matches.key_index]
    ngrams: dict[int, tuple[str, str]] = {}  # text -> the source of its first leaked n-gram
    for owner, gram in zip(matches.owners[is_leak].tolist(), matches.key_index[is_leak].tolist(), strict=True):
        ngrams.setdefault(owner, matches.ngram_sources[gram])
    whole = {number: source for number, source in matches.sources["said"].items() if len(texts.words[number]) >= n}
    sources = matches.sources | {"question n-gram": ngrams, "passage": whole, "passage n-gram": ngrams}
    cited = {number for _, _, _, passage_numbers in test_questions for number in passage_numbers}
    questions_with: dict[tuple[str, ...], list[str]] = {LEAKED: [], INSIDE: [], RESTING: []}
    reasons: dict[str, int] = dict.fromkeys(REASONS, 0)
    examples: list[Example] = []
    for task, question, own_number, passage_numbers in test_questions:
        own_numbers = [own_number] if len(texts.words[own_number]) else []
        evidence: dict[str, int] = {}
        for reason, matching in sources.items():
            numbers = passage_numbers if reason in RESTING else own_numbers
            if (number := next((number for number in numbers if number in matching), None)) is not None:
                evidence[reason] = number
        for group, ids in questions_with.items():
            is_leaked = group == INSIDE and evidence.keys() & set(LEAKED)
            if evidence.keys() & set(group) and not is_leaked:
                ids.append(f"{task}/{question.id}")
        for reason, number in evidence.items():
            reasons[reason] += 1
            if reasons[reason] <= limit:
                source, text = sources[reason][number]
                own_text = _short(texts.originals[number])
                examples.append(Example(reason, question.id, task, own_text, source, _short(text)))
    test_sizes = {
        "tasks": len({task for task, *_ in test_questions}),
        "questions": len(test_questions),
        "passages": len(cited),
        "words": sum(len(texts.words[number]) for number in cited | {number for _, _, number, _ in test_questions}),
    }
    return Overlap(
        n=n,
        questions=len(test_questions),
        leaked=tuple(questions_with[LEAKED]),
        inside=tuple(questions_with[INSIDE]),
        resting=tuple(questions_with[RESTING]),
        reasons=reasons,
        passages={"whole": len(cited & whole.keys()), "n-gram": len(cited & ngrams.keys())},
        sizes={"train": matches.sizes, "test": test_sizes},
        examples=tuple(sorted(examples, key=lambda example: REASONS.index(example.reason))),
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT_LENGTH else text[: _EXCERPT_LENGTH - 1] + "…"
