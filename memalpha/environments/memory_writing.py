"""The environment of a memory writer: an episode writes a memory over a task, with one fresh context per chunk.

Chunk groups (`sampling.groups: chunk`): all rollouts of a group read each chunk from one memory. The policy samples G
replies from it. One of them, drawn at random, goes on: the next chunk is read from the memory that it left. The
memories along these replies are the trunk. A rollout of whole conversations compares replies that were given to
different memories. Here the replies of a chunk differ in nothing else, so their rewards compare them alone. There are
as many replies, and all of a chunk share their prompt. Local comparisons from one memory are Memory-R2's idea (arXiv
2605.21768). A chunk group has the shape of any group: G trajectories with a turn per chunk; `Trajectory.before` holds
the trunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import cast

from memalpha.agent.agent import build_request
from memalpha.agent.prompts import check_style, observe
from memalpha.agent.replies import act
from memalpha.agent.tools import load_tools
from memalpha.config import AgentConfig
from memalpha.environments.engine import RolloutEngine, Step
from memalpha.errors import ConfigError
from memalpha.policy.base import Policy, noise_key, sample_checked, trained_sizes
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.chunking import rechunk
from memalpha.types import (
    AnyTask,
    Chunk,
    Completion,
    Observation,
    SampleRequest,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


class MemoryWriting:
    """Settings of all episodes; calling it makes one episode.

    Args:
        config: Sizes and style of the prompts.
        count_tokens: Token counter of the writer's policy.
        embedder: Embedder of the memories; default: `config.embedder`.
        schema: Categories of the memories; default: `config.memory_schema`.

    Raises:
        ConfigError: The prompt style does not fit the schema, or its prompt file cannot be read.
    """

    def __init__(
        self,
        config: AgentConfig,
        count_tokens: Callable[[str], int],
        embedder: Embedder | None = None,
        schema: MemorySchema | None = None,
    ) -> None:
        self.config = config
        self.count_tokens = count_tokens
        self.embedder = embedder or load_embedder(config.embedder)
        self.schema = schema or load_schema(config.memory_schema)
        check_style(config, self.schema)

    def __call__(self) -> WritingEpisode:
        """Make an episode."""
        return WritingEpisode(self)

    def observe(self, memory: WorkingMemory, chunk: Chunk, task: Task, advice: str = "") -> Observation:
        """Return the writer's view of a memory for one chunk; see `agent.prompts`.

        Args:
            memory: Memory to show.
            chunk: Chunk to read.
            task: Task of the chunk.
            advice: Advice from an earlier attempt.
        """
        return observe(memory, chunk, self.config, self.count_tokens, task, advice)

    def request(self, memory: WorkingMemory, chunk: Chunk, task: Task, advice: str = "") -> SampleRequest:
        """Return the writer's prompt for one chunk.

        Args:
            memory: Memory to show.
            chunk: Chunk to read.
            task: Task of the chunk.
            advice: Advice from an earlier attempt.
        """
        return build_request(self.observe(memory, chunk, task, advice), self.config, self.schema)

    def new_memory(self) -> WorkingMemory:
        """Return an empty memory."""
        return WorkingMemory(MemoryState.empty(self.schema, unique_contents=True), self.embedder)

    def act(self, memory: WorkingMemory, chunk: Chunk, task: Task, completion: Completion) -> Turn:
        """Apply the tool calls of a reply to the memory, by training's rules.

        Args:
            memory: The memory; it is changed.
            chunk: Chunk that was read.
            task: Task of the chunk, whose id is the source of what is written.
            completion: The reply.
        """
        form, tools = self.config.reply_form, load_tools(self.config.tools)
        return act(memory, chunk, completion, source=task.id, form=form, tools=tools, strict=True)

    def without_advice(self, trajectory: Trajectory) -> list[SampleRequest]:
        """Return the prompt of each turn of a trajectory as it would be without advice.

        Each prompt shows the memory that the trajectory had built by then.
        """
        before = [self.new_memory().state, *trajectory.states[:-1]]
        chunks = trajectory.task.chunks
        self.embed_views((state, chunk, set()) for state, chunk in zip(before, chunks, strict=True))
        return [
            self.request(WorkingMemory(state, self.embedder), chunk, trajectory.task)
            for state, chunk in zip(before, chunks, strict=True)
        ]

    def embed_views(self, views: Iterable[tuple[MemoryState, Chunk, set[str]]]) -> None:
        """Embed what the views of these memories for these chunks search for and in, and the texts of the categories.

        It is one batch; searches find the vectors in the embedder's cache.

        Args:
            views: Memory, chunk, and the contents whose vectors the memory's index has; new ones are added.
        """
        texts: dict[str, None] = {}
        for state, chunk, indexed in views:
            if len(state.entries) > self.config.view_recent and self.config.view_related > 0:
                contents = [entry.content for entry in state.entries.values() if entry.content not in indexed]
                texts.update(dict.fromkeys([chunk.render(), *contents]))
                indexed.update(contents)
        if texts:
            self.embedder.encode([*texts, *self.schema.category_texts.values()])


class WritingEpisode:
    """One memory, written chunk by chunk; a reply's tool calls are applied to it. It gives no reward.

    Attributes:
        advice: Advice from an earlier attempt, shown with every chunk.
        indexed: Contents whose vectors the memory's index has.
        memory: The memory.
    """

    lock_step = False

    def __init__(self, writing: MemoryWriting) -> None:
        self.writing = writing
        self.advice = ""
        self.indexed: set[str] = set()
        self._index = 0

    def reset(self, task: Task) -> SampleRequest:
        """Start with an empty memory and return the prompt of the first chunk."""
        self.task, self.memory = task, self.writing.new_memory()
        return self.request()

    def step(self, reply: str) -> Step:
        """Apply the tool calls of a reply and return the prompt of the next chunk."""
        return self.step_together([self], [reply])[0]

    @staticmethod
    def step_together(environments: Sequence[WritingEpisode], replies: Sequence[str]) -> list[Step]:
        """Step several episodes; the texts that their next searches need are embedded in one batch."""
        turns = [episode.apply(reply) for episode, reply in zip(environments, replies, strict=True)]
        going_on = [episode for episode in environments if not episode.is_done]
        environments[0].writing.embed_views((episode.state, episode.chunk, episode.indexed) for episode in going_on)
        steps = []
        for episode, turn in zip(environments, turns, strict=True):
            request = None if episode.is_done else episode.request()
            steps.append(Step(None, episode.is_done, request, turn.calls, turn.results, turn.operations))
        return steps

    @property
    def is_done(self) -> bool:
        """True if all chunks were read."""
        return self._index == self.turns

    @property
    def chunk(self) -> Chunk:
        """Next chunk to read."""
        return self.task.chunks[self._index]

    @property
    def state(self) -> MemoryState:
        """Memory after the last reply."""
        return self.memory.state

    @property
    def turns(self) -> int:
        """Number of chunks."""
        return len(self.task.chunks)

    def apply(self, reply: str) -> Turn:
        """Apply the tool calls of a reply, and go on to the next chunk."""
        turn = self.writing.act(self.memory, self.chunk, self.task, Completion(reply))
        self._index += 1
        return turn

    def request(self) -> SampleRequest:
        """Return the prompt of the next chunk."""
        return self.writing.request(self.memory, self.chunk, self.task, self.advice)


def memory_engine(
    policy: Policy, config: AgentConfig, embedder: Embedder | None = None, schema: MemorySchema | None = None
) -> RolloutEngine[Task]:
    """Return the engine in which a policy writes memories, without a database.

    Args:
        policy: The writer.
        config: Sizes and style of the prompts.
        embedder: Embedder of the memories; default: `config.embedder`.
        schema: Categories of the memories; default: `config.memory_schema`.
    """
    return RolloutEngine(policy, MemoryWriting(config, policy.count_tokens, embedder, schema))


def fit_tasks(policy: Policy, tasks: Sequence[AnyTask]) -> Sequence[AnyTask]:
    """Return the tasks in chunks that are no longer than those that the policy was trained on (`chunk_tokens`).

    Tasks of text have no chunks and are returned as they are.
    """
    size = trained_sizes(policy).get("chunk_tokens")
    if size is None:
        return tasks
    return [cast(AnyTask, rechunk(task, size)) if isinstance(task, Task) else task for task in tasks]


def roll_out_chunks(
    engine: RolloutEngine[Task],
    tasks: Sequence[Task],
    numbers: Sequence[int],
    rollouts: int,
    temperature: float,
    seed: int,
    step: int,
) -> list[TrajectoryGroup[Task]]:
    """Sample a chunk group of each task.

    Args:
        engine: Engine of a memory writer.
        tasks: Tasks to read.
        numbers: Index of each task among the tasks of the step, over all processes; part of the noise keys.
        rollouts: Replies per chunk (G).
        temperature: Sampling temperature.
        seed: Seed of the sampling noise and of the draw of the replies that go on.
        step: Training step, part of both.

    Returns:
        One group of `rollouts` trajectories per task, in order.

    Raises:
        ConfigError: The engine's environment writes no memory.
        PolicyError: The policy cannot answer.
    """
    writing = engine.environment
    if not isinstance(writing, MemoryWriting):
        raise ConfigError("sampling.groups: only the writing of a memory has chunks to read from one memory")
    trunks = [
        _Trunk(task, number, [writing.new_memory().state], [[] for _ in range(rollouts)])
        for task, number in zip(tasks, numbers, strict=True)
    ]
    for chunk in range(max((len(task.chunks) for task in tasks), default=0)):
        reading = [trunk for trunk in trunks if chunk < len(trunk.task.chunks)]
        writing.embed_views((trunk.before[chunk], trunk.task.chunks[chunk], set()) for trunk in reading)
        requests = []
        for trunk in reading:
            memory = WorkingMemory(trunk.before[chunk], writing.embedder)
            request = replace(writing.request(memory, trunk.task.chunks[chunk], trunk.task), temperature=temperature)
            keys = [noise_key(seed, step, trunk.number, rollout, chunk) for rollout in range(rollouts)]
            requests += [replace(request, key=key) for key in keys]
        completions = iter(sample_checked(engine.policy, requests))
        for trunk in reading:
            for turns in trunk.replies:
                memory, read = WorkingMemory(trunk.before[chunk], writing.embedder), trunk.task.chunks[chunk]
                turn = writing.act(memory, read, trunk.task, next(completions))
                turns.append((replace(turn, chunk=chunk), memory.state))
            chosen = Random(f"trunk|{seed}|{step}|{trunk.number}|{chunk}").randrange(rollouts)
            trunk.before.append(trunk.replies[chosen][chunk][1])
    return [trunk.group() for trunk in trunks]


@dataclass(slots=True)
class _Trunk:
    """A conversation under way: the memory before each chunk, and (turn, memory after it) by rollout and chunk."""

    task: Task
    number: int
    before: list[MemoryState]
    replies: list[list[tuple[Turn, MemoryState]]]

    def group(self) -> TrajectoryGroup[Task]:
        before = tuple(self.before[:-1])
        trajectories = []
        for rollout, replies in enumerate(self.replies):
            turns, states = tuple(turn for turn, _ in replies), tuple(state for _, state in replies)
            trajectories.append(Trajectory(self.task, rollout, turns, states, before=before))
        return TrajectoryGroup(self.task, tuple(trajectories))


def ask_at_every_chunk(task: Task) -> Task:
    """Return the task with each question asked after every chunk from which on its answer holds.

    A question counts from the chunk with the last of its evidence up to its own. Without evidence in the conversation
    it counts at every chunk up to its own, unless the right answer is to abstain: then at its own alone, since what is
    said and later taken back is right to remember until then.
    """
    last = len(task.chunks) - 1
    chunk_of = {turn.id: index for index, chunk in enumerate(task.chunks) for turn in chunk.turns if turn.id}
    questions = []
    for question in task.questions:
        asked = last if question.asked_after_chunk is None else question.asked_after_chunk
        told = [chunk_of.get(id, asked) for id in question.evidence]
        first = max(told) if told else 0 if question.answers else asked
        questions += [
            question.model_copy(update={"asked_after_chunk": chunk}) for chunk in range(min(first, asked), asked + 1)
        ]
    return task.model_copy(update={"questions": tuple(sorted(questions, key=lambda item: item.asked_after_chunk or 0))})
