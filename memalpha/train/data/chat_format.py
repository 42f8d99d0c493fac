"""A user's chat rows as token ids: JSON Lines, prompts and replies in TRL's formats, by the policy's own template.

A prompt is a text, taken as it is, or messages, which go through the chat template (with tools, if there are any). A
reply is a text or one assistant message, whose tool calls become the text of calls that the agent reads, and ends with
the token that ends an assistant's turn. Nothing is ever cut short: what the model cannot take is refused, and every
error begins with `file:line` and names the field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from memalpha.agent.parsing import format_call, from_openai, parse_calls
from memalpha.errors import DataError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import ToolCall


class _Message(BaseModel):
    """A chat message; what else it holds is the template's."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    function: dict[str, Any]


_MESSAGES = TypeAdapter(list[_Message])
_TOOLS = TypeAdapter(list[_Function])


# ------------------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path) -> list[tuple[str, bytes]]:
    """(file:line, text) of every line that is not blank. Raises `DataError` where there is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    found = [(f"{path}:{number}", line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: holds no line")
    return found


def read_objects(path: Path, keys: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, JSON object) of every line. Raises `DataError` for anything else and for a key not in `keys`."""
    for where, raw in read_lines(path):
        try:
            value = json.loads(raw)
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is text to JSON, to no tokenizer
        except ValueError as error:
            raise DataError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{where}: not a JSON object")
        unknown = [key for key in value if key not in keys]
        if unknown:
            raise DataError(f"{where}: {unknown[0]}: unknown key: known are {', '.join(keys)}")
        yield where, value


# ------------------------------------------------------------------------------------------- messages, prompts, replies


def validate_messages(value: Any, where: str) -> list[dict[str, Any]]:
    """Chat messages as they were given. Raises `DataError` for what is none, naming the message and its field."""
    return _validate(_MESSAGES, value, where)


def validate_tools(value: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The line's `tools`; none where it has none."""
    return _validate(_TOOLS, value["tools"], f"{where}: tools") if value.get("tools") is not None else []


def encode_prompt(
    prompt: Any, tools: Sequence[Mapping[str, Any]], policy: TransformersPolicy, where: str
) -> Sequence[int]:
    """Ids of the field `prompt` of a line: a text as it is, or messages through the chat template."""
    checked = validate_prompt(prompt, tools, where)
    return (
        encode(policy, checked)
        if isinstance(checked, str)
        else render_messages(policy, checked, tools, f"{where}: prompt")
    )


def validate_prompt(prompt: Any, tools: Sequence[Mapping[str, Any]], where: str) -> str | list[dict[str, Any]]:
    """The field `prompt` of a line: a text, or messages. Raises `DataError`."""
    if not isinstance(prompt, str):
        return validate_messages(prompt, f"{where}: prompt")
    if tools:
        raise DataError(f"{where}: tools: they go with messages; a prompt that is a text is taken as it is")
    return prompt


def render_messages(
    policy: TransformersPolicy, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], where: str
) -> Sequence[int]:
    """Ids of messages up to where the assistant speaks. Raises `DataError` where the template refuses them."""
    if not messages:
        return []
    try:
        return policy.render(messages, tools)
    except TemplateError as error:
        raise DataError(f"{where}: the chat template of policy {policy.name!r} refuses it: {error}") from error


def reply_text(value: Any, where: str) -> str:
    """A reply that is given as a text or as one assistant message."""
    if isinstance(value, str):
        return value
    messages = validate_messages(value, where)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise DataError(f"{where}: give a text or one message of the assistant")
    return format_message(messages[0], where)


def format_message(message: Mapping[str, Any], where: str) -> str:
    """What an assistant message says: its content, then its tool calls as the agent's parser reads them."""
    calls = from_openai(message.get("tool_calls") or [])
    if any(call.error for call in calls):
        raise DataError(f"{where}.tool_calls: each is an object with a function of name and arguments")
    return (message.get("content") or "") + "".join(format_call(call.name, call.arguments) for call in calls)


def encode_reply(policy: TransformersPolicy, text: str, where: str) -> tuple[int, ...]:
    """Ids of an assistant's reply and the token that ends its turn.

    Raises `DataError`, beginning with `where`, for an empty reply, for one that holds an end token, and for one whose
    tool calls the parser would not read back from these ids.
    """
    ids = encode(policy, text)
    if not ids:
        raise DataError(f"{where}: the completion is empty: there is nothing to learn from")
    if policy.eos_ids & set(ids):
        raise DataError(f"{where}: the completion holds an end token of policy {policy.name!r}: take it out")
    if _call_tuples(parse_calls(decode(policy, ids))) != _call_tuples(parse_calls(text)):
        raise DataError(
            f"{where}: the tokenizer of policy {policy.name!r} does not give the completion's tool calls back: it "
            "loses characters of them"
        )
    return (*ids, end_of_turn_id(policy))


def end_of_turn_id(policy: TransformersPolicy) -> int:
    """The end token that the chat template writes after an assistant's turn; the tokenizer's where it writes none."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = policy.tokenizer.apply_chat_template(turns, tokenize=False)
    assert isinstance(text, str)
    written = [id for id in encode(policy, text) if id in policy.eos_ids]
    own = policy.tokenizer.eos_token_id
    return written[-1] if written else own if own in policy.eos_ids else min(policy.eos_ids)


def check_room(policy: TransformersPolicy, length: int, where: str) -> None:
    """Raise `DataError` for a row of more tokens than the model takes."""
    if policy.positions is not None and length > policy.positions:
        raise DataError(
            f"{where}: {length} tokens with its prompt, policy {policy.name!r} takes {policy.positions}: shorten it or "
            "leave it out"
        )


def encode(policy: TransformersPolicy, text: str) -> list[int]:
    """Ids of a text, nothing added."""
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert isinstance(ids, list)
    return ids


def decode(policy: TransformersPolicy, ids: Sequence[int]) -> str:
    """The text of ids, special tokens included."""
    text = policy.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def format_validation_error(error: ValidationError) -> str:
    """The first thing that pydantic minds, with its place."""
    item = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
    return f"{place}: {item['msg']}"


def _validate(kind: TypeAdapter[Any], value: Any, where: str) -> list[dict[str, Any]]:
    try:
        return [item.model_dump(exclude_unset=True) for item in kind.validate_python(value)]
    except ValidationError as error:
        raise DataError(f"{where}{format_validation_error(error)}") from error


def _call_tuples(calls: Iterable[ToolCall]) -> list[tuple[str, Any, str | None]]:
    return [(call.name, call.arguments, call.error) for call in calls]
