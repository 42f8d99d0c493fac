"""Data sets by name, each with the module that reads it.

The module of one set has `DATA`, a `DataSet`, and `load(path, variant, limit, **options) -> list[Task]`. The module of
several sets has `DATA`, a tuple of them, and a `load_NAME` for each.

Args of a loader:

    path: the set's own file or folder, or what was fetched from a hub; None for a generated or shipped set
    variant: one of `DataSet.variants`; None where there are none
    limit: keep the first tasks
    options: further keyword arguments with defaults are the options of the set

To add a set, add its line to `MODULES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from memalpha.arguments import brief_repr
from memalpha.errors import DataError, did_you_mean
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.formats.hub import obtain, snapshot_commit
from memalpha.types import Task

MODULES = {
    "synthetic": "synthetic.worlds",
    "babi": "datasets.babi",
    "locomo": "datasets.locomo",
    "friendsqa": "datasets.transcripts",
    "squad": "datasets.single_turn",
    "xquad": "datasets.single_turn",
    "banking77": "datasets.single_turn",
    "clinc150": "datasets.single_turn",
    "nlu": "datasets.single_turn",
    "trec": "datasets.single_turn",
    "longmemeval": "datasets.longmemeval",
    "memoryagentbench": "datasets.memoryagentbench",
    "personamem": "datasets.personamem",
    "personamem_v2": "datasets.personamem",
    "personamem_snippets": "datasets.personamem",
    "perltqa": "datasets.perltqa",
    "beam": "datasets.beam",
    "beam_10m": "datasets.beam",
    "halumem": "datasets.halumem",
    "qmsum": "datasets.transcripts",
    "booksum": "datasets.single_turn",
    "memalpha": "datasets.memalpha_sets",
    "memalpha_mab": "datasets.memalpha_sets",
}
"""Module in `memalpha.tasks` of every data set, by name."""

Loader = Callable[..., list[Task]]


def get_data_set(name: str) -> DataSet:
    """Return the description of a data set. Raises `DataError` for an unknown name."""
    return _entry(name)[0]


def list_data_sets() -> list[DataSet]:
    """Return the descriptions of all data sets."""
    return [get_data_set(name) for name in MODULES]


def loader_options(name: str) -> dict[str, Any]:
    """Return the options of a set's loader with their defaults."""
    parameters = inspect.signature(_entry(name)[1]).parameters
    return {key: value.default for key, value in parameters.items() if key not in ("path", "variant", "limit")}


def load_set(
    name: str,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    variant: str | None = None,
    **options: Any,
) -> list[Task]:
    """Load the tasks of a data set.

    Tasks from a hub's cache name the commit of their repository in `meta["commit"]`.

    Args:
        name: Name of the data set.
        limit: Return the first `limit` tasks only.
        data: File or folder of your own; None reads what `locate` finds.
        variant: One of the set's variants; None takes the first.
        **options: Options of the loader.

    Raises:
        DataError: The name, variant or option is unknown, the data are missing or do not fit, or the set is empty.
    """
    dataset = get_data_set(name)
    variant, options = resolve_variant(dataset, variant), validate_options(name, {"limit": limit, **options})
    return read_set(name, locate(dataset, variant, data), variant, options)


def read_set(name: str, path: Path | None, variant: str | None, options: Mapping[str, Any]) -> list[Task]:
    """Read the tasks of a data set whose files were located.

    Args:
        name: Name of the data set.
        path: File or folder of the set; None for a set that ships or is generated.
        variant: One of the set's variants; None where it has none.
        options: Options of the loader, and `limit`.

    Raises:
        DataError: The files do not fit or hold no task.
    """
    tasks = _entry(name)[1](path, variant, **options)
    if not tasks:
        raise DataError(f"{name}: the data set is empty")
    if path is not None and (commit := snapshot_commit(path)) is not None:
        return [task.model_copy(update={"meta": {**task.meta, "commit": commit}}) for task in tasks]
    return tasks


def resolve_variant(dataset: DataSet, variant: str | None) -> str | None:
    """Return the variant, the first one for None. Raises `DataError` for a variant that the set does not have."""
    if variant is None:
        return dataset.variants[0] if dataset.variants else None
    if variant not in dataset.variants:
        has = f"its variants are {', '.join(dataset.variants)}" if dataset.variants else "it has none"
        raise DataError(f"{dataset.name}: no variant {variant!r}; {has}")
    return variant


def validate_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate loader options, and `limit`, against the signature of the loader.

    Returns:
        The options, converted to the types of the signature.

    Raises:
        DataError: An option is unknown or has a wrong type.
    """
    if unknown := sorted(set(options) - {"limit", *loader_options(name)}):
        takes = ", ".join(loader_options(name)) or "none"
        raise DataError(f"{name}: no option {unknown[0]!r}; its options are: {takes}")
    if isinstance(limit := options.get("limit"), int) and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    types = get_type_hints(_entry(name)[1])
    checked: dict[str, Any] = {}
    for key, value in options.items():
        try:
            checked[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise DataError(f"{name}: {key}={brief_repr(value)}: {error.errors()[0]['msg']}") from error
    return checked


def locate(dataset: DataSet, variant: str | None, data: str | Path | None) -> Path | None:
    """Return the path of a set's files: `data`, or the hub's cache, fetched if needed.

    Args:
        dataset: Data set to find.
        variant: Variant whose files are needed.
        data: File or folder of your own.

    Returns:
        The path; None for a set that ships or is generated.

    Raises:
        DataError: Nothing is there; the message says what to get from where.
    """
    if dataset.source.startswith("hub:"):
        return obtain(dataset, variant, data)
    if data is not None and dataset.source == "made here":
        raise DataError(f"{dataset.name}: made here: data does not belong to it")
    if data is not None:
        path = Path(data)
        if not path.exists():
            raise DataError(f"{path}: not there; {_download_instructions(dataset, variant)}")
        return path
    if dataset.ships:
        return None
    raise DataError(f"{dataset.name}: {_download_instructions(dataset, variant)}")


def _download_instructions(dataset: DataSet, variant: str | None) -> str:
    files = ", ".join(file.path for file in dataset.files_for(variant)) or "its files"
    repository = dataset.source.removeprefix("github:")
    return f"get {files} from the GitHub repository {repository} and give the file or its folder as data=PATH"


@cache
def _entry(name: str) -> tuple[DataSet, Loader]:
    if name not in MODULES:
        raise DataError(f"no data set {name!r}{did_you_mean(name, MODULES)}: there are {', '.join(MODULES)}")
    module = import_module(f"memalpha.tasks.{MODULES[name]}")
    if isinstance(module.DATA, tuple):
        return next(dataset for dataset in module.DATA if dataset.name == name), getattr(module, f"load_{name}")
    return module.DATA, module.load
