"""Measure writers on conversations that none was trained on: `python eval/learning/smol_writer.py WRITER... [options]`.

Sets: `demo` (the synthetic world's test split), `babi` (official test stories), or a task file.
For each set and writer, greedy: share of valid calls, updates and deletes by the right id, accuracy with each reader,
tokens held and read, tokens and CPU seconds of a reply. Beside the writers stand the oracle and the append-only
writer. With --rows, files of training rows, a last column has the accuracy of the questions whose answer stands in no
row, and their number; questions without an answer are left out there. With --baseline, a second table has each
writer's gain over that one: the mean of the differences of accuracy, paired by conversation, ± half of its 95 %
interval. Writes STEM.json and STEM.md to --results.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha import evaluate, load_policy, load_tasks
from memalpha.agent.prompts import prompted_config
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.config.groups import HELD_OUT_SEED
from memalpha.qa.reader import load_reader
from memalpha.tasks.synthetic import worlds
from memalpha.types import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import format_interval, make_parser, opening, save

FIGURES = ("valid_calls", "update_hit", "delete_hit", "accuracy", "se", "memory_tokens", "conversation_tokens")
VIEW = {"view_tokens": 256, "max_new_tokens": 160}


def tasks_of(name: str, count: int) -> list[Task]:
    """Return the first `count` tasks of a set."""
    if name == "demo":
        return worlds.tasks(WorldConfig(preset="demo", split="test"), HELD_OUT_SEED, 0, count)
    return load_tasks(name, count)


def values_in_no_row(tasks: Sequence[Task], rows: Sequence[Path]) -> set[str]:
    """Return the accepted answers that no training row has as words of its own.

    Args:
        tasks: Conversations with questions.
        rows: Files of training rows.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in rows)
    answers = {answer for task in tasks for question in task.questions for answer in question.answers}
    return {answer for answer in answers if re.search(rf"\b{re.escape(answer)}\b", text) is None}


def measure(
    name: str, tasks: Sequence[Task], readers: Sequence[str], new_values: set[str] | None = None
) -> dict[str, Any]:
    """Let one writer read the tasks; return its figures by reader, and the cost of its replies.

    Args:
        name: Name of the writer.
        tasks: Conversations with questions.
        readers: "extractive", or policies that answer.
        new_values: Answers whose questions are also counted apart.
    """
    writer = load_policy(name)
    agent, figures = prompted_config(AgentConfig(**VIEW), writer), {}
    started = time.process_time()
    for reader_name in readers:
        settings = ReaderConfig(conflicts="refuse")
        if reader_name == "extractive":
            reader = load_reader(settings)
        else:
            settings = settings.model_copy(update={"kind": "policy", "max_new_tokens": 16, "prompt": "compact"})
            reader = load_reader(settings, load_policy(reader_name))
        report = evaluate(writer, tasks, reader, config=agent, check_reader=False)
        turns = [turn for group in report.groups for rollout in group.trajectories for turn in rollout.turns]
        figures[reader_name] = {key: report.summary[key] for key in FIGURES}
        if new_values is not None:
            correct = [record.correct for record in report.records if new_values.intersection(record.gold)]
            figures[reader_name]["new_values"] = [sum(correct), len(correct)]
        by_task = {task.id: [record.correct for record in report.records if record.task == task.id] for task in tasks}
        figures[reader_name]["by_task"] = [sum(answers) / len(answers) for answers in by_task.values()]
    tokens = [len(turn.completion.completion_ids) for turn in turns]
    return {
        "readers": figures,
        "turns": len(turns),
        "reply_tokens": sum(tokens) / len(turns),
        "cpu_seconds_per_turn": (time.process_time() - started) / len(turns) / len(readers),
        "cut": sum(turn.completion.stop_reason == "length" for turn in turns),
    }


def row(set_name: str, writer: str, result: dict[str, Any]) -> str:
    """Format a line of the table; accuracies of all readers in one cell.

    Args:
        set_name: Name of the set.
        writer: Name of the writer.
        result: Its figures.
    """
    first = next(iter(result["readers"].values()))
    cells = ["-" if first[key] is None else f"{first[key]:.3f}" for key in FIGURES[:3]]
    cells.append(
        " / ".join(f"{figures['accuracy']:.3f} ± {figures['se']:.3f}" for figures in result["readers"].values())
    )
    cells += [f"{first['memory_tokens']:.0f} of {first['conversation_tokens']:.0f}", f"{result['reply_tokens']:.1f}"]
    cells.append(f"{result['cpu_seconds_per_turn']:.2f}")
    if "new_values" in first:
        right, questions = first["new_values"]
        cells.append(f"{right / max(1, questions):.3f} of {questions}")
    return f"| {set_name} | {writer} | " + " | ".join(cells) + " |"


def gain_lines(results: dict[str, dict[str, Any]], baseline: str) -> list[str]:
    """Format the paired gains of all writers over `baseline`, by set and reader."""
    lines = [f"| set | writer | reader | accuracy more than {baseline} |", "|---" * 4 + "|"]
    for set_name, writers in results.items():
        for writer, result in writers.items():
            for reader, figures in result["readers"].items() if writer != baseline else ():
                pairs = zip(figures["by_task"], writers[baseline]["readers"][reader]["by_task"], strict=True)
                gain = format_interval([value - base for value, base in pairs])
                lines.append(f"| {set_name} | {writer} | {reader} | {gain} |")
    return lines


def main() -> None:
    """Measure all writers on all sets and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("writers", nargs="+", help="names or directories of policies")
    parser.add_argument("--sets", nargs="+", default=["demo", "babi"], help="demo, babi, or task files")
    parser.add_argument("--count", type=int, default=20, help="tasks of each set")
    parser.add_argument("--readers", nargs="+", default=["extractive"], help="extractive, or policies such as tiny")
    parser.add_argument("--rows", nargs="+", type=Path, help="files of training rows")
    parser.add_argument("--baseline", help="one of the writers; the others' gains over it are listed")
    parser.add_argument("--stem", default="smol-writer", help="name of the record")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    lines = [
        "| set | writer | valid calls | update_hit | delete_hit | accuracy by " + " / ".join(arguments.readers),
        "| tokens held of read | tokens a reply | CPU-s a chunk |",
    ]
    if arguments.rows:
        lines.append("answers in no row |")
    table = [" ".join(lines), "|---" * (9 + bool(arguments.rows)) + "|"]
    for name in arguments.sets:
        tasks = tasks_of(name, arguments.count)
        new_values = values_in_no_row(tasks, arguments.rows) if arguments.rows else None
        for writer in (*arguments.writers, "scripted:append-only", "scripted:oracle"):
            result = results.setdefault(Path(name).stem, {})[writer] = measure(
                writer, tasks, arguments.readers, new_values
            )
            table.append(row(Path(name).stem, writer, result))
            print(table[-1], file=sys.stderr, flush=True)
    if arguments.baseline:
        table += ["", *gain_lines(results, arguments.baseline)]
    save(
        arguments.results / arguments.stem,
        results,
        "\n".join([*opening("Writers on unseen conversations"), "", *table]),
    )


if __name__ == "__main__":
    main()
