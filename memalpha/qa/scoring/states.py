"""Ask questions of memory states: one record per question and state, all answered in one reader call.

A rollout's own questions (`qa.scoring.memory.evaluate_memory`) and those of credit per call
(`train.rollouts.credit_scorer`) are asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memalpha.agent.conflict_rule import states_several_values
from memalpha.agent.prompts import question_with_choices as asked_in_full
from memalpha.agent.reader import Answer, Reader, check_answers
from memalpha.agent.text_match import contains
from memalpha.errors import ConfigError, DataError
from memalpha.qa.report import CHANGED, Record, estimate_tokens
from memalpha.qa.scoring.metrics import (
    CORRECT_FROM,
    cited_scores,
    evidence_notes,
    is_correct,
    is_refusal,
    score_answer,
    score_question,
)
from memalpha.qa.systems.base import as_passage
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.types import Question, Task

SINGLE_VALUED = ("stated", "updated", "retracted")
"""Kinds of questions (`Question.meta["kind"]`) about a slot that has one value at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class StateQuestion:
    """A question of a task, and the memory state to answer it from; `rollout` goes into the record."""

    task: Task
    question: Question
    state: MemoryState
    rollout: int = 0


def ask_states(
    items: Sequence[StateQuestion], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[Record]:
    """Ask each question of its state, in one reader call.

    Args:
        items: Questions with their states.
        reader: Reader that answers. Its exceptions are passed on: a failed reader is not a wrong answer.
        metric: Name of the metric that scores answers.
        embedder: Embedder that the memories are searched with.

    Returns:
        One record per item, in order.
    """
    memories: dict[int, WorkingMemory] = {}
    asked: list[tuple[str | Question, WorkingMemory]] = []
    for item in items:
        question = item.question
        # Custom readers may expect a text: pass the whole question only if it has choices or a date.
        has_details = asked_in_full(question) != question.question
        memory = memories.setdefault(id(item.state), WorkingMemory(item.state, embedder))
        asked.append((question if has_details else question.question, memory))
    if texts := texts_to_embed(items):
        embedder.encode(texts)  # in one batch, so that the searches find them in the embedder's cache
    answers = check_answers(reader, len(asked), lambda: reader.answer(asked))
    refuse = reader.conflicts == "refuse"
    return [_make_record(item, answer, metric, refuse=refuse) for item, answer in zip(items, answers, strict=True)]


def texts_to_embed(items: Iterable[StateQuestion]) -> list[str]:
    """Return each text once whose vector `ask_states` needs: questions and memory entries."""
    texts: dict[str, None] = {}
    memories: dict[int, MemoryState] = {}
    for item in items:
        texts[item.question.question] = None
        memories[id(item.state)] = item.state
    for state in memories.values():
        texts.update(dict.fromkeys(entry.content for entry in state.entries.values()))
        texts.update(dict.fromkeys(state.schema.category_texts.values()))
    return list(texts)


def _make_record(item: StateQuestion, answer: Answer, metric: str, *, refuse: bool) -> Record:
    question, state = item.question, item.state
    if refuse:
        statements = [*(entry.content for entry in state.entries.values()), *state.core.splitlines()]
        answer = replace(answer, conflict=answer.conflict or is_disputed(question, statements))
    score, correct, scores = _score(item.task, question, answer, metric)
    return build_record(
        item.task,
        question,
        answer,
        score,
        correct,
        rollout=item.rollout,
        retrieved=tuple(hit.entry.id for hit in answer.hits),
        tokens=sum(estimate_tokens(hit.entry.content) for hit in answer.hits),
        scores=scores,
    )


def build_record(
    task: Task, question: Question, answer: Answer, score: float, correct: bool, *, rollout: int = 0, **fields: Any
) -> Record:
    """Build the record of an answer; `fields` are further fields of `Record`.

    Args:
        task: Task of the question.
        question: Question that was asked.
        answer: Answer of the reader.
        score: Score by the metric, 0 to 1.
        correct: True if the score counts as right.
        rollout: Index of the rollout.
    """
    return Record(
        task=task.id,
        rollout=rollout,
        question_id=question.id,
        ability=question.category or "none",
        kind=question.meta.get("kind"),
        question=question.question,
        answer=answer.text,
        gold=question.answers,
        score=score,
        correct=correct,
        stale=is_stale(question, answer, correct),
        conflict=answer.conflict,
        abstained=is_refusal(answer, question.answers),
        truncated=answer.truncated,
        searches=tuple(search.as_json() for search in answer.searches),
        left_out=answer.left_out,
        **fields,
    )


def _score(task: Task, question: Question, answer: Answer, metric: str) -> tuple[float, bool, dict[str, float]]:
    """Return the score, True if it counts as right, and its components if the metric has some."""
    if metric not in ("question", "cited"):
        score = score_answer(metric, answer, question.answers)
        return score, score >= CORRECT_FROM[metric], {}
    score = score_question(question, answer)
    if score is None:
        raise DataError(f"question {question.id!r}: its metric needs a judge: set reward.metric=judge")
    correct = is_correct(question, score)
    if metric == "question":
        return score, correct, {}
    if answer.cited is None:
        raise ConfigError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
    passages = [as_passage(hit.entry) for hit in answer.hits]
    parts = cited_scores(answer.cited, score, evidence_notes(task, question, answer.notes, passages))
    return parts["cited"], correct, parts


def is_stale(question: Question, answer: Answer, correct: bool) -> bool:
    """Return True if an answer is wrong because it gives a value that no longer holds.

    Args:
        question: Question whose `meta` has `kind` and `stale`, the former values.
        answer: Reader's answer.
        correct: True if the answer was scored as right.
    """
    if question.meta.get("kind") not in CHANGED or correct or answer.abstained:
        return False
    return any(contains(answer.text, str(value)) for value in question.meta.get("stale", ()))


def is_disputed(question: Question, statements: Sequence[str]) -> bool:
    """Return True if the conflict rule refuses an answer: live statements give the question's slot two values.

    The task has to name the slot and its values in `Question.meta`. The values are `values`, current one first, where
    the answer itself is no value of the slot ("yes"). Otherwise they are the answers and `stale`.

    Args:
        question: Question with `slot` and its values in `meta`.
        statements: Contents of live entries and lines of the core memory.
    """
    meta = question.meta
    values = meta.get("values") or (meta.get("stale") and [*question.answers, *meta["stale"]])
    if meta.get("kind") not in SINGLE_VALUED or not (meta.get("slot") and values):
        return False
    return states_several_values(str(meta["slot"]), list(map(str, values)), statements)
