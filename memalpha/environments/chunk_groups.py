"""Chunk groups: all rollouts of a group read each chunk from one memory (`sampling.groups: chunk`).

At each chunk of a conversation the policy samples G replies from the same memory. One of them, drawn at random, goes
on: the next chunk is read from the memory that it left. The memories along these replies are the trunk.

A rollout of whole conversations compares replies that were given to different memories. Here the replies of a chunk
differ in nothing else, so their rewards compare them alone. There are as many replies, and all of a chunk share their
prompt. Local comparisons from one memory are Memory-R2's idea (arXiv 2605.21768).

A chunk group has the shape of any group: G trajectories with a turn per chunk. `Trajectory.before` holds the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from memalpha.agent.apply import act
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import ConfigError
from memalpha.policy.base import sample_checked
from memalpha.policy.noise import noise_key
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.types import Completion, Task, Trajectory, TrajectoryGroup, Turn


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
        _Trunk(task, number, [MemoryState.empty(writing.schema)], [[] for _ in range(rollouts)])
        for task, number in zip(tasks, numbers, strict=True)
    ]
    for chunk in range(max((len(task.chunks) for task in tasks), default=0)):
        reading = [trunk for trunk in trunks if chunk < len(trunk.task.chunks)]
        writing.embed_views((trunk.before[chunk], trunk.task.chunks[chunk]) for trunk in reading)
        requests = []
        for trunk in reading:
            memory = WorkingMemory(trunk.before[chunk], writing.embedder)
            request = replace(writing.request(memory, trunk.task.chunks[chunk], trunk.task), temperature=temperature)
            keys = [noise_key(seed, step, trunk.number, rollout, chunk) for rollout in range(rollouts)]
            requests += [replace(request, key=key) for key in keys]
        completions = iter(sample_checked(engine.policy, requests))
        for trunk in reading:
            for turns in trunk.replies:
                turns.append(_apply(writing, trunk, chunk, next(completions)))
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


def _apply(writing: MemoryWriting, trunk: _Trunk, chunk: int, completion: Completion) -> tuple[Turn, MemoryState]:
    """Apply a reply to the memory before the chunk; return the turn and the memory after it."""
    memory, form = WorkingMemory(trunk.before[chunk], writing.embedder), writing.config.reply_form
    turn = act(memory, trunk.task.chunks[chunk], completion, source=trunk.task.id, form=form)
    return replace(turn, chunk=chunk), memory.state


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
