"""Data sets by name, each with the module that reads it.

The module of one set has `DATA`, a `DataSet`, and `load(path, variant, limit, **options) -> list[Task]`. The module of
several sets has `DATA`, a tuple of them, and a `load_NAME` for each.

Args of a loader:

    path: the set's own file or folder, or what was fetched from a hub; None for a generated or shipped set
    variant: one of `DataSet.variants`; None where there are none
    limit: keep the first tasks
    options: further keyword arguments with defaults are the options of the set

To add a set, add its line to `MODULES`. Files of sets on the model hub come from its cache, or a resumable download.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from memalpha.arguments import brief_repr
from memalpha.errors import DataError, did_you_mean, install_command
from memalpha.hub import hub_reachable
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.formats.files import compute_sha256
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
    name: str, limit: int | None = None, *, data: str | Path | None = None, variant: str | None = None, **options: Any
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
    types = get_type_hints(_entry(name)[1], include_extras=True)
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
    if data is not None:
        if dataset.source == "made here":
            raise DataError(f"{dataset.name}: made here: data does not belong to it")
        if not (path := Path(data)).exists():
            raise DataError(f"{path}: not there; {_manual_instructions(dataset, variant)}")
        return path
    if dataset.source.startswith("hub:"):
        return obtain(dataset, variant)
    if dataset.ships:
        return None
    raise DataError(f"{dataset.name}: {_manual_instructions(dataset, variant)}")


@cache
def _entry(name: str) -> tuple[DataSet, Loader]:
    if name not in MODULES:
        raise DataError(f"no data set {name!r}{did_you_mean(name, MODULES)}: there are {', '.join(MODULES)}")
    module = import_module(f"memalpha.tasks.{MODULES[name]}")
    if isinstance(module.DATA, tuple):
        return next(dataset for dataset in module.DATA if dataset.name == name), getattr(module, f"load_{name}")
    return module.DATA, module.load


# ------------------------------------------------------------------------------------------------------------- the hub

_COMMIT = re.compile(r"[0-9a-f]{40}")


def obtain(dataset: DataSet, variant: str | None = None) -> Path:
    """Return the folder in the hub's local cache that a variant is read from.

    A pinned revision is fetched first if the cache is incomplete. A set without a pinned revision is the hub's newest,
    or offline what the cache has. A broken download resumes; sizes and checksums are compared where they are known.

    Args:
        dataset: Data set on the hub.
        variant: Variant whose files are needed.

    Raises:
        DataError: The files are missing and cannot be fetched; the message says what to get and how to name it.
    """
    try:
        from huggingface_hub import errors
    except ModuleNotFoundError:
        why = f"huggingface_hub fetches it: {install_command('eval')}; or {_manual_instructions(dataset, variant)}"
        raise DataError(f"{dataset.name}: {why}") from None
    files = dataset.files_for(variant)
    folder = None
    with suppress(OSError, ValueError):  # missing or incomplete
        cached = _snapshot(dataset, files, is_local=True)
        found = [(file, matching_files(cached, file)) for file in files]
        if all(matches and file.size in (None, matches[0].stat().st_size) for file, matches in found):
            folder = cached
    # A pinned revision cannot change: cached files need no request, unless only the hub knows the file names.
    if folder is not None and dataset.revision is not None and not any("*" in file.path for file in files):
        return folder
    if not hub_reachable():
        if folder is not None:
            return folder
        why = f"the hub does not answer and the files are not here; {_manual_instructions(dataset, variant)}"
        raise DataError(f"{dataset.name}: {why}")
    # The HTTP client's error is a base of the hub's own, whichever client it uses; xet is its second protocol.
    bases = cast("tuple[type[Exception], ...]", errors.HfHubHTTPError.__bases__)
    try:
        folder = _snapshot(dataset, files, is_local=False)
    except (*bases, errors.XetDownloadError, OSError, ValueError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{dataset.name}: not fetched: {problem}; {_manual_instructions(dataset, variant)}") from error
    for file in files:
        _check_file(folder, file)
    return folder


def snapshot_commit(path: Path) -> str | None:
    """Return the commit of a path in the hub's cache; None for other paths."""
    parts = path.parts
    index = parts.index("snapshots") + 1 if "snapshots" in parts else len(parts)
    return parts[index] if index < len(parts) and _COMMIT.fullmatch(parts[index]) else None


def _manual_instructions(dataset: DataSet, variant: str | None) -> str:
    """Return how to get the files by hand."""
    files = ", ".join(file.path for file in dataset.files_for(variant)) or "its files"
    host, _, repository = dataset.source.partition(":")
    if host != "hub":
        return f"get {files} from the GitHub repository {repository} and give the file or its folder as data=PATH"
    revision = f", revision {dataset.revision}" if dataset.revision else ""
    return (
        f"get {files} from the dataset repository {repository} on the model hub{revision} "
        f"({dataset.licence}) and give the folder as data=PATH"
    )


def _snapshot(dataset: DataSet, files: tuple[File, ...], *, is_local: bool) -> Path:
    """Return the folder of a set's files in the hub's cache, fetched unless `is_local`."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            dataset.source.removeprefix("hub:"),
            repo_type="dataset",
            revision=dataset.revision,
            allow_patterns=[file.path for file in files],
            local_files_only=is_local,
        )
    )


def _check_file(folder: Path, file: File) -> None:
    """Compare a fetched file with its checksum; a wrong one is removed from the cache. Raises `DataError`."""
    matches = matching_files(folder, file)
    if not matches:
        raise DataError(f"{folder}: the repository has no file {file.path} at this revision")
    if file.sha256 is None or (digest := compute_sha256(matches[0])) == file.sha256:
        return
    blob = matches[0].resolve()
    matches[0].unlink()
    blob.unlink(missing_ok=True)
    raise DataError(
        f"{file.path}: its checksum {digest} is not the known one, {file.sha256}: damaged on the way, or changed; "
        "it was removed from the cache: try again"
    )


def matching_files(folder: Path, file: File) -> list[Path]:
    """Return the files of a folder that a description names."""
    return [path for path in sorted(folder.glob(file.path)) if path.is_file()]
