"""Description of a data set: source, licence, files, counts, splits and known faults.

Those of the shipped sets are in `memalpha/data/data_sets.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from memalpha.tasks.formats.files import load_shipped_yaml

Count = Annotated[int, Field(ge=1)]
"""Option of a loader: a whole number from 1 (`catalog.validate_options` holds it)."""


@dataclass(frozen=True, slots=True)
class File:
    """Describe one official file of a data set.

    Attributes:
        path: Path inside the source. A path that ends in `/` is a folder, one with a `*` all files that match.
        sha256: Hexadecimal checksum, None if unknown; of a folder that of `formats.files.compute_sha256`.
        size: Bytes, None if unknown.
        variants: Variants that need the file; empty: all.
    """

    path: str
    sha256: str | None = None
    size: int | None = None
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """Describe a data set as `memalpha data list` shows it.

    Attributes:
        name: Name for `load_tasks` and the command line.
        about: One line on the content.
        source: "github:OWNER/NAME", "hub:OWNER/NAME" (a repository on the model hub), or "made here".
        licence: Licence of the data.
        counts: Sizes in words.
        metric: Official metric, as the evaluator names it.
        files: Official files.
        variants: Parts or sizes one can ask for; the first is the default.
        revision: Commit of the source; None takes the newest.
        ships: True if a copy or sample comes with memalpha.
        faults: Known faults of the official files.
        expected: Numbers of tasks, chunks, turns and questions by default, by variant ("" without variants).
        training_variants: Variants that were made to be trained on; training takes the first.
        training_options: Loader options that select the training split, where it is an option and not a variant.

    A set without training variants and options is for evaluation only, and `memalpha train` refuses it.
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
        """First variant that is no training split.

        It is the default variant where an option selects the split.
        """
        if self.training_options:
            return next(iter(self.variants), None)
        return next((variant for variant in self.variants if variant not in self.training_variants), None)

    def files_for(self, variant: str | None) -> tuple[File, ...]:
        """Return the files that a variant is read from; None stands for the first variant."""
        variant = variant or next(iter(self.variants), None)
        return tuple(file for file in self.files if not file.variants or variant in file.variants)


def shipped_card(name: str) -> DataSet:
    """Return the description of a set that this package reads."""
    return _shipped_cards()[name]


@cache
def _shipped_cards() -> dict[str, DataSet]:
    cards = TypeAdapter(list[DataSet]).validate_python(load_shipped_yaml("data_sets.yaml"))
    return {card.name: card for card in cards}
