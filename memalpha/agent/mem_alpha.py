"""Prompt style of Mem-alpha's checkpoints (arXiv 2509.25911): messages, tools, and their calls as ours.

Their released 4B model was trained with one fresh prompt a chunk: a system message with the memory and the tools as
text, a user message with the chunk. The view holds the core memory and the last 5 entries of each kind. Structure,
tags, markers, tool names and parameters here are theirs. **The sentences are ours** (`memalpha/data/
mem_alpha_prompt.yaml`). A prompt file replaces them by others, byte for byte (`load_prompt`);
`scripts/mem_alpha_prompt.py` makes one from a checkout of their repository.

Replies are in Qwen-Agent's text protocol: a call is two lines, `✿FUNCTION✿: name` and `✿ARGS✿: {json}`, and a reply
may hold several. `✿RESULT✿` and `✿RETURN✿` come from whoever runs the tools: a model that writes them itself has begun
to invent results, so its reply ends there. The JSON is scanned as `agent.parsing` scans it, so contents may hold
markers and newlines. A second `✿ARGS✿` calls the same tool again. A block whose arguments cannot be read is one
`ToolCall` with error "malformed", text outside blocks is ignored, and no text raises. Source: qwen-agent 0.0.29
(Apache-2.0), `qwen_fncall_prompt.py`.

Their calls are mapped to the tools of `agent.tools`:

| their call                                       | ours                                       |
|--------------------------------------------------|--------------------------------------------|
| new_memory_insert(memory_type, content)          | memory_insert(category, content)           |
| memory_update(memory_type, new_content, memory_id) | memory_update(id, content)               |
| memory_delete(memory_type, memory_id)            | memory_delete(id)                          |
| memory_update(core_memory, new_content)          | core_memory_update(content)                |
| memory_delete(core_memory)                       | core_memory_update(content="")             |

Where their executor and ours differ, ours holds:

- `semantic` is read as `semantic_memory`; theirs refuses it in inserts.
- An update or delete finds its entry by id alone; theirs looks in the named kind only.
- Deleting an unknown id is an error; theirs calls it a success.
- Empty contents and core texts over the limit are refused; theirs stores the first and cuts the second.

The reward preset `published` counts a delete of an unknown id and an insert of an empty content as theirs does.
Arguments beside the named ones are ignored, as theirs are. A reply without a block of the protocol is read for Hermes
calls, which scripted writers and endpoints give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from memalpha.agent.parsing import (
    UnreadableJSON,
    after_thinking,
    decode_json,
    malformed_call,
    named_tool,
    parse_calls,
    read_call,
    skip_space,
)
from memalpha.errors import ConfigError
from memalpha.policy.chat.text import plain_line, plain_text
from memalpha.store.schema import MemorySchema
from memalpha.text_files import parse_yaml
from memalpha.types import Observation, ToolCall, ViewEntry

FUNCTION, ARGS, RESULT, RETURN = "✿FUNCTION✿", "✿ARGS✿", "✿RESULT✿", "✿RETURN✿"
_MARKER = re.compile(f"({FUNCTION}|{ARGS}|{RESULT}|{RETURN})[ \t]*:?")


def parse_blocks(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a completion in order; `()` if it has none.

    A leading `<think>` part is skipped.
    """
    calls: list[ToolCall] = []
    name = ""
    marker = _MARKER.search(text, after_thinking(text))
    while marker is not None and marker[1] in (FUNCTION, ARGS):
        start, following = marker.start(), _MARKER.search(text, marker.end())
        if marker[1] == FUNCTION:
            name = text[marker.end() : following.start() if following else len(text)].strip()
            if following is None or following[1] != ARGS:
                calls.append(malformed_call(text[start : following.start() if following else len(text)]))
                marker = following
                continue
            marker = following
        first = skip_space(text, marker.end())
        try:
            if text[first : first + 1] not in ("{", '"', "'"):  # a bare word is no object, and may be the next marker
                raise UnreadableJSON
            arguments, end = decode_json(text, first)
        except UnreadableJSON:
            following = _MARKER.search(text, marker.end())
            end = following.start() if following else len(text)
            calls.append(malformed_call(text[start:end]))
        else:
            calls.append(read_call({"name": name, "arguments": arguments}, text[start:end]))
        marker = _MARKER.search(text, end)
    return tuple(calls)


def format_block(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the two lines of one call, without a newline at the end."""
    return f"{FUNCTION}: {name}\n{ARGS}: {json.dumps(dict(arguments), ensure_ascii=False)}"


KINDS = ("semantic", "episodic")
DONE = "Done"
"""Reply to a chunk that leaves nothing to store."""
TOOL_NAMES = ("new_memory_insert", "memory_update", "memory_delete")
"""Their tools while writing; the prompt describes them."""

RESPONSE_SHARE = 0.8
"""Share of `max_new_tokens` that the prompt names as the limit of a reply."""

_SUFFIX = "_memory"
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_SYSTEM_NAMES = ("core", *(f"{kind}{part}" for kind in KINDS for part in ("", "_shown", "_total")))
_USER_NAMES = ("chunk", "response_limit")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Texts of the system and the user message, with placeholders such as `{{core}}`."""

    system: str
    user: str


SHIPPED_PROMPT = Path(str(resources.files("memalpha"))) / "data" / "mem_alpha_prompt.yaml"
"""Prompt file in our words."""


def check_schema(schema: MemorySchema) -> None:
    """Raise `ConfigError` unless a memory has the kinds that this style can show: core, semantic, episodic."""
    if set(schema.category_names) != set(KINDS) or not schema.core:
        raise ConfigError(
            f"agent.prompt: the style mem-alpha knows a core memory, semantic and episodic entries, not schema "
            f"{schema.describe()}: use memory_schema=mem-alpha, or prompt=full"
        )


@lru_cache(maxsize=8)
def load_prompt(path: Path | None) -> Prompt:
    """Return the prompt of a YAML or JSON file with `system` and `user`; None stands for `SHIPPED_PROMPT`.

    Placeholders of `system`: `{{core}}`, and for semantic and episodic each `{{semantic}}` (lines, or `Empty.`),
    `{{semantic_shown}}` and `{{semantic_total}}` (numbers). Placeholders of `user`: `{{chunk}}`, `{{response_limit}}`.
    The tools are part of the `system` text.

    Raises:
        ConfigError: The file cannot be read, or a text or a placeholder is missing or unknown.
    """
    path = path or SHIPPED_PROMPT
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"agent.prompt_file: {path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"agent.prompt_file: {path} is neither YAML nor JSON: {error}") from error
    if not isinstance(data, Mapping) or set(data) != {"system", "user"}:
        raise ConfigError(f"agent.prompt_file: {path} must hold the texts 'system' and 'user', and nothing else")
    for key, allowed, needed in (("system", _SYSTEM_NAMES, ("core", *KINDS)), ("user", _USER_NAMES, ("chunk",))):
        if not isinstance(data[key], str):
            raise ConfigError(f"agent.prompt_file: {path}: {key}: a text is needed")
        names = _PLACEHOLDER.findall(data[key])
        problems = [
            f"no placeholder {{{{{name}}}}}: there are {', '.join(allowed)}" for name in names if name not in allowed
        ]
        problems += [f"has no {{{{{name}}}}}, so the model cannot see it" for name in needed if name not in names]
        if problems:
            raise ConfigError(f"agent.prompt_file: {path}: {key}: {problems[0]}")
    return Prompt(data["system"], data["user"])


# ------------------------------------------------------------------------------------------------------------- messages


def render_view(core: str, entries: Sequence[ViewEntry]) -> str:
    """Return the memory as blocks of core, semantic and episodic memory, as the system message shows it."""
    texts = {"core": plain_line(core), **{kind: _lines(entries, kind) for kind in KINDS}}
    return "\n\n".join(f"<{name}{_SUFFIX}>\n{text}\n</{name}{_SUFFIX}>" for name, text in texts.items())


def writer_messages(
    observation: Observation, max_new_tokens: int, prompt: Prompt, wishes: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Build system and user message for one chunk.

    A chunk's timestamp stands in brackets before its text, unless the text begins with a bracket: Mem-alpha's own
    chunks begin with a header that holds the time.

    Args:
        observation: The writer's view of the chunk, with `entry_counts`.
        max_new_tokens: Most tokens of a reply; the prompt names 0.8 of it, as theirs does.
        prompt: Texts of the messages.
        wishes: The user's instructions, appended to the system message.
    """
    chunk, text = observation.chunk, plain_text(observation.chunk.render())
    if chunk.timestamp and not text.startswith("["):
        text = f"[{chunk.timestamp}]\n{text}"
    limit = str(int(max_new_tokens * RESPONSE_SHARE))
    values = {"core": plain_line(observation.core), "chunk": text, "response_limit": limit}
    for kind in KINDS:
        visible = sum(entry.category == kind for entry in observation.entries)
        values[kind] = _lines(observation.entries, kind)
        values[f"{kind}_shown"] = str(visible)
        values[f"{kind}_total"] = str(max(observation.entry_counts.get(kind, 0), visible))
    advice = f"Your advice from an earlier attempt:\n{plain_text(observation.advice)}\n\n" if observation.advice else ""
    return (
        {"role": "system", "content": _fill(prompt.system, values) + wishes},
        {"role": "user", "content": advice + _fill(prompt.user, values)},
    )


def _lines(entries: Sequence[ViewEntry], kind: str) -> str:
    shown = [entry for entry in entries if entry.category == kind]
    return "\n".join(f"[{entry.id}] {plain_line(entry.content)}" for entry in shown) or "Empty."


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Replace placeholders in one pass, so that a value may hold text that looks like a placeholder."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


# -------------------------------------------------------------------------------------------------------------- replies


def parse_reply(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a reply as calls of `agent.tools`, in order; `()` if it has none. No text raises."""
    calls = parse_blocks(text) if FUNCTION in text else parse_calls(text)
    return tuple(to_tool_call(named_tool(call, TOOL_NAMES)) for call in calls)


def format_reply(calls: Sequence[ToolCall], category_of: Callable[[str], str | None]) -> str:
    """Return the reply that makes these calls: blocks of the protocol, or `Done` without a call.

    The format has no place for an insert's timestamp and importance, which are dropped.

    Args:
        calls: Calls of `agent.tools`; others keep name and arguments.
        category_of: Returns the category of an id, or None if it is unknown. Updates and deletes of unknown ids name
            the semantic memory; their entry is found by id alone.
    """
    blocks = [format_block(*_from_tool_call(call, category_of)) for call in calls if call.name != "memory_skip"]
    return "\n".join(blocks) or DONE


def to_tool_call(call: ToolCall) -> ToolCall:
    """Return one of their calls as a call of `agent.tools`; every other call unchanged.

    A call whose `memory_type` is missing or unknown keeps its arguments, which the tools refuse.
    """
    arguments = call.arguments
    if call.error or call.name not in TOOL_NAMES:
        return call
    if call.name != "new_memory_insert" and "memory_type" not in arguments and "id" in arguments:
        return call  # our own tool of the same name
    name = {"new_memory_insert": "memory_insert"}.get(call.name, call.name)
    kind = str(arguments.get("memory_type")).removesuffix(_SUFFIX)
    if kind not in ("core", *KINDS):
        return ToolCall(name, {"memory_type": None, **arguments}, raw=call.raw)
    if call.name == "new_memory_insert":
        return ToolCall(name, {"category": kind, **_renamed(arguments, content="content")}, raw=call.raw)
    if kind == "core":
        content = {"content": ""} if call.name == "memory_delete" else _renamed(arguments, new_content="content")
        return ToolCall("core_memory_update", content, raw=call.raw)
    names = {"memory_id": "id"} if call.name == "memory_delete" else {"memory_id": "id", "new_content": "content"}
    values = _renamed(arguments, **names)
    if isinstance(values.get("id"), int):
        values["id"] = str(values["id"])  # an id of digits alone, written without quotes
    return ToolCall(name, values, raw=call.raw)


def _from_tool_call(call: ToolCall, category_of: Callable[[str], str | None]) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of one of our calls as Mem-alpha writes it."""
    arguments = dict(call.arguments)
    if call.name == "core_memory_update":
        if arguments.get("content") == "":
            return "memory_delete", {"memory_type": f"core{_SUFFIX}"}
        return "memory_update", {"memory_type": f"core{_SUFFIX}", **_renamed(arguments, content="new_content")}
    if call.name == "memory_insert" and "category" in arguments:
        kind = {"memory_type": f"{arguments['category']}{_SUFFIX}"}
        return "new_memory_insert", {**kind, **_renamed(arguments, content="content")}
    if call.name in ("memory_update", "memory_delete") and "id" in arguments:
        kind = {"memory_type": f"{category_of(str(arguments['id'])) or KINDS[0]}{_SUFFIX}"}
        return call.name, {**kind, **_renamed(arguments, content="new_content", id="memory_id")}
    return call.name, arguments


def _renamed(arguments: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return the arguments in `names` that are there, under their new names and in the order of `names`."""
    return {new: arguments[old] for old, new in names.items() if old in arguments}
