"""Check what a run reads before torch is imported: data files, and the rows of a supervised run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from memalpha.config import SFTConfig
from memalpha.config.training import AnyTraining, RunConfig
from memalpha.errors import ConfigError, DataError
from memalpha.tasks.catalog import MODULES
from memalpha.tasks.load import load_tasks
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.types import Task


def check_inputs(config: AnyTraining) -> None:
    """Check the data files of a run, and that the source of a supervised run can give rows.

    Raises:
        ConfigError: `source` is invalid, or names rows that cannot be had.
        DataError: A data file is missing or empty, or its tasks have no gold operations and `source` needs them.
    """
    evaluation = getattr(config, "evaluation", None)
    for key, path in (("data", getattr(config, "data", None)), ("evaluation.data", getattr(evaluation, "data", None))):
        if path is not None and str(path) not in MODULES:
            _check_data_file(key, Path(path), is_task_file=isinstance(config, RunConfig))
    if isinstance(config, SFTConfig):
        check_source(config.source, is_resuming=(config.out / "rows.jsonl").is_file())
        if config.data not in MODULES and needs_gold(config.source):
            source = TaskSource(config)
            check_gold([*source.file_tasks, *source.validation], config)


def check_source(source: str, *, is_resuming: bool) -> None:
    """Raise `ConfigError` unless `source` names rows or a way to make them; a resumed run has its rows already."""
    path = Path(source)
    if source in ("gold", "best", "erl") or source.startswith("scripted:"):
        return
    if path.suffix == ".jsonl":
        if not path.is_file() and not is_resuming:
            raise ConfigError(
                f"source: {source}: there is no such file: memalpha data write TASKS --policy POLICY --out {source} "
                "makes one"
            )
    elif not path.is_dir():
        raise ConfigError(
            f"source: {source!r} is none: give gold, scripted:KIND, best, erl, a run directory, or a .jsonl of rows"
        )
    elif not (path / "turns.jsonl").is_file():
        raise ConfigError(f"source: {source} holds no turns.jsonl: only a run with keep_tokens=true writes it")


def needs_gold(source: str) -> bool:
    """Return True if the rows of a supervised run come from gold operations."""
    return source in ("gold", "erl") or (source.startswith("scripted:") and source != "scripted:add-all")


def check_gold(tasks: Iterable[Task], config: SFTConfig) -> None:
    """Raise `DataError` if a task has no gold operations, which `source` needs."""
    for task in tasks:
        if not task.gold_operations:
            raise DataError(
                f"source: {config.source} imitates gold operations, and task {task.id!r} of {config.data} has none: "
                f"let a model write the conversations (memalpha data write {config.data} --policy POLICY --out "
                "rows.jsonl, then source=rows.jsonl), or set source=best, which imitates the policy's own best rollouts"
            )


def _check_data_file(key: str, path: Path, *, is_task_file: bool) -> None:
    if path.is_file():
        try:
            with path.open("rb") as file:
                is_empty = not any(map(bytes.strip, file))
        except OSError:
            return  # the trainer's message says why
        if is_empty:
            raise DataError(f"{key}: {path} is empty")
    elif is_task_file and not path.is_dir():
        load_tasks(path)  # raises: it says what the name could mean
    elif path.suffix == ".jsonl":
        raise DataError(f"{key}: {path}: there is no such file: give the path of a JSON Lines file")
