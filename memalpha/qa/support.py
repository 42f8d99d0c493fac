"""Support of an answer: the facts, turns or words it rests on, and whether passages hold them.

`error_analysis` describes the four rules and uses them to classify wrong answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from memalpha.agent.text_match import contains, is_same
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.store.search.bm25 import term_counts
from memalpha.store.values import key_value, normalize
from memalpha.types import Question, Task

Rule = Literal["facts", "turns", "chunks", "answers"]

MIN_OVERLAP = 0.5
"""Smallest share of a sentence's terms that a turn of its chunk has to contain to be its source."""

_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[\u3002\uff01\uff1f])\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|vs|e\.g|i\.e|etc|No|[A-Z]))\.$")
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_UNSPECIFIC = frozenset(["yes", "no", "true", "false", "none", *_NUMBER_WORDS.split()])


@dataclass(frozen=True, slots=True, eq=False)
class _TaskKey:
    """Cache key of a task by identity: hashing its content would cost as much as the cache saves."""

    task: Task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TaskKey) and other.task is self.task


class TurnTerms(NamedTuple):
    """Terms of what was said, and of the speaker's name."""

    said: frozenset[str]
    speaker: frozenset[str]


class _Sources(NamedTuple):
    """What all questions of a task share.

    Chunk and words of each turn, gold contents by turn, all gold contents normalized, terms of each turn by chunk, and
    the sentences of entries by chunk and text (`source_sentences`), as far as they were asked for.
    """

    chunks: dict[str, int]
    texts: dict[str, str]
    facts: dict[str, list[str]]
    values: set[str]
    terms: dict[int, dict[str, TurnTerms]]
    ties: dict[tuple[int, str], dict[str, frozenset[str]]]


@lru_cache(maxsize=4)
def _sources(key: _TaskKey) -> _Sources:
    """Collect turn texts and gold facts of a task; cached, because its questions come one after the other."""
    texts = {turn.id: turn.text for chunk in key.task.chunks for turn in chunk.turns if turn.id is not None}
    facts: dict[str, list[str]] = {}
    gold = [(operation.turn, operation.content) for operation in key.task.gold_operations if operation.content]
    for turn, content in gold:
        if turn is not None:
            facts.setdefault(turn, []).append(content)
    terms = {
        chunk.index: {
            turn.id: TurnTerms(_terms(turn.text), _terms(turn.speaker)) for turn in chunk.turns if turn.id is not None
        }
        for chunk in key.task.chunks
    }
    chunks = {turn: chunk for chunk, turns in terms.items() for turn in turns}
    return _Sources(chunks, texts, facts, {normalize(content) for _, content in gold}, terms, {})


@lru_cache(maxsize=4)
def _rendered_chunks(key: _TaskKey) -> list[str]:
    return [chunk.render() for chunk in key.task.chunks]


@lru_cache(maxsize=65536)
def _terms(text: str) -> frozenset[str]:
    """Return the stems of a text without stop words."""
    return frozenset(term_counts(text))


def source_sentences(text: str, turns: Mapping[str, TurnTerms]) -> dict[str, frozenset[str]]:
    """Tie the sentences of an entry to the turns whose terms they share most.

    A sentence belongs to the turns that contain the greatest share of its terms, if that is at least `MIN_OVERLAP`. The
    speaker's name counts only beside other words of the turn.

    Args:
        text: Content of the entry.
        turns: Terms of the turns of the entry's chunk, by turn id.

    Returns:
        Terms of the sentences that belong to a turn, by turn id; a turn without a sentence has no key.
    """
    sources: dict[str, frozenset[str]] = {}
    for line in text.split("\n"):
        for sentence in split_sentences(line):
            terms = _terms(sentence)
            shares = {turn: _shared(terms, words) / len(terms) for turn, words in turns.items()} if terms else {}
            best = max(shares.values(), default=0.0)
            for turn, share in shares.items():
                if share == best >= MIN_OVERLAP:
                    sources[turn] = sources.get(turn, frozenset()) | terms
    return sources


def split_sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line; a full stop of an abbreviation or a number ends none."""
    start = 0
    for match in _BOUNDARY.finditer(line):
        if _ABBREVIATION.search(line[start : match.start()]):
            continue
        if sentence := line[start : match.end()].strip():
            yield sentence
        start = match.end()
    if sentence := line[start:].strip():
        yield sentence


def _shared(terms: frozenset[str], turn: TurnTerms) -> int:
    """Return the number of terms that a turn has too, 0 if these are of its speaker's name alone."""
    return len(terms & (turn.said | turn.speaker)) if terms & turn.said - turn.speaker else 0


def is_unspecific(answer: str) -> bool:
    """Return True for yes, no and numbers up to 99: words that unrelated texts contain too."""
    words = normalize(answer).split()
    return all(word in _UNSPECIFIC or (word.isdecimal() and len(word) < 3) for word in words)


def _contains_another(answer: str, answers: Sequence[str]) -> bool:
    """Return True if an accepted answer has another one in it, so that the other is all that is needed."""
    return any(normalize(other) != normalize(answer) and contains(answer, other) for other in answers)


def has_alternative_evidence(question: Question) -> bool:
    """Return True if one evidence turn is enough: `meta["evidence"]` is "any", not "all" (the default)."""
    return question.meta.get("evidence") == "any"


class AnswerSupport:
    """Support of a question's answer, by the first rule that the task allows."""

    def __init__(self, task: Task, retrieval: Retrieval) -> None:
        question, sources = retrieval.question, _sources(_TaskKey(task))
        self.answers = tuple(answer for answer in question.answers if not is_unspecific(answer))
        self.shortest_answers = tuple(answer for answer in self.answers if not _contains_another(answer, self.answers))
        self.question = question
        self.turn_terms = sources.terms
        self.chunks = sources.chunks
        self.texts = {turn: sources.texts[turn] for turn in question.evidence if turn in sources.texts}
        self.facts: list[tuple[str, str | None]] = []  # (content, turn)
        for turn in question.evidence:
            facts = sources.facts.get(turn, [])
            answering = [c for c in facts if any(contains(c, answer) for answer in question.answers)]
            self.facts += [(content, turn) for content in answering or facts]
        self.values = sources.values
        self._ties = sources.ties
        passages = (*retrieval.passages, *(retrieval.entries or ()), *(retrieval.history or ()))
        self.rule: Rule = "answers"
        if self.facts:
            self.rule = "facts"
        elif self.texts and any(passage.turns or passage.cut_turns for passage in passages):
            self.rule = "turns"
        elif self.texts and any(passage.chunk is not None for passage in passages):
            self.rule = "chunks"

    def is_held_by(self, passages: Sequence[Passage]) -> bool:
        """Return True if the passages together hold all of the support."""
        return all(self.pieces_in(passages))

    def pieces_in(self, passages: Sequence[Passage]) -> list[bool]:
        """Return for each fact, evidence turn or (rule `answers`) the whole support if the passages hold it."""
        if self.rule == "facts":
            return [self._states_fact(passages, *fact) for fact in self.facts]
        if self.rule == "answers":
            return [any(self._has_answer(passage.text) for passage in passages)]
        pieces = [self._is_covered(passages, turn) for turn in self.texts]
        return [any(pieces)] if has_alternative_evidence(self.question) else pieces

    def is_findable(self, task: Task) -> bool:
        """Return True if the rule can find the support; `answers` needs an answer in the conversation's words."""
        return self.rule != "answers" or any(map(self._has_answer, _rendered_chunks(_TaskKey(task))))

    def is_written_wrong(self, passages: Sequence[Passage]) -> bool:
        """Return True if something else was written instead of the missing support."""
        if self.rule == "facts":
            return any(
                self._states_other_value(passage, *fact)
                for fact in self.facts
                if not self._states_fact(passages, *fact)
                for passage in passages
            )
        missing = [turn for turn in self.texts if not self._is_covered(passages, turn)]
        return self.rule != "answers" and all(
            any(self._is_from_turn(passage, turn) and self._speaks_of_needed(passage, turn) for passage in passages)
            for turn in missing
        )

    def _has_answer(self, text: str) -> bool:
        return any(contains(text, answer) for answer in self.answers)

    def _states_fact(self, passages: Sequence[Passage], content: str, turn: str | None) -> bool:
        """Return True if the passages state the fact, or quote the turn that stated it.

        A `key: value` line has to state just the fact; free text may say other things too.
        """
        if turn is not None and any(
            self._quotes_turn(passage, turn) or self._says_value(passage, content, turn) for passage in passages
        ):
            return True
        needle, free = normalize(content), key_value(content) is None
        return any(
            is_same(line, content) or ((free or key_value(line) is None) and contains(line, content))
            for passage in passages
            if needle in normalize(passage.text)  # cheap filter before the exact comparison
            for line in passage.text.split("\n")
        )

    def _says_value(self, passage: Passage, content: str, turn: str) -> bool:
        """Return True if an entry of the turn's chunk says the fact's value in a sentence from the turn.

        The rest of the fact's words may be worded differently. An entry of `key: value` lines has to state the fact.
        """
        pair = key_value(content)
        if pair is None or not self._is_from_chunk(passage, turn) or key_value(passage.text) is not None:
            return False
        return contains(passage.text, pair[1]) and self._is_from_turn(passage, turn)

    def _is_from_chunk(self, passage: Passage, turn: str) -> bool:
        """Return True if the entry names no turns, and the turn's chunk or (the core text) none."""
        return not (passage.turns or passage.cut_turns) and passage.chunk in (None, self.chunks.get(turn))

    def _is_from_turn(self, passage: Passage, turn: str) -> bool:
        """Return True if the passage names the turn, or a sentence of it belongs to the turn by its words."""
        return turn in passage.turns or turn in self._sources_of(passage, turn)

    def _sources_of(self, passage: Passage, turn: str) -> Mapping[str, frozenset[str]]:
        if not self._is_from_chunk(passage, turn) or (passage.chunk is None and self.rule != "chunks"):
            return {}
        key = self.chunks[turn], passage.text
        if key not in self._ties:
            self._ties[key] = source_sentences(passage.text, self.turn_terms[self.chunks[turn]])
        return self._ties[key]

    def _quotes_turn(self, passage: Passage, turn: str) -> bool:
        if passage.turns and turn not in passage.turns:
            return False
        return turn in self.texts and contains(passage.text, self.texts[turn])

    def _states_other_value(self, passage: Passage, content: str, turn: str | None) -> bool:
        """Return True if a line gives the fact's slot a false value, or the entry comes from the fact's turn."""
        pair = key_value(content)
        for line in passage.text.split("\n"):
            other = key_value(line)
            if pair and other and normalize(other[0]) == normalize(pair[0]) and normalize(line) not in self.values:
                return True
        return turn in passage.turns and normalize(passage.text) not in self.values

    def _is_covered(self, passages: Sequence[Passage], turn: str) -> bool:
        """Return True if the passages from the turn keep what the question needs of it.

        If the turn's words have an answer, one passage needs it, or they together need most of a long answer's terms.
        Otherwise an entry that names the turn counts. Entries tied by their words together need half of the answer's
        terms that the turn has, or else half of the terms of the turn's sentence nearest to the question.
        """
        of_turn = [passage for passage in passages if self._is_from_turn(passage, turn)]
        if not of_turn:
            return False
        said = frozenset[str]().union(*(self._terms_from(passage, turn) for passage in of_turn))
        if self._has_answer(self.texts[turn]):
            return (
                any(self._has_answer(passage.text) for passage in of_turn)
                or any(self._quotes_turn(passage, turn) for passage in of_turn)
                or any(self._says_most_of(answer, said) for answer in self.shortest_answers)
            )
        if any(turn in passage.turns for passage in of_turn):
            return True
        needed = [terms for terms in self._answer_terms(turn) if terms]
        needed = needed or [self._nearest_sentence(turn, _terms(self.question.question))]
        return any(2 * len(terms & said) >= len(terms) for terms in needed)

    def _terms_from(self, passage: Passage, turn: str) -> frozenset[str]:
        """Return the terms of the passage's sentences that are from the turn."""
        return _terms(passage.text) if turn in passage.turns else self._sources_of(passage, turn)[turn]

    def _says_most_of(self, answer: str, terms: frozenset[str]) -> bool:
        """Return True if a text with these terms has more than half of an answer's, where it has three or more."""
        wanted = _terms(answer)
        return len(wanted) > 2 and 2 * len(wanted & terms) > len(wanted)

    def _answer_terms(self, turn: str) -> list[frozenset[str]]:
        """Return the terms that the turn shares with each accepted answer that contains no other."""
        return [_terms(answer) & _terms(self.texts[turn]) for answer in self.shortest_answers]

    def _speaks_of_needed(self, passage: Passage, turn: str) -> bool:
        """Return True unless the entry is clearly from another sentence of the turn than the question needs.

        It then shares more words with that one: no wrong version of what is missing.
        """
        answers = frozenset[str]().union(*self._answer_terms(turn))
        wanted = answers or _terms(self.question.question)
        needed, terms = self._nearest_sentence(turn, wanted), _terms(passage.text)
        most = max((len(sentence & terms) for sentence in self._sentences(turn)), default=0)
        return not needed & wanted or len(needed & terms) == most

    def _nearest_sentence(self, turn: str, wanted: frozenset[str]) -> frozenset[str]:
        """Return the terms of the turn's sentence that has most of the wanted ones, the first of equal ones."""
        return max(self._sentences(turn), key=lambda terms: len(terms & wanted), default=frozenset())

    def _sentences(self, turn: str) -> list[frozenset[str]]:
        """Return the terms of each sentence of a turn."""
        return [_terms(sentence) for line in self.texts[turn].split("\n") for sentence in split_sentences(line)]
