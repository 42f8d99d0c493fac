"""Many rollouts at once: every live rollout advances by one chunk, all prompts of a step in one `sample` call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memalpha.agent.agent import act, observe, request
from memalpha.config import AgentConfig
from memalpha.policy.base import Policy
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.state import MemoryState
from memalpha.store.working import WorkingMemory
from memalpha.types import Task, Trajectory, TrajectoryGroup, Turn


@dataclass(slots=True)
class _Rollout:
    task: Task
    number: int
    rollout: int
    memory: WorkingMemory
    turns: list[Turn] = field(default_factory=list)
    states: list[MemoryState] = field(default_factory=list)


class Builder:
    """Builds memories over tasks with one policy. Rollouts work on values and touch no database.

    `embedder` and `schema` default to those that `config` names.
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
        first: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[TrajectoryGroup]:
        """`rollouts` trajectories of each task, in order; chunk i of all tasks is one batch.

        Noise is keyed by (seed, step, number of the task, rollout, chunk), so neither the batch nor the number of
        processes changes what is sampled; `tasks` are numbered from `first`, their place among all that several
        processes build. `progress(done, total)` counts turns.
        """
        live = [
            _Rollout(task, number, rollout, WorkingMemory(MemoryState.empty(self.schema), self.embedder))
            for number, task in enumerate(tasks, start=first)
            for rollout in range(rollouts)
        ]
        everything, done = list(live), 0
        total = sum(len(rollout.task.chunks) for rollout in live)
        for index in range(max((len(task.chunks) for task in tasks), default=0)):
            live = [rollout for rollout in live if index < len(rollout.task.chunks)]
            self._embed(live, index)
            requests = []
            for rollout in live:
                chunk = rollout.task.chunks[index]
                seen = observe(rollout.memory, chunk, self.config, self.policy.count_tokens, rollout.task)
                key = (seed, step, rollout.number, rollout.rollout, index)
                requests.append(request(seen, self.config, self.schema, key=key, temperature=temperature))
            for rollout, completion in zip(live, self.policy.sample(requests), strict=True):
                rollout.turns.append(
                    act(rollout.memory, rollout.task.chunks[index], completion, source=rollout.task.id)
                )
                rollout.states.append(rollout.memory.state)
            done += len(live)
            if progress is not None:
                progress(done, total)
        trajectories = [Trajectory(r.task, r.rollout, tuple(r.turns), tuple(r.states)) for r in everything]
        return [
            TrajectoryGroup(task, tuple(trajectories[number * rollouts : (number + 1) * rollouts]))
            for number, task in enumerate(tasks)
        ]

    def _embed(self, live: Sequence[_Rollout], index: int) -> None:
        """Fill the embedder's cache in one batch with all that the searches of this step will ask for."""
        texts: dict[str, None] = {}
        for rollout in live:
            entries = rollout.memory.state.entries
            if len(entries) > self.config.view_recent and self.config.view_related:
                texts[rollout.task.chunks[index].render()] = None
                texts.update(dict.fromkeys(entry.content for entry in entries.values()))
        if texts:
            self.embedder.encode(list(texts))
