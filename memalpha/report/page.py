"""The page of a run: `write_report(run)` writes it as a file, `RUN/report.html`; `memalpha watch` serves it live.

The file needs no network. A script in it shows rollouts; everything else needs none. The page is made from the files of
the run: `summary.json`, `metrics.jsonl`, `trajectories.jsonl`, `tasks.jsonl`, `eval/*.jsonl`, `eval/example.json`,
`config.yaml`. A missing part is named as missing, never drawn as zero. An evaluation without training has a page too.
Templates are Jinja2's, which escapes every value; rollouts are read while a run may still be writing them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from markupsafe import Markup

from memalpha import __version__
from memalpha.config import EvalConfig
from memalpha.errors import DataError
from memalpha.report import evaluation
from memalpha.report.charts import ENVIRONMENT, LOADER, Series, format_figure, line_chart, swatch
from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.text_files import parse_json

QUIET_MINUTES = 10
"""A live page says how long ago the last step was, from so many minutes on."""


class RunPage:
    """The page of a run or of an evaluation: as a file, or live while the run writes on.

    Args:
        run: Its directory.

    Raises:
        DataError: There is no such directory.
    """

    def __init__(self, run: str | Path) -> None:
        self.folder = Path(run)
        if not self.folder.is_dir():
            raise DataError(f"{self.folder}: there is no such directory: name that of a run or an evaluation")
        self.rollouts = Rollouts(self.folder)

    def render(self, *, live: bool = False) -> str:
        """Return the page. A live page fetches rollouts and news; the other holds some of the rollouts itself.

        Raises:
            DataError: The directory holds no `metrics.jsonl`, no `summary.json` and no classified records
                (`eval/*.jsonl`), a live one no `config.yaml` either, or a line of them is not JSON.
        """
        folder = self.folder
        metrics, summary = self._metrics(), _read_json(folder / "summary.json")
        texts = evaluation.load_text_summaries(folder / "eval")
        systems = evaluation.systems_of(summary)
        records = {} if texts else evaluation.load_systems(folder / "eval")
        config_path = folder / "config.yaml"
        try:
            provenance = _read_json(folder / "eval" / "summary.json")
        except DataError:
            provenance = {}  # the page shows the results all the same
        evaluated = evaluation.read_evaluation(folder, records, provenance) if records else None
        if not (metrics or summary or records or texts or (live and config_path.exists())):
            raise DataError(
                f"{folder} is not a run directory: it holds neither summary.json nor metrics.jsonl, nor an evaluation "
                "(eval/*.jsonl) whose wrong answers were classified"
            )
        config_text = config_path.read_text(encoding="utf-8", errors="replace") if config_path.exists() else ""
        results = dict.fromkeys(("interval", "empty_accuracy", "error", "weakest", "charts"))
        if "before" in systems and "after" in systems:
            results = evaluation.read_results(systems, records)
        example = folder / "eval" / "example.json"
        try:
            config = yaml.safe_load(config_text)
        except yaml.YAMLError:
            config = None  # the page shows the results all the same
        context = {
            "title": f"memalpha: {evaluated['title'] if evaluated and not summary else folder.name}",
            "name": folder.name,
            "summary": summary,
            "texts": texts,
            "systems": systems,
            "short_labels": evaluation.SHORT_LABELS,
            "example": None if texts or (live and not summary) else _read_json(example),
            **self._training_values(metrics, is_text=bool(texts)),
            "chosen_by": describe_choice(metrics),
            "stop_reason": self._stop_reason(),
            "is_finished": self._is_finished,
            "text": evaluation.read_text_results(folder / "eval", texts) if texts else None,
            "evaluation": evaluated,
            "anchor": evaluation.anchor,
            "config": config if isinstance(config, Mapping) else {},
            "config_text": config_text,
            **self._rollout_values(live=live),
        }
        context |= results | _reproduction(folder, summary, provenance)
        return ENVIRONMENT.get_template("report.html").render(context)

    def training(self) -> str:
        """Return the page's part on training as it is now."""
        metrics, texts = self._metrics(), evaluation.load_text_summaries(self.folder / "eval")
        if not metrics:
            return ""
        return ENVIRONMENT.get_template("training.html").render(self._training_values(metrics, is_text=bool(texts)))

    def _training_values(self, metrics: Sequence[Mapping[str, Any]], *, is_text: bool) -> dict[str, Any]:
        """Return the template's values of the part on training.

        The summary of a finished run has the validation metrics of the start weights, and so has the state of every
        checkpoint. They are {} if the run did not validate or lost its checkpoints.
        """
        checkpoints = sorted((self.folder / "checkpoints").glob("step-*/state.json"), reverse=True)
        files = map(_read_json, (self.folder / "summary.json", *checkpoints))
        starts = (start for values in files if isinstance(start := values.get("start_validation"), dict))
        return {
            "metrics": metrics,
            "curves": draw_training(metrics, next(starts, {}), is_text=is_text),
            "scheduled_steps": _read_last_start(self.folder).get("scheduled_steps"),
        }

    def state(self) -> dict[str, Any]:
        """Return what a live page has to know: steps with rollouts, the last step in words, if the run is over.

        A step's rollouts are all there once its line of metrics is.
        """
        metrics = self._metrics()
        rollouts = [step for step in self.rollouts.steps() if metrics and step <= metrics[-1]["step"]]
        total = _read_last_start(self.folder).get("scheduled_steps")
        parts = [f"step {metrics[-1]['step'] + 1}" + (f" of {total}" if total else "") if metrics else "no step yet"]
        for name in ("reward", "accuracy", "validation_accuracy", "train_loss"):
            value = next((line[name] for line in reversed(metrics) if isinstance(line.get(name), int | float)), None)
            parts += [] if value is None else [f"{name.replace('_', ' ')} {value:.3f}"]
        reason, is_finished = self._stop_reason(), self._is_finished
        if reason:
            parts.append(f"stopped: {reason}")
        elif metrics and not is_finished:
            minutes = int((time.time() - (self.folder / "metrics.jsonl").stat().st_mtime) / 60)
            parts += [f"no step for {minutes} minutes"] if minutes >= QUIET_MINUTES else []
        state = {"rollouts": rollouts, "text": " · ".join(parts), "steps": len(metrics)}
        return state | {"finished": is_finished, "stopped": bool(reason)}

    @property
    def _is_finished(self) -> bool:
        """True if the summary is of the last start; a resumed run still has the old one."""
        if not (summary := self.folder / "summary.json").exists():
            return False
        start, steps = _read_last_start(self.folder), _read_json(summary).get("steps")
        return start.get("scheduled_steps") in (None, steps) or steps is None or start["step"] < steps

    def _stop_reason(self) -> str:
        """Return why an unfinished run makes no more steps; "" if it is not known to have stopped.

        A run that was interrupted says so itself; of one that was killed the process is gone, which only its own host
        can tell.
        """
        if self._is_finished:
            return ""
        if reason := _read_json(self.folder / "stopped.json").get("reason"):
            return str(reason)
        start = _read_last_start(self.folder)
        if start.get("host") == platform.node() and isinstance(start.get("pid"), int) and os.name != "nt":
            try:
                os.kill(start["pid"], 0)  # which would end a process on Windows
            except ProcessLookupError:
                return f"its process ({start['pid']}) is gone"
            except PermissionError:  # it is another user's
                pass
        return ""

    def _metrics(self) -> list[dict[str, Any]]:
        lines = _read_lines(path := self.folder / "metrics.jsonl")
        if without := [number for number, line in enumerate(lines, 1) if not isinstance(line.get("step"), int)]:
            raise DataError(f"{path}:{without[0]}: step: is missing or no number: no line that a run wrote")
        return lines

    def _rollout_values(self, *, live: bool) -> dict[str, Any]:
        """Return the template's values of the part with rollouts; without any, the page holds no script."""
        steps = self.rollouts.steps()
        if not steps and not live:
            return {"live": False, "script": None}
        embedded = [] if live else self.rollouts.embed()
        script = read_asset("rollouts.js")
        connect = "'self'" if live else "'none'"
        return {
            "live": live,
            "script": script,
            "rollouts": embedded,
            "kept_steps": len(embedded),
            "all_steps": len(steps),
            "is_finished": self._is_finished,
            "is_stopped": bool(self._stop_reason()),
            "policy": (
                f"default-src 'none'; style-src 'unsafe-inline'; script-src {source_hash(script)}; "
                f"connect-src {connect}; base-uri 'none'; form-action 'none'"
            ),
        }


def write_report(run: str | Path) -> Path:
    """Write `RUN/report.html` and return its path.

    Raises:
        DataError: RUN is no directory of a run or of an evaluation (`RunPage.render`), or a line is not JSON.
    """
    page = RunPage(run)
    target = page.folder / "report.html"
    # A model may write half a surrogate pair.
    target.write_text(page.render(), encoding="utf-8", errors="backslashreplace")
    return target


CHARTS: Sequence[Mapping[str, Any]] = load_shipped_yaml("training_charts.yaml")
FIRST_CHARTS = 3
"""Charts before the one of a text run's rewards."""


def describe_choice(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return by which validation the best step was chosen; "" without validations."""
    keys = {key for line in metrics for key, value in line.items() if isinstance(value, int | float)}
    if keys & {"validation_accuracy", "validation_reward"}:
        return "best on validation tasks"
    losses = {"validation_loss": "rows", "validation_pair_loss": "pairs"}
    return next((f"lowest loss on held-out {unit}" for key, unit in losses.items() if key in keys), "")


def draw_training(
    metrics: Sequence[Mapping[str, Any]], start: Mapping[str, float], *, is_text: bool
) -> list[tuple[Any, ...]]:
    """Return title, caption, chart and legend of each of `CHARTS`, but for those whose metrics are missing.

    A chart counts steps as the log does: line `step` of metrics.jsonl is what step `step + 1` came to, the start is 0.

    Args:
        metrics: Lines of metrics.jsonl.
        start: Validation metrics of the start weights.
        is_text: Take the charts that only text runs have, too.
    """
    keys = dict.fromkeys(key for line in metrics for key in line)
    charts = [chart for chart in CHARTS if is_text or not chart.get("only_text")]
    charts = [chart for chart in charts if "needs" not in chart or chart["needs"] in keys]
    names = [key for key in keys if is_text and key.startswith("rewards/")]
    if len(names) > 1:  # a chart has five colours; the table below lists all components
        lines = [
            (key, key.removeprefix("rewards/"), kind) for key, kind in zip(names, evaluation.COLOURS, strict=False)
        ]
        about = "Means of a step's replies, before weights."
        rewards = {"title": "Rewards by component", "about": about, "range": (None, None), "lines": lines}
        charts.insert(FIRST_CHARTS, rewards)
    figures = []
    for chart in charts:
        series = []
        for key, label, kind in chart["lines"]:
            is_sparse = key.startswith("validation")
            measured = [{**start, "step": -1}, *metrics] if is_sparse else metrics
            steps = [line for line in measured if isinstance(line.get(key), int | float)]
            points = tuple((float(line["step"] + 1), float(line[key])) for line in steps)
            errors = tuple(float(line.get("validation_se") or 0.0) for line in steps) if is_sparse else ()
            series += [Series(kind, label, points, errors, dots=is_sparse)] if points else []
        if not series:
            continue
        low, high = chart["range"]
        top = None if high is None else max(high, *(y for line in series for _, y in line.points))
        legend = [
            (line.kind, f"{line.label} {' → '.join(format_figure(line.points[i][1]) for i in (0, -1))}", not line.dots)
            for line in series
        ]
        has_intervals = any(error for line in series for error in line.errors)
        about = f"{chart['about']} Bars: 95 % intervals." if has_intervals else chart["about"]
        figures.append((chart["title"], about, line_chart(series, low=low, high=top), legend))
    return figures


def _reproduction(folder: Path, summary: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commands that repeat ("" if none was recorded) and resume the run, and software versions."""
    command, software = "", summary.get("software") or _read_last_start(folder)
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # a run deletes its oldest checkpoints meanwhile
        return {}
    value = parse_json(content, str(path))
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value


def _read_last_start(folder: Path) -> dict[str, Any]:
    """Return what a run recorded when it was last started; {} if nothing."""
    return (_read_lines(folder / "starts.jsonl") or [{}])[-1]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; NaN and infinities in them, which no chart can show, as None."""
    if not path.exists():
        return []
    lines: list[Any] = []
    texts = path.read_bytes().split(b"\n")
    for number, text in enumerate(texts, 1):
        try:
            lines += [json.loads(text, parse_constant=lambda name: None)] if text else []
        except ValueError as error:
            if number == len(texts) and text.startswith(b'{"'):  # the run writes it, or was killed over it
                break
            raise DataError(f"{path}:{number}: not valid JSON: {error}") from error
        if lines and not isinstance(lines[-1], dict):
            raise DataError(f"{path}:{number}: not a JSON object")
    return lines


def read_asset(name: str) -> Markup:
    """Return the content of a style or script element: a file of the templates, after a line break."""
    return Markup("\n" + LOADER.get_source(ENVIRONMENT, name)[0])


def source_hash(content: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows an element with this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def format_decimals(value: float | None, decimals: int = 3) -> str:
    """Return a number with this many decimals, "-" for None."""
    return "-" if value is None else f"{value:.{decimals}f}"


ENVIRONMENT.filters["decimals"] = format_decimals
ENVIRONMENT.globals |= {"page_style": read_asset("page.css"), "swatch": swatch}


_STEP = re.compile(rb'\{"step": (\d+),')
MAX_EMBEDDED = 2_000_000
"""Bytes of rollouts that a static page holds."""


class StepFile:
    """A file of JSON lines whose first key is `step`, such as trajectories.jsonl; it may grow, or begin anew.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._end = 0
        self._last = b""
        self._lock = Lock()  # a server looks from several threads

    def steps(self) -> list[int]:
        """Return the steps that have lines, after a look at what was written since the last one."""
        with self._lock:
            self._look()
            return sorted(self._ranges)

    def _look(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self._end - len(self._last)))
                if file.read(len(self._last)) != self._last:  # a resumed run cuts what it repeats
                    self._ranges, self._end, self._last = {}, 0, b""
                    file.seek(0)
                for line in file:
                    if not line.endswith(b"\n"):  # half a line: the rest comes
                        break
                    if match := _STEP.match(line):
                        self._ranges.setdefault(int(match[1]), []).append((self._end, len(line)))
                    self._end, self._last = self._end + len(line), line
        except FileNotFoundError:
            self._ranges, self._end, self._last = {}, 0, b""

    def read(self, step: int) -> list[dict[str, Any]]:
        """Return the lines of a step; none for a step that has none.

        Raises:
            DataError: A line is not JSON.
        """
        lines = []
        with self.path.open("rb") as file:
            for start, length in self._ranges.get(step, ()):
                file.seek(start)
                lines.append(parse_json(file.read(length), f"{self.path}: a line of step {step}"))
        return lines

    def size(self, step: int) -> int:
        """Return the bytes of a step's lines."""
        return sum(length for _, length in self._ranges.get(step, ()))


class Rollouts:
    """Rollouts of a run by step, as trajectories.jsonl, tasks.jsonl and turns.jsonl have them.

    Args:
        folder: Run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rollouts, self._tasks, self._turns = (
            StepFile(folder / name) for name in ("trajectories.jsonl", "tasks.jsonl", "turns.jsonl")
        )

    def steps(self) -> list[int]:
        """Return the steps that have rollouts."""
        return self._rollouts.steps()

    def read(self, step: int) -> dict[str, Any]:
        """Return tasks and rollouts of a step.

        Raises:
            DataError: The step has none, or a line is not JSON.
        """
        if step not in self.steps():
            raise DataError(f"{self._rollouts.path}: no rollouts of step {step}")
        tasks = self._tasks.read(step) if step in self._tasks.steps() else []
        return {"step": step, "tasks": tasks, "rollouts": self._rollouts.read(step)}

    def tokens(self, step: int, task: str, rollout: int, role: str) -> list[dict[str, Any]]:
        """Return the turns of a rollout as tokens: chunk, texts, log-probs in nats. Without turns.jsonl there are none.

        The texts are the tokenizer's, from the run's first checkpoint.

        Args:
            step: Step of the run.
            task: Id of the task.
            rollout: Index of the rollout among those of its task.
            role: Role of the turns, such as "attempt" or "retry".
        """
        if step not in self._turns.steps():
            return []
        key = (task, rollout, role)
        turns = [turn for turn in self._turns.read(step) if (turn["task"], turn["rollout"], turn["role"]) == key]
        tokenizer = None
        if files := sorted((self.folder / "checkpoints").glob("*/tokenizer.json")):
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(files[0]))
        values = []
        for turn in turns:
            ids, logprobs = turn["completion_ids"], [round(value, 4) for value in turn["logprobs"]]
            texts = [tokenizer.decode([id], skip_special_tokens=False) if tokenizer else str(id) for id in ids]
            values.append({"chunk": turn["chunk"], "texts": texts, "logprobs": logprobs})
        return values

    def embed(self) -> list[dict[str, Any]]:
        """Return steps for a page that is a file: evenly spaced, at most `MAX_EMBEDDED` bytes."""
        steps = self.steps()
        while steps and sum(map(self._rollouts.size, steps)) > MAX_EMBEDDED:
            steps = list(steps[::-1][::2][::-1]) if len(steps) > 1 else []
        return [self.read(step) for step in steps]
