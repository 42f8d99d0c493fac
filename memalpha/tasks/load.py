"""`load_tasks`: load tasks from any source, by name or path."""

from __future__ import annotations

import sys
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from memalpha.arguments import check_count, check_path, check_seed, check_type
from memalpha.config import WorldConfig
from memalpha.errors import DataError, did_you_mean
from memalpha.tasks.catalog import MODULES, load_set, loader_options
from memalpha.tasks.formats.chats import load_chats
from memalpha.tasks.formats.csv import load_csv
from memalpha.tasks.formats.hub_rows import from_dataset
from memalpha.tasks.formats.jsonl import load_jsonl
from memalpha.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

TABLES = (".csv", ".tsv")


def load_tasks(
    name_or_path: str | Path | Dataset,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    variant: str | None = None,
    world: WorldConfig | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Task]:
    """Load the tasks of a named data set, of your own task file, or of a `datasets.Dataset`.

    `memalpha data list` shows the names. Anything else is the path of a JSON Lines or CSV file, of a folder with two
    CSV tables, or of an exported chat (`tasks.formats`). A chat has no questions: `memalpha data ask` makes some.

    Args:
        name_or_path: Name of a data set, path of a task file, or a `datasets.Dataset` (`tasks.formats.hub_rows`).
        limit: Return the first `limit` tasks only.
        data: Official file of the set or its folder, for sets that neither ship nor come from a hub.
        variant: Part or size of the set; default: its first.
        world: Synthetic world, for `"synthetic"` only.
        seed: Seed, for sets with randomness.
        **options: Further options of the set's loader; of a chat exported as text `dates`: "day-first" or
            "month-first".

    Raises:
        DataError: A name or option is unknown, a file is missing or bad, or the data set is empty.
    """
    dataset = _as_dataset(name_or_path)
    if dataset is None:
        check_path("tasks", name_or_path, error=DataError)
    name = str(name_or_path) if dataset is None else "a Dataset"
    check_type("variant", variant, (str, NoneType), error=DataError)
    check_seed(seed, error=DataError)
    if data is not None:
        check_path("data", data, error=DataError)
    if limit is not None:
        check_count("limit", limit, error=DataError)
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    if world is not None:
        options["world"] = world
    if seed != 0:
        options["seed"] = seed
    if name in MODULES:
        for option in ("world", "seed"):
            if option in options and option not in loader_options(name):
                raise DataError(f"{name}: {option} belongs to sets {_with_option(option)} only")
        return load_set(name, limit, data=data, variant=variant, **options)
    path = Path(name)
    is_task_file = path.suffix in (".jsonl", *TABLES) or path.is_dir()
    dates = None if is_task_file else options.pop("dates", None)
    if named_set_options := [
        *options,
        *(["data"] if data is not None else []),
        *(["variant"] if variant is not None else []),
    ]:
        raise DataError(
            f"{name}: {named_set_options[0]} belongs to named data sets only; a task file is named by its path alone"
        )
    if dataset is not None:
        return from_dataset(dataset.select(range(min(limit or len(dataset), len(dataset)))).to_list())
    if not path.exists() and not path.suffix:
        near = did_you_mean(name, MODULES)
        raise DataError(f"no data set {name!r}{near}: give the path of a task file or one of {', '.join(MODULES)}")
    tasks = None if is_task_file else load_chats(path, dates)
    if tasks is None:
        tasks = load_csv(path) if path.suffix in TABLES or path.is_dir() else load_jsonl(path)
    return tasks[:limit]


def _as_dataset(value: Any) -> Dataset | None:
    """Return a `datasets.Dataset` as it is, None for anything else; does not import the package.

    Raises:
        DataError: It is a set of several splits, or is read as a stream.
    """
    datasets = sys.modules.get("datasets")
    if datasets is None or isinstance(value, str | Path):
        return None
    if isinstance(value, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise DataError(f"this Dataset has splits: give one of them ({', '.join(map(repr, value))})")
    if isinstance(value, datasets.IterableDataset):
        raise DataError("this Dataset is a stream: load it with streaming=False")
    return value if isinstance(value, datasets.Dataset) else None


def _with_option(option: str) -> str:
    return ", ".join(repr(name) for name in MODULES if option in loader_options(name))
