"""Ask questions of built memories: one record per question, rewards per trajectory.

Every question is answered from the memory as it was after the chunk that it is asked at. The reader answers all
questions of a batch in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memalpha.agent.conflict_rule import states_several_values
from memalpha.agent.prompts import question_with_choices as asked_in_full
from memalpha.agent.reader import Answer, Reader, check_answers
from memalpha.agent.text_match import contains
from memalpha.errors import ConfigError, DataError
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.records import Record
from memalpha.qa.report import CHANGED, estimate_tokens
from memalpha.qa.scoring.cited import cited_scores, evidence_notes
from memalpha.qa.scoring.judge_scores import ContentVerdicts, judge_step
from memalpha.qa.scoring.metrics import CORRECT_FROM, is_correct, is_refusal, score_answer, score_question
from memalpha.qa.systems.base import as_passage, question_chunk
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.types import Question, Task, Trajectory, TrajectoryGroup

SINGLE_VALUED = ("stated", "updated", "retracted")
"""Kinds of questions (`Question.meta["kind"]`) about a slot that has one value at a time."""


def evaluate_memory(
    groups: Sequence[TrajectoryGroup], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[list[list[Record]]]:
    """Ask every trajectory its task's questions, in one reader call.

    Args:
        groups: Groups of trajectories with their memory states.
        reader: Reader that answers. Its exceptions are passed on: a failed reader is not a wrong answer.
        metric: Name of the metric that scores answers.
        embedder: Embedder that the memories are searched with.

    Returns:
        Records as [group][trajectory][question].
    """
    items: list[tuple[str | Question, WorkingMemory]] = []
    memories: dict[int, WorkingMemory] = {}
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        for question in trajectory.task.questions:
            state = trajectory.states[question_chunk(question, trajectory.task)]
            # Custom readers may expect a text: pass the whole question only if it has choices or a date.
            has_details = asked_in_full(question) != question.question
            memory = memories.setdefault(id(state), WorkingMemory(state, embedder))
            items.append((question if has_details else question.question, memory))
    if texts := texts_to_embed(groups):
        embedder.encode(texts)  # in one batch, so that the searches find them in the embedder's cache
    answers = iter(check_answers(reader, len(items), lambda: reader.answer(items)))
    return [
        [
            [
                _make_record(trajectory, question, next(answers), metric, refuse=reader.conflicts == "refuse")
                for question in trajectory.task.questions
            ]
            for trajectory in group.trajectories
        ]
        for group in groups
    ]


def texts_to_embed(groups: Sequence[TrajectoryGroup]) -> list[str]:
    """Return each text once whose vector `evaluate_memory` needs: questions and memory entries."""
    texts: dict[str, None] = {}
    memories: dict[int, MemoryState] = {}
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        for question in trajectory.task.questions:
            texts[question.question] = None
            state = trajectory.states[question_chunk(question, trajectory.task)]
            memories[id(state)] = state
    for state in memories.values():
        texts.update(dict.fromkeys(entry.content for entry in state.entries.values()))
    return list(texts)


def score_groups(
    groups: Sequence[TrajectoryGroup], reader: Reader, rewards: MemoryReward, *, embedder: Embedder
) -> tuple[list[TrajectoryGroup], list[Record]]:
    """Return the groups with every trajectory's reward set, and all records.

    Args:
        groups: Groups of trajectories with their memory states.
        reader: Reader that answers the questions.
        rewards: Reward that scores the trajectories, with its judge if it has one.
        embedder: Embedder that the memories are searched with.
    """
    metric = "exact" if rewards.config.metric == "judge" else rewards.config.metric
    records = evaluate_memory(groups, reader, metric, embedder=embedder)
    contents: dict[int, tuple[ContentVerdicts, ...]] = {}
    if rewards.judge is not None:
        records, contents = judge_step(rewards.config, rewards.judge, groups, records)
    model_scores = rewards.score_by_model(groups)

    def with_reward(trajectory: Trajectory, records: Sequence[Record]) -> Trajectory:
        key = id(trajectory)
        return replace(trajectory, reward=rewards.reward(trajectory, records, contents.get(key), model_scores.get(key)))

    scored = [
        TrajectoryGroup(group.task, tuple(map(with_reward, group.trajectories, group_records)))
        for group, group_records in zip(groups, records, strict=True)
    ]
    return scored, [record for of_group in records for records in of_group for record in records]


def _make_record(trajectory: Trajectory, question: Question, answer: Answer, metric: str, *, refuse: bool) -> Record:
    if refuse:
        state = trajectory.states[question_chunk(question, trajectory.task)]
        statements = [*(entry.content for entry in state.entries.values()), *state.core.splitlines()]
        answer = replace(answer, conflict=answer.conflict or is_disputed(question, statements))
    score, correct, scores = _score(trajectory.task, question, answer, metric)
    return build_record(
        trajectory.task,
        question,
        answer,
        score,
        correct,
        rollout=trajectory.rollout,
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
