"""Official files from the model hub: a local folder, the cache, or a resumable download."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from memalpha.errors import DataError, install_command
from memalpha.hub import hub_reachable
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.formats.files import compute_sha256

_COMMIT = re.compile(r"[0-9a-f]{40}")


def obtain(dataset: DataSet, variant: str | None = None, data: str | Path | None = None) -> Path:
    """Return the file or folder that a variant is read from.

    A pinned revision is read from the hub's local cache and fetched first if the cache is incomplete. A set without a
    pinned revision is the hub's newest, or offline what the cache has. A broken download resumes; sizes and checksums
    are compared where they are known.

    Args:
        dataset: Data set on the hub.
        variant: Variant whose files are needed.
        data: File or folder of your own; it wins over the cache.

    Raises:
        DataError: The files are missing and cannot be fetched; the message says what to get and how to name it.
    """
    if data is not None:
        path = Path(data)
        if not path.exists():
            raise DataError(f"{path}: not there; {_manual_instructions(dataset, variant)}")
        return path
    try:
        import huggingface_hub  # noqa: F401
    except ModuleNotFoundError:
        why = f"huggingface_hub fetches it: {install_command('eval')}; or {_manual_instructions(dataset, variant)}"
        raise DataError(f"{dataset.name}: {why}") from None
    files = dataset.files_for(variant)
    folder = _find_cached(dataset, files)
    # A pinned revision cannot change: cached files need no request, unless only the hub knows the file names.
    if folder is not None and dataset.revision is not None and not any("*" in file.path for file in files):
        return folder
    if not hub_reachable():
        if folder is not None:
            return folder
        why = f"the hub does not answer and the files are not here; {_manual_instructions(dataset, variant)}"
        raise DataError(f"{dataset.name}: {why}")
    folder = _fetch(dataset, variant, files)
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
    files = ", ".join(file.path for file in dataset.files_for(variant))
    revision = f", revision {dataset.revision}" if dataset.revision else ""
    return (
        f"get {files} from the dataset repository {_repository(dataset)} on the model hub{revision} "
        f"({dataset.licence}) and give the folder as data=PATH"
    )


def _repository(dataset: DataSet) -> str:
    return dataset.source.removeprefix("hub:")


def _snapshot(dataset: DataSet, files: tuple[File, ...], *, is_local: bool) -> Path:
    """Return the folder of a set's files in the hub's cache, fetched unless `is_local`."""
    from huggingface_hub import snapshot_download

    patterns = [file.path for file in files]
    options: dict[str, Any] = {"local_files_only": True} if is_local else {}
    revision = dataset.revision
    return Path(
        snapshot_download(
            _repository(dataset), repo_type="dataset", revision=revision, allow_patterns=patterns, **options
        )
    )


def _find_cached(dataset: DataSet, files: tuple[File, ...]) -> Path | None:
    """Return the cached snapshot if it has all files in their known sizes, else None."""
    try:
        folder = _snapshot(dataset, files, is_local=True)
    except (OSError, ValueError):  # missing or incomplete
        return None
    is_complete = all(
        (matches := _matching_files(folder, file)) and (file.size is None or matches[0].stat().st_size == file.size)
        for file in files
    )
    return folder if is_complete else None


def _fetch(dataset: DataSet, variant: str | None, files: tuple[File, ...]) -> Path:
    from huggingface_hub import errors

    # The HTTP client's error is a base of the hub's own, whichever client it uses; xet is its second protocol.
    bases = cast("tuple[type[Exception], ...]", errors.HfHubHTTPError.__bases__)
    try:
        return _snapshot(dataset, files, is_local=False)
    except (*bases, errors.XetDownloadError, OSError, ValueError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{dataset.name}: not fetched: {problem}; {_manual_instructions(dataset, variant)}") from error


def _check_file(folder: Path, file: File) -> None:
    """Compare a fetched file with its checksum; a wrong one is removed from the cache. Raises `DataError`."""
    matches = _matching_files(folder, file)
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


def _matching_files(folder: Path, file: File) -> list[Path]:
    if "*" not in file.path:
        path = folder / file.path
        return [path] if path.is_file() else []
    return [path for path in sorted((folder / file.path).parent.glob("*")) if fnmatch(path.name, Path(file.path).name)]
