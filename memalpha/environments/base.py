"""What an environment is, and where one comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from memalpha.errors import ConfigError, RewardError
from memalpha.types import Reward, TextTask

Prompt = str | Sequence[Mapping[str, str]]
"""What is shown to a policy: a text, or chat messages."""

TOTAL = "reward"
"""The component of an environment that gives a number."""


class Step(NamedTuple):
    """What a reply came to.

    `reward`: a number, or one for each component by name (their sum counts). `observation`, if it was not the last
    reply: a text goes on with the conversation as the user's next message, messages are a prompt of their own.
    """

    reward: float | Mapping[str, float]
    done: bool = True
    observation: Prompt | None = None


@runtime_checkable
class Environment(Protocol):
    """One episode. Rollouts make one for each, from a class or another callable without arguments.

    What is worth 1 in all counts as a success, or what its attribute `maximum` says. A class may have a static method
    `step_together(environments, replies) -> list[Step]`, which is then called in the place of every `step` with the
    episodes of all rollouts that are still going on: so that a judge is asked once for all.
    """

    def reset(self, task: TextTask) -> Prompt:
        """Begin with a task; what is shown first."""
        ...

    def step(self, reply: str) -> Step | tuple[float | Mapping[str, float], bool, Prompt | None]:
        """What the reply came to."""
        ...


class SingleTurn(Protocol):
    """An environment whose only reply is scored afterwards, together with those of other rollouts."""

    def score(self, tasks: Sequence[TextTask], replies: Sequence[str]) -> Sequence[Reward | None]:
        """The reward of each reply; None where nothing can be said of it."""
        ...

    def success(self, reward: Reward) -> float:
        """How far a reward is a success, from 0 to 1."""
        ...


def is_single_turn(environment: object) -> bool:
    """Whether it is a `SingleTurn`."""
    return not inspect.isclass(environment) and callable(getattr(environment, "score", None))


def make_environment(make: Callable[[], Environment]) -> Environment:
    """A new environment. Raises `ConfigError` where it is none."""
    environment = make()
    if not isinstance(environment, Environment):
        raise ConfigError(f"environment: {make!r} gives {type(environment).__name__}, which has no reset and step")
    return environment


def sum_rewards(steps: Sequence[float | Mapping[str, float]], where: str) -> Reward:
    """The reward of an episode: each component summed over its steps, all of it credited to every reply.

    Raises `RewardError` for what is no number.
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
