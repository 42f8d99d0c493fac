"""Replies in a model family's own form, read through a response template of transformers.

`to_text` gives what all other code reads: thoughts in `<think>` tags, calls as Hermes blocks. A call that cannot be
read becomes a block with its raw text, which the agent's parser reports as malformed; the calls beside it stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from memalpha.policy.chat.text import CLOSE, END_THINK, OPEN, THINK, format_call

_THOUGHTS = ("reasoning_content", "thinking")


class ReplyParser:
    """Read replies of one family.

    Args:
        template: a response template (transformers' `tokenizer.response_template`).
    """

    def __init__(self, template: Mapping[str, Any]) -> None:
        fields = deepcopy(dict(template["fields"]))
        self._calls = fields.get("tool_calls", {})
        self._thought = next((fields.pop(name) for name in _THOUGHTS if name in fields), {})
        if "tool_calls" in fields:
            has_name = "(?P<name>" in self._calls.get("open_pattern", "")
            fields["tool_calls"] = {
                **self._calls,
                "content": "text",
                "content_args": {"strip": False},
                "transform": {"body": "{content}", **({"name": "{name}"} if has_name else {})},
            }
        if "open" in self._thought:
            fields["thought"] = {**self._thought, "repeats": True}
        anchor = {"start_anchor": "\0"}  # required, and looked for in the prompt, which this parser is not given
        self._regions = {**anchor, "fields": fields}
        without_calls = {name: field for name, field in fields.items() if name != "tool_calls"}
        self._regions_without_calls = {**anchor, "fields": without_calls}
        content = {key: self._calls[key] for key in ("content", "content_args") if key in self._calls}
        self._body = {**anchor, "fields": {"content": content}}

    @property
    def thinks(self) -> bool:
        """True if the family has a place for thoughts."""
        return bool(self._thought)

    def first_call(self, text: str) -> int:
        """Return where the first call of a text begins; -1 without one."""
        match = re.search(self._calls.get("open_pattern") or re.escape(self._calls.get("open", "\0")), text)
        return match.start() if match else -1

    def call_ends(self, text: str) -> list[int]:
        """Return where each call of a text ends, without the white space after it."""
        ends, rest = [], text
        while (start := self.first_call(rest)) >= 0:
            closing = re.search(self._calls["close_pattern"], rest[start:])
            closed = rest if closing is None else rest[: start + closing.end()]
            ends.append(len(text) - len(rest) + len(closed.rstrip()))
            rest = rest[len(closed) :]
        return ends

    @property
    def thought_marks(self) -> tuple[str, str]:
        """Texts that open and close a thought."""
        close = self._thought.get("close_pattern", "").removesuffix(r"\s*").replace("\\", "")
        return (self._thought["open"], close) if close and "open" in self._thought else (THINK, END_THINK)

    def to_text(
        self, reply: str, tools: Sequence[Mapping[str, Any]] = (), *, in_thought: bool = False, with_calls: bool = True
    ) -> str:
        """Return a reply with thoughts in `<think>` tags and calls as Hermes blocks.

        Args:
            reply: decoded completion, with the token that ended it.
            tools: tools in OpenAI's function format; arguments that the family writes as bare text get the types of
                their parameters.
            in_thought: the prompt has opened a thought already.
            with_calls: read calls in the family's form; False leaves them as they are.
        """
        from transformers.utils.chat_parsing import ResponseParser

        types = {}
        for function in (tool["function"] for tool in tools):
            properties = function.get("parameters", {}).get("properties", {})
            types[function["name"]] = {name: schema.get("type") for name, schema in properties.items()}
        thoughts: list[str] = []
        if in_thought:
            end = re.search(self._thought.get("close_pattern", END_THINK), reply)
            if end is None:
                return f"{THINK}\n{reply}"
            thoughts.append(reply[: end.start()].strip())
            reply = reply[end.end() :]
        parser = ResponseParser(self._regions if with_calls else self._regions_without_calls, prefix="")
        events = parser.feed(reply)
        before_end = len(events)
        events += parser.finalize()[1]
        closed = [(i, event) for i, event in enumerate(events) if event["type"] == "region_close"]
        if not closed and reply.strip():
            return _join(thoughts, reply)  # all of it is outside the family's channels
        parts = []
        for index, event in closed:
            if event["field"] == "thought":
                if index >= before_end and not re.search(self._thought["close_pattern"], reply):
                    return _join(thoughts, "") + f"{THINK}\n{event['value']}"  # cut within the thought
                thoughts.append(str(event["value"]))
            elif event["field"] == "tool_calls":
                parts.append(self._block(event["value"], types))
            elif text := str(event["value"]).strip():
                parts.append(f"{text}\n" if "tool_calls" in (e["field"] for _, e in closed) else text)
        return _join(thoughts, "".join(parts))

    def _block(self, region: Mapping[str, str], types: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the Hermes block of one call's region."""
        from transformers.utils.chat_parsing import parse_response

        body = region["body"]
        try:
            value = parse_response(body, self._body, prefix="").get("content", {} if "name" in region else None)
        except (ValueError, TypeError, KeyError, RecursionError):
            value = None
        if "name" in region:
            name, arguments = region["name"], value
        elif isinstance(value, Mapping):
            name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
        else:
            name, arguments = None, None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            return f"{OPEN}\n{region.get('name', '')}{body}\n{CLOSE}\n"
        if "name" in region:
            kinds, arguments = types.get(name, {}), dict(arguments)
            for key, argument in arguments.items():  # numbers and truth values may be written as text
                if isinstance(argument, str) and kinds.get(key) in ("number", "integer", "boolean"):
                    with suppress(ValueError):
                        arguments[key] = json.loads(argument)
        return format_call(name, arguments)


def _join(thoughts: Sequence[str], text: str) -> str:
    thought = "\n".join(part for part in thoughts if part)
    return f"{THINK}\n{thought}\n{END_THINK}\n\n{text}" if thought else text


def known_templates() -> dict[str, Mapping[str, Any]]:
    """Return the response templates that TRL keeps, by family."""
    from trl import chat_template_utils

    return {
        name.removesuffix("_template"): value
        for name, value in vars(chat_template_utils).items()
        if name.endswith("_template") and isinstance(value, dict) and "fields" in value
    }
