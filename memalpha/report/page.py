"""`write_report(run)`: write one static HTML page, `RUN/report.html`, for a run directory.

The page needs no network and holds no script. It is made from the files of the run: `summary.json`, `metrics.jsonl`,
`eval/*.jsonl`, `eval/example.json`, `config.yaml`. A missing part is named as missing, never drawn as zero. An
evaluation without training has a page too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from memalpha import __version__
from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.report.evaluation import anchor, load_systems, load_unjudged_counts, read_evaluation
from memalpha.report.render import ENVIRONMENT
from memalpha.report.results import SHORT_LABELS, SYSTEMS, read_results, systems_of
from memalpha.report.text import load_text_summaries, read_text_results, text_curves
from memalpha.report.training import CURVES, draw_training


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
    config_path = folder / "config.yaml"
    config_text = config_path.read_text(encoding="utf-8", errors="replace") if config_path.exists() else ""
    systems = systems_of(summary)
    results = dict.fromkeys(("interval", "empty_accuracy", "error", "weakest", "charts"))
    if "before" in systems and "after" in systems:
        results = read_results(systems, evaluated)
    curves = [*CURVES[:3], *text_curves(metrics), *CURVES[3:]] if texts else CURVES
    context = {
        "title": f"memalpha: {folder.name}",
        "name": folder.name,
        "summary": summary,
        "metrics": metrics,
        "texts": texts,
        "systems": systems,
        "short_labels": SHORT_LABELS,
        "example": None if texts else _read_json(folder / "eval" / "example.json"),
        "curves": draw_training(metrics, curves),
        "text": read_text_results(folder / "eval", texts) if texts else None,
        "evaluation": read_evaluation(evaluated, SYSTEMS, load_unjudged_counts(folder / "eval")) if evaluated else None,
        "anchor": anchor,
        "config": _parse_config(config_text),
        "config_text": config_text,
    }
    page = ENVIRONMENT.get_template("report.html").render(context | results | _reproduction(folder, summary))
    target = folder / "report.html"
    target.write_text(page, encoding="utf-8", errors="backslashreplace")  # a model may write half a surrogate pair
    return target


def _reproduction(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commands that repeat ("" if none was recorded) and resume the run, and software versions."""
    command, software = "", summary.get("software") or (_read_lines(folder / "starts.jsonl") or [{}])[-1]
    provenance = _read_provenance(folder / "eval" / "summary.json")
    if (folder / "config.yaml").exists():
        command = f"memalpha train {shlex.quote(str(folder / 'config.yaml'))}"
    elif isinstance(config := provenance.get("config"), Mapping):
        settings = {key: value for key, value in config.items() if key not in ("benchmark", "out")}
        changes = _changed_settings(settings, EvalConfig().model_dump(mode="json"))
        command = shlex.join(["memalpha", "eval", str(config.get("benchmark")), *changes])
        versions = provenance.get("versions")
        software = {"version": versions.get("memalpha")} if isinstance(versions, Mapping) else None
    return {
        "resume_command": shlex.join(["memalpha", "train", str(folder)]),
        "command": command and f"{command} out={shlex.quote(f'{folder}-again')}",
        "software": software if isinstance(software, Mapping) else {},
        "installed_version": __version__,
    }


def _changed_settings(config: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the settings that differ from the defaults, as `key=value`."""
    for key, value in config.items():
        default = defaults.get(key)
        if value == default and key in defaults:
            continue
        if isinstance(value, Mapping) and value and (default is None or isinstance(default, Mapping)):
            yield from _changed_settings(value, default or {}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value)}"


def _read_provenance(path: Path) -> dict[str, Any]:
    """Return the provenance of an evaluation, {} if there is none: the page shows the results all the same."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


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
