"""Credit per call (`reward.credit: calls`): what a call did to the answers, beside the advantage of its turn.

    d_{g,t,q} = score_q(s_{g,t}) - score_q(s_{g,t-1})
    R_{g,t,q} = d_{g,t,q} + gamma R_{g,t+1,q}
    a_{g,t,q} = R_{g,t,q} - mean of R over the rollouts with the same answer to q before the turn
    C_{g,t,q} = calls whose removal from s_{g,t} changes the answer to q; of these, if there are any, those whose
                removal changes the score against the sign of a
    n(call)   = sum of a over the questions q with the call in C - (cost - mean cost of the group's calls in the turn)
    n(end)    = end x sum of a over the questions q with empty C
    A(token)  = share x A(turn) + n(call or end of the token)

s_{g,t} is the memory of rollout g after turn t, and a question counts up to the chunk it is asked at. At gamma 1 the
first turn's R is the whole gain in score. A failed call costs `failed`, a duplicate `duplicate`. A skip is part of the
end: both decide to write nothing more.

Gold operations are not used. Related: evidence-anchored credit from gold evidence (Fine-Mem, arXiv 2601.08435).
`CreditScorer` asks the states, `CallCredit` finds the tokens of a call.

`CallCredit`: which call each sampled token belongs to, in Hermes, line, Mem-alpha and native form.

A call's tokens are those after the end of the call before it, up to its own end. So a newline or a `<tool_call>` that
decides to make a further call is part of it. What stands after the last call belongs to the end of the reply.

The tokens are the sampled ids, decoded one by one; nothing is tokenized again. A character of several tokens begins
where the first of them does. Thoughts serve all calls: their tokens get the mean. So do all tokens of a reply whose
calls cannot be found in its tokens.

`CreditScorer`: a memory scorer that also gives each call of an attempt its number (`train.algorithms.credit`).

It asks two batches beside the rollouts' own questions: the memory before each turn, then the memory after it without
one of its calls, where an answer had an advantage. Equal memories are asked once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from memalpha.agent.tools import CHANGING_CODES
from memalpha.config import CreditConfig
from memalpha.errors import StoreError
from memalpha.policy.chat.replies import THINK
from memalpha.policy.chat.text import CLOSE
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer, ScoredGroups, StateQuestion, ask_states, questions_of
from memalpha.qa.report import Record
from memalpha.qa.scoring.stats import group_values
from memalpha.store.state import MemoryState
from memalpha.train.algorithms.advantages import TIE_TOLERANCE, centre
from memalpha.types import Operation, Question, Task, ToolResult, Trajectory, TrajectoryGroup, Turn

SHARED = -1
"""Index of tokens that belong to no single call."""

_PARTIAL = "\ufffd"
_CLOSE_TAG = re.compile(r"(?:[\s},]|```)*" + CLOSE)


class CallCredit:
    """Add the numbers of calls (`Reward.calls`) to the advantages of turns: at the tokens of each call.

    Args:
        policy: Policy that sampled; its tokenizer decodes the ids, its chat template knows the family's form.
        share: Weight of a turn's advantage.
    """

    def __init__(self, policy: TransformersPolicy, share: float = 1.0) -> None:
        self.share = share
        self._tokenizer, self._chat = policy.tokenizer, policy.chat
        self._pieces: dict[int, str] = {}

    def add_to(self, advantages: Sequence[float], groups: Sequence[TrajectoryGroup[Any]]) -> list[float | np.ndarray]:
        """Return an array of advantages per token for each turn whose reward has numbers; the others unchanged.

        Args:
            advantages: Advantage of each turn, in the order of groups, trajectories and turns.
            groups: Scored groups.
        """
        remaining = iter(advantages)
        values: list[float | np.ndarray] = []
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            numbers = trajectory.reward.calls if trajectory.reward else ()
            for index, turn in enumerate(trajectory.turns):
                value = next(remaining)
                values.append(self.share * value + self.by_token(turn, numbers[index]) if numbers else value)
        return values

    def by_token(self, turn: Turn, numbers: Sequence[float]) -> np.ndarray:
        """Return the number of each completion token, float64 of shape (T,).

        Args:
            turn: Sampled turn.
            numbers: A number per call, then that of the end.
        """
        mean = sum(numbers[:-1]) / len(numbers[:-1]) if turn.calls else numbers[-1]
        return np.array([*numbers, mean])[self.call_indices(turn)]  # SHARED is the last

    def call_indices(self, turn: Turn) -> np.ndarray:
        """Return the index of the call of each completion token: `len(turn.calls)` for the end, or `SHARED`."""
        ids, end = turn.completion.completion_ids, len(turn.calls)
        indices = np.full(len(ids), SHARED)
        text = self._decode(ids)
        starts = self._starts(ids, text)
        first = 0  # where the reply begins, after a thought in the marks of the family
        if turn.completion.text.lstrip().startswith(THINK):
            close = self._chat.thought_marks[1]
            position = text.find(close)
            first = len(text) if position < 0 else position + len(close)
        ends: list[int] = []
        for call in turn.calls:
            start = text.find(call.raw, ends[-1] if ends else first)
            if start < 0 or not call.raw:
                break
            close_tag = _CLOSE_TAG.match(text, start + len(call.raw))
            ends.append(close_tag.end() if close_tag else start + len(call.raw))
        parser = self._chat.reply_parser
        if len(ends) < len(turn.calls) and parser is not None:
            # Its family writes calls in another form than the text of the completion.
            ends = [first + end for end in parser.call_ends(text[first:])]
        if starts is not None and len(ends) == len(turn.calls):
            indices = np.searchsorted(ends, starts, side="right")
            indices[np.array(starts) < first] = SHARED
        if turn.completion.stop_reason == "eos":
            indices[-1] = end
        return indices

    def _decode(self, ids: Sequence[int]) -> str:
        [text] = self._tokenizer.batch_decode(
            [list(ids)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _starts(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Return where each token begins in the text; None if the tokens do not join to it."""
        for id in ids:
            if id not in self._pieces:
                self._pieces[id] = self._decode([id])
        pieces = [self._pieces[id] for id in ids]
        if "".join(pieces) != text:
            pieces = decode_in_context(self._decode, ids)
            if "".join(pieces) != text:
                return None
        return [0, *np.cumsum([len(piece) for piece in pieces])[:-1].tolist()]


def decode_in_context(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to those before it; "" within a character of several tokens.

    Args:
        decode: Decodes ids.
        ids: Ids of a text.
    """
    pieces: list[str] = []
    context = complete = 0  # ids[context:complete] are decoded before the open ones, which begin a character or a word
    for index in range(len(ids)):
        before, now = decode(ids[context:complete]), decode(ids[context : index + 1])
        is_open = now.endswith(_PARTIAL) and index + 1 < len(ids)
        pieces.append("" if is_open else now[len(before) :])
        if not is_open:
            context, complete = complete, index + 1
    return pieces


Source = tuple[str, float]
"""Id of a question, and its advantage."""


class StateAnswer(NamedTuple):
    """Answer to a question from one memory state, and its score."""

    score: float
    answer: Hashable


def question_advantages(answers: Sequence[Sequence[Sequence[StateAnswer]]], gamma: float) -> list[list[list[float]]]:
    """Return the advantage of each turn for each question.

    Args:
        answers: Answers as [rollout][state][question], from the state before the first turn to that after the last.
            After its own chunk a question keeps the answer that it got there.
        gamma: Discount per turn.

    Returns:
        Advantages as [rollout][turn][question]; 0 where all rollouts with the same earlier answer came to the same.
    """
    turns, questions = len(answers[0]) - 1, len(answers[0][0])
    advantages = [[[0.0] * questions for _ in range(turns)] for _ in answers]
    for q in range(questions):
        returns = [[0.0] * (turns + 1) for _ in answers]
        for states, of_rollout in zip(answers, returns, strict=True):
            for t in reversed(range(turns)):
                of_rollout[t] = states[t + 1][q].score - states[t][q].score + gamma * of_rollout[t + 1]
        for t in range(turns):
            for rollouts in group_values((states[t][q], g) for g, states in enumerate(answers)).values():
                for g, value in zip(rollouts, centre([returns[g][t] for g in rollouts], "mean"), strict=True):
                    advantages[g][t][q] = value if abs(value) > TIE_TOLERANCE else 0.0
    return advantages


def route(
    advantages: Sequence[float], after: Sequence[StateAnswer], without: Sequence[Sequence[StateAnswer]]
) -> tuple[list[list[int]], list[int]]:
    """Give each question to the operations that its answer depends on, or else to the end of the reply.

    Args:
        advantages: Advantage of the turn for each question.
        after: Answers from the memory after the turn.
        without: Answers as [operation][question], from that memory without one operation of the turn.

    Returns:
        Indices of the questions whose advantage each operation gets, and of those that the end gets.
    """
    of_operations: list[list[int]] = [[] for _ in without]
    of_end = []
    for q, advantage in enumerate(advantages):
        decisive = [i for i, answers in enumerate(without) if answers[q] != after[q]]
        agreeing = [i for i in decisive if (after[q].score - without[i][q].score) * advantage > 0]
        for i in agreeing or decisive:
            of_operations[i].append(q)
        if not decisive:
            of_end.append(q)
    return of_operations, of_end


def centred_costs(results: Sequence[Sequence[ToolResult]], settings: CreditConfig) -> list[list[float]]:
    """Return the cost of each call less the mean cost of all calls of a group at one chunk; a skip has none.

    Args:
        results: Results as [rollout][call].
        settings: Costs of failed calls and of duplicates.
    """
    by_code = {"skipped": None, "duplicate": settings.duplicate}
    costs = [
        [by_code.get(result.code, 0.0) if result.ok else settings.failed for result in of_rollout]
        for of_rollout in results
    ]
    counted = [value for values in costs for value in values if value is not None]
    mean = sum(counted) / len(counted) if counted else 0.0
    return [[0.0 if value is None else value - mean for value in values] for values in costs]


def call_sources(
    results: Sequence[ToolResult], shares: Sequence[Sequence[Source]], end: Sequence[Source]
) -> tuple[tuple[Source, ...], ...]:
    """Return for each call of a turn, then for its end, the questions that gave it credit, with their advantages.

    Args:
        results: Results of the calls.
        shares: Questions of each call that changed the memory, in order.
        end: Questions of the end.
    """
    remaining = iter(shares)
    of_calls = [
        end if result.code == "skipped" else next(remaining, ()) if result.code in CHANGING_CODES else ()
        for result in results
    ]
    return tuple(tuple(share) for share in (*of_calls, end))


def credit_metrics(trajectories: Sequence[Trajectory]) -> Mapping[str, float | None]:
    """Return the share of calls with a negative number, and the mean numbers of failed calls and of ends.

    Without numbers there are none.
    """
    pairs = [
        (numbers, turn.results)
        for trajectory in trajectories
        if trajectory.reward and trajectory.reward.calls
        for numbers, turn in zip(trajectory.reward.calls, trajectory.turns, strict=True)
    ]
    calls = [pair for numbers, results in pairs for pair in zip(numbers, results, strict=False)]
    failed = [number for number, result in calls if not result.ok]
    ends = [numbers[-1] for numbers, _ in pairs]
    if not pairs:
        return {}
    return {
        "credit_down": float(np.mean([number < 0 for number, _ in calls])) if calls else None,
        "credit_failed": float(np.mean(failed)) if failed else None,
        "credit_end": float(np.mean(ends)),
    }


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
        comparisons = [comparison for group in attempts for comparison in compare_turns(group)]
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
        credited = {id(group): self._with_numbers(group, changes, answers) for group in attempts}
        return [credited.get(id(group), group) for group in scored], records

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
                sources.append(call_sources(turn.results, shares[:-1], shares[-1]))
                weights = [self.settings.end if result.code == "skipped" else 1.0 for result in turn.results]
                parts = zip(sources[-1], (*weights, self.settings.end), (*costs[index][rollout], 0.0), strict=True)
                numbers.append(tuple(weight * sum(v for _, v in source) - cost for source, weight, cost in parts))
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
    asked = [(question, task.asked_after(question)) for question in task.questions]
    if not trajectories[0].before:
        after = trajectories[0].states[0]
        empty = MemoryState.empty(after.schema, unique_contents=after.unique_contents)
        states = [[empty, *item.states] for item in trajectories]
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
        """Note the question to be asked of these states.

        Args:
            task: Task of the question.
            question: The question.
            states: Memories to answer from; those already answered from are skipped.
        """
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
        """Return the answer to a question that was asked.

        Args:
            task: Task of the question.
            question: The question.
            state: Memory that it was asked of.

        Raises:
            KeyError: It was not asked of this memory.
        """
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
