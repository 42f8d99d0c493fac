"""Batched rollouts: all active rollouts advance by one chunk per `sample` call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from memalpha.agent.agent import act, build_request, observe
from memalpha.agent.rollout import Start, group_by_task, make_starts
from memalpha.config import AgentConfig
from memalpha.policy.base import Policy
from memalpha.policy.sampling_keys import noise_key
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.store.in_memory import WorkingMemory
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.state import MemoryState
from memalpha.types import Chunk, MemoryEntry, Observation, SampleRequest, Task, Trajectory, TrajectoryGroup, Turn


@dataclass(slots=True)
class _Rollout:
    start: Start[Task]
    memory: WorkingMemory
    turns: list[Turn] = field(default_factory=list)
    states: list[MemoryState] = field(default_factory=list)
    not_embedded: dict[str, None] = field(default_factory=dict)
    """Ids written since this memory's contents were last embedded."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.start.task.chunks


class Builder:
    """Build memories over tasks with one policy, in memory and without a database.

    Args:
        policy: the writer.
        config: sizes and style of the prompts.
        embedder: embedder of the memories; default: `config.embedder`.
        schema: categories of the memories; default: `config.memory_schema`.
    """

    def __init__(
        self,
        policy: Policy,
        config: AgentConfig,
        embedder: Embedder | None = None,
        schema: MemorySchema | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.embedder = embedder or load_embedder(config.embedder)
        self.schema = schema or load_schema(config.memory_schema)

    def build(
        self,
        tasks: Sequence[Task],
        rollouts: int = 1,
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        first_index: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[TrajectoryGroup]:
        """Roll out each task `rollouts` times; chunk i of all rollouts is one batch.

        Noise is keyed by (seed, step, task index, rollout, chunk). Neither the batch nor the number of processes
        changes the samples.

        Args:
            tasks: tasks to roll out.
            rollouts: rollouts per task (G).
            temperature: sampling temperature; 0 is greedy.
            seed: seed of the sampling noise.
            step: training step, part of the noise key.
            first_index: index of the first task among the tasks of all processes.
            progress: called as `progress(done, total)` with counts of turns.

        Returns:
            One group of `rollouts` trajectories per task, in order.
        """
        trajectories = self.run(make_starts(tasks, rollouts, first_index), temperature, seed, step, progress=progress)
        return group_by_task(tasks, trajectories, rollouts)

    def run(
        self,
        starts: Sequence[Start[Task]],
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        role: str = "attempt",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Trajectory]:
        """Roll out each start once (see `build`).

        Args:
            starts: rollouts to make.
            temperature: sampling temperature; 0 is greedy.
            seed: seed of the sampling noise.
            step: training step, part of the noise key.
            role: role of all trajectories: "attempt" or "retry".
            progress: called as `progress(done, total)` with counts of turns.

        Returns:
            One trajectory per start, in order.
        """
        active = [_Rollout(start, WorkingMemory(MemoryState.empty(self.schema), self.embedder)) for start in starts]
        rollouts, done = list(active), 0
        total = sum(len(rollout.chunks) for rollout in active)
        for index in range(max((len(rollout.chunks) for rollout in active), default=0)):
            active = [rollout for rollout in active if index < len(rollout.chunks)]
            self._embed_new(active, index)
            requests = []
            for rollout in active:
                start = rollout.start
                observation = self._observe(rollout.memory, rollout.chunks[index], start.task, start.advice)
                key = noise_key(seed, step, start.number, start.rollout, index, role)
                requests.append(build_request(observation, self.config, self.schema, key=key, temperature=temperature))
            for rollout, completion in zip(active, self.policy.sample(requests), strict=True):
                source = rollout.start.task.id
                turn = act(rollout.memory, rollout.chunks[index], completion, source=source)
                rollout.turns.append(turn)
                rollout.not_embedded.update((operation.id, None) for operation in turn.operations if operation.id)
                rollout.states.append(rollout.memory.state)
            done += len(active)
            if progress is not None:
                progress(done, total)
        return [Trajectory(r.start.task, r.start.rollout, tuple(r.turns), tuple(r.states), role=role) for r in rollouts]

    def without_advice(self, trajectory: Trajectory) -> list[SampleRequest]:
        """Return the prompt of each turn of a trajectory as it would be without advice.

        Each prompt shows the memory that the trajectory had built by then.
        """
        before = [MemoryState.empty(self.schema), *trajectory.states[:-1]]
        self._embed_all(before, trajectory.task.chunks)
        return [
            build_request(
                self._observe(WorkingMemory(state, self.embedder), chunk, trajectory.task), self.config, self.schema
            )
            for state, chunk in zip(before, trajectory.task.chunks, strict=True)
        ]

    def _observe(self, memory: WorkingMemory, chunk: Chunk, task: Task, advice: str = "") -> Observation:
        return observe(memory, chunk, self.config, self.policy.count_tokens, task, advice)

    def _embed_new(self, rollouts: Sequence[_Rollout], index: int) -> None:
        """Embed the new texts that searches for chunk `index` need, in one batch."""
        texts: dict[str, None] = {}
        for rollout in rollouts:
            entries = rollout.memory.state.entries
            if self._should_search(entries):
                texts[rollout.chunks[index].render()] = None
                texts.update((entries[id].content, None) for id in rollout.not_embedded if id in entries)
                rollout.not_embedded.clear()
        if texts:
            self.embedder.encode(list(texts))

    def _embed_all(self, states: Sequence[MemoryState], chunks: Sequence[Chunk]) -> None:
        """Embed all texts that searches of `states` for `chunks` need, in one batch."""
        texts: dict[str, None] = {}
        for state, chunk in zip(states, chunks, strict=True):
            if self._should_search(state.entries):
                texts[chunk.render()] = None
                texts.update(dict.fromkeys(entry.content for entry in state.entries.values()))
        if texts:
            self.embedder.encode(list(texts))

    def _should_search(self, entries: Mapping[str, MemoryEntry]) -> bool:
        return len(entries) > self.config.view_recent and self.config.view_related > 0
