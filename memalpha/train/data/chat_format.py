"""Encode a user's chat data: JSON Lines, prompts and replies in TRL's formats, with the policy's own template.

A prompt is a text, used as it is, or messages, which go through the chat template (with tools, if there are any). A
reply is a text or one assistant message. Its tool calls become the text of calls that the agent reads, and it ends with
the token that ends an assistant's turn. Nothing is ever cut: a row that the model cannot take is refused. Every error
begins with `file:line` and names the field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from memalpha.agent.parsing import from_openai
from memalpha.agent.replies import format_calls, parse_reply
from memalpha.errors import DataError, PolicyError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.text_files import parse_json, split_json_items
from memalpha.types import ToolCall


class _Message(BaseModel):
    """A chat message; extra fields are for the template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        parts = [part if isinstance(part, Mapping) else {} for part in value]
        if other := [part for part in parts if part.get("type") != "text" or not isinstance(part.get("text"), str)]:
            kind = other[0].get("type")
            raise ValueError(f"a part of the type {kind!r}: only words are learnt, parts of the type 'text'")
        return "\n".join(part["text"] for part in parts)


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    function: dict[str, Any]


_SHOWN = ("role", "name", "content", "tool_calls")
_MESSAGES = TypeAdapter(list[_Message])
_TOOLS = TypeAdapter(list[_Function])


# ------------------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path) -> list[tuple[str, bytes]]:
    """Read the lines that are not blank as (file:line, bytes), or the rows of one JSON list.

    Raises:
        DataError: The file cannot be read or has no such line.
    """
    try:
        lines = split_json_items(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not lines:
        raise DataError(f"{path}: holds no line")
    return lines


def read_objects(path: Path, keys: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file:line, JSON object) for every line.

    Raises:
        DataError: A line is not a JSON object, repeats a key or has one that is not in `keys`.
    """
    for source, raw in read_lines(path):
        value = parse_json(raw, source)
        try:
            json.dumps(value, ensure_ascii=False).encode()  # JSON allows lone surrogates, tokenizers do not
        except ValueError as error:
            raise DataError(f"{source}: not text: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{source}: not a JSON object")
        unknown = [key for key in value if key not in keys]
        if unknown:
            raise DataError(f"{source}: {unknown[0]}: unknown key: known are {', '.join(keys)}")
        yield source, value


# ------------------------------------------------------------------------------------------- messages, prompts, replies


def validate_messages(value: Any, source: str) -> list[dict[str, Any]]:
    """Return chat messages unchanged.

    Raises:
        DataError: The value is not a list of messages; names the message and its field.
    """
    return _validate(_MESSAGES, value, source)


def validate_tools(value: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """Return the line's `tools`; [] without any."""
    return _validate(_TOOLS, value["tools"], f"{source}: tools") if value.get("tools") is not None else []


def validate_prompt(prompt: Any, tools: Sequence[Mapping[str, Any]], source: str) -> str | list[dict[str, Any]]:
    """Return a line's `prompt`: a text or messages.

    Args:
        prompt: Value of the field.
        tools: Tools of the line; only with messages.
        source: file:line for errors.

    Raises:
        DataError: The prompt is neither, or a text comes with tools.
    """
    if not isinstance(prompt, str):
        return validate_messages(prompt, f"{source}: prompt")
    if tools:
        raise DataError(f"{source}: tools: they go with messages; a prompt that is a text is taken as it is")
    return prompt


def render_messages(
    policy: TransformersPolicy, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], source: str
) -> Sequence[int]:
    """Return the token ids of messages, up to where the assistant's reply begins; [] without messages.

    Args:
        policy: Policy whose template is used.
        messages: Chat messages.
        tools: Tools that the template lists.
        source: file:line and field for errors.

    Raises:
        DataError: The template refuses the messages.
    """
    if not messages:
        return []
    try:
        return policy.render(messages, tools)
    except PolicyError as error:
        raise DataError(f"{source}: {error}") from error


def reply_text(value: Any, source: str, form: str = "hermes") -> str:
    """Return the text of a reply, which is a text or one assistant message.

    Args:
        value: Value of the field.
        source: file:line and field for errors.
        form: Form in which the policy writes tool calls (`reply_form`).

    Raises:
        DataError: The value is neither.
    """
    if isinstance(value, str):
        return value
    messages = validate_messages(value, source)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise DataError(f"{source}: give a text or one message of the assistant")
    return format_message(messages[0], source, form)


def format_message(message: Mapping[str, Any], source: str, form: str = "hermes") -> str:
    """Format an assistant message: its content, then its tool calls as the agent's parser reads them.

    Args:
        message: Assistant message, with `tool_calls` or without.
        source: file:line and field for errors.
        form: Form in which the policy writes tool calls (`reply_form`).

    Raises:
        DataError: A tool call is invalid, or another field holds something, which no reply shows.
    """
    others = [name for name, value in message.items() if name not in _SHOWN and value not in (None, "", [], {})]
    if others:
        raise DataError(
            f"{source}.{others[0]}: what is learnt of a reply is its content and tool_calls: write it there (thoughts "
            "into content, in <think> tags), or leave it out"
        )
    calls = from_openai(message.get("tool_calls") or [])
    if any(call.error for call in calls):
        raise DataError(f"{source}.tool_calls: each is an object with a function of name and arguments")
    content = message.get("content") or ""
    return content + format_calls(calls, form) if calls else content


def encode_reply(policy: TransformersPolicy, text: str, source: str) -> tuple[int, ...]:
    """Return the token ids of an assistant's reply in the model's own form, with the token that ends its turn.

    Args:
        policy: Policy whose tokenizer is used.
        text: Reply.
        source: file:line and field for errors.

    Raises:
        DataError: The reply is empty or holds an end token, or its tool calls cannot be parsed back from the ids.
    """
    is_native = policy.form == "native"
    ids = encode(policy, policy.chat.write_reply(text) if is_native else text)
    if not ids:
        raise DataError(f"{source}: the completion is empty: there is nothing to learn from")
    if policy.eos_ids & set(ids):
        raise DataError(f"{source}: the completion holds an end token of policy {policy.name!r}: take it out")
    end = end_of_turn_id(policy)
    reply = decode(policy, [*ids, end] if policy.chat.reply_parser else ids)
    read = policy.chat.read_reply(reply, "", native_calls=is_native)
    forms = ("hermes", policy.reply_form)
    if any(_call_tuples(parse_reply(read, form)) != _call_tuples(parse_reply(text, form)) for form in forms):
        raise DataError(
            f"{source}: the tokenizer of policy {policy.name!r} does not give the completion's tool calls back: it "
            "loses characters of them"
        )
    return (*ids, end)


def end_of_turn_id(policy: TransformersPolicy) -> int:
    """Return the end token that the chat template writes after an assistant's turn, else the tokenizer's."""
    template_ids = [id for id in encode(policy, policy.chat.end_of_turn) if id in policy.eos_ids]
    eos_id: Any = policy.tokenizer.eos_token_id
    return template_ids[-1] if template_ids else eos_id if eos_id in policy.eos_ids else min(policy.eos_ids)


def check_row(policy: TransformersPolicy, ids: Sequence[int], source: str) -> None:
    """Raise `DataError` if a row has more tokens than the model takes, or one that the model does not know.

    Args:
        policy: Policy with its maximum number of positions.
        ids: Prompt and reply.
        source: file:line for the error.
    """
    try:
        policy.check_embedded(ids)
    except PolicyError as error:
        raise DataError(f"{source}: {error}") from error
    if policy.positions is not None and len(ids) > policy.positions:
        raise DataError(
            f"{source}: {len(ids)} tokens with its prompt, policy {policy.name!r} takes {policy.positions}: shorten it "
            "or leave it out"
        )


def encode(policy: TransformersPolicy, text: str) -> list[int]:
    """Return the ids of a text, without special tokens added."""
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert isinstance(ids, list)
    return ids


def decode(policy: TransformersPolicy, ids: Sequence[int]) -> str:
    """Return the text of ids, with special tokens."""
    text = policy.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def format_validation_error(error: ValidationError) -> str:
    """Format the first pydantic error as `<path>: <message>`."""
    first = error.errors()[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{path}: {first['msg'].removeprefix('Value error, ')}"


def _validate(adapter: TypeAdapter[Any], value: Any, source: str) -> list[dict[str, Any]]:
    try:
        return [item.model_dump(exclude_unset=True) for item in adapter.validate_python(value)]
    except ValidationError as error:
        raise DataError(f"{source}{format_validation_error(error)}") from error


def _call_tuples(calls: Iterable[ToolCall]) -> list[tuple[str, Any, str | None]]:
    """Return what must come back; values as text, since some families' forms show no types."""
    return [(call.name, {key: str(value) for key, value in call.arguments.items()}, call.error) for call in calls]
