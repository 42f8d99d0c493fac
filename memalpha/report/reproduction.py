"""Foot of the page: the command that repeats the run, and the version that made it."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from memalpha.config import EvalConfig


def render_reproduction(run: str | Path, summary: Mapping[str, Any]) -> str:
    """Return the HTML of the foot; without a recorded configuration it has no command.

    Args:
        run: Path of the run directory, as the command shall name it.
        summary: The run's `summary.json`; `software` names version and commit of the run.
    """
    folder = Path(run)
    evaluation = _read_provenance(folder / "eval" / "summary.json")
    command, software = "", summary.get("software")
    if (folder / "config.yaml").exists():
        command = f"memalpha train {shlex.quote(str(folder / 'config.yaml'))} {_out(folder)}"
    elif isinstance(config := evaluation.get("config"), Mapping):
        command = f"memalpha eval {shlex.quote(str(config.get('benchmark')))}"
        command += "".join(f" {shlex.quote(pair)}" for pair in changed_settings(config)) + f" {_out(folder)}"
        versions = evaluation.get("versions")
        software = {"version": versions.get("memalpha")} if isinstance(versions, Mapping) else None
    note = _version_note(software if isinstance(software, Mapping) else {})
    command_html = f"<h2>Reproduce</h2><pre>{escape(command)}</pre>" if command else ""
    return f'<footer>{command_html}<p class="soft">{escape(note)}</p></footer>'


def changed_settings(config: Mapping[str, Any]) -> list[str]:
    """Return the settings of an evaluation that differ from the defaults, as `key=value`."""
    defaults = EvalConfig().model_dump(mode="json")
    return list(_changes({key: value for key, value in config.items() if key not in ("benchmark", "out")}, defaults))


def _changes(config: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        default = defaults.get(key)
        if value == default and key in defaults:
            continue
        if isinstance(value, Mapping) and value and (default is None or isinstance(default, Mapping)):
            yield from _changes(value, default or {}, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{key}={text}"


def _out(folder: Path) -> str:
    return f"out={shlex.quote(f'{folder}-again')}"


def _version_note(software: Mapping[str, Any]) -> str:
    if not software.get("version"):
        return f"This page was written by memalpha {_installed_version()}; the run did not record its version."
    commit = f", commit {software['commit']}" if software.get("commit") else ""
    return f"The run was made by memalpha {software['version']}{commit}."


def _installed_version() -> str:
    try:
        return importlib.metadata.version("memalpha")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return "(version unknown)"


def _read_provenance(path: Path) -> dict[str, Any]:
    """Return the provenance of an evaluation, {} if there is none: the page shows the results all the same."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
