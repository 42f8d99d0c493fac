"""Compare memories with a task's gold operations (`memalpha eval state data=TASKS`), with HaluMem's four scores.

After every chunk a system's live entries and core memory are compared with the facts that hold then (Chen et al. 2025,
HaluMem, arXiv:2511.03506):

| score       | share of                                                                                           |
|-------------|----------------------------------------------------------------------------------------------------|
| recall      | facts that the memory states after the chunk that gives them                                       |
| precision   | entries written while a chunk was read that state a fact which holds after it                      |
| false       | statements that are false on purpose (`Task.meta["interference"]`) which the memory makes          |
| omitted     | changed facts whose new value the memory does not state                                            |
| (stale)     | changed facts whose old value an entry still states, without the new one                           |

A language model decides what states what (`judge=`), as in HaluMem. Without one the words do, which is strict: an entry
states `topic: value` if it contains the value, and a sentence if it has all words of it that are no stop words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.qa.report import make_result_folder
from memalpha.qa.scoring.judge import Judge, Statement, load_judge
from memalpha.qa.scoring.stats import ScoredAnswer, estimate
from memalpha.qa.state_suite import memory_texts, read_with_systems
from memalpha.store.search.lexical import term_counts
from memalpha.store.values import contains, key_value
from memalpha.tasks.load import load_evaluation_tasks
from memalpha.types import Question, Task

SCORES = ("recall", "precision", "false", "omitted", "stale")
SHOWN = 20
"""Texts that a judge sees beside a statement: those that share most of its words."""


@dataclass(frozen=True, slots=True)
class StatedCheck:
    """Hold one statement and the texts of which one has to state it.

    Attributes:
        score: Score it counts for.
        task: Id of the task.
        statement: Fact, or entry.
        texts: Entries, or facts.
    """

    score: str
    task: str
    statement: str
    texts: tuple[str, ...]


def score_memories(config: EvalConfig) -> dict[str, Any]:
    """Score `config.systems` against the gold operations of the tasks in `config.data`.

    With `config.out` the result is also written to its `eval/gold_scores.json`.

    Returns:
        `{"systems": [row, ...], "conversations", "by"}`. A row has `system`, the number of `unjudged` statements, and
        for each score None without statements or its `value`, `interval` (95 % over conversations, None for fewer than
        ten) and number of `statements`.

    Raises:
        DataError: A task has no gold operations.
    """
    assert config.data is not None
    folder = None if config.out is None else make_result_folder(config.out)
    tasks = load_evaluation_tasks(config.data, config.limit)
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"{config.data}: task {task.id} has no gold operations to compare a memory with")
    probed = [_probe(task) for task in tasks]
    judge = None if config.judge is None else load_judge(config.judge)
    rows = [
        _row(
            name,
            [
                check
                for task, memories in zip(tasks, by_task, strict=True)
                for check in compare_task(task, [memory_texts(memory) for memory in memories])
            ],
            judge,
        )
        for name, by_task in read_with_systems(config, probed)
    ]
    result = {"systems": rows, "conversations": len(tasks), "by": "words" if judge is None else judge.name}
    if folder is not None:
        (folder / "gold_scores.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _probe(task: Task) -> Task:
    """Return the task with a question after each chunk, at which the memory is looked at."""
    questions = [
        Question(id=f"after-{chunk.index}", question="memory", answers=(), asked_after_chunk=chunk.index)
        for chunk in task.chunks
    ]
    return task.model_copy(update={"questions": tuple(questions)})


def compare_task(task: Task, memories: Sequence[tuple[str, ...]]) -> list[StatedCheck]:
    """Return what has to be decided about the memories after each chunk of a task.

    Args:
        task: Task with gold operations.
        memories: Texts of the memory after each chunk.
    """
    false = task.meta.get("interference", ())
    live: dict[str, None] = {}
    before: tuple[str, ...] = ()
    comparisons = []
    for chunk, memory in zip(task.chunks, memories, strict=True):
        for operation in task.gold_at(chunk.index):
            live.pop(operation.replaces or "", None)
            if operation.content:
                live[operation.content] = None
                comparisons.append(StatedCheck("recall", task.id, operation.content, memory))
            if operation.kind == "update" and operation.replaces:
                comparisons.append(StatedCheck("omitted", task.id, operation.content, memory))
                others = tuple(text for text in memory if not says(text, operation.content))
                comparisons.append(StatedCheck("stale", task.id, operation.replaces, others))
        comparisons += [StatedCheck("precision", task.id, text, tuple(live)) for text in memory if text not in before]
        comparisons += [
            StatedCheck("false", task.id, content, memory) for index, content in false if index == chunk.index
        ]
        before = memory
    return comparisons


def says(text: str, fact: str) -> bool:
    """Return True if a text has the value of `topic: value`, or else all words of a fact that are no stop words."""
    if (pair := key_value(fact)) is not None:
        return contains(text, pair[1])
    return term_counts(fact).keys() <= term_counts(text).keys()


def _is_stated(item: StatedCheck) -> bool:
    if item.score == "precision":
        return any(says(item.statement, fact) for fact in item.texts)
    return any(says(text, item.statement) for text in item.texts)


def _judged(items: Sequence[StatedCheck], judge: Judge) -> list[bool | None]:
    """Ask the judge; None where it gave no verdict. What has no texts beside it is not asked."""
    statements = []
    for item in items:
        terms = term_counts(item.statement)
        texts = sorted(item.texts, key=lambda text: -len(terms.keys() & term_counts(text).keys()))[:SHOWN]
        statements.append(Statement(item.statement, tuple(texts), is_entry=item.score == "precision"))
    return [None if verdict.score is None else verdict.score >= 0.5 for verdict in judge.judge(statements)]


def _row(name: str, items: Sequence[StatedCheck], judge: Judge | None) -> dict[str, Any]:
    stated = _judged(items, judge) if judge is not None else list(map(_is_stated, items))
    row: dict[str, Any] = {"system": name, "unjudged": sum(value is None for value in stated)}
    for score in SCORES:
        is_wanted = score != "omitted"
        answers = [
            ScoredAnswer(item.task, "", float(value == is_wanted))
            for item, value in zip(items, stated, strict=True)
            if item.score == score and value is not None
        ]
        if not answers:
            row[score] = None
            continue
        result = estimate(answers)
        row[score] = {"value": round(result.value, 4), "interval": result.interval, "statements": len(answers)}
    return row


def format_gold_scores(result: Mapping[str, Any]) -> str:
    """Format the result of `score_memories`: a line a system; "-" without a statement."""
    width = max(len("system"), *(len(row["system"]) for row in result["systems"]))
    lines = [f"memories after each chunk, by {result['by']}; conversations: {result['conversations']}"]
    lines.append(f"{'system':<{width}}  " + "".join(f"{score:<24}" for score in SCORES).rstrip())
    for row in result["systems"]:
        cells = []
        for score in SCORES:
            cell = "-"
            if row[score] is not None:
                interval = row[score]["interval"]
                cell = f"{row[score]['value']:.3f}" + (
                    "" if interval is None else " ({:.3f} to {:.3f})".format(*interval)
                )
            cells.append(f"{cell:<24}")
        unjudged = f"{row['unjudged']} unjudged" if row["unjudged"] else ""
        lines.append(f"{row['system']:<{width}}  {''.join(cells)}{unjudged}".rstrip())
    return "\n".join(lines)
