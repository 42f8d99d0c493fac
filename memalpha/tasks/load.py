"""`load_tasks`: every source of tasks by name or path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memalpha.config import WorldConfig
from memalpha.errors import DataError
from memalpha.tasks.catalog import MODULES, load_set, options_of
from memalpha.tasks.formats.csv import load_table
from memalpha.tasks.formats.jsonl import load_jsonl
from memalpha.types import Task

TABLES = (".csv", ".tsv")


def load_tasks(
    name_or_path: str | Path,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    variant: str | None = None,
    world: WorldConfig | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Task]:
    """Tasks of a named data set, or of a task file of one's own: JSON Lines, or CSV (`tasks.table`).

    `memalpha data list` shows the names. `data` is the set's official file or the folder it lies in, for sets that
    neither ship nor come from a hub; `variant` a part or size of it. `"synthetic"` takes `world`; `seed` goes to sets
    with randomness in them; further `options` are the set's own, as its loader says. Anything else than a name is the
    path of a task file, or of a folder with the two tables. `limit` keeps the first tasks. Raises `DataError` for an
    unknown name, a missing or bad file, an option that does not belong to the source, and an empty data set.
    """
    name = str(name_or_path)
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    if world is not None:
        options["world"] = world
    if seed != 0:
        options["seed"] = seed
    if name in MODULES:
        for option in ("world", "seed"):
            if option in options and option not in options_of(name):
                raise DataError(f"{name}: {option} belongs to sets {_with_option(option)} only")
        return load_set(name, limit, data=data, variant=variant, **options)
    if given := [*options, *(["data"] if data is not None else []), *(["variant"] if variant is not None else [])]:
        raise DataError(f"{name}: {given[0]} belongs to named data sets only; a task file is named by its path alone")
    path = Path(name)
    if not path.exists() and not path.suffix:
        raise DataError(f"no data set {name!r}: give the path of a task file or one of {', '.join(MODULES)}")
    return (load_table(path) if path.suffix in TABLES or path.is_dir() else load_jsonl(path))[:limit]


def _with_option(option: str) -> str:
    return ", ".join(repr(name) for name in MODULES if option in options_of(name))
