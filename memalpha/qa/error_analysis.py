"""Where a wrong answer was lost: every wrong answer is in exactly one class, by replaying what the memory held.

| class                   | the support of the answer                                                            |
|-------------------------|--------------------------------------------------------------------------------------|
| `gold_faulty`           | does not matter: an audit marked the gold answer (`Question.meta["fault"]`)          |
| `should_have_abstained` | is nowhere: the question has no answer, and one was given                            |
| `never_written`         | was in the memory at no time                                                         |
| `written_wrong`         | was not, but something was written in its place                                      |
| `overwritten_or_deleted`| was in the memory and no longer was when the question was asked                      |
| `not_retrieved`         | was in the memory and not among what was shown                                       |
| `not_found`             | was not among what was shown, and more cannot be told (what is held is not shown)    |
| `answered_wrong`        | was shown                                                                            |

The classes are tried in this order but for the last one: what was shown is not looked for elsewhere. What the support
is, is decided by the first of three rules that the task allows (`Trace.rule`):

1. `facts`: the gold facts of the evidence turns (`Task.gold_operations`), all of them. A passage has one if a line of
   it states just that, or if it holds the turn itself, word for word. Wrong is a value of the fact's slot that never
   held, or an entry taken from the turn that states no fact of the task.
2. `turns`: the evidence turns, all of them, by the ids that passages carry. Where the turn has an accepted answer in
   its words, the passage must have one too (or the turn itself), else it is written wrong.
3. `answers`: an accepted answer in a passage's words. Nothing is known of what was written wrong, nor of an answer that
   the conversation itself does not have in its words.

Limits: by `turns`, an entry from the right turn that left out what is asked for counts as support where the answer is
not in the turn's own words (dates, counts), and evidence repeated elsewhere is not seen. By `answers`, a short answer
("yes", "2") is found in unrelated passages. `eval/loss_meter.py` measures all three where the truth is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memalpha.agent.text_match import contains, same
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.store.slots import key_value, normalize
from memalpha.types import MemoryEntry, Operation, Question, Task, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from memalpha.qa.records import Record

Rule = Literal["facts", "turns", "answers"]
Style = Literal["full", "compact"]

GOLD_FAULTY = "gold_faulty"
SHOULD_HAVE_ABSTAINED = "should_have_abstained"
NEVER_WRITTEN = "never_written"
WRITTEN_WRONG = "written_wrong"
OVERWRITTEN = "overwritten_or_deleted"
NOT_RETRIEVED = "not_retrieved"
NOT_FOUND = "not_found"
ANSWERED_WRONG = "answered_wrong"

ERROR_CLASSES: Mapping[str, str] = {
    GOLD_FAULTY: "the gold answer is marked as faulty",
    NEVER_WRITTEN: "what was asked for was never written",
    WRITTEN_WRONG: "what was asked for was written wrong",
    OVERWRITTEN: "what was asked for was written, then overwritten or deleted",
    NOT_RETRIEVED: "the memory held what was asked for, but it was not retrieved",
    NOT_FOUND: "what was asked for was not among what was retrieved",
    ANSWERED_WRONG: "what was asked for was retrieved, and the answer is wrong all the same",
    SHOULD_HAVE_ABSTAINED: "there is no answer to the question, and one was given",
}
"""The classes in the order in which an answer is lost, with what they say."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of a question's support: it was `ever` in the memory, is `held`, was `found` (None: not known).

    `rule` says how it was decided (None: the question has no answer, so no support). `wrong`: in its place something
    else was written.
    """

    rule: Rule | None = None
    written: bool | None = None
    live: bool | None = None
    retrieved: bool | None = None
    written_wrong: bool = False


def trace(task: Task, retrieval: Retrieval) -> Trace:
    """What became of the support of the question that `shown` is about."""
    if not retrieval.question.answers:
        return Trace()
    support = _Support(task, retrieval)
    retrieved = support.is_held_by((*retrieval.passages, Passage(retrieval.core)))
    if not retrieved and not support.is_findable(task):
        written_before = (
            False if retrieval.history is not None and not any(passage.text for passage in retrieval.history) else None
        )
        return Trace(support.rule, written=written_before, live=written_before, retrieved=False)
    core = Passage(retrieval.full_core or retrieval.core)  # what the budget cut off it was held all the same
    live = _found_by_stage(retrieved, None if retrieval.entries is None else (*retrieval.entries, core), support)
    written = _found_by_stage(bool(live), retrieval.history, support)
    written_wrong = (
        not written and retrieval.history is not None and support.is_written_wrong((*retrieval.history, core))
    )
    return Trace(support.rule, written, live, retrieved, written_wrong)


def _found_by_stage(earlier: bool, passages: Sequence[Passage] | None, support: _Support) -> bool | None:
    """Whether it was there sooner or is within the passages; None where these are not known."""
    if earlier:
        return True
    return None if passages is None else support.is_held_by(passages)


def classify(task: Task, retrieval: Retrieval, record: Record) -> str | None:
    """The class of a wrong answer, one of `LOSSES`; None for a right one."""
    if record.correct:
        return None
    if is_gold_faulty(retrieval.question):
        return GOLD_FAULTY
    if not retrieval.question.answers:
        return SHOULD_HAVE_ABSTAINED
    return _class_of(trace(task, retrieval))


def is_gold_faulty(question: Question) -> bool:
    """Whether an audit marked the gold answer (`meta["fault"]`); a fault of the evidence alone is not meant."""
    fault = question.meta.get("fault")
    return bool(fault) and (not isinstance(fault, Mapping) or fault.get("of", "answer") == "answer")


def _class_of(support_trace: Trace) -> str:
    if support_trace.retrieved:
        return ANSWERED_WRONG
    if support_trace.live:
        return NOT_RETRIEVED
    if support_trace.live is None or support_trace.written is None:
        return NOT_FOUND
    if support_trace.written:
        return OVERWRITTEN
    return WRITTEN_WRONG if support_trace.written_wrong else NEVER_WRITTEN


def evidence_recall(retrieval: Retrieval) -> float | None:
    """The share of the question's evidence turns that what was shown was taken from.

    None without evidence, and where the system shows passages that do not say what they were taken from. Turns that a
    passage lost to the budget were not shown.
    """
    evidence = set(retrieval.question.evidence)
    if not evidence or (
        retrieval.passages and not any(passage.turns or passage.cut_turns for passage in retrieval.passages)
    ):
        return None
    return len(evidence & {turn for passage in retrieval.passages for turn in passage.turns}) / len(evidence)


@dataclass(frozen=True, slots=True, eq=False)
class _TaskKey:
    """A task by identity: its hash by content would take as long as what is to be saved."""

    task: Task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TaskKey) and other.task is self.task


class _Sources(NamedTuple):
    """The words of each turn, the gold contents that each stated, and all gold contents, normalised."""

    texts: dict[str, str]
    facts: dict[str, list[str]]
    values: set[str]


@lru_cache(maxsize=4)
def _sources(key: _TaskKey) -> _Sources:
    """Of a task; kept, because its questions come one after the other."""
    texts = {turn.id: turn.text for chunk in key.task.chunks for turn in chunk.turns if turn.id is not None}
    facts: dict[str, list[str]] = {}
    gold = [(operation.turn, operation.content) for operation in key.task.gold_operations if operation.content]
    for turn, content in gold:
        if turn is not None:
            facts.setdefault(turn, []).append(content)
    return _Sources(texts, facts, {normalize(content) for _, content in gold})


class _Support:
    """What a question's answer rests on, by the first rule that the task allows, and whether passages hold it."""

    def __init__(self, task: Task, retrieval: Retrieval) -> None:
        question, sources = retrieval.question, _sources(_TaskKey(task))
        self.answers = question.answers
        self.texts = {turn: sources.texts[turn] for turn in question.evidence if turn in sources.texts}
        self.facts: list[tuple[str, str | None]] = []  # (content, turn)
        for turn in question.evidence:
            facts = sources.facts.get(turn, [])
            answering = [content for content in facts if self._has_answer(content)]
            self.facts += [(content, turn) for content in answering or facts]
        self.values = sources.values
        parts = (retrieval.passages, retrieval.entries, retrieval.history)
        has_turn_ids = any(passage.turns or passage.cut_turns for part in parts for passage in part or ())
        self.rule: Rule = "facts" if self.facts else "turns" if self.texts and has_turn_ids else "answers"

    def is_held_by(self, passages: Sequence[Passage]) -> bool:
        """Whether the passages together hold all of the support."""
        if self.rule == "facts":
            return all(self._state_fact(passages, *fact) for fact in self.facts)
        if self.rule == "turns":
            return all(any(self._covers_turn(passage, turn) for passage in passages) for turn in self.texts)
        return any(self._has_answer(passage.text) for passage in passages)

    def is_findable(self, task: Task) -> bool:
        """Whether the rule can find the support at all: by `answers`, only an answer that the conversation has."""
        return self.rule != "answers" or any(self._has_answer(chunk.render()) for chunk in task.chunks)

    def is_written_wrong(self, passages: Sequence[Passage]) -> bool:
        """Whether something else was written in the place of what is missing."""
        if self.rule == "facts":
            return any(
                self._states_other_value(passage, *fact)
                for fact in self.facts
                if not self._state_fact(passages, *fact)
                for passage in passages
            )
        return self.rule == "turns" and any(
            turn in passage.turns
            for turn in self.texts
            if not any(self._covers_turn(passage, turn) for passage in passages)
            for passage in passages
        )

    def _has_answer(self, text: str) -> bool:
        return any(contains(text, answer) for answer in self.answers)

    def _state_fact(self, passages: Sequence[Passage], content: str, turn: str | None) -> bool:
        """Whether a line states the fact (a `key: value` line just that, free text among other things), or the turn
        that stated it is there word for word."""
        if turn is not None and any(self._quotes_turn(passage, turn) for passage in passages):
            return True
        needle, free = normalize(content), key_value(content) is None
        return any(
            same(line, content) or ((free or key_value(line) is None) and contains(line, content))
            for passage in passages
            if needle in normalize(passage.text)  # a quick no for most
            for line in passage.text.split("\n")
        )

    def _quotes_turn(self, passage: Passage, turn: str) -> bool:
        if passage.turns and turn not in passage.turns:
            return False
        return turn in self.texts and contains(passage.text, self.texts[turn])

    def _states_other_value(self, passage: Passage, content: str, turn: str | None) -> bool:
        """Whether a line gives the fact's slot a value that it never had, or the entry was taken from its turn."""
        pair = key_value(content)
        for line in passage.text.split("\n"):
            other = key_value(line)
            if pair and other and normalize(other[0]) == normalize(pair[0]) and normalize(line) not in self.values:
                return True
        return turn in passage.turns and normalize(passage.text) not in self.values

    def _covers_turn(self, passage: Passage, turn: str) -> bool:
        if turn not in passage.turns:
            return False
        return (
            not self._has_answer(self.texts[turn]) or self._has_answer(passage.text) or self._quotes_turn(passage, turn)
        )


# ----------------------------------------------------------------------------------------------------------- over many


def with_error_classes(
    groups: Iterable[TrajectoryGroup], records: Sequence[Record], style: Style = "full"
) -> list[Record]:
    """The records of built memories, each with its loss, the loss in words (see `feedback`), and whether the support
    was found."""
    trajectories = {(group.task.id, rollout.rollout): rollout for group in groups for rollout in group.trajectories}
    questions = {id: {question.id: question for question in trajectories[id].task.questions} for id in trajectories}
    classified = []
    for record in records:
        key = record.task, record.rollout
        retrieval = retrieval_at(trajectories[key], questions[key][record.question_id], record.retrieved)
        task = trajectories[key].task
        record = replace(
            record, support_retrieved=trace(task, retrieval).retrieved, error_class=classify(task, retrieval, record)
        )
        classified.append(replace(record, feedback=feedback(task, retrieval, record, style=style)))
    return classified


def retrieval_at(trajectory: Trajectory, question: Question, retrieved: Sequence[str]) -> Retrieval:
    """What a built memory had for a question of its task when it was asked, and which entries (ids) were retrieved."""
    last = len(trajectory.task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
    state = trajectory.states[last]

    def passage(item: MemoryEntry | Operation) -> Passage:
        turns = () if item.turn is None else (item.turn,)
        return Passage(item.content or "", item.id, item.category, item.timestamp, turns)

    entries = tuple(map(passage, state.entries.values()))
    written = (o for turn in trajectory.turns if turn.chunk <= last for o in turn.operations if o.content)
    passages = tuple(passage(state.entries[id]) for id in retrieved if id in state.entries)
    return Retrieval(
        question, passages, 0, 0, core=state.core, entries=entries, history=(*entries, *map(passage, written))
    )


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How the answers of one ability ("all": of all) went, as shares of its `n` questions.

    First what was left after each step: the gold answer is sound, its support was `written`, was `kept`, was
    `retrieved`, and was `answered` rightly (the accuracy). A step is None where the system does not show enough to tell
    it from the next. `losses`: how many answers each class lost.

    `ceiling` has a denominator of its own, the `ceiling_n` questions that name evidence: the share that the same reader
    has right when shown that, and `ceiling_answered`, the share of the very same questions that the system has right
    (both None where there are none).
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

    def as_json(self) -> dict[str, Any]:
        """The waterfall as plain values."""
        return {"losses" if name == "error_counts" else name: getattr(self, name) for name in self.__slots__}


def waterfall(records: Iterable[Record]) -> list[Waterfall]:
    """A waterfall for each ability, and one for "all" at the end; [] where no record was looked at for its loss.

    Every wrong record needs its class (`classify`).
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.ability, []).append(record)
    all_records = [record for group in groups.values() for record in group]
    if any(not record.correct and record.error_class is None for record in all_records):
        return []
    by_ability = [(ability, groups[ability]) for ability in sorted(groups)]
    return [_waterfall_of(ability, group) for ability, group in (*by_ability, ("all", all_records)) if group]


def _waterfall_of(ability: str, records: Sequence[Record]) -> Waterfall:
    n = len(records)
    error_counts = Counter(record.error_class for record in records if record.error_class is not None)
    ceiling, ceiling_n, answered = ceiling_accuracy(records)

    def remaining_share(*classes: str) -> float:
        return (n - sum(error_counts[name] for name in classes)) / n

    has_unknown_support = bool(error_counts[NOT_FOUND])
    return Waterfall(
        ability=ability,
        n=n,
        sound=remaining_share(GOLD_FAULTY),
        written=None if has_unknown_support else remaining_share(GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG),
        kept=None if has_unknown_support else remaining_share(GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG, OVERWRITTEN),
        retrieved=remaining_share(GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG, OVERWRITTEN, NOT_RETRIEVED, NOT_FOUND),
        answered=remaining_share(*ERROR_CLASSES),
        error_counts={name: error_counts[name] for name in ERROR_CLASSES if error_counts[name]},
        ceiling=ceiling,
        ceiling_n=ceiling_n,
        ceiling_answered=answered,
    )


def ceiling_accuracy(records: Iterable[Record]) -> tuple[float | None, int, float | None]:
    """Of the records whose question was also asked with its evidence in view: the share right that way, how many they
    are, and the share of them that is right as they stand."""
    with_ceiling = [record for record in records if record.ceiling is not None]
    if not with_ceiling:
        return None, 0, None
    return (
        sum(bool(one.ceiling) for one in with_ceiling) / len(with_ceiling),
        len(with_ceiling),
        sum(o.correct for o in with_ceiling) / len(with_ceiling),
    )


# -------------------------------------------------------------------------------------------------------- in words


def feedback(
    task: Task, retrieval: Retrieval, record: Record, *, passages: int = 3, length: int = 300, style: Style = "full"
) -> str:
    """A wrong answer in words, for whoever shall do better; "" for a right one.

    The question, what was answered and what is right, what was retrieved and what had said it (the first few `passages`
    of each, cut at `length` characters), and where it was lost. `compact`, for the policies that ship: only the
    question, the answer, what is right and what had said it.
    """
    error_class = record.error_class or classify(task, retrieval, record)
    if error_class is None:
        return ""
    question, support = retrieval.question, _Support(task, retrieval)
    if style == "compact":
        expected = " or ".join(question.answers) or "unknown"
        lines = [f"ask: {question.question}", f"answer: {record.answer}", f"right: {expected}"]
        if support.texts:
            lines.append(f"said: {_join_texts(list(support.texts.values())[:passages], length)}")
        return "\n".join(" ".join(line.split()) for line in lines)
    expected = " or ".join(question.answers) or "that it is not known"
    lines = [f"Question: {question.question}", f"Answered: {record.answer or '(nothing)'}", f"Right: {expected}"]
    lines.append(f"Retrieved: {_join_texts([passage.text for passage in retrieval.passages[:passages]], length)}")
    if support.texts:
        lines.append(f"Said: {_join_texts(list(support.texts.values())[:passages], length)}")
    if support.facts:
        lines.append(f"To be noted: {_join_texts(list(dict.fromkeys(fact for fact, _ in support.facts)), length)}")
    lines.append(f"Lost: {ERROR_CLASSES[error_class]}.")
    if record.stale or record.conflict:
        lines.append("An outdated statement about this is still in the memory.")
    return "\n".join(lines)


def _join_texts(texts: Sequence[str], length: int) -> str:
    flat = [" ".join(text.split()) for text in texts]
    return " | ".join(text if len(text) <= length else f"{text[: length - 1]}…" for text in flat) or "(nothing)"
