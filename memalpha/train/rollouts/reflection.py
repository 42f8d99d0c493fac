"""Reflection on attempts at tasks: which are looked at again, what went wrong in words, the advice, what of it is kept.

An attempt has succeeded when the accuracy of its questions reaches a threshold: at least, not more than. The largest
accuracy is 1, and with ">" and a threshold of 1 no attempt would ever succeed, no reflection be kept, nothing be
internalized. The weighted reward is not asked: its small terms (compression, form) make no answer right, and its
maximum differs from task to task.

Advice is the whole reply, without what was thought before it and without white space around it. Any text is advice. An
empty one is none: the second attempt is then made without, and is worth to the reflection what it is worth, but nothing
is kept. Tool calls in a reflection are text, and are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from memalpha.agent.agent import observe
from memalpha.agent.builder import Builder
from memalpha.agent.parsing import after_thinking
from memalpha.agent.prompts import reflection_messages
from memalpha.config import ERLConfig
from memalpha.errors import InvalidContent
from memalpha.policy.base import Policy
from memalpha.policy.sampling_keys import noise_key
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.error_analysis import with_error_classes
from memalpha.qa.records import Record
from memalpha.store.embedding import Embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.schema import Category, MemorySchema
from memalpha.store.state import MemoryState
from memalpha.train.rollouts.base import ReflectionCandidate
from memalpha.types import Operation, SampleRequest, TrajectoryGroup

REFLECTION_SCHEMA = MemorySchema(
    "reflections", (Category("advice", "Advice with which a second attempt has succeeded."),)
)


def accuracy(records: Sequence[Record]) -> float | None:
    """The share of right answers; None without a question."""
    return sum(record.correct for record in records) / len(records) if records else None


def group_records(groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> list[list[list[Record]]]:
    """The records of scored groups, which come in a row, as [group][trajectory][question]."""
    rest = iter(records)
    return [[[next(rest) for _ in one.task.questions] for one in group.trajectories] for group in groups]


def reflection_candidates(
    groups: Sequence[TrajectoryGroup], records: Sequence[Record], first: int, builder: Builder, config: ERLConfig
) -> list[ReflectionCandidate]:
    """The attempts at tasks number `first` and on that are to be reflected on, with feedback as the policy's prompts
    have it: those that have not succeeded; with algorithm 1 all. A task without questions has no outcome to look at."""
    found = []
    style, count = builder.config.prompt, builder.policy.count_tokens
    for number, (group, of_group) in enumerate(zip(groups, group_records(groups, records), strict=True), start=first):
        for attempt, of_attempt in zip(group.trajectories, of_group, strict=True):
            reached = accuracy(of_attempt)
            if reached is None or (config.algorithm == 2 and reached >= config.reward_threshold):
                continue
            told = with_error_classes([TrajectoryGroup(group.task, (attempt,))], of_attempt, style)
            found.append(
                ReflectionCandidate(number, attempt, reached, join_feedback(told, style, count, config.feedback_tokens))
            )
    return found


def join_feedback(records: Sequence[Record], style: str, count_tokens: Callable[[str], int], budget: int) -> str:
    """The feedback of all wrong answers, as many whole ones as the budget holds (of the first its beginning)."""
    between, told = "\n" if style == "compact" else "\n\n", ""
    for record in records:
        longer = f"{told}{between}{record.feedback}" if told else record.feedback
        if not record.feedback or (told and count_tokens(longer) > budget):
            continue
        told = longer
    # No tokenizer makes more tokens than bytes.
    return told if count_tokens(told) <= budget else told.encode()[:budget].decode(errors="ignore")


def reflection_prompt(
    builder: Builder, one: ReflectionCandidate, earlier: Sequence[str]
) -> tuple[Mapping[str, str], ...]:
    """What a reflection is asked: the memory that the attempt left, its feedback, earlier advice."""
    memory = WorkingMemory(one.attempt.states[-1], builder.embedder)
    last = one.attempt.task.chunks[-1]
    seen = observe(memory, last, builder.config, builder.policy.count_tokens, one.attempt.task)
    return reflection_messages(seen.core, seen.entries, one.feedback, earlier, builder.config)


def memory_reflection_requests(
    builder: Builder,
    tried: Sequence[ReflectionCandidate],
    earlier: Sequence[Sequence[str]],
    tokens: int,
    temperature: float,
    *key: int,
) -> list[SampleRequest]:
    """The request of each reflection on a memory; `key` is (seed, step)."""
    return reflection_requests(
        builder.policy, partial(reflection_prompt, builder), tried, earlier, tokens, temperature, *key
    )


def reflection_requests(
    policy: Policy,
    prompt: Callable[[ReflectionCandidate, Sequence[str]], tuple[Mapping[str, str], ...]],
    tried: Sequence[ReflectionCandidate],
    earlier: Sequence[Sequence[str]],
    tokens: int,
    temperature: float,
    *key: int,
) -> list[SampleRequest]:
    """The request of each reflection, as `prompt` has it; `key` is (seed, step). Of `earlier` advice the first is left
    out until it fits."""
    seed, step = key
    requests = []

    def too_long(messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether a model that takes so many tokens at most would refuse it."""
        if not isinstance(policy, TransformersPolicy) or policy.positions is None:
            return False
        return len(policy.render(messages)) + tokens > policy.positions

    for one, recalled in zip(tried, earlier, strict=True):
        rest = list(recalled)
        messages = prompt(one, rest)
        while rest and too_long(messages):
            del rest[0]
            messages = prompt(one, rest)
        noise = noise_key(seed, step, one.task_index, one.attempt.rollout, 0, "reflection")
        requests.append(SampleRequest(messages, (), noise, temperature, tokens))
    return requests


def extract_advice(reply: str) -> str:
    """What a reflection says."""
    return reply[after_thinking(reply) :].strip()


class ReflectionMemory:
    """Advice that has helped: one memory for all tasks, of `memory_size` entries; the oldest goes first.

    `kept` is what `as_json` gave. What is known already is not kept twice.
    """

    def __init__(self, kept: Sequence[Mapping[str, Any]], config: ERLConfig, embedder: Embedder) -> None:
        self.config = config
        self.memory = WorkingMemory(MemoryState.empty(REFLECTION_SCHEMA), embedder)
        self._next_number = 0
        for entry in kept:
            self._insert(entry["number"], entry["advice"], entry["from"])

    def recall(self, feedback: Sequence[str]) -> list[list[str]]:
        """Earlier advice for each of these: the newest, or that most similar to the feedback; the best comes last."""
        count = self.config.memory_top_k
        if self.config.memory_retrieval == "recency":
            newest = [entry.content for entry in self.memory.list()[-count:]]
            return [newest for _ in feedback]
        found = self.memory.search_many(list(feedback), count)
        return [[hit.entry.content for hit in reversed(hits)] for hits in found]

    def add(self, text: str, **origin: Any) -> None:
        """Add advice, if it is new and not empty; `origin` says where it helped (JSON)."""
        if not text or self.memory.find("advice", text) is not None:
            return
        try:
            self._insert(self._next_number, text, origin)
        except InvalidContent:  # control characters, say: the policy may write anything
            return
        while len(self.memory.state.entries) > self.config.memory_size:
            self.memory.delete(self.memory.list()[0].id)

    def as_json(self) -> list[dict[str, Any]]:
        """All of it, oldest first."""
        return [
            {"number": int(entry.id), "advice": entry.content, "from": dict(entry.metadata)}
            for entry in self.memory.list()
        ]

    def _insert(self, number: int, text: str, origin: Mapping[str, Any]) -> None:
        self.memory.apply(Operation("insert", id=str(number), category="advice", content=text, metadata=origin))
        self._next_number = number + 1
