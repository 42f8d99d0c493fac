"""A memory as MCP tools: the writer's own three, with the schema it was trained on, and search, list and read.

Nothing here is the memory's: tools are listed, and their calls passed on. A call that fails is a result that says so,
for the model to see, with the code that a trained writer knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from memalpha import __version__
from memalpha.agent.tools import reason, tool_schemas
from memalpha.errors import ConfigError
from memalpha.integrations.server.schemas import Asked, List, Outcome, Read, Refused, Search, note
from memalpha.integrations.server.service import MemoryService, log
from memalpha.store.io.jsonl import json_text

try:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError
except ModuleNotFoundError as error:
    if error.name not in ("mcp", "mcp_types"):
        raise
    raise ConfigError(f"serving MCP needs {error.name}: pip install 'memalpha[serve]'") from error

EDITS = ("memory_insert", "memory_update", "memory_delete")
"""The writer's tools that are offered. The core memory is its own to write, and skipping is nothing to ask for."""

_OTHERS: dict[str, type[Asked]] = {"memory_search": Search, "memory_list": List, "memory_read": Read}
_READ_ONLY = ("memory_search", "memory_list")

# What a call may do. An insert only adds; of an exact duplicate nothing is stored, so that it may be repeated, and so
# may an update and a delete. What a policy does with a text is its own affair.
_HINTS = {
    "memory_insert": {"destructive_hint": False, "idempotent_hint": True},
    "memory_update": {"destructive_hint": True, "idempotent_hint": True},
    "memory_delete": {"destructive_hint": True, "idempotent_hint": True},
    "memory_search": {},
    "memory_list": {},
    "memory_read": {"destructive_hint": True, "idempotent_hint": False},
}

_INSTRUCTIONS = """\
A long-term memory of short facts and events. Search it before you answer from memory. To store what a conversation or \
a text holds, pass it to memory_read as it is: a writer trained for that decides what to keep, update and delete. \
memory_insert, memory_update and memory_delete are for single facts that are to be changed now.\
"""


def mcp_server(service: MemoryService) -> Server[Any]:
    """An MCP server over one memory, to be run on a transport."""

    async def list_tools(context: ServerRequestContext[Any], params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_tools(service))

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        name, arguments = params.name, params.arguments or {}
        if name not in (_READ_ONLY if service.read_only else _HINTS):
            raise MCPError(code=types.INVALID_PARAMS, message=f"no tool {name!r}")
        try:
            return await _call(service, context, name, arguments)
        except Refused as refused:
            return _failure(name, refused.code, refused.message)
        except ValidationError as invalid:
            return _failure(name, "invalid_arguments", reason(invalid))
        except Exception as error:  # a bug: nothing of it goes over the wire
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
    if name in EDITS:
        done = await service.call(name, arguments, source="mcp")
        return _result(asdict(done), failed=not done.ok)
    if name == "memory_search":
        search = Search.model_validate(arguments)
        hits = await service.search(search.query, search.k, category=search.category)
        return _result({"hits": [{**note(hit.entry), "score": round(hit.score, 4)} for hit in hits]})
    if name == "memory_list":
        page = await service.page(List.model_validate(arguments))
        return _result({"core": page.core, "entries": list(map(note, page.entries)), "next": page.next})

    async def progress(done: int, chunks: int) -> None:
        await context.session.report_progress(done, chunks, f"{done} of {chunks} chunks read")

    reading = await service.read(Read.model_validate(arguments), source="mcp", progress=progress)
    return _result({"chunks": reading.chunks, "results": list(map(asdict, reading.results))})


def _result(value: dict[str, Any], *, failed: bool = False) -> types.CallToolResult:
    """The value, and the same as text for hosts that know no other."""
    text = types.TextContent(text=json_text(value))
    return types.CallToolResult(content=[text], structured_content=value, is_error=failed)


def _failure(name: str, code: str, message: str) -> types.CallToolResult:
    return _result(asdict(Outcome(name, False, code, message)), failed=True)


def _tools(service: MemoryService) -> list[types.Tool]:
    trained = {tool["function"]["name"]: tool["function"] for tool in tool_schemas(service.schema)}
    tools = []
    for name, hints in _HINTS.items():
        reads = name in _READ_ONLY
        if service.read_only and not reads:
            continue
        if name in EDITS:
            description, schema = trained[name]["description"], trained[name]["parameters"]
        else:
            description, schema = _OTHERS[name].__doc__, _schema(_OTHERS[name], service.schema.category_names)
        annotations = types.ToolAnnotations(read_only_hint=reads, open_world_hint=False, **hints)
        tools.append(types.Tool(name=name, description=description, input_schema=schema, annotations=annotations))
    return tools


def _schema(model: type[Asked], categories: tuple[str, ...]) -> dict[str, Any]:
    """The model's JSON schema in the form of the trained tools': optional is what may be left out."""
    found = model.model_json_schema()
    properties = {}
    for name, field in found["properties"].items():
        kind = next((option for option in field.get("anyOf", ()) if option["type"] != "null"), field)
        properties[name] = {key: kind[key] for key in ("type", "minimum", "maximum", "maxLength") if key in kind}
        properties[name] |= {key: field[key] for key in ("description", "default") if field.get(key) is not None}
        if name == "category":
            properties[name] |= {"enum": list(categories)}
    return {"type": "object", "properties": properties, "required": found.get("required", [])}
