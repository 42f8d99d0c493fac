"""Official files from the model hub: one's own folder or file, the local cache, or a download that can be resumed."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

from memalpha.errors import DataError, install_command
from memalpha.hub import hub_reachable
from memalpha.tasks.dataset_info import DataSet, File
from memalpha.tasks.sources.files import sha256

_COMMIT = re.compile(r"[0-9a-f]{40}")


def obtain(known: DataSet, variant: str | None = None, data: str | Path | None = None) -> Path:
    """The file or folder that a variant is read from.

    `data` wins where it is given. Else the pinned revision in the hub's local cache, fetched first where it is not
    whole; a set without a pinned revision is the hub's newest, or offline what the cache has of it. A progress bar runs
    on stderr, a download that broke off goes on, and sizes and checksums are compared where they are known. Raises
    `DataError` with what to get from where, and how to name it, when that cannot be done.
    """
    if data is not None:
        path = Path(data)
        if not path.exists():
            raise DataError(f"{path}: not there; {_by_hand(known, variant)}")
        return path
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"{known.name}: huggingface_hub fetches it: {install_command('eval')}; or {_by_hand(known, variant)}"
        ) from error
    files = known.files_for(variant)
    folder = _cached(known, files)
    # A pinned revision cannot change: what is there needs no question to the hub, unless it alone knows the names.
    if folder is not None and known.revision is not None and not any("*" in file.path for file in files):
        return folder
    if not hub_reachable():
        if folder is not None:
            return folder
        raise DataError(f"{known.name}: the hub does not answer and the files are not here; {_by_hand(known, variant)}")
    folder = _fetched(known, variant, files)
    for file in files:
        _check(folder, file)
    return folder


def commit_of(path: Path) -> str | None:
    """The commit of files in the hub's cache, for what records where its data came from; None for other places."""
    parts = path.parts
    at = parts.index("snapshots") + 1 if "snapshots" in parts else len(parts)
    return parts[at] if at < len(parts) and _COMMIT.fullmatch(parts[at]) else None


def _by_hand(known: DataSet, variant: str | None) -> str:
    """What to do without a hub."""
    files = ", ".join(file.path for file in known.files_for(variant))
    at = f", revision {known.revision}" if known.revision else ""
    return (
        f"get {files} from the dataset repository {_repository(known)} on the model hub{at} "
        f"({known.licence}) and give the folder as data=PATH"
    )


def _repository(known: DataSet) -> str:
    return known.source.removeprefix("hub:")


def _cached(known: DataSet, files: tuple[File, ...]) -> Path | None:
    """The snapshot in the local cache, where it has all files in the sizes that are known."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                _repository(known),
                repo_type="dataset",
                revision=known.revision,
                allow_patterns=[file.path for file in files],
                local_files_only=True,
            )
        )
    except (OSError, ValueError):  # not there, or not whole
        return None
    whole = all(
        (found := _found(folder, file)) and (file.size is None or found[0].stat().st_size == file.size)
        for file in files
    )
    return folder if whole else None


def _fetched(known: DataSet, variant: str | None, files: tuple[File, ...]) -> Path:
    from huggingface_hub import errors, snapshot_download

    # What its HTTP client raises is a base of its own error, whichever client that is; xet is its second way to fetch.
    bases = cast("tuple[type[Exception], ...]", errors.HfHubHTTPError.__bases__)
    broken = (*bases, getattr(errors, "XetDownloadError", OSError), OSError, ValueError)
    try:
        return Path(
            snapshot_download(
                _repository(known),
                repo_type="dataset",
                revision=known.revision,
                allow_patterns=[file.path for file in files],
            )
        )
    except broken as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{known.name}: not fetched: {problem}; {_by_hand(known, variant)}") from error


def _check(folder: Path, file: File) -> None:
    """Raises `DataError` for a file that is not there or not the known one, which it removes from the cache."""
    found = _found(folder, file)
    if not found:
        raise DataError(f"{folder}: the repository has no file {file.path} at this revision")
    if file.sha256 is None or (digest := sha256(found[0])) == file.sha256:
        return
    blob = found[0].resolve()
    found[0].unlink()
    blob.unlink(missing_ok=True)
    raise DataError(
        f"{file.path}: its checksum {digest} is not the known one, {file.sha256}: damaged on the way, or changed; "
        "it was removed from the cache: try again"
    )


def _found(folder: Path, file: File) -> list[Path]:
    if "*" not in file.path:
        path = folder / file.path
        return [path] if path.is_file() else []
    return [path for path in sorted((folder / file.path).parent.glob("*")) if fnmatch(path.name, Path(file.path).name)]
