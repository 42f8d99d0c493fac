"""Evaluations that were interrupted: the reports of their finished systems are kept, and the same command resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import ConfigError
from memalpha.qa.report import Report

MARKER = ".unfinished"
"""File in the folder `eval` of an evaluation under way: its provenance, and the systems that are done."""


REPLIES = ".replies.sqlite"
"""File beside it with the replies that local policies gave so far (`policy.reply_cache`)."""


class UnfinishedEvaluation:
    """Marks a folder while an evaluation is under way.

    Attributes:
        finished: Reports that an interrupted evaluation of the same provenance left, by system.
        replies_path: File for the replies of local policies.

    Raises:
        ConfigError: The reports that the marker names cannot be read, or the folder cannot be written.
    """

    def __init__(self, folder: Path, systems: Sequence[str], provenance: Mapping[str, Any]) -> None:
        """Read what an earlier evaluation left, and mark the folder.

        Args:
            folder: The `eval` folder.
            systems: Names of the systems to evaluate.
            provenance: Provenance of the evaluation (`reporting.tables.provenance`).
        """
        self._path, self.replies_path = folder / MARKER, folder / REPLIES
        self._provenance = json.loads(json.dumps(provenance))
        self.finished: dict[str, Report] = {}
        marker = self._read()
        if marker.get("provenance") == self._provenance:
            names = [name for name in marker.get("finished", ()) if name in systems]
            try:
                self.finished = {name: Report.load(folder.parent, name) for name in names}
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"{folder} holds an interrupted evaluation that cannot be read ({error}): remove {self._path} to "
                    "begin again"
                ) from error
        self._done = list(self.finished)
        self._write()

    def add(self, name: str) -> None:
        """Note that a system's report is saved."""
        self._done.append(name)
        self._write()

    def end(self) -> None:
        """Remove the mark and the replies, whose file is closed: every system is done."""
        self._path.unlink(missing_ok=True)
        self.replies_path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            marker = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return marker if isinstance(marker, dict) else {}

    def _write(self) -> None:
        text = json.dumps({"finished": self._done, "provenance": self._provenance}, indent=1)
        try:
            self._path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"out: cannot write to {self._path.parent}: {error.strerror}") from error
