"""MCP tools of a memory: the writer's three edits, with the schema of its training, and search, list and read.

A failed call is a result with an error code that the model sees; trained writers know these codes.
What comes in from hosts is read kindly; what goes out is bounded, since hosts cut or refuse long answers.
On stdin and stdout every line is answered: the SDK drops a line that it cannot read.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import anyio
from pydantic import ValidationError

from memalpha import __version__
from memalpha.agent.tools import format_validation_error, tool_schemas
from memalpha.errors import required_packages
from memalpha.integrations.server import schemas
from memalpha.integrations.server.auth import SCOPE, Right, log
from memalpha.integrations.server.schemas import ServiceError
from memalpha.integrations.server.service import MemoryService
from memalpha.store.io.jsonl import to_json
from memalpha.store.search.lexical import split_passages, words

with required_packages("serving MCP", "mcp", "mcp_types", extra="serve"):
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.exceptions import MCPError
    from mcp.shared.message import SessionMessage

MAX_ANSWER = 60_000
"""Bytes of an answer's JSON, which goes out twice: as structured content and as text."""
_LONG = 4_000  # characters of a content from which a search that is too long shows the best passage alone
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}

_READERS: dict[str, tuple[type[schemas.RequestModel], Right, dict[str, bool]]] = {
    "memory_search": (schemas.SearchRequest, "read", {"read_only_hint": True}),
    "memory_list": (schemas.ListRequest, "read", {"read_only_hint": True}),
    # A policy that reads a text may do anything.
    "memory_read": (schemas.ReadRequest, "read-with-model", {"destructive_hint": True, "idempotent_hint": False}),
}
"""Tools beside the writer's: arguments, the right that each needs, and hints of the protocol."""

_SCHEMA_KEYS = ("type", "minimum", "maximum", "maxLength", "maxItems", "items")

_INSTRUCTIONS = """\
A long-term memory of short facts and events. Search it before you answer from memory. To store what a conversation or \
a text holds, pass it to memory_read as it is: a writer trained for that decides what to keep, update and delete. \
memory_insert, memory_update and memory_delete are for single facts that are to be changed now.\
"""


def mcp_server(service: MemoryService) -> Server[Any]:
    """Build an MCP server of a memory, to run on a transport.

    Over HTTP a request has the namespace and the rights of its key; elsewhere all rights on the service's namespace.
    """

    tools = []  # those of the writer that are served, then search, list and read
    for schema in () if service.read_only else tool_schemas(service.schema, service.tools):
        function, tool = schema["function"], service.tools[schema["function"]["name"]]
        if tool.is_served:
            tools.append(_tool(function["name"], function["description"], function["parameters"], **tool.hints))
    for name, (model, right, hints) in _READERS.items():
        if right == "read" or not service.read_only:
            tools.append(_tool(name, model.__doc__, _schema(model, service.schema.category_names), **hints))
    input_schemas = {tool.name: tool.input_schema for tool in tools}

    async def list_tools(context: ServerRequestContext[Any], params: object) -> types.ListToolsResult:
        access = None if context.request is None else context.request.scope[SCOPE]
        return types.ListToolsResult(
            tools=[tool for tool in tools if access is None or access.allows(_right(tool.name))]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        name = params.name
        if name not in input_schemas:
            raise MCPError(code=types.INVALID_PARAMS, message=f"no tool {name!r}")
        arguments = read_arguments(params.arguments or {}, input_schemas[name])
        try:
            memory = service
            if context.request is not None:
                memory = service.granted(context.request.scope[SCOPE], _right(name))
            return await _call(memory, context, name, arguments)
        except ServiceError as error:
            return _failure(name, error.code, error.message)
        except ValidationError as error:
            return _failure(name, "invalid_arguments", format_validation_error(error))
        except Exception as error:  # a bug: the client gets no details
            log.exception("the tool %s failed", name)
            raise MCPError(code=types.INTERNAL_ERROR, message="the server failed; its log says why") from error

    return Server(
        "memalpha",
        version=__version__,
        title="Memory",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(
    service: MemoryService, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any]
) -> types.CallToolResult:
    if name in service.tools:
        outcome = await service.call(name, arguments, source="mcp")
        return _result(fit_items([asdict(outcome)])[0], failed=not outcome.ok)
    if name == "memory_search":
        request = schemas.SearchRequest.model_validate(arguments)
        hits = await service.search(request.query, request.k, category=request.category)
        found = [{**schemas.compact_entry(hit.entry), "score": round(hit.score, 4)} for hit in hits]
        return _result(fit_hits(found, request.query))
    if name == "memory_list":
        page = await service.page(**dict(schemas.ListRequest.model_validate(arguments)))
        entries = [schemas.compact_entry(service.as_read(entry)) for entry in page.entries]
        fitting = fit_items(entries, min(len(page.core.encode()), MAX_ANSWER // 2))
        next_id = page.next if len(fitting) == len(entries) else fitting[-1]["id"]
        return _result({"core": page.core, "entries": fitting, "next": next_id})

    async def progress(done: int, chunks: int) -> None:
        await context.session.report_progress(done, chunks, f"{done} of {chunks} chunks read")

    response = await service.read(schemas.ReadRequest.model_validate(arguments), source="mcp", progress=progress)
    fields = asdict(response)
    results = fit_items(fields["results"])
    left_out = len(response.results) - len(results)
    return _result({**fields, "results": results} | ({"left_out": left_out} if left_out else {}))


def _right(name: str) -> Right:
    return _READERS[name][1] if name in _READERS else "write"


def _result(value: dict[str, Any], *, failed: bool = False) -> types.CallToolResult:
    """Return the value as structured content, and as text for hosts without support for that."""
    text = types.TextContent(text=to_json(value))
    return types.CallToolResult(content=[text], structured_content=value, is_error=failed)


def _failure(name: str, code: str, message: str) -> types.CallToolResult:
    return _result(asdict(schemas.CallOutcome(name, False, code, message)), failed=True)


def _tool(name: str, description: str | None, schema: dict[str, Any], **hints: bool) -> types.Tool:
    annotations = types.ToolAnnotations.model_validate({"read_only_hint": False, "open_world_hint": False, **hints})
    return types.Tool(name=name, description=description, input_schema=schema, annotations=annotations)


def _schema(model: type[schemas.RequestModel], categories: tuple[str, ...]) -> dict[str, Any]:
    """Return the model's JSON schema in the form of the writer's tools, where optional fields are just not required."""
    schema = model.model_json_schema()
    properties = {}
    for name, field in schema["properties"].items():
        kind = next((option for option in field.get("anyOf", ()) if option["type"] != "null"), field)
        properties[name] = {key: kind[key] for key in _SCHEMA_KEYS if key in kind}
        properties[name] |= {key: field[key] for key in ("description", "default") if field.get(key) is not None}
        if name == "category":
            properties[name] |= {"enum": list(categories)}
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}


def read_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments as models mean them.

    A number, list or object that is given as text is read, a number where a text belongs becomes text, and an optional
    argument that is null, blank or an empty list or object counts as not given.

    Args:
        arguments: Arguments as they came.
        schema: JSON schema of the tool.
    """
    meant = {}
    for name, value in arguments.items():
        kind = schema["properties"].get(name, {}).get("type")
        is_blank = value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())
        if is_blank and name in schema["properties"] and name not in schema.get("required", ()):
            continue
        if isinstance(value, str) and kind in _TYPES:
            value = _parse(value, _TYPES[kind])
        elif kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        meant[name] = value
    return meant


def _parse(text: str, kinds: tuple[type, ...]) -> Any:
    """Return the JSON value of a text if it is of these types, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)) else text


def fit_items(items: Sequence[dict[str, Any]], size: int = 0) -> list[dict[str, Any]]:
    """Return the first items that fit into an answer, at least one: its content is cut if it does not fit alone.

    Args:
        items: Entries or outcomes as JSON objects.
        size: Bytes that the answer has besides.
    """
    fitting: list[dict[str, Any]] = []
    for item in items:
        size += _count_bytes(item)
        if size > MAX_ANSWER:
            break
        fitting.append(item)
    return fitting or [_cut(item) for item in items[:1]]


def fit_hits(hits: Sequence[dict[str, Any]], query: str) -> dict[str, Any]:
    """Return the answer of a search: hits, and how many were left out.

    Args:
        hits: Entries with scores, best first.
        query: Query of the search.
    """
    if sum(map(_count_bytes, hits)) > MAX_ANSWER:
        hits = [_shorten(hit, query) if len(hit["content"]) > _LONG else hit for hit in hits]
    fitting = fit_items(hits)
    left_out = len(hits) - len(fitting)
    return {"hits": fitting} | ({"left_out": left_out} if left_out else {})


def _shorten(hit: dict[str, Any], query: str) -> dict[str, Any]:
    """Replace a content by the passage of it that has most words of the query."""
    terms = set(words(query))
    passage = max(split_passages(hit["content"]), key=lambda passage: len(terms.intersection(words(passage))))
    first = min((index for term in terms if (index := passage.lower().find(term)) >= 0), default=0)
    start = max(0, min(first - _LONG // 2, len(passage) - _LONG))  # of a passage without blanks
    return {
        **hit,
        "content": passage[start : start + _LONG],
        "shown": f"best passage of {len(hit['content'])} characters",
    }


def _cut(item: dict[str, Any]) -> dict[str, Any]:
    """Cut the texts of an item, which alone is longer than an answer may be."""
    length = MAX_ANSWER // 10  # of up to four bytes each, in up to two texts
    long = {name: value for name, value in item.items() if isinstance(value, str) and len(value) > length}
    shown = ", ".join(f"{name}: {length} of {len(value)} characters" for name, value in long.items())
    return {**item, **{name: value[:length] for name, value in long.items()}, "shown": shown}


def _count_bytes(value: Any) -> int:
    return len(to_json(value).encode())


_HALVES = re.compile("[\ud800-\udfff]")
# Of the beginning of a message, not of its arguments.
_ID = re.compile(r'\s*\{[^{}\[\]]*?"id"\s*:\s*(-?\d{1,18}(?![\d.eE])|"[^"\\]{1,200}")')


async def serve_lines(service: MemoryService) -> None:
    """Serve the MCP tools of a memory until stdin ends. Child processes get an empty stdin."""
    server = mcp_server(service)
    stream = os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=False)
    empty = os.open(os.devnull, os.O_RDONLY)  # what child processes read would be missing here
    os.dup2(empty, sys.stdin.fileno())
    os.close(empty)

    async def messages() -> AsyncIterator[str]:
        """Yield the lines that are messages; for others an error goes out."""
        while line := await anyio.to_thread.run_sync(stream.readline):
            text, error = read_line(line)
            if error is not None:
                await outgoing.send(SessionMessage(error))
            elif text:
                yield text

    lines: Any = messages()  # which are only iterated
    async with stdio_server(stdin=lines) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def read_line(line: bytes) -> tuple[str, types.JSONRPCError | None]:
    """Return a line as a message that the SDK reads, or the error that answers it; "" for a blank line.

    What is not UTF-8, and half of a surrogate pair, becomes U+FFFD. The error has the id of the message, or of the
    beginning of one, if it can be read.
    """
    text = line.decode("utf-8", "replace").removeprefix("\ufeff").strip()
    if not text:
        return "", None
    value: Any = None
    try:
        value = json.loads(text)
        if "\\u" in text:
            text = _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False))
        types.jsonrpc_message_adapter.validate_json(text, by_name=False)
        if isinstance(value, dict) and not isinstance(value.get("id", ""), str | int):
            raise ValueError("the SDK would take it for a notification, which nobody answers")
    except (ValueError, RecursionError):
        code, fault = types.INVALID_REQUEST, "no message of JSON-RPC 2.0"
        if value is None:
            code, fault = types.PARSE_ERROR, "no JSON"
            value = {"id": json.loads(match[1])} if (match := _ID.match(text)) else None
        id = value.get("id") if isinstance(value, dict) else None
        known_id = id if isinstance(id, str | int) and not isinstance(id, bool) else None
        data = types.ErrorData(code=code, message=f"the line is {fault}")
        return "", types.JSONRPCError(jsonrpc="2.0", id=known_id, error=data)
    return text, None
