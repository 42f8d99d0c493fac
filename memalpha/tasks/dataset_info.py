"""What is known of a data set: where it comes from, under which licence, what it holds, what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class File:
    """One official file: its `path` inside the source, its `sha256` and `size` in bytes where they are known.

    A path that ends in `/` is a folder; its checksum is `official.sha256`'s, over all files in it. One with a `*` is
    all files that it matches. `variants`: those that need the file (none named: all).
    """

    path: str
    sha256: str | None = None
    size: int | None = None
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as `memalpha data list` shows it.

    `source` is an official place: "github:OWNER/NAME", "hub:OWNER/NAME" (a repository on the model hub, taken at
    `revision`), or "made here". `variants` are the parts or sizes one can ask for, the first the default. `metric` is
    the official one, as the evaluator names it. `ships`: a copy, or a sample, comes with memalpha. `expected`: how many
    tasks, chunks, turns and questions the loader gives by default, by variant ("" where there are none).
    """

    name: str
    about: str
    source: str
    licence: str
    counts: str
    metric: str
    files: tuple[File, ...] = ()
    variants: tuple[str, ...] = ()
    revision: str | None = None
    ships: bool = False
    faults: tuple[str, ...] = ()
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def files_for(self, variant: str | None) -> tuple[File, ...]:
        """The files that a variant is read from (None: the first variant)."""
        variant = variant or next(iter(self.variants), None)
        return tuple(file for file in self.files if not file.variants or variant in file.variants)
