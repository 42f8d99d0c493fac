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
4. `answers`: an accepted answer in a passage's words. This rule cannot see what was written wrong, nor an answer that
   is not in the conversation's words.

Where evidence turns are alternatives (`Question.meta["evidence"]` is "any"), one is enough. Yes, no and numbers below
100 never count as found. Limits: by `turns`, an entry from the right turn counts as support even if it left out the
answer, where the answer is not in the turn's own words (dates, counts). Evidence repeated elsewhere is not seen.
`eval/qa/error_analysis.py` measures the rules where the truth is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from memalpha.qa.support import AnswerSupport, Rule
from memalpha.qa.systems.base import Passage, Retrieval, WrittenMemory, question_chunk
from memalpha.types import Question, Task, TrajectoryGroup

if TYPE_CHECKING:
    from memalpha.qa.report import Record

Style = Literal["full", "compact", "mem-alpha"]

GOLD_FAULTY = "gold_faulty"
SHOULD_HAVE_ABSTAINED = "should_have_abstained"
NEVER_WRITTEN = "never_written"
WRITTEN_WRONG = "written_wrong"
OVERWRITTEN = "overwritten_or_deleted"
PARTLY_RETRIEVED = "partly_retrieved"
NOT_RETRIEVED = "not_retrieved"
NOT_FOUND = "not_found"
ANSWERED_WRONG = "answered_wrong"

ERROR_CLASSES: Mapping[str, str] = {
    GOLD_FAULTY: "the gold answer is marked as faulty",
    NEVER_WRITTEN: "what was asked for was never written",
    WRITTEN_WRONG: "what was asked for was written wrong",
    OVERWRITTEN: "what was asked for was written, then overwritten or deleted",
    NOT_RETRIEVED: "the memory held what was asked for, but it was not retrieved",
    PARTLY_RETRIEVED: "only a part of what was asked for was retrieved",
    NOT_FOUND: "what was asked for was not among what was retrieved",
    ANSWERED_WRONG: "what was asked for was retrieved, and the answer is wrong all the same",
    SHOULD_HAVE_ABSTAINED: "there is no answer to the question, and one was given",
}
"""Error classes in the order of the pipeline, each with its meaning."""


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
    pieces = support.pieces_in((*retrieval.passages, Passage(retrieval.core)))
    retrieved = all(pieces)
    if not retrieved and not support.is_findable(task):
        written_before = (
            False if retrieval.history is not None and not any(passage.text for passage in retrieval.history) else None
        )
        return Trace(support.rule, written=written_before, live=written_before, retrieved=False)
    core = Passage(retrieval.full_core or retrieval.core)  # the memory holds text that the budget cut from view
    live = _found_by_stage(retrieved, None if retrieval.entries is None else (*retrieval.entries, core), support)
    written = _found_by_stage(bool(live), retrieval.history, support)
    written_wrong = (
        not written and retrieval.history is not None and support.is_written_wrong((*retrieval.history, core))
    )
    return Trace(support.rule, written, live, retrieved, any(pieces) and not retrieved, written_wrong)


def _found_by_stage(earlier: bool, passages: Sequence[Passage] | None, support: AnswerSupport) -> bool | None:
    """Return True if an earlier stage or the passages hold the support; None if the passages are unknown."""
    if earlier:
        return True
    return None if passages is None else support.is_held_by(passages)


def classify(task: Task, retrieval: Retrieval, record: Record) -> str | None:
    """Return the error class of a wrong answer, or None for a right one; arguments as in `classified`."""
    return _class_of(record, retrieval.question, trace(task, retrieval))


def is_gold_faulty(question: Question) -> bool:
    """Return True if an audit marked the gold answer (`meta["fault"]`), not only the evidence."""
    fault = question.meta.get("fault")
    return bool(fault) and (not isinstance(fault, Mapping) or fault.get("of", "answer") == "answer")


def _class_of(record: Record, question: Question, support_trace: Trace) -> str | None:
    if record.correct:
        return None
    if is_gold_faulty(question):
        return GOLD_FAULTY
    if not question.answers:
        return SHOULD_HAVE_ABSTAINED
    if support_trace.retrieved:
        return ANSWERED_WRONG
    if support_trace.live:
        return PARTLY_RETRIEVED if support_trace.partly_retrieved else NOT_RETRIEVED
    if support_trace.live is None or support_trace.written is None:
        return PARTLY_RETRIEVED if support_trace.partly_retrieved else NOT_FOUND
    if support_trace.written:
        return OVERWRITTEN
    return WRITTEN_WRONG if support_trace.written_wrong else NEVER_WRITTEN


def evidence_recall(retrieval: Retrieval) -> float | None:
    """Return the share of the question's evidence turns that the retrieved passages come from.

    It is None without evidence, and if no passage names its turns. Turns that the budget cut from a passage do not
    count.
    """
    evidence = set(retrieval.question.evidence)
    if not evidence or (
        retrieval.passages and not any(passage.turns or passage.cut_turns for passage in retrieval.passages)
    ):
        return None
    return len(evidence & {turn for passage in retrieval.passages for turn in passage.turns}) / len(evidence)


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
    rollouts = {
        (group.task.id, rollout.rollout): (
            rollout,
            WrittenMemory(rollout),
            {question.id: question for question in group.task.questions},
        )
        for group in groups
        for rollout in group.trajectories
    }
    results = []
    for record in records:
        rollout, memory, questions = rollouts[record.task, record.rollout]
        question = questions[record.question_id]
        chunk = question_chunk(question, rollout.task)
        state, (entries, history) = rollout.states[chunk], memory.after(chunk)
        passages = tuple(memory.passage(state.entries[id]) for id in record.retrieved if id in state.entries)
        retrieval = Retrieval(question, passages, 0, 0, core=state.core, entries=entries, history=history)
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
    record = replace(
        record,
        written=support.written,
        live=support.live,
        support_retrieved=support.retrieved,
        rule=support.rule,
        error_class=_class_of(record, retrieval.question, support),
    )
    return replace(record, feedback=feedback(task, retrieval, record, style=style))


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

    def as_json(self) -> dict[str, Any]:
        """Return the waterfall as plain values; the key of `error_counts` is "losses"."""
        return {"losses" if name == "error_counts" else name: getattr(self, name) for name in self.__slots__}


def waterfall(records: Iterable[Record]) -> list[Waterfall]:
    """Compute a waterfall for each ability, and one for "all" at the end.

    Every wrong record needs its class (`classify`); the list is empty if one has none.
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

    has_unknown_support = bool(error_counts[NOT_FOUND]) or any(
        record.error_class == PARTLY_RETRIEVED and record.live is None for record in records
    )
    return Waterfall(
        ability=ability,
        n=n,
        sound=remaining_share(GOLD_FAULTY),
        written=None if has_unknown_support else remaining_share(GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG),
        kept=None if has_unknown_support else remaining_share(GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG, OVERWRITTEN),
        retrieved=remaining_share(
            GOLD_FAULTY, NEVER_WRITTEN, WRITTEN_WRONG, OVERWRITTEN, NOT_RETRIEVED, PARTLY_RETRIEVED, NOT_FOUND
        ),
        answered=remaining_share(*ERROR_CLASSES),
        error_counts={name: error_counts[name] for name in ERROR_CLASSES if error_counts[name]},
        ceiling=ceiling,
        ceiling_n=ceiling_n,
        ceiling_answered=answered,
    )


def ceiling_accuracy(records: Iterable[Record]) -> tuple[float | None, int, float | None]:
    """Return (ceiling, number of questions with evidence, the system's accuracy on these questions).

    Both shares are None if no question was asked with its evidence in view.
    """
    with_ceiling = [record for record in records if record.ceiling is not None]
    if not with_ceiling:
        return None, 0, None
    count = len(with_ceiling)
    answered = sum(record.correct for record in with_ceiling) / count
    return sum(bool(record.ceiling) for record in with_ceiling) / count, count, answered


# -------------------------------------------------------------------------------------------------------- in words


def feedback(
    task: Task, retrieval: Retrieval, record: Record, *, passages: int = 3, length: int = 300, style: Style = "full"
) -> str:
    """Describe a wrong answer in words for a later attempt; "" for a right one.

    Args:
        task: Task of the question.
        retrieval: See `classified`.
        record: Record of the answer.
        passages: Number of passages and of turns that are quoted.
        length: Characters of a quote, at most.
        style: "full" names question, answer, accepted answer, retrieved passages, evidence turns and error class.
            "compact", for the shipped policies, leaves out the passages and the class.
    """
    error_class = record.error_class or classify(task, retrieval, record)
    if error_class is None:
        return ""
    question, support = retrieval.question, AnswerSupport(task, retrieval)
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
