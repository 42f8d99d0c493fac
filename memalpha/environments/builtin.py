"""Environments of one reply: scored by reward functions, by several of them with weights, or beside a reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from memalpha.environments.base import Step
from memalpha.errors import ConfigError, RewardError
from memalpha.rewards.base import RewardFunction, load_rewards, named, score_texts_or_none
from memalpha.types import Reward, TextTask

Rewards = Iterable[Any] | Callable[..., Any]
"""Reward functions, parts of a configuration (`config.rewards`), or a single one."""


class TextGeneration:
    """A prompt, a reply, a reward: the weighted sum of reward functions (`rewards.base`).

    A reply is a success by the first function that applies to it and has a maximum. Raises `ConfigError` for what is no
    reward function.
    """

    def __init__(self, rewards: Rewards) -> None:
        parts = list(rewards) if isinstance(rewards, Iterable) else [rewards]
        self.rewards: list[RewardFunction] = load_rewards(parts)
        self._task: TextTask | None = None

    def reset(self, task: TextTask) -> str | tuple[dict[str, str], ...]:
        """The task's own prompt."""
        self._task = task
        return task.prompt

    def step(self, reply: str) -> Step:
        """The reply's weighted components; it is the last. Raises `RewardError` before `reset`."""
        if self._task is None:
            raise RewardError("step before reset: give the environment a task first")
        [reward] = self.score([self._task], [reply])
        if reward is None:
            raise RewardError(f"task {self._task.id!r}: no reward function applies to the reply")
        return Step({name: reward.weights[name] * value for name, (value,) in reward.components.items()})

    def score(self, tasks: Sequence[TextTask], replies: Sequence[str]) -> list[Reward | None]:
        """All replies at once: a function is called once, async ones run side by side. None where none applies."""
        needed = [column for function in self.rewards for column in function.columns]
        columns = columns_of(tasks, needed)
        return score_texts_or_none(self.rewards, [prompt_of(task) for task in tasks], replies, columns)

    @property
    def has_maximum(self) -> bool:
        """Whether a reply can be a success: some function has a maximum that can be reached."""
        return any(isfinite(function.maximum) for function in self.rewards)

    def success(self, reward: Reward) -> float:
        """The first component that there is, as a share of its function's maximum; one without a maximum, such as a
        reward model's, says nothing here."""
        for function in self.rewards:
            if function.name in reward.components and isfinite(function.maximum):
                value = sum(reward.components[function.name])
                most = function.maximum
                return min(1.0, max(0.0, value / most)) if most > 0 else float(value >= most)
        return 0.0


class MultiObjective(TextGeneration):
    """Several objectives by name, each visible in `Reward.components`; `weights` by name, 1 where it names none.

    Raises `ConfigError` for a weight of something else.
    """

    def __init__(
        self, components: Mapping[str, Callable[..., Any]], weights: Mapping[str, float] | None = None
    ) -> None:
        weights = dict(weights or {})
        if unknown := sorted(set(weights) - set(components)):
            raise ConfigError(f"weights: {unknown[0]!r} is none of {', '.join(components)}")
        super().__init__([named(function, name, weights.get(name, 1.0)) for name, function in components.items()])


class PreferenceComparison(TextGeneration):
    """The reward is whether the reply is preferred to a reference: the task's column `reference`.

    `judge` is asked in both orders, so that no place wins: `judge(prompts, pairs)` gives for each pair of texts which
    is better, 0 or 1, or -1 where it cannot say (as TRL's pairwise judges do, which can be given as they are); it may
    be async. 1 and 0 where both orders agree, 0.5 where they do not. A reply without any verdict has no reward: a judge
    that says nothing has not called it bad.
    """

    def __init__(self, judge: Any, reference: str = "answer", name: str = "preferred") -> None:
        ask = getattr(judge, "judge", judge)
        if not callable(ask):
            raise ConfigError(f"judge: {judge!r} is not callable, and has no method judge")
        parameters = None if inspect.isbuiltin(ask) else inspect.signature(ask).parameters
        kwargs = {"shuffle_order": False} if parameters is not None and "shuffle_order" in parameters else {}

        def prepare(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> Any:
            replies = [_text(completion) for completion in completions]
            references = [
                None if reference_text is None else str(reference_text) for reference_text in columns[reference]
            ]
            rows = [row for row, text in enumerate(references) if text is not None]
            pairs = [[replies[row], references[row]] for row in rows]
            both_orders = pairs + [pair[::-1] for pair in pairs]
            texts = [_text(prompts[row]) for row in rows] * 2
            return rows, len(replies), ask(texts, both_orders, **kwargs) if rows else []

        if inspect.iscoroutinefunction(ask):

            async def score_async(
                prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
            ) -> list[float | None]:
                rows, count, verdicts = prepare(prompts, completions, columns)
                return _preferences(rows, count, await verdicts if rows else [])

            super().__init__([RewardFunction(name, score_async, columns=(reference,))])
            return

        def score(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            return _preferences(*prepare(prompts, completions, columns))

        super().__init__([RewardFunction(name, score, columns=(reference,))])


def _preferences(rows: Sequence[int], count: int, verdicts: Sequence[Any]) -> list[float | None]:
    """The share of a reply's orders in which it is preferred; None where there is no verdict."""
    verdicts = list(verdicts)
    if len(verdicts) != 2 * len(rows) or any(verdict not in (0, 1, -1, None) for verdict in verdicts):
        raise RewardError(f"the judge gave {verdicts!r} for {2 * len(rows)} pairs: 0, 1 or -1 for each is needed")
    shares: list[float | None] = [None] * count
    for index, row in enumerate(rows):
        wins = [float(verdicts[index] == 0)] if verdicts[index] in (0, 1) else []
        swapped = verdicts[index + len(rows)]
        wins += [float(swapped == 1)] if swapped in (0, 1) else []
        shares[row] = sum(wins) / len(wins) if wins else None
    return shares


def math_environment(*, weight: float = 1.0, also: Iterable[Any] = ()) -> TextGeneration:
    """Replies whose last number, or what is boxed, is compared with the column `answer` (`rewards.maths`); `also` are
    further reward functions."""
    return TextGeneration([_part({"kind": "math", "weight": weight}), *also])


def code_environment(*, weight: float = 1.0, also: Iterable[Any] = (), **settings: Any) -> TextGeneration:
    """Programs run against the column `tests` in a sandbox (`rewards.code`); `settings` are its configuration's.

    Raises `ConfigError` where this machine has no sandbox.
    """
    return TextGeneration([_part({"kind": "code", "weight": weight, **settings}), *also])


def _part(settings: Mapping[str, Any]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    from memalpha.config.rewards import RewardPart

    try:
        return TypeAdapter(RewardPart).validate_python(dict(settings))
    except ValidationError as error:
        raise ConfigError(f"{settings['kind']}: " + "; ".join(item["msg"] for item in error.errors())) from error


def prompt_of(task: TextTask) -> str | list[dict[str, str]]:
    """The prompt as reward functions get it."""
    return task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]


def columns_of(tasks: Sequence[TextTask], also: Iterable[str] = ()) -> dict[str, list[Any]]:
    """The columns of some tasks, and those `also` asked for, each a list; None where a task has no such column."""
    names = dict.fromkeys([*(name for task in tasks for name in task.columns), *also])
    return {name: [task.columns.get(name) for task in tasks] for name in names}


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
