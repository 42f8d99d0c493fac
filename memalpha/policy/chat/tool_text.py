"""Tools spelled out in plain text, for templates that drop them or that cannot write several calls in a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.policy.hermes import CLOSE, OPEN, format_call

_FORM = f"""\
You act by calling tools. A call is one block of exactly this form, with the tool's name and its arguments as JSON:

{OPEN}
{{"name": "the tool", "arguments": {{"parameter": "value"}}}}
{CLOSE}

Write one block after another to make several calls, and nothing after the last block. The tools are:
"""


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the form of a call, the tools with their parameters, and a worked example.

    Args:
        tools: tools in OpenAI's function format.
    """
    functions = [tool["function"] for tool in tools]
    lines = [_FORM]
    for function in functions:
        lines.append(f"- {function['name']}: {function.get('description', '')}".rstrip(": "))
        parameters = function.get("parameters", {})
        required = parameters.get("required", ())
        lines += [
            f"  - {name} ({_kind(schema)}{'' if name in required else ', optional'}): {schema.get('description', '')}"
            for name, schema in parameters.get("properties", {}).items()
        ]
    example = "".join(format_call(function["name"], _example(function)) for function in functions[:2])
    return "\n".join(
        [*lines, "", "A reply with its calls looks like this, with your own values:", "", example]
    ).rstrip()


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "string")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _example(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for the required parameters: a listed value, or the parameter's description."""
    parameters = function.get("parameters", {})
    properties = parameters.get("properties", {})
    required = [name for name in parameters.get("required", ()) if name in properties]
    return {
        name: properties[name]["enum"][0] if properties[name].get("enum") else _placeholder(properties[name])
        for name in required
    }


def _placeholder(schema: Mapping[str, Any]) -> Any:
    return 0 if schema.get("type") in ("number", "integer") else str(schema.get("description", "text"))
