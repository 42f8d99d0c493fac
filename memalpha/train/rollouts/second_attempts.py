"""Second attempts: a reflection and a rollout for each attempt that is looked at again, all of them in lock-step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memalpha.agent.rollout import Start
from memalpha.config import ERLConfig
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.records import Record
from memalpha.train.data.demonstrations import is_imitable
from memalpha.train.rollouts.base import ReflectionCandidate, RolloutCollector
from memalpha.train.rollouts.reflection import ReflectionMemory, extract_advice, reflection_requests
from memalpha.types import Completion, Reward, Trajectory, TrajectoryGroup, Turn

INTERNALIZED = "internalization"
"""The role of second attempts as they are imitated: under the task's own prompts."""


@dataclass(frozen=True, slots=True)
class SecondAttempt:
    """A second attempt: what came before it, its advice, what it came to (None: nobody can say),
    and what of it is to be internalized."""

    first: ReflectionCandidate
    advice: str
    reflection: Trajectory[Any] | None
    retry: Trajectory[Any]
    accuracy: float | None
    succeeded: bool
    internalized: Trajectory[Any] | None


def run_second_attempts(
    collector: RolloutCollector[Any],
    groups: Sequence[TrajectoryGroup[Any]],
    records: Sequence[Record],
    memory: ReflectionMemory,
    settings: ERLConfig,
    step: int,
) -> list[SecondAttempt]:
    """Second attempts at all tasks of the step; `groups` and `records` are the scored attempts at them.

    Processes do a share of the tasks each, and all get everything. Reflections are one batch, second attempts another.
    """
    config, policy = collector.config, collector.policy
    first, mine = collector.world.shard(groups)
    others = collector.group_records(groups[:first], records)
    before = sum(len(of_one) for of_group in others for of_one in of_group)
    tried = collector.reflection_candidates(mine, records[before:], first, settings)
    carried = feedback = [one.feedback for one in tried]
    replies: list[Completion | None] = [None] * len(tried)
    if settings.enable_reflection:
        earlier = memory.recall(feedback) if settings.enable_memory else [()] * len(tried)
        tokens = settings.reflection_tokens
        heat, seed = config.temperature, config.seed
        replies = [
            *policy.sample(
                reflection_requests(policy, collector.reflection_prompt, tried, earlier, tokens, heat, seed, step)
            )
        ]
        carried = [extract_advice(reply.text) for reply in replies if reply is not None]
    starts = [
        Start(one.attempt.task, one.task_index, one.attempt.rollout, text)
        for one, text in zip(tried, carried, strict=True)
    ]
    retries = collector.sample_retries(starts, step)
    scored, answers = collector.score([TrajectoryGroup(one.task, (one,)) for one in retries])
    found = [
        _build_second_attempt(collector, settings, one, text, reply, group.trajectories[0], of_group[0])
        for one, text, reply, group, of_group in zip(
            tried, carried, replies, scored, collector.group_records(scored, answers), strict=True
        )
    ]
    return collector.world.gather(found)


def _build_second_attempt(
    collector: RolloutCollector[Any],
    settings: ERLConfig,
    tried: ReflectionCandidate,
    advice: str,
    reply: Completion | None,
    retry: Trajectory[Any],
    records: Sequence[Record],
) -> SecondAttempt:
    attempt, reached = tried.attempt, collector.accuracy(retry, records)
    retry = replace(retry, parent=attempt.rollout)
    margin = settings.internalization_margin
    succeeded = reached is not None and reached >= settings.reward_threshold
    better = margin is not None and reached is not None and reached >= tried.accuracy + margin
    reflection = own = None
    if reply is not None and retry.reward is not None:
        value = retry.reward.total
        earned = Reward((value,), {"retry": (value,)}, {"retry": 1.0}, value)
        reflection = replace(
            attempt,
            turns=(Turn(0, reply),),
            states=attempt.states[-1:],
            reward=earned,
            role="reflection",
            parent=attempt.rollout,
        )
    if settings.enable_internalization and (succeeded or better):
        turns = tuple(turn for turn in turns_without_advice(collector, retry) if is_imitable(turn))
        own = replace(retry, turns=turns, reward=None, role=INTERNALIZED) if turns else None
    return SecondAttempt(tried, advice, reflection, retry, reached, succeeded, own)


def turns_without_advice(collector: RolloutCollector[Any], retry: Trajectory[Any]) -> Iterator[Turn]:
    """The turns of a second attempt, ids as sampled, under the prompts that they would have had without advice."""
    policy = collector.policy
    assert isinstance(policy, TransformersPolicy)
    for turn, plain in zip(retry.turns, collector.without_advice(retry), strict=True):
        prompt = tuple(policy.render(plain.messages, plain.tools))
        yield replace(turn, completion=replace(turn.completion, prompt_ids=prompt))


def group_by_role(
    groups: Sequence[TrajectoryGroup[Any]], seconds: Sequence[SecondAttempt]
) -> list[TrajectoryGroup[Any]]:
    """Reflections, then second attempts, then what is internalized; in groups by the place of their task."""
    found = []
    for name in ("reflection", "retry", "internalized"):
        for number, group in enumerate(groups):
            own = [getattr(second, name) for second in seconds if second.first.task_index == number]
            own = tuple(one for one in own if one is not None and (one.reward is not None or name == "internalized"))
            found += [TrajectoryGroup(group.task, own)] if own else []
    return found


def reflection_metrics(groups: Sequence[TrajectoryGroup[Any]], seconds: Sequence[SecondAttempt]) -> dict[str, Any]:
    """Metrics of the step. `retry_*` is of attempts that were told what had been wrong: never a test accuracy.

    `gated`: the share of attempts that were looked at again; `retry_gain`: over those same attempts.
    """
    count = len(seconds)
    reached = [(one.accuracy, one.first.accuracy) for one in seconds if one.accuracy is not None]

    def mean(values: Iterator[float], of: int) -> float | None:
        return sum(values) / of if of else None

    return {
        "gated": count / sum(len(group.trajectories) for group in groups),
        "retry_accuracy": mean((after for after, _ in reached), len(reached)),
        "retry_gain": mean((after - before for after, before in reached), len(reached)),
        "retry_success": mean((float(one.succeeded) for one in seconds if one.accuracy is not None), len(reached)),
        "empty_advice": sum(not second.advice for second in seconds),
        "internalized_rows": sum(len(one.internalized.turns) for one in seconds if one.internalized is not None),
    }
