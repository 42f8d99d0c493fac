"""The rollout engine: many episodes of an environment over one policy, each at its own pace.

A reply is a turn. An episode asks for its next turn as soon as its own turn has ended; the policy decides which turns
it decodes together (`policy.base`). Noise is keyed by (seed, step, task index, rollout, turn), so neither the batch
nor the number of processes changes what is sampled.

In a conversation each turn's prompt is the whole conversation before it. Other environments, such as the writing of a
memory, give a fresh prompt for every turn.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Generic

from memalpha.environments.base import (
    Environment,
    OneReply,
    Step,
    check_environment,
    is_single_turn,
    make_environment,
)
from memalpha.environments.episode import RunningEpisode, Start, WrapErrors
from memalpha.errors import RewardError
from memalpha.policy.base import Policy, SamplingQueue, open_queue
from memalpha.types import AnyTask, SampleRequest, Trajectory, TrajectoryGroup


class EpisodePool:
    """Ask for the next turn of each episode as soon as its own turn has ended.

    Episodes of environments that step together in lock-step wait for each other. A pool belongs to one thread, except
    for `is_paused`.

    Args:
        queue: Queue of the policy.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling noise.
        role: Role of all trajectories, part of the noise key.

    Attributes:
        is_paused: True holds the next turns back; those under way go on. `submit` asks for them later.
        waiting: Episodes whose next turn is held back.
    """

    def __init__(self, queue: SamplingQueue, temperature: float, seed: int, role: str = "attempt") -> None:
        self.queue, self.temperature, self.seed, self.role = queue, temperature, seed, role
        self.is_paused = False
        self._running: dict[int, RunningEpisode] = {}
        self.waiting: list[RunningEpisode] = []

    @property
    def in_flight(self) -> int:
        """Number of turns under way."""
        return len(self._running)

    def submit(self, episodes: Sequence[RunningEpisode] = ()) -> None:
        """Ask for the next turns of `episodes` and of those that were held back, unless the pool is paused."""
        self.waiting += episodes
        if self.is_paused or not self.waiting:
            return
        ready, self.waiting = self.waiting, []
        requests = [episode.next_request(self.temperature, self.seed, self.role) for episode in ready]
        self._running.update(zip(self.queue.submit(requests), ready, strict=True))

    def collect(self) -> list[RunningEpisode]:
        """Wait for a completion, step the environments and ask for the next turns; return episodes that have ended.

        Raises:
            RewardError: An environment fails, or gives no observation to reply to.
            PolicyError: The policy cannot answer.
        """
        waits = any(is_lock_step(episode.environment) for episode in self._running.values())
        completions = self._collect_all() if waits else self.queue.collect()
        replied = []
        for ticket, completion in completions:
            episode = self._running.pop(ticket)
            episode.completion = completion
            replied.append(episode)
        if not replied:
            return []
        step_environments(replied)
        self.submit([episode for episode in replied if not episode.has_ended()])
        return [episode for episode in replied if episode.done]

    def drop(self, episodes: Iterable[RunningEpisode]) -> None:
        """Ask for no more turns of these episodes, which are held back."""
        dropped = {id(episode) for episode in episodes}
        self.waiting = [episode for episode in self.waiting if id(episode) not in dropped]

    def close(self) -> None:
        """Drop all turns under way."""
        self.queue.close()
        self._running, self.waiting = {}, []

    def _collect_all(self) -> list[tuple[int, Any]]:
        completions: list[tuple[int, Any]] = []
        while len(completions) < len(self._running):
            completions += self.queue.collect()
        return sorted(completions, key=lambda pair: pair[0])


def step_environments(episodes: Sequence[RunningEpisode]) -> None:
    """Step the environments of episodes that have a new completion."""
    together = getattr(type(episodes[0].environment), "step_together", None)
    if together is None:
        for episode in episodes:
            with WrapErrors(episode.where):
                result: Any = episode.environment.step(episode.reply)
                step = Step(*result)
            episode.take(step)
        return
    name = type(episodes[0].environment).__name__
    with WrapErrors(f"environment {name}"):
        steps = list(together([episode.environment for episode in episodes], [e.reply for e in episodes]))
    if len(steps) != len(episodes):
        raise RewardError(f"environment {name}: step_together gave {len(steps)} steps for {len(episodes)} episodes")
    for episode, result in zip(episodes, steps, strict=True):
        with WrapErrors(episode.where):
            step = Step(*result)
        episode.take(step)


def is_lock_step(environment: Environment) -> bool:
    """Return True if the environment's episodes wait for each other."""
    return hasattr(type(environment), "step_together") and getattr(environment, "lock_step", True)


MAX_TURNS = 16
"""Default limit of a conversation's turns."""

Progress = Callable[[int, int], None]


class RolloutEngine(Generic[AnyTask]):
    """Roll out an environment with a policy.

    An environment that returns requests (`SampleRequest`) decides itself about tools, length and turns. Conversations
    end early after `max_turns`, or if the next prompt leaves no room for a full reply.

    Args:
        policy: Policy that replies.
        environment: A callable that makes one environment per rollout, or a `SingleTurn` object.
        system_prompt: System message of conversations that have none.
        max_new_tokens: Tokens of a reply in a conversation.
        thinking_tokens: Budget of thoughts before it; 0 turns thinking off.
        chat_template_kwargs: Further arguments of the chat template in a conversation.
        max_turns: Replies of a conversation.
        retry_prompt: Template of a prompt with advice (default: `environments.episode.RETRY_PROMPT`).

    Attributes:
        outgrown: Number of episodes that ended for lack of room.

    Raises:
        ConfigError: The environment would be shared by several rollouts, or is not callable.
    """

    def __init__(
        self,
        policy: Policy,
        environment: Any,
        *,
        system_prompt: str | None = None,
        max_new_tokens: int = 256,
        thinking_tokens: int = 0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_turns: int = MAX_TURNS,
        retry_prompt: str | None = None,
    ) -> None:
        check_environment(environment)
        self.policy = policy
        self.environment = environment
        self.system_prompt = system_prompt
        self.max_new_tokens = max_new_tokens
        self.thinking_tokens = thinking_tokens
        self.chat_template_kwargs = chat_template_kwargs or {}
        self.max_turns = max_turns
        self.retry_prompt = retry_prompt
        self.outgrown = 0

    def roll_out(
        self,
        tasks: Sequence[AnyTask],
        rollouts: int = 1,
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        first_index: int = 0,
        progress: Progress | None = None,
    ) -> list[TrajectoryGroup[AnyTask]]:
        """Roll out each task `rollouts` times.

        Args:
            tasks: Tasks to roll out.
            rollouts: Rollouts per task (G).
            temperature: Sampling temperature; 0 is greedy.
            seed: Seed of the sampling noise.
            step: Training step, part of the noise key.
            first_index: Index of the first task among the tasks of all processes.
            progress: See `run`.

        Returns:
            One group of `rollouts` trajectories per task, in order.
        """
        starts = [
            Start(task, number, rollout)
            for number, task in enumerate(tasks, first_index)
            for rollout in range(rollouts)
        ]
        trajectories = self.run(starts, temperature, seed, step, progress=progress)
        return [
            TrajectoryGroup(task, tuple(trajectories[index * rollouts : (index + 1) * rollouts]))
            for index, task in enumerate(tasks)
        ]

    def run(
        self,
        starts: Sequence[Start[AnyTask]],
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        role: str = "attempt",
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> list[Trajectory[AnyTask]]:
        """Make one trajectory from each start, in order.

        A trajectory has a reward if its environment gives one.

        Args:
            starts: Rollouts to make.
            temperature: Sampling temperature; 0 is greedy.
            seed: Seed of the sampling noise.
            step: Training step, part of the noise key.
            role: Role of all trajectories, part of the noise key.
            progress: Called with (done, all) turns; episodes without a known number of turns count as one each.
            stop: Raises `asyncio.CancelledError` before the next turn once it is set.

        Raises:
            RewardError: An environment fails, or gives no observation to reply to.
        """
        episodes = [RunningEpisode(self, start, step) for start in starts]
        total = sum(episode.turns_expected for episode in episodes)
        pool = EpisodePool(open_queue(self.policy), temperature, seed, role)
        try:
            pool.submit(episodes)
            while pool.in_flight:
                if stop is not None and stop.is_set():
                    raise asyncio.CancelledError
                pool.collect()
                if progress is not None:
                    progress(sum(episode.turns_done for episode in episodes), total)
        finally:
            pool.close()
        return [episode.trajectory(role) for episode in episodes]

    async def run_async(self, starts: Sequence[Start[AnyTask]], **settings: Any) -> list[Trajectory[AnyTask]]:
        """Run in a thread of its own; arguments as in `run`. Cancelling it stops before the next turn."""
        stop = Event()
        try:
            return await asyncio.to_thread(partial(self.run, starts, **settings, stop=stop))
        except asyncio.CancelledError:
            stop.set()
            raise

    def first_request(self, task: AnyTask) -> SampleRequest:
        """Return the first prompt of a task."""
        return RunningEpisode(self, Start(task, 0)).next_request(0.0, 0, "attempt")

    def make_environment(self) -> Environment:
        """Return the environment of one episode."""
        return OneReply(self.environment) if is_single_turn(self.environment) else make_environment(self.environment)


def rollouts(
    policy: Policy,
    tasks: Sequence[AnyTask],
    environment: Any,
    count: int = 1,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> list[TrajectoryGroup[AnyTask]]:
    """Sample rollouts of each task, with the rewards that the environment gives.

    Args:
        policy: Policy that replies.
        tasks: Tasks to play.
        environment: See `RolloutEngine`. The replies to a `SingleTurn` object are scored.
        count: Rollouts per task.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling noise.
        settings: Further arguments of `RolloutEngine`.

    Returns:
        One group per task, in order. The reward of an unscored trajectory is None.
    """
    groups = RolloutEngine[AnyTask](policy, environment, **settings).roll_out(tasks, count, temperature, seed)
    return score_replies(environment, groups)


def score_replies(environment: Any, groups: Sequence[TrajectoryGroup[AnyTask]]) -> list[TrajectoryGroup[AnyTask]]:
    """Let a `SingleTurn` environment score all replies without a reward in one batch; unscored ones keep None."""
    unscored = [trajectory for group in groups for trajectory in group.trajectories if trajectory.reward is None]
    if not unscored or not is_single_turn(environment):
        return list(groups)
    completions = [trajectory.turns[-1].completion for trajectory in unscored]
    ids = [completion.completion_ids for completion in completions]
    takes_ids = all(ids) and "completion_ids" in inspect.signature(environment.score).parameters
    scores = environment.score(
        [trajectory.task for trajectory in unscored],
        [completion.text for completion in completions],
        **({"completion_ids": ids} if takes_ids else {}),
    )
    rewards = {id(trajectory): reward for trajectory, reward in zip(unscored, scores, strict=True)}
    return [
        replace(
            group,
            trajectories=tuple(
                replace(trajectory, reward=rewards.get(id(trajectory), trajectory.reward))
                for trajectory in group.trajectories
            ),
        )
        for group in groups
    ]
