"""Evaluate several systems alike: same tasks, questions, reader, token budget and metric.

Each system reads the conversations chunk by chunk. For every question it returns its passages at the time of asking,
best first, cut at the budget. The reader answers all questions of a system in one batch. The ceiling of a record is the
same reader's answer when it is shown the evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from memalpha.agent.prompts import question_with_choices
from memalpha.agent.reader import Answer, PolicyReader, Reader, Reading, check_answers
from memalpha.config import EVAL_K, AgentConfig
from memalpha.errors import ConfigError, DataError, PolicyError, did_you_mean
from memalpha.policy.base import BilledPolicy
from memalpha.qa.error_analysis import ceiling_accuracy, classified, evidence_recall, waterfall
from memalpha.qa.memory_reward import conversation_tokens
from memalpha.qa.reader import reader_metrics, with_check
from memalpha.qa.report import Record, Report, estimate_tokens, summarize
from memalpha.qa.scoring.judge import Judge, UnjudgedAnswer, judge_records
from memalpha.qa.scoring.metrics import (
    JUDGED,
    QUESTION_METRICS,
    best_score,
    cited_scores,
    evidence_notes,
    is_correct,
    official_scores,
    score_question,
)
from memalpha.qa.scoring.official import LONGMEMEVAL_TYPES, longmemeval, session_scores
from memalpha.qa.scoring.states import build_record, is_disputed
from memalpha.qa.scoring.stats import ScoredAnswer, estimate, macro
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.qa.systems.baselines import passage_tokens
from memalpha.qa.systems.builtin import EvaluatedSystem, Oracle, Progress, Retrievals, SystemSettings, load_system
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.types import Hit, MemoryEntry, Question, Task

BUDGET = 2048
"""Tokens (characters / 4) that a system may show for a question."""
MAX_BATCH_PASSAGES = 200_000
"""Passages that a reader gets in one batch, at most."""
KS = (5, 10, 20)
EXTRA_METRICS = ("exact", "f1", "contains")
"""Metrics that every record carries beside its own."""


def run_systems(
    systems: Sequence[str | EvaluatedSystem],
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
        systems: Names (see `systems.builtin`) or objects with the methods of `EvaluatedSystem`.
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
    if not any(task.questions for task in tasks):
        raise DataError("nothing to evaluate: " + ("no task has a question" if tasks else "the data set is empty"))
    if budget < 1 or k < 1:
        raise ConfigError("a system needs a budget of at least one token, and one passage")
    sources = [load_system(system) if isinstance(system, str) else system for system in systems]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise ConfigError(f"systems: {Counter(names).most_common(1)[0][0]!r} is named twice")
    if repeated := [id for id, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise DataError(f"task {repeated[0]!r} is there twice: records are told apart by the ids of their tasks")
    tasks = [_with_metric(metric, default_metric, task) for task in tasks]
    check_metrics(tasks, judge is not None)
    embedder = load_embedder(embedder) if isinstance(embedder, str) else embedder
    searches = isinstance(reader, PolicyReader) and reader.config.kind == "agentic"
    settings = SystemSettings(budget, k, embedder, agent or AgentConfig(), is_searchable=searches)
    embedder.encode(list(dict.fromkeys(question.question for task in tasks for question in task.questions)))
    run = _Evaluation(tasks, with_check(reader, check_reader), settings, judge)
    bills_before = _collect_bills(None, reader, judge)
    ceiling = run.ceiling()
    ceiling_bills = _bill_difference(bills_before, _collect_bills(None, reader, judge))
    reports = []
    for source in sources:
        before = _collect_bills(source, reader, judge)
        retrievals = source.retrieve(tasks, settings, None if progress is None else _with_name(progress, source.name))
        report = run.report(source.name, retrievals, ceiling)
        report.summary["bills"] = _bill_difference(before, _collect_bills(source, reader, judge))
        report.summary["ceiling_bills"] = ceiling_bills
        reports.append(report)
        if on_report is not None:
            on_report(report)
    return reports


def _collect_bills(source: EvaluatedSystem | None, reader: Reader, judge: Judge | None) -> dict[str, dict[str, Any]]:
    """Return the usage so far of endpoints and judges, by role and name; see `policy.endpoints.accounting.Bill`."""
    bills: dict[str, dict[str, Any]] = {}
    for role, part in (("writer", source), ("reader", reader)):
        policy: Any = getattr(part, "policy", None)
        if isinstance(policy, BilledPolicy):
            bills[f"{role} {policy.name}"] = policy.statistics()
    judges = {} if judge is None else judge.statistics()
    return bills | {f"judge {name}": bill for name, bill in judges.items()}


def _bill_difference(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage between two calls of `_collect_bills`."""
    return {
        name: {key: None if value is None else value - before[name][key] for key, value in bill.items()}
        for name, bill in after.items()
    }


def _with_name(progress: Callable[[str, int, int], None], name: str) -> Progress:
    return lambda done, total: progress(name, done, total)


def _with_metric(metric: str | None, default: str, task: Task) -> Task:
    """Return the task with each question's metric set in its `meta`."""
    questions = [
        question.model_copy(
            update={"meta": {**question.meta, "metric": metric or question.meta.get("metric", default)}}
        )
        for question in task.questions
    ]
    return task.model_copy(update={"questions": tuple(questions)})


def metric_of(question: Question) -> str:
    """Return the name of the metric that scores a question."""
    return str(question.meta["metric"])


def check_metrics(tasks: Sequence[Task], judged: bool) -> None:
    """Check that every question's metric exists and that judged metrics have a judge.

    Raises:
        ConfigError: A metric is unknown, or needs a judge and there is none.
    """
    for metric in dict.fromkeys(metric_of(question) for task in tasks for question in task.questions):
        if metric in JUDGED and not judged:
            raise ConfigError(f"metric {metric} needs a judge: name it in judge.judges, or set metric=contains")
        if metric not in QUESTION_METRICS and metric not in JUDGED:
            near = did_you_mean(metric, (*QUESTION_METRICS, *JUDGED))
            raise ConfigError(f"metric: no metric {metric!r}{near}: one of {', '.join([*QUESTION_METRICS, *JUDGED])}")


class _Evaluation:
    """One evaluation: questions, reader, settings and judge, shared by all systems."""

    def __init__(self, tasks: Sequence[Task], reader: Reader, settings: SystemSettings, judge: Judge | None) -> None:
        self.tasks, self.reader, self.settings, self.judge = tasks, reader, settings, judge

    def ceiling(self) -> dict[tuple[str, str], bool]:
        """Return, by (task id, question id), True if the reader is right when shown the evidence.

        Questions without evidence are left out.
        """
        questions = [
            (task, item)
            for task, items in zip(self.tasks, Oracle().retrieve(self.tasks, self.settings).by_task, strict=True)
            for item in items
            if item.question.evidence and item.passages
        ]
        records, _ = self._records("oracle", questions, {}) if questions else ([], [])
        return {(record.task, record.question_id): record.correct for record in records}

    def report(self, name: str, retrievals: Retrievals, ceiling: Mapping[tuple[str, str], bool]) -> Report:
        """Build the report of one system.

        Args:
            name: Name of the system.
            retrievals: Passages that it returned for all questions.
            ceiling: Result of `ceiling`.

        Raises:
            PolicyError: No verdict of the judge could be read.
        """
        questions = [(task, item) for task, items in zip(self.tasks, retrievals.by_task, strict=True) for item in items]
        records, unjudged = self._records(name, questions, ceiling)
        if not records:
            raise PolicyError(
                f"system {name}: no verdict on any of its {len(unjudged)} answers could be read: take another judge, "
                "or give it more room (judge.max_new_tokens)"
            )
        trajectories = [trajectory for group in retrievals.groups for trajectory in group.trajectories]
        summary: dict[str, Any] = {
            "system": name,
            "reader": self.reader.name,
            "conflicts": _conflict_rule(self.reader, [item for _, item in questions]),
            "metric": "+".join(sorted({metric_of(item.question) for _, item in questions})),
            "budget": self.settings.budget,
            "reader_truncated": None,
            **reader_metrics(self.reader, records),
            **summarize(records, trajectories),
            **self._system_metrics(records),
        }
        for ability, figures in summary["by_ability"].items():
            ability_records = [record for record in records if record.ability == ability]
            figures["interval"] = _interval(ability_records)
            figures["score"] = sum(record.score for record in ability_records) / len(ability_records)
        if not trajectories:
            summary["memory_tokens"] = sum(retrievals.sizes) / len(retrievals.sizes)
            conversation_sizes = [conversation_tokens(task, estimate_tokens) for task in self.tasks]
            summary["conversation_tokens"] = sum(conversation_sizes) / len(conversation_sizes)
        if self.judge is not None:
            summary["unjudged"] = len(unjudged)
        return Report(name, summary, tuple(records), retrievals.groups, tuple(unjudged))

    def _system_metrics(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return the metrics that only evaluated systems have; retrieval counts questions with an answer."""

        def mean(values: Sequence[float]) -> float | None:
            return sum(values) / len(values) if values else None

        with_recall = [record for record in records if record.gold and record.evidence_recall is not None]
        ceiling, ceiling_n, ceiling_answered = ceiling_accuracy(records)
        figures: dict[str, Any] = {
            "ceiling": ceiling,
            "ceiling_n": ceiling_n or None,
            "ceiling_answered": ceiling_answered,
            "abstained": mean([float(record.abstained) for record in records]),
            "tokens": mean([float(record.tokens) for record in records]),
            "evidence_recall": mean(
                [record.evidence_recall for record in with_recall if record.evidence_recall is not None]
            ),
        }
        for k in KS:
            figures[f"evidence_recall@{k}"] = mean([record.scores[f"evidence_recall@{k}"] for record in with_recall])
        if {record.ability for record in records} <= set(LONGMEMEVAL_TYPES):
            figures["longmemeval"] = _longmemeval(records)
        figures["accuracy_interval"] = _interval(records)
        figures["macro"] = macro([_scored_answer(record) for record in records])
        figures["waterfall"] = [fall.as_json() for fall in waterfall(records)]
        figures["losses"] = dict(
            sorted(Counter(record.error_class for record in records if record.error_class).items())
        )
        figures["rules"] = dict(sorted(Counter(record.rule for record in records if record.rule).items()))
        return figures

    def _records(
        self, name: str, questions: Sequence[tuple[Task, Retrieval]], ceiling: Mapping[tuple[str, str], bool]
    ) -> tuple[list[Record], list[UnjudgedAnswer]]:
        """Return a record for every question, and the answers without a readable verdict."""
        names_turns = _names_turns([item for _, item in questions])
        answered = [
            (task, item, answer)
            for batch in _batches(questions)
            for (task, _), (item, answer) in zip(batch, self._answers(batch), strict=True)
        ]
        records = [self._record(name, task, item, answer, ceiling, names_turns) for task, item, answer in answered]
        unjudged: list[UnjudgedAnswer] = []
        if self.judge is not None:
            records, unjudged = judge_records(records, self.tasks, self.judge)
        sources = {(task.id, item.question.id): (task, item) for task, item, _ in answered}
        return [classified(*sources[record.task, record.question_id], record) for record in records], unjudged

    def _answers(self, questions: Sequence[tuple[Task, Retrieval]]) -> list[tuple[Retrieval, Answer]]:
        """Return the reader's answers, with its conflict rule applied if it has one.

        Where the reader searched by itself or saw the whole memory, the retrieval holds the passages that it saw.
        """
        entries: dict[int, MemoryEntry] = {}
        live: dict[int, Callable[[], list[MemoryEntry]]] = {}
        further: list[list[tuple[Passage, ...]]] = [[] for _ in questions]

        def list_entries(passages: Sequence[Passage]) -> list[MemoryEntry]:
            return [hit.entry for hit in passages_as_hits(passages, entries)]

        def search(item: Retrieval, found: list[tuple[Passage, ...]], query: str) -> tuple[Hit, ...]:
            assert item.search is not None
            found.append(item.search(query))
            return passages_as_hits(found[-1], entries)

        readings = [
            Reading(
                item.question.question,
                passages_as_hits(item.passages, entries),
                item.core,
                None
                if item.entries is None
                else live.setdefault(id(item.entries), cache(partial(list_entries, item.entries))),
                question_with_choices(item.question),
                None if item.search is None else partial(search, item, found),
            )
            for (_, item), found in zip(questions, further, strict=True)
        ]
        answers = check_answers(self.reader, len(readings), lambda: self.reader.read(readings))
        pairs = [
            (_as_seen(item, answer, found), answer)
            for (_, item), found, answer in zip(questions, further, answers, strict=True)
        ]
        if self.reader.conflicts != "refuse":
            return pairs
        return [
            (item, replace(answer, conflict=True) if is_disputed(item.question, _statements(item)) else answer)
            for item, answer in pairs
        ]

    def _record(
        self,
        name: str,
        task: Task,
        item: Retrieval,
        answer: Answer,
        ceiling: Mapping[tuple[str, str], bool],
        names_turns: bool,
    ) -> Record:
        question = item.question
        score = score_question(question, answer) or 0.0  # None: a judge has yet to say
        correct = is_correct(question, score)
        recall = evidence_recall(item) if names_turns else None
        scores = {metric_of(question): score}
        scores |= {other: best_score(other, answer.text, question.answers) for other in EXTRA_METRICS}
        scores |= official_scores(question, answer)
        if answer.cited is not None:
            scores |= cited_scores(answer.cited, score, evidence_notes(task, question, answer.notes, item.passages))
        if recall is not None:
            scores |= {f"evidence_recall@{k}": recall_at(item, k) for k in KS}
        if question.answers:  # LongMemEval's retrieval leaves abstention out
            turns = (turn for passage in item.passages for turn in passage.turns)
            scores |= session_scores(turns, question.meta.get("answer_session_ids", ()))
        return build_record(
            task,
            question,
            answer,
            score,
            correct,
            retrieved=tuple(passage.id or f"#{index}" for index, passage in enumerate(item.passages)),
            system=name,
            tokens=item.tokens,
            evidence_recall=recall,
            scores=scores,
            ceiling=ceiling.get((task.id, question.id)),
        )


def _longmemeval(records: Sequence[Record]) -> dict[str, Any]:
    """Return the benchmark's own table, and retrieval by session if the system names its turns."""
    table = longmemeval((record.question_id, record.ability, record.correct) for record in records)
    scores_by_record = [record.scores for record in records if record.evidence_recall is not None and record.gold]
    names = dict.fromkeys(
        name for scores in scores_by_record for name in scores if name.startswith(("recall_", "ndcg_"))
    )
    means = {name: [scores[name] for scores in scores_by_record if name in scores] for name in names}
    return {**table, "retrieval": {name: sum(values) / len(values) for name, values in means.items()}}


def _scored_answer(record: Record) -> ScoredAnswer:
    return ScoredAnswer(record.task, record.ability, float(record.correct))


def _interval(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the interval of the accuracy over conversations; None below `MIN_CLUSTERS` conversations."""
    return estimate([_scored_answer(record) for record in records]).interval


def _conflict_rule(reader: Reader, retrievals: Sequence[Retrieval]) -> str:
    """Describe the reader's conflict rule, and what it was applied to.

    As in training, refusing goes by all live entries if the system shows them. That is stricter than going by the
    retrieved passages alone, so the description says which of the two was used.
    """
    if reader.conflicts != "refuse":
        return reader.conflicts
    return (
        "refuse, by what is shown"
        if any(item.entries is None for item in retrievals)
        else "refuse, by all that is held"
    )


def _statements(item: Retrieval) -> list[str]:
    """Return all known statements of the memory: its entries, else its passages; and core lines."""
    if item.entries is None:
        return [*(passage.text for passage in item.passages), *item.core.splitlines()]
    return [*(passage.text for passage in item.entries), *(item.full_core or item.core).splitlines()]


def _as_seen(item: Retrieval, answer: Answer, found: Sequence[Sequence[Passage]]) -> Retrieval:
    """Return a retrieval with the passages that an agentic reader, or one of the whole memory, saw."""
    if answer.left_out is None and not answer.searches:
        return item
    by_entry = {
        (hit.entry.id, hit.entry.content): passage
        for passages in (item.passages, item.entries or (), *found)
        for hit, passage in zip(passages_as_hits(passages), passages, strict=True)
    }
    seen = tuple(by_entry[hit.entry.id, hit.entry.content] for hit in answer.hits)
    return replace(item, passages=seen, tokens=passage_tokens(seen) + estimate_tokens(item.core))


def _names_turns(retrievals: Sequence[Retrieval]) -> bool:
    """Return True if any passage of a system names its source turns.

    For a system that never does, an empty retrieval (before its first entry, say) is no recall of 0.
    """
    passages = [passage for item in retrievals for passage in item.passages]
    return not passages or any(passage.turns or passage.cut_turns for passage in passages)


def _batches(questions: Sequence[tuple[Task, Retrieval]]) -> Iterator[Sequence[tuple[Task, Retrieval]]]:
    """Yield questions in order, in batches of at most `MAX_BATCH_PASSAGES` passages.

    As reader entries, passages take a hundred times the memory.
    """
    batch: list[tuple[Task, Retrieval]] = []
    passages = 0
    for pair in questions:
        if batch and passages + len(pair[1].passages) > MAX_BATCH_PASSAGES:
            yield batch
            batch, passages = [], 0
        batch.append(pair)
        passages += len(pair[1].passages)
    if batch:
        yield batch


def passages_as_hits(passages: Sequence[Passage], entries: dict[int, MemoryEntry] | None = None) -> tuple[Hit, ...]:
    """Convert passages to the hits that a reader takes.

    Args:
        passages: Passages, best first.
        entries: Cache of entries by `id()` of passages that have an id; filled here. A system that returns all its
            passages returns the same ones for every question.
    """
    entries = {} if entries is None else entries
    hits = []
    for index, passage in enumerate(passages):
        if (entry := entries.get(id(passage))) is None:
            entry = MemoryEntry(
                id=passage.id or f"#{index}",
                category=passage.category or "",
                content=passage.text,
                timestamp=passage.timestamp,
                turn=passage.turns[0] if passage.turns else None,
                valid_from=passage.order,
            )
            if passage.id:
                entries[id(passage)] = entry
        hits.append(Hit(entry, score=-float(index)))
    return tuple(hits)


def recall_at(retrieval: Retrieval, k: int) -> float:
    """Return the share of the evidence turns that the first `k` passages come from."""
    evidence = set(retrieval.question.evidence)
    return len(evidence & {turn for passage in retrieval.passages[:k] for turn in passage.turns}) / len(evidence)
