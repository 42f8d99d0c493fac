"""ERL: experiential reinforcement learning (2026, arXiv 2602.13949): attempt, reflect, try again, make it one's own.

A step, all with the weights of its beginning: attempts at each task, with reward r1; for each attempt that is gated
(`train.reflection`), a reflection from the evaluator's feedback and earlier advice, then a second attempt at the whole
task whose prompts carry that advice and nothing else of all this, with reward r2. The reflection earns r2 as well. What
helped goes into one bounded reflection memory for all tasks, which is part of `state`.

    L = L_GRPO(attempts with r1, reflections with r2, second attempts with r2: one mean over the rows of all three)
        - coef E_attempts[ 1(the second attempt succeeded) log pi(second attempt | the task's own prompts) ]

Groups are by task and role, baselines over rollouts; the only one of its group has no advantage. The last term
(internalization) is the cross-entropy of the very ids that the second attempt sampled. Their prompts are rendered anew
without the advice, and with the memory that the second attempt itself had built by then: what it did for a chunk
depends on what it had written before. Turns that were cut off or of which a call failed are not imitated. The term's
weights carry the share of attempts it stands for, which makes of the mean over its rows (`normalize`) the mean over
all attempts.

`erl.algorithm=1`: every attempt is reflected on, advantages are scaled over the whole step (`scale_rewards=batch`), and
one update is on everything. `2`: only attempts that have not succeeded, scaled in each group, and internalization is an
update of its own after the others.

Departures from the paper and its code:

* success is a share of right answers, at least `erl.reward_threshold` (`train.reflection` says why "at least");
  `erl.internalization_margin` also takes second attempts that are so much better than the first;
* the task's prompt is a whole conversation, so a reflection sees the memory that the attempt left and the feedback. The
  compact style, on which the shipped policies are trained, leaves out that memory, and of the feedback what had been
  retrieved and where the answer was lost (never written, overwritten, not retrieved): see `qa.loss.feedback`;
* a group of one: advantage 0 (in the paper's code the raw reward);
* old log-probs and ids are the sampler's own, also of what is internalized (there: tokenized again);
* `erl.enable_reflection=false`: the second attempt is told the feedback itself in the place of advice.

Second attempts have seen what was wrong: their scores are metrics of training (`retry_*`) and nothing else. Validation
and evaluation are first attempts without advice and without the reflection memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalpha.config import ERLConfig, ReinforcementConfig
from memalpha.qa.records import Record
from memalpha.train.algorithms.base import Scorer
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.rollouts.base import RolloutCollector
from memalpha.train.rollouts.reflection import ReflectionMemory
from memalpha.train.rollouts.second_attempts import INTERNALIZED, by_role, figures, second_attempts
from memalpha.types import TrajectoryGroup


class ERL(GRPO):
    """GRPO on attempts, reflections and second attempts; the state is the reflection memory."""

    def __init__(self, config: ReinforcementConfig) -> None:
        super().__init__(config)
        self.settings = config.erl or ERLConfig()
        self.state: dict[str, Any] = {"reflections": []}
        self._pending: tuple[list[dict[str, Any]], dict[str, Any]] = ([], {})

    @property
    def advice_tokens(self) -> int:
        """A whole reflection, or the feedback itself."""
        return self.settings.reflection_tokens if self.settings.enable_reflection else self.settings.feedback_tokens

    def collect(
        self, collector: RolloutCollector[Any], tasks: Sequence[Any], step: int
    ) -> tuple[list[TrajectoryGroup[Any]], list[Record]]:
        """Groups of attempts, reflections, second attempts and what is internalized; the attempts' records."""
        groups, records = collector.attempts(tasks, step)
        memory = ReflectionMemory(self.state["reflections"], self.settings, collector.embedder)
        seconds = second_attempts(collector, groups, records, memory, self.settings, step)
        for second in seconds:
            if second.succeeded and second.reflection is not None and self.settings.enable_memory:
                reached = {"before": second.tried.accuracy, "after": second.accuracy}
                memory.keep(second.advice, task=second.retry.task.id, step=step, **reached)
        reflections = memory.as_json()
        self._pending = reflections, {**figures(groups, seconds), "reflections_kept": len(reflections)}
        return [*groups, *by_role(groups, seconds)], records

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> list[TrainingSample]:
        """GRPO's rows of all roles, then those of what is internalized."""
        sampled = [group for group in groups if group.trajectories[0].role != INTERNALIZED]
        attempt_rows = sum(
            len(trajectory.turns)
            for group in sampled
            for trajectory in group.trajectories
            if trajectory.role == "attempt"
        )
        internalized = [
            policy_gradient_sample(turn, task=group.task.id, rollout=one.rollout, role=one.role)
            for group in groups[len(sampled) :]
            for one in group.trajectories
            for turn in one.turns
        ]
        weight = np.float32(self.settings.internalization_coef * len(internalized) / max(1, attempt_rows))
        return super().annotate(sampled, score) + [replace(row, ce=row.pg * weight, pg=row.ce) for row in internalized]

    def updates(self, samples: Sequence[TrainingSample]) -> dict[str, Sequence[TrainingSample]]:
        """With algorithm 2 internalization comes after the rest."""
        if self.settings.algorithm == 1:
            return {"": samples}
        phases = {"": False, INTERNALIZED: True}
        rows = {
            name: [row for row in samples if (row.role == INTERNALIZED) == is_internalization]
            for name, is_internalization in phases.items()
        }
        return {name: part for name, part in rows.items() if part}

    def finish_step(self, metrics: dict[str, Any]) -> None:
        """The reflection memory moves on with the weights: a step that is broken off before has changed nothing."""
        self.state = {"reflections": self._pending[0]}
        metrics |= self._pending[1]
