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

* Success is accuracy of at least `erl.reward_threshold` (reason: `rollouts.reflection`). `erl.internalization_margin`
  also takes second attempts that are better than the first by that much.
* Advice is kept if the second attempt was better than the first. The paper keeps it on success
  (`erl.keep_advice=success`), also where the first attempt had succeeded or had done better.
* A task's prompt is a whole conversation, so a reflection sees the attempt's memory and the feedback. The compact style
  of the shipped policies omits that memory, the retrieved passages and the error class (`qa.error_analysis.feedback`).
* The advantage of a group of one is 0 (the paper's code keeps the raw reward).
* Ids and old log-probs are the sampler's, internalized ids too (the paper's code tokenizes again).
* `erl.enable_reflection=false` gives the feedback itself to the second attempt instead of advice.

Second attempts have seen the feedback: their scores are training metrics (`retry_*`) only. Validation and evaluation
use first attempts, without advice and reflection memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalpha.config import ERLSettings, ReinforcementConfig
from memalpha.qa.report import Record
from memalpha.train.algorithms.base import Scorer
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.rollouts.reflection import ReflectionMemory
from memalpha.train.rollouts.second_attempts import (
    INTERNALIZED,
    group_by_role,
    reflecting_of,
    reflection_metrics,
    run_second_attempts,
)
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import TrajectoryGroup


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
        memory = ReflectionMemory(self.state["reflections"], self.settings, reflecting_of(worker).embedder)
        seconds = run_second_attempts(worker, groups, records, memory, self.settings, step)
        for second in seconds:
            helped = second.succeeded if self.settings.keep_advice == "success" else second.improved
            if helped and second.reflection is not None and self.settings.enable_memory:
                reached = {"before": second.first.accuracy, "after": second.accuracy}
                memory.add(second.advice, task=second.retry.task.id, step=step, **reached)
        reflections = memory.as_json()
        self._pending = reflections, {**reflection_metrics(groups, seconds), "reflections_kept": len(reflections)}
        return [*groups, *group_by_role(groups, seconds)], records

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """Return GRPO's rows of all roles, then the internalized rows."""
        sampled = [group for group in groups if group.trajectories[0].role != INTERNALIZED]
        attempt_rows = sum(
            len(trajectory.turns)
            for group in sampled
            for trajectory in group.trajectories
            if trajectory.role == "attempt"
        )
        internalized = [
            policy_gradient_sample(turn, task=group.task.id, rollout=trajectory.rollout, role=trajectory.role)
            for group in groups[len(sampled) :]
            for trajectory in group.trajectories
            for turn in trajectory.turns
        ]
        weight = np.float32(self.settings.internalization_coef * len(internalized) / max(1, attempt_rows))
        return super().annotate(sampled, score) + [replace(row, ce=row.pg * weight, pg=row.ce) for row in internalized]

    def updates(self, samples: Sequence[TrainingSample]) -> dict[str, Sequence[TrainingSample]]:
        """Split off internalization as a second update phase with algorithm 2."""
        if self.settings.algorithm == 1:
            return {"": samples}
        phases = {"": False, INTERNALIZED: True}
        rows = {
            name: [row for row in samples if (row.role == INTERNALIZED) == is_internalization]
            for name, is_internalization in phases.items()
        }
        return {name: part for name, part in rows.items() if part}

    def finish_step(self, metrics: dict[str, Any]) -> None:
        """Store the new reflection memory; a step interrupted earlier leaves the old one."""
        self.state = {"reflections": self._pending[0]}
        metrics |= self._pending[1]
