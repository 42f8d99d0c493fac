"""Loading of tasks for training and for evaluation, each from the split meant for it; splitting of a task file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from memalpha.errors import ConfigError, DataError
from memalpha.tasks.catalog import MODULES, get_data_set, load_set, locate, read_set, validate_options
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_tasks
from memalpha.types import Task


def load_training_tasks(source: str, *, on_evaluation_split: bool = False) -> list[Task]:
    """Load the tasks that a training run takes from its `data`.

    A named data set gives its training split (`DataSet.training_variants`, `DataSet.training_options`). A task file is
    read whole: its owner decides what it holds.

    Args:
        source: Name of a data set, or the path of a task file.
        on_evaluation_split: Load the set's default evaluation split instead of its training split.

    Raises:
        ConfigError: The set has no training split, or `on_evaluation_split` is set for a task file.
        DataError: The files are missing or do not fit.
    """
    if source not in MODULES:
        if on_evaluation_split:
            raise ConfigError(
                f"train_on_evaluation_split: has no effect with data={source}, which is no named data set; leave it out"
            )
        return load_tasks(source)
    dataset = get_data_set(source)
    if on_evaluation_split:
        return _load_split(dataset, dataset.evaluation_variant, {})
    if not dataset.has_training_split:
        raise ConfigError(
            f"data: {source} is for evaluation only: no split of it is marked for training, and a score on tasks that "
            "were trained on measures nothing; train on a set with a training split (memalpha data list NAME shows "
            "it) or on a task file of your own, or set train_on_evaluation_split=true and report no score on it"
        )
    return _load_split(dataset, dataset.training_variant, dict(dataset.training_options))


def load_evaluation_tasks(source: str, limit: int | None = None) -> list[Task]:
    """Load held-out tasks of a named data set or a task file.

    A named data set gives its first variant that is no training split.

    Args:
        source: Name of a data set, or the path of a task file.
        limit: Return the first `limit` tasks only.

    Raises:
        DataError: The files are missing or do not fit.
    """
    if source not in MODULES:
        return load_tasks(source, limit)
    return load_set(source, limit, variant=get_data_set(source).evaluation_variant)


def _load_split(dataset: DataSet, variant: str | None, options: dict[str, object]) -> list[Task]:
    try:
        path = locate(dataset, variant, None)
    except DataError as error:
        selection = [f"variant={variant}"] if variant is not None else []
        selection += [f"{key}={value}" for key, value in options.items()]
        command = " ".join(["memalpha data prepare", dataset.name, "tasks.jsonl data=PATH", *selection])
        raise DataError(f"data: {error}; then write a task file ({command}) and train with data=tasks.jsonl") from error
    return read_set(dataset.name, path, variant, validate_options(dataset.name, options))


def save_tasks(tasks: Sequence[Task], path: Path, held_out: Path | None = None) -> None:
    """Write tasks to a task file, and a fifth of them to another one.

    A fifth is chosen by a hash of the conversations: equal ones are on one side, and the order of the file has no part.

    Args:
        tasks: The tasks.
        path: The task file.
        held_out: File of the fifth; None writes all tasks to `path`.

    Raises:
        ConfigError: Both files are one.
        DataError: There are fewer than two different conversations, or a file cannot be written.
    """
    if held_out is None:
        save_jsonl(tasks, path)
        return
    if held_out.absolute() == path.absolute():
        raise ConfigError(f"--held-out {held_out}: name another file than --out")
    texts = ["\n\n".join(chunk.render() for chunk in task.chunks) for task in tasks]
    ordered = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "replace")).digest())
    if len(ordered) < 2:
        raise DataError("held-out tasks need at least two different conversations: leave --held-out out")
    fifth = set(ordered[: max(1, len(ordered) // 5)])
    save_jsonl([task for task, text in zip(tasks, texts, strict=True) if text not in fifth], path)
    save_jsonl([task for task, text in zip(tasks, texts, strict=True) if text in fifth], held_out)
