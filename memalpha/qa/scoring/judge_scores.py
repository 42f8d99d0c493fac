"""What a judge says of answers and writes where they become scores: in a reward, and beside other metrics.

A judge that fails raises. An answer without a readable verdict ends a training step too; in an evaluation it is an
`Unjudged`, apart from the records: no score is made up for it.
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
"""By a vote of judges an answer is correct above this, where a yes or no is needed."""

_WRITES = {"inserted": "insert", "updated": "update", "core_updated": "core_update", "deleted": "delete"}
_PUBLISHED = ("inserted", "updated")


@dataclass(frozen=True, slots=True)
class ContentVerdicts:
    """Validity of one turn's writes, a value for each of its results (None: not one that is judged).

    `nothing`: whether it was right to write nothing, where nothing was written.
    """

    writes: tuple[float | None, ...]
    nothing: float | None = None


@dataclass(frozen=True, slots=True)
class UnjudgedAnswer:
    """An answer on which no judge gave a readable verdict."""

    record: Record
    votes: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """One line of an error file."""
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
    """The records with the judge's scores (`metric=judge`), and by `id` of a trajectory its turns' contents
    (`content=judge`). All verdicts are one batch; raises `PolicyError` where one is missing."""
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
            [[_with_score(one, 0.0 if one.conflict else next(scores)) for one in records] for records in rows]
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
    """Records of `tasks` with the judge's score as `scores["judge"]`, in one batch, and those it could not judge.

    Where the question's own metric (`meta["metric"]`) is a judged one, it is that and the record's score too. Answers
    from a conflict are wrong without asking. Raises `PolicyError` where a judge's endpoint fails.
    """
    questions = {(task.id, question.id): question for task in tasks for question in task.questions}
    record_questions = [questions[record.task, record.question_id] for record in records]
    judgements = judge.judge(
        [
            item_of(q, "" if one.conflict else one.answer, benchmark)
            for one, q in zip(records, record_questions, strict=True)
        ]
    )
    judged, unjudged = [], []
    for one, question, judgement in zip(records, record_questions, judgements, strict=True):
        if judgement.score is None:
            unjudged.append(UnjudgedAnswer(one, judgement.as_json()))
            continue
        metric = str(question.meta.get("metric"))
        scored = _with_score(one, judgement.score, metric) if metric in JUDGED else one
        names = {"judge", metric} if metric in JUDGED else {"judge"}
        scores = {**one.scores, **dict.fromkeys(sorted(names), judgement.score)}
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
    """What is asked about a turn: one a result (None: not judged), or that nothing was written."""
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
