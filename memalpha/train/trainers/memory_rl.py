"""Reinforcement learning of memory writers, with baselines and an example conversation.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memalpha.agent.reader import PolicyReader
from memalpha.config import TrainConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import Evaluator, MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.records import Record
from memalpha.qa.report import Report, check_reader_answers, summarize
from memalpha.qa.reporting.example import add_walks, choose_examples, write_examples
from memalpha.store.embedding import load_embedder
from memalpha.train.algorithms import build_algorithm
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.reflection import MemoryReflection
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import FrozenPolicies, keep_evaluation, validate_on_tasks
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rl import ReinforcementStep, RolloutDescriber, build_algorithm_engine, build_overlap
from memalpha.train.trainers.start import load_start
from memalpha.train.trainers.trainer import Evaluations, Trainer
from memalpha.types import Task, Trajectory

BASELINES = {"append_only": "append-only", "oracle": "oracle"}
"""Evaluation name -> kind of scripted policy."""

MIN_READER_CEILING = 0.5
"""A reader whose accuracy with the oracle's memory is below this is reported."""


def memory_trainer(config: TrainConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that reinforces a memory writer.

    A rollout builds a memory over a conversation, the answers from it give the reward.
    """
    source = TaskSource(config)
    start = load_start(config)
    policy, display = start.policy, Display(quiet=not directory.world.is_main)
    policies = FrozenPolicies(config)
    config = policies.with_trained_prompts(config, policy)
    embedder = load_embedder(config.agent.embedder)
    rewards = MemoryReward(config.reward.kept_in(config.out), policy.count_tokens)
    reader = policies.load_reader(config.reader)
    training_reader = policies.load_reader(config.reward.reader or config.reader)
    writing = MemoryWriting(config.agent, policy.count_tokens, embedder)
    algorithm = build_algorithm(config)
    source.check(policy, config.agent, writing.schema, algorithm.advice_tokens)
    rollouts, training_scorer = RolloutEngine(policy, writing), MemoryScorer(training_reader, rewards, embedder)
    reflection = MemoryReflection(writing, training_scorer)
    worker = RolloutWorker(rollouts, training_scorer, config, directory.world, reflection)
    engine = build_algorithm_engine(policy, config, algorithm, directory.world)
    reason = "neither reader nor judge is behind an endpoint"
    training_step = ReinforcementStep(
        config,
        directory,
        tasks=source,
        worker=worker,
        algorithm=algorithm,
        engine=engine,
        describer=MemoryRolloutDescriber(policy.count_tokens, isinstance(training_reader, PolicyReader)),
        overlap=build_overlap(config, worker, algorithm, engine, display, reason),
    )
    scorer = MemoryScorer(reader, rewards, embedder)
    baselines = {
        name: Evaluator(memory_engine(ScriptedPolicy(kind), config.agent, embedder), scorer, directory.world)
        for name, kind in BASELINES.items()
    }
    evaluator = Evaluator(rollouts, scorer, directory.world)
    directory.claim(config)
    return Trainer(
        config=config,
        directory=directory,
        start=start,
        engine=engine,
        training_step=training_step,
        evaluations=MemoryEvaluations(evaluator, baselines, scorer, source, directory, display),
        display=display,
    )


class MemoryRolloutDescriber(RolloutDescriber):
    """Describes rollouts that build memories.

    Args:
        count_tokens: Tokens of a text.
        has_policy_reader: True if a language model answers, whose answers may be cut.
    """

    def __init__(self, count_tokens: Callable[[str], int], has_policy_reader: bool) -> None:
        self.count_tokens, self.has_policy_reader = count_tokens, has_policy_reader

    def metrics(self, records: Sequence[Record], attempts: Sequence[Trajectory]) -> dict[str, Any]:
        """Return accuracy, outcomes of operations, size of the memory and calls per attempt."""
        summary = summarize(records, attempts, self.count_tokens)
        names = ("reward", "accuracy", "answerable_accuracy", "valid_calls", "duplicates", "update_share")
        names += ("delete_share", "update_hit", "delete_hit", "memory_tokens")
        calls = sum(len(turn.calls) for trajectory in attempts for turn in trajectory.turns)
        metrics = {**{name: summary[name] for name in names}, "calls": calls / len(attempts)}
        if self.has_policy_reader and records:
            metrics["reader_truncated"] = sum(record.truncated for record in records) / len(records)
        return metrics

    def fields(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return the final memory."""
        return {"memory": [entry.content for entry in trajectory.states[-1].list()]}


class MemoryEvaluations(Evaluations):
    """Validates by accuracy; evaluates held-out tasks before and after, with two baselines before.

    Args:
        evaluator: Evaluates the trained policy.
        baselines: Evaluators of scripted policies.
        scorer: Scorer of the evaluations.
        source: Validation and held-out tasks.
        directory: Run directory.
        display: Shows progress and notes.
    """

    def __init__(
        self,
        evaluator: Evaluator[Task],
        baselines: Mapping[str, Evaluator[Task]],
        scorer: MemoryScorer,
        source: TaskSource,
        directory: RunDirectory,
        display: Display,
    ) -> None:
        self.evaluator, self.baselines, self.scorer = evaluator, baselines, scorer
        self.source, self.directory, self.display = source, directory, display

    def before(self) -> None:
        """Evaluate the start weights and the baselines, and record example conversations."""
        held_out, display = self.source.held_out, self.display
        scope = "tasks (training, validation, held-out)" if self.source.file_tasks else "tasks drawn so far"
        for note in self.scorer.rewards.notes(self.source.known_tasks, scope):
            display.log(note)
        missing = sum(not task.gold_operations for task in held_out)
        if missing:
            display.log(
                f"the reader's ceiling could not be checked (no baselines): {missing} of {len(held_out)} held-out "
                "tasks carry no gold operations, from which the oracle's memory is made. A reader that cannot read the "
                "notes would go unnoticed and limit all training: see docs/start/own-data.md"
            )
        before = self._evaluate_held_out("before", self.evaluator)
        if self.directory.world.is_main:
            examples = [
                (held_out[index], {"before": (before.groups[index].trajectories[0], before.records)})
                for index in choose_examples(held_out)
            ]
            write_examples(self.directory.path / "eval" / "example.json", examples)
        baselines: dict[str, Report] = {}
        if not missing:
            baselines = {name: self._evaluate_held_out(name, evaluator) for name, evaluator in self.baselines.items()}
        records = (record for report in (before, *baselines.values()) for record in report.records)
        check_reader_answers(self.scorer.reader.name, records)
        if baselines:
            ceiling = baselines["oracle"].summary["answerable_accuracy"]
            if ceiling is not None and ceiling < MIN_READER_CEILING:
                display.log(
                    f"{self.scorer.reader.name} answers {ceiling:.0%} of the answerable questions from the oracle's "
                    "memory, and no training gets above that: see reader.kind, reader.policy, reward.metric and "
                    "docs/start/own-data.md"
                )

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return the accuracy on the validation tasks."""
        summary = validate_on_tasks(self.evaluator, self.source.validation, metrics)
        return None if summary is None else summary["accuracy"]

    def summary(self) -> dict[str, Any]:
        """Evaluate the held-out tasks and return all evaluations."""
        after = self._evaluate_held_out("after", self.evaluator)
        return self.directory.world.run_on_main(lambda: self._collect_evaluations(after))

    def _evaluate_held_out(self, name: str, evaluator: Evaluator[Task]) -> Report:
        return keep_evaluation(evaluator, name, self.source.held_out, self.directory, self.display)

    def _collect_evaluations(self, after: Report) -> dict[str, Any]:
        """Complete the recorded conversations and return all evaluations."""
        evaluations = self.directory.path / "eval"
        walks = {group.task.id: (group.trajectories[0], after.records) for group in after.groups}
        add_walks(evaluations / "example.json", "after", walks)
        return {
            "tasks": len(self.source.held_out),
            "questions": len(after.records),
            "before": self.directory.read_json("eval/before.json"),
            "after": self.directory.read_json("eval/after.json"),
            "baselines": {
                name: self.directory.read_json(f"eval/{name}.json")
                for name in self.baselines
                if (evaluations / f"{name}.json").exists()
            },
        }
