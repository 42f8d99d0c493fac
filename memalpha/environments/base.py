"""Protocols of environments, their construction, and the sum of their rewards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from memalpha.errors import ConfigError, RewardError
from memalpha.types import Reward, TextTask

Prompt = str | Sequence[Mapping[str, str]]
"""Input of a policy: a text, or chat messages."""

TOTAL = "reward"
"""Component name of a reward that is a plain number."""


class Step(NamedTuple):
    """Result of a reply.

    Attributes:
        reward: A number, or numbers by component name, which are summed.
        done: True if the episode ends with this reply.
        observation: Next prompt unless done. A text continues the conversation as a user message; messages replace it.
    """

    reward: float | Mapping[str, float]
    done: bool = True
    observation: Prompt | None = None


@runtime_checkable
class Environment(Protocol):
    """One episode of one rollout, made by a class or another callable without arguments.

    A total reward of 1 is a success, or the attribute `maximum` if there is one. A class may have a static method
    `step_together(environments, replies) -> list[Step]`. It replaces `step` for all episodes that are still running, so
    that a judge can be called once for all.
    """

    def reset(self, task: TextTask) -> Prompt:
        """Start an episode of the task and return its first observation."""
        ...

    def step(self, reply: str) -> Step | tuple[float | Mapping[str, float], bool, Prompt | None]:
        """Return the result of a reply."""
        ...


class SingleTurn(Protocol):
    """An environment of one reply, scored afterwards in a batch with other rollouts."""

    def score(self, tasks: Sequence[TextTask], replies: Sequence[str]) -> Sequence[Reward | None]:
        """Return the reward of each reply, None if it is unscored."""
        ...

    def success(self, reward: Reward) -> float:
        """Return the degree of success of a reward, from 0 to 1."""
        ...


def is_single_turn(environment: object) -> bool:
    """Return True if the object is a `SingleTurn` instance."""
    return not inspect.isclass(environment) and callable(getattr(environment, "score", None))


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
