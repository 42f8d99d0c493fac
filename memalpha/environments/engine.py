"""The rollout engine: many episodes of an environment over one policy, each at its own pace.

A reply is a turn. An episode asks for its next turn as soon as its own turn has ended; the policy decides which turns
it decodes together (`policy.queue`). Noise is keyed by (seed, step, task index, rollout, turn), so neither the batch
nor the number of processes changes what is sampled.

In a conversation each turn's prompt is the whole conversation before it. Other environments, such as the writing of a
memory, give a fresh prompt for every turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any, Generic

from memalpha.environments.base import (
    Environment,
    OneReply,
    Prompt,
    Step,
    check_environment,
    is_single_turn,
    make_environment,
    sum_rewards,
)
from memalpha.environments.prompts import Messages, with_advice
from memalpha.errors import MemalphaError, RewardError
from memalpha.policy.base import Policy
from memalpha.policy.queue import SamplingQueue, open_queue
from memalpha.policy.sampling_keys import noise_key
from memalpha.types import AnyTask, SampleRequest, Trajectory, TrajectoryGroup, Turn

MAX_TURNS = 16
"""Default limit of a conversation's turns."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """Rollout to make.

    `number` is the index of its task within the step. `advice` is added to each of its prompts.
    """

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


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
        retry_prompt: Template of a prompt with advice (default: `environments.prompts.RETRY_PROMPT`).

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
        episodes = [_Episode(self, start) for start in starts]
        total = sum(episode.turns_expected for episode in episodes)
        queue = open_queue(self.policy)
        running: dict[int, _Episode] = {}
        lock_step = bool(episodes) and _is_lock_step(episodes[0].environment)

        def submit(ready: Sequence[_Episode]) -> None:
            requests = [episode.next_request(temperature, seed, step, role) for episode in ready]
            running.update(zip(queue.submit(requests), ready, strict=True))

        try:
            submit(episodes)
            while running:
                if stop is not None and stop.is_set():
                    raise asyncio.CancelledError
                completions = _collect_all(queue, len(running)) if lock_step else queue.collect()
                replied = []
                for ticket, completion in completions:
                    episode = running.pop(ticket)
                    episode.completion = completion
                    replied.append(episode)
                self._advance(replied)
                submit([episode for episode in replied if not self._has_ended(episode)])
                if progress is not None:
                    progress(sum(episode.turns_done for episode in episodes), total)
        finally:
            queue.close()
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
        return _Episode(self, Start(task, 0)).next_request(0.0, 0, 0, "attempt")

    def make_environment(self) -> Environment:
        """Return the environment of one episode."""
        return OneReply(self.environment) if is_single_turn(self.environment) else make_environment(self.environment)

    def _advance(self, episodes: Sequence[_Episode]) -> None:
        """Step the environments of episodes that have a new completion."""
        together = getattr(type(episodes[0].environment), "step_together", None)
        if together is None:
            for episode in episodes:
                with _WrapErrors(episode.where):
                    result: Any = episode.environment.step(episode.reply)
                    step = Step(*result)
                episode.take(step)
            return
        name = type(episodes[0].environment).__name__
        with _WrapErrors(f"environment {name}"):
            steps = list(together([episode.environment for episode in episodes], [e.reply for e in episodes]))
        if len(steps) != len(episodes):
            raise RewardError(f"environment {name}: step_together gave {len(steps)} steps for {len(episodes)} episodes")
        for episode, result in zip(episodes, steps, strict=True):
            with _WrapErrors(episode.where):
                step = Step(*result)
            episode.take(step)

    def _has_ended(self, episode: _Episode) -> bool:
        """Return True if the episode is over, or its conversation has outgrown the policy's context."""
        if episode.done or episode.request is not None:
            return episode.done
        positions, render = getattr(self.policy, "positions", None), getattr(self.policy, "render_request", None)
        if positions is not None and render is not None:
            reply_tokens = self.thinking_tokens + self.max_new_tokens
            episode.done = len(render(episode.conversation_request())) + reply_tokens > positions
            self.outgrown += episode.done
        return episode.done


@dataclass(slots=True)
class _Episode:
    """One rollout under way: its environment, the next prompt and the turns so far."""

    engine: RolloutEngine[Any]
    start: Start[Any]
    environment: Environment = field(init=False)
    request: SampleRequest | None = None  # None: the next prompt is the conversation
    messages: Messages = ()  # without advice
    opening: int = 0  # number of messages that the environment gave at once; advice goes into them
    completion: Any = None
    turns: list[Turn] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.environment = self.engine.make_environment()
        if hasattr(self.environment, "advice"):
            self.environment.advice = self.start.advice  # type: ignore[attr-defined]
        with _WrapErrors(self.where):
            self._observe(self.environment.reset(self.start.task))
        system_prompt = self.engine.system_prompt
        if self.request is None and system_prompt is not None and self.messages[0]["role"] != "system":
            self.messages = ({"role": "system", "content": system_prompt}, *self.messages)
            self.opening += 1

    @property
    def where(self) -> str:
        """Environment and task, for messages."""
        shared = self.engine.environment
        name = type(shared if is_single_turn(shared) else self.environment).__name__
        return f"environment {name}, task {self.start.task.id!r}"

    @property
    def reply(self) -> str:
        """Text of the last completion."""
        return self.completion.text

    @property
    def turns_expected(self) -> int:
        """Number of turns, 1 if the environment does not know it."""
        return getattr(self.environment, "turns", 1)

    @property
    def turns_done(self) -> int:
        """Part of `turns_expected` that is done."""
        return len(self.turns) if hasattr(self.environment, "turns") else int(self.done)

    def next_request(self, temperature: float, seed: int, step: int, role: str) -> SampleRequest:
        """Return the next prompt with its noise key.

        Args:
            temperature: Sampling temperature.
            seed: Seed of the sampling noise.
            step: Training step.
            role: Role of the trajectory.
        """
        key = noise_key(seed, step, self.start.number, self.start.rollout, len(self.turns), role)
        if self.request is not None:
            return replace(self.request, key=key, temperature=temperature)
        return self.conversation_request(key, temperature)

    def conversation_request(self, key: tuple[int, ...] = (), temperature: float = 0.0) -> SampleRequest:
        """Return the next prompt of a conversation, with advice unless its environment inserts advice itself.

        Args:
            key: Key of the sampling noise.
            temperature: Sampling temperature.
        """
        opening = self.messages[: self.opening]
        if not hasattr(self.environment, "advice"):
            opening = with_advice(opening, self.start.advice, self.engine.retry_prompt)
        return SampleRequest(
            (*opening, *self.messages[self.opening :]),
            key=key,
            temperature=temperature,
            max_new_tokens=self.engine.max_new_tokens,
            thinking_tokens=self.engine.thinking_tokens,
            chat_template_kwargs=self.engine.chat_template_kwargs,
        )

    def take(self, step: Step) -> None:
        """Record the step of the last completion and set the next prompt."""
        self.turns.append(Turn(len(self.turns), self.completion, step.calls, step.results, step.operations))
        has_state = hasattr(self.environment, "state")
        self.states.append(self.environment.state if has_state else self.messages)  # type: ignore[attr-defined]
        if step.reward is not None:
            self.rewards.append(step.reward)
        self.done = bool(step.done) or (self.request is None and len(self.turns) == self.engine.max_turns)
        if self.done:
            return
        if step.observation is None:
            raise RewardError(f"{self.where}: a step that is not the last has no observation to reply to")
        with _WrapErrors(self.where):
            self._observe(step.observation)

    def trajectory(self, role: str) -> Trajectory[Any]:
        """Return the finished rollout."""
        if self.rewards and len(self.rewards) < len(self.turns):
            raise RewardError(
                f"{self.where}: {len(self.rewards)} of {len(self.turns)} steps have a reward: all or none"
            )
        reward = sum_rewards(self.rewards, self.where) if self.rewards else None
        return Trajectory(self.start.task, self.start.rollout, tuple(self.turns), tuple(self.states), reward, role)

    def _observe(self, observation: Prompt) -> None:
        """Set the next prompt."""
        if isinstance(observation, SampleRequest):
            self.request = observation
        elif isinstance(observation, str) and self.turns:
            exchange = ({"role": "assistant", "content": self.reply}, {"role": "user", "content": observation})
            self.messages = (*self.messages, *exchange)
        else:
            self.messages = _messages(observation)
            self.opening = len(self.messages)


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
    replies = [trajectory.turns[-1].completion.text for trajectory in unscored]
    scores = environment.score([trajectory.task for trajectory in unscored], replies)
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


def _is_lock_step(environment: Environment) -> bool:
    return hasattr(type(environment), "step_together") and getattr(environment, "lock_step", True)


def _collect_all(queue: SamplingQueue, count: int) -> list[tuple[int, Any]]:
    completions: list[tuple[int, Any]] = []
    while len(completions) < count:
        completions += queue.collect()
    return sorted(completions, key=lambda pair: pair[0])


def _messages(prompt: Any) -> Messages:
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    messages = tuple(dict[str, str](message) for message in prompt)
    if not messages or any(not {"role", "content"} <= set(message) for message in messages):
        raise RewardError(f"an observation is a text or messages with role and content, not {prompt!r}")
    return messages


class _WrapErrors:
    """Re-raise foreign exceptions as `RewardError` prefixed with the environment's name."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, MemalphaError):
            raise RewardError(f"{self.where} raised {type(error).__name__}: {error}".rstrip(": ")) from error
