"""Errors that memalpha raises for bad input or a failing external component.

A model's mistake (a malformed tool call, an unknown id) is a `ToolResult` with a code instead. Every message names the
file, line or field and says what to do.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from sysconfig import get_paths
from traceback import extract_tb
from typing import Any

_PARENT = Path(__file__).resolve().parent.parent  # site-packages, or the root of a checkout


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of memalpha, such as "train".

    A checkout (its pyproject.toml lies beside the package folder) is installed from there, not from a package index.
    """
    try:
        lines = (_PARENT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
        checkout = ("." if Path.cwd() == _PARENT else str(_PARENT)) if 'name = "memalpha"' in lines else ""
    except OSError:  # no such file, or the current folder was removed
        checkout = ""
    return f"pip install '{checkout or 'memalpha'}[{extra}]'"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the known name nearest to `name`, or "" if none is near."""
    matches = get_close_matches(name, list(known), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def describe_exception(error: BaseException) -> str:
    """Return class and message of an exception, and the line of the user's code that it passed through.

    That is the deepest line in the first file outside memalpha and, if there is one, outside installed packages.
    """
    foreign = [
        frame for frame in extract_tb(error.__traceback__) if not _is_below(frame.filename, Path(__file__).parent)
    ]
    libraries = [get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own = [frame for frame in foreign if not any(_is_below(frame.filename, folder) for folder in libraries)]
    frames = [frame for frame in own or foreign if not frame.filename.startswith("<frozen ")]
    lines = [f" ({frame.filename}, line {frame.lineno})" for frame in frames if frame.filename == frames[0].filename]
    return f"{type(error).__name__}: {error}".rstrip(": ") + "".join(lines[-1:])


def _is_below(file: str, folder: Path | str) -> bool:
    return file.startswith(f"{folder}{os.sep}")


class MemalphaError(Exception):
    """Base class of everything memalpha raises on purpose; the command line prints it and exits with 2."""


class ConfigError(MemalphaError):
    """A configuration key or value that cannot be used."""


@contextmanager
def required_packages(
    use: str, *packages: str, extra: str = "train", error: type[MemalphaError] = ConfigError, hint: str = ""
) -> Iterator[None]:
    """Turn a failed import in the block into an error that says what to install.

    Args:
        use: Begin of the message: what needs the packages.
        packages: Top-level names of the packages. A missing module of any other raises `ModuleNotFoundError`.
        extra: Extra of memalpha that installs them.
        error: Class of the error.
        hint: End of the message.
    """
    try:
        yield
    except ModuleNotFoundError as problem:
        package = (problem.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise error(f"{use} needs {package}: {install_command(extra)}{hint}") from None


class DataError(MemalphaError):
    """A task file or data set that cannot be read: names the file, the line and the field."""


class EmbedderError(MemalphaError):
    """An embedder that is not installed, not there, or not the one a store was made with."""


class PolicyError(MemalphaError):
    """A policy (model, endpoint, script) that cannot be loaded or did not answer."""


class PromptTooLong(PolicyError):
    """Prompt and completion that exceed the policy's context window.

    `problem` is the message without advice.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem, self.advice = problem, advice

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}"


class CheckpointError(MemalphaError):
    """A run directory or checkpoint that cannot be resumed."""


class TrainingError(MemalphaError):
    """Training that cannot go on: a gradient that is not finite, a trajectory without a reward."""


class RewardError(MemalphaError):
    """A reward function that raised, or whose values cannot be used: names the function and the row."""


class EvaluationError(MemalphaError):
    """An evaluation that cannot go on because a system under test raised; the command line exits with 1."""


class WorkerError(MemalphaError):
    """Worker processes that cannot work: killed before they were ready, or ended by a bug."""


class StoreError(MemalphaError):
    """Store that cannot be opened, or an operation that its rules refuse.

    `code` is the code of the tool result.
    """

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database server of a store cannot be reached, or the connection to it was lost: try again later.

    Attributes:
        outcome: Known outcome of the transaction, such as "nothing was done"; may be "".
    """

    code = "store_unavailable"

    def __init__(self, message: str, outcome: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome


class DamagedStore(StoreError):
    """A store file that SQLite cannot read: restore a copy, or see what `memalpha doctor` says."""


class ScrubPending(StoreError):
    """Entries were erased and no read returns them, but their bytes may still lie in the file.

    The next opening goes on with it, and so does `memalpha doctor --repair`.

    Attributes:
        erasure: Result that `erase` would have returned (`Erasure`).
    """

    erasure: Any = None


class UnknownFieldWarning(UserWarning):
    """A filter without matches names a metadata key that no entry of the memory has."""


class UnknownEntry(StoreError):
    """No live entry has this id."""

    code = "unknown_id"


class UnknownCategory(StoreError):
    """The schema has no such category."""

    code = "unknown_category"


class InvalidArgument(StoreError):
    """A position that the log does not have, or a filter that an erasure refuses."""

    code = "invalid_arguments"


class DeadlineExceeded(StoreError):
    """A statement took longer than its deadline and was stopped; its transaction stored nothing."""

    code = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("it took longer than its deadline and was stopped; nothing was stored")


class ReviewConflict(StoreError):
    """Nothing at the position awaits a review, or what the operation would change was changed since."""

    code = "conflict"


class InvalidContent(StoreError):
    """Content that cannot be stored (empty, not text, core memory over its limit)."""

    code = "invalid_content"


class DuplicateContent(StoreError):
    """A fact that a live entry, named by `entry_id`, already states."""

    code = "duplicate"

    def __init__(self, message: str, entry_id: str = "") -> None:
        super().__init__(message)
        self.entry_id = entry_id
