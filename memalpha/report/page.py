"""`write_report(run)`: a run directory becomes one static HTML page, `RUN/report.html`.

The page needs no network and holds no script. It is read from what the run wrote (`summary.json`, `metrics.jsonl`,
`eval/*.jsonl`, `eval/example.json`, `config.yaml`); a part the run did not write is named as missing, never drawn as
zero. An evaluation without any training has a page too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from memalpha.errors import DataError
from memalpha.report.charts import Z95, Mark, Row, Series, line_chart, mark_rows, swatch
from memalpha.report.conversation import conversation
from memalpha.report.evaluation import evaluation, systems_of, unjudged_of
from memalpha.report.text import text_curves, text_figures, text_headline, text_replies, text_results

SYSTEMS = {"append_only": "append only", "before": "before training", "after": "after training", "oracle": "oracle"}
LABELS = {name: label.removesuffix(" training") for name, label in SYSTEMS.items()}  # where there is little room

# title, what it says, y range, lines: (metric key, label, colour)
CURVES: tuple[tuple[str, str, tuple[float | None, float | None], tuple[tuple[str, str, str], ...]], ...] = (
    ("Reward", "Mean total reward of a step's rollouts.", (None, None), (("reward", "reward", "after"),)),
    (
        "Accuracy",
        "Sampled rollouts on training tasks; points: greedy on validation tasks, with 95 % intervals.",
        (0.0, 1.0),
        (("accuracy", "training", "before"), ("validation_accuracy", "validation", "after")),
    ),
    (
        "Cross-entropy",
        "Per completion token, in nats: rows of each step; points: rows held out.",
        (0.0, None),
        (("train_loss", "training", "before"), ("validation_loss", "validation", "after")),
    ),
    (
        "Preferences",
        "Share of pairs in which the chosen side is preferred by what is trained; points: pairs held out.",
        (0.0, 1.0),
        (("accuracies", "training", "before"), ("validation_accuracies", "validation", "after")),
    ),
    ("Valid calls", "Share of tool calls that executed.", (None, 1.0), (("valid_calls", "valid calls", "after"),)),
    (
        "Updates and deletes",
        "Their share of all calls that changed the memory.",
        (0.0, None),
        (("update_share", "update", "after"), ("delete_share", "delete", "append_only")),
    ),
    ("Entropy", "Of the sampled tokens, in nats.", (0.0, None), (("entropy", "entropy", "extra"),)),
    (
        "Value function",
        "Share of the returns' variance that it explains.",
        (None, 1.0),
        (("explained_variance", "explained variance", "after"),),
    ),
    ("Memory", "Mean tokens of the final memory.", (0.0, None), (("memory_tokens", "tokens", "oracle"),)),
)

# key of a system's summary, label, what it is, as a share (else a count)
FIGURES = (
    ("accuracy", "accuracy", "questions answered rightly", True),
    ("answerable_accuracy", "… that have an answer", "an empty memory has all others right", True),
    ("update_accuracy", "… where a value changed", "questions about a fact that was updated", True),
    ("retract_accuracy", "… where a fact was taken back", "the right answer is then that it is not known", True),
    ("stale_rate", "stale answers", "answers that were true once", True),
    ("update_hit", "updates by the right id", "changes of a stored value that updated just that entry", True),
    ("delete_hit", "deletes by the right id", "retractions of a stored fact that deleted just that entry", True),
    ("valid_calls", "valid calls", "tool calls that executed", True),
    ("memory_tokens", "memory, tokens", "mean size of the final memory", False),
    ("conversation_tokens", "conversation, tokens", "mean size of what was read", False),
)


def write_report(run: str | Path) -> Path:
    """Write `RUN/report.html` and return its path.

    Raises `DataError` when RUN holds none of `metrics.jsonl`, `summary.json` and records of an evaluation with their
    losses (`eval/*.jsonl`), or when a line of them is not JSON.
    """
    folder = Path(run)
    metrics = _read_lines(folder / "metrics.jsonl")
    summary = _read_json(folder / "summary.json")
    texts = text_figures(folder / "eval")
    evaluated = {} if texts else systems_of(folder / "eval")
    if not metrics and not summary and not evaluated and not texts:
        raise DataError(
            f"{folder} is not a run directory: it holds neither summary.json nor metrics.jsonl, nor an evaluation "
            "(eval/*.jsonl) whose losses were looked for"
        )
    example = _read_json(folder / "eval" / "example.json")
    config = folder / "config.yaml"
    systems = _systems(summary)
    if texts:
        body = [
            text_headline(summary, {} if metrics else texts, folder.name),
            _curves(metrics, [*CURVES[:3], *text_curves(metrics), *CURVES[3:]]),
            text_results(texts),
            text_replies(folder / "eval", texts),
        ]
    else:
        body = [
            _headline(summary, systems, folder.name)
            if metrics or summary
            else f"<h1>{escape(folder.name)}: evaluation</h1>",
            _curves(metrics, CURVES),
            _results(systems),
            evaluation(evaluated, SYSTEMS, unjudged_of(folder / "eval")),
            conversation(example) if example else "",
        ]
    if config.exists():
        text = escape(config.read_text(encoding="utf-8", errors="replace"))
        body.append(f"<details><summary>The run's configuration</summary><pre>{text}</pre></details>")
    template = Template((resources.files("memalpha") / "report" / "template.html").read_text(encoding="utf-8"))
    page = template.substitute(title=f"memalpha: {escape(folder.name)}", body="\n".join(part for part in body if part))
    target = folder / "report.html"
    target.write_text(page, encoding="utf-8", errors="backslashreplace")  # a model may write half a surrogate pair
    return target


def _systems(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = {**summary.get("baselines", {}), "before": summary.get("before"), "after": summary.get("after")}
    return {name: found[name] for name in SYSTEMS if "accuracy" in (found.get(name) or {})}


def _headline(summary: Mapping[str, Any], systems: Mapping[str, Mapping[str, Any]], name: str) -> str:
    if "pairs" in summary:
        return _without_questions(summary, name, "pairs", "learnt from", "pair loss", "validation_pair_loss")
    if "rows" in summary and "after" not in systems:
        return _without_questions(summary, name, "rows", "imitated", "loss", "validation_loss", " (evaluate=false)")
    if "before" not in systems or "after" not in systems:
        return (
            f"<h1>{escape(name)}: not finished</h1><p>The evaluation after training is missing. The command that "
            "started the run goes on from its last checkpoint.</p>"
        )
    before, after = systems["before"]["accuracy"], systems["after"]["accuracy"]
    counts = {"tasks": "held-out conversations", "questions": "questions", "policy_parameters": "parameters"}
    facts = [f"{summary[key]:,} {label}" for key, label in counts.items() if key in summary]
    if "best_step" in summary:
        facts.append(f"weights after step {summary['best_step']} of {summary['steps']}, best on validation tasks")
    facts += [f"{summary['minutes']:.1f} minutes"] if "minutes" in summary else []
    facts += [f"seed {summary['seed']}"] if "seed" in summary else []
    share = ""
    if "oracle" in systems and (gap := systems["oracle"]["accuracy"] - before) > 0 and after > before:
        share = f" Training closed {(after - before) / gap:.0%} of the gap to a writer that does everything right."
    rows = [
        Row(LABELS[system], (Mark(system, SYSTEMS[system], values["accuracy"], values.get("se")),))
        for system, values in systems.items()
    ]
    about = f"Bars: 95 % intervals over conversations (± {Z95} standard errors). " + (
        "<em>Append only</em> inserts every fact and never updates or deletes; the <em>oracle</em> does every "
        "operation right."
        if "oracle" in systems
        else "No baselines: not every held-out task carries gold operations."
    )
    accuracy = _figure("Accuracy on held-out conversations", about, mark_rows(rows))
    return (
        f"<h1>Answers right from memory alone: {before:.0%} before training, {after:.0%} after</h1>"
        '<p class="lead">A writer read conversations it had never seen and kept notes with tool calls; then questions '
        f"were answered from the notes.{share}</p>"
        f'<p class="soft">{" · ".join(escape(fact) for fact in facts)}</p>'
        f'<div class="two">{accuracy}{_truth(systems)}</div>'
    )


def _without_questions(
    summary: Mapping[str, Any], name: str, unit: str, done: str, loss: str, key: str, why: str = ""
) -> str:
    """Of a run that asked none: its `unit` (rows, pairs) were `done`, and their held-out loss is under `key`."""
    before, after = (summary[when].get(key) for when in ("before", "after"))
    held_out = f"{summary[f'validation_{unit}']:,} {unit} held out"
    losses = held_out if before is None else f"{loss} {before:.3f} before, {after:.3f} after on {held_out}"
    return (
        f"<h1>{escape(name)}: {losses}</h1><p>{summary[unit]:,} {unit} were {done} in {summary['steps']} steps; the "
        f"weights are those after step {summary['best_step']}. No questions were asked{why}.</p>"
    )


def _truth(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the memory is kept true: changes and retractions handled by the right id, and stale answers."""
    keys = {"update_hit": "updated rightly", "delete_hit": "deleted rightly", "stale_rate": "stale answers"}
    rows = []
    for key, label in keys.items():
        found = [(name, values[key]) for name, values in systems.items() if values.get(key) is not None]
        rows += [Row(label, tuple(Mark(name, SYSTEMS[name], value) for name, value in found))] if found else []
    if not rows:
        return ""
    about = (
        "Share of changed and of taken back facts whose stored entry was updated or deleted by its id (more is "
        "better); share of answers that were true once (less is better)."
    )
    return _figure("Is the memory kept true?", about, mark_rows(rows), _system_legend(systems))


def _curves(metrics: Sequence[Mapping[str, Any]], curves: Sequence[Any]) -> str:
    if not metrics:
        return ""
    figures = []
    for title, about, (low, high), lines in curves:
        series = [line for key, label, kind in lines if (line := _series(metrics, key, label, kind)).points]
        if not series:
            continue
        top = None if high is None else max(high, *(y for line in series for _, y in line.points))
        legend = []
        for line in series:
            ends = f"{line.points[0][1]:.2f} → {line.points[-1][1]:.2f}"
            legend.append(f"{swatch(line.kind, line=not line.dots)}{escape(line.label)} {ends}")
        figures.append(_figure(title, about, line_chart(series, low=low, high=top), legend))
    first, last = metrics[0].get("step", 0), metrics[-1].get("step", len(metrics) - 1)
    if "train_loss" in metrics[0]:
        step = "imitates some rows, each a prompt and the reply to learn"
    elif "reward" not in metrics[0]:
        way = "worth more" if "scores" in metrics[0] or "errors" in metrics[0] else "likelier"
        step = f"makes the chosen of two replies {way} than the rejected one, for some prompts"
    elif "reply_tokens" in metrics[0]:
        step = "samples several replies to each of its prompts and makes those more likely that earned more than others"
    else:
        step = (
            "samples several rollouts of each of its conversations and makes those more likely that earned more than "
            "their siblings"
        )
    return f'<h2>Training</h2><p>Steps {first} to {last}. A step {step}.</p><div class="grid">{"".join(figures)}</div>'


def _series(metrics: Sequence[Mapping[str, Any]], key: str, label: str, kind: str) -> Series:
    found = [line for line in metrics if isinstance(line.get(key), int | float)]
    points = tuple((float(line["step"]), float(line[key])) for line in found)
    sparse = key.startswith("validation")
    errors = tuple(float(line.get("validation_se") or 0.0) for line in found) if sparse else ()
    return Series(kind, label, points, errors, dots=sparse)


def _figure(title: str, about: str, chart: str, legend: Sequence[str] = ()) -> str:
    items = "".join(f"<li>{item}</li>" for item in legend)
    listed = f'<ul class="legend">{items}</ul>' if items else ""
    return f"<figure><h3>{title}</h3><figcaption>{about}</figcaption>{listed}{chart}</figure>"


def _system_legend(systems: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{swatch(name)}{LABELS[name]}" for name in systems]


def _results(systems: Mapping[str, Mapping[str, Any]]) -> str:
    if not systems:
        return ""
    return f'<h2>The results in detail</h2><div class="two">{_abilities(systems)}{_figures(systems)}</div>'


def _abilities(systems: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for values in systems.values() for name in values.get("by_ability", {})))
    if not names:
        return ""
    rows = []
    for ability in names:
        marks = [
            Mark(name, SYSTEMS[name], cell["accuracy"], cell.get("se"))
            for name, values in systems.items()
            if (cell := values["by_ability"].get(ability)) and cell["accuracy"] is not None
        ]
        count = max(values["by_ability"].get(ability, {}).get("n", 0) for values in systems.values())
        rows.append((Row(ability, tuple(marks)), count))
    counts = ", ".join(f"{row.label} {count}" for row, count in rows if count)
    about = f"With 95 % intervals{'; questions: ' + escape(counts) if counts else ''}."
    return _figure("By kind of question", about, mark_rows([row for row, _ in rows]), _system_legend(systems))


def _figures(systems: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(f'<th class="n">{LABELS[name]}</th>' for name in systems)
    rows = []
    for key, label, about, share in FIGURES:
        if not any(key in values for values in systems.values()):
            continue
        cells = "".join(f'<td class="n">{_cell(values.get(key), share)}</td>' for values in systems.values())
        rows.append(f'<tr><th scope="row">{label}<br><span class="soft">{about}</span></th>{cells}</tr>')
    return f'<div class="card scroll"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _cell(value: float | None, share: bool) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if share else f"{value:.0f}"


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            lines += [json.loads(text)] if text else []
        except ValueError as error:
            raise DataError(f"{path}:{number}: not valid JSON: {error}") from error
        if lines and not isinstance(lines[-1], dict):
            raise DataError(f"{path}:{number}: not a JSON object")
    return lines
