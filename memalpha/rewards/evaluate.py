"""Scoring and evaluation of text tasks: greedy replies, accuracy by category, and rewards by component."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Any, SupportsFloat

from memalpha.arguments import check_count, check_function, check_items, check_type
from memalpha.environments.engine import (
    MAX_TURNS,
    Bounded,
    RolloutEngine,
    check_environment,
    is_single_turn,
    make_environment,
    score_replies,
)
from memalpha.errors import ConfigError, DataError, RewardError
from memalpha.policy.base import Policy
from memalpha.qa.evaluate import Evaluator, RolloutScorer, ScoredGroups
from memalpha.qa.report import Record, Report, accuracy_by_ability, accuracy_of
from memalpha.qa.scoring.stats import mean
from memalpha.rewards.base import check_columns, close_loop
from memalpha.rewards.environments import TextGeneration, columns_of
from memalpha.types import Reward, TextTask, Trajectory, TrajectoryGroup

NO_CATEGORY = "none"


class TextScorer(RolloutScorer[TextTask]):
    """Scores replies to text tasks: one record per trajectory that has a reward.

    Args:
        environment: Environment of the rollouts (see `environments.RolloutEngine`). A `SingleTurn` object scores the
            replies in one batch; any other has given its rewards already.

    Raises:
        ConfigError: The environment would be shared, makes none, or has a `maximum` that is not above 0.
    """

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self._maximum = 1.0
        if not is_single_turn(environment):
            check_environment(environment)
            example = make_environment(environment)
            maximum = example.maximum if isinstance(example, Bounded) else 1.0
            self._maximum = float(maximum) if isinstance(maximum, SupportsFloat) else 0.0
            if not self._maximum > 0:
                raise ConfigError(f"environment: maximum {maximum!r}: the reward of a success is above 0")

    def score(self, groups: Sequence[TrajectoryGroup[TextTask]]) -> ScoredGroups[TextTask]:
        """Return the groups with rewards, and a record of each scored trajectory."""
        scored = score_replies(self.environment, groups)
        trajectories = [trajectory for group in scored for trajectory in group.trajectories]
        return scored, [self._record(trajectory, trajectory.reward) for trajectory in trajectories if trajectory.reward]

    def group_records(
        self, groups: Sequence[TrajectoryGroup[TextTask]], records: Sequence[Record]
    ) -> list[list[list[Record]]]:
        """Group records as [group][trajectory][record]; a trajectory without a reward has no record."""
        remaining = iter(records)
        return [
            [[next(remaining)] if trajectory.reward else [] for trajectory in group.trajectories] for group in groups
        ]

    def accuracy(self, trajectory: Trajectory[TextTask], records: Sequence[Record] = ()) -> float | None:
        """Return how far the rollout is a success; None without a reward."""
        return None if trajectory.reward is None else self.success(trajectory.reward)

    def success(self, reward: Reward) -> float:
        """Return the degree of success of an episode's reward, from 0 to 1."""
        if is_single_turn(self.environment):
            return self.environment.success(reward)
        return min(1.0, max(0.0, reward.total / self._maximum))

    @property
    def can_succeed(self) -> bool:
        """True if the environment's rewards say what a success is."""
        environment = self.environment
        return not isinstance(environment, TextGeneration) or any(
            isfinite(part.maximum) for part in environment.rewards
        )

    def cancel(self) -> None:
        """End the reward functions that another thread awaits."""
        close_loop()

    def report(self, name: str, groups: Sequence[TrajectoryGroup[TextTask]], records: Sequence[Record]) -> Report:
        """Return the report of scored groups; the environment names the metric.

        Args:
            name: Name of the evaluated policy.
            groups: Scored groups.
            records: Their records, in the same order.
        """
        if isinstance(self.environment, TextGeneration):
            metric = " + ".join(f"{function.weight:g} {function.name}" for function in self.environment.rewards)
        else:
            is_named = inspect.isroutine(self.environment) or inspect.isclass(self.environment)
            metric = (self.environment if is_named else type(self.environment)).__name__
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        return Report(name, {"task": "text", "metric": metric, **text_summary(records, trajectories)}, tuple(records))

    def _record(self, trajectory: Trajectory[TextTask], reward: Reward) -> Record:
        task = trajectory.task
        answer = task.columns.get("answer")
        return Record(
            task=task.id,
            rollout=trajectory.rollout,
            question_id=task.id,
            ability=task.category or NO_CATEGORY,
            kind=None,
            question=task.text,
            answer=trajectory.turns[-1].completion.text,
            gold=() if answer is None else (str(answer),),
            score=reward.total,
            correct=self.success(reward) >= 1.0,
            scores={name: values[0] for name, values in reward.components.items()},
        )


def evaluate_text(
    policy: Policy,
    tasks: Sequence[TextTask],
    rewards: Any = None,
    *,
    environment: Any = None,
    system_prompt: str | None = None,
    max_new_tokens: int = 256,
    thinking_tokens: int = 0,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    max_turns: int = MAX_TURNS,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Reply to every task once, greedily, and score the replies.

    A reply is correct if it gets the maximum of the first reward that applies. Replies to which none applies count as
    `unscored` only.

    Args:
        policy: Policy that replies.
        tasks: Tasks with distinct ids, at least one.
        rewards: Reward functions or parts of a configuration.
        environment: Environment instead of `rewards` (see `environments.RolloutEngine`).
        system_prompt: System message of tasks that have none.
        max_new_tokens: Tokens of a reply.
        thinking_tokens: Budget of thoughts before a reply; 0 turns thinking off.
        chat_template_kwargs: Further arguments of the chat template.
        max_turns: Replies of a conversation, at most.
        name: Name in the report (default: the policy's).
        progress: Called with (ended, all) tasks.

    Raises:
        DataError: There are no tasks, or two have the same id.
        ConfigError: Not exactly one of `rewards` and `environment` is given, or a reward needs a missing column.
    """
    check_type("policy", policy, Policy, error=ConfigError)
    tasks = check_items("tasks", tasks, of="tasks", error=DataError)
    for task in tasks:
        check_type("tasks", task, TextTask, error=DataError)
    check_type("system_prompt", system_prompt, (str, NoneType), error=ConfigError)
    check_type("chat_template_kwargs", chat_template_kwargs, (Mapping, NoneType), error=ConfigError)
    check_type("name", name, (str, NoneType), error=ConfigError)
    check_count("max_new_tokens", max_new_tokens, error=ConfigError)
    check_count("thinking_tokens", thinking_tokens, error=ConfigError)
    check_count("max_turns", max_turns, error=ConfigError)
    if progress is not None:
        check_function("progress", progress, error=ConfigError)
    if (rewards is None) == (environment is None):
        raise ConfigError("rewards: give reward functions, or an environment in their place")
    environment = TextGeneration(rewards) if environment is None else environment
    if not tasks:
        raise DataError("nothing to evaluate: there are no tasks")
    check_ids(tasks, "tasks")
    check_rewards(tasks, environment)
    engine = RolloutEngine[TextTask](
        policy,
        environment,
        system_prompt=system_prompt,
        max_new_tokens=max_new_tokens,
        thinking_tokens=thinking_tokens,
        chat_template_kwargs=chat_template_kwargs,
        max_turns=max_turns,
    )
    return Evaluator(engine, TextScorer(environment)).evaluate(name or policy.name, tasks, progress=progress)


def check_ids(tasks: Sequence[TextTask], source: str) -> None:
    """Raise `DataError`, which names the source of the tasks, if two have the same id."""
    for id, count in Counter(task.id for task in tasks).items():
        if count > 1:
            raise DataError(f"{source}: two tasks have the id {id!r}: ids must differ")


def check_rewards(tasks: Sequence[TextTask], environment: Any) -> None:
    """Raise `ConfigError` if a reward function needs a column that no task has."""
    if isinstance(environment, TextGeneration):
        check_columns(environment.rewards, columns_of(tasks))


def text_summary(records: Sequence[Record], trajectories: Sequence[Trajectory[TextTask]]) -> dict[str, Any]:
    """Summarize trajectories and the records of those that are scored.

    Returns:
        `accuracy`: share of correct replies; `se`: its standard error over tasks. `reward`: mean total. `rewards`:
        unweighted mean of each component where it applies. `unscored`: number of trajectories without a reward.
        `reply_tokens`: mean sampled tokens of a trajectory, None if the policy does not record them. `truncated`: share
        of replies that were cut off.

    Raises:
        RewardError: No trajectory is scored.
    """
    unscored = len(trajectories) - len(records)
    if not records:
        raise RewardError(
            f"no reward function applies to any of {unscored} replies, or none of its judges gave a readable grade"
        )
    names = dict.fromkeys(name for record in records for name in record.scores)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sampled = sum(len(turn.completion.completion_ids) for turn in turns)
    return {
        **accuracy_of(records),
        "score": mean([record.score for record in records]),
        "reward": mean([trajectory.reward.total for trajectory in trajectories if trajectory.reward is not None]),
        "unscored": unscored,
        "rewards": {name: mean([r.scores[name] for r in records if name in r.scores]) for name in names},
        "reply_tokens": sampled / len(trajectories) if sampled else None,
        "turns": len(turns) / len(trajectories),
        "truncated": sum(turn.completion.stop_reason == "length" for turn in turns) / len(turns),
        "by_ability": accuracy_by_ability(records),
    }
