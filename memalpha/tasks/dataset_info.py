"""What is known of a data set: where it comes from, under which licence, what it holds, what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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

    `training_variants` are the variants that were made to be trained on; training takes the first. `training_options`
    are loader options that select the training split, for a set where it is an option and not a variant. A set with
    neither is for evaluation only, and `memalpha train` refuses it.
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
    training_variants: tuple[str, ...] = ()
    training_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_training_split(self) -> bool:
        """True if some part of the set was made to be trained on."""
        return bool(self.training_variants or self.training_options)

    @property
    def training_variant(self) -> str | None:
        """Variant that training takes; None for a set without variants or without a training split."""
        return next(iter(self.training_variants), None)

    @property
    def evaluation_variant(self) -> str | None:
        """First variant that is no training split; the default variant where an option selects the split."""
        if self.training_options:
            return next(iter(self.variants), None)
        return next((variant for variant in self.variants if variant not in self.training_variants), None)

    def files_for(self, variant: str | None) -> tuple[File, ...]:
        """The files that a variant is read from (None: the first variant)."""
        variant = variant or next(iter(self.variants), None)
        return tuple(file for file in self.files if not file.variants or variant in file.variants)
