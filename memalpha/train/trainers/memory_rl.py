"""Reinforcement learning of memory writers, with baselines and an example conversation.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.config import TrainConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.records import Record
from memalpha.qa.report import Report, summarize
from memalpha.qa.reporting.example import add_walks, choose_examples, write_examples
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.reflection import MemoryReflection
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.checkpoint import read_json
from memalpha.train.trainers.evaluated import EvaluatedTrainer
from memalpha.train.trainers.rl import RLTrainer
from memalpha.types import Task, Trajectory, Turn

BASELINES = {"append_only": "append-only", "oracle": "oracle"}
"""Evaluation name -> kind of scripted policy."""

MIN_READER_CEILING = 0.5
"""A reader whose accuracy with the oracle's memory is below this is reported."""


class MemoryRLTrainer(RLTrainer[TrainConfig], EvaluatedTrainer[TrainConfig]):
    """Train a memory writer: a rollout builds a memory over a conversation, answers from it give the reward."""

    no_endpoint_reason = "neither reader nor judge is behind an endpoint"

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.source = TaskSource(config)
        super().__init__(config, world)
        config = self.config
        self.reader, self.training_reader = self._load_readers(config.reader, config.reward.reader or config.reader)
        writing = MemoryWriting(config.agent, self.policy.count_tokens, self.embedder)
        scorer = MemoryScorer(self.training_reader, self.rewards, self.embedder)
        reflection = MemoryReflection(writing, scorer)
        self.worker = RolloutWorker(RolloutEngine(self.policy, writing), scorer, config, world, reflection)
        self.algorithm = self._build_algorithm()
        self.source.check(self.policy, config.agent, writing.schema, self.algorithm.advice_tokens)
        self._build_engine_and_overlap()

    def _before_training(self) -> None:
        held_out = self.source.held_out
        scope = "tasks (training, validation, held-out)" if self.source.file_tasks else "tasks drawn so far"
        for note in self.rewards.notes(self.source.known_tasks, scope):
            self.display.log(note)
        missing = sum(not task.gold_operations for task in held_out)
        if missing:
            self.display.log(
                f"the reader's ceiling could not be checked (no baselines): {missing} of {len(held_out)} held-out "
                "tasks carry no gold operations, from which the oracle's memory is made. A reader that cannot read the "
                "notes would go unnoticed and limit all training: see docs/start/own-data.md"
            )
        before = self._evaluate_and_save("before", self.policy, held_out, self.reader)
        if self.world.is_main:
            examples = [
                (held_out[index], {"before": (before.groups[index].trajectories[0], before.records)})
                for index in choose_examples(held_out)
            ]
            write_examples(self.out / "eval" / "example.json", examples)
        if not missing:
            baselines = {
                name: self._evaluate_and_save(name, ScriptedPolicy(kind), held_out, self.reader)
                for name, kind in BASELINES.items()
            }
            ceiling = baselines["oracle"].summary["answerable_accuracy"]
            if ceiling is not None and ceiling < MIN_READER_CEILING:
                self.display.log(
                    f"{self.reader.name} answers {ceiling:.0%} of the answerable questions from the oracle's memory, "
                    "and no training gets above that: see reader.kind, reader.policy, reward.metric and "
                    "docs/start/own-data.md"
                )

    def _validation_score(self, metrics: dict[str, Any]) -> float | None:
        """Return the accuracy on the validation tasks."""
        if not self.source.validation:
            return None
        summary = self._evaluate_on("validation", self.policy, self.source.validation, self.reader).summary
        metrics |= {"validation_accuracy": summary["accuracy"], "validation_se": summary["se"]}
        return summary["accuracy"]

    def _final_summary(self, best_step: int) -> dict[str, Any]:
        after = self._evaluate_and_save("after", self.policy, self.source.held_out, self.reader)
        return self.world.run_on_main(lambda: self._collect_evaluations(after))

    def _collect_evaluations(self, after: Report) -> dict[str, Any]:
        """Complete the recorded conversations and return all evaluations."""
        walks = {group.task.id: (group.trajectories[0], after.records) for group in after.groups}
        add_walks(self.out / "eval" / "example.json", "after", walks)
        systems = {
            name: read_json(self.out / "eval" / f"{name}.json")
            for name in ("before", "after", *BASELINES)
            if name in ("before", "after") or (self.out / "eval" / f"{name}.json").exists()
        }
        return {
            "tasks": len(self.source.held_out),
            "questions": len(after.records),
            "before": systems.pop("before"),
            "after": systems.pop("after"),
            "baselines": systems,
        }

    def _step_tasks(self) -> list[Task]:
        return self.source.batch(self.step * self.config.tasks_per_step)

    def _attempt_metrics(self, records: Sequence[Record], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        summary = summarize(records, trajectories, self.policy.count_tokens)
        names = ("reward", "accuracy", "answerable_accuracy", "valid_calls", "duplicates", "update_share")
        names += ("delete_share", "update_hit", "delete_hit", "memory_tokens")
        return {name: summary[name] for name in names}

    def _turn_metrics(self, turns: Sequence[Turn], rollouts: int) -> dict[str, Any]:
        return {"calls": sum(len(turn.calls) for turn in turns) / rollouts}

    def _trajectory_fields(self, trajectory: Trajectory) -> dict[str, Any]:
        return {"memory": [entry.content for entry in trajectory.states[-1].list()]}
