"""Environments of one reply: reward functions, weighted objectives, or comparison with a reference.

`load_rewards` builds the reward functions from the parts of a configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memalpha.config.common import import_object
from memalpha.config.files import format_problem
from memalpha.config.rewards import (
    CodePart,
    FormatPart,
    JudgePart,
    MathPart,
    ModelPart,
    PythonPart,
    RewardPart,
    SchemaPart,
)
from memalpha.environments.engine import Step
from memalpha.errors import ConfigError, RewardError
from memalpha.rewards.base import CompletionJudge, RewardFunction, check_names, named, score_texts_or_none
from memalpha.rewards.code import CodeReward
from memalpha.rewards.format import FormatReward, SchemaReward
from memalpha.rewards.judge import JudgeReward, ModelReward
from memalpha.rewards.math import MathReward
from memalpha.rewards.sandbox import Limits
from memalpha.types import Reward, TextTask

Rewards = Iterable[Any] | Callable[..., Any]
"""Reward functions, parts of a configuration (`config.rewards`), or a single one of them."""


def load_rewards(
    parts: Iterable[RewardPart | Mapping[str, Any] | RewardFunction | Callable[..., Any]],
) -> list[RewardFunction]:
    """Build reward functions from the parts of a configuration, callables or `RewardFunction` objects.

    A part may be a mapping, as YAML has it: `{"kind": "math", "weight": 0.5}`.

    Libraries, judges' keys and the sandbox are checked here, before a run starts.

    Raises:
        ConfigError: The list is empty, a part cannot be built, or two parts have the same name.
    """
    functions = [_load(part, f"rewards.{number}") for number, part in enumerate(parts)]
    if not functions:
        raise ConfigError("rewards: empty; a text run needs at least one part, for example {kind: math}")
    check_names(functions)
    return functions


def read_part(part: Any, location: str) -> Any:
    """Return a part of a configuration for a mapping as YAML has it; leave anything else as it is.

    Args:
        part: Mapping, or what needs no reading.
        location: Where the part stands, for messages.

    Raises:
        ConfigError: The mapping is no part; names location and setting.
    """
    if not isinstance(part, Mapping):
        return part
    try:
        return TypeAdapter(RewardPart).validate_python(dict(part))
    except ValidationError as error:
        problems: list[dict[str, Any]] = [dict(item) for item in error.errors()]
        details = [(".".join(map(str, item["loc"][1:])), format_problem(item)) for item in problems]  # loc[0]: the kind
        problem = "; ".join(f"{name}: {message}" if name else message for name, message in details)
        raise ConfigError(f"{location}: {problem}") from error


def _load(part: Any, location: str) -> RewardFunction:
    part = read_part(part, location)
    try:
        match part:
            case MathPart():
                reward: Any = MathReward(part.column)
            case CodePart():
                limits = Limits(part.seconds, part.megabytes)
                reward = CodeReward(part.column, score=part.score, limits=limits, concurrency=part.concurrency)
            case FormatPart():
                reward = FormatReward(part.pattern, part.match)
            case SchemaPart():
                reward = SchemaReward(part.json_schema)
            case JudgePart():
                reward = JudgeReward(part.judge, part.template, part.scale)
            case PythonPart():
                reward = import_object(part.function, "function")
                try:
                    if inspect.isclass(reward):
                        reward = reward(**part.arguments)
                    elif part.arguments:
                        reward = partial(reward, **part.arguments)
                except TypeError as error:
                    message = f"arguments: {part.function!r} does not take {part.arguments} ({error})"
                    raise ConfigError(message) from error
            case ModelPart():
                reward = ModelReward(part.path, part.device, part.chat)
            case _:
                return named(part)
        return named(reward, part.name, part.weight)
    except ConfigError as error:
        raise ConfigError(f"{location}: {error}") from error


class TextGeneration:
    """Score one reply by the weighted sum of reward functions (`rewards.base`).

    The first function that applies and has a finite maximum decides whether a reply is a success.

    Args:
        rewards: Reward functions, parts of a configuration, or a single one of them.

    Raises:
        ConfigError: A reward function cannot be built.
    """

    def __init__(self, rewards: Rewards) -> None:
        parts = list(rewards) if isinstance(rewards, Iterable) else [rewards]
        self.rewards: list[RewardFunction] = load_rewards(parts)
        self._task: TextTask | None = None

    def reset(self, task: TextTask) -> str | tuple[dict[str, str], ...]:
        """Return the task's own prompt."""
        self._task = task
        return task.prompt

    def step(self, reply: str) -> Step:
        """Return the reply's weighted components as the last step; raise `RewardError` before `reset`."""
        if self._task is None:
            raise RewardError("step before reset: give the environment a task first")
        [reward] = self.score([self._task], [reply])
        if reward is None:
            raise RewardError(f"task {self._task.id!r}: no reward function applies to the reply")
        return Step({name: reward.weights[name] * value for name, (value,) in reward.components.items()})

    def score(
        self, tasks: Sequence[TextTask], replies: Sequence[str], completion_ids: Sequence[Sequence[int]] | None = None
    ) -> list[Reward | None]:
        """Score all replies in one batch; None for a reply to which no function applies.

        Args:
            tasks: Task of each reply.
            replies: Texts of the replies.
            completion_ids: Their token ids, which functions may ask for; None if they are not known.
        """
        needed = [column for function in self.rewards for column in function.columns if column != "completion_ids"]
        columns = columns_of(tasks, needed)
        if completion_ids is not None:
            columns["completion_ids"] = [list(ids) for ids in completion_ids]
        return score_texts_or_none(self.rewards, [prompt_of(task) for task in tasks], replies, columns)

    def success(self, reward: Reward) -> float:
        """Return the first applicable component as a share of its function's maximum, in [0, 1].

        Components without a finite maximum, such as a reward model's score, are skipped.
        """
        for function in self.rewards:
            if function.name in reward.components and isfinite(function.maximum):
                value = sum(reward.components[function.name])
                most = function.maximum
                return min(1.0, max(0.0, value / most)) if most > 0 else float(value >= most)
        return 0.0


class MultiObjective(TextGeneration):
    """Score one reply by named objectives, each visible in `Reward.components`.

    Args:
        components: Reward functions by name.
        weights: Weights by name (default: 1 each).

    Raises:
        ConfigError: A weight names no component.
    """

    def __init__(
        self, components: Mapping[str, Callable[..., Any]], weights: Mapping[str, float] | None = None
    ) -> None:
        weights = dict(weights or {})
        if unknown := sorted(set(weights) - set(components)):
            raise ConfigError(f"weights: {unknown[0]!r} is none of {', '.join(components)}")
        super().__init__([named(function, name, weights.get(name, 1.0)) for name, function in components.items()])


class PreferenceComparison(TextGeneration):
    """Score whether a judge prefers the reply to a reference text.

    The judge sees both orders to cancel position bias. The reward is 1 or 0 if both orders agree, else 0.5. A reply
    without any verdict has no reward.

    Args:
        judge: `judge(prompts, pairs)` returns for each pair of texts the index of the better one, or -1 if undecided.
            It may be async. Pairwise judges of TRL work as they are.
        reference: Column with the reference text.
        name: Name of the reward component.
    """

    def __init__(self, judge: Any, reference: str = "answer", name: str = "preferred") -> None:
        ask = judge.judge if isinstance(judge, CompletionJudge) else judge
        if not callable(ask):
            raise ConfigError(f"judge: {judge!r} is not callable, and has no method judge")
        parameters = {} if inspect.isbuiltin(ask) else inspect.signature(ask).parameters
        self._ask = partial(ask, shuffle_order=False) if "shuffle_order" in parameters else ask
        self._reference = reference
        super().__init__([RewardFunction(name, self._compare, columns=(reference,))])

    def _compare(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """Return each reply's preference; awaitable if the judge is async."""
        references = columns[self._reference]
        rows = [row for row, text in enumerate(references) if text is not None]
        pairs = [[_text(completions[row]), str(references[row])] for row in rows]
        verdicts: Any = []
        if rows:
            verdicts = self._ask([_text(prompts[row]) for row in rows] * 2, pairs + [pair[::-1] for pair in pairs])

        def preferences(verdicts: Sequence[Any]) -> list[float | None]:
            """Return the share of orders in which each reply is preferred; None without a verdict."""
            verdicts = list(verdicts)
            if len(verdicts) != 2 * len(rows) or any(verdict not in (0, 1, -1, None) for verdict in verdicts):
                raise RewardError(
                    f"the judge gave {verdicts!r} for {2 * len(rows)} pairs: 0, 1 or -1 for each is needed"
                )
            shares: list[float | None] = [None] * len(completions)
            for row, *both in zip(rows, verdicts[: len(rows)], verdicts[len(rows) :], strict=True):
                wins = [float(verdict == order) for order, verdict in enumerate(both) if verdict in (0, 1)]
                shares[row] = sum(wins) / len(wins) if wins else None
            return shares

        async def finish() -> list[float | None]:
            return preferences(await verdicts)

        return finish() if inspect.isawaitable(verdicts) else preferences(verdicts)


def math_environment(*, weight: float = 1.0, also: Iterable[Any] = ()) -> TextGeneration:
    """Build an environment that compares each reply's answer with the column `answer` (`rewards.math`).

    Args:
        weight: Weight of the comparison.
        also: Further reward functions.
    """
    return TextGeneration([{"kind": "math", "weight": weight}, *also])


def code_environment(*, weight: float = 1.0, also: Iterable[Any] = (), **settings: Any) -> TextGeneration:
    """Build an environment that runs programs against the column `tests` in a sandbox (`rewards.code`).

    Args:
        weight: Weight of the tests.
        also: Further reward functions.
        settings: Settings of `config.rewards.CodePart`.

    Raises:
        ConfigError: This machine has no sandbox.
    """
    return TextGeneration([{"kind": "code", "weight": weight, **settings}, *also])


def prompt_of(task: TextTask) -> str | list[dict[str, str]]:
    """Return the prompt in the form that reward functions get."""
    return task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]


def columns_of(tasks: Sequence[TextTask], also: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return the columns of tasks and those in `also` as lists, None for missing values."""
    names = dict.fromkeys([*(name for task in tasks for name in task.columns), *also])
    return {name: [task.columns.get(name) for task in tasks] for name in names}


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
