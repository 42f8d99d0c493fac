"""Environments, and the rollout engine: many episodes over one policy, each at its own pace.

A reply is a turn. An episode asks for its next turn as soon as its own turn has ended; the policy decides which turns
it decodes together (`policy.base`). Noise is keyed by (seed, step, task index, rollout, turn), so neither the batch
nor the number of processes changes what is sampled.

In a conversation each turn's prompt is the whole conversation before it. Other environments, such as the writing of a
memory, give a fresh prompt for every turn.

An `Episode` is one rollout under way: its environment, the next prompt and the turns so far.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, SupportsFloat, TypeGuard, runtime_checkable

from memalpha.arguments import brief_repr, name_errors
from memalpha.errors import ConfigError, RewardError
from memalpha.policy.base import Policy, RenderingPolicy, SamplingQueue, noise_key, open_queue
from memalpha.types import (
    LARGEST_REWARD,
    AnyTask,
    Operation,
    Reward,
    SampleRequest,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

Prompt = str | Sequence[Mapping[str, str]] | SampleRequest
"""Input of a policy: a text, chat messages, or a request with tools (its key and temperature are filled in)."""

TOTAL = "reward"
"""Component name of a reward that is a plain number."""


class Step(NamedTuple):
    """Result of a reply.

    Attributes:
        reward: A number, or numbers by component name, which are summed. None: the episode is scored afterwards.
        done: True if the episode ends with this reply.
        observation: Next prompt unless done. A text continues the conversation as a user message; messages or a request
            replace it.
        calls: Tool calls that the reply held.
        results: Their results.
        operations: Operations that changed a memory.
    """

    reward: float | Mapping[str, float] | None
    done: bool = True
    observation: Prompt | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    operations: tuple[Operation, ...] = ()


@runtime_checkable
class Environment(Protocol):
    """One episode of one rollout, made by a class or another callable without arguments.

    A total reward of 1 is a success, or the attribute `maximum` if there is one (`Bounded`). Other members that an
    environment may have are those of `StepsTogether`, `Advised`, `Stateful` and `Counted`.
    """

    def reset(self, task: Any) -> Prompt:
        """Start an episode of the task and return its first observation."""
        ...

    def step(self, reply: str) -> Step | tuple[Any, ...]:
        """Return the result of a reply."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """Environment whose largest total reward is not 1."""

    maximum: float


@runtime_checkable
class StepsTogether(Protocol):
    """Environment that steps many episodes at once, so that a judge can be called once for all.

    All running episodes then advance in lock-step, unless the class sets `lock_step = False`: it then gets those whose
    replies have come.
    """

    @staticmethod
    def step_together(environments: Sequence[Any], replies: Sequence[str]) -> Sequence[Step | tuple[Any, ...]]:
        """Return the result of each reply; replaces `step`."""
        ...


@runtime_checkable
class Advised(Protocol):
    """Environment that puts the advice of a second attempt into its prompts; others get it in the last user message.

    `advice` is set before `reset`.
    """

    advice: str


@runtime_checkable
class Stateful(Protocol):
    """Environment with an immutable snapshot after the last reply, kept as `Trajectory.states` in place of prompts."""

    @property
    def state(self) -> Any: ...


@runtime_checkable
class Counted(Protocol):
    """Environment that knows the number of its replies after `reset`; they count as progress."""

    @property
    def turns(self) -> int: ...


@runtime_checkable
class SingleTurn(Protocol):
    """An environment of one reply, shared by all rollouts and scored afterwards in a batch."""

    def reset(self, task: Any) -> Prompt:
        """Return the prompt of a task."""
        ...

    def score(self, tasks: Sequence[Any], replies: Sequence[str]) -> Sequence[Reward | None]:
        """Return the reward of each reply, None if it is unscored."""
        ...

    def success(self, reward: Reward) -> float:
        """Return the degree of success of a reward, from 0 to 1."""
        ...


class OneReply:
    """Episode of a `SingleTurn` environment."""

    def __init__(self, shared: SingleTurn) -> None:
        self.reset = shared.reset

    def step(self, reply: str) -> Step:
        """End the episode; its reward is given afterwards."""
        return Step(None)


def is_single_turn(environment: object) -> TypeGuard[SingleTurn]:
    """Return True if the object is a `SingleTurn` instance."""
    return not inspect.isclass(environment) and isinstance(environment, SingleTurn)


def check_environment(environment: object) -> None:
    """Raise `ConfigError` if several rollouts would share the environment, or it makes none."""
    if is_single_turn(environment):
        return
    if isinstance(environment, Environment) and not isinstance(environment, type):
        raise ConfigError(
            f"environment: a {type(environment).__name__} would be shared by all rollouts: give the class, or a "
            "function that makes one"
        )
    if not callable(environment):
        raise ConfigError(f"environment: {environment!r} has no reset and step, and makes nothing that has")


def make_environment(make: Any) -> Environment:
    """Return the environment of one episode; raise `ConfigError` if it lacks `reset` or `step`."""
    if is_single_turn(make):
        return OneReply(make)
    with name_errors(f"environment: making {make!r} raised", RewardError):
        environment = make()
    if not isinstance(environment, Environment):
        raise ConfigError(f"environment: {make!r} gives {type(environment).__name__}, which has no reset and step")
    return environment


def sum_rewards(steps: Sequence[float | Mapping[str, float]], where: str) -> Reward:
    """Sum each component over an episode's steps and credit the total to every reply.

    Raises:
        RewardError: A reward is no number, none has a component, or the total is beyond float32. The message starts
            with `where`.
    """
    totals: dict[str, float] = {}
    for reward in steps:
        for name, value in (reward if isinstance(reward, Mapping) else {TOTAL: reward}).items():
            problem = f"{where}: reward {name!r} is {brief_repr(value)}: a number is needed"
            if not isinstance(value, SupportsFloat):  # float() would read a text
                raise RewardError(problem)
            try:
                totals[str(name)] = totals.get(str(name), 0.0) + float(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise RewardError(problem) from error
    if not totals:
        raise RewardError(f"{where}: its rewards have no component: a number is needed")
    total = sum(totals.values())
    if not abs(total) <= LARGEST_REWARD:
        raise RewardError(f"{where}: its reward is {total}: a number within {LARGEST_REWARD:g} is needed")
    count = len(steps)
    return Reward(
        turns=(total,) * count,
        components={name: (value,) * count for name, value in totals.items()},
        weights=dict.fromkeys(totals, 1.0),
        total=total,
        shared=frozenset(totals),
    )


REFLECTION_PROMPT = (
    "{prompt}\n\nYour reply:\n{attempt}\n\nReward {reward}. {feedback}\n{memory}What should the next reply do "
    "differently? Answer in one or two sentences."
)
"""Replaces the task's last user message (`{prompt}`) for a reflection."""

RETRY_PROMPT = "{prompt}\n\nAdvice: {reflection}"
"""Replaces the task's last user message for the retry."""

Messages = tuple[Mapping[str, str], ...]


def with_advice(messages: Messages, advice: str, template: str | None = None) -> Messages:
    """Insert advice into the last user message; return the messages unchanged if there is none.

    Args:
        messages: The task's messages.
        advice: Result of the reflection, or "".
        template: Text with `{prompt}` and `{reflection}` (default: `RETRY_PROMPT`).
    """
    if not advice:
        return messages
    return _fill(messages, template or RETRY_PROMPT, {"reflection": advice})


def reflection_messages(
    messages: Messages, attempt: str, reward: float, feedback: str, earlier: Sequence[str], template: str | None = None
) -> Messages:
    """Build the messages that ask for a reflection on a reply.

    Args:
        messages: The task's messages; the last user message is replaced.
        attempt: The reply.
        reward: Its reward.
        feedback: Description of its errors.
        earlier: Advice that helped before, in the order shown.
        template: Text with the fields of `REFLECTION_PROMPT` (default: `REFLECTION_PROMPT`).
    """
    parts = {"attempt": attempt, "reward": f"{reward:g}", "feedback": feedback, "memory": list_advice(earlier)}
    return _fill(messages, template or REFLECTION_PROMPT, parts)


def list_advice(texts: Sequence[str]) -> str:
    """Return earlier advice for a reflection's prompt: a heading and one line each; empty without advice."""
    lines = "".join(f"- {' '.join(text.split())}\n" for text in texts)
    return f"Earlier advice that helped:\n{lines}" if lines else ""


def last_user_index(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the last user message, or of the last message without one."""
    last = len(messages) - 1
    return next((index for index in range(last, -1, -1) if messages[index]["role"] == "user"), last)


def _fill(messages: Messages, template: str, parts: Mapping[str, str]) -> Messages:
    """Replace the last user message by the template; inserted texts are not expanded again."""
    index = last_user_index(messages)
    values = {**parts, "prompt": messages[index]["content"]}
    text = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)
    return (*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :])


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """Rollout to make.

    `number` is the index of its task within the step. `advice` is added to each of its prompts.
    """

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


@dataclass(slots=True)
class RunningEpisode:
    """One rollout under way: its environment, the next prompt and the turns so far."""

    engine: RolloutEngine[Any]
    start: Start[Any]
    step: int = 0  # training step, part of the noise key
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
        self.environment = make_environment(self.engine.environment)
        if isinstance(self.environment, Advised):
            self.environment.advice = self.start.advice
        with name_errors(f"{self.where} raised", RewardError):
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

    def next_request(self, temperature: float, seed: int, role: str) -> SampleRequest:
        """Return the next prompt with its noise key.

        Args:
            temperature: Sampling temperature.
            seed: Seed of the sampling noise.
            role: Role of the trajectory.
        """
        key = noise_key(seed, self.step, self.start.number, self.start.rollout, len(self.turns), role)
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
        if not isinstance(self.environment, Advised):
            opening = with_advice(opening, self.start.advice, self.engine.retry_prompt)
        return SampleRequest(
            (*opening, *self.messages[self.opening :]),
            key=key,
            temperature=temperature,
            max_new_tokens=self.engine.max_new_tokens,
            thinking_tokens=self.engine.thinking_tokens,
            chat_template_kwargs=self.engine.chat_template_kwargs or {},
        )

    def take(self, step: Step) -> None:
        """Record the step of the last completion and set the next prompt."""
        self.turns.append(Turn(len(self.turns), self.completion, step.calls, step.results, step.operations))
        self.states.append(self.environment.state if isinstance(self.environment, Stateful) else self.messages)
        if step.reward is not None:
            self.rewards.append(step.reward)
        self.done = bool(step.done) or (self.request is None and len(self.turns) == self.engine.max_turns)
        if self.done:
            return
        if step.observation is None:
            raise RewardError(f"{self.where}: a step that is not the last has no observation to reply to")
        with name_errors(f"{self.where} raised", RewardError):
            self._observe(step.observation)

    def has_ended(self) -> bool:
        """Return True if the episode is over, or its conversation has outgrown the policy's context."""
        if self.done or self.request is not None:
            return self.done
        engine, policy = self.engine, self.engine.policy
        if isinstance(policy, RenderingPolicy) and policy.positions is not None:
            reply_tokens = engine.thinking_tokens + engine.max_new_tokens
            self.done = len(policy.render_request(self.conversation_request())) + reply_tokens > policy.positions
            engine.outgrown += self.done
        return self.done

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
            prompt = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
            try:
                self.messages = tuple(dict[str, str](message) for message in prompt)
            except (TypeError, ValueError):
                self.messages = ()
            self.opening = len(self.messages)
            if not self.messages or any(not {"role", "content"} <= set(message) for message in self.messages):
                raise RewardError(f"an observation is a text or messages with role and content, not {prompt!r}")


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
        completions = self.queue.collect()
        while waits and len(completions) < len(self._running):
            completions += self.queue.collect()
        replied = []
        for ticket, completion in sorted(completions, key=lambda pair: pair[0]):
            episode = self._running.pop(ticket)
            episode.completion = completion
            replied.append(episode)
        if not replied:
            return []
        first = replied[0].environment
        results: list[Any] = []
        if isinstance(first, StepsTogether):
            name, replies = type(first).__name__, [episode.reply for episode in replied]
            with name_errors(f"environment {name} raised", RewardError):
                results = list(first.step_together([episode.environment for episode in replied], replies))
            if len(results) != len(replied):
                count = f"{len(results)} steps for {len(replied)} episodes"
                raise RewardError(f"environment {name}: step_together gave {count}")
        for index, episode in enumerate(replied):
            with name_errors(f"{episode.where} raised", RewardError):
                result: Any = results[index] if results else episode.environment.step(episode.reply)
            is_step = isinstance(result, tuple | list) and 1 <= len(result) <= len(Step._fields)
            if not is_step or not all(isinstance(part, tuple | list) for part in result[3:]):
                raise RewardError(
                    f"{episode.where}: step gave {brief_repr(result)}: (reward, done, next observation) is needed"
                )
            episode.take(Step(*result))
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


def is_lock_step(environment: Environment) -> bool:
    """Return True if the environment's episodes wait for each other."""
    return isinstance(environment, StepsTogether) and getattr(environment, "lock_step", True)


MAX_TURNS = 16
"""Default limit of a conversation's turns."""

Progress = Callable[[int, int], None]


@dataclass(eq=False, repr=False)
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
        retry_prompt: Template of a prompt with advice (default: `environments.engine.RETRY_PROMPT`).

    Attributes:
        outgrown: Number of episodes that ended for lack of room.

    Raises:
        ConfigError: The environment would be shared by several rollouts, or is not callable.
    """

    policy: Policy
    environment: Any
    _: KW_ONLY
    system_prompt: str | None = None
    max_new_tokens: int = 256
    thinking_tokens: int = 0
    chat_template_kwargs: Mapping[str, Any] | None = None
    max_turns: int = MAX_TURNS
    retry_prompt: str | None = None

    def __post_init__(self) -> None:
        check_environment(self.environment)
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
        numbered = enumerate(tasks, first_index)
        starts = [Start(task, number, rollout) for number, task in numbered for rollout in range(rollouts)]
        trajectories = iter(self.run(starts, temperature, seed, step, progress=progress))
        return [TrajectoryGroup(task, tuple(islice(trajectories, rollouts))) for task in tasks]

    def run(
        self,
        starts: Sequence[Start[AnyTask]],
        temperature: float = 0.0,
        seed: int = 0,
        step: int = 0,
        role: str = "attempt",
        progress: Progress | None = None,
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

        Raises:
            RewardError: An environment fails, or gives no observation to reply to.
        """
        episodes = [RunningEpisode(self, start, step) for start in starts]
        counts = [item.environment.turns if isinstance(item.environment, Counted) else None for item in episodes]
        total = sum(1 if count is None else count for count in counts)
        pool = EpisodePool(open_queue(self.policy), temperature, seed, role)
        try:
            pool.submit(episodes)
            while pool.in_flight:
                pool.collect()
                if progress is not None:
                    pairs = zip(episodes, counts, strict=True)
                    done = sum(item.done if count is None else len(item.turns) for item, count in pairs)
                    progress(done, total)
        finally:
            pool.close()
        return [episode.trajectory(role) for episode in episodes]

    def first_request(self, task: AnyTask) -> SampleRequest:
        """Return the first prompt of a task."""
        return RunningEpisode(self, Start(task, 0)).next_request(0.0, 0, "attempt")


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
    tasks, texts = [trajectory.task for trajectory in unscored], [completion.text for completion in completions]
    scores = environment.score(tasks, texts, **({"completion_ids": ids} if takes_ids else {}))
    rewards = dict(zip(map(id, unscored), scores, strict=True))
    return [
        replace(group, trajectories=tuple(replace(t, reward=rewards.get(id(t), t.reward)) for t in group.trajectories))
        for group in groups
    ]
