"""Many episodes in lock-step: the prompts of all that go on are one batch, and so are their steps.

A reply is a turn, and a turn is asked with its whole context: a trajectory of several turns has as many prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memalpha.agent.rollout import Start, grouped, starts_of
from memalpha.environments.base import Environment, Prompt, Step, is_scored, made, summed
from memalpha.environments.prompts import Messages, with_advice
from memalpha.errors import ConfigError, MemalphaError, RewardError
from memalpha.policy.base import Policy
from memalpha.policy.sampling_keys import noise_key
from memalpha.types import Reward, SampleRequest, TextTask, Trajectory, TrajectoryGroup, Turn

MAX_TURNS = 16
"""Where an episode ends that its environment does not end."""


@dataclass(slots=True)
class _Episode:
    start: Start[TextTask]
    environment: Environment
    messages: Messages  # without advice
    advised: Messages
    turns: list[Turn] = field(default_factory=list)
    asked: list[Messages] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    done: bool = False

    @property
    def where(self) -> str:
        return f"environment {type(self.environment).__name__}, task {self.start.task.id!r}"


class Player:
    """Plays `environment` with a policy.

    `environment`: one with a single turn that is scored in batches (`TextGeneration` and its kin), which is shared, or
    a class or another callable that makes one for each rollout. `system_prompt` comes first where a task has none of
    its own. `retry_prompt`: how advice stands in a prompt (`environments.prompts`). `states` of a trajectory are its
    turns' prompts without advice. An episode whose next prompt has no room beside a full reply ends there, as one does
    after `max_turns`; `outgrown` counts them. Raises `ConfigError` for one that
    several rollouts would share.
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
        if not is_scored(environment) and (isinstance(environment, Environment) and not isinstance(environment, type)):
            raise ConfigError(
                f"environment: a {type(environment).__name__} would be shared by all rollouts: give the class, or a "
                "function that makes one"
            )
        if not is_scored(environment) and not callable(environment):
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
        first: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[TrajectoryGroup[TextTask]]:
        """`rollouts` trajectories of each task, in order, not scored yet where the environment scores in batches.

        Noise is keyed by (seed, step, number of the task, rollout, turn); `tasks` are numbered from `first`, their
        place among all that several processes play. `progress(done, total)` counts rollouts that have ended.
        """
        played = self.run(starts_of(tasks, rollouts, first), temperature, seed, step, progress=progress)
        return grouped(tasks, played, rollouts)

    def run(
        self,
        starts: Sequence[Start[TextTask]],
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        role: str = "attempt",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Trajectory[TextTask]]:
        """A trajectory of each start, in order, all of one `role` (see `build`)."""
        everything = [self._begin(start) for start in starts]
        for turn in range(self.max_turns):
            live = [episode for episode in everything if not episode.done]
            live = self._with_room(live) if turn else live
            if not live:
                break
            requests = [
                SampleRequest(
                    episode.advised,
                    key=noise_key(seed, step, episode.start.number, episode.start.rollout, turn, role),
                    temperature=temperature,
                    max_new_tokens=self.max_new_tokens,
                )
                for episode in live
            ]
            for episode, completion in zip(live, self.policy.sample(requests), strict=True):
                episode.asked.append(episode.messages)
                episode.turns.append(Turn(turn, completion))
            self._advance(live)
            if progress is not None:
                progress(sum(episode.done for episode in everything), len(everything))
        return [
            Trajectory(
                episode.start.task,
                episode.start.rollout,
                tuple(episode.turns),
                tuple(episode.asked),
                summed(episode.rewards, episode.where) if episode.rewards else None,
                role,
            )
            for episode in everything
        ]

    def scored(self, groups: Sequence[TrajectoryGroup[TextTask]]) -> list[TrajectoryGroup[TextTask]]:
        """The groups with rewards: trajectories that have none yet are scored in one batch. One of which nothing can be
        said (`SingleTurn.score`) keeps None."""
        open_ones = [one for group in groups for one in group.trajectories if one.reward is None]
        rewards: dict[int, Reward | None] = {}
        if open_ones:
            replies = [one.turns[-1].completion.text for one in open_ones]
            scores = self.environment.score([one.task for one in open_ones], replies)
            rewards = {id(one): reward for one, reward in zip(open_ones, scores, strict=True)}
        return [
            TrajectoryGroup(
                group.task,
                tuple(
                    replace(one, reward=rewards[id(one)]) if id(one) in rewards else one for one in group.trajectories
                ),
            )
            for group in groups
        ]

    def reached(self, reward: Reward) -> float:
        """How far an episode is a success, from 0 to 1."""
        if is_scored(self.environment):
            return self.environment.reached(reward)
        if self._maximum is None:
            self._maximum = float(getattr(made(self.environment), "maximum", 1.0))
        return min(1.0, max(0.0, reward.total / self._maximum))

    def opening(self, task: TextTask) -> Messages:
        """The first prompt of a task."""
        return self._begin(Start(task, 0)).messages

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        """For each turn of a trajectory the prompt it would have had without advice."""
        return [SampleRequest(messages) for messages in trajectory.states]

    def _begin(self, start: Start[TextTask]) -> _Episode:
        environment = self.environment if is_scored(self.environment) else made(self.environment)
        with _Naming(f"environment {type(environment).__name__}, task {start.task.id!r}"):
            messages = _messages(environment.reset(start.task))
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.system_prompt}, *messages)
        return _Episode(start, environment, messages, with_advice(messages, start.advice, self.retry_prompt))

    def _with_room(self, live: Sequence[_Episode]) -> list[_Episode]:
        """Those of several turns whose conversation still fits into the policy's context; the others end here."""
        positions, render = getattr(self.policy, "positions", None), getattr(self.policy, "render", None)
        if positions is None or render is None:
            return list(live)
        for episode in live:
            episode.done = len(render(episode.advised)) + self.max_new_tokens > positions
        self.outgrown += sum(episode.done for episode in live)
        return [episode for episode in live if not episode.done]

    def _advance(self, live: Sequence[_Episode]) -> None:
        """What the last replies came to; those that go on have their next prompt."""
        if is_scored(self.environment):
            for episode in live:
                episode.done = True
            return
        replies = [episode.turns[-1].completion.text for episode in live]
        together = getattr(type(live[0].environment), "step_together", None)
        if together is not None:
            with _Naming(f"environment {type(live[0].environment).__name__}"):
                steps = list(together([episode.environment for episode in live], replies))
        else:
            steps = []
            for episode, reply in zip(live, replies, strict=True):
                with _Naming(episode.where):
                    steps.append(episode.environment.step(reply))
        if len(steps) != len(live):
            name = type(live[0].environment).__name__
            raise RewardError(f"environment {name}: step_together gave {len(steps)} steps for {len(live)} episodes")
        for episode, reply, given in zip(live, replies, steps, strict=True):
            with _Naming(episode.where):
                step = Step(*given)
            episode.rewards.append(step.reward)
            episode.done = bool(step.done) or len(episode.turns) == self.max_turns
            if episode.done:
                continue
            if step.observation is None:
                raise RewardError(f"{episode.where}: a step that is not the last has no observation to reply to")
            if isinstance(step.observation, str):
                said = ({"role": "assistant", "content": reply}, {"role": "user", "content": step.observation})
                episode.messages, episode.advised = (*episode.messages, *said), (*episode.advised, *said)
            else:
                episode.messages = _messages(step.observation)
                episode.advised = with_advice(episode.messages, episode.start.advice, self.retry_prompt)


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
    """`count` rollouts of each task with rewards (None: see `Player.scored`); `settings` are those of `Player`."""
    player = Player(policy, environment, **settings)
    return player.scored(player.build(tasks, count, temperature, seed))


def _messages(prompt: Prompt) -> Messages:
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    found = tuple(dict[str, str](message) for message in prompt)
    if not found or any(not {"role", "content"} <= set(message) for message in found):
        raise RewardError(f"an observation is a text or messages with role and content, not {prompt!r}")
    return found


class _Naming:
    """What somebody's environment raises names it; memalpha's own errors stay what they are."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, MemalphaError):
            raise RewardError(f"{self.where} raised {type(error).__name__}: {error}".rstrip(": ")) from error


def named_columns(tasks: Sequence[TextTask]) -> Mapping[str, None]:
    """The columns that some task has."""
    return dict.fromkeys(name for task in tasks for name in task.columns)
