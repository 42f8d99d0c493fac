"""`CreditScorer`: a memory scorer that also gives each call of an attempt its number (`train.algorithms.credit`).

It asks two batches beside the rollouts' own questions: the memory before each turn, then the memory after it without
one of its calls, where an answer had an advantage. Equal memories are asked once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from memalpha.agent.tools import CHANGING_CODES
from memalpha.config import CreditConfig
from memalpha.errors import StoreError
from memalpha.qa.answers import StateQuestion, ask_states, questions_of, texts_to_embed
from memalpha.qa.evaluate import MemoryScorer, ScoredGroups
from memalpha.qa.report import Record
from memalpha.qa.systems.base import question_chunk
from memalpha.store.state import MemoryState
from memalpha.train.algorithms.credit import (
    StateAnswer,
    call_numbers,
    call_sources,
    centred_costs,
    question_advantages,
    route,
)
from memalpha.types import Operation, Question, Task, Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True)
class CreditScorer(MemoryScorer):
    """Scores memories, and credits the calls of attempts.

    Attributes:
        settings: Settings of the credit.
    """

    settings: CreditConfig = field(default_factory=CreditConfig)

    def score(self, groups: Sequence[TrajectoryGroup]) -> ScoredGroups[Task]:
        """Return the groups with rewards, whose `calls` are set for attempts, and the records of their questions."""
        scored, records = MemoryScorer.score(self, groups)
        answers = _Answers(self)
        answers.keep(questions_of(scored), records)
        attempts = [group for group in scored if group.trajectories[0].role == "attempt"]
        credited = iter(self._credit(attempts, answers))
        return [next(credited) if group.trajectories[0].role == "attempt" else group for group in scored], records

    def texts_to_embed(self, groups: Sequence[TrajectoryGroup]) -> list[str]:
        """Return the texts whose vectors the scoring needs: those of all states and operations too."""
        texts = dict.fromkeys(texts_to_embed(questions_of(groups)))
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            for state in (*trajectory.before, *trajectory.states):
                texts.update(dict.fromkeys(entry.content for entry in state.entries.values()))
            operations = (operation for turn in trajectory.turns for operation in turn.operations)
            texts.update(dict.fromkeys(operation.content for operation in operations if operation.content))
        return list(texts)

    def _credit(self, groups: Sequence[TrajectoryGroup], answers: _Answers) -> list[TrajectoryGroup]:
        comparisons = [comparison for group in groups for comparison in compare_turns(group)]
        for comparison in comparisons:
            for states in comparison.states:
                for question, last in comparison.questions:
                    answers.add(comparison.task, question, states[: last + 1])
        answers.ask()
        changes = {
            (id(trajectory), comparison.first + t): change
            for comparison in comparisons
            for trajectory, of_rollout in zip(comparison.trajectories, self._changes(comparison, answers), strict=True)
            for t, change in enumerate(of_rollout)
        }
        for change in changes.values():
            for question in change.questions:
                answers.add(change.task, question, change.without)
        answers.ask()
        return [self._with_numbers(group, changes, answers) for group in groups]

    def _changes(self, comparison: TurnComparison, answers: _Answers) -> Iterator[list[_Change]]:
        """Yield, for each rollout, the answers that each turn changed otherwise than the group, and their states."""
        task, questions = comparison.task, comparison.questions
        answered = [
            [
                [answers.get(task, question, states[min(index, last)]) for question, last in questions]
                for index in range(len(states))
            ]
            for states in comparison.states
        ]
        advantages = question_advantages(answered, self.settings.gamma)
        for trajectory, states, of_rollout in zip(comparison.trajectories, comparison.states, advantages, strict=True):
            changes = []
            for t, of_turn in enumerate(of_rollout):
                kept = [(question, value) for (question, _), value in zip(questions, of_turn, strict=True) if value]
                calls = operations_by_call(trajectory.turns[comparison.first + t]) if kept else []
                without = [_replay(states[t], calls, skip) for skip in range(len(calls))]
                changes.append(_Change(task, [q for q, _ in kept], [v for _, v in kept], states[t + 1], without))
            yield changes

    def _with_numbers(
        self, group: TrajectoryGroup, changes: dict[tuple[int, int], _Change], answers: _Answers
    ) -> TrajectoryGroup:
        turns = zip(*(trajectory.turns for trajectory in group.trajectories), strict=True)
        costs = [centred_costs([turn.results for turn in at_chunk], self.settings) for at_chunk in turns]
        trajectories = []
        for rollout, trajectory in enumerate(group.trajectories):
            numbers, sources = [], []
            for index, turn in enumerate(trajectory.turns):
                change = changes[id(trajectory), index]
                after, *without = [
                    [answers.get(change.task, question, state) for question in change.questions]
                    for state in (change.after, *change.without)
                ]
                of_calls, of_end = route(change.advantages, after, without)
                given = [(q.id, value) for q, value in zip(change.questions, change.advantages, strict=True)]
                shares = [[given[q] for q in share] for share in (*of_calls, of_end)]
                *credit, end = (sum(value for _, value in share) for share in shares)
                if not change.advantages:
                    credit = [0.0] * len(operations_by_call(turn))
                numbers.append(call_numbers(turn.results, credit, self.settings.end * end, costs[index][rollout]))
                sources.append(call_sources(turn.results, shares[:-1], shares[-1]))
            assert trajectory.reward is not None
            reward = replace(trajectory.reward, calls=tuple(numbers), call_sources=tuple(sources))
            trajectories.append(replace(trajectory, reward=reward))
        return replace(group, trajectories=tuple(trajectories))


class TurnComparison(NamedTuple):
    """Turns of a group that are compared with each other: all of a conversation, or those at one chunk.

    Attributes:
        task: Task of the group.
        trajectories: Rollouts of the group.
        first: Index of the first turn.
        states: Memories as [rollout][state]: before the first turn, then after each.
        questions: Questions that count, each with the index of the last state that it is asked of.
    """

    task: Task
    trajectories: Sequence[Trajectory]
    first: int
    states: list[list[MemoryState]]
    questions: list[tuple[Question, int]]


def compare_turns(group: TrajectoryGroup) -> Iterator[TurnComparison]:
    """Yield the comparisons of a group: one, or one per chunk of a chunk group."""
    task, trajectories = group.task, group.trajectories
    asked = [(question, question_chunk(question, task)) for question in task.questions]
    if not trajectories[0].before:
        states = [[MemoryState.empty(item.states[0].schema), *item.states] for item in trajectories]
        yield TurnComparison(task, trajectories, 0, states, [(question, chunk + 1) for question, chunk in asked])
        return
    for index in range(len(task.chunks)):
        states = [[item.before[index], item.states[index]] for item in trajectories]
        yield TurnComparison(task, trajectories, index, states, [(q, 1) for q, chunk in asked if chunk == index])


class _Change(NamedTuple):
    """Questions with an advantage at a turn, the memory after it, and that memory without each call."""

    task: Task
    questions: list[Question]
    advantages: list[float]
    after: MemoryState
    without: list[MemoryState]


class _Answers:
    """Answers by task, question and memory; what was added is asked in one reader call."""

    def __init__(self, scorer: MemoryScorer) -> None:
        self._scorer = scorer
        self._answers: dict[Hashable, StateAnswer] = {}
        self._waiting: dict[Hashable, StateQuestion] = {}

    def keep(self, items: Iterable[StateQuestion], records: Sequence[Record]) -> None:
        """Keep the answers of these records."""
        for item, record in zip(items, records, strict=True):
            answer = StateAnswer(record.score, (record.answer, record.conflict))
            self._answers[_key(item.task, item.question, item.state)] = answer

    def add(self, task: Task, question: Question, states: Sequence[MemoryState]) -> None:
        """Note the question to be asked of these states."""
        for state in states:
            if (key := _key(task, question, state)) not in self._answers:
                self._waiting.setdefault(key, StateQuestion(task, question, state))

    def ask(self) -> None:
        """Ask what was added."""
        scorer, items = self._scorer, list(self._waiting.values())
        metric = scorer.rewards.config.metric
        self.keep(items, ask_states(items, scorer.reader, metric, embedder=scorer.embedder) if items else [])
        self._waiting.clear()

    def get(self, task: Task, question: Question, state: MemoryState) -> StateAnswer:
        """Return the answer to a question that was asked."""
        return self._answers[_key(task, question, state)]


def _key(task: Task, question: Question, state: MemoryState) -> Hashable:
    # Equal states may list their entries in another order, which decides between equally good entries of a search.
    return task.id, question.id, state, tuple(entry.id for entry in state.list())


def operations_by_call(turn: Turn) -> list[tuple[Operation, ...]]:
    """Return the operations of each call of a turn that changed the memory."""
    remaining = iter(turn.operations)
    return [tuple(islice(remaining, result.operations)) for result in turn.results if result.code in CHANGING_CODES]


def _replay(state: MemoryState, calls: Sequence[Sequence[Operation]], skip: int) -> MemoryState:
    """Return the memory after all calls but one; those that need it fail."""
    for index, operations in enumerate(calls):
        if index == skip:
            continue
        after = state
        try:
            for operation in operations:
                after = after.apply(operation)
        except StoreError:
            continue
        state = after
    return state
