"""ERL: experiential reinforcement learning (2026, arXiv 2602.13949): attempt, reflect, retry, internalize.

A step samples everything with its first weights. Every task gets attempts with reward r1. Each gated attempt gets a
reflection from the evaluator's feedback and earlier advice (`rollouts.reflection`). A second attempt at the whole task
then sees only that advice and earns r2; so does the reflection. Advice that helped enters one bounded memory for all
tasks, part of `state`.

    L = L_GRPO(attempts with r1, reflections with r2, second attempts with r2: one mean over the rows of all three)
        - coef E_attempts[ 1(the second attempt succeeded) log pi(second attempt | the task's own prompts) ]

Groups are by task and role, baselines over rollouts; a group of one has no advantage. The last term (internalization)
is the cross-entropy of the second attempt's sampled ids. Its prompts are rendered again without the advice, but with
the memory that the second attempt had written by then. Turns that were cut off or had a failed call are skipped. The
term's weights carry the share of attempts, so the mean over its rows becomes the mean over all attempts
(`learner.engine`).

`erl.algorithm=1` reflects on every attempt, scales over the whole step (`scale_rewards=batch`) and does one update. `2`
reflects on failed attempts only, scales within groups, and internalizes in an update of its own.

Deviations from the paper and its code:

* Success is accuracy of at least `erl.reward_threshold` (reason: `rollouts.reflection`).
* Advice is kept if the second attempt was better than the first. The paper keeps it on success
  (`erl.keep_advice=success`), also where the first attempt had succeeded or had done better.
* A task's prompt is a whole conversation, so a reflection sees the attempt's memory and the feedback. The compact style
  of the shipped policies omits that memory, the retrieved passages and the error class (`qa.error_analysis.feedback`).
* The advantage of a group of one is 0 (the paper's code keeps the raw reward).
* Ids and old log-probs are the sampler's, internalized ids too (the paper's code tokenizes again).
* `erl.enable_reflection=false` gives the feedback itself to the second attempt instead of advice.

Second attempts have seen the feedback: their scores are training metrics (`retry_*`) only. Validation and evaluation
use first attempts, without advice and reflection memory.

Second attempts (ERL): a reflection and a retry for each attempt that is reflected on, sampled in two batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memalpha.config import ERLSettings, ReinforcementConfig
from memalpha.environments.engine import Start
from memalpha.errors import ConfigError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.report import Record
from memalpha.train.algorithms.base import Scorer, build_rows
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.data.samples import TrainingSample, is_imitable
from memalpha.train.rollouts.reflection import (
    Reflecting,
    ReflectionCandidate,
    ReflectionMemory,
    extract_advice,
    reflection_requests,
)
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import Completion, Reward, Trajectory, TrajectoryGroup, Turn

INTERNALIZED = "internalization"
"""Role of second attempts as they are imitated: with the task's own prompts."""


@dataclass(frozen=True, slots=True)
class SecondAttempt:
    """Hold a retry after reflection.

    Attributes:
        first: The failed attempt.
        advice: Advice that the retry got.
        reflection: The sampled reflection, with the retry's reward; None without one.
        retry: The retry.
        accuracy: Its accuracy in [0, 1]; None if unscored.
        succeeded: True if the accuracy reaches `reward_threshold`.
        internalized: Turns to imitate without advice; None if there are none.
    """

    first: ReflectionCandidate
    advice: str
    reflection: Trajectory[Any] | None
    retry: Trajectory[Any]
    accuracy: float | None
    succeeded: bool
    internalized: Trajectory[Any] | None


def run_second_attempts(
    worker: RolloutWorker[Any],
    groups: Sequence[TrajectoryGroup[Any]],
    records: Sequence[Record],
    memory: ReflectionMemory,
    settings: ERLSettings,
    step: int,
) -> list[SecondAttempt]:
    """Reflect on the step's attempts and retry them. Each process handles a shard of the tasks; all get all results.

    Reflections are one batch, retries another.

    Args:
        worker: Samples and scores retries.
        groups: Scored attempts of the step.
        records: Their records, in the same order.
        memory: Advice that helped earlier; only read here.
        settings: Thresholds, budgets and what is enabled.
        step: Step number; keys the sampling noise.
    """
    config, policy, reflecting = worker.config, worker.policy, _reflecting_of(worker)
    tokens, temperature = settings.reflection_tokens, config.sampling.temperature
    first, shard = worker.world.shard(groups)
    records_of_shard = worker.scorer.group_records(groups, records)[first : first + len(shard)]
    candidates = reflecting.candidates(shard, records_of_shard, first, settings)
    advice = feedback = [candidate.feedback for candidate in candidates]
    replies: list[Completion | None] = [None] * len(candidates)
    if settings.enable_reflection:
        earlier = memory.recall(feedback) if settings.enable_memory else [()] * len(candidates)
        requests = reflection_requests(
            policy, reflecting.prompt, candidates, earlier, tokens, temperature, config.seed, step
        )
        replies = [*policy.sample(requests)]
        advice = [extract_advice(reply.text) for reply in replies if reply is not None]
    starts = [
        Start(candidate.attempt.task, candidate.task_index, candidate.attempt.rollout, text)
        for candidate, text in zip(candidates, advice, strict=True)
    ]
    retries = worker.engine.run(starts, temperature, config.seed, step, role="retry")
    scored, retry_records = worker.score([TrajectoryGroup(retry.task, (retry,)) for retry in retries])
    answers = worker.scorer.group_records(scored, retry_records)
    second_attempts = []
    for first_try, text, reply, group, of_group in zip(candidates, advice, replies, scored, answers, strict=True):
        attempt, accuracy = first_try.attempt, worker.scorer.accuracy(group.trajectories[0], of_group[0])
        retry = replace(group.trajectories[0], parent=attempt.rollout)
        succeeded = accuracy is not None and accuracy >= settings.reward_threshold
        reflection = internalized = None
        if reply is not None and retry.reward is not None:
            value = retry.reward.total
            reward = Reward((value,), {"retry": (value,)}, {"retry": 1.0}, value)
            made = {"turns": (Turn(0, reply),), "states": attempt.states[-1:], "reward": reward}
            reflection = replace(attempt, **made, role="reflection", parent=attempt.rollout)
        if settings.enable_internalization and succeeded:
            assert isinstance(policy, TransformersPolicy)
            prompts = [tuple(policy.render(item.messages, item.tools)) for item in reflecting.without_advice(retry)]
            turns = tuple(
                replace(turn, completion=replace(turn.completion, prompt_ids=prompt))  # the ids stay as sampled
                for turn, prompt in zip(retry.turns, prompts, strict=True)
                if is_imitable(turn)
            )
            internalized = replace(retry, turns=turns, reward=None, role=INTERNALIZED) if turns else None
        second_attempts.append(SecondAttempt(first_try, text, reflection, retry, accuracy, succeeded, internalized))
    return worker.world.gather(second_attempts)


def _reflecting_of(worker: RolloutWorker[Any]) -> Reflecting[Any]:
    """Return how the worker's attempts are reflected on; raise `ConfigError` if they cannot be."""
    if worker.reflecting is None:
        raise ConfigError("algorithm: erl reflects on attempts: give the worker a `reflecting`")
    return worker.reflecting


def group_by_role(
    groups: Sequence[TrajectoryGroup[Any]], seconds: Sequence[SecondAttempt]
) -> list[TrajectoryGroup[Any]]:
    """Return reflections, then retries, then what is internalized; each in groups by the index of their task."""
    role_groups = []
    for field in ("reflection", "retry", "internalized"):
        for task_index, group in enumerate(groups):
            trajectories = [getattr(second, field) for second in seconds if second.first.task_index == task_index]
            kept = tuple(item for item in trajectories if item and (item.reward or field == "internalized"))
            role_groups += [TrajectoryGroup(group.task, kept)] if kept else []
    return role_groups


def reflection_metrics(groups: Sequence[TrajectoryGroup[Any]], seconds: Sequence[SecondAttempt]) -> dict[str, Any]:
    """Return metrics of the step.

    `retry_*` covers attempts that saw feedback, so it is never a test accuracy. `gated` is the share of attempts that
    were reflected on; `retry_gain` averages over those.
    """
    scored = [(s.accuracy, s.first.accuracy, s.succeeded) for s in seconds if s.accuracy is not None]
    count = len(scored)
    return {
        "gated": len(seconds) / sum(len(group.trajectories) for group in groups),
        "retry_accuracy": sum(after for after, _, _ in scored) / count if count else None,
        "retry_gain": sum(after - before for after, before, _ in scored) / count if count else None,
        "retry_success": sum(float(succeeded) for _, _, succeeded in scored) / count if count else None,
        "empty_advice": sum(not second.advice for second in seconds),
        "internalized_rows": sum(len(second.internalized.turns) for second in seconds if second.internalized),
    }


class ERL(GRPO):
    """GRPO on attempts, reflections and second attempts; the state is the reflection memory."""

    def __init__(self, config: ReinforcementConfig) -> None:
        super().__init__(config)
        self.settings = config.erl or ERLSettings()
        self.state: dict[str, Any] = {"reflections": []}
        self._pending: tuple[list[dict[str, Any]], dict[str, Any]] = ([], {})

    @property
    def advice_tokens(self) -> int:
        """Token limit of a reflection, or of the feedback if reflections are off."""
        return self.settings.reflection_tokens if self.settings.enable_reflection else self.settings.feedback_tokens

    def collect(
        self, worker: RolloutWorker[Any], tasks: Sequence[Any], step: int
    ) -> tuple[list[TrajectoryGroup[Any]], list[Record]]:
        """Sample attempts, reflections and second attempts.

        Returns:
            Groups of attempts, reflections, second attempts and internalized turns; the records of first attempts.
        """
        groups, records = worker.collect_attempts(tasks, step)
        memory = ReflectionMemory(self.state["reflections"], self.settings, _reflecting_of(worker).embedder)
        seconds = run_second_attempts(worker, groups, records, memory, self.settings, step)
        for second in seconds:
            has_improved = second.accuracy is not None and second.accuracy > second.first.accuracy
            has_helped = second.succeeded if self.settings.keep_advice == "success" else has_improved
            if has_helped and second.reflection is not None and self.settings.enable_memory:
                reached = {"before": second.first.accuracy, "after": second.accuracy}
                memory.add(second.advice, task=second.retry.task.id, step=step, **reached)
        reflections = memory.as_json()
        self._pending = reflections, {**reflection_metrics(groups, seconds), "reflections_kept": len(reflections)}
        return [*groups, *group_by_role(groups, seconds)], records

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """Return GRPO's rows of all roles, then the internalized rows."""
        sampled = [group for group in groups if group.trajectories[0].role != INTERNALIZED]
        rows, internalized = super().annotate(sampled, score), build_rows(groups[len(sampled) :])
        attempt_rows = sum(row.role == "attempt" for row in rows)
        weight = np.float32(self.settings.internalization_coef * len(internalized) / max(1, attempt_rows))
        return rows + [replace(row, ce=row.pg * weight, pg=row.ce) for row in internalized]

    def updates(self, samples: Sequence[TrainingSample]) -> dict[str, Sequence[TrainingSample]]:
        """Split off internalization as a second update phase with algorithm 2."""
        if self.settings.algorithm == 1:
            return {"": samples}
        sampled = [row for row in samples if row.role != INTERNALIZED]
        internalized = [row for row in samples if row.role == INTERNALIZED]
        return {name: rows for name, rows in {"": sampled, INTERNALIZED: internalized}.items() if rows}

    def finish_step(self, metrics: dict[str, Any]) -> None:
        """Store the new reflection memory; a step interrupted earlier leaves the old one."""
        self.state = {"reflections": self._pending[0]}
        metrics |= self._pending[1]
