"""Evaluate memory systems: one engine for `evaluate`, `memalpha eval`, and the evaluations of a training run.

A system reads the conversations of its tasks; a writer is a system like the others. Its memories are asked the tasks'
questions (`ask_retrievals`), and each answer is a record of the report (`build_record`). `Evaluator` scores rollouts as
training does, by reward and metric of a run: memories here, replies in `rewards.evaluate`. The reader then searches the
states of the written memory (`ask_states`; so does `train.algorithms.credit`). `run_systems` evaluates several systems
alike: same tasks, questions, reader, token budget and metric. For every question a system returns its passages at the
time of asking, best first, cut at the budget, and the reader is shown them. The ceiling of a record is the same
reader's answer when it is shown the evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.prompts import question_with_choices
from memalpha.agent.reader import (
    Answer,
    Item,
    PolicyReader,
    Reader,
    RetrievedMemory,
    check_answers,
    default_reader,
    require_reader,
    states_several_values,
)
from memalpha.arguments import check_flag, check_function, check_items, check_type
from memalpha.config import EVAL_K, AgentConfig, RewardConfig
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import fit_tasks, memory_engine
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.policy.base import BilledPolicy, Policy, is_endpoint, with_prompt_style
from memalpha.qa.error_analysis import classified, evidence_recall, waterfall, with_error_classes
from memalpha.qa.memory_reward import MemoryReward, conversation_tokens
from memalpha.qa.reader import load_reader, reader_metrics, with_check
from memalpha.qa.report import CHANGED, Record, Report, estimate_tokens, scored_answers, summarize
from memalpha.qa.scoring import metrics
from memalpha.qa.scoring.judge import ContentVerdicts, Judge, judge_records, judge_step
from memalpha.qa.scoring.official import LONGMEMEVAL_TYPES, longmemeval, session_scores
from memalpha.qa.scoring.stats import estimate, group_values, macro, mean
from memalpha.qa.systems import (
    EvaluatedSystem,
    Oracle,
    Passage,
    Retrieval,
    Retrievals,
    SystemSettings,
    UsesPolicy,
    as_passage,
    as_system,
    passage_tokens,
    passages_as_hits,
)
from memalpha.store.embedding import Embedder, check_embedder, load_embedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.state import MemoryState
from memalpha.store.values import contains
from memalpha.types import AnyTask, Hit, MemoryEntry, Question, Task, Trajectory, TrajectoryGroup

BUDGET = 2048
"""Tokens (characters / 4) that a system may show for a question."""
KS = (5, 10, 20)


T = TypeVar("T")
ScoredGroups = tuple[list[TrajectoryGroup[AnyTask]], list[Record]]
"""Groups with rewards, and the records of all their questions in the same order."""
TaskRetrieval = tuple[Task, Retrieval]


class Processes(Protocol):
    """Processes that share the tasks of an evaluation (`train.learner.distributed.World`)."""

    def shard(self, values: Sequence[T]) -> tuple[int, Sequence[T]]:
        """Return this process's items and the index of the first."""
        ...

    def gather(self, values: Sequence[T]) -> list[T]:
        """Return the items of all processes, in order."""
        ...


class RolloutScorer(Protocol[AnyTask]):
    """Scores rollouts: memories (`MemoryScorer`) or replies (`rewards.evaluate.TextScorer`)."""

    def score(self, groups: Sequence[TrajectoryGroup[AnyTask]]) -> ScoredGroups[AnyTask]:
        """Return the groups with rewards, and the records of all their questions."""
        ...

    def group_records(
        self, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]
    ) -> list[list[list[Record]]]:
        """Group the records of scored groups, which are in the same order, as [group][trajectory][question]."""
        ...

    def accuracy(self, trajectory: Trajectory[AnyTask], records: Sequence[Record]) -> float | None:
        """Return a scored rollout's accuracy, from 0 to 1; None if it cannot be said."""
        ...

    def cancel(self) -> None:
        """End with an error what another thread scores now."""
        ...

    def report(self, name: str, groups: Sequence[TrajectoryGroup[AnyTask]], records: Sequence[Record]) -> Report:
        """Return the report of scored groups.

        Args:
            name: Name of the report.
            groups: Groups with rewards.
            records: Records of all their questions.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryScorer(RolloutScorer[Task]):
    """Scores memories by the questions of their tasks.

    Attributes:
        reader: Reader that answers the questions.
        rewards: Reward of the memories, with its judge if it has one.
        embedder: Embedder that the memories are searched with.
    """

    reader: Reader
    rewards: MemoryReward
    embedder: Embedder

    def score(self, groups: Sequence[TrajectoryGroup]) -> ScoredGroups[Task]:
        """Return the groups with every trajectory's reward, and the records of all their questions."""
        rewards = self.rewards
        metric = "exact" if rewards.config.metric == "judge" else rewards.config.metric
        grouped = evaluate_memory(groups, self.reader, metric, embedder=self.embedder)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        records = [records for of_group in grouped for records in of_group]
        contents: dict[int, tuple[ContentVerdicts, ...]] = {}
        if rewards.judge is not None:
            records, contents = judge_step(rewards.config, rewards.judge, trajectories, records)
        models = rewards.score_by_model(groups)
        scored = iter(
            replace(rollout, reward=rewards.reward(rollout, own, contents.get(id(rollout)), models.get(id(rollout))))
            for rollout, own in zip(trajectories, records, strict=True)
        )
        rewarded = [TrajectoryGroup(group.task, tuple(islice(scored, len(group.trajectories)))) for group in groups]
        return rewarded, [record for own in records for record in own]

    def group_records(self, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> list[list[list[Record]]]:
        return _group_records(groups, records)

    def accuracy(self, trajectory: Trajectory, records: Sequence[Record]) -> float | None:
        """Return the share of correct answers; None without questions."""
        return sum(record.correct for record in records) / len(records) if records else None

    def cancel(self) -> None:
        """Let readers and judges behind endpoints give up what another thread asks."""
        policies: list[Any] = [self.reader.policy] if isinstance(self.reader, UsesPolicy) else []
        policies += self.rewards.judge.policies if self.rewards.judge is not None else []
        for policy in policies:
            if policy is not None and is_endpoint(policy):
                policy.client.give_up()

    def report(self, name: str, groups: Sequence[TrajectoryGroup], records: Sequence[Record]) -> Report:
        """Return the report of scored groups, each record with its error class.

        Args:
            name: System's name in the report.
            groups: Rollouts, one group a task.
            records: Scored answers to the questions of all groups.
        """
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        summary = {
            "reader": self.reader.name,
            "metric": self.rewards.config.metric,
            **reader_metrics(self.reader, records),
            **summarize(records, trajectories, self.rewards.count_tokens),
        }
        return Report(name, summary, tuple(with_error_classes(groups, records)), tuple(groups))


@dataclass(frozen=True, slots=True)
class Evaluator(Generic[AnyTask]):
    """Evaluate greedily. With several processes each handles a shard of the tasks, and all get the whole report.

    Attributes:
        engine: Engine of the rollouts, with the policy to evaluate.
        scorer: Scores the rollouts.
        world: Processes that share the tasks; None: this one alone.
    """

    engine: RolloutEngine[AnyTask]
    scorer: RolloutScorer[AnyTask]
    world: Processes | None = None

    def evaluate(
        self, name: str, tasks: Sequence[AnyTask], seed: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Report:
        """Roll out each task once, score the rollouts and report.

        Args:
            name: Name of the report.
            tasks: Tasks to evaluate on.
            seed: Seed of the rollouts.
            progress: Called with (done, all) turns of this process.
        """
        shard = tasks if self.world is None else self.world.shard(tasks)[1]
        shard = fit_tasks(self.engine.policy, shard)
        groups, records = self.scorer.score(self.engine.roll_out(shard, seed=seed, progress=progress))
        if self.world is not None:
            groups, records = self.world.gather(groups), self.world.gather(records)
        return self.scorer.report(name, groups, records)


def evaluate(
    system: MemoryAgent | Policy,
    tasks: Sequence[Task],
    reader: Reader | str | None = None,
    *,
    config: AgentConfig | None = None,
    reward: RewardConfig | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
    embedder: Embedder | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    check_reader: bool = True,
) -> Report:
    """Build a fresh memory for every task, greedily, and ask its questions.

    Args:
        system: A policy, or an agent. Of an agent the policy, configuration and reader are used, and its store's schema
            and embedder; the store itself is not touched.
        tasks: Tasks with chunks and questions.
        reader: A reader, "extractive", or a policy's name. Default: the agent's reader, else the policy itself, or the
            quoting reader for a scripted policy and for `smol`.
        config: Prompts, tools and embedder of the writer. Default: the agent's, or the prompt style of the policy.
        reward: Reward preset and metric.
        count_tokens: Counts tokens of memory and conversation; use the same for all compared systems.
        embedder: Embedder of the memories. Default: the agent's store's, else the configuration's.
        name: Name of the report. Default: the policy's.
        progress: Called with (chunks read, all chunks).
        check_reader: Stop if the first answers of the reader's language model are all empty, or most are cut off.

    Raises:
        DataError: No task has a question.
        ConfigError: An argument is of another type.
        EvaluationError: The reader cannot answer (`qa.reader`).
    """
    check_type("system", system, (MemoryAgent, Policy), error=ConfigError)
    tasks = check_items("tasks", tasks, of="tasks", error=DataError)
    for task in tasks:
        check_type("tasks", task, Task, error=DataError)
    check_type("config", config, (AgentConfig, NoneType), error=ConfigError)
    check_type("reward", reward, (RewardConfig, NoneType), error=ConfigError)
    check_type("name", name, (str, NoneType), error=ConfigError)
    check_flag("check_reader", check_reader, error=ConfigError)
    check_function("count_tokens", count_tokens, error=ConfigError)
    if progress is not None:
        check_function("progress", progress, error=ConfigError)
    if embedder is not None:
        check_embedder(embedder)
    _check_questions(tasks)
    policy = system.policy if isinstance(system, MemoryAgent) else system
    schema = None
    if isinstance(system, MemoryAgent):
        config, reader, schema = config or system.config, reader or system.reader, system.store.schema
        embedder = embedder or system.store.load_embedder()
    config = config or with_prompt_style(AgentConfig(), policy)
    if reader is not None and not isinstance(reader, str):
        require_reader(reader)
    reader = load_reader(reader) if isinstance(reader, str) else reader or default_reader(policy, config)
    embedder = embedder or load_embedder(config.embedder)
    rewards = MemoryReward(reward or RewardConfig(), count_tokens)
    scorer = MemoryScorer(with_check(reader, check_reader), rewards, embedder)
    engine = memory_engine(policy, config, embedder, schema)
    return Evaluator(engine, scorer).evaluate(name or policy.name, tasks, progress=progress)


# ---------------------------------------------------------------------------------------------------- many systems


def run_systems(
    systems: Sequence[str | Policy | EvaluatedSystem],
    tasks: Sequence[Task],
    reader: Reader,
    *,
    budget: int = BUDGET,
    metric: str | None = None,
    default_metric: str = "exact",
    k: int = EVAL_K,
    embedder: Embedder | str = "static",
    agent: AgentConfig | None = None,
    judge: Judge | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    on_report: Callable[[Report], None] | None = None,
    check_reader: bool = True,
) -> list[Report]:
    """Evaluate `systems` and return one report for each, in their order.

    Args:
        systems: Names (see `qa.systems`), policies that write, or objects with the methods of `EvaluatedSystem`.
        tasks: Tasks with chunks and questions.
        reader: The one reader that answers for all systems.
        budget: Tokens (characters / 4) that a system may show for a question.
        metric: Metric that scores all answers. Default: each question's own.
        default_metric: Metric of questions that name none.
        k: Passages that searching systems return.
        embedder: Embedder of the systems that search, or its name.
        agent: Prompts and tools of writers.
        judge: Judge that judges all answers in addition.
        progress: Called with (system, chunks read, all chunks).
        on_report: Called with each report as soon as it is complete.
        check_reader: Stop if the first answers of the reader's language model are all empty, or most are cut off.

    Raises:
        DataError: No task has a question, or two tasks have the same id.
        ConfigError: A system is named twice, budget or k is below 1, or a metric is unknown or lacks its judge.
        EvaluationError: The reader cannot answer (`qa.reader`), or a system raised.
    """
    _check_questions(tasks)
    if budget < 1 or k < 1:
        raise ConfigError("a system needs a budget of at least one token, and one passage")
    sources = [as_system(system) for system in systems]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise ConfigError(f"systems: {Counter(names).most_common(1)[0][0]!r} is named twice")
    if repeated := [id for id, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise DataError(f"task {repeated[0]!r} is there twice: records are told apart by the ids of their tasks")
    tasks = _set_metrics(tasks, metric, default_metric, judge is not None)
    embedder = load_embedder(embedder) if isinstance(embedder, str) else embedder
    searches = isinstance(reader, PolicyReader) and reader.config.kind == "agentic"
    settings = SystemSettings(budget, k, embedder, agent or AgentConfig(), is_searchable=searches)
    embedder.encode(list(dict.fromkeys(question.question for task in tasks for question in task.questions)))
    with _count_bills(None, reader, judge) as ceiling_bills:
        scorer = _SystemScorer(tasks, with_check(reader, check_reader), settings, judge)
    reports = []
    for source in sources:
        with _count_bills(source, reader, judge) as bills:
            retrievals = source.retrieve(tasks, settings, None if progress is None else partial(progress, source.name))
            report = scorer.report(source.name, retrievals)
        report.summary.update(bills=bills, ceiling_bills=ceiling_bills)
        reports.append(report)
        if on_report is not None:
            on_report(report)
    return reports


def _check_questions(tasks: Sequence[Task]) -> None:
    """Raise `DataError` if no task has a question."""
    if not any(task.questions for task in tasks):
        remedy = "write questions, or let a model make some (memalpha data ask)"
        problem = f"no task has a question: {remedy}" if tasks else "the data set is empty"
        raise DataError(f"nothing to evaluate: {problem}")


@contextmanager
def _count_bills(source: EvaluatedSystem | None, reader: Reader, judge: Judge | None) -> Iterator[dict[str, Any]]:
    """Yield what endpoints and judges are used for in the block, by role and name; see `policy.endpoint.Bill`.

    The dictionary is empty until the block ends.
    """

    def collect() -> dict[str, dict[str, Any]]:
        bills: dict[str, dict[str, Any]] = {}
        for role, part in (("writer", source), ("reader", reader)):
            policy = part.policy if isinstance(part, UsesPolicy) else None
            if isinstance(policy, BilledPolicy):
                bills[f"{role} {policy.name}"] = policy.statistics()
        judges = {} if judge is None else judge.statistics()
        return bills | {f"judge {name}": bill for name, bill in judges.items()}

    before, usage = collect(), dict[str, Any]()
    yield usage
    for name, bill in collect().items():
        usage[name] = {key: None if value is None else value - before[name][key] for key, value in bill.items()}


def _set_metrics(tasks: Sequence[Task], metric: str | None, default: str, judged: bool) -> list[Task]:
    """Return the tasks with each question's metric, as a text, in its `meta`.

    Raises:
        ConfigError: A metric is unknown, or needs a judge and there is none.
        DataError: The gold answer of a choice names no option.
    """
    results = []
    for task in tasks:
        questions = []
        for question in task.questions:
            name = str(metric or question.meta.get("metric", default))
            if name in metrics.JUDGED and not judged:
                raise ConfigError(f"metric {name} needs a judge: name it in judge.judges, or set metric=contains")
            place = f"task {task.id!r}, question {question.id!r}"
            if name not in metrics.JUDGED:
                metrics.load_metric(name, "metric" if metric else f"{place}: meta.metric")
            questions.append(question.model_copy(update={"meta": {**question.meta, "metric": name}}))
            if name == "choice":  # before anything is written or answered
                try:
                    metrics.score_question(questions[-1], Answer(""))
                except DataError as error:
                    raise DataError(f"{place}: {error}") from error
        results.append(task.model_copy(update={"questions": tuple(questions)}))
    return results


def evidence_accuracy(
    tasks: Sequence[Task], reader: Reader, metric: str, embedder: Embedder
) -> tuple[float | None, int]:
    """Return the accuracy of a reader that is shown what questions name as evidence, and how many these are.

    It is the most that a memory of the same words could make of that reader. Only questions with an answer count, and
    none that needs a judge; the accuracy is None if none of them names evidence that was said before it is asked.

    Args:
        tasks: Tasks with questions.
        reader: The reader.
        metric: Metric of questions whose `meta` names none.
        embedder: Embedder of the settings; nothing is searched.
    """
    asked = []
    for task in tasks:
        questions = [
            q for q in task.questions if q.answers and q.evidence and q.meta.get("metric") not in metrics.JUDGED
        ]
        asked.append(task.model_copy(update={"questions": tuple(questions)}))
    settings = SystemSettings(budget=EVIDENCE_BUDGET, k=1, embedder=embedder)
    scorer = _SystemScorer(_set_metrics(asked, None, metric, judged=False), reader, settings, None)
    correct = list(scorer.ceiling.values())
    return mean([float(is_right) for is_right in correct]), len(correct)


class _SystemScorer:
    """Score what systems return: questions, reader, settings and judge are the same for all.

    The reader is first asked all questions that name evidence, with the evidence in view: its ceiling.
    """

    def __init__(self, tasks: Sequence[Task], reader: Reader, settings: SystemSettings, judge: Judge | None) -> None:
        self.tasks, self.reader, self.settings, self.judge = tasks, reader, settings, judge
        self.ceiling: dict[tuple[str, str], bool] = {}  # by (task id, question id), of questions with evidence
        pairs = self._pairs(Oracle().retrieve(tasks, settings))
        questions = [(task, item) for task, item in pairs if item.question.evidence and item.passages]
        records, _ = self._score("oracle", questions) if questions else ([], [])
        self.ceiling = {(record.task, record.question_id): record.correct for record in records}

    def report(self, name: str, retrievals: Retrievals) -> Report:
        """Build the report of one system from the passages that it returned for all questions.

        Raises:
            PolicyError: No verdict of the judge could be read.
        """
        questions = self._pairs(retrievals)
        records, unjudged = self._score(name, questions)
        if not records:
            raise PolicyError(
                f"system {name}: no verdict on any of its {len(unjudged)} answers could be read: take another judge, "
                "or give it more room (judge.max_new_tokens)"
            )
        trajectories = [trajectory for group in retrievals.groups for trajectory in group.trajectories]
        # As in training, refusing goes by all live entries if the system shows them, which is stricter.
        is_hidden = any(item.entries is None for _, item in questions)
        refuses_by = f"refuse, by {'what is shown' if is_hidden else 'all that is held'}"
        summary: dict[str, Any] = {
            "system": name,
            "reader": self.reader.name,
            "conflicts": refuses_by if self.reader.conflicts == "refuse" else self.reader.conflicts,
            "metric": "+".join(sorted({item.question.meta["metric"] for _, item in questions})),
            "budget": self.settings.budget,
            "k": self.settings.k,
            "reader_truncated": None,
            **reader_metrics(self.reader, records),
            **summarize(records, trajectories),
            **_system_metrics(records),
        }
        for ability, figures in summary["by_ability"].items():
            figures["interval"] = _interval([record for record in records if record.ability == ability])
        if not trajectories:
            summary["memory_tokens"] = mean(retrievals.sizes)
            summary["conversation_tokens"] = mean([conversation_tokens(task, estimate_tokens) for task in self.tasks])
        if self.judge is not None:
            summary["unjudged"] = len(unjudged)
        return Report(name, summary, tuple(records), retrievals.groups, tuple(unjudged))

    def _pairs(self, retrievals: Retrievals) -> list[tuple[Task, Retrieval]]:
        return [(task, item) for task, items in zip(self.tasks, retrievals.by_task, strict=True) for item in items]

    def _score(self, name: str, questions: Sequence[TaskRetrieval]) -> tuple[list[Record], list[dict[str, Any]]]:
        """Return a classified record for every question, and the answers without a readable verdict."""
        # For a system that never names turns, an empty retrieval (before its first entry, say) is no recall of 0.
        passages = [passage for _, item in questions for passage in item.passages]
        names_turns = not passages or any(passage.turns or passage.cut_turns for passage in passages)
        answered = list(ask_retrievals(questions, self.reader))
        records = [self._record(name, task, item, answer, names_turns) for task, item, answer in answered]
        unjudged: list[dict[str, Any]] = []
        if self.judge is not None:
            records, unjudged = judge_records(records, self.tasks, self.judge)
        sources = {(task.id, item.question.id): (task, item) for task, item, _ in answered}
        return [classified(*sources[record.task, record.question_id], record) for record in records], unjudged

    def _record(self, name: str, task: Task, item: Retrieval, answer: Answer, names_turns: bool) -> Record:
        question = item.question
        score = metrics.score_question(question, answer) or 0.0  # None: a judge has yet to say
        recall = evidence_recall(item) if names_turns else None
        scores = {question.meta["metric"]: score}
        scores |= {other: metrics.best_score(other, answer.text, question.answers) for other in metrics.METRICS}
        scores |= metrics.official_scores(question, answer)
        if answer.cited is not None:
            notes = metrics.evidence_notes(task, question, answer.notes, item.passages)
            scores |= metrics.cited_scores(answer.cited, score, notes)
        if recall is not None:
            evidence = set(question.evidence)
            for k in KS:
                shown = {turn for passage in item.passages[:k] for turn in passage.turns}
                scores[f"evidence_recall@{k}"] = len(evidence & shown) / len(evidence)
        if question.answers:  # LongMemEval's retrieval leaves abstention out
            turns = (turn for passage in item.passages for turn in passage.turns)
            scores |= session_scores(turns, question.meta.get("answer_session_ids", ()))
        correct, ceiling = metrics.is_correct(question, score), self.ceiling.get((task.id, question.id))
        return build_record(
            task, item, answer, score, correct, system=name, evidence_recall=recall, scores=scores, ceiling=ceiling
        )


def _system_metrics(records: Sequence[Record]) -> dict[str, Any]:
    """Return the metrics that only `run_systems` has; retrieval counts questions with an answer."""
    with_recall = [record for record in records if record.gold and record.evidence_recall is not None]
    falls = waterfall(records)
    figures: dict[str, Any] = {
        "ceiling": falls[-1].ceiling,
        "ceiling_n": falls[-1].ceiling_n or None,
        "ceiling_answered": falls[-1].ceiling_answered,
        "abstained": mean([float(record.abstained) for record in records]),
        "tokens": mean([float(record.tokens) for record in records]),
        "evidence_recall": mean([record.evidence_recall or 0.0 for record in with_recall]),
    }
    for k in KS:
        figures[f"evidence_recall@{k}"] = mean([record.scores[f"evidence_recall@{k}"] for record in with_recall])
    if {record.ability for record in records} <= set(LONGMEMEVAL_TYPES):
        table = longmemeval((record.question_id, record.ability, record.correct) for record in records)
        items = (item for record in with_recall for item in record.scores.items())
        values = group_values(item for item in items if item[0].startswith(("recall_", "ndcg_")))
        figures["longmemeval"] = {**table, "retrieval": {name: mean(scores) for name, scores in values.items()}}
    return figures | {
        "accuracy_interval": _interval(records),
        "macro": macro(scored_answers(records, "correct")),
        "waterfall": [fall.as_json() for fall in falls],
        "losses": dict(sorted(Counter(record.error_class for record in records if record.error_class).items())),
        "rules": dict(sorted(Counter(record.rule for record in records if record.rule).items())),
    }


def _interval(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the interval of the accuracy over conversations; None below `MIN_CLUSTERS` conversations."""
    return estimate(scored_answers(records, "correct")).interval


EVIDENCE_BUDGET = 4096
"""Tokens (characters / 4) of evidence that `evidence_accuracy` shows for a question."""
SINGLE_VALUED = ("stated", "updated", "retracted")
"""Kinds of questions (`Question.meta["kind"]`) about a slot that has one value at a time."""
MAX_BATCH_PASSAGES = 200_000
"""Passages that a reader gets in one batch, at most."""


# ---------------------------------------------------------------------------------------------------- written memories


@dataclass(frozen=True, slots=True, eq=False)
class StateQuestion:
    """A question of a task, and the memory state to answer it from; `rollout` goes into the record."""

    task: Task
    question: Question
    state: MemoryState
    rollout: int = 0


def questions_of(groups: Sequence[TrajectoryGroup]) -> Iterator[StateQuestion]:
    """Yield each trajectory's questions with the states that they are asked of."""
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        for question in trajectory.task.questions:
            state = trajectory.states[trajectory.task.asked_after(question)]
            yield StateQuestion(trajectory.task, question, state, trajectory.rollout)


def evaluate_memory(
    groups: Sequence[TrajectoryGroup], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[list[list[Record]]]:
    """Ask every trajectory its task's questions; arguments as in `ask_states`.

    Returns:
        Records as [group][trajectory][question].
    """
    return _group_records(groups, ask_states(list(questions_of(groups)), reader, metric, embedder=embedder))


def _group_records(groups: Sequence[TrajectoryGroup], records: Iterable[Record]) -> list[list[list[Record]]]:
    remaining = iter(records)
    return [
        [list(islice(remaining, len(trajectory.task.questions))) for trajectory in group.trajectories]
        for group in groups
    ]


def ask_states(
    items: Sequence[StateQuestion], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[Record]:
    """Ask each question of its state, which the reader searches.

    Args:
        items: Questions with their states.
        reader: Reader that answers. Its exceptions are passed on: a failed reader is not a wrong answer.
        metric: Name of the metric that scores answers.
        embedder: Embedder that the memories are searched with.

    Returns:
        One record per item, in order.
    """
    states = {id(item.state): item.state for item in items}
    texts = dict.fromkeys(item.question.question for item in items)
    for state in states.values():
        texts |= dict.fromkeys(entry.content for entry in state.entries.values())
        texts |= dict.fromkeys(state.schema.category_texts.values())
    if texts:
        embedder.encode(list(texts))  # in one batch, so that the searches find them in the embedder's cache
    memories = {key: WorkingMemory(state, embedder) for key, state in states.items()}
    questions = [
        (item.task, Retrieval(item.question, (), 0, item.state.core, memory=memories[id(item.state)])) for item in items
    ]
    records = []
    for item, (task, seen, answer) in zip(items, ask_retrievals(questions, reader), strict=True):
        score, correct, scores = _score(task, seen, answer, metric)
        records.append(build_record(task, seen, answer, score, correct, rollout=item.rollout, scores=scores))
    return records


def _score(task: Task, item: Retrieval, answer: Answer, metric: str) -> tuple[float, bool, dict[str, float]]:
    """Return the score, True if it counts as right, and its components if the metric has some."""
    question = item.question
    if metric not in ("question", "cited"):
        score = metrics.score_answer(metric, answer, question.answers)
        return score, score >= metrics.CORRECT_FROM[metric], {}
    score = metrics.score_question(question, answer)
    if score is None:
        raise DataError(f"question {question.id!r}: its metric needs a judge: set reward.metric=judge")
    correct = metrics.is_correct(question, score)
    if metric == "question":
        return score, correct, {}
    if answer.cited is None:
        raise ConfigError("reward.metric: cited scores replies that name their evidence: set reader.cite=true")
    notes = metrics.evidence_notes(task, question, answer.notes, item.passages)
    parts = metrics.cited_scores(answer.cited, score, notes)
    return parts["cited"], correct, parts


# ------------------------------------------------------------------------------------------------------------- asking


def ask_retrievals(questions: Sequence[TaskRetrieval], reader: Reader) -> Iterator[tuple[Task, Retrieval, Answer]]:
    """Yield the reader's answer to each question, in batches of at most `MAX_BATCH_PASSAGES` passages.

    As reader entries, passages take a hundred times the memory. Where the reader searched by itself or saw the whole
    memory, the retrieval that is yielded holds the passages that it saw.
    """
    first = passages = 0
    for index, (_, item) in enumerate(questions):
        if index > first and passages + len(item.passages) > MAX_BATCH_PASSAGES:
            yield from _ask_batch(questions[first:index], reader)
            first, passages = index, 0
        passages += len(item.passages)
    yield from _ask_batch(questions[first:], reader)


def _ask_batch(questions: Sequence[TaskRetrieval], reader: Reader) -> Iterator[tuple[Task, Retrieval, Answer]]:
    entries: dict[int, MemoryEntry] = {}
    live: dict[int, Callable[[], list[MemoryEntry]]] = {}
    sources: dict[int, tuple[MemoryEntry, Passage]] = {}  # by the identity of the entry

    def as_hits(passages: Sequence[Passage]) -> tuple[Hit, ...]:
        hits = passages_as_hits(passages, entries)
        sources.update((id(hit.entry), (hit.entry, passage)) for hit, passage in zip(hits, passages, strict=True))
        return hits

    def list_entries(passages: Sequence[Passage]) -> list[MemoryEntry]:
        return [hit.entry for hit in as_hits(passages)]

    asked: list[Item] = []
    for _, item in questions:
        question, memory = item.question, item.memory
        if memory is None:
            entries_of = None
            if item.entries is not None:
                entries_of = live.setdefault(id(item.entries), cache(partial(list_entries, item.entries)))
            find = None if item.search is None else lambda query, find=item.search: as_hits(find(query))
            memory = RetrievedMemory(as_hits(item.passages), item.core, entries_of, find)
        # Custom readers may expect a text: pass the whole question only if it has choices or a date.
        has_details = question_with_choices(question) != question.question
        asked.append((question if has_details else question.question, memory))
    answers = check_answers(reader, len(asked), lambda: reader.answer(asked))
    for (task, item), answer in zip(questions, answers, strict=True):
        seen = item
        # Of a memory, by an agentic reader, or of the whole memory.
        if item.memory is not None or answer.searches or answer.left_out is not None:
            for hit in answer.hits:
                if id(hit.entry) not in sources:
                    sources[id(hit.entry)] = hit.entry, as_passage(hit.entry)
            shown = tuple(sources[id(hit.entry)][1] for hit in answer.hits)
            tokens = passage_tokens(shown) + estimate_tokens(item.core)
            if item.memory is not None:
                tokens = sum(estimate_tokens(passage.text) for passage in shown)
            seen = replace(item, passages=shown, tokens=tokens)
        yield task, seen, _refuse_disputed(reader, seen, answer)


# ------------------------------------------------------------------------------------------------------------- records


def build_record(
    task: Task, item: Retrieval, answer: Answer, score: float, correct: bool, *, rollout: int = 0, **fields: Any
) -> Record:
    """Build the record of an answer; `fields` are further fields of `Record`.

    Args:
        task: Task of the question.
        item: Question that was asked, with the passages that the reader saw.
        answer: Answer of the reader.
        score: Score by the metric, 0 to 1.
        correct: True if the score counts as right.
        rollout: Index of the rollout.
    """
    question = item.question
    # A wrong answer is stale if it gives a value that no longer holds (`meta["stale"]`, the former values).
    is_lasting = question.meta.get("kind") not in CHANGED or correct or answer.abstained
    return Record(
        task=task.id,
        rollout=rollout,
        question_id=question.id,
        ability=question.category or "none",
        kind=question.meta.get("kind"),
        question=question.question,
        answer=answer.text,
        gold=question.answers,
        score=score,
        correct=correct,
        retrieved=tuple(passage.id or f"#{index}" for index, passage in enumerate(item.passages)),
        tokens=item.tokens,
        stale=not is_lasting and any(contains(answer.text, str(old)) for old in question.meta.get("stale", ())),
        conflict=answer.conflict,
        abstained=metrics.is_refusal(answer, question.answers),
        truncated=answer.truncated,
        searches=tuple({"query": item.query, "retrieved": list(item.retrieved)} for item in answer.searches),
        left_out=answer.left_out,
        **fields,
    )


def _refuse_disputed(reader: Reader, item: Retrieval, answer: Answer) -> Answer:
    """Return the answer, marked as a conflict if live statements give the question's slot two values.

    Statements are the contents of the memory's entries, else its passages, and the lines of the core text. Readers that
    refuse conflicts go by it. The task has to name the slot and its values in `Question.meta`. The values are `values`,
    current one first, where the answer itself is no value of the slot ("yes"). Otherwise they are the answers and
    `stale`.
    """
    meta = item.question.meta
    values = meta.get("values") or (meta.get("stale") and [*item.question.answers, *meta["stale"]])
    if reader.conflicts != "refuse" or meta.get("kind") not in SINGLE_VALUED or not (meta.get("slot") and values):
        return answer
    if item.memory is not None:
        statements, core = [entry.content for entry in item.memory.list()], item.core
    elif item.entries is not None:
        statements, core = [passage.text for passage in item.entries], item.full_core or item.core
    else:
        statements, core = [passage.text for passage in item.passages], item.core
    statements += core.splitlines()
    is_disputed = states_several_values(str(meta["slot"]), list(map(str, values)), statements)
    return replace(answer, conflict=True) if is_disputed else answer
