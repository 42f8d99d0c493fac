"""Reflection on attempts: candidates, feedback, advice and the memory of advice that helped.

An attempt has succeeded if the accuracy of its answers is at least a threshold. ">" would not do: the largest accuracy
is 1, so with a threshold of 1 no attempt would succeed, no reflection would be stored and nothing would be
internalized. The weighted reward does not decide: its small terms (compression, form) make no answer right, and its
maximum differs between tasks.

Advice is the whole reply without the thinking before it and without surrounding white space. Any text is advice. Empty
advice is allowed: the second attempt then runs without advice, its reward still counts for the reflection, and nothing
is stored. Tool calls in a reflection are plain text and are not executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from memalpha.agent.parsing import after_thinking
from memalpha.agent.prompts import reflection_messages
from memalpha.config import ERLSettings
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import InvalidContent
from memalpha.policy.base import Policy, noise_key
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.error_analysis import with_error_classes
from memalpha.qa.evaluate import MemoryScorer, RolloutScorer
from memalpha.qa.report import Record
from memalpha.store.embedding import Embedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import Category, MemorySchema
from memalpha.store.state import MemoryState
from memalpha.types import AnyTask, Operation, SampleRequest, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class ReflectionCandidate:
    """Hold an attempt to reflect on.

    Attributes:
        task_index: Index of its task within the step.
        attempt: The attempt.
        accuracy: Its accuracy, from 0 to 1.
        feedback: Text that says what went wrong.
    """

    task_index: int
    attempt: Trajectory[Any]
    accuracy: float
    feedback: str


class Reflecting(Protocol[AnyTask]):
    """Feedback and prompts for algorithms that retry attempts (`train.algorithms.erl`).

    Attributes:
        scorer: Says how accurate attempts are.
        embedder: Embedder of advice that is recalled by similarity.
    """

    scorer: RolloutScorer[AnyTask]
    embedder: Embedder

    def candidates(
        self,
        groups: Sequence[TrajectoryGroup[AnyTask]],
        records: Sequence[Sequence[Sequence[Record]]],
        first: int,
        settings: ERLSettings,
    ) -> list[ReflectionCandidate]:
        """Return the attempts to reflect on, with feedback.

        With algorithm 2 these are the attempts that did not succeed, with algorithm 1 all. An attempt without an
        accuracy (a task without questions) is left out.

        Args:
            groups: Scored groups.
            records: Their records as [group][trajectory][question].
            first: Index of the first group's task within the step.
            settings: Success threshold, feedback budget and the variant of the algorithm.

        Returns:
            One candidate per attempt, in the order of groups and rollouts.
        """
        selected, answers_of_selected = [], []
        for task_index, (group, records_of_group) in enumerate(zip(groups, records, strict=True), start=first):
            for attempt, answers in zip(group.trajectories, records_of_group, strict=True):
                accuracy = self.scorer.accuracy(attempt, answers)
                if accuracy is not None and (settings.algorithm == 1 or accuracy < settings.reward_threshold):
                    selected.append(ReflectionCandidate(task_index, attempt, accuracy, ""))
                    answers_of_selected.append(answers)
        if not selected:
            return []
        attempts = [candidate.attempt for candidate in selected]
        texts = self.feedback(attempts, answers_of_selected, settings.feedback_tokens)
        return [replace(candidate, feedback=text) for candidate, text in zip(selected, texts, strict=True)]

    def feedback(
        self, attempts: Sequence[Trajectory[AnyTask]], records: Sequence[Sequence[Record]], budget: int
    ) -> list[str]:
        """Return a text for each attempt that says what went wrong.

        Args:
            attempts: Attempts, at least one.
            records: Records of each.
            budget: Tokens of a text.
        """
        ...

    def prompt(self, candidate: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection, with earlier advice."""
        ...

    def without_advice(self, trajectory: Trajectory[AnyTask]) -> list[SampleRequest]:
        """Return each turn's prompt of a second attempt as it would be without advice."""
        ...


REFLECTION_SCHEMA = MemorySchema(
    "reflections", (Category("advice", "Advice with which a second attempt was better or has succeeded."),)
)
"""Schema of the memory of advice."""


class MemoryReflection(Reflecting[Task]):
    """Feedback and prompts for second attempts at memory tasks (`worker.Reflecting`).

    Args:
        writing: Environment of the attempts; gives prompt style, token counts and embedder.
        scorer: Says which attempts have succeeded.
    """

    def __init__(self, writing: MemoryWriting, scorer: MemoryScorer) -> None:
        self.writing, self.scorer, self.embedder = writing, scorer, writing.embedder

    def feedback(self, attempts: Sequence[Trajectory], records: Sequence[Sequence[Record]], budget: int) -> list[str]:
        """Describe what went wrong in each attempt, in at most `budget` tokens.

        Args:
            attempts: Rollouts to reflect on.
            records: Scored answers of each attempt.
            budget: Tokens of one description, at most.
        """
        style, count, texts = self.writing.config.prompt, self.writing.count_tokens, []
        for attempt, answers in zip(attempts, records, strict=True):
            classified = with_error_classes([TrajectoryGroup(attempt.task, (attempt,))], answers, style)
            texts.append(join_feedback(classified, style, count, budget))
        return texts

    def prompt(self, candidate: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection: the attempt's final memory, its feedback and earlier advice."""
        task = candidate.attempt.task
        memory = WorkingMemory(candidate.attempt.states[-1], self.embedder)
        observation = self.writing.observe(memory, task.chunks[-1], task)
        config = self.writing.config
        return reflection_messages(observation.core, observation.entries, candidate.feedback, earlier, config)

    def without_advice(self, trajectory: Trajectory) -> list[SampleRequest]:
        return self.writing.without_advice(trajectory)


def join_feedback(records: Sequence[Record], style: str, count_tokens: Callable[[str], int], budget: int) -> str:
    """Join the feedback of all wrong answers within a token budget.

    Args:
        records: Records of one attempt.
        style: Prompt style; "compact" separates by one line break instead of two.
        count_tokens: Tokens of a text.
        budget: Maximum number of tokens. Feedback that does not fit is left out; the first one is cut.
    """
    separator, joined = "\n" if style == "compact" else "\n\n", ""
    for record in records:
        longer = f"{joined}{separator}{record.feedback}" if joined else record.feedback
        if not record.feedback or (joined and count_tokens(longer) > budget):
            continue
        joined = longer
    return truncate_text(joined, count_tokens, budget)


def truncate_text(text: str, count_tokens: Callable[[str], int], budget: int) -> str:
    """Cut a text that is longer than `budget` tokens; no tokenizer makes more tokens than bytes.

    Args:
        text: The text.
        count_tokens: Counts the tokens of a text.
        budget: Tokens that may stay; a longer text keeps as many bytes.
    """
    if len(text.encode()) <= budget or count_tokens(text) <= budget:
        return text
    return text.encode()[:budget].decode(errors="ignore")


def reflection_requests(
    policy: Policy,
    prompt: Callable[[ReflectionCandidate, Sequence[str]], tuple[Mapping[str, str], ...]],
    candidates: Sequence[ReflectionCandidate],
    earlier: Sequence[Sequence[str]],
    tokens: int,
    temperature: float,
    seed: int,
    step: int,
) -> list[SampleRequest]:
    """Return the request of each reflection; drop the first earlier advice until the prompt fits.

    Args:
        policy: Policy that reflects.
        prompt: Takes a candidate and earlier advice, returns the messages.
        candidates: Attempts to reflect on.
        earlier: Earlier advice for each candidate, the best last.
        tokens: Maximum length of a reflection.
        temperature: Sampling temperature.
        seed: Seed of the run; keys the sampling noise.
        step: Step number; keys the sampling noise.
    """
    requests = []
    local = policy if isinstance(policy, TransformersPolicy) else None
    limit = None if local is None else local.positions
    for candidate, advice in zip(candidates, earlier, strict=True):
        remaining = list(advice)
        messages = prompt(candidate, remaining)
        while remaining and local and limit and len(local.render(messages)) + tokens > limit:
            del remaining[0]
            messages = prompt(candidate, remaining)
        key = noise_key(seed, step, candidate.task_index, candidate.attempt.rollout, 0, "reflection")
        requests.append(SampleRequest(messages, (), key, temperature, tokens))
    return requests


def extract_advice(reply: str) -> str:
    """Return the advice in a reflection: the reply after thinking, stripped."""
    return reply[after_thinking(reply) :].strip()


class ReflectionMemory:
    """Hold advice that helped, for all tasks; at most `memory_size` entries, the oldest is removed first.

    Duplicates are not added.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]], config: ERLSettings, embedder: Embedder) -> None:
        """Restore the memory.

        Args:
            entries: Entries as `as_json` returned them.
            config: Size and retrieval of the memory.
            embedder: Embedder for retrieval by similarity.
        """
        self.config = config
        self.memory = WorkingMemory(MemoryState.empty(REFLECTION_SCHEMA, unique_contents=True), embedder)
        self._next_number = 0
        for entry in entries:
            self._insert(entry["number"], entry["advice"], entry["from"])

    def recall(self, feedback: Sequence[str]) -> list[list[str]]:
        """Return earlier advice for each feedback text: the newest, or the most similar; the best comes last."""
        count = self.config.memory_top_k
        if self.config.memory_retrieval == "recency":
            newest = [entry.content for entry in self.memory.list()[-count:]]
            return [newest for _ in feedback]
        results = self.memory.search_many(list(feedback), count)
        return [[hit.entry.content for hit in reversed(hits)] for hits in results]

    def add(self, text: str, **origin: Any) -> None:
        """Add advice if it is new and not empty; `origin` says where it helped (JSON)."""
        if not text or self.memory.find("advice", text) is not None:
            return
        try:
            self._insert(self._next_number, text, origin)
        except InvalidContent:  # for example control characters: the policy may write anything
            return
        while len(self.memory.state.entries) > self.config.memory_size:
            self.memory.delete(self.memory.list()[0].id)

    def as_json(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first."""
        return [
            {"number": int(entry.id), "advice": entry.content, "from": dict(entry.metadata)}
            for entry in self.memory.list()
        ]

    def _insert(self, number: int, text: str, origin: Mapping[str, Any]) -> None:
        self.memory.apply(Operation("insert", id=str(number), category="advice", content=text, metadata=origin))
        self._next_number = number + 1
