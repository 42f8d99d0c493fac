"""Reinforcement learning of memory writers, with baselines and an example conversation.

The weights evaluated as "after" are those with the best accuracy on the validation tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.agent.policy_check import check_policy
from memalpha.agent.prompts import question_with_choices
from memalpha.agent.reader import PolicyReader
from memalpha.config import TrainConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import Evaluator, MemoryScorer, evidence_accuracy
from memalpha.qa.memory_reward import MemoryReward, load_functions
from memalpha.qa.reader import check_reader_answers
from memalpha.qa.report import Record, Report, summarize
from memalpha.train.algorithms import build_algorithm
from memalpha.train.algorithms.credit import CallCredit, CreditScorer, credit_metrics
from memalpha.train.rollouts.epochs import Curriculum
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.reflection import MemoryReflection
from memalpha.train.rollouts.weight_sync import make_sampler
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.evaluations import (
    TaskEvaluations,
    add_walks,
    choose_examples,
    load_writer,
    write_examples,
)
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.rl import ReinforcementStep, build_algorithm_engine
from memalpha.train.trainers.trainer import Trainer
from memalpha.types import Task, Trajectory

BASELINES = {"append_only": "append-only", "oracle": "oracle"}
"""Evaluation name -> kind of scripted policy, where all held-out tasks have gold operations."""
BASELINES_WITHOUT_GOLD = {"add_all": "add-all"}
"""The same for other tasks."""

MIN_READER_CEILING = 0.5
"""A reader whose accuracy with the oracle's memory, or with the evidence itself, is below this is reported."""


def memory_trainer(config: TrainConfig, directory: RunDirectory) -> Trainer:
    """Compose a run that reinforces a memory writer.

    A rollout builds a memory over a conversation, the answers from it give the reward.
    """
    source = TaskSource(config)
    curriculum = config.sampling.curriculum
    tasks = source if curriculum is None else Curriculum(curriculum, source)
    display = Display(quiet=not directory.world.is_main)
    load_functions(config.reward)  # so that a wrong name is said before the weights are loaded
    config, start, policies, writing = load_writer(config, display)
    policy, embedder = start.policy, writing.embedder
    rewards = MemoryReward(config.reward.kept_in(config.out), policy.count_tokens)
    reader = policies.load_reader(config.reader)
    training_reader = policies.load_reader(config.reward.reader or config.reader)
    algorithm = build_algorithm(config)
    check_policy(policy, config.agent, writing.schema).raise_if_broken()
    source.check(policy, config.agent, writing.schema, algorithm.advice_tokens)
    sampler = make_sampler(policy, config)
    rollouts, training_scorer = RolloutEngine(sampler, writing), MemoryScorer(training_reader, rewards, embedder)
    if config.reward.credit == "calls":
        settings = config.reward.credit_settings
        training_scorer = CreditScorer(training_reader, rewards, embedder, settings)
        algorithm.credit = CallCredit(policy, settings.share)
    reflection = MemoryReflection(writing, training_scorer)
    sampling = config.sampling
    chunk_share = 1.0 - sampling.conversation_share if sampling.groups == "chunk" else 0.0
    worker = RolloutWorker(
        rollouts, training_scorer, config, directory.world, reflection, sampling.questions_per_task, chunk_share
    )
    engine = build_algorithm_engine(policy, config, algorithm, directory.world)
    training_step = MemoryStep(
        directory, tasks=tasks, worker=worker, algorithm=algorithm, engine=engine, reader=training_reader
    )
    scorer = MemoryScorer(reader, rewards, embedder)
    has_gold = all(task.gold_operations for task in source.held_out)
    baselines = {
        name: Evaluator(memory_engine(ScriptedPolicy(kind), config.agent, embedder), scorer, directory.world)
        for name, kind in (BASELINES if has_gold else BASELINES_WITHOUT_GOLD).items()
    }
    scope = "tasks (training, validation, held-out)" if source.file_tasks else "tasks drawn so far"
    evaluations = MemoryEvaluations(
        Evaluator(rollouts, scorer, directory.world),
        source.validation,
        source.held_out,
        directory,
        display,
        notes=[*source.notes, *rewards.notes(source.known_tasks, scope)],
        stop_below=config.evaluation.stop_below,
        baselines=baselines,
        stop_unreadable=config.sampling.stop_unreadable,
    )
    code = {"algorithm": algorithm, **{part.name: function for part, function in rewards.functions}}
    directory.claim(config, source.fingerprint, code=code)
    return Trainer(config, directory, start, engine, training_step, evaluations, display)


class MemoryStep(ReinforcementStep):
    """Step of a memory writer."""

    def attempt_metrics(self, records: Sequence[Record], attempts: Sequence[Trajectory], tasks: int) -> dict[str, Any]:
        """Return accuracy, outcomes of operations, size of the memory, calls per attempt, cut and cached answers."""
        scorer: Any = self.worker.scorer
        summary = summarize(records, attempts, scorer.rewards.count_tokens)
        names = ("reward", "accuracy", "answerable_accuracy", "valid_calls", "duplicates", "update_share")
        names += ("delete_share", "update_hit", "delete_hit", "memory_tokens")
        turns = [turn for trajectory in attempts for turn in trajectory.turns]
        metrics = {name: summary[name] for name in names}
        metrics["calls"] = sum(len(turn.calls) for turn in turns) / len(attempts)
        metrics["no_call"] = sum(all(call.error for call in turn.calls) for turn in turns) / len(turns)
        metrics |= credit_metrics(attempts)
        if isinstance(scorer.reader, PolicyReader) and records:
            metrics["reader_truncated"] = sum(record.truncated for record in records) / len(records)
            if scorer.reader.cache is not None:
                metrics["reader_cached"] = scorer.reader.cache.pop_hit_share()
        return metrics

    def trajectory_fields(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return the final memory, and in a chunk group for each reply whether the next chunk was read after it."""
        fields: dict[str, Any] = {"memory": [entry.content for entry in trajectory.states[-1].list()]}
        if trajectory.before:
            pairs = zip(trajectory.states, trajectory.before[1:], strict=False)
            fields["went_on"] = [after is before for after, before in pairs]
        return fields

    def task_fields(self, task: Task) -> dict[str, Any]:
        """Return the title, the chunks, and the questions with answers and the chunk after which each is asked."""
        title = task.meta.get("title")  # the ids of exported conversations say nothing
        return {
            **({"title": title} if isinstance(title, str) else {}),
            "chunks": [{"text": chunk.render(), "timestamp": chunk.timestamp} for chunk in task.chunks],
            "questions": [
                {
                    "id": item.id,
                    "question": question_with_choices(item, dated=False),
                    "answers": item.answers,
                    "chunk": task.asked_after(item),
                }
                for item in task.questions
            ],
        }


class MemoryEvaluations(TaskEvaluations):
    """Evaluations on memory tasks, with baselines before and example conversations.

    Args:
        args: Arguments of `TaskEvaluations`.
        baselines: Evaluators of scripted policies.
        stop_unreadable: Stop before training if the reader cannot answer.
        settings: Further settings of `TaskEvaluations`.
    """

    def __init__(
        self, *args: Any, baselines: Mapping[str, Evaluator[Task]], stop_unreadable: bool, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.baselines, self.stop_unreadable = baselines, stop_unreadable
        self.scorer: Any = self.evaluator.scorer
        self.folder = self.directory.path / "eval"
        self.saved += ["example", *baselines]

    def before(self) -> Report:
        """Evaluate the start weights and the baselines, and record example conversations."""
        held_out, before = self.held_out, super().before()
        if self.directory.world.is_main:
            examples = [
                (held_out[index], {"before": (before.groups[index].trajectories[0], before.records)})
                for index in choose_examples(held_out)
            ]
            write_examples(self.folder / "example.json", examples)
        reports = {name: self.evaluate(name, evaluator) for name, evaluator in self.baselines.items()}
        records = (record for report in (before, *reports.values()) for record in report.records)
        check_reader_answers(self.scorer.reader, records, stop_unreadable=self.stop_unreadable)
        if "oracle" in reports:
            ceiling, source = reports["oracle"].summary["answerable_accuracy"], "from the oracle's memory"
        else:
            ceiling, source = self.directory.world.run_on_main(self._evidence_accuracy)
        if ceiling is not None and ceiling < MIN_READER_CEILING:
            self.display.log(
                f"{self.scorer.reader.name} answers {ceiling:.0%} of the answerable questions {source}, and no "
                "training gets above that: see reader.kind, reader.policy, reward.metric and docs/start/own-data.md"
            )
        elif not before.summary["answerable_accuracy"]:
            is_readable = any(report.summary["answerable_accuracy"] for report in reports.values())
            self.display.log(
                f"{self.scorer.reader.name} answers nothing from what the policy writes"
                + (": " if is_readable else ", nor from all that was said: reader.kind=copy reads sentences, and ")
                + "a policy has to know such text before it can learn (tiny knows the demo's sentences alone, smol "
                "those of chats): see docs/start/own-data.md"
            )
        return before

    def _evidence_accuracy(self) -> tuple[float | None, str]:
        """Return the reader's accuracy on the evidence itself, and where it reads; log why it cannot be had."""
        metric = self.scorer.rewards.config.metric
        accuracy, count = None, 0
        if metric != "judge":
            accuracy, count = evidence_accuracy(self.held_out, self.scorer.reader, metric, self.scorer.embedder)
        if accuracy is None:
            reason = "a judge scores" if metric == "judge" else "no answerable question names its evidence"
            self.display.log(
                "the reader's ceiling could not be checked: not all held-out tasks carry gold operations, and "
                f"{reason}. A reader that cannot read the notes would go unnoticed and limit all training: see "
                "docs/start/own-data.md"
            )
        return accuracy, f"that name evidence ({count}) from that evidence itself"

    def summarize(self, after: Report) -> dict[str, Any]:
        """Complete the recorded conversations and return all evaluations."""

        def complete() -> dict[str, Any]:
            walks = {group.task.id: (group.trajectories[0], after.records) for group in after.groups}
            add_walks(self.folder / "example.json", walks)
            return {name: self.directory.read_json(f"eval/{name}.json") for name in self.baselines}

        return {**super().summarize(after), "baselines": self.directory.world.run_on_main(complete)}
