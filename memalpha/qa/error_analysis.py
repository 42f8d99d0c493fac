"""Error analysis: put every wrong answer into exactly one class by replaying what the memory held.

| class                   | the support of the answer                                                            |
|-------------------------|--------------------------------------------------------------------------------------|
| `gold_faulty`           | does not matter: an audit marked the gold answer (`Question.meta["fault"]`)          |
| `should_have_abstained` | does not exist: the question has no answer, and one was given                        |
| `never_written`         | was never in the memory                                                              |
| `written_wrong`         | was never in the memory, but something else was written instead                      |
| `overwritten_or_deleted`| was in the memory, but no longer when the question was asked                         |
| `partly_retrieved`      | was retrieved in part: some of its several facts or turns were, not all              |
| `not_retrieved`         | was in the memory, but not among the retrieved passages                              |
| `not_found`             | was not retrieved, and the system does not show its entries                          |
| `answered_wrong`        | was retrieved                                                                        |

Classes are tried in this order, except that retrieved support is always `answered_wrong`. The first of four rules that
the task allows decides what the support is (`Record.rule`):

1. `facts`: all gold facts of the evidence turns (`Task.gold_operations`). A passage holds a fact if one of its lines
   states just that, if it quotes the turn word for word, or if an entry of its chunk says the fact's value in a
   sentence from the turn (see rule 3). Written wrong is a value that the fact's slot never had, or an entry taken from
   the turn that states no fact of the task.
2. `turns`: all evidence turns, by the turn ids of the passages. If the turn's words have an accepted answer, the
   passage needs one too (or the turn itself); otherwise it is written wrong.
3. `chunks`: all evidence turns, for entries that only name their chunk. A sentence of an entry belongs to the turns of
   the chunk with most of its words (at least half; the speaker's name alone is not enough). If the turn's words have an
   accepted answer, one entry needs it, or all together more than half of its words (of three or more). Otherwise they
   need half of the answer's words that the turn has, or of the sentence nearest to the question. Written wrong is an
   entry from that sentence of every missing turn.
   By these three rules an entry about somebody else holds nothing of the turn: it names another speaker, whom neither
   turn nor question names, and not the turn's. A turn that says "you" or "we" may be about others as well.
4. `answers`: an accepted answer in a passage's words. This rule cannot see what was written wrong, nor an answer that
   is not in the conversation's words.

Where evidence turns are alternatives (`Question.meta["evidence"]` is "any"), one is enough. Yes, no and numbers below
100 never count as found. Limits: by `turns`, an entry from the right turn counts as support even if it left out the
answer, where the answer is not in the turn's own words (dates, counts). Evidence repeated elsewhere is not seen.
`eval/qa/error_analysis.py` measures the rules where the truth is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from memalpha.agent.prompts import letter_choices, question_with_choices
from memalpha.qa.scoring.official import choice_score
from memalpha.qa.scoring.stats import group_values, mean
from memalpha.qa.systems import Passage, Retrieval, WrittenMemory
from memalpha.store.search.lexical import term_counts
from memalpha.store.values import contains, is_same, key_value, normalize, tokens
from memalpha.tasks.formats.messages import READ_ROLES
from memalpha.types import Question, Task, TrajectoryGroup

if TYPE_CHECKING:
    from memalpha.qa.report import Record


T = TypeVar("T")
Rule = Literal["facts", "turns", "chunks", "answers"]
Style = Literal["full", "compact", "mem-alpha"]

ERROR_CLASSES = {
    "gold_faulty": "the gold answer is marked as faulty",
    "never_written": "what was asked for was never written",
    "written_wrong": "what was asked for was written wrong",
    "overwritten_or_deleted": "what was asked for was written, then overwritten or deleted",
    "not_found": "what was asked for was not among what was retrieved",
    "not_retrieved": "the memory held what was asked for, but it was not retrieved",
    "partly_retrieved": "only a part of what was asked for was retrieved",
    "should_have_abstained": "there is no answer to the question, and one was given",
    "answered_wrong": "what was asked for was retrieved, and the answer is wrong all the same",
}
"""Error classes in the order of the pipeline, each with its meaning."""
_LOST_BEFORE = {
    "sound": ("gold_faulty",),
    "written": ("never_written", "written_wrong"),
    "kept": ("overwritten_or_deleted",),
    "retrieved": ("not_retrieved", "partly_retrieved", "not_found"),
    "answered": ("answered_wrong", "should_have_abstained"),
}
"""Error classes that keep a question from a stage of the waterfall, beside those of the stages before."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Record where a question's support was: written, live, retrieved; None if unknown.

    Attributes:
        rule: Rule that identified the support; None if the question has no answer.
        written: True if the support was ever in the memory.
        live: True if it was in the memory when the question was asked.
        retrieved: True if it was among the retrieved passages.
        partly_retrieved: True if some of several facts or turns, but not all, were among them.
        written_wrong: True if something else was written instead.
    """

    rule: Rule | None = None
    written: bool | None = None
    live: bool | None = None
    retrieved: bool | None = None
    partly_retrieved: bool = False
    written_wrong: bool = False


def trace(task: Task, retrieval: Retrieval) -> Trace:
    """Trace the support of the question that `retrieval` belongs to."""
    if not retrieval.question.answers:
        return Trace()
    support = AnswerSupport(task, retrieval)
    pieces = support.pieces_in(_IndexedPassages((*retrieval.passages, Passage(retrieval.core))))
    retrieved = all(pieces)
    if not retrieved and not support.is_findable():
        is_blank = retrieval.history is not None and not any(passage.text for passage in retrieval.history)
        was_written = False if is_blank else None
        return Trace(support.rule, written=was_written, live=was_written, retrieved=False)
    # The memory holds text of the core that the budget cut from view.
    core = _IndexedPassages((Passage(retrieval.full_core or retrieval.core),))
    # What was retrieved is live, and what is live was written; None is unknown.
    live = True if retrieved else None if support.entries is None else all(support.pieces_in(support.entries, core))
    written = True if live else None if support.history is None else all(support.pieces_in(support.history))
    is_wrong = not written and support.history is not None and support.is_written_wrong(support.history, core)
    return Trace(support.rule, written, live, retrieved, any(pieces) and not retrieved, is_wrong)


def _class_of(question: Question, support: Trace) -> str:
    """Return the error class of a wrong answer."""
    fault = question.meta.get("fault")  # an audit's mark, which may be of the evidence alone
    if fault and (not isinstance(fault, Mapping) or fault.get("of", "answer") == "answer"):
        return "gold_faulty"
    if not question.answers:
        return "should_have_abstained"
    if support.retrieved:
        return "answered_wrong"
    is_unknown = support.live is None or support.written is None
    if support.live or is_unknown:
        return "partly_retrieved" if support.partly_retrieved else "not_found" if is_unknown else "not_retrieved"
    if support.written:
        return "overwritten_or_deleted"
    return "written_wrong" if support.written_wrong else "never_written"


def evidence_recall(retrieval: Retrieval) -> float | None:
    """Return the share of the question's evidence turns that the retrieved passages come from.

    It is None without evidence, and if no passage names its turns. Turns that the budget cut from a passage do not
    count.
    """
    evidence, passages = set(retrieval.question.evidence), retrieval.passages
    if not evidence or (passages and not any(passage.turns or passage.cut_turns for passage in passages)):
        return None
    return len(evidence & {turn for passage in passages for turn in passage.turns}) / len(evidence)


# -------------------------------------------------------------------------------------------------------- many records


def with_error_classes(
    groups: Iterable[TrajectoryGroup], records: Sequence[Record], style: Style = "full"
) -> list[Record]:
    """Return the records of built memories, each `classified`.

    Args:
        groups: Groups of the trajectories that built the memories.
        records: Records of their questions.
        style: Style of the feedback; see `feedback`.
    """
    memories, questions = {}, {}
    for group in groups:
        memories |= {(group.task.id, rollout.rollout): WrittenMemory(rollout) for rollout in group.trajectories}
        questions |= {(group.task.id, question.id): question for question in group.task.questions}
    results = []
    for record in records:
        memory, question = memories[record.task, record.rollout], questions[record.task, record.question_id]
        rollout = memory.trajectory
        chunk = rollout.task.asked_after(question)
        state, (entries, history) = rollout.states[chunk], memory.after(chunk)
        passages = tuple(memory.passage(state.entries[id]) for id in record.retrieved if id in state.entries)
        retrieval = Retrieval(question, passages, 0, state.core, entries=entries, history=history)
        results.append(classified(rollout.task, retrieval, record, style))
    return results


def classified(task: Task, retrieval: Retrieval, record: Record, style: Style = "full") -> Record:
    """Return the record with where its support was, its error class and the feedback.

    Args:
        task: Task of the question.
        retrieval: Passages that the system retrieved, and the entries it held.
        record: Record of the answer.
        style: Style of the feedback; see `feedback`.
    """
    support = trace(task, retrieval)
    error_class = None if record.correct else _class_of(retrieval.question, support)
    stages = {"written": support.written, "live": support.live, "support_retrieved": support.retrieved}
    record = replace(record, rule=support.rule, error_class=error_class, **stages)
    return replace(record, feedback=feedback(task, retrieval, record, style))


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Shares of an ability's questions that pass each stage of the pipeline.

    A stage is None if the system does not show enough to tell it from the next.

    Attributes:
        ability: Ability, or "all".
        n: Number of questions; the denominator of every stage.
        sound: Share whose gold answer is sound.
        written: Share whose support was written as well.
        kept: Share whose support was also live when asked.
        retrieved: Share whose support was also retrieved.
        answered: Share that was also answered right: the accuracy.
        error_counts: Number of answers by error class.
        ceiling: Share that the same reader has right when shown the evidence; None without evidence.
        ceiling_n: Number of questions that name evidence; the denominator of `ceiling`.
        ceiling_answered: Share of these same questions that the system has right.
    """

    ability: str
    n: int
    sound: float
    written: float | None
    kept: float | None
    retrieved: float
    answered: float
    error_counts: Mapping[str, int]
    ceiling: float | None = None
    ceiling_n: int = 0
    ceiling_answered: float | None = None

    @classmethod
    def of(cls, ability: str, records: Sequence[Record]) -> Waterfall:
        """Compute the waterfall of some records, one at least."""
        n = remaining = len(records)
        error_counts = Counter(record.error_class for record in records if record.error_class is not None)
        shares: dict[str, Any] = {}
        for stage, classes in _LOST_BEFORE.items():
            remaining -= sum(error_counts[name] for name in classes)
            shares[stage] = remaining / n
        if error_counts["not_found"] or any(r.error_class == "partly_retrieved" and r.live is None for r in records):
            shares["written"] = shares["kept"] = None
        counts = {name: error_counts[name] for name in ERROR_CLASSES if error_counts[name]}
        with_ceiling = [record for record in records if record.ceiling is not None]
        shares["ceiling"] = mean([bool(record.ceiling) for record in with_ceiling])
        shares["ceiling_answered"] = mean([record.correct for record in with_ceiling])
        return cls(ability, n, **shares, error_counts=counts, ceiling_n=len(with_ceiling))

    def as_json(self) -> dict[str, Any]:
        """Return the waterfall as plain values; the key of `error_counts` is "losses"."""
        return {"losses" if name == "error_counts" else name: getattr(self, name) for name in self.__slots__}


def waterfall(records: Iterable[Record]) -> list[Waterfall]:
    """Compute a waterfall for each ability, and one for "all" at the end.

    Every wrong record needs its class (`classified`); the list is empty if one has none.
    """
    groups = group_values((record.ability, record) for record in records)
    all_records = [record for group in groups.values() for record in group]
    if any(not record.correct and record.error_class is None for record in all_records):
        return []
    by_ability = (*sorted(groups.items()), ("all", all_records))
    return [Waterfall.of(ability, group) for ability, group in by_ability if group]


# -------------------------------------------------------------------------------------------------------- in words


QUOTES, QUOTE_LENGTH = 3, 300
"""Number of passages and of turns that feedback quotes, and the characters of a quote, at most."""


def feedback(task: Task, retrieval: Retrieval, record: Record, style: Style) -> str:
    """Describe a wrong answer in words for a later attempt; "" for a right one.

    Args:
        task: Task of the question.
        retrieval: See `classified`.
        record: Record of the answer, with its error class.
        style: "full" names question, answer, accepted answer, retrieved passages, evidence turns and error class.
            "compact", for the shipped policies, leaves out the passages and the class.
    """
    if record.error_class is None:
        return ""
    question, support = retrieval.question, AnswerSupport(task, retrieval)
    expected = " or ".join(answers_in_words(question)) or ("unknown" if style == "compact" else "that it is not known")
    said = _join_texts(list(support.texts.values())[:QUOTES]) if support.texts else ""
    if style == "compact":
        lines = [f"ask: {question.question}", f"answer: {record.answer}", f"right: {expected}"]
        lines += [f"said: {said}"] if said else []
        return "\n".join(" ".join(line.split()) for line in lines)
    asked = question_with_choices(question, dated=False)
    lines = [f"Question: {asked}", f"Answered: {record.answer or '(nothing)'}", f"Right: {expected}"]
    lines.append(f"Retrieved: {_join_texts([passage.text for passage in retrieval.passages[:QUOTES]])}")
    lines += [f"Said: {said}"] if said else []
    if support.facts:
        lines.append(f"To be noted: {_join_texts(list(dict.fromkeys(fact for fact, _ in support.facts)))}")
    lines.append(f"Lost: {ERROR_CLASSES[record.error_class]}.")
    if record.stale or record.conflict:
        lines.append("An outdated statement about this is still in the memory.")
    return "\n".join(lines)


def _join_texts(texts: Sequence[str]) -> str:
    flat = [" ".join(text.split()) for text in texts]
    cut = [text if len(text) <= QUOTE_LENGTH else f"{text[: QUOTE_LENGTH - 1]}…" for text in flat]
    return " | ".join(cut) or "(nothing)"


# ------------------------------------------------------------------------------------------------- support of an answer

MIN_OVERLAP = 0.5
"""Smallest share of a sentence's terms that a turn of its chunk has to contain to be its source."""

MAX_UNINDEXED = 16
"""Number of passages up to which reading all of them costs less than an index by word."""

_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[\u3002\uff01\uff1f])\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|vs|e\.g|i\.e|etc|No|[A-Z]))\.$")
_MAY_BE_OF_OTHERS = re.compile(r"\b(?:you|yours?|we|us|ours?)\b", re.IGNORECASE)
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_UNSPECIFIC = frozenset(["yes", "no", "true", "false", "none", *_NUMBER_WORDS.split()])


@dataclass(frozen=True, slots=True, eq=False)
class _Identity(Generic[T]):
    """Cache key of a value by identity: hashing its content would cost as much as the cache saves."""

    value: T

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value


class TurnTerms(NamedTuple):
    """Terms of what was said, and of the speaker's name."""

    said: frozenset[str]
    speaker: frozenset[str]


class _Sources(NamedTuple):
    """Hold what all questions of a task share.

    Chunks as rendered, chunk and words of each turn, gold contents by turn, all gold contents normalized, terms of each
    turn by chunk, terms of the speakers' names, and the sentences of entries by chunk and text (`source_sentences`), as
    far as they were asked for.
    """

    rendered: _IndexedPassages
    chunks: dict[str, int]
    texts: dict[str, str]
    facts: dict[str, list[str]]
    values: set[str]
    terms: dict[int, dict[str, TurnTerms]]
    names: frozenset[str]
    ties: dict[tuple[int, str], dict[str, frozenset[str]]]


@lru_cache(maxsize=4)
def _sources(key: _Identity[Task]) -> _Sources:
    """Collect turn texts and gold facts of a task; cached, because its questions come one after the other."""
    task = key.value
    texts = {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}
    gold = [(operation.turn, operation.content) for operation in task.gold_operations if operation.content]
    facts = group_values((turn, content) for turn, content in gold if turn is not None)
    terms = {
        chunk.index: {
            turn.id: TurnTerms(_terms(turn.text), _terms(turn.speaker)) for turn in chunk.turns if turn.id is not None
        }
        for chunk in task.chunks
    }
    chunks = {turn: chunk for chunk, turns in terms.items() for turn in turns}
    values = {normalize(content) for _, content in gold}
    rendered = _IndexedPassages([Passage(chunk.render()) for chunk in task.chunks])
    speakers = {turn.speaker for chunk in task.chunks for turn in chunk.turns if turn.id is not None}
    names = frozenset().union(*(_terms(speaker) for speaker in speakers if speaker.lower() not in READ_ROLES))
    return _Sources(rendered, chunks, texts, facts, values, terms, names, {})


class _IndexedPassages:
    """Index passages by turn, chunk, word and slot: a question reads those alone that can hold its support."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.names_turns = any(passage.turns or passage.cut_turns for passage in passages)
        self.names_chunks = any(passage.chunk is not None for passage in passages)
        self._passages = passages

    @cached_property
    def by_turn(self) -> Mapping[str, list[Passage]]:
        """Passages by the turns that they name."""
        return group_values((turn, passage) for passage in self._passages for turn in passage.turns)

    @cached_property
    def by_chunk(self) -> Mapping[int | None, list[Passage]]:
        """Passages that name no turns by chunk; that of the core text is None."""
        return group_values((p.chunk, p) for p in self._passages if not (p.turns or p.cut_turns))

    @cached_property
    def by_slot(self) -> Mapping[str, list[str]]:
        """Normalized `key: value` lines by their normalized keys."""
        lines = (line for passage in self._passages for line in passage.text.split("\n"))
        return group_values((normalize(pair[0]), normalize(line)) for line in lines if (pair := key_value(line)))

    @cached_property
    def by_word(self) -> Mapping[str, list[Passage]]:
        """Passages by their normalized words, as a whole and line by line."""
        return group_values(
            (word, passage)
            for passage in self._passages
            for word in {word for text in {passage.text, *passage.text.split("\n")} for word in tokens(text)}
        )

    def holding(self, text: str) -> Sequence[Passage]:
        """Return the passages with the rarest word of a text: no other can contain it, in whole or in a line.

        A few passages are not worth an index by word and are all returned.
        """
        if len(self._passages) <= MAX_UNINDEXED:
            return self._passages
        return min((self.by_word.get(word, []) for word in tokens(text)), key=len, default=[])


@lru_cache(maxsize=8)
def _indexed(key: _Identity[tuple[Passage, ...]]) -> _IndexedPassages:
    """Index the entries or the history of a memory; cached, because all questions of a time share them."""
    return _IndexedPassages(key.value)


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
            shares = {
                turn: len(terms & (words.said | words.speaker)) / len(terms)
                for turn, words in turns.items()
                if terms & words.said - words.speaker
            }
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


def is_unspecific(answer: str) -> bool:
    """Return True for yes, no and numbers up to 99: words that unrelated texts contain too."""
    words = normalize(answer).split()
    return all(word in _UNSPECIFIC or (word.isdecimal() and len(word) < 3) for word in words)


def answers_in_words(question: Question) -> tuple[str, ...]:
    """Return the accepted answers; the text of an option, not its letter, of a choice."""
    if question.meta.get("metric") != "choice" or not (options := letter_choices(question.meta.get("choices") or {})):
        return question.answers
    scores = {name: [choice_score(name, gold, options=options) for gold in question.answers] for name in options}
    return tuple(text for name, text in options.items() if any(scores[name]))


class AnswerSupport:
    """Support of a question's answer, by the first rule that the task allows."""

    def __init__(self, task: Task, retrieval: Retrieval) -> None:
        question, sources = retrieval.question, _sources(_Identity(task))
        self.question, self.sources = question, sources
        indexed = [p if p is None else _indexed(_Identity(p)) for p in (retrieval.entries, retrieval.history)]
        self.entries, self.history = indexed
        answers = answers_in_words(question)
        self.answers = tuple(answer for answer in answers if not is_unspecific(answer))
        # An accepted answer that has another one in it: the other is all that is needed.
        self.shortest_answers = tuple(
            answer
            for answer in self.answers
            if not any(normalize(other) != normalize(answer) and contains(answer, other) for other in self.answers)
        )
        self.texts = {turn: sources.texts[turn] for turn in question.evidence if turn in sources.texts}
        self.facts: list[tuple[str, str | None]] = []  # (content, turn)
        for turn in question.evidence:
            facts = sources.facts.get(turn, [])
            answering = [c for c in facts if any(contains(c, answer) for answer in answers)]
            self.facts += [(content, turn) for content in answering or facts]
        groups = [*filter(None, indexed), _IndexedPassages(retrieval.passages)]
        self.rule: Rule = "answers"
        if self.facts:
            self.rule = "facts"
        elif self.texts and any(group.names_turns for group in groups):
            self.rule = "turns"
        elif self.texts and any(group.names_chunks for group in groups):
            self.rule = "chunks"

    def pieces_in(self, *groups: _IndexedPassages) -> list[bool]:
        """Return for each fact, evidence turn or (rule `answers`) the whole support if the passages hold it."""
        if self.rule == "facts":
            return [self._states_fact(groups, *fact) for fact in self.facts]
        if self.rule == "answers":
            return [self._hold_answer(groups)]
        pieces = [self._is_covered(groups, turn) for turn in self.texts]
        return [any(pieces)] if self.question.meta.get("evidence") == "any" else pieces  # one turn is enough

    def is_findable(self) -> bool:
        """Return True if the rule can find the support; `answers` needs an answer in the conversation's words."""
        return self.rule != "answers" or self._hold_answer([self.sources.rendered])

    def is_written_wrong(self, *groups: _IndexedPassages) -> bool:
        """Return True if something else was written instead of the missing support.

        A line gives the slot of a missing fact a false value, or an entry comes from the fact's turn. By the other
        rules an entry comes from each missing turn and speaks of what is needed of it.
        """
        if self.rule == "facts":
            for content, turn in self.facts:
                if self._states_fact(groups, content, turn):
                    continue
                slot = normalize(pair[0]) if (pair := key_value(content)) else None
                for group in groups:
                    texts = [normalize(p.text) for p in group.by_turn.get(turn, ())] if turn is not None else []
                    lines = group.by_slot.get(slot, ()) if slot is not None else ()
                    if not self.sources.values.issuperset([*texts, *lines]):
                        return True
            return False
        missing = [turn for turn in self.texts if not self._is_covered(groups, turn)]
        return self.rule != "answers" and all(
            any(self._speaks_of_needed(passage, turn) for passage in self._from_turn(groups, turn)) for turn in missing
        )

    def _hold_answer(self, groups: Sequence[_IndexedPassages]) -> bool:
        return any(contains(p.text, answer) for answer in self.answers for g in groups for p in g.holding(answer))

    def _has_answer(self, text: str) -> bool:
        return any(contains(text, answer) for answer in self.answers)

    def _states_fact(self, groups: Sequence[_IndexedPassages], content: str, turn: str | None) -> bool:
        """Return True if the passages state the fact, or quote the turn that stated it.

        A `key: value` line has to state just the fact; free text may say other things too. So may an entry of the
        turn's chunk that says the fact's value in a sentence from the turn.
        """
        pair = key_value(content)
        if turn is not None:
            quoting = [passage for g in groups if turn in self.texts for passage in g.holding(self.texts[turn])]
            if any(self._quotes_turn(passage, turn) for passage in quoting):
                return True
            if pair is not None and any(
                key_value(p.text) is None and contains(p.text, pair[1]) and self._is_from_turn(p, turn)
                for p in self._of_chunk(groups, turn)
                if not self._is_of_another(p.text, turn)
            ):
                return True
        needle = normalize(content)
        return any(
            is_same(line, content) or ((pair is None or key_value(line) is None) and contains(line, content))
            for group in groups
            for passage in group.holding(content)
            if needle in normalize(passage.text)  # cheap filter before the exact comparison
            for line in passage.text.split("\n")
        )

    def _of_chunk(self, groups: Sequence[_IndexedPassages], turn: str) -> Iterator[Passage]:
        """Yield the passages that name no turns, of the turn's chunk or (the core text) of none."""
        for group in groups:
            for chunk in dict.fromkeys((self.sources.chunks.get(turn), None)):
                yield from group.by_chunk.get(chunk, ())

    def _from_turn(self, groups: Sequence[_IndexedPassages], turn: str) -> list[Passage]:
        """Return the passages that name the turn, or of which a sentence belongs to it."""
        named = [passage for group in groups for passage in group.by_turn.get(turn, ())]
        return named + [passage for passage in self._of_chunk(groups, turn) if self._is_from_turn(passage, turn)]

    def _is_from_turn(self, passage: Passage, turn: str) -> bool:
        """Return True if the passage names the turn, or a sentence of it belongs to the turn by its words."""
        return turn in passage.turns or turn in self._sources_of(passage, turn)

    def _sources_of(self, passage: Passage, turn: str) -> Mapping[str, frozenset[str]]:
        """Return the sentences of an entry that names no turns, of the turn's chunk or (the core text) of none."""
        names_turns = passage.turns or passage.cut_turns
        is_of_chunk = not names_turns and passage.chunk in (None, self.sources.chunks.get(turn))
        if not is_of_chunk or (passage.chunk is None and self.rule != "chunks"):
            return {}
        key, ties = (self.sources.chunks[turn], passage.text), self.sources.ties
        if key not in ties:
            ties[key] = source_sentences(passage.text, self.sources.terms[key[0]])
        return ties[key]

    def _quotes_turn(self, passage: Passage, turn: str) -> bool:
        if turn not in self.texts or (passage.turns and turn not in passage.turns):
            return False
        # A window of several turns quotes those that it names, whoever speaks in the others.
        is_of_turn = bool(passage.turns) or not self._is_of_another(passage.text, turn)
        return is_of_turn and contains(passage.text, self.texts[turn])

    def _is_of_another(self, text: str, turn: str) -> bool:
        """Return True if an entry is about another speaker than the turn, the question and the turn's speaker."""
        if turn not in self.texts or _MAY_BE_OF_OTHERS.search(self.texts[turn]):
            return False
        words = self.sources.terms[self.sources.chunks[turn]][turn]
        named = _terms(text) & self.sources.names
        return bool(named) and named.isdisjoint(words.speaker | words.said | _terms(self.question.question))

    def _is_covered(self, groups: Sequence[_IndexedPassages], turn: str) -> bool:
        """Return True if the passages from the turn keep what the question needs of it.

        If the turn's words have an answer, one passage needs it, or they together need most of a long answer's terms.
        Otherwise an entry that names the turn counts. Entries tied by their words together need half of the answer's
        terms that the turn has, or else half of the terms of the turn's sentence nearest to the question.
        """
        of_turn = [passage for passage in self._from_turn(groups, turn) if not self._is_of_another(passage.text, turn)]
        if not of_turn:
            return False
        said = frozenset[str]().union(
            *(_terms(p.text) if turn in p.turns else self._sources_of(p, turn)[turn] for p in of_turn)
        )
        if self._has_answer(self.texts[turn]):
            return (
                any(self._has_answer(passage.text) for passage in of_turn)
                or any(self._quotes_turn(passage, turn) for passage in of_turn)
                or any(len(a) > 2 and 2 * len(a & said) > len(a) for a in map(_terms, self.shortest_answers))
            )
        if any(turn in passage.turns for passage in of_turn):
            return True
        needed = [terms for terms in self._answer_terms(turn) if terms]
        needed = needed or [self._nearest_sentence(turn, _terms(self.question.question))]
        return any(2 * len(terms & said) >= len(terms) for terms in needed)

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
