"""Tools of the writer: argument models, JSON schemas, and execution on a memory.

A model's mistake becomes a `ToolResult` with an error code, never an exception. Exceptions mean a failing database or a
bug. The docstrings of the argument models are the tool descriptions in the writer's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from memalpha.agent.parsing import named_tool
from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownCategory, UnknownEntry
from memalpha.policy.plain_text import plain_line
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema
from memalpha.store.state import fact_identity, refuse_duplicate
from memalpha.store.trust.quarantine import quarantine_operation
from memalpha.store.validation import clean_content
from memalpha.types import Operation, ToolCall, ToolResult, is_iso_time


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _no_copy_of_the_prompt(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a parameter's description as its value: weak models copy it from the prompt's example."""
        if isinstance(value, str) and value.strip() == cls.model_fields[str(info.field_name)].description:
            raise ValueError("repeats the description of the parameter: give a value of your own")
        return value


class Insert(_Arguments):
    """Store one new fact or event."""

    category: str = Field(description="the kind of memory it belongs to")
    content: str = Field(description="the fact or event, short and complete in itself")
    timestamp: str | None = Field(
        default=None, description="ISO date it happened, only if that is not the date of the conversation"
    )
    importance: float | None = Field(default=None, ge=0.0, le=1.0, description="0 to 1, how much it matters later")

    @field_validator("timestamp")
    @classmethod
    def _iso(cls, value: str | None) -> str | None:
        if value is not None and not is_iso_time(value):
            raise ValueError(f"{value!r} is no ISO 8601 date or time (2024-05-01)")
        return value


class Update(_Arguments):
    """Replace what an entry says; the entry keeps its id."""

    id: str = Field(description="id of the entry, as shown in the memory")
    content: str = Field(description="the whole new content")


class Delete(_Arguments):
    """Remove an entry that is no longer true and has no new value."""

    id: str = Field(description="id of the entry, as shown in the memory")


class CoreUpdate(_Arguments):
    """Rewrite the core memory, the short text that is always in view; empty text clears it."""

    content: str = Field(description="the whole new core memory, at most 512 tokens")


class Skip(_Arguments):
    """Change nothing: this part of the conversation holds nothing worth remembering."""


class SearchMemory(_Arguments):
    """Search the memory for further notes."""

    query: str = Field(min_length=1, description="what to look for, in a few words")


TOOLS: dict[str, type[_Arguments]] = {
    "memory_insert": Insert,
    "memory_update": Update,
    "memory_delete": Delete,
    "core_memory_update": CoreUpdate,
    "memory_skip": Skip,
}


def tool_schemas(schema: MemorySchema) -> tuple[dict[str, Any], ...]:
    """Return the tools in OpenAI's function format.

    The allowed values of `category` are the schema's categories.
    """
    return tuple(
        _tool_schema(name, model, schema.category_names)
        for name, model in TOOLS.items()
        if schema.core or model is not CoreUpdate
    )


def _tool_schema(name: str, model: type[_Arguments], categories: Sequence[str] = ()) -> dict[str, Any]:
    description = (model.__doc__ or "").strip()
    function = {"name": name, "description": description, "parameters": _parameters(model, categories)}
    return {"type": "function", "function": function}


def _parameters(model: type[_Arguments], categories: Sequence[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for name, field in model.model_fields.items():
        kind = "number" if name == "importance" else "string"
        properties[name] = {"type": kind, "description": field.description}
        if field.is_required():
            required.append(name)
        if name == "category":
            properties[name]["enum"] = list(categories)
    return {"type": "object", "properties": properties, "required": required}


SEARCH_TOOL = _tool_schema("search_memory", SearchMemory)
"""Tool of a reader, in OpenAI's function format."""


def search_query(call: ToolCall) -> str | None:
    """Return the query of a call of `search_memory`; None for any other call and without a readable query."""
    if call.error or named_tool(call, ("search_memory",)).name != "search_memory":
        return None
    try:
        arguments, _ = _validate(SearchMemory, call.arguments, strict=False)
    except ValidationError:
        return None
    return plain_line(str(arguments.model_dump()["query"])).strip() or None


def execute(
    memory: Memory,
    call: ToolCall,
    *,
    chunk: int | None,
    source: str | None,
    timestamp: str | None,
    speaker: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    quarantine: str = "",
    strict: bool = False,
) -> tuple[ToolResult, Operation | None]:
    """Apply one tool call to the memory.

    An insert that would create an exact duplicate, or an update to the same content, changes nothing: its result is ok
    with code "duplicate".

    A fact survives its optional arguments: one that cannot be read counts as not given, one that the tool does not have
    is ignored, and the result's message names both.

    Args:
        memory: the memory to change.
        call: parsed tool call.
        chunk: index of the chunk, stored with the operation.
        source: name of the conversation, stored with the operation.
        timestamp: date of the chunk, for inserts and updates without a date of their own.
        speaker: person on whose word the call rests, stored with the operation.
        metadata: set on the entry that is inserted or updated, beside what it has.
        quarantine: why the operation must wait for a review; "" applies it. A quarantined call is not ok and has the
            code "quarantined".
        strict: refuse a call with such an argument instead, as rewards do.

    Returns:
        The result, and the operation as logged; None if the memory did not change.
    """
    read = _read_call(memory, call, strict=strict)
    if isinstance(read, ToolResult):
        return read, None
    arguments, ignored = read
    origin = {"chunk": chunk, "source": source, "speaker": speaker}
    try:
        result, operation = _run(memory, call, arguments, origin, timestamp, metadata, quarantine)
    except StoreError as error:
        return _refusal(call, error), None
    return _with_ignored(result, ignored), operation


def execute_inserts(
    memory: Memory, calls: Sequence[ToolCall], origins: Sequence[Mapping[str, Any]], *, strict: bool = False
) -> list[tuple[ToolResult, Operation | None]]:
    """Apply calls of `memory_insert` in one write, with the results of `execute`.

    Args:
        memory: the memory to change.
        calls: parsed tool calls.
        origins: for each call, chunk, source, timestamp, speaker and metadata as in `execute`.
        strict: refuse a call with an argument that cannot be read; see `execute`.
    """
    reads = [_read_call(memory, call, strict=strict) for call in calls]
    operations = [
        _insert_operation(cast(Insert, read[0]), **origin)
        for read, origin in zip(reads, origins, strict=True)
        if not isinstance(read, ToolResult)
    ]
    outcomes = iter(memory.apply_each(operations))
    executed: list[tuple[ToolResult, Operation | None]] = []
    for call, read in zip(calls, reads, strict=True):
        if isinstance(read, ToolResult):
            executed.append((read, None))
        elif isinstance(outcome := next(outcomes), StoreError):
            executed.append((_refusal(call, outcome), None))
        else:
            executed.append((_with_ignored(_insert_result(call, outcome), read[1]), outcome))
    return executed


def _read_call(memory: Memory, call: ToolCall, *, strict: bool) -> tuple[_Arguments, str] | ToolResult:
    """Return the arguments of a call and which were ignored in words, or the result of a call that cannot be read."""
    if call.error:
        return ToolResult(call, False, call.error, "not a readable call")
    model = TOOLS.get(call.name)
    if model is None or (model is CoreUpdate and not memory.schema.core):
        return ToolResult(call, False, "unknown_tool", f"no tool {call.name!r}; there are: {', '.join(TOOLS)}")
    try:
        return _validate(model, call.arguments, strict=strict)
    except ValidationError as error:
        return ToolResult(call, False, "invalid_arguments", format_validation_error(error))


def _refusal(call: ToolCall, error: StoreError) -> ToolResult:
    """Return the result of a call that the memory's rules refuse. Raises any other error."""
    if isinstance(error, DuplicateContent):
        return ToolResult(call, True, "duplicate", str(error), entry_id=error.entry_id)
    if isinstance(error, UnknownEntry | UnknownCategory | InvalidContent):
        return ToolResult(call, False, error.code, str(error))
    raise error


def _with_ignored(result: ToolResult, ignored: str) -> ToolResult:
    return replace(result, message="; ".join(filter(None, (result.message, ignored)))) if ignored else result


def _validate(model: type[_Arguments], arguments: Mapping[str, Any], *, strict: bool) -> tuple[_Arguments, str]:
    """Return the arguments of a call, and which were ignored in words. Raises `ValidationError`."""
    try:
        return model.model_validate(arguments), ""
    except ValidationError as error:
        names = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        if strict or names & required:
            raise
        remaining = {name: value for name, value in arguments.items() if name not in names}
        return model.model_validate(remaining), f"ignored: {format_validation_error(error)}"


def tool_of(call: ToolCall) -> type[_Arguments] | None:
    """Return the argument model of a call's tool; None if there is no such tool."""
    return TOOLS.get(call.name)


def changed_id(call: ToolCall) -> str | None:
    """Return the id of the entry that a call updates or deletes, "" for the core memory, or else None."""
    model = TOOLS.get(call.name)
    if model is CoreUpdate:
        return ""
    id = call.arguments.get("id") if model in (Update, Delete) else None
    return id if isinstance(id, str) else None


def _run(
    memory: Memory,
    call: ToolCall,
    arguments: _Arguments,
    origin: dict[str, Any],
    timestamp: str | None,
    metadata: Mapping[str, Any] | None,
    quarantine: str,
) -> tuple[ToolResult, Operation | None]:
    if isinstance(arguments, Skip):
        return ToolResult(call, True, "skipped"), None
    if isinstance(arguments, Insert):
        operation = _insert_operation(arguments, timestamp=timestamp, metadata=metadata, **origin)
        if quarantine:
            return _quarantine(memory, call, operation, None, quarantine)
        done = memory.apply(operation)
        return _insert_result(call, done), done
    if isinstance(arguments, CoreUpdate):
        if arguments.content.strip() == memory.core:
            return ToolResult(call, True, "duplicate", "the core memory already says so"), None
        code, old = "core_updated", memory.core
        operation = Operation("core_update", content=arguments.content, **origin)
        if quarantine:
            return _quarantine(memory, call, operation, old, quarantine)
        done = memory.apply(operation)
        return ToolResult(call, True, code, content=done.content, before=old), done
    if isinstance(arguments, Update):
        before, code = memory.get(arguments.id), "updated"
        if arguments.content.strip() == before.content:  # a new date alone changes nothing
            refuse_duplicate(before)
        merged = None if metadata is None else {**before.metadata, **metadata}
        dated = {"timestamp": timestamp or "", "metadata": merged}
        operation = Operation("update", id=before.id, content=arguments.content, **dated, **origin)
    elif isinstance(arguments, Delete):
        before, code = memory.get(arguments.id), "deleted"
        operation = Operation("delete", id=before.id, **origin)
    else:
        raise TypeError(f"no action for {type(arguments).__name__}")
    if quarantine:
        return _quarantine(memory, call, operation, before.content, quarantine)
    done = memory.apply(operation)
    content = None if code == "deleted" else (done.content or "")
    return ToolResult(
        call, True, code, entry_id=done.id, category=before.category, content=content, before=before.content
    ), done


def _insert_operation(
    arguments: Insert, *, timestamp: str | None, metadata: Mapping[str, Any] | None, **origin: Any
) -> Operation:
    return Operation(
        "insert",
        category=arguments.category,
        content=arguments.content,
        timestamp=arguments.timestamp or timestamp,
        importance=arguments.importance,
        metadata=metadata,
        **origin,
    )


def _insert_result(call: ToolCall, done: Operation) -> ToolResult:
    return ToolResult(call, True, "inserted", entry_id=done.id, category=done.category, content=done.content or "")


def _quarantine(
    memory: Memory, call: ToolCall, operation: Operation, before: str | None, reason: str
) -> tuple[ToolResult, None]:
    """Keep an operation for a review. Raises what running it would raise for its category, content and duplicates."""
    if operation.kind == "insert":
        category, content = memory.schema.check_category(operation.category), clean_content(operation.content)
        existing, insert = memory.find(category, content), replace(operation, category=category, content=content)
        if existing and fact_identity(memory.schema, existing) == fact_identity(memory.schema, insert):
            refuse_duplicate(existing)
    memory.apply(quarantine_operation(operation, before, reason))
    return ToolResult(call, False, "quarantined", f"waits for a review: {reason}", entry_id=operation.id), None


def format_validation_error(error: ValidationError) -> str:
    """Format pydantic errors as `<field>: <message>`, without the invalid values."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        field = ".".join(str(part) for part in item["loc"])
        parts.append(f"{field}: {item['msg']}" if field else item["msg"])
    return "; ".join(parts)
