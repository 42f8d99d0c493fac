"""What goes in and out of a served memory, by MCP and by HTTP: models with limits, and failures as they are told.

Nobody at the other end names a file, a namespace or a schema: those are fixed where the server is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from memalpha.store.filters import moment, utc
from memalpha.types import MemoryEntry, Operation, ToolResult

MAX_TEXT = 200_000
"""Characters of a text that is read, of an entry `MAX_CONTENT`, of a query `MAX_QUERY`, of a name or label
`MAX_LABEL`."""
MAX_CONTENT = 20_000
MAX_QUERY = 4_000
MAX_LABEL = 256
MAX_K = 100
"""Hits of a search, entries of a page `MAX_PAGE`."""
MAX_PAGE = 1000
MAX_MESSAGE = 1000
"""Characters of what is told of a failure."""
MAX_DEPTH = 20
"""Levels of a filter or of metadata."""
MAX_BODY = 3 << 20
"""Bytes of a request: the longest text, were each of its characters written as an escape."""


class Refused(Exception):
    """A request that was not done: what its sender is told, and the status that HTTP has for it."""

    def __init__(self, code: str, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, told(message)[:MAX_MESSAGE], status


def clean(text: str) -> str:
    """The text, if every back end can hold it; raises `ValueError`."""
    if "\x00" in text:
        raise ValueError("holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds half of a surrogate pair, which is not text") from error
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return clean(text)


_SAID: dict[str, Any] = {"pattern": r"\S"}


def _whole(number: Any) -> Any:
    """JSON has one kind of number: 8.0 is 8."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _iso(text: str) -> str:
    """Also not so early or late that there is no such moment in UTC."""
    try:
        utc(moment(text))
    except (ValueError, OverflowError) as error:
        raise ValueError("no ISO 8601 date or time (2024-05-01)") from error
    return text


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """A mapping that memory and disk can hold: not deep, finite numbers, text."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*map(clean, item), *item.values()]
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                clean(item)
            elif isinstance(item, float) and not isfinite(item):
                raise ValueError("holds a number that is not finite")
        if not below:
            return value
        level = below
    raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")


Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), AfterValidator(clean)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT, json_schema_extra=_SAID), AfterValidator(_said)]
Content = Annotated[str, Field(min_length=1, max_length=MAX_CONTENT, json_schema_extra=_SAID), AfterValidator(_said)]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, json_schema_extra=_SAID), AfterValidator(_said)]
Time = Annotated[
    str, Field(min_length=1, max_length=64, json_schema_extra={"format": "date-time"}), AfterValidator(_iso)
]
Position = Annotated[int, Field(ge=0, lt=1 << 53), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=MAX_K), BeforeValidator(_whole)]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE), BeforeValidator(_whole)]
Plain = Annotated[dict[str, Any], AfterValidator(_plain)]
Importance = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class Asked(BaseModel):
    """What comes in: unknown names are refused, and nothing is taken for another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Read(Asked):
    """Let the writer read a text and write down what is worth remembering."""

    text: Text = Field(description="the text or conversation, as it is, one line a turn")
    timestamp: Time | None = Field(default=None, description="ISO date of the text")
    source: Label | None = Field(default=None, description="a name for the text, kept with what is written")


class Search(Asked):
    """Find what the memory holds on something."""

    query: Query = Field(description="a question or a few words")
    k: Count = Field(default=8, description="how many entries, best first")
    category: Label | None = Field(default=None, description="only this kind of memory")


class List(Asked):
    """List the entries, oldest first, and the core memory; page by page."""

    category: Label | None = Field(default=None, description="only this kind of memory")
    limit: Limit = Field(default=50, description="how many entries")
    after: Label | None = Field(default=None, description="id that ended the last page")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one tool call did, or why it did nothing (`ok` false): the fields of `ToolResult`, and the tool's name."""

    tool: str
    ok: bool
    code: str
    message: str = ""
    entry_id: str | None = None
    category: str | None = None
    content: str | None = None
    before: str | None = None

    @classmethod
    def of(cls, result: ToolResult) -> Outcome:
        """The outcome of a call. A model's text may hold what is no text; it is told with a replacement for that."""
        return cls(
            told(result.call.name),
            result.ok,
            result.code,
            told(result.message),
            result.entry_id,
            result.category,
            result.content,
            result.before,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of a text: in how many chunks it was read, and every call that the writer made, in order."""

    chunks: int
    results: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Entries, oldest first, the core memory, and the id to go on after (null: there are no more)."""

    core: str
    entries: tuple[MemoryEntry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Logged:
    """One line of the log."""

    seq: int
    time: str
    operation: Operation


def told(text: str) -> str:
    """A text that may hold halves of surrogate pairs, with escapes for them."""
    return text.encode("utf-8", "backslashreplace").decode()


def note(entry: MemoryEntry) -> dict[str, Any]:
    """An entry in the few words that a model needs."""
    shown = {"id": entry.id, "category": entry.category, "content": entry.content}
    return {**shown, "timestamp": entry.timestamp} if entry.timestamp else shown
