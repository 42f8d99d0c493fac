"""Request and response models of a served memory, shared by MCP and HTTP, with their limits.

No body names a file, a namespace or a schema. Store and schema are fixed when the server starts; the namespace is one
of the request's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from memalpha.store.fields import FIELDS, TIMES, Kind, format_utc, is_text, parse_time
from memalpha.store.io.jsonl import to_json
from memalpha.types import Hit, MemoryEntry, Operation, ToolResult

MAX_TEXT = 200_000
"""Maximum characters of a text to read."""
MAX_MESSAGES = 10_000
"""Maximum number of chat messages to read."""
MAX_CONTENT = 20_000
"""Maximum characters of an entry's content."""
MAX_QUERY = 4_000
"""Maximum characters of a query or question."""
MAX_LABEL = 256
"""Maximum characters of a name, id or label."""
MAX_K = 100
"""Maximum hits of a search."""
MAX_PAGE = 1000
"""Maximum entries of a page."""
MAX_MESSAGE = 1000
"""Maximum characters of an error message."""
MAX_DEPTH = 20
"""Maximum nesting of a filter or of metadata."""
MAX_CONDITIONS = 100
"""Maximum conditions of a filter: its cost is their number times that of the entries."""
MAX_MODEL_REQUESTS = 32
"""Maximum requests that run or wait for the policy, one after the other."""
MAX_METADATA = 64 << 10
"""Maximum bytes of metadata, as JSON."""
MAX_BODY = 3 << 20
"""Maximum bytes of a request: the longest text with every character escaped."""


class ServiceError(Exception):
    """A failed request: error code and message for its sender, and the HTTP status.

    `retry_after` are the seconds after which the request may succeed; None is unknown. `headers` are for the response.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 422,
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after, self.headers = retry_after, headers or {}
        self.code, self.message, self.status = code, escape_surrogates(message)[:MAX_MESSAGE], status


def check_text(text: str) -> str:
    """Return the text if every back end can store it. Raises `ValueError` otherwise."""
    if "\x00" in text:
        raise ValueError("holds a NUL character")
    if not is_text(text):
        raise ValueError("holds half of a surrogate pair, which is not text")
    return text


def _check_not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return check_text(text)


def _written(limit: int) -> Any:
    """Describe a text that has words."""
    return Field(min_length=1, max_length=limit, json_schema_extra={"pattern": r"\S"})


def _integral(number: Any) -> Any:
    """Convert an integral float to int: JSON has one number type, and 8.0 is 8."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _check_iso_time(text: str) -> str:
    """Return an ISO 8601 date or time that exists in UTC too. Raises `ValueError` otherwise."""
    try:
        format_utc(parse_time(text))
    except (ValueError, OverflowError) as error:
        raise ValueError("no ISO 8601 date or time (2024-05-01)") from error
    return text


def _check_json_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping that can be stored: limited nesting, finite numbers, valid text. Raises `ValueError`."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*map(check_text, item), *item.values()]
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                check_text(item)
            elif isinstance(item, float) and not isfinite(item):
                raise ValueError("holds a number that is not finite")
        if not below:
            return value
        level = below
    raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")


def _check_metadata_size(value: dict[str, Any]) -> dict[str, Any]:
    if (size := len(to_json(value).encode())) > MAX_METADATA:
        raise ValueError(f"is {size} bytes of JSON; {MAX_METADATA} is the limit")
    return value


Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), AfterValidator(check_text)]
Text = Annotated[str, _written(MAX_TEXT), AfterValidator(_check_not_empty)]
Content = Annotated[str, _written(MAX_CONTENT), AfterValidator(_check_not_empty)]
Query = Annotated[str, _written(MAX_QUERY), AfterValidator(_check_not_empty)]
Time = Annotated[
    str, Field(min_length=1, max_length=64, json_schema_extra={"format": "date-time"}), AfterValidator(_check_iso_time)
]
ClearableTime = Annotated[
    str, Field(max_length=64, description='"" clears it'), AfterValidator(lambda text: text and _check_iso_time(text))
]
Position = Annotated[int, Field(ge=0, lt=1 << 53), BeforeValidator(_integral)]
Count = Annotated[int, Field(ge=1, le=MAX_K), BeforeValidator(_integral)]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE), BeforeValidator(_integral)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json_object)]
Metadata = Annotated[JsonObject, AfterValidator(_check_metadata_size)]
Importance = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]

HTTP_SOURCE = "http"
"""Source of entries that were written over HTTP without one."""


# ----------------------------------------------------------------------------------------------------------- requests


class RequestModel(BaseModel):
    """Base of request bodies: unknown fields are refused, and types are strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# The docstrings and field descriptions of the next three are those of the MCP tools, which language models read.
class ReadRequest(RequestModel):
    """Let the writer read a text, or chat messages, and write down what is worth remembering."""

    text: Text | None = Field(default=None, description="the text or conversation, as it is, one line a turn")
    messages: list[JsonObject] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="instead of text: chat messages with role, content and, if known, name and timestamp",
    )
    timestamp: Time | None = Field(default=None, description="ISO date of the text, or of messages without one")
    source: Label | None = Field(default=None, description="a name for the text, kept with what is written")
    metadata: Metadata | None = Field(
        default=None, description="set on every entry that is written, for filters of later searches"
    )

    @model_validator(mode="after")
    def _one_form(self) -> ReadRequest:
        if (self.text is None) == (self.messages is None):
            raise ValueError("give either 'text' or 'messages'")
        return self


class SearchRequest(RequestModel):
    """Find what the memory holds on something."""

    query: Query = Field(description="a question or a few words")
    k: Count = Field(default=8, description="how many entries, best first")
    category: Label | None = Field(default=None, description="only this kind of memory")


class ListRequest(RequestModel):
    """List the entries, oldest first, and the core memory; page by page."""

    category: Label | None = Field(default=None, description="only this kind of memory")
    limit: Limit = Field(default=50, description="how many entries")
    after: Label | None = Field(default=None, description="id that ended the last page")


class AskRequest(RequestModel):
    """A question to answer from the memory alone."""

    question: Query
    k: Count = Field(default=8, description="number of entries that the reader sees")
    where: JsonObject | None = Field(
        default=None, description="only entries that pass; the core memory is not filtered"
    )


class FilteredSearchRequest(SearchRequest):
    """A search with a filter over fields and metadata, of the current or a past state."""

    where: JsonObject | None = Field(default=None, description='such as {"user": "ana", "importance": {"$gte": 0.5}}')
    as_of: Position | Time | None = Field(default=None, description="a past state: log position or ISO time")


_KINDS: dict[Kind, Any] = {"date": Time, "time": Time, "number": Importance, "whole": Position, "json": Metadata}
_MEANINGS = {"timestamp": "ISO date of the fact", "expires": "ISO time at which the entry expires"}


def _entry_fields(*, with_defaults: bool) -> dict[str, Any]:
    """Return the fields of an entry that requests have, for `create_model`; updates have no defaults."""
    made: dict[str, Any] = {}
    for item in FIELDS:
        if item.in_request:
            kind: Any = ClearableTime if item.name in TIMES and not with_defaults else _KINDS.get(item.kind, Label)
            about = _MEANINGS.get(item.name) if with_defaults else None
            default = item.default if with_defaults and isinstance(item.default, float) else None
            made[item.name] = kind | None if default is None else kind, Field(default=default, description=about)
    return made


_NEW = {"category": (Label, ...), "content": (Content, ...), **_entry_fields(with_defaults=True)}


class InsertRequest(create_model("_Insert", __base__=RequestModel, **_NEW)):
    """A fact to store."""

    source: Label = HTTP_SOURCE


class UpdateRequest(create_model("_Update", __base__=RequestModel, **_entry_fields(with_defaults=False))):
    """Changes of an entry. Omitted fields stay, but new content clears an omitted timestamp."""

    content: Content | None = None
    source: Label = HTTP_SOURCE


class EraseRequest(RequestModel):
    """Erase all entries for good of which any version, live or past, passes the filter."""

    where: JsonObject = Field(min_length=1, description='such as {"user": "ana"}')


class CoreRequest(RequestModel):
    """The complete new core memory; empty text clears it."""

    content: Annotated[str, Field(max_length=MAX_CONTENT), AfterValidator(check_text)]


# ---------------------------------------------------------------------------------------------------------- responses


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Error code and message of a failed request."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """The server and its store are available."""

    status: str = "ok"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Outcome of one tool call: the fields of `ToolResult`, and the tool's name. `ok` is false if nothing was done."""

    tool: str
    ok: bool
    code: str
    message: str = ""
    entry_id: str | None = None
    category: str | None = None
    content: str | None = None
    before: str | None = None

    @classmethod
    def from_result(cls, result: ToolResult) -> CallOutcome:
        """Build the outcome of a call; invalid text of a model is escaped."""
        values = {item.name: getattr(result, item.name) for item in fields(cls) if item.name != "tool"}
        values["message"] = escape_surrogates(result.message)
        return cls(escape_surrogates(result.call.name), **values)


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """Number of chunks of a text, and every tool call of the writer in order.

    `problems`: "no_call" for each reply without a readable call, "cut_off" for each that ended at its most tokens.
    """

    chunks: int
    results: tuple[CallOutcome, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResponse:
    """Hits, best first."""

    hits: list[Hit]


@dataclass(frozen=True, slots=True)
class AskResponse:
    """An answer and the entries that the reader saw.

    `abstained`: the memory has no answer. `conflict`: it has two that contradict each other. `truncated`: the model ran
    out of room; an empty answer then means that its thoughts took all of it.
    """

    answer: str
    abstained: bool
    conflict: bool
    hits: tuple[Hit, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries, oldest first, the core memory, and the id to continue after (null on the last page)."""

    core: str
    entries: tuple[MemoryEntry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class HistoryResponse:
    """All versions of an entry, oldest first."""

    versions: list[MemoryEntry]


@dataclass(frozen=True, slots=True)
class EraseResponse:
    """Erased entries, and other ids that hold or held the same content.

    `id`: the entry of the request, if it named one. `pending`: no read returns the entries, but their bytes are still
    in the file; the next opening removes them.
    """

    id: str | None
    same_content: list[str]
    pending: bool = False
    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One line of the operation log."""

    seq: int
    time: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class LogResponse:
    """Logged operations, in order."""

    operations: list[LoggedOperation]


@dataclass(frozen=True, slots=True)
class CoreResponse:
    """The core memory."""

    content: str


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, so that the text can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def count_conditions(where: Any) -> int:
    """Return the number of values in a filter, at any depth."""
    if isinstance(where, Mapping):
        return sum(map(count_conditions, where.values()))
    return sum(map(count_conditions, where)) if isinstance(where, list | tuple) else 1


def compact_entry(entry: MemoryEntry) -> dict[str, Any]:
    """Return the fields of an entry that a language model needs."""
    fields = {"id": entry.id, "category": entry.category, "content": entry.content}
    return {**fields, "timestamp": entry.timestamp} if entry.timestamp else fields
