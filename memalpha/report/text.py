"""The page of runs and evaluations on text: replies right before and after, rewards by component, some replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from memalpha.qa.records import Record
from memalpha.qa.reporting.compare import load_records
from memalpha.report.charts import Z95, Mark, Row, mark_rows, swatch

SHOWN = 16
"""Tasks whose replies are shown."""

KINDS = ("after", "before", "append_only", "oracle", "extra")
"""Colours, in the order in which lines of one chart take them."""

Figures = Mapping[str, Mapping[str, Any]]


def text_figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Summaries by name of an `eval` folder, of those that are evaluations of text; `before` and `after` come first."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(summary, dict) and summary.get("task") == "text":
            found[path.stem] = summary
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "before", name != "after", name))}


def text_curves(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, tuple[Any, Any], tuple[Any, ...]]]:
    """Charts that only text runs have, as `report.page.CURVES`."""
    keys = dict.fromkeys(key for line in metrics for key in line)
    names = [key for key in keys if key.startswith("rewards/")]
    parts = tuple(
        (key, key.removeprefix("rewards/"), kind) for key, kind in zip(names, KINDS, strict=False)
    )  # a chart has so many colours; all components are in the table
    found: list[tuple[str, str, tuple[Any, Any], tuple[Any, ...]]] = []
    if len(names) > 1:
        found.append(("Rewards by component", "Means of a step's replies, before weights.", (None, None), parts))
    found += [
        (
            "Level",
            "How many of the curriculum's levels are unlocked.",
            (0.0, None),
            (("unlocked", "levels", "oracle"),),
        ),
        (
            "Second attempts",
            "Share that succeed, of replies that had not, told what was wrong: never a test accuracy.",
            (0.0, 1.0),
            (("accuracy", "first attempts", "before"), ("retry_accuracy", "second attempts", "extra")),
        ),
        ("Length", "Tokens of a reply.", (0.0, None), (("reply_tokens", "tokens", "oracle"),)),
    ]
    return [part for part in found if part[0] != "Second attempts" or "retry_accuracy" in keys]


def text_headline(summary: Mapping[str, Any], figures: Figures, name: str) -> str:
    """The top of the page."""
    before, after = (summary.get(when) or {} for when in ("before", "after"))
    if "accuracy" in before and "accuracy" in after:
        facts = [f"{summary['tasks']:,} held-out tasks", f"{summary['policy_parameters']:,} parameters"]
        facts.append(f"weights after step {summary['best_step']} of {summary['steps']}, best on validation tasks")
        facts += [f"{summary['minutes']:.1f} minutes", f"seed {summary['seed']}"]
        return (
            f"<h1>Replies right: {before['accuracy']:.0%} before training, {after['accuracy']:.0%} after</h1>"
            '<p class="lead">The policy replied greedily to tasks it had not been trained on; a reply is right when it '
            f'gets all of the first reward.</p><p class="soft">{" · ".join(map(escape, facts))}</p>'
        )
    if summary or not figures:
        return (
            f"<h1>{escape(name)}: not finished</h1><p>The evaluation after training is missing. The command that "
            "started the run goes on from its last checkpoint.</p>"
        )
    return f"<h1>{escape(name)}: evaluation</h1><p>Greedy replies; right: all of the first reward.</p>"


def text_results(figures: Figures) -> str:
    """A row a figure, a column a system, and accuracy by category."""
    if not figures:
        return ""
    names = list(figures)
    kinds = {name: name if name in KINDS else KINDS[place % len(KINDS)] for place, name in enumerate(names)}
    rows = [Row(name, (Mark(kinds[name], name, figures[name]["accuracy"], figures[name].get("se")),)) for name in names]
    charts = [_figure("Accuracy", f"Bars: 95 % intervals over tasks (± {Z95} standard errors).", mark_rows(rows))]
    categories = list(dict.fromkeys(key for of in figures.values() for key in of["by_ability"]))
    if len(categories) > 1:
        rows = []
        for category in categories:
            cells = {name: figures[name]["by_ability"].get(category) for name in names}
            marks = [Mark(kinds[n], n, cell["accuracy"], cell.get("se")) for n, cell in cells.items() if cell]
            rows.append(Row(category, tuple(marks)))
        legend = "".join(f"<li>{swatch(kinds[name])}{escape(name)}</li>" for name in names)
        charts.append(_figure("By category", "With 95 % intervals.", mark_rows(rows), legend))
    lines = [("accuracy", [of["accuracy"] for of in figures.values()])]
    lines.append(("reward", [of["reward"] for of in figures.values()]))
    for name in dict.fromkeys(key for of in figures.values() for key in of["rewards"]):
        lines.append((f"… {name}", [of["rewards"].get(name) for of in figures.values()]))
    lines += [
        (key.replace("_", " "), [of.get(key) for of in figures.values()]) for key in ("reply_tokens", "truncated")
    ]
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="n">{_cell(v)}</td>' for v in values)
        + "</tr>"
        for label, values in lines
    )
    table = f'<div class="card scroll"><table><tr><th></th>{head}</tr>{body}</table></div>'
    return f'<h2>The results in detail</h2><div class="two">{"".join(charts)}</div>{table}'


def text_replies(folder: Path, figures: Figures) -> str:
    """Some tasks with every system's reply: first those that the first and the last system do not agree on."""
    replies = {name: load_records(folder / f"{name}.jsonl") for name in figures if (folder / f"{name}.jsonl").exists()}
    if not replies:
        return ""
    by_task: dict[str, dict[str, Record]] = {}
    for name, records in replies.items():
        for record in records:
            by_task.setdefault(record.task, {}).setdefault(name, record)
    whole = [of for of in by_task.values() if len(of) == len(replies)] or list(by_task.values())
    first, last = next(iter(replies)), list(replies)[-1]

    def place(of: Mapping[str, Record]) -> int:
        if first not in of or last not in of:
            return 2
        return {(False, True): 0, (True, False): 1}.get((of[first].correct, of[last].correct), 2)

    chosen = sorted(whole, key=place)[:SHOWN]
    parts = []
    for of in chosen:
        record = next(iter(of.values()))
        verdicts = " ".join(
            f'<span class="{"yes" if one.correct else "nope"}">{escape(name)} {"✓" if one.correct else "✗"}</span>'
            for name, one in of.items()
        )
        said = "".join(
            f'<p class="soft">{escape(name)} · reward {one.score:.2f}{_components(one)}</p>'
            f"<pre>{escape(one.answer)}</pre>"
            for name, one in of.items()
        )
        gold = f'<p class="soft">answer</p><pre>{escape(" or ".join(record.gold))}</pre>' if record.gold else ""
        parts.append(
            f"<details><summary>{escape(_short(record.question))} {verdicts}</summary>"
            f'<p class="soft">task {escape(record.task)} · {escape(record.ability)}</p>'
            f"<pre>{escape(record.question)}</pre>{gold}{said}</details>"
        )
    about = f"{len(chosen)} of {len(by_task)} tasks; first those that training has changed; each opens."
    return f'<h2>Some replies</h2><p>{about}</p><div class="card failures">{"".join(parts)}</div>'


def _components(record: Record) -> str:
    found = ", ".join(f"{name} {value:.2f}" for name, value in record.scores.items())
    return f" ({escape(found)})" if len(record.scores) > 1 else ""


def _figure(title: str, about: str, chart: str, legend: str = "") -> str:
    listed = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f"<figure><h3>{title}</h3><figcaption>{about}</figcaption>{listed}{chart}</figure>"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"


def _short(text: str, length: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
