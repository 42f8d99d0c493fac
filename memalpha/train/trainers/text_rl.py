"""Reinforcement learning on prompts: rewards score the replies; there is no memory and no reader.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.config import TextConfig
from memalpha.config.imports import import_object
from memalpha.environments.base import is_single_turn
from memalpha.environments.engine import RolloutEngine
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy
from memalpha.qa.evaluate import Evaluator
from memalpha.qa.records import Record
from memalpha.qa.report import Report
from memalpha.rewards.evaluate import TextScorer, check_rewards, text_summary
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.curriculum import Curriculum
from memalpha.train.rollouts.text_inputs import PythonInputs, build_environment
from memalpha.train.rollouts.text_reflection import TextReflection, check_feedback_function
from memalpha.train.rollouts.text_tasks import TextTaskSource
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.checkpoint import read_json
from memalpha.train.trainers.overlap import Part
from memalpha.train.trainers.rl import Collected, RLTrainer
from memalpha.types import TextTask, Trajectory, TrajectoryGroup


class TextRLTrainer(RLTrainer[TextConfig]):
    """Train replies to prompts, or a policy's play in an environment of the user's own."""

    no_endpoint_reason = "the environment gives its rewards while it is played"

    def __init__(self, config: TextConfig, world: World, inputs: PythonInputs | None = None) -> None:
        inputs = inputs or PythonInputs()
        self.source = TextTaskSource(config, inputs.tasks, inputs.eval_data)
        environment = build_environment(config, inputs)
        check_rewards(self.source.known_tasks, environment)
        path = config.erl.feedback_func if config.erl is not None else None
        imported_feedback = None if path is None else import_object(path, "feedback_func")
        feedback = check_feedback_function(inputs.feedback_func or imported_feedback)
        if feedback is not None and config.algorithm != "erl":
            raise ConfigError(f"feedback_func: has no effect with algorithm={config.algorithm}; leave it out")
        scorer = TextScorer(environment)
        if config.algorithm == "erl" and not scorer.can_succeed:
            raise ConfigError(
                "rewards: algorithm=erl looks again at replies that are no success, and none of these parts says what "
                "is one (a reward model has no maximum): add a part that does, with weight 0 if it is not to count"
            )
        super().__init__(config, world)
        for note in self.source.notes:
            self.display.log(note)
        self.rollouts = self._build_rollout_engine(self.policy, environment)
        reflection = None
        if config.erl is not None:
            reflection = TextReflection(scorer, config.erl, self.policy.count_tokens, feedback)
        self.worker = RolloutWorker(self.rollouts, scorer, config, world, reflection)
        self.scorer = scorer
        self.evaluator = Evaluator(self.rollouts, scorer, world)
        self.algorithm = self._build_algorithm()
        self._check_prompt_lengths()
        curriculum = config.curriculum
        self.curriculum = Curriculum(curriculum, self.source.tasks_of_level, config.seed) if curriculum else None
        self._build_engine_and_overlap()

    def _build_rollout_engine(self, policy: Policy, environment: Any) -> RolloutEngine[TextTask]:
        config = self.config
        return RolloutEngine(
            policy,
            environment,
            system_prompt=config.system_prompt,
            max_new_tokens=config.sampling.max_new_tokens,
            max_turns=config.max_turns,
            retry_prompt=None if config.erl is None else config.erl.retry_prompt,
        )

    def _check_prompt_lengths(self) -> None:
        """Raise `DataError` if a task's prompt does not fit in the model with advice and a full reply."""
        policy, config, advice = self.policy, self.config, self.algorithm.advice_tokens
        if policy.positions is None:
            return
        room = policy.positions - config.sampling.max_new_tokens - advice
        advice_text = f" and {advice} of advice" if advice else ""
        for task in self.source.known_tasks:
            length = len(policy.render(self.rollouts.first_request(task).messages))
            if length > room:
                raise DataError(
                    f"data: the prompt of task {task.id!r} has {length} tokens, policy {policy.name!r} has room for "
                    f"{max(room, 0)} ({policy.positions} less "
                    f"max_new_tokens={config.sampling.max_new_tokens}{advice_text})"
                )

    # -------------------------------------------------------------------------------------------------- the whole run

    def _before_training(self) -> None:
        self._evaluate_and_save("before")

    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        """Return the accuracy on the validation tasks; their mean reward if no reward part has a maximum."""
        if not self.source.validation:
            return None
        summary = self._evaluate_on("validation", self.source.validation).summary
        metrics |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
        metrics["validation_reward"] = summary["reward"]
        return summary["accuracy"] if self.scorer.can_succeed else summary["reward"]

    def _final_summary(self, best_step: int) -> dict[str, Any]:
        after = self._evaluate_and_save("after")
        return {
            "task": "text",
            "tasks": len(self.source.held_out),
            "questions": len(after.records),
            "before": self.world.run_on_main(lambda: read_json(self.out / "eval" / "before.json")),
            "after": after.summary,
        }

    def _checkpoint_state(self) -> dict[str, Any]:
        curriculum_state = {} if self.curriculum is None else {"curriculum": self.curriculum.state}
        return {**super()._checkpoint_state(), **curriculum_state}

    def _restore_state(self, state: dict[str, Any]) -> None:
        super()._restore_state(state)
        if self.curriculum is not None:
            self.curriculum.state = state["curriculum"]

    def _evaluate_on(self, name: str, tasks: Sequence[TextTask], progress: Any = None) -> Report:
        return self.evaluator.evaluate(name, tasks, progress=progress)

    def _evaluate_and_save(self, name: str) -> Report:
        """Evaluate on the held-out tasks; save `eval/<name>.json` and `eval/<name>.jsonl`."""
        tasks = self.source.held_out
        with self.display.task_progress(f"evaluating {name} on {len(tasks)} held-out tasks") as progress:
            report = self._evaluate_on(name, tasks, progress)
        if self.world.is_main:
            report.save(self.out)
        self.display.log(f"{name}: accuracy {report.summary['accuracy']:.3f}, reward {report.summary['reward']:.3f}")
        return report

    # ------------------------------------------------------------------------------------------------------ one step

    def _prepare_batch(self) -> Collected | list[Part]:
        self.rollouts.outgrown = 0
        return super()._prepare_batch()

    def _step_tasks(self) -> list[TextTask]:
        count = self.config.tasks_per_step
        if self.curriculum is not None:
            return self.curriculum.draw(self.step, count)
        return self.source.batch(self.step * count)

    def _train_on(self, batch: Collected | list[Part]) -> dict[str, Any]:
        step_tasks = self._step_tasks() if self.curriculum is not None else []
        metrics = super()._train_on(batch)
        if not is_single_turn(self.rollouts.environment):
            metrics["outgrown"] = sum(self.world.gather([self.rollouts.outgrown]))
        if self.curriculum is not None:
            metrics |= self.curriculum.record_outcomes(step_tasks, self._attempts)
        return metrics

    def _attempt_metrics(
        self, records: Sequence[Record], trajectories: Sequence[Trajectory[TextTask]]
    ) -> dict[str, Any]:
        self._attempts = records
        summary = text_summary(records, trajectories)
        return {name: summary[name] for name in ("reward", "accuracy", "reply_tokens", "turns")}

    def _rollout_metrics(
        self, groups: Sequence[TrajectoryGroup[TextTask]], records: Sequence[Record]
    ) -> dict[str, Any]:
        metrics = super()._rollout_metrics(groups, records)
        sampled = self.config.tasks_per_step * self.config.sampling.group_size
        attempts = sum(trajectory.role == "attempt" for group in groups for trajectory in group.trajectories)
        return {**metrics, "unscored": sampled - attempts}

    def _component_metric(self, name: str) -> str:
        return f"rewards/{name}"

    def _trajectory_fields(self, trajectory: Trajectory[TextTask]) -> dict[str, Any]:
        return {"prompt": trajectory.task.text}
