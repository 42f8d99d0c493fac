"""Hermes text format of tool calls.

Scripted policies emit it, models are trained on it, and `agent.parsing` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return one Hermes block, including the newline after the close tag."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}\n"
