"""State suite (`memalpha eval state`): what a memory holds of each fact, compared with the state, without a reader.

Every system reads conversations of the state world (`tasks.synthetic.state_world`). For each question its live entries
and core memory, as they are when it is asked, get a verdict:

| verdict | meaning                                                                                             |
|---------|-----------------------------------------------------------------------------------------------------|
| right   | the current value is there, or none if there is none, and nothing below                             |
| missing | the current value is nowhere                                                                        |
| stale   | an entry states a former value as it stands: without the current one, and without saying that it ended |
| false   | an entry states what only somebody else claimed, or another's value, without saying whose           |

An entry says that something ended, or whose it is, if it has one of the words for that (`_ENDED`, or a content word of
the sentence that named the value). So a system that keeps lines verbatim is right about what was said once, and about
what others said, and not about what changed. An empty memory is right about what never was or is no more: look at
`missing`, too.

With tasks of one's own (`data=TASKS`) memories are compared with the facts of the gold operations, after every chunk,
by HaluMem's four scores (Chen et al. 2025, arXiv:2511.03506):

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

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from memalpha.arguments import counted
from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.qa.from_config import cut_chunks, load_config_system
from memalpha.qa.progress import show_progress
from memalpha.qa.report import align_columns, format_interval, make_result_folder
from memalpha.qa.scoring.judge import Judge, Statement, load_judge
from memalpha.qa.scoring.stats import ScoredAnswer, estimate, group_values
from memalpha.qa.systems import Retrieval, SystemSettings
from memalpha.store.embedding import load_embedder
from memalpha.store.search.lexical import term_counts, words
from memalpha.store.values import contains, key_value
from memalpha.tasks.load import load_evaluation_tasks
from memalpha.tasks.synthetic import worlds
from memalpha.tasks.synthetic.state_world import SITUATIONS
from memalpha.text_files import write_json
from memalpha.types import Question, Task

VERDICTS = ("right", "missing", "stale", "false")
LIMIT = 20
"""Conversations of each seed without `limit`."""
SCORES = ("recall", "precision", "false", "omitted", "stale")
SHOWN = 20
"""Texts that a judge sees beside a statement: those that share most of its words."""

_ENDED = re.compile(
    r"\b(?:no longer|not|never|used to|former(?:ly)?|previous(?:ly)?|past|ended|over|gone|stopped|quit|left|lost|fired"
    r"|let go|dropped|closed|history|forget|ignore|instead|corrected|misspoke|slip)\b|n't\b",
    re.IGNORECASE,
)


def memory_texts(retrieval: Retrieval) -> tuple[str, ...]:
    """Return the texts of a memory: its entries, and the lines of its core text."""
    core = (retrieval.full_core or retrieval.core).splitlines()
    return (*(passage.text for passage in retrieval.entries or ()), *(line for line in core if line.strip()))


def verdict(retrieval: Retrieval) -> str:
    """Return the verdict on a memory at the time of a question of the state world.

    Args:
        retrieval: The question, and the memory's entries and core text at that time.
    """
    question, meta = retrieval.question, retrieval.question.meta
    texts = memory_texts(retrieval)
    current = question.answers[0] if question.answers else ""
    marks = set(words(meta["marks"]))
    for text in texts:
        if meta["false"] and contains(text, meta["false"]) and marks.isdisjoint(words(text)):
            return "false"
    for text in texts:
        is_stale = any(contains(text, value) for value in meta["stale"])
        if is_stale and not (current and contains(text, current)) and not _ENDED.search(text):
            return "stale"
    return "right" if not current or any(contains(text, current) for text in texts) else "missing"


def run_state(config: EvalConfig) -> dict[str, Any]:
    """Measure `config.systems` on conversations of the state world.

    With `config.out` the result is also written to its `eval/state.json`.

    Args:
        config: Systems, seeds, `limit` (conversations of each seed; default 20), `world.tokens` and `world.split`.

    Returns:
        `{"systems": [row, ...], "questions", "conversations"}`. A row has `system`, `right` with its `interval` (95 %
        over conversations, None for fewer than ten), the share of each verdict, and under `situations` those of each.
    """
    folder = None if config.out is None else make_result_folder(config.out)
    world = config.world.model_copy(update={"preset": "state"})
    tasks = [task for seed in config.seeds for task in worlds.tasks(world, seed, 0, config.limit or LIMIT)]
    tasks = cut_chunks(config, tasks)
    rows = []
    for name, by_task in read_with_systems(config, tasks):
        items = ((task.id, item) for task, of_task in zip(tasks, by_task, strict=True) for item in of_task)
        groups = group_values((item.question.meta["situation"], (task, verdict(item))) for task, item in items)
        everything = [pair for pairs in groups.values() for pair in pairs]
        situations = {situation: _shares(groups[situation]) for situation in SITUATIONS}
        rows.append({"system": name, **_shares(everything), "situations": situations})
    questions = sum(len(task.questions) for task in tasks)
    result = {"systems": rows, "questions": questions, "conversations": len(tasks)}
    if folder is not None:
        write_json(folder / "state.json", result)
    return result


def read_with_systems(config: EvalConfig, tasks: Sequence[Task]) -> Iterator[tuple[str, list[list[Retrieval]]]]:
    """Yield each of `config.systems` with its memories at the time of each question, as [task][question]."""
    embedder = load_embedder(config.agent.embedder)
    settings = SystemSettings(config.context_tokens, config.reader.k, embedder, config.agent)
    with show_progress("chunks") as progress:
        for name in config.systems:
            system = load_config_system(config, name)
            yield system.name, system.retrieve(tasks, settings, partial(progress, name)).by_task


def _shares(verdicts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    right = estimate([ScoredAnswer(task, "", float(value == "right")) for task, value in verdicts])
    values = [value for _, value in verdicts]
    shares = {name: round(values.count(name) / len(values), 4) for name in VERDICTS}
    return {**shares, "interval": right.interval, "questions": len(values)}


def format_state(result: Mapping[str, Any]) -> str:
    """Format the result of `run_state`: a line a system, then the share that is right in each situation."""
    rows, situations = [["system", "right", "95 % interval", *VERDICTS[1:]]], [["right", *SITUATIONS]]
    for row in result["systems"]:
        right, *others = (f"{row[verdict]:.3f}" for verdict in VERDICTS)
        rows.append([row["system"], right, format_interval(row["interval"]), *others])
        situations.append([row["system"], *(f"{row['situations'][name]['right']:.3f}" for name in SITUATIONS)])
    about = counted(result["conversations"], "conversation")
    head = f"{counted(result['questions'], 'question')} about {about}, no reader"
    return "\n".join([head, *align_columns(rows), "", *align_columns(situations)])


# ----------------------------------------------------------------------------------------------------- gold operations


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
    tasks = cut_chunks(config, load_evaluation_tasks(config.data, config.limit))
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"{config.data}: task {task.id} has no gold operations to compare a memory with")
    probed = []
    for task in tasks:  # a question after each chunk, at which the memory is looked at
        questions = tuple(
            Question(id=f"after-{chunk.index}", question="memory", answers=(), asked_after_chunk=chunk.index)
            for chunk in task.chunks
        )
        probed.append(task.model_copy(update={"questions": questions}))
    judge = None if config.judge is None else load_judge(config.judge)
    rows = []
    for name, by_task in read_with_systems(config, probed):
        statements = [
            (score, task.id, statement)
            for task, memories in zip(tasks, by_task, strict=True)
            for score, statement in compare_task(task, list(map(memory_texts, memories)))
        ]
        rows.append(_score_row(name, statements, judge))
    result = {"systems": rows, "conversations": len(tasks), "by": "words" if judge is None else judge.name}
    if folder is not None:
        write_json(folder / "gold_scores.json", result)
    return result


def compare_task(task: Task, memories: Sequence[tuple[str, ...]]) -> list[tuple[str, Statement]]:
    """Return the statements to decide about the memories after each chunk of a task, each with the score it counts for.

    Args:
        task: Task with gold operations.
        memories: Texts of the memory after each chunk.
    """
    false = task.meta.get("interference", ())
    live: dict[str, None] = {}
    before: tuple[str, ...] = ()
    statements = []
    for chunk, memory in zip(task.chunks, memories, strict=True):
        for operation in task.gold_at(chunk.index):
            live.pop(operation.replaces or "", None)
            if operation.content:
                live[operation.content] = None
                statements.append(("recall", Statement(operation.content, memory)))
            if operation.kind == "update" and operation.replaces:
                statements.append(("omitted", Statement(operation.content, memory)))
                others = tuple(text for text in memory if not says(text, operation.content))
                statements.append(("stale", Statement(operation.replaces, others)))
        new = (text for text in memory if text not in before)
        statements += [("precision", Statement(text, tuple(live), is_entry=True)) for text in new]
        statements += [("false", Statement(content, memory)) for index, content in false if index == chunk.index]
        before = memory
    return statements


def says(text: str, fact: str) -> bool:
    """Return True if a text has the value of `topic: value`, or else all words of a fact that are no stop words."""
    if (pair := key_value(fact)) is not None:
        return contains(text, pair[1])
    return term_counts(fact).keys() <= term_counts(text).keys()


def _score_row(name: str, items: Sequence[tuple[str, str, Statement]], judge: Judge | None) -> dict[str, Any]:
    """Score a system's statements, each with its score and task; one without the judge's verdict counts as unjudged."""
    if judge is None:
        stated = [
            any(says(item.text, source) if item.is_entry else says(source, item.text) for source in item.sources)
            for *_, item in items
        ]
    else:
        statements = []
        for *_, item in items:
            terms = term_counts(item.text).keys()
            nearest = sorted(item.sources, key=lambda text: -len(terms & term_counts(text).keys()))[:SHOWN]
            statements.append(replace(item, sources=tuple(nearest)))
        verdicts = judge.judge(statements)
        stated = [None if verdict.score is None else verdict.score >= 0.5 for verdict in verdicts]
    row: dict[str, Any] = {"system": name, "unjudged": sum(value is None for value in stated), **dict.fromkeys(SCORES)}
    answers = group_values(
        (score, ScoredAnswer(task, "", float(value == (score != "omitted"))))
        for (score, task, _), value in zip(items, stated, strict=True)
        if value is not None
    )
    for score, result in ((score, estimate(of_score)) for score, of_score in answers.items()):
        row[score] = {"value": round(result.value, 4), "interval": result.interval, "statements": result.n}
    return row


def format_gold_scores(result: Mapping[str, Any]) -> str:
    """Format the result of `score_memories`: a line a system; "-" without a statement."""
    rows = [["system", *(cell for score in SCORES for cell in (score, "95 % interval")), "unjudged"]]
    for row in result["systems"]:
        cells = [row["system"]]
        for score in SCORES:
            value = row[score]
            cells += ["-", ""] if value is None else [f"{value['value']:.3f}", format_interval(value["interval"])]
        rows.append([*cells, str(row["unjudged"])])
    head = f"memories after each chunk, by {result['by']}; conversations: {result['conversations']}"
    return "\n".join([head, *align_columns(rows)])
