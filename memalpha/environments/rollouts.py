"""Many episodes in lock-step: all running episodes sample in one batch and step together.

A reply is a turn. Each turn's prompt is the whole conversation before it, so a trajectory has one prompt per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memalpha.agent.rollout import Start, group_by_task, make_starts
from memalpha.environments.base import Environment, Prompt, Step, is_single_turn, make_environment, sum_rewards
from memalpha.environments.prompts import Messages, with_advice
from memalpha.errors import ConfigError, MemalphaError, RewardError
from memalpha.policy.base import Policy
from memalpha.policy.sampling_keys import noise_key
from memalpha.types import Reward, SampleRequest, TextTask, Trajectory, TrajectoryGroup, Turn

MAX_TURNS = 16
"""Default limit of an episode's turns."""


@dataclass(slots=True)
class _Episode:
    start: Start[TextTask]
    environment: Environment
    messages: Messages  # without advice
    messages_with_advice: Messages
    turns: list[Turn] = field(default_factory=list)
    prompts: list[Messages] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    done: bool = False

    @property
    def where(self) -> str:
        return f"environment {type(self.environment).__name__}, task {self.start.task.id!r}"


class Player:
    """Play an environment with a policy.

    The `states` of a trajectory are its turns' prompts without advice. An episode ends early after `max_turns`, or if
    its next prompt leaves no room for a full reply.

    Args:
        policy: Policy that replies.
        environment: A `SingleTurn` object, shared by all rollouts, or a callable that makes one environment per
            rollout.
        system_prompt: System message of tasks that have none.
        max_new_tokens: Tokens of a reply.
        max_turns: Replies of an episode.
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
        max_turns: int = MAX_TURNS,
        retry_prompt: str | None = None,
    ) -> None:
        if not is_single_turn(environment) and (
            isinstance(environment, Environment) and not isinstance(environment, type)
        ):
            raise ConfigError(
                f"environment: a {type(environment).__name__} would be shared by all rollouts: give the class, or a "
                "function that makes one"
            )
        if not is_single_turn(environment) and not callable(environment):
            raise ConfigError(f"environment: {environment!r} has no reset and step, and makes nothing that has")
        self.policy = policy
        self.environment: Any = environment
        self.system_prompt = system_prompt
        self.max_new_tokens = max_new_tokens
        self.max_turns = max_turns
        self.retry_prompt = retry_prompt
        self.outgrown = 0
        self._maximum: float | None = None

    def build(
        self,
        tasks: Sequence[TextTask],
        rollouts: int = 1,
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        first_index: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[TrajectoryGroup[TextTask]]:
        """Sample rollouts of each task; environments that score in batches leave them unscored.

        Args:
            tasks: Tasks to play.
            rollouts: Rollouts per task.
            temperature: Sampling temperature; 0 is greedy.
            seed: Seed of the sampling noise, keyed by (seed, step, task index, rollout, turn).
            step: Training step, part of the noise key.
            first_index: Index of the first task among those of all processes.
            progress: Called with (ended, all) rollouts after each turn.

        Returns:
            One group per task, in order.
        """
        trajectories = self.run(make_starts(tasks, rollouts, first_index), temperature, seed, step, progress=progress)
        return group_by_task(tasks, trajectories, rollouts)

    def run(
        self,
        starts: Sequence[Start[TextTask]],
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        role: str = "attempt",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Trajectory[TextTask]]:
        """Play one trajectory from each start, in order.

        Args:
            starts: Tasks with rollout number and advice.
            temperature: Sampling temperature; 0 is greedy.
            seed: Seed of the sampling noise, keyed by (seed, step, task index, rollout, turn).
            step: Training step, part of the noise key.
            role: Role of all trajectories, part of the noise key.
            progress: Called with (ended, all) rollouts after each turn.
        """
        episodes = [self._begin(start) for start in starts]
        for turn in range(self.max_turns):
            active = [episode for episode in episodes if not episode.done]
            active = self._drop_overlong(active) if turn else active
            if not active:
                break
            requests = [
                SampleRequest(
                    episode.messages_with_advice,
                    key=noise_key(seed, step, episode.start.number, episode.start.rollout, turn, role),
                    temperature=temperature,
                    max_new_tokens=self.max_new_tokens,
                )
                for episode in active
            ]
            for episode, completion in zip(active, self.policy.sample(requests), strict=True):
                episode.prompts.append(episode.messages)
                episode.turns.append(Turn(turn, completion))
            self._advance(active)
            if progress is not None:
                progress(sum(episode.done for episode in episodes), len(episodes))
        return [
            Trajectory(
                episode.start.task,
                episode.start.rollout,
                tuple(episode.turns),
                tuple(episode.prompts),
                sum_rewards(episode.rewards, episode.where) if episode.rewards else None,
                role,
            )
            for episode in episodes
        ]

    def score(self, groups: Sequence[TrajectoryGroup[TextTask]]) -> list[TrajectoryGroup[TextTask]]:
        """Score all trajectories without a reward in one batch; unscored ones keep None."""
        unscored = [trajectory for group in groups for trajectory in group.trajectories if trajectory.reward is None]
        rewards: dict[int, Reward | None] = {}
        if unscored:
            replies = [trajectory.turns[-1].completion.text for trajectory in unscored]
            scores = self.environment.score([trajectory.task for trajectory in unscored], replies)
            rewards = {id(trajectory): reward for trajectory, reward in zip(unscored, scores, strict=True)}
        return [
            TrajectoryGroup(
                group.task,
                tuple(
                    replace(trajectory, reward=rewards[id(trajectory)]) if id(trajectory) in rewards else trajectory
                    for trajectory in group.trajectories
                ),
            )
            for group in groups
        ]

    def success(self, reward: Reward) -> float:
        """Return the degree of success of an episode's reward, from 0 to 1."""
        if is_single_turn(self.environment):
            return self.environment.success(reward)
        if self._maximum is None:
            self._maximum = float(getattr(make_environment(self.environment), "maximum", 1.0))
        return min(1.0, max(0.0, reward.total / self._maximum))

    def first_prompt(self, task: TextTask) -> Messages:
        """Return the first prompt of a task."""
        return self._begin(Start(task, 0)).messages

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        """Return each turn's prompt without advice."""
        return [SampleRequest(messages) for messages in trajectory.states]

    def _begin(self, start: Start[TextTask]) -> _Episode:
        environment = self.environment if is_single_turn(self.environment) else make_environment(self.environment)
        with _WrapErrors(f"environment {type(environment).__name__}, task {start.task.id!r}"):
            messages = _messages(environment.reset(start.task))
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.system_prompt}, *messages)
        return _Episode(start, environment, messages, with_advice(messages, start.advice, self.retry_prompt))

    def _drop_overlong(self, active: Sequence[_Episode]) -> list[_Episode]:
        """End episodes whose next prompt and reply exceed the policy's context; return the others."""
        positions, render = getattr(self.policy, "positions", None), getattr(self.policy, "render", None)
        if positions is None or render is None:
            return list(active)
        for episode in active:
            episode.done = len(render(episode.messages_with_advice)) + self.max_new_tokens > positions
        self.outgrown += sum(episode.done for episode in active)
        return [episode for episode in active if not episode.done]

    def _advance(self, active: Sequence[_Episode]) -> None:
        """Step the environments with the last replies and set the next prompts."""
        if is_single_turn(self.environment):
            for episode in active:
                episode.done = True
            return
        replies = [episode.turns[-1].completion.text for episode in active]
        together = getattr(type(active[0].environment), "step_together", None)
        if together is not None:
            with _WrapErrors(f"environment {type(active[0].environment).__name__}"):
                steps = list(together([episode.environment for episode in active], replies))
        else:
            steps = []
            for episode, reply in zip(active, replies, strict=True):
                with _WrapErrors(episode.where):
                    steps.append(episode.environment.step(reply))
        if len(steps) != len(active):
            name = type(active[0].environment).__name__
            raise RewardError(f"environment {name}: step_together gave {len(steps)} steps for {len(active)} episodes")
        for episode, reply, result in zip(active, replies, steps, strict=True):
            with _WrapErrors(episode.where):
                step = Step(*result)
            episode.rewards.append(step.reward)
            episode.done = bool(step.done) or len(episode.turns) == self.max_turns
            if episode.done:
                continue
            if step.observation is None:
                raise RewardError(f"{episode.where}: a step that is not the last has no observation to reply to")
            if isinstance(step.observation, str):
                exchange = ({"role": "assistant", "content": reply}, {"role": "user", "content": step.observation})
                episode.messages, episode.messages_with_advice = (
                    (*episode.messages, *exchange),
                    (*episode.messages_with_advice, *exchange),
                )
            else:
                episode.messages = _messages(step.observation)
                episode.messages_with_advice = with_advice(episode.messages, episode.start.advice, self.retry_prompt)


def rollouts(
    policy: Policy,
    tasks: Sequence[TextTask],
    environment: Any,
    count: int = 1,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> list[TrajectoryGroup[TextTask]]:
    """Sample and score rollouts of each task.

    Args:
        policy: Policy that replies.
        tasks: Tasks to play.
        environment: See `Player`.
        count: Rollouts per task.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling noise.
        settings: Further arguments of `Player`.

    Returns:
        One group per task, in order. The reward of an unscored trajectory is None.
    """
    player = Player(policy, environment, **settings)
    return player.score(player.build(tasks, count, temperature, seed))


def _messages(prompt: Prompt) -> Messages:
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


def column_names(tasks: Sequence[TextTask]) -> Mapping[str, None]:
    """Return the names of all columns that some task has, in order."""
    return dict.fromkeys(name for task in tasks for name in task.columns)
