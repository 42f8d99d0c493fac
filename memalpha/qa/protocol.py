"""The protocol of an evaluation: the same tasks, questions, reader, budget of tokens and metric for every system.

Each system reads the conversations chunk by chunk and shows, for every question when it is asked, what it has, best
first, cut at the budget. The reader answers all questions of a system in one batch. What it answers when shown the
evidence itself is the ceiling that every record carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memalpha.agent.prompts import asked
from memalpha.agent.reader import Answer, Reader, Reading
from memalpha.config import EVAL_K, AgentConfig
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.qa.error_analysis import ceiling_of, classify, evidence_recall, feedback, trace, waterfall
from memalpha.qa.evaluate import is_disputed, record_of
from memalpha.qa.memory_reward import conversation_tokens
from memalpha.qa.records import Record
from memalpha.qa.report import Report, characters_by_four, summarize
from memalpha.qa.scoring.cited import cited_scores, evidence_notes
from memalpha.qa.scoring.judge import Judge
from memalpha.qa.scoring.judge_scores import Unjudged, judge_records
from memalpha.qa.scoring.metrics import JUDGED, QUESTION_METRICS, best_score, is_right, official_scores, score_question
from memalpha.qa.scoring.official import LONGMEMEVAL_TYPES, longmemeval, session_scores
from memalpha.qa.scoring.stats import Row, estimate, macro
from memalpha.qa.systems.base import Passage, Shown
from memalpha.qa.systems.builtin import Oracle, Progress, Settings, Showing, Source, load_source
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.types import Hit, MemoryEntry, Question, Task

BUDGET = 2048
"""Tokens (characters / 4) that a system may show for a question."""
AT_ONCE = 200_000
"""Passages that a reader has before it at once."""
KS = (5, 10, 20)
ALSO = ("exact", "f1", "contains")
"""Metrics that every record carries beside its own."""


def run_systems(
    systems: Sequence[str | Source],
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
    finished: Callable[[Report], None] | None = None,
) -> list[Report]:
    """Evaluate `systems` (names, see `systems`, or sources of one's own) and report on each, in their order.

    `metric` scores answers (default: each question's own, else `default_metric`); with `judge` it judges them all.
    `agent` is how writers are prompted. `progress(system, done, total)` counts what was read; `finished` gets each
    report as soon as it is there. Raises `DataError` where there is nothing to ask, `ConfigError` for a system twice.
    """
    if not any(task.questions for task in tasks):
        raise DataError("nothing to evaluate: " + ("no task has a question" if tasks else "the data set is empty"))
    if budget < 1 or k < 1:
        raise ConfigError("a system needs a budget of at least one token, and one passage")
    sources = [load_source(system) if isinstance(system, str) else system for system in systems]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise ConfigError(f"systems: {Counter(names).most_common(1)[0][0]!r} is named twice")
    if repeated := [id for id, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise DataError(f"task {repeated[0]!r} is there twice: records are told apart by the ids of their tasks")
    tasks = [_scored_by(metric, default_metric, task) for task in tasks]
    check_metrics(tasks, judge is not None)
    embedder = load_embedder(embedder) if isinstance(embedder, str) else embedder
    settings = Settings(budget, k, embedder, agent or AgentConfig())
    embedder.encode(list(dict.fromkeys(question.question for task in tasks for question in task.questions)))
    run = _Run(tasks, reader, settings, judge)
    nothing = _bills(None, reader, judge)
    ceiling = run.ceiling()
    common = _between(nothing, _bills(None, reader, judge))
    reports = []
    for source in sources:
        before = _bills(source, reader, judge)
        showing = source.show(tasks, settings, None if progress is None else _named(progress, source.name))
        report = run.report(source.name, showing, ceiling)
        report.summary["bills"] = _between(before, _bills(source, reader, judge))
        report.summary["ceiling_bills"] = common
        reports.append(report)
        if finished is not None:
            finished(report)
    return reports


def _bills(source: Source | None, reader: Reader, judge: Judge | None) -> dict[str, dict[str, Any]]:
    """By role and name, what models behind endpoints (and judges) have asked and paid so far; see `endpoint.Bill`."""
    found: dict[str, dict[str, Any]] = {}
    for role, part in (("writer", source), ("reader", reader)):
        policy: Any = getattr(part, "policy", None)
        if hasattr(policy, "statistics"):
            found[f"{role} {policy.name}"] = policy.statistics()
    judges = {} if judge is None else judge.statistics()
    return found | {f"judge {name}": bill for name, bill in judges.items()}


def _between(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What one system's writing, answering and judging came to."""
    return {
        name: {key: None if value is None else value - before[name][key] for key, value in bill.items()}
        for name, bill in after.items()
    }


def _named(progress: Callable[[str, int, int], None], name: str) -> Progress:
    return lambda done, total: progress(name, done, total)


def _scored_by(metric: str | None, otherwise: str, task: Task) -> Task:
    """The task with the metric of each question noted in its `meta`."""
    questions = [
        question.model_copy(
            update={"meta": {**question.meta, "metric": metric or question.meta.get("metric", otherwise)}}
        )
        for question in task.questions
    ]
    return task.model_copy(update={"questions": tuple(questions)})


def metric_of(question: Question) -> str:
    """The name of the metric that scores a question."""
    return str(question.meta["metric"])


def check_metrics(tasks: Sequence[Task], judged: bool) -> None:
    """Raise `ConfigError` for a metric that there is not, or that needs a judge where there is none."""
    for metric in dict.fromkeys(metric_of(question) for task in tasks for question in task.questions):
        if metric in JUDGED and not judged:
            raise ConfigError(f"metric {metric} needs a judge: name it in judge.judges, or set metric=contains")
        if metric not in QUESTION_METRICS and metric not in JUDGED:
            raise ConfigError(f"metric: there is no {metric!r}; there are {', '.join([*QUESTION_METRICS, *JUDGED])}")


class _Run:
    """What all systems of an evaluation are asked, and how their answers become records."""

    def __init__(self, tasks: Sequence[Task], reader: Reader, settings: Settings, judge: Judge | None) -> None:
        self.tasks, self.reader, self.settings, self.judge = tasks, reader, settings, judge

    def ceiling(self) -> dict[tuple[str, str], bool]:
        """By task and question, whether the reader is right when shown the evidence; only where there is some."""
        shown = [
            (task, item)
            for task, items in zip(self.tasks, Oracle().show(self.tasks, self.settings).shown, strict=True)
            for item in items
            if item.question.evidence and item.passages
        ]
        records, _ = self._records("oracle", shown, {}) if shown else ([], [])
        return {(record.task, record.question_id): record.correct for record in records}

    def report(self, name: str, showing: Showing, ceiling: Mapping[tuple[str, str], bool]) -> Report:
        """One system's report."""
        shown = [(task, item) for task, items in zip(self.tasks, showing.shown, strict=True) for item in items]
        records, unjudged = self._records(name, shown, ceiling)
        if not records:
            raise PolicyError(
                f"system {name}: no verdict on any of its {len(unjudged)} answers could be read: take another judge, "
                "or give it more room (judge.max_new_tokens)"
            )
        trajectories = [trajectory for group in showing.groups for trajectory in group.trajectories]
        summary: dict[str, Any] = {
            "system": name,
            "reader": self.reader.name,
            "conflicts": _rule(self.reader, [item for _, item in shown]),
            "metric": "+".join(sorted({metric_of(item.question) for _, item in shown})),
            "budget": self.settings.budget,
            **summarize(records, trajectories),
            **self._figures(records),
        }
        for ability, figures in summary["by_ability"].items():
            of_ability = [record for record in records if record.ability == ability]
            figures["interval"] = _interval(of_ability)
            figures["score"] = sum(record.score for record in of_ability) / len(of_ability)
        if not trajectories:
            summary["memory_tokens"] = sum(showing.sizes) / len(showing.sizes)
            read = [conversation_tokens(task, characters_by_four) for task in self.tasks]
            summary["conversation_tokens"] = sum(read) / len(read)
        if self.judge is not None:
            summary["unjudged"] = len(unjudged)
        return Report(name, summary, tuple(records), showing.groups, tuple(unjudged))

    def _figures(self, records: Sequence[Record]) -> dict[str, Any]:
        """What is measured of systems alone. Retrieval is over questions that have an answer."""

        def mean(values: Sequence[float]) -> float | None:
            return sum(values) / len(values) if values else None

        found = [record for record in records if record.gold and record.evidence_recall is not None]
        ceiling, asked, answered = ceiling_of(records)
        figures: dict[str, Any] = {
            "ceiling": ceiling,
            "ceiling_n": asked or None,
            "ceiling_answered": answered,
            "abstained": mean([float(record.abstained) for record in records]),
            "tokens": mean([float(record.tokens) for record in records]),
            "evidence_recall": mean([record.evidence_recall for record in found if record.evidence_recall is not None]),
        }
        for k in KS:
            figures[f"evidence_recall@{k}"] = mean([record.scores[f"evidence_recall@{k}"] for record in found])
        if {record.ability for record in records} <= set(LONGMEMEVAL_TYPES):
            figures["longmemeval"] = _longmemeval(records)
        figures["accuracy_interval"] = _interval(records)
        figures["macro"] = macro([_row(record) for record in records])
        figures["waterfall"] = [fall.as_json() for fall in waterfall(records)]
        figures["losses"] = dict(sorted(Counter(record.loss for record in records if record.loss).items()))
        return figures

    def _records(
        self, name: str, shown: Sequence[tuple[Task, Shown]], ceiling: Mapping[tuple[str, str], bool]
    ) -> tuple[list[Record], list[Unjudged]]:
        """A record for every question, and the answers on which no judge could be read."""
        tells = _tells_turns([item for _, item in shown])
        records = [
            self._record(name, task, item, answer, ceiling, tells)
            for part in _parts(shown)
            for (task, item), answer in zip(part, self._answers(part), strict=True)
        ]
        unjudged: list[Unjudged] = []
        if self.judge is not None:
            records, unjudged = judge_records(records, self.tasks, self.judge)
        sources = {(task.id, item.question.id): (task, item) for task, item in shown}
        return [_traced(record, *sources[record.task, record.question_id]) for record in records], unjudged

    def _answers(self, shown: Sequence[tuple[Task, Shown]]) -> list[Answer]:
        """The reader's answers, the rule on conflicts applied where it has one."""
        refuse = self.reader.conflicts == "refuse"
        live: dict[int, list[MemoryEntry]] = {}
        known: dict[int, MemoryEntry] = {}
        readings = []
        for _, item in shown:
            held = None
            if refuse and item.held is not None:
                held = live.get(id(item.held))
                if held is None:
                    held = live[id(item.held)] = [hit.entry for hit in hits_of(item.held, known)]
            question = item.question
            hits = hits_of(item.passages, known)
            readings.append(Reading(question.question, hits, item.core, held, asked(question)))
        answers = self.reader.read(readings)
        if not refuse:
            return answers
        return [
            replace(answer, conflict=True) if is_disputed(item.question, _statements(item)) else answer
            for answer, (_, item) in zip(answers, shown, strict=True)
        ]

    def _record(
        self,
        name: str,
        task: Task,
        item: Shown,
        answer: Answer,
        ceiling: Mapping[tuple[str, str], bool],
        tells: bool,
    ) -> Record:
        question, traced = item.question, trace(task, item)
        score = score_question(question, answer) or 0.0  # None: a judge has yet to say
        correct = is_right(question, score)
        recall = evidence_recall(item) if tells else None
        scores = {metric_of(question): score}
        scores |= {other: best_score(other, answer.text, question.answers) for other in ALSO}
        scores |= official_scores(question, answer)
        if answer.cited is not None:
            scores |= cited_scores(answer.cited, score, evidence_notes(task, question, answer.notes, item.passages))
        if recall is not None:
            scores |= {f"evidence_recall@{k}": recall_at(item, k) for k in KS}
        if question.answers:  # LongMemEval's retrieval leaves abstention out
            turns = (turn for passage in item.passages for turn in passage.turns)
            scores |= session_scores(turns, question.meta.get("answer_session_ids", ()))
        return record_of(
            task,
            question,
            answer,
            score,
            correct,
            retrieved=tuple(passage.id or f"#{place}" for place, passage in enumerate(item.passages)),
            written=traced.ever,
            live=traced.held,
            system=name,
            tokens=item.tokens,
            evidence_recall=recall,
            found=traced.found,
            scores=scores,
            ceiling=ceiling.get((task.id, question.id)),
        )


def _traced(record: Record, task: Task, item: Shown) -> Record:
    """The record with where it was lost, and that in words."""
    record = replace(record, loss=classify(task, item, record))
    return record if record.loss is None else replace(record, feedback=feedback(task, item, record))


def _longmemeval(records: Sequence[Record]) -> dict[str, Any]:
    """The benchmark's own table, and its retrieval by session where the system says what it showed."""
    table = longmemeval((record.question_id, record.ability, record.correct) for record in records)
    found = [record.scores for record in records if record.evidence_recall is not None and record.gold]
    names = dict.fromkeys(name for scores in found for name in scores if name.startswith(("recall_", "ndcg_")))
    means = {name: [scores[name] for scores in found if name in scores] for name in names}
    return {**table, "retrieval": {name: sum(values) / len(values) for name, values in means.items()}}


def _row(record: Record) -> Row:
    return Row(record.task, record.ability, float(record.correct))


def _interval(records: Sequence[Record]) -> tuple[float, float] | None:
    """Of the accuracy, over conversations; None of a single one."""
    found = estimate([_row(record) for record in records])
    return None if found.low is None or found.high is None else (found.low, found.high)


def _rule(reader: Reader, shown: Sequence[Shown]) -> str:
    """The reader's rule on conflicts. Refusing what contradicts itself goes by all that a system holds where it shows
    that, as in training, and is stricter than going by what it shows for the question: so it is said by which."""
    if reader.conflicts != "refuse":
        return reader.conflicts
    return "refuse, by what is shown" if any(item.held is None for item in shown) else "refuse, by all that is held"


def _statements(item: Shown) -> list[str]:
    """What the memory states, as far as it is known: what it holds, else what it shows; and its core, line by line."""
    if item.held is None:
        return [*(passage.text for passage in item.passages), *item.core.splitlines()]
    return [*(passage.text for passage in item.held), *(item.core_held or item.core).splitlines()]


def _tells_turns(shown: Sequence[Shown]) -> bool:
    """Whether a system says what its passages were taken from: of one that never does, showing nothing (before its
    first entry, say) is no recall of 0."""
    passages = [passage for item in shown for passage in item.passages]
    return not passages or any(passage.turns or passage.lost for passage in passages)


def _parts(shown: Sequence[tuple[Task, Shown]]) -> Iterator[Sequence[tuple[Task, Shown]]]:
    """Questions in order, as many at a time as have `AT_ONCE` passages before the reader: as a reader's entries these
    take a hundred times the memory."""
    part: list[tuple[Task, Shown]] = []
    passages = 0
    for pair in shown:
        if part and passages + len(pair[1].passages) > AT_ONCE:
            yield part
            part, passages = [], 0
        part.append(pair)
        passages += len(pair[1].passages)
    if part:
        yield part


def hits_of(passages: Sequence[Passage], known: dict[int, MemoryEntry] | None = None) -> tuple[Hit, ...]:
    """Passages as a reader gets them. `known`: entries by `id()` of passages that have an id, filled here: a system
    that shows all it holds shows the same passages for every question."""
    known = {} if known is None else known
    hits = []
    for place, passage in enumerate(passages):
        if (entry := known.get(id(passage))) is None:
            entry = MemoryEntry(
                id=passage.id or f"#{place}",
                category=passage.category or "",
                content=passage.text,
                timestamp=passage.timestamp,
                turn=passage.turns[0] if passage.turns else None,
                valid_from=passage.order,
            )
            if passage.id:
                known[id(passage)] = entry
        hits.append(Hit(entry, score=-float(place)))
    return tuple(hits)


def recall_at(shown: Shown, k: int) -> float:
    """The share of the evidence turns that the first `k` passages were taken from."""
    wanted = set(shown.question.evidence)
    return len(wanted & {turn for passage in shown.passages[:k] for turn in passage.turns}) / len(wanted)
