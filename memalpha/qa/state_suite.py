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
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memalpha.config import EvalConfig
from memalpha.qa.from_config import load_config_system
from memalpha.qa.passages import Retrieval
from memalpha.qa.progress import show_progress
from memalpha.qa.report import make_result_folder
from memalpha.qa.scoring.stats import ScoredAnswer, estimate
from memalpha.qa.systems import SystemSettings
from memalpha.store.embedding import load_embedder
from memalpha.store.search.lexical import words
from memalpha.store.values import contains
from memalpha.tasks.synthetic import worlds
from memalpha.tasks.synthetic.state_world import SITUATIONS
from memalpha.types import Task

VERDICTS = ("right", "missing", "stale", "false")
LIMIT = 20
"""Conversations of each seed without `limit`."""

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
    rows = [_row(name, tasks, by_task) for name, by_task in read_with_systems(config, tasks)]
    questions = sum(len(task.questions) for task in tasks)
    result = {"systems": rows, "questions": questions, "conversations": len(tasks)}
    if folder is not None:
        (folder / "state.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def read_with_systems(config: EvalConfig, tasks: Sequence[Task]) -> Iterator[tuple[str, list[list[Retrieval]]]]:
    """Yield each of `config.systems` with its memories at the time of each question, as [task][question]."""
    embedder = load_embedder(config.agent.embedder)
    settings = SystemSettings(config.context_tokens, config.reader.k, embedder, config.agent)
    with show_progress("chunks") as progress:
        for name in config.systems:
            system = load_config_system(config, name)
            shown = name
            found = system.retrieve(tasks, settings, lambda done, total, shown=shown: progress(shown, done, total))
            yield system.name, found.by_task


def _row(name: str, tasks: Sequence[Task], by_task: Sequence[Sequence[Retrieval]]) -> dict[str, Any]:
    found = [(task.id, item, verdict(item)) for task, items in zip(tasks, by_task, strict=True) for item in items]
    by_situation: dict[str, list[tuple[str, str]]] = {situation: [] for situation in SITUATIONS}
    for task, item, value in found:
        by_situation[item.question.meta["situation"]].append((task, value))
    everything = [(task, value) for task, _, value in found]
    return {
        "system": name,
        **_shares(everything),
        "situations": {situation: _shares(values) for situation, values in by_situation.items()},
    }


def _shares(verdicts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    right = estimate([ScoredAnswer(task, "", float(value == "right")) for task, value in verdicts])
    values = [value for _, value in verdicts]
    shares = {name: round(values.count(name) / len(values), 4) for name in VERDICTS}
    return {**shares, "interval": right.interval, "questions": len(values)}


def format_state(result: Mapping[str, Any]) -> str:
    """Format the result of `run_state`: a line a system, then the share that is right in each situation."""
    width = max(len("system"), *(len(row["system"]) for row in result["systems"]))
    lines = [f"{result['questions']} questions about {result['conversations']} conversations, no reader"]
    lines.append(f"{'system':<{width}}  right (95 % interval)    missing  stale  false")
    for row in result["systems"]:
        interval = "" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"])
        lines.append(
            f"{row['system']:<{width}}  {row['right']:.3f} {interval:<18} {row['missing']:>7.3f} {row['stale']:>6.3f} "
            f"{row['false']:>6.3f}"
        )
    lines += ["", f"{'right':<{width}}  " + "  ".join(SITUATIONS)]
    for row in result["systems"]:
        cells = (f"{row['situations'][name]['right']:>{len(name)}.3f}" for name in SITUATIONS)
        lines.append(f"{row['system']:<{width}}  " + "  ".join(cells))
    return "\n".join(lines)
