"""`load_tasks`: every source of tasks by name or path."""

from __future__ import annotations

from pathlib import Path

from memalpha.config import BabiConfig, WorldConfig
from memalpha.errors import DataError
from memalpha.tasks import synthetic
from memalpha.tasks.jsonl import load_jsonl
from memalpha.types import Task

SYNTHETIC_TASKS = 200
"""How many tasks "synthetic" gives when no limit is named: that world has no end."""

DATA_SETS = {
    "synthetic": "made here, without end, from a seed; nothing to download",
    "babi": "400 streams of 4 stories each, 12,500 questions, from the official test files of 8 tasks of bAbI, which "
    "ship (CC BY 3.0); or from the folder of official files that data names",
    "locomo": "10 long conversations, 1,986 questions; locomo10.json of the GitHub repository snap-research/LoCoMo, "
    "CC BY-NC 4.0, so it is read from your copy and never shipped",
}
"""Data sets by name: what each holds and how it is got."""


def load_tasks(
    name_or_path: str | Path,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    world: WorldConfig | None = None,
    seed: int = 0,
) -> list[Task]:
    """Tasks of a named data set or of a task file (JSON Lines).

    `"synthetic"` takes `world` and `seed`; `"babi"` takes `seed`, and `data`, a folder of official files; `"locomo"`
    takes `data`, the path of its file; anything else is the path of a task file. `limit` keeps the first tasks. Raises
    `DataError` for an unknown name, a missing or bad file, an option that does not belong to the source, and an empty
    data set.
    """
    name = str(name_or_path)
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    if name != "synthetic" and world is not None:
        raise DataError(f"{name}: world belongs to 'synthetic' only")
    if name not in ("synthetic", "babi") and seed != 0:
        raise DataError(f"{name}: seed belongs to 'synthetic' and 'babi' only")
    if name not in ("babi", "locomo") and data is not None:
        raise DataError(f"{name}: data belongs to 'babi' and 'locomo' only; a task file is named by its path alone")
    if name == "synthetic":
        return synthetic.tasks(world or WorldConfig(), seed, 0, SYNTHETIC_TASKS if limit is None else limit)
    if name == "babi":
        from memalpha.tasks import babi

        config = BabiConfig(folder=None if data is None else str(data))
        count = babi.one_pass(config)
        return babi.streams(config, "test", seed, 0, count if limit is None else min(limit, count))
    if name == "locomo":
        if data is None:
            raise DataError("locomo: give the path of its file, data=PATH (locomo10.json; see data/README.md)")
        from memalpha.tasks.locomo import load_locomo

        tasks = load_locomo(data)
    elif Path(name).exists() or Path(name).suffix:
        tasks = load_jsonl(name)
    else:
        raise DataError(
            f"no data set {name!r}: give 'synthetic', 'babi', 'locomo' (with data=PATH) or the path of a task file"
        )
    if not tasks:
        raise DataError(f"{name}: the data set is empty")
    return tasks[:limit]
