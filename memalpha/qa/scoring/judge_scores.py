"""Apply a judge's verdicts to records: as rewards in training, beside other metrics in evaluation.

A judge that fails raises. An answer without a readable verdict ends a training step too. In an evaluation it becomes an
`UnjudgedAnswer`, apart from the records; no score is made up for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memalpha.config import RewardConfig
from memalpha.qa.scoring.cited import replace_answer_score
from memalpha.qa.scoring.judge import Item, Judge, Write, item_of
from memalpha.qa.scoring.judge_prompts import Benchmark
from memalpha.qa.scoring.metrics import CORRECT_FROM, JUDGED
from memalpha.types import Question, Task, ToolResult, Trajectory, TrajectoryGroup, Turn

if TYPE_CHECKING:
    from memalpha.qa.records import Record

MAJORITY = 0.5
"""Score above which a vote of judges counts as correct."""

_WRITES = {"inserted": "insert", "updated": "update", "core_updated": "core_update", "deleted": "delete"}
_PUBLISHED = ("inserted", "updated")


@dataclass(frozen=True, slots=True)
class ContentVerdicts:
    """Validity of one turn's writes.

    Attributes:
        writes: A value for each result of the turn; None if it is not judged.
        nothing: Value of writing nothing; None if something was written.
    """

    writes: tuple[float | None, ...]
    nothing: float | None = None


@dataclass(frozen=True, slots=True)
class UnjudgedAnswer:
    """Answer without a readable verdict of any judge."""

    record: Record
    votes: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return one line of the file of unjudged answers."""
        record = self.record
        keys = {
            "task": record.task,
            "rollout": record.rollout,
            "question_id": record.question_id,
            "system": record.system,
        }
        return {**keys, "question": record.question, "answer": record.answer, **self.votes}


GroupedRecords = list[list[list["Record"]]]


def judge_step(
    config: RewardConfig, judge: Judge, groups: Sequence[TrajectoryGroup], grouped: GroupedRecords
) -> tuple[GroupedRecords, dict[int, tuple[ContentVerdicts, ...]]]:
    """Judge answers (`metric=judge`) and writes (`content=judge`) of a training step in one batch.

    Args:
        config: Reward settings.
        judge: Judge with its endpoints.
        groups: Groups of trajectories.
        grouped: Records as [group][trajectory][question].

    Returns:
        The records with the judge's scores, and the verdicts on each turn's writes by `id` of the trajectory.

    Raises:
        PolicyError: A verdict is missing.
    """
    pairs = [
        pair for group, rows in zip(groups, grouped, strict=True) for pair in zip(group.trajectories, rows, strict=True)
    ]
    items: list[Item | Write] = []
    if config.metric == "judge":
        items += [
            _judge_item(record, question)
            for trajectory, records in pairs
            for record, question in _without_conflicts(trajectory, records)
        ]
    if config.content == "judge":
        published = config.preset == "published"
        for trajectory, _ in pairs:
            items += [
                write for turn in trajectory.turns for write in _turn_writes(trajectory, turn, published) if write
            ]
    scores = iter(judge.score(items))
    if config.metric == "judge":
        grouped = [
            [[_with_score(record, 0.0 if record.conflict else next(scores)) for record in records] for records in rows]
            for rows in grouped
        ]
    contents: dict[int, tuple[ContentVerdicts, ...]] = {}
    if config.content == "judge":
        for trajectory, _ in pairs:
            contents[id(trajectory)] = tuple(
                _content_verdicts(trajectory, turn, published, scores) for turn in trajectory.turns
            )
    return grouped, contents


def judge_records(
    records: Sequence[Record], tasks: Sequence[Task], judge: Judge, benchmark: Benchmark | None = None
) -> tuple[list[Record], list[UnjudgedAnswer]]:
    """Add the judge's score as `scores["judge"]` to records, in one batch.

    If the question's own metric (`meta["metric"]`) is a judged one, the score becomes that metric and the record's
    score. Answers that the conflict rule refused are wrong without asking.

    Args:
        records: Records to judge.
        tasks: Tasks of the records.
        judge: Judge with its endpoints.
        benchmark: Rules of judging. Default: the question's own.

    Returns:
        Judged records, and the answers without a readable verdict.

    Raises:
        PolicyError: An endpoint of the judge fails.
    """
    questions = {(task.id, question.id): question for task in tasks for question in task.questions}
    record_questions = [questions[record.task, record.question_id] for record in records]
    judgements = judge.judge(
        [
            item_of(q, "" if record.conflict else record.answer, benchmark)
            for record, q in zip(records, record_questions, strict=True)
        ]
    )
    judged, unjudged = [], []
    for record, question, judgement in zip(records, record_questions, judgements, strict=True):
        if judgement.score is None:
            unjudged.append(UnjudgedAnswer(record, judgement.as_json()))
            continue
        metric = str(question.meta.get("metric"))
        scored = _with_score(record, judgement.score, metric) if metric in JUDGED else record
        names = {"judge", metric} if metric in JUDGED else {"judge"}
        scores = {**record.scores, **dict.fromkeys(sorted(names), judgement.score)}
        if metric in JUDGED and "cited.answer" in scores:
            scores |= replace_answer_score(scores, judgement.score)
        judged.append(replace(scored, scores=scores))
    return judged, unjudged


def _without_conflicts(trajectory: Trajectory, records: Sequence[Record]) -> list[tuple[Record, Question]]:
    pairs = zip(records, trajectory.task.questions, strict=True)
    return [(record, question) for record, question in pairs if not record.conflict]


def _judge_item(record: Record, question: Question) -> Item:
    return item_of(question, record.answer)


def _with_score(record: Record, score: float, metric: str = "judge") -> Record:
    correct = score > MAJORITY if metric == "judge" else score >= CORRECT_FROM[metric]
    return replace(record, score=score, correct=correct, stale=record.stale and not correct)


def _turn_writes(trajectory: Trajectory, turn: Turn, published: bool) -> list[Write | None]:
    """Return the writes of a turn to judge: one per result (None: not judged), or one for writing nothing."""
    chunk = trajectory.task.chunks[turn.chunk]
    writes = [_write(result, chunk.render(), chunk.timestamp or "", published) for result in turn.results]
    silent = not published and not any(result.code in _WRITES or result.code == "duplicate" for result in turn.results)
    return [*writes, Write("nothing", chunk.render(), timestamp=chunk.timestamp or "")] if silent else writes


def _write(result: ToolResult, chunk: str, timestamp: str, published: bool) -> Write | None:
    if result.code not in (_PUBLISHED if published else _WRITES):
        return None
    return Write(
        _WRITES[result.code],  # type: ignore[arg-type]
        chunk,
        result.category or "",
        result.content or "",
        result.before or "",
        timestamp,
    )


def _content_verdicts(trajectory: Trajectory, turn: Turn, published: bool, scores: Any) -> ContentVerdicts:
    values = [next(scores) if write else None for write in _turn_writes(trajectory, turn, published)]
    count = len(turn.results)
    return ContentVerdicts(tuple(values[:count]), values[count] if len(values) > count else None)
