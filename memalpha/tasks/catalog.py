"""The data sets by name, each with the module that reads it.

A loader module of one set has `DATA`, the `DataSet`, and `load(path, variant, limit, **options) -> list[Task]`; one of
several sets has `DATA`, a tuple of them, and `load_NAME` for each. `path` is what the user named, the set's own file or
the folder it lies in, or what was fetched from a hub; None for a set that is made here or ships. `variant` is one of
`DataSet.variants` (None where there are none), `limit` keeps the first tasks. A loader's further keyword arguments,
each with a default, are the set's options. To add a set, add its line to `MODULES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from memalpha.errors import DataError
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.sources.hub import commit_of, obtain
from memalpha.types import Task

MODULES = {
    "synthetic": "synthetic.worlds",
    "babi": "datasets.babi",
    "locomo": "datasets.locomo",
    "friendsqa": "datasets.friendsqa",
    "hotpotqa": "datasets.multihop",
    "musique": "datasets.multihop",
    "squad": "datasets.squad",
    "xquad": "datasets.squad",
    "banking77": "datasets.labels",
    "clinc150": "datasets.labels",
    "nlu": "datasets.labels",
    "trec": "datasets.labels",
    "longmemeval": "datasets.longmemeval",
    "memoryagentbench": "datasets.memoryagentbench",
    "personamem": "datasets.personamem",
    "personamem_v2": "datasets.personamem",
    "personamem_snippets": "datasets.persona_snippets",
    "perltqa": "datasets.perltqa",
    "beam": "datasets.beam",
    "beam_10m": "datasets.beam",
    "halumem": "datasets.halumem",
    "qmsum": "datasets.qmsum",
    "booksum": "datasets.booksum",
    "memalpha": "datasets.memalpha_sets",
    "memalpha_mab": "datasets.memalpha_sets",
}
"""The module in `memalpha.tasks` of every data set."""

Loader = Callable[..., list[Task]]


def data_set(name: str) -> DataSet:
    """What is known of a data set. Raises `DataError` for a name that is none."""
    return _entry(name)[0]


def data_sets() -> list[DataSet]:
    """All of them."""
    return [data_set(name) for name in MODULES]


def options_of(name: str) -> dict[str, Any]:
    """The options that a set's loader takes, with their defaults."""
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
    """The tasks of a data set, from `data` (a file or folder of yours) or from where `locate` finds it.

    Raises `DataError` for an unknown name, variant or option, for data that are missing or do not fit, and for a set
    that turns out empty. Tasks from a hub's cache say in `meta["commit"]` which commit of the repository they are of.
    """
    known = data_set(name)
    variant, options = checked_variant(known, variant), checked_options(name, {"limit": limit, **options})
    return read_set(name, locate(known, variant, data), variant, options)


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
    if path is not None and (commit := commit_of(path)) is not None:
        return [task.model_copy(update={"meta": {**task.meta, "commit": commit}}) for task in tasks]
    return tasks


def checked_variant(known: DataSet, variant: str | None) -> str | None:
    """The variant meant: the first where none is named. Raises `DataError` for one that the set does not have."""
    if variant is None:
        return known.variants[0] if known.variants else None
    if variant not in known.variants:
        has = f"its variants are {', '.join(known.variants)}" if known.variants else "it has none"
        raise DataError(f"{known.name}: no variant {variant!r}; {has}")
    return variant


def checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and `limit`, as the loader's signature has them: it says which there are, and of what type.

    Raises `DataError` for others.
    """
    if wrong := sorted(set(options) - {"limit", *options_of(name)}):
        takes = ", ".join(options_of(name)) or "none"
        raise DataError(f"{name}: no option {wrong[0]!r}; its options are: {takes}")
    if isinstance(limit := options.get("limit"), int) and limit < 1:
        raise DataError(f"limit {limit}: at least one task is needed")
    types = get_type_hints(_entry(name)[1])
    checked: dict[str, Any] = {}
    for key, value in options.items():
        try:
            checked[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise DataError(f"{name}: {key}={value!r}: {error.errors()[0]['msg']}") from error
    return checked


def locate(known: DataSet, variant: str | None, data: str | Path | None) -> Path | None:
    """Where a set's files are: `data` itself, a hub's cache (fetched if need be), or None for what memalpha brings.

    Raises `DataError` with what to get from where.
    """
    if known.source.startswith("hub:"):
        return obtain(known, variant, data)
    if data is not None and known.source == "made here":
        raise DataError(f"{known.name}: made here: data does not belong to it")
    if data is not None:
        path = Path(data)
        if not path.exists():
            raise DataError(f"{path}: not there; {_how_to_get(known, variant)}")
        return path
    if known.ships:
        return None
    raise DataError(f"{known.name}: {_how_to_get(known, variant)}")


def _how_to_get(known: DataSet, variant: str | None) -> str:
    files = ", ".join(file.path for file in known.files_for(variant)) or "its files"
    where = known.source.removeprefix("github:")
    return f"get {files} from the GitHub repository {where} and give the file or its folder as data=PATH"


@cache
def _entry(name: str) -> tuple[DataSet, Loader]:
    if name not in MODULES:
        raise DataError(f"no data set {name!r}: there are {', '.join(MODULES)}")
    module = import_module(f"memalpha.tasks.{MODULES[name]}")
    if isinstance(module.DATA, tuple):
        return next(known for known in module.DATA if known.name == name), getattr(module, f"load_{name}")
    return module.DATA, module.load
