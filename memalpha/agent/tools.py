"""Tools of the writer, a class each, and their execution on a memory.

A class says everything about its tool: name, description and parameters (from which the JSON schema is made), what the
prompt says of it, its line form, and the operations that a call makes. `agent.tools=[module:Class]` adds tools of your
own (docs/extend/tool.md).

A model's mistake becomes a `ToolResult` with an error code, never an exception. Exceptions mean a failing database or a
bug; in a tool of your own it is a `ConfigError` that names the tool and the line.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from memalpha.agent.parsing import MALFORMED, named_tool
from memalpha.arguments import brief_repr, name_errors
from memalpha.config.common import import_object
from memalpha.errors import (
    ConfigError,
    DuplicateContent,
    InvalidContent,
    StoreError,
    UnknownCategory,
    UnknownEntry,
)
from memalpha.policy.chat.text import plain_line
from memalpha.store.fields import clean_content
from memalpha.store.memory import Memory
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.schema import MemorySchema
from memalpha.store.state import fact_identity, refuse_duplicate
from memalpha.types import MemoryEntry, Operation, ToolCall, ToolResult, is_iso_time


class Arguments(BaseModel):
    """Arguments of a call, whose class describes the parameters; its docstring is the tool's description."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _no_copy_of_the_prompt(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a parameter's description as its value: weak models copy it from the prompt's example."""
        if isinstance(value, str) and value.strip() == cls.model_fields[str(info.field_name)].description:
            raise ValueError("repeats the description of the parameter: give a value of your own")
        return value


class Tool(Arguments, ABC):
    """A tool that changes the memory; an instance holds the arguments of one call.

    Attributes:
        name: Name in calls.
        rule: What the prompt says of it, after its name.
        line: Its line form: a mark, then parameters in their order; the last one takes the rest of the line if it is
            `content`. "" if it has none.
        is_served: True offers it over MCP, with `hints` of the protocol's.
        hints: `destructive_hint` and `idempotent_hint` of MCP.
    """

    name: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    line: ClassVar[str] = ""
    is_served: ClassVar[bool] = True
    hints: ClassVar[Mapping[str, bool]] = {"destructive_hint": True, "idempotent_hint": False}

    def changes(self) -> tuple[str, ...]:
        """Return the ids of the entries that the call updates or deletes; "" is the core memory."""
        return ()

    @abstractmethod
    def apply(self, memory: Memory) -> Sequence[Operation]:
        """Return the operations of the call, which happen together or not at all; none changes nothing.

        Source, chunk and speaker are set by the agent, never here; its metadata joins theirs, and the conversation's
        date is added to those without a timestamp.

        Args:
            memory: The memory as it is; not changed here.

        Raises:
            StoreError: The rules of the memory refuse the call: `UnknownEntry`, `InvalidContent`, `DuplicateContent`.
        """

    @classmethod
    def line_shape(cls) -> str:
        """Return the line form as the prompt shows it: `~ID TEXT`."""
        fields = cls.line[1:].split()
        return cls.line[:1] + " ".join("TEXT" if field == "content" else field.upper() for field in fields)


class Insert(Tool):
    """Store one new fact or event."""

    name = "memory_insert"
    rule = (
        "stores one new fact or event per call, short and complete in itself: say who or what it is about, and write "
        'dates out instead of "yesterday".'
    )
    line = "+category content"
    hints = {"destructive_hint": False, "idempotent_hint": True}

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

    def apply(self, memory: Memory) -> Sequence[Operation]:
        return [Operation("insert", None, self.category, self.content, self.timestamp, self.importance)]


class Update(Tool):
    """Replace what an entry says; the entry keeps its id."""

    name = "memory_update"
    rule = (
        "replaces an entry that is no longer right. Use the id shown in the memory. Never keep two entries that "
        "contradict each other."
    )
    line = "~id content"
    hints = {"destructive_hint": True, "idempotent_hint": True}

    id: str = Field(description="id of the entry, as shown in the memory")
    content: str = Field(description="the whole new content")

    def changes(self) -> tuple[str, ...]:
        return (self.id,)

    def apply(self, memory: Memory) -> Sequence[Operation]:
        before = memory.get(self.id)
        if self.content.strip() == before.content:  # a new date alone changes nothing
            refuse_duplicate(before)
        return [Operation("update", self.id, content=self.content)]


class Delete(Tool):
    """Remove an entry that is no longer true and has no new value."""

    name = "memory_delete"
    rule = "removes an entry that is no longer true and has no new value, or that the user wants forgotten."
    line = "-id"
    hints = {"destructive_hint": True, "idempotent_hint": True}

    id: str = Field(description="id of the entry, as shown in the memory")

    def changes(self) -> tuple[str, ...]:
        return (self.id,)

    def apply(self, memory: Memory) -> Sequence[Operation]:
        return [Operation("delete", memory.get(self.id).id)]


class CoreUpdate(Tool):
    """Rewrite the core memory, the short text that is always in view; empty text clears it."""

    name = "core_memory_update"
    rule = "rewrites the core memory: the few things that matter in every part."
    line = "=content"
    is_served = False  # the core memory is the writer's own

    content: str = Field(description="the whole new core memory, at most 512 tokens")

    def changes(self) -> tuple[str, ...]:
        return ("",)

    def apply(self, memory: Memory) -> Sequence[Operation]:
        if self.content.strip() == memory.core:
            raise DuplicateContent("the core memory already says so")
        return [Operation("core_update", content=self.content)]


class Skip(Tool):
    """Change nothing: this part of the conversation holds nothing worth remembering."""

    name = "memory_skip"
    rule = "says that this part holds nothing worth remembering."
    line = "."
    is_served = False  # only a writer has parts to skip

    def apply(self, memory: Memory) -> Sequence[Operation]:
        return []

    @classmethod
    def line_shape(cls) -> str:
        return "A full stop"


class SearchMemory(Arguments):
    """Search the memory for further notes."""

    query: str = Field(min_length=1, description="what to look for, in a few words")


A = TypeVar("A", bound=Arguments)
Tools = Mapping[str, type[Tool]]
TOOLS: Tools = {tool.name: tool for tool in (Insert, Update, Delete, CoreUpdate, Skip)}

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what endpoints take as the name of a function
_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean"}


@cache
def load_tools(names: tuple[str, ...]) -> Tools:
    """Return the writer's tools by name: the five, then those of `agent.tools`.

    Args:
        names: `module:Class` of each further tool.

    Raises:
        ConfigError: One cannot be found or is no usable `Tool`, or two have the same name or line mark.
    """
    tools = dict(TOOLS)
    for name in names:
        tool = import_object(name, "agent.tools")
        if fault := _fault(tool, tools):
            raise ConfigError(f"agent.tools: {name!r}: {fault}")
        tools[tool.name] = tool
    return tools


def _fault(tool: Any, tools: Tools) -> str:
    """Return what keeps a class from being a tool beside others, "" if nothing does."""
    if not (inspect.isclass(tool) and issubclass(tool, Tool)):
        return "is no class derived from memalpha.agent.tools.Tool"
    if not all(isinstance(text, str) and text for text in (tool.name, tool.rule, tool.__doc__)):
        return "needs a name, a rule (what the prompt says of it) and a docstring (its description)"
    if not _NAME.fullmatch(tool.name):
        return f"name {brief_repr(tool.name)}: 1 to 64 of the characters a-z, A-Z, 0-9, _ and - are needed"
    for hint, value in tool.hints.items():
        if not isinstance(value, str if hint == "title" else bool):
            return f"hints: {hint} {brief_repr(value)}: {'a text' if hint == 'title' else 'True or False'} is needed"
    if inspect.isabstract(tool):
        return "needs apply, which returns the operations of a call"
    for field, info in tool.model_fields.items():
        if not info.description or _json_type(info.annotation) is None:
            return f"parameter {field!r} needs a description and one of the types str, float, int, bool"
    unknown = [field for field in tool.line[1:].split() if field not in tool.model_fields]
    if unknown:
        return f"line: {unknown[0]!r} is none of its parameters"
    for other in tools.values():
        if other.name == tool.name:
            return f"{tool.name!r} is the name of another tool ({other.__name__})"
        if tool.line and other.line[:1] == tool.line[:1]:
            return f"line: {tool.line[:1]!r} is the mark of {other.name}"
    return ""


def _json_type(annotation: Any) -> str | None:
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((_TYPES[kind] for kind in kinds if kind in _TYPES), None)


def tool_schemas(schema: MemorySchema, tools: Tools = TOOLS) -> tuple[dict[str, Any], ...]:
    """Return the tools in OpenAI's function format.

    The allowed values of `category` are the schema's categories.
    """
    return tuple(
        tool_schema(name, tool, schema.category_names)
        for name, tool in tools.items()
        if schema.core or tool is not CoreUpdate
    )


def tool_schema(name: str, model: type[Arguments], categories: Sequence[str] = ()) -> dict[str, Any]:
    """Return a tool in OpenAI's function format.

    Args:
        name: Name of the tool.
        model: Its parameters; the docstring is its description.
        categories: Allowed values of a parameter `category`.
    """
    properties: dict[str, Any] = {}
    for field, info in model.model_fields.items():
        properties[field] = {"type": _json_type(info.annotation), "description": info.description}
        if field == "category":
            properties[field]["enum"] = list(categories)
    required = [field for field, info in model.model_fields.items() if info.is_required()]
    parameters = {"type": "object", "properties": properties, "required": required}
    description = inspect.cleandoc(model.__doc__ or "")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SEARCH_TOOL = tool_schema("search_memory", SearchMemory)
"""Tool of a reader, in OpenAI's function format."""


def search_query(call: ToolCall) -> str | None:
    """Return the query of a call of `search_memory`; None for any other call and without a readable query."""
    if call.error or named_tool(call, ("search_memory",)).name != "search_memory":
        return None
    try:
        arguments, _ = validate_arguments(SearchMemory, call.arguments)
    except ValidationError:
        return None
    return plain_line(arguments.query).strip() or None


ReadCall = tuple[Tool, str] | ToolResult
"""Arguments of a call and which were ignored, in words; or the result of a call that cannot be read."""
Execution = tuple[ToolResult, tuple[Operation, ...]]
"""Result of a call, and its operations as logged; none if the memory did not change."""
Judge = Callable[[Sequence[Operation]], tuple[str | None, str]]


def read_call(
    call: ToolCall, schema: MemorySchema, tools: Tools = TOOLS, *, strict: bool = False, visible: Collection[str] = ()
) -> ReadCall:
    """Read the arguments of a call.

    A fact survives its optional arguments: one that cannot be read counts as not given, one that the tool does not have
    is ignored, and the result's message names both. Category and id are understood as `_as_meant` says.

    Args:
        call: Parsed tool call.
        schema: Schema of the memory.
        tools: Tools of the writer.
        strict: Refuse a call with such an argument, category or id instead, as rewards do.
        visible: Ids of the entries that the writer saw.

    Raises:
        ConfigError: A tool of a user's own failed.
    """
    if call.error:
        message = "not a readable call" if call.error == MALFORMED else "the chunk does not say this"
        return ToolResult(call, False, call.error, message)
    tool = tools.get(call.name)
    if tool is None or (tool is CoreUpdate and not schema.core):
        return ToolResult(call, False, "unknown_tool", f"no tool {call.name!r}; there are: {', '.join(tools)}")
    arguments = call.arguments if strict else _as_meant(call.arguments, schema.category_names, visible)
    with _name_errors(tool):
        try:
            return validate_arguments(tool, arguments, strict=strict)
        except ValidationError as error:
            return ToolResult(call, False, "invalid_arguments", format_validation_error(error))


def _as_meant(arguments: Mapping[str, Any], categories: Sequence[str], ids: Collection[str]) -> dict[str, Any]:
    """Return arguments with a category in other case (`Semantic`), and an id with the view's brackets, as they mean."""
    category, id, meant = arguments.get("category"), arguments.get("id"), dict(arguments)
    if isinstance(category, str) and category not in categories:
        names = [name for name in categories if name.casefold() == category.strip().casefold()]
        meant |= {"category": names[0]} if len(names) == 1 else {}
    if isinstance(id, str) and id not in ids:
        bare = id.strip().removeprefix("[").removesuffix("]").strip()
        meant |= {"id": bare} if bare and bare in ids else {}
    return meant


def validate_arguments(model: type[A], arguments: Mapping[str, Any], *, strict: bool = False) -> tuple[A, str]:
    """Return the arguments of a call, and which were ignored in words; `strict` ignores none.

    Raises `ValidationError`.
    """
    try:
        return model.model_validate(arguments), ""
    except ValidationError as error:
        names = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        if strict or names & required:
            raise
        remaining = {name: value for name, value in arguments.items() if name not in names}
        return model.model_validate(remaining), f"ignored: {format_validation_error(error)}"


def _name_errors(tool: Tool | type[Tool]) -> AbstractContextManager[None]:
    return name_errors(f"tool {tool.name}:", ConfigError, is_own=tool.name in TOOLS)


def changed_ids(tool: Tool) -> Collection[str]:
    """Return the ids of `Tool.changes`. Raises `ConfigError` if it failed or gives anything else."""
    with _name_errors(tool):
        ids: Any = tool.changes()
    if not isinstance(ids, tuple | list | set | frozenset):
        raise ConfigError(f"tool {tool.name}: changes gives a tuple of ids, not {type(ids).__name__}")
    given = [id for id in ids if id is not None]  # an argument that the model left out
    for id in given:
        if not isinstance(id, str):
            raise ConfigError(f"tool {tool.name}: changes gives ids, which are texts, not {brief_repr(id)}")
    return given


def _requested(tool: Tool, memory: Memory) -> Sequence[Operation]:
    """Return the operations of `Tool.apply`.

    Values that a model may have written are left to the memory, which refuses the call.

    Raises:
        StoreError: The rules of the memory refuse the call.
        ConfigError: It failed, or gives what no list of operations for the memory is.
    """
    with _name_errors(tool):
        operations: Any = tool.apply(memory)
    place = f"tool {tool.name}: apply gives"
    if not isinstance(operations, list | tuple):
        raise ConfigError(f"{place} a list of Operations, not {type(operations).__name__}")
    for operation in operations:
        if not isinstance(operation, Operation):
            raise ConfigError(f"{place} a list of Operations, not one with {brief_repr(operation)}")
        if operation.kind not in CODES:
            raise ConfigError(f"{place} an Operation {brief_repr(operation.kind)}: use {', '.join(CODES)}")
        for field in ("id", "category", "content", "timestamp"):
            value = getattr(operation, field)
            if not isinstance(value, str) and (
                value is not None or (field == "id" and operation.kind in ("update", "delete"))
            ):
                raise ConfigError(f"{place} {operation.kind} with {field} {brief_repr(value)}: a text is needed")
        if not isinstance(metadata := operation.metadata, Mapping | None):
            raise ConfigError(f"{place} {operation.kind} with metadata {brief_repr(metadata)}: not a mapping")
        for field in ("source", "chunk", "speaker", "key"):  # a revert by them must find all that a read has written
            if getattr(operation, field) is not None:
                raise ConfigError(f"{place} {operation.kind} with a {field}, which the agent sets: use metadata")
    return operations


def execute(
    memory: Memory,
    call: ToolCall,
    read: ReadCall | None = None,
    *,
    chunk: int | None,
    source: str | None,
    timestamp: str | None,
    metadata: Mapping[str, Any] | None = None,
    judge: Judge = lambda operations: (None, ""),
) -> Execution:
    """Apply one tool call to the memory.

    An insert that would create an exact duplicate, or an update to the same content, changes nothing: its result is ok
    with code "duplicate".

    Args:
        memory: the memory to change.
        call: parsed tool call.
        read: the call as `read_call` reads it; None reads it here, by the five tools.
        chunk: index of the chunk, stored with the operations.
        source: name of the conversation, stored with the operations.
        timestamp: date of the chunk, for inserts and updates without a date of their own.
        metadata: set on the entries that are inserted or updated, beside what they have.
        judge: returns the person on whose word operations rest, stored with them, and why they must wait for a review;
            "" applies them. A quarantined call is not ok and has the code "quarantined".

    Returns:
        The result, and the operations as logged; none if the memory did not change.

    Raises:
        ConfigError: A tool of a user's own failed, or gives no operations for the memory.
    """
    read = read_call(call, memory.schema) if read is None else read
    if isinstance(read, ToolResult):
        return read, ()
    tool, ignored = read
    try:
        requested = _requested(tool, memory)
        if not requested:
            return _with_ignored(ToolResult(call, True, "skipped"), ignored), ()
        speaker, quarantine = judge(requested)
        origin = {"chunk": chunk, "source": source, "speaker": speaker}
        ids = [operation.id for operation in requested if operation.kind in ("update", "delete")]
        if len(set(ids)) < len(ids):
            raise InvalidContent("names one entry twice: an update and a delete of it would lose what both say")
        before = [_before(memory, operation) for operation in requested]
        operations = [
            _complete(operation, entry, timestamp, metadata, origin)
            for operation, entry in zip(requested, before, strict=True)
        ]
        if quarantine:
            for operation, old in zip(operations, before, strict=True):
                _quarantine(memory, operation, old.content if isinstance(old, MemoryEntry) else old, quarantine)
            result = ToolResult(call, False, "quarantined", f"waits for a review: {quarantine}", operations[0].id)
            return _with_ignored(result, ignored), ()
        done = memory.apply_all(operations)
    except StoreError as error:
        return _refusal(call, error), ()
    return _with_ignored(_result(call, done, before[0]), ignored), done


def execute_inserts(
    memory: Memory,
    inserts: Sequence[tuple[ToolCall, ReadCall]],
    *,
    timestamp: str | None,
    metadata: Mapping[str, Any] | None,
    judge: Judge,
    **origin: Any,
) -> Iterator[Execution]:
    """Apply calls of `memory_insert` in one write, with the results of `execute`.

    Args:
        memory: the memory to change.
        inserts: parsed tool calls, each as `read_call` reads it.
        timestamp: date of the chunk.
        metadata: set on the entries.
        judge: returns the person on whose word operations rest.
        origin: chunk and source as in `execute`.
    """
    operations = []
    for _, read in inserts:
        if not isinstance(read, ToolResult):
            [operation] = requested = read[0].apply(memory)
            speaker = judge(requested)[0]
            operations.append(_complete(operation, None, timestamp, metadata, {**origin, "speaker": speaker}))
    outcomes = iter(memory.apply_each(operations))
    for call, read in inserts:
        if isinstance(read, ToolResult):
            yield read, ()
        elif isinstance(outcome := next(outcomes), StoreError):
            yield _refusal(call, outcome), ()
        else:
            yield _with_ignored(_result(call, (outcome,), None), read[1]), (outcome,)


def _before(memory: Memory, operation: Operation) -> MemoryEntry | str | None:
    """Return the entry, or the core text, that an operation ends; None for an insert."""
    if operation.kind == "core_update":
        return memory.core
    return None if operation.kind == "insert" else memory.get(str(operation.id))


def _complete(
    operation: Operation,
    before: MemoryEntry | str | None,
    timestamp: str | None,
    metadata: Mapping[str, Any] | None,
    origin: Mapping[str, Any],
) -> Operation:
    """Return an operation with its origin, and with the date and metadata of what it writes."""
    own = operation.metadata
    merged = metadata if own is None else {**own, **(metadata or {})}
    if operation.kind == "insert":
        return replace(operation, timestamp=operation.timestamp or timestamp, metadata=merged, **origin)
    if isinstance(before, MemoryEntry) and operation.kind == "update":
        merged = None if merged is None else {**before.metadata, **merged}
        return replace(operation, timestamp=operation.timestamp or timestamp or "", metadata=merged, **origin)
    return replace(operation, **origin)


CODES = {"insert": "inserted", "update": "updated", "delete": "deleted", "core_update": "core_updated"}
CHANGED = "changed"
"""Code of a call that made several operations."""
CHANGING_CODES = (*CODES.values(), CHANGED)
"""Codes of calls that changed the memory."""


def _result(call: ToolCall, done: Sequence[Operation], before: MemoryEntry | str | None) -> ToolResult:
    """Return the result of a call that changed the memory: what its first operation did, which ended `before`."""
    operation = done[0]
    code = CODES[operation.kind] if len(done) == 1 else CHANGED
    content = None if operation.kind == "delete" else operation.content or ""
    if operation.kind == "core_update":
        return ToolResult(call, True, code, content=content, before=str(before), operations=len(done))
    category, old = (before.category, before.content) if isinstance(before, MemoryEntry) else (operation.category, None)
    return ToolResult(call, True, code, "", operation.id, category, content, old, len(done))


def _refusal(call: ToolCall, error: StoreError) -> ToolResult:
    """Return the result of a call that the memory's rules refuse. Raises any other error."""
    if isinstance(error, DuplicateContent):
        return ToolResult(call, True, "duplicate", str(error), entry_id=error.entry_id or None)
    if isinstance(error, UnknownEntry | UnknownCategory | InvalidContent):
        return ToolResult(call, False, error.code, str(error))
    raise error


def _with_ignored(result: ToolResult, ignored: str) -> ToolResult:
    return replace(result, message="; ".join(filter(None, (result.message, ignored)))) if ignored else result


def _quarantine(memory: Memory, operation: Operation, before: str | None, reason: str) -> None:
    """Keep an operation for a review. Raises what running it would raise for its category, content and duplicates."""
    if operation.kind == "insert":
        category, content = memory.schema.check_category(operation.category), clean_content(operation.content)
        existing, insert = memory.find(category, content), replace(operation, category=category, content=content)
        if existing and fact_identity(memory.schema, existing) == fact_identity(memory.schema, insert):
            refuse_duplicate(existing)
    memory.apply(quarantine_operation(operation, before, reason))


def format_validation_error(error: ValidationError) -> str:
    """Format pydantic errors as `<field>: <message>`, without the invalid values."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        field = ".".join(str(part) for part in item["loc"])
        parts.append(f"{field}: {item['msg']}" if field else item["msg"])
    return "; ".join(parts)
