"""Protocol of environments, their construction, and the sum of their rewards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from memalpha.errors import ConfigError, RewardError
from memalpha.types import Operation, Reward, SampleRequest, ToolCall, ToolResult

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


def make_environment(make: Callable[[], Environment]) -> Environment:
    """Create an environment; raise `ConfigError` if it lacks `reset` or `step`."""
    environment = make()
    if not isinstance(environment, Environment):
        raise ConfigError(f"environment: {make!r} gives {type(environment).__name__}, which has no reset and step")
    return environment


def sum_rewards(steps: Sequence[float | Mapping[str, float]], where: str) -> Reward:
    """Sum each component over an episode's steps and credit the total to every reply.

    Raises:
        RewardError: A reward is no number, or the total is not finite. The message starts with `where`.
    """
    totals: dict[str, float] = {}
    for reward in steps:
        for name, value in (reward if isinstance(reward, Mapping) else {TOTAL: reward}).items():
            try:
                totals[str(name)] = totals.get(str(name), 0.0) + float(value)
            except (TypeError, ValueError) as error:
                raise RewardError(f"{where}: reward {name!r} is {value!r}: a number is needed") from error
    total = sum(totals.values())
    if total != total or total in (float("inf"), float("-inf")):
        raise RewardError(f"{where}: its reward is {total}: a finite number is needed")
    count = len(steps)
    return Reward(
        turns=(total,) * count,
        components={name: (value,) * count for name, value in totals.items()},
        weights=dict.fromkeys(totals, 1.0),
        total=total,
        shared=frozenset(totals),
    )
