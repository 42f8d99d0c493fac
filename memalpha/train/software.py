"""Version of memalpha that makes a run, for its `summary.json`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def software_version() -> dict[str, str | None]:
    """Return `version` of memalpha, and `commit` where it runs from a git checkout; None where unknown."""
    try:
        version = importlib.metadata.version("memalpha")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        version = None
    return {"version": version, "commit": _commit(Path(__file__).parents[2] / ".git")}


def _commit(git: Path) -> str | None:
    """Return the commit that a git directory has checked out; None where there is no such directory."""
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head or None
        ref = head.removeprefix("ref: ")
        if (git / ref).is_file():
            return (git / ref).read_text(encoding="utf-8").strip() or None
        for line in (git / "packed-refs").read_text(encoding="utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == ref:
                return commit
    except (OSError, UnicodeDecodeError):
        pass
    return None
