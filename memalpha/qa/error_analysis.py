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
from memalpha.qa.systems.base import Passage, Shown
from memalpha.store.slots import key_value, normalize
from memalpha.types import MemoryEntry, Operation, Question, Task, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from memalpha.qa.records import Record

Rule = Literal["facts", "turns", "answers"]
Style = Literal["full", "compact"]

GOLD = "gold_faulty"
ABSTAIN = "should_have_abstained"
NEVER = "never_written"
WRONG = "written_wrong"
GONE = "overwritten_or_deleted"
MISSED = "not_retrieved"
UNKNOWN = "not_found"
READER = "answered_wrong"

LOSSES: Mapping[str, str] = {
    GOLD: "the gold answer is marked as faulty",
    NEVER: "what was asked for was never written",
    WRONG: "what was asked for was written wrong",
    GONE: "what was asked for was written, then overwritten or deleted",
    MISSED: "the memory held what was asked for, but it was not retrieved",
    UNKNOWN: "what was asked for was not among what was retrieved",
    READER: "what was asked for was retrieved, and the answer is wrong all the same",
    ABSTAIN: "there is no answer to the question, and one was given",
}
"""The classes in the order in which an answer is lost, with what they say."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of a question's support: it was `ever` in the memory, is `held`, was `found` (None: not known).

    `rule` says how it was decided (None: the question has no answer, so no support). `wrong`: in its place something
    else was written.
    """

    rule: Rule | None = None
    ever: bool | None = None
    held: bool | None = None
    found: bool | None = None
    wrong: bool = False


def trace(task: Task, shown: Shown) -> Trace:
    """What became of the support of the question that `shown` is about."""
    if not shown.question.answers:
        return Trace()
    support = _Support(task, shown)
    found = support.within((*shown.passages, Passage(shown.core)))
    if not found and not support.to_be_found(task):
        nothing = False if shown.ever is not None and not any(passage.text for passage in shown.ever) else None
        return Trace(support.rule, ever=nothing, held=nothing, found=False)
    core = Passage(shown.core_held or shown.core)  # what the budget cut off it was held all the same
    held = _or(found, None if shown.held is None else (*shown.held, core), support)
    ever = _or(bool(held), shown.ever, support)
    wrong = not ever and shown.ever is not None and support.mistaken((*shown.ever, core))
    return Trace(support.rule, ever, held, found, wrong)


def _or(sooner: bool, passages: Sequence[Passage] | None, support: _Support) -> bool | None:
    """Whether it was there sooner or is within the passages; None where these are not known."""
    if sooner:
        return True
    return None if passages is None else support.within(passages)


def classify(task: Task, shown: Shown, record: Record) -> str | None:
    """The class of a wrong answer, one of `LOSSES`; None for a right one."""
    if record.correct:
        return None
    if is_faulty(shown.question):
        return GOLD
    if not shown.question.answers:
        return ABSTAIN
    return _class(trace(task, shown))


def is_faulty(question: Question) -> bool:
    """Whether an audit marked the gold answer (`meta["fault"]`); a fault of the evidence alone is not meant."""
    fault = question.meta.get("fault")
    return bool(fault) and (not isinstance(fault, Mapping) or fault.get("of", "answer") == "answer")


def _class(traced: Trace) -> str:
    if traced.found:
        return READER
    if traced.held:
        return MISSED
    if traced.held is None or traced.ever is None:
        return UNKNOWN
    if traced.ever:
        return GONE
    return WRONG if traced.wrong else NEVER


def evidence_recall(shown: Shown) -> float | None:
    """The share of the question's evidence turns that what was shown was taken from.

    None without evidence, and where the system shows passages that do not say what they were taken from. Turns that a
    passage lost to the budget were not shown.
    """
    wanted = set(shown.question.evidence)
    if not wanted or (shown.passages and not any(passage.turns or passage.lost for passage in shown.passages)):
        return None
    return len(wanted & {turn for passage in shown.passages for turn in passage.turns}) / len(wanted)


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A task by identity: its hash by content would take as long as what is to be saved."""

    task: Task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.task is self.task


class _Sources(NamedTuple):
    """The words of each turn, the gold contents that each stated, and all gold contents, normalised."""

    texts: dict[str, str]
    stated: dict[str, list[str]]
    values: set[str]


@lru_cache(maxsize=4)
def _sources(of: _Same) -> _Sources:
    """Of a task; kept, because its questions come one after the other."""
    texts = {turn.id: turn.text for chunk in of.task.chunks for turn in chunk.turns if turn.id is not None}
    stated: dict[str, list[str]] = {}
    gold = [(operation.turn, operation.content) for operation in of.task.gold_operations if operation.content]
    for turn, content in gold:
        if turn is not None:
            stated.setdefault(turn, []).append(content)
    return _Sources(texts, stated, {normalize(content) for _, content in gold})


class _Support:
    """What a question's answer rests on, by the first rule that the task allows, and whether passages hold it."""

    def __init__(self, task: Task, shown: Shown) -> None:
        question, sources = shown.question, _sources(_Same(task))
        self.answers = question.answers
        self.texts = {turn: sources.texts[turn] for turn in question.evidence if turn in sources.texts}
        self.facts: list[tuple[str, str | None]] = []  # (content, turn)
        for turn in question.evidence:
            stated = sources.stated.get(turn, [])
            answering = [content for content in stated if self._answered(content)]
            self.facts += [(content, turn) for content in answering or stated]
        self.values = sources.values
        parts = (shown.passages, shown.held, shown.ever)
        known = any(passage.turns or passage.lost for part in parts for passage in part or ())
        self.rule: Rule = "facts" if self.facts else "turns" if self.texts and known else "answers"

    def within(self, passages: Sequence[Passage]) -> bool:
        """Whether the passages together hold all of the support."""
        if self.rule == "facts":
            return all(self._stated(passages, *fact) for fact in self.facts)
        if self.rule == "turns":
            return all(any(self._covers(passage, turn) for passage in passages) for turn in self.texts)
        return any(self._answered(passage.text) for passage in passages)

    def to_be_found(self, task: Task) -> bool:
        """Whether the rule can find the support at all: by `answers`, only an answer that the conversation has."""
        return self.rule != "answers" or any(self._answered(chunk.render()) for chunk in task.chunks)

    def mistaken(self, passages: Sequence[Passage]) -> bool:
        """Whether something else was written in the place of what is missing."""
        if self.rule == "facts":
            return any(
                self._instead(passage, *fact)
                for fact in self.facts
                if not self._stated(passages, *fact)
                for passage in passages
            )
        return self.rule == "turns" and any(
            turn in passage.turns
            for turn in self.texts
            if not any(self._covers(passage, turn) for passage in passages)
            for passage in passages
        )

    def _answered(self, text: str) -> bool:
        return any(contains(text, answer) for answer in self.answers)

    def _stated(self, passages: Sequence[Passage], content: str, turn: str | None) -> bool:
        """Whether a line states the fact (a `key: value` line just that, free text among other things), or the turn
        that stated it is there word for word."""
        if turn is not None and any(self._is_raw(passage, turn) for passage in passages):
            return True
        needle, free = normalize(content), key_value(content) is None
        return any(
            same(line, content) or ((free or key_value(line) is None) and contains(line, content))
            for passage in passages
            if needle in normalize(passage.text)  # a quick no for most
            for line in passage.text.split("\n")
        )

    def _is_raw(self, passage: Passage, turn: str) -> bool:
        if passage.turns and turn not in passage.turns:
            return False
        return turn in self.texts and contains(passage.text, self.texts[turn])

    def _instead(self, passage: Passage, content: str, turn: str | None) -> bool:
        """Whether a line gives the fact's slot a value that it never had, or the entry was taken from its turn."""
        pair = key_value(content)
        for line in passage.text.split("\n"):
            other = key_value(line)
            if pair and other and normalize(other[0]) == normalize(pair[0]) and normalize(line) not in self.values:
                return True
        return turn in passage.turns and normalize(passage.text) not in self.values

    def _covers(self, passage: Passage, turn: str) -> bool:
        if turn not in passage.turns:
            return False
        return not self._answered(self.texts[turn]) or self._answered(passage.text) or self._is_raw(passage, turn)


# ----------------------------------------------------------------------------------------------------------- over many


def with_losses(groups: Iterable[TrajectoryGroup], records: Sequence[Record], style: Style = "full") -> list[Record]:
    """The records of built memories, each with its loss, the loss in words (see `feedback`), and whether the support
    was found."""
    built = {(group.task.id, rollout.rollout): rollout for group in groups for rollout in group.trajectories}
    asked = {id: {question.id: question for question in built[id].task.questions} for id in built}
    told = []
    for record in records:
        place = record.task, record.rollout
        shown = shown_by(built[place], asked[place][record.question_id], record.retrieved)
        task = built[place].task
        record = replace(record, found=trace(task, shown).found, loss=classify(task, shown, record))
        told.append(replace(record, feedback=feedback(task, shown, record, style=style)))
    return told


def shown_by(trajectory: Trajectory, question: Question, retrieved: Sequence[str]) -> Shown:
    """What a built memory had for a question of its task when it was asked, and which entries (ids) were retrieved."""
    last = len(trajectory.task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
    state = trajectory.states[last]

    def passage(of: MemoryEntry | Operation) -> Passage:
        turns = () if of.turn is None else (of.turn,)
        return Passage(of.content or "", of.id, of.category, of.timestamp, turns)

    held = tuple(map(passage, state.entries.values()))
    written = (o for turn in trajectory.turns if turn.chunk <= last for o in turn.operations if o.content)
    passages = tuple(passage(state.entries[id]) for id in retrieved if id in state.entries)
    return Shown(question, passages, 0, 0, core=state.core, held=held, ever=(*held, *map(passage, written)))


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
    losses: Mapping[str, int]
    ceiling: float | None = None
    ceiling_n: int = 0
    ceiling_answered: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The waterfall as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def waterfall(records: Iterable[Record]) -> list[Waterfall]:
    """A waterfall for each ability, and one for "all" at the end; [] where no record was looked at for its loss.

    Every wrong record needs its class (`classify`).
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.ability, []).append(record)
    whole = [record for group in groups.values() for record in group]
    if any(not record.correct and record.loss is None for record in whole):
        return []
    named = [(ability, groups[ability]) for ability in sorted(groups)]
    return [_fall(ability, group) for ability, group in (*named, ("all", whole)) if group]


def _fall(ability: str, records: Sequence[Record]) -> Waterfall:
    n = len(records)
    losses = Counter(record.loss for record in records if record.loss is not None)
    ceiling, ceiling_n, answered = ceiling_of(records)

    def left(*classes: str) -> float:
        return (n - sum(losses[name] for name in classes)) / n

    untold = bool(losses[UNKNOWN])
    return Waterfall(
        ability=ability,
        n=n,
        sound=left(GOLD),
        written=None if untold else left(GOLD, NEVER, WRONG),
        kept=None if untold else left(GOLD, NEVER, WRONG, GONE),
        retrieved=left(GOLD, NEVER, WRONG, GONE, MISSED, UNKNOWN),
        answered=left(*LOSSES),
        losses={name: losses[name] for name in LOSSES if losses[name]},
        ceiling=ceiling,
        ceiling_n=ceiling_n,
        ceiling_answered=answered,
    )


def ceiling_of(records: Iterable[Record]) -> tuple[float | None, int, float | None]:
    """Of the records whose question was also asked with its evidence in view: the share right that way, how many they
    are, and the share of them that is right as they stand."""
    asked = [record for record in records if record.ceiling is not None]
    if not asked:
        return None, 0, None
    return sum(bool(one.ceiling) for one in asked) / len(asked), len(asked), sum(o.correct for o in asked) / len(asked)


# -------------------------------------------------------------------------------------------------------- in words


def feedback(
    task: Task, shown: Shown, record: Record, *, passages: int = 3, length: int = 300, style: Style = "full"
) -> str:
    """A wrong answer in words, for whoever shall do better; "" for a right one.

    The question, what was answered and what is right, what was retrieved and what had said it (the first few `passages`
    of each, cut at `length` characters), and where it was lost. `compact`, for the policies that ship: only the
    question, the answer, what is right and what had said it.
    """
    loss = record.loss or classify(task, shown, record)
    if loss is None:
        return ""
    question, support = shown.question, _Support(task, shown)
    if style == "compact":
        right = " or ".join(question.answers) or "unknown"
        lines = [f"ask: {question.question}", f"answer: {record.answer}", f"right: {right}"]
        if support.texts:
            lines.append(f"said: {_listed(list(support.texts.values())[:passages], length)}")
        return "\n".join(" ".join(line.split()) for line in lines)
    right = " or ".join(question.answers) or "that it is not known"
    lines = [f"Question: {question.question}", f"Answered: {record.answer or '(nothing)'}", f"Right: {right}"]
    lines.append(f"Retrieved: {_listed([passage.text for passage in shown.passages[:passages]], length)}")
    if support.texts:
        lines.append(f"Said: {_listed(list(support.texts.values())[:passages], length)}")
    if support.facts:
        lines.append(f"To be noted: {_listed(list(dict.fromkeys(fact for fact, _ in support.facts)), length)}")
    lines.append(f"Lost: {LOSSES[loss]}.")
    if record.stale or record.conflict:
        lines.append("An outdated statement about this is still in the memory.")
    return "\n".join(lines)


def _listed(texts: Sequence[str], length: int) -> str:
    flat = [" ".join(text.split()) for text in texts]
    return " | ".join(text if len(text) <= length else f"{text[: length - 1]}…" for text in flat) or "(nothing)"
