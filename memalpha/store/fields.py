"""The fields of an entry, in one table.

From it come the columns and triggers of both databases, the codec of rows, the checks of a write, the lines of JSONL
and Markdown, filters, and the bodies of the server's requests. `types.MemoryEntry` and `types.Operation` have the same
fields in the same order. docs/extend/field.md adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from memalpha.types import MemoryEntry, Operation

Kind = Literal["text", "date", "time", "number", "whole", "json"]
"""What a field holds: a text, an ISO date or time as it was given, an ISO time in UTC with microseconds, a finite
number, a whole number from 0, a mapping of JSON values."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field beside id, category and content.

    Attributes:
        name: Name everywhere.
        kind: What it holds.
        default: Value of an insert that leaves it out.
        keeps: An update that leaves it out keeps the entry's; else it is that of the update.
        is_argument: Callers of `insert` and `update` give it; else it says who writes (`MemoryStore.writing_as`).
        is_filtered: Filters read it by its bare name.
        in_request: Bodies of the server's inserts and updates have it.
    """

    name: str
    kind: Kind = "text"
    default: Any = None
    keeps: bool = False
    is_argument: bool = True
    is_filtered: bool = True
    in_request: bool = False

    @property
    def is_cleared_by_blank(self) -> bool:
        """True if "" stands for no value: times, which an update would keep otherwise."""
        return self.kind in ("date", "time")


FIELDS = (
    Field("timestamp", "date", keeps=True, in_request=True),
    Field("importance", "number", default=1.0, keeps=True, in_request=True),
    Field("metadata", "json", default={}, keeps=True, is_filtered=False, in_request=True),
    Field("source"),
    Field("chunk", "whole"),
    Field("turn"),
    Field("expires", "time", keeps=True, in_request=True),
    Field("speaker", is_argument=False, is_filtered=False),
    Field("key", is_argument=False, is_filtered=False),
)
"""In the order of `MemoryEntry` and `Operation`; a new one comes last."""

NAMES = tuple(field.name for field in FIELDS)
ARGUMENTS = tuple(field.name for field in FIELDS if field.is_argument)
TIMES = frozenset(field.name for field in FIELDS if field.kind in ("date", "time"))
FILTERED = frozenset({"id", "category", "content"} | {field.name for field in FIELDS if field.is_filtered})
BLANKS = tuple(field.name for field in FIELDS if field.is_cleared_by_blank)

ENTRY_NAMES = ("id", "category", "content", *NAMES)
"""Names of the columns that a version and its operation share."""
OPERATION_NAMES = (*ENTRY_NAMES, "reason")
METADATA = ENTRY_NAMES.index("metadata")

entry_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*ENTRY_NAMES)
"""Return the values of `ENTRY_NAMES` of an entry or an operation."""
field_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*NAMES)
"""Return the values of `FIELDS` of an entry or an operation."""

make_entry: Callable[..., MemoryEntry] = MemoryEntry
"""Make an entry of the values of `ENTRY_NAMES`, then version, valid_from and valid_to."""
make_operation: Callable[..., Operation] = Operation
"""Make an operation of its kind, then the values of `OPERATION_NAMES`."""

_PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {"number": (float, int), "whole": (int,)}


def stored_types(field: Field, *, in_log: bool) -> tuple[type, ...]:
    """Return the types of a field's stored values: in the log, or in a version, where defaults stand."""
    is_set = field.default is not None and not in_log
    return (*_PYTHON_TYPES.get(field.kind, (str,)), *(() if is_set else (type(None),)))


def columns(types: dict[str, str], *, in_log: bool, names: tuple[str, ...] = NAMES) -> str:
    """Return the definitions of the columns of fields.

    Args:
        types: The database's type by kind; "text" is that of the kinds that are not named.
        in_log: True for the log, whose columns may be null.
        names: Fields to define.
    """
    definitions = []
    for field in FIELDS:
        if field.name in names:
            is_set = field.default is not None and not in_log
            definitions.append(f"{field.name} {types.get(field.kind, types['text'])}{' NOT NULL' * is_set}")
    return ", ".join(definitions)


def sql_default(field: Field) -> str:
    """Return the default of a field as an SQL constant."""
    if field.default is None:
        return "NULL"
    return "'{}'" if field.kind == "json" else repr(field.default)


def new_defaults() -> dict[str, Any]:
    """Return the values of an insert's fields that have a default; mappings are new."""
    return {
        field.name: dict(field.default) if field.kind == "json" else field.default
        for field in FIELDS
        if field.default is not None
    }


def listed(record: str, names: tuple[str, ...] = NAMES) -> str:
    """Return columns of a record in SQL: `NEW.timestamp, NEW.importance, ...`."""
    return ", ".join(f"{record}.{name}" for name in names)
