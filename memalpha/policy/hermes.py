"""The text form of a tool call (Hermes): what scripted policies emit, models are trained on, and the parser reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """One Hermes block as a model is trained to write it, newline after the close tag included."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}\n"
