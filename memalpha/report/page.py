"""`write_report(run)`: write one static HTML page, `RUN/report.html`, for a run directory.

The page needs no network and holds no script. It is made from the files of the run: `summary.json`, `metrics.jsonl`,
`eval/*.jsonl`, `eval/example.json`, `config.yaml`. A missing part is named as missing, never drawn as zero. An
evaluation without training has a page too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from memalpha.errors import DataError
from memalpha.report.conversation import render_conversations
from memalpha.report.evaluation import load_systems, load_unjudged_counts, render_evaluation
from memalpha.report.headline import empty_memory_accuracy, render_headline
from memalpha.report.render import ENVIRONMENT
from memalpha.report.reproduction import render_reproduction
from memalpha.report.results import SYSTEMS, render_results, systems_of
from memalpha.report.text import load_text_summaries, text_curves, text_headline, text_replies, text_results
from memalpha.report.training import CURVES, render_training


def write_report(run: str | Path) -> Path:
    """Write `RUN/report.html` and return its path.

    Raises:
        DataError: RUN holds no `metrics.jsonl`, no `summary.json` and no classified records (`eval/*.jsonl`), or a
            line of them is not JSON.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such directory: name that of a run or an evaluation")
    metrics = _read_lines(folder / "metrics.jsonl")
    summary = _read_json(folder / "summary.json")
    texts = load_text_summaries(folder / "eval")
    evaluated = {} if texts else load_systems(folder / "eval")
    if not metrics and not summary and not evaluated and not texts:
        raise DataError(
            f"{folder} is not a run directory: it holds neither summary.json nor metrics.jsonl, nor an evaluation "
            "(eval/*.jsonl) whose wrong answers were classified"
        )
    config_text = _read_config(folder / "config.yaml")
    if texts:
        body = [
            text_headline(summary, {} if metrics else texts, folder.name),
            render_training(metrics, [*CURVES[:3], *text_curves(metrics), *CURVES[3:]]),
            text_results(texts),
            text_replies(folder / "eval", texts),
        ]
    else:
        example = _read_json(folder / "eval" / "example.json")
        systems = systems_of(summary)
        headline = f"<h1>{escape(folder.name)}: evaluation</h1>"
        if metrics or summary:
            headline = render_headline(summary, systems, evaluated, _parse_config(config_text), folder.name)
        body = [
            headline,
            render_conversations(example) if example else "",
            render_results(systems, empty_memory_accuracy(evaluated)),
            render_training(metrics, CURVES),
            render_evaluation(evaluated, SYSTEMS, load_unjudged_counts(folder / "eval")),
        ]
    if config_text:
        body.append(f"<details><summary>The run's configuration</summary><pre>{escape(config_text)}</pre></details>")
    body.append(render_reproduction(run, summary))
    html = Markup("\n".join(part for part in body if part))
    page = ENVIRONMENT.get_template("report.html").render(title=f"memalpha: {folder.name}", body=html)
    target = folder / "report.html"
    target.write_text(page, encoding="utf-8", errors="backslashreplace")  # a model may write half a surrogate pair
    return target


def _read_config(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _parse_config(text: str) -> Mapping[str, Any]:
    """Return the configuration, {} if it is no YAML mapping: the page shows the results all the same."""
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return config if isinstance(config, Mapping) else {}


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
