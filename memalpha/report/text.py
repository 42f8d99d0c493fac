"""The page of text runs and evaluations: accuracy before and after, rewards by component, some replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from memalpha.qa.records import Record
from memalpha.qa.reporting.compare import load_records
from memalpha.report.charts import Z95, Mark, MarkRow, mark_rows, render_figure, swatch
from memalpha.report.headline import accuracy_with_error, difference_interval
from memalpha.report.training import Curve

MAX_TASKS = 16
"""Tasks whose replies the page shows, at most."""

COLOURS = ("after", "before", "append_only", "oracle", "extra")
"""Colours of the lines of one chart, in order."""

Summaries = Mapping[str, Mapping[str, Any]]


def load_text_summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the summaries of text evaluations in an `eval` folder by name, `before` and `after` first."""
    summaries = {}
    for path in sorted(folder.glob("*.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(summary, dict) and summary.get("task") == "text":
            summaries[path.stem] = summary
    order = sorted(summaries, key=lambda name: (name != "before", name != "after", name))
    return {name: summaries[name] for name in order}


def text_curves(metrics: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the charts that only text runs have."""
    keys = dict.fromkeys(key for line in metrics for key in line)
    names = [key for key in keys if key.startswith("rewards/")]
    # A chart has five colours; the table below lists all components.
    lines = tuple((key, key.removeprefix("rewards/"), kind) for key, kind in zip(names, COLOURS, strict=False))
    curves: list[Curve] = []
    if len(names) > 1:
        curves.append(("Rewards by component", "Means of a step's replies, before weights.", (None, None), lines))
    curves.append(
        ("Level", "Number of unlocked levels of the curriculum.", (0.0, None), (("unlocked", "levels", "oracle"),))
    )
    if "retry_accuracy" in keys:
        curves.append(
            (
                "Second attempts",
                "Share of right second attempts after feedback on a wrong first one: never a test accuracy.",
                (0.0, 1.0),
                (("accuracy", "first attempts", "before"), ("retry_accuracy", "second attempts", "extra")),
            )
        )
    curves.append(("Length", "Tokens of a reply.", (0.0, None), (("reply_tokens", "tokens", "oracle"),)))
    return curves


def text_headline(summary: Mapping[str, Any], summaries: Summaries, name: str) -> str:
    """Return the HTML of the headline.

    Args:
        summary: The run's `summary.json`.
        summaries: Summaries of text evaluations; {} for a training run that is not finished.
        name: Name of the run.
    """
    before, after = (summary.get(when) or {} for when in ("before", "after"))
    if "accuracy" in before and "accuracy" in after:
        facts = [f"{summary['tasks']:,} held-out tasks", f"{summary['policy_parameters']:,} parameters"]
        facts.append(f"weights after step {summary['best_step']} of {summary['steps']}, best on validation tasks")
        facts += [f"{summary['minutes']:.1f} minutes", f"seed {summary['seed']}"]
        interval = difference_interval(before, after, {})
        noise = " (no difference beyond noise)" if interval and interval[0] <= 0 <= interval[1] else ""
        return (
            f"<h1>Replies right: {accuracy_with_error(before)} before training, {accuracy_with_error(after)} after"
            f'{noise}</h1><p class="lead">The policy replied greedily to tasks it had not been trained on. A reply is '
            f'right if it gets all of the first reward.</p><p class="soft">{" · ".join(map(escape, facts))}</p>'
        )
    if summary or not summaries:
        return (
            f"<h1>{escape(name)}: not finished</h1><p>The evaluation after training is missing. The command that "
            "started the run resumes it from its last checkpoint.</p>"
        )
    return f"<h1>{escape(name)}: evaluation</h1><p>Greedy replies; right: all of the first reward.</p>"


def text_results(summaries: Summaries) -> str:
    """Return the HTML of a table (metrics by system) and of accuracy by category."""
    if not summaries:
        return ""
    names = list(summaries)
    kinds = {name: name if name in COLOURS else COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    rows = [
        MarkRow(name, (Mark(kinds[name], name, values["accuracy"], values.get("se")),))
        for name, values in summaries.items()
    ]
    about = f"Bars: 95 % intervals over tasks (± {Z95} standard errors)."
    charts = [render_figure("Accuracy", about, mark_rows(rows))]
    categories = list(dict.fromkeys(key for values in summaries.values() for key in values["by_ability"]))
    if len(categories) > 1:
        rows = []
        for category in categories:
            cells = {name: summaries[name]["by_ability"].get(category) for name in names}
            marks = [Mark(kinds[name], name, cell["accuracy"], cell.get("se")) for name, cell in cells.items() if cell]
            rows.append(MarkRow(category, tuple(marks)))
        legend = [f"{swatch(kinds[name])}{escape(name)}" for name in names]
        charts.append(render_figure("By category", "With 95 % intervals.", mark_rows(rows), legend))
    lines = [("accuracy", [values["accuracy"] for values in summaries.values()])]
    lines.append(("reward", [values["reward"] for values in summaries.values()]))
    for name in dict.fromkeys(key for values in summaries.values() for key in values["rewards"]):
        lines.append((f"… {name}", [values["rewards"].get(name) for values in summaries.values()]))
    lines += [
        (key.replace("_", " "), [values.get(key) for values in summaries.values()])
        for key in ("reply_tokens", "truncated")
    ]
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="n">{_cell(value)}</td>' for value in values)
        + "</tr>"
        for label, values in lines
    )
    table = f'<div class="card scroll"><table><tr><th></th>{head}</tr>{body}</table></div>'
    return f'<h2>The results in detail</h2><div class="two">{"".join(charts)}</div>{table}'


def text_replies(folder: Path, summaries: Summaries) -> str:
    """Return the HTML of some tasks with every system's reply, those that training changed first."""
    replies = {
        name: load_records(folder / f"{name}.jsonl") for name in summaries if (folder / f"{name}.jsonl").exists()
    }
    if not replies:
        return ""
    by_task: dict[str, dict[str, Record]] = {}
    for name, records in replies.items():
        for record in records:
            by_task.setdefault(record.task, {}).setdefault(name, record)
    complete = [task for task in by_task.values() if len(task) == len(replies)] or list(by_task.values())
    first, last = next(iter(replies)), list(replies)[-1]

    def change(task: Mapping[str, Record]) -> int:
        if first not in task or last not in task:
            return 2
        return {(False, True): 0, (True, False): 1}.get((task[first].correct, task[last].correct), 2)

    chosen = sorted(complete, key=change)[:MAX_TASKS]
    about = f"{len(chosen)} of {len(by_task)} tasks, those that training changed first; click one to open it."
    items = "".join(map(_replies_of_task, chosen))
    return f'<h2>Some replies</h2><p>{about}</p><div class="card failures">{items}</div>'


def _replies_of_task(task: Mapping[str, Record]) -> str:
    record = next(iter(task.values()))
    verdicts = " ".join(
        f'<span class="{"yes" if reply.correct else "nope"}">{escape(name)} {"✓" if reply.correct else "✗"}</span>'
        for name, reply in task.items()
    )
    replies = "".join(
        f'<p class="soft">{escape(name)} · reward {reply.score:.2f}{_components(reply)}</p>'
        f"<pre>{escape(reply.answer)}</pre>"
        for name, reply in task.items()
    )
    gold = f'<p class="soft">answer</p><pre>{escape(" or ".join(record.gold))}</pre>' if record.gold else ""
    return (
        f"<details><summary>{escape(_short(record.question))} {verdicts}</summary>"
        f'<p class="soft">task {escape(record.task)} · {escape(record.ability)}</p>'
        f"<pre>{escape(record.question)}</pre>{gold}{replies}</details>"
    )


def _components(record: Record) -> str:
    components = ", ".join(f"{name} {value:.2f}" for name, value in record.scores.items())
    return f" ({escape(components)})" if len(record.scores) > 1 else ""


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"


def _short(text: str, length: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
