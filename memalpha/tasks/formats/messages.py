"""Chat messages as chunks of a day each: `[{"role", "content", "name"?, "timestamp"?}]`, as chat APIs take them.

The words of users and assistants are read. Messages of other roles (system, developer, tool, function) are left out. So
are tool calls, tool results, thoughts and media inside a message. The speaker of a turn is the role, or the `name` of a
user.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK, EPOCH, read_time, split_text
from memalpha.tasks.formats.files import open_text, pack_turns, require_field
from memalpha.text_files import NO_TEXT, UNFIT, parse_json, parse_json_or_none, read_text, split_json_items
from memalpha.types import Chunk, SpeakerTurn, is_iso_time, parse_iso_time

Messages = Sequence[Mapping[str, Any]]
Utterance = tuple[str, str, str | None]
"""Speaker, text and ISO timestamp."""

READ_ROLES = ("user", "assistant")
"""Roles whose words are read."""
OTHER_ROLES = ("system", "developer", "tool", "function")
"""Roles whose messages are left out."""
_ROLES = {*READ_ROLES, *OTHER_ROLES, "ai", "bot", "chatbot", "model", "human", "agent"}

HOLDERS = ("messages", "conversations", "conversation", "dialogues", "dialogue", "dialogs", "dialog", "data")
"""Fields of JSON that hold the messages of a conversation, or conversations."""
_SHAREGPT = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "tool"}
"""Roles in the field `from` of ShareGPT's messages."""

_FIELDS = ("role", "content", "name", "timestamp")
# Further fields of the messages that OpenAI's and Anthropic's APIs take or return; none has words of the conversation.
_API_FIELDS = frozenset(
    {"id", "type", "object", "model", "status", "created_at", "metadata", "cache_control", "usage", "stop_reason"}
    | {"stop_sequence", "stop_details", "container", "context_management", "tool_calls", "tool_call_id"}
    | {"function_call", "refusal", "annotations", "audio", "reasoning", "reasoning_content", "phase"}
)
_DOTTED_DATE = re.compile(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})(?!\d)")
_TEXT_BLOCKS = ("text", "input_text", "output_text")
_OTHER_BLOCKS = frozenset(
    {"image_url", "input_audio", "audio", "file", "refusal", "input_image", "input_file", "reasoning"}
    | {"image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"}
    | {"server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result"}
    | {"code_execution_tool_result", "container_upload", "compaction"}
)


class ExportedConversation(NamedTuple):
    """Hold a conversation of an export; reading its utterances counts in `left_out` what is not read."""

    id: str
    meta: dict[str, Any]
    utterances: Iterable[Utterance]
    left_out: Counter[str]
    location: str
    start: str | None = None

    @classmethod
    def of_file(
        cls, path: Path, source: str, utterances: Iterable[Utterance], left_out: Counter[str]
    ) -> ExportedConversation:
        """Return the one conversation of a file or a folder."""
        return cls(path.name if path.is_dir() else path.stem, {"source": source}, utterances, left_out, str(path))


def one_line(name: object) -> str:
    return " ".join(NO_TEXT.sub("\ufffd", str(name)).split())


class SpeakerNames:
    """Name speakers as they were shown, told apart by their ids: `Ana`, `Ana (2)`."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._owners: dict[str, str] = {}
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))

    def name(self, shown: str, id: object, detail: str = "") -> str:
        """Return a speaker's name, told apart from that of somebody with another id.

        Args:
            shown: Name as it was shown.
            id: Id of the speaker; None if it is not known. That of a role, such as "user" or "assistant", is not used.
            detail: Words in the place of the number.
        """
        if id is None or shown.lower() in _ROLES:
            return shown
        key = shown, str(id)
        if key not in self._names:
            labels = chain(
                [shown], (f"{shown} ({mark})" for mark in chain([detail] if detail else [], self._numbers[shown]))
            )
            self._names[key] = next(name for name in labels if self._owners.setdefault(name, key[1]) == key[1])
        return self._names[key]


def is_messages(value: object) -> TypeGuard[Messages]:
    """Return True for a non-empty list or tuple that begins with a mapping."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def chunk_messages(
    messages: Messages,
    *,
    timestamp: str | None = None,
    size: int = CHUNK,
    location: str = "messages",
    first_index: int = 0,
    exact_times: bool = False,
) -> list[Chunk]:
    """Return the turns of chat messages in as few chunks as hold them.

    A chunk holds the messages of one day and has the timestamp of its first one. A message without a timestamp has that
    of the message before it.

    Args:
        messages: the messages, in the order of the conversation.
        timestamp: ISO 8601 date of messages before the first one with a date of its own.
        size: most characters of a chunk.
        location: name of the list that an error message begins with.
        first_index: index of the first chunk.
        exact_times: a chunk holds the messages of one timestamp, so that each entry of a rule gets its message's own.

    Returns:
        The chunks; `[]` if no user or assistant says anything.

    Raises:
        DataError: a message is invalid; the error names its position and field.
    """
    utterances = (parse_message(message, f"{location}[{number}]") for number, message in enumerate(messages))
    chunks = pack_days(utterances, timestamp=timestamp, size=size, exact_times=exact_times)
    return [chunk.model_copy(update={"index": first_index + chunk.index}) for chunk in chunks]


def load_messages(
    path: Path, *, timestamp: str | None = None, size: int = CHUNK, exact_times: bool = False
) -> list[Chunk]:
    """Return the chunks of a file of chat messages, as `chunk_messages` does.

    Args:
        path: JSON Lines with a message a line, or one JSON value: a list of messages, or an object with the list as its
            field `messages`, and a `timestamp` of those without one.
        timestamp: ISO 8601 date of messages without one.
        size: most characters of a chunk.
        exact_times: a chunk holds the messages of one timestamp.

    Raises:
        DataError: the file is no such file, a message is invalid (the error names line and field), or none has words.
    """
    text = read_text(path)
    if path.suffix.lower() == ".jsonl":
        lines = split_json_items(text.encode(), str(path))
        utterances = (parse_message(parse_json(line, place), place) for place, line in lines)
    else:
        value = parse_json(text, str(path))
        messages, own = (value.get("messages"), value.get("timestamp")) if isinstance(value, dict) else (value, None)
        timestamp = parse_timestamp(own, f"{path}: timestamp") or timestamp
        if not isinstance(messages, list):
            raise DataError(f'{path}: a list of messages is needed, or {{"messages": [...]}}')
        utterances = (parse_message(message, f"{path}: messages[{n}]") for n, message in enumerate(messages))
    if chunks := pack_days(utterances, timestamp=timestamp, size=size, exact_times=exact_times):
        return chunks
    raise DataError(f"{path}: no message has words of a user or an assistant: there is nothing to read")


def _is_message(value: Any) -> bool:
    """Return True for an object with a role and `content`, or with ShareGPT's `from` and `value`."""
    role = value.get("role", value.get("from")) if isinstance(value, Mapping) else None
    return role in (*READ_ROLES, *OTHER_ROLES, *_SHAREGPT) and ("content" in value or "value" in value)


def holds_conversations(value: object) -> bool:
    """Return True for messages, for an object with messages in a field of `HOLDERS`, and for lists of either."""
    if isinstance(value, list):
        return bool(value) and (_is_message(value[0]) or holds_conversations(value[0]))
    if not isinstance(value, Mapping) or "chunks" in value:
        return False
    return any(holds_conversations(value.get(field)) for field in HOLDERS)


def iter_conversations(value: Any, location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and fields of each conversation that a JSON value holds, its list of messages as `messages`.

    Raises `DataError` for what is no conversation, and for a time, a list or an object beside several.
    """
    if _is_chat(value):
        yield location, {"messages": value}
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from iter_conversations(item, f"{location}[{number}]")
    else:
        others = {**value} if isinstance(value, Mapping) else {}
        field = next((name for name in HOLDERS if isinstance(others.get(name), list | Mapping)), "messages")
        items = require_field(others, field, (list, Mapping), location)
        del others[field]
        if field == "messages" or _is_chat(items):
            yield location, {**others, "messages": items}
        elif unread := [name for name in others if name == "timestamp" or isinstance(others[name], list | Mapping)]:
            raise DataError(f"{location}.{unread[0]}: is not read beside conversations: take it out")
        else:
            yield from iter_conversations(items, f"{location}.{field}")


def _is_chat(value: object) -> bool:
    """Return True for a list that is empty or begins with an object without a field of `HOLDERS`."""
    return value == [] or (is_messages(value) and value[0].keys().isdisjoint(HOLDERS))


def is_message_file(path: Path) -> bool:
    """Return True for no items, or if the first is a message: an object with `role` or `content`, not `chunks`."""
    try:
        if path.suffix.lower() == ".jsonl":
            with open_text(path) as file:
                first = parse_json_or_none(next((line for line in file if line.strip()), ""))
        else:
            value = parse_json_or_none(read_text(path))
            messages = value.get("messages") if isinstance(value, dict) else value
            if messages == []:
                return True
            first = messages[0] if is_messages(messages) else None
    except (DataError, UnicodeError):  # a pipe, or no text
        return False
    has_field = isinstance(first, dict) and ("role" in first or "content" in first) and "chunks" not in first
    return has_field or _is_message(first)


def pack_days(
    utterances: Iterable[Utterance], *, timestamp: str | None = None, size: int = CHUNK, exact_times: bool = False
) -> list[Chunk]:
    """Pack utterances into as few chunks as hold them; a chunk holds those of one day.

    Args:
        utterances: Speaker, text and ISO timestamp, in the order of the conversation. An utterance without a timestamp
            has that of the one before it. One without speaker or text is left out, and its time where another follows.
        timestamp: ISO 8601 date of utterances before the first one with a date of its own.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp instead.

    Returns:
        The chunks, each with the timestamp of its first utterance.
    """

    def moment_of(timestamp: str) -> date | str:
        return timestamp if exact_times else parse_iso_time(timestamp).date()

    days: list[tuple[str | None, list[SpeakerTurn]]] = []
    is_of_notice = False
    for speaker, text, own_timestamp in utterances:
        has_words = bool(speaker and text.strip())
        is_open = timestamp is None or is_of_notice
        if own_timestamp is not None and (is_open or moment_of(own_timestamp) != moment_of(timestamp or "")):
            timestamp, is_of_notice = own_timestamp, not has_words
        if not has_words:
            continue
        is_of_notice = False
        if not days or days[-1][0] != timestamp:
            days.append((timestamp, []))
        pieces = split_text(text, max(size // 2, size - len(speaker) - 3))
        days[-1][1].extend(SpeakerTurn(speaker=speaker, text=piece) for piece in pieces)
    chunks = [chunk for day, turns in days for chunk in pack_turns(turns, max(size // 4, 1), day)]
    return [chunk.model_copy(update={"index": index}) for index, chunk in enumerate(chunks)]


def parse_message(message: Any, location: str) -> Utterance:
    """Return speaker, text and timestamp of a message; the speaker is "" if the role is not read.

    Raises `DataError` naming location and field if the message is invalid.
    """
    if not isinstance(message, Mapping):
        raise DataError(f"{location}: a message is an object with 'role' and 'content', not {type(message).__name__}")
    if message.keys() >= {"from", "value"}:
        others = {field: value for field, value in message.items() if field not in ("from", "value")}
        message = {"role": _SHAREGPT.get(str(message["from"]), message["from"]), "content": message["value"], **others}
    for field in message:
        if field not in _FIELDS and field not in _API_FIELDS:
            raise DataError(f"{location}.{field}: no field of a message: use {', '.join(_FIELDS)}")
    role = message.get("role")
    if role not in READ_ROLES and role not in OTHER_ROLES:
        problem = "is missing" if role is None else f"is {role!r}"
        raise DataError(f"{location}.role: {problem}: use {', '.join((*READ_ROLES, *OTHER_ROLES))}")
    name, timestamp = message.get("name"), message.get("timestamp")
    if name is not None and not (isinstance(name, str) and name.strip() and "\n" not in name):
        raise DataError(f"{location}.name: a name on one line is needed, not {name!r}")
    field = "timestamp" if timestamp is not None else "created_at"
    timestamp = parse_timestamp(message.get(field), f"{location}.{field}")
    if role == "user" and name and name.strip().lower() in (*READ_ROLES[1:], *OTHER_ROLES):
        raise DataError(f"{location}.name: {name!r} is a role: a user needs another name")
    if "content" not in message and role != "assistant":  # an assistant may have only called tools
        raise DataError(f"{location}.content: is missing: a text or a list of content blocks is needed")
    text = _parse_content(message.get("content"), f"{location}.content", is_optional=role == "assistant")
    if role not in READ_ROLES:
        return "", "", timestamp
    if NO_TEXT.search(text):
        raise DataError(f"{location}.content: {UNFIT}")
    return (name.strip() if role == "user" and name else role), text, timestamp


def parse_timestamp(value: object, location: str) -> str | None:
    """Return a time as ISO 8601; None for None or an empty text.

    Other forms are read if only one reading is possible: `EPOCH`, years first, names of months, and the day first with
    dots. Raises `DataError` for the others.
    """
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    is_iso = is_iso_time(text) and not EPOCH.fullmatch(text)  # milliseconds may read as a day of the year 1703
    time = text if is_iso else read_time(_DOTTED_DATE.sub(r"\3-\2-\1", text))
    if time is None:
        raise DataError(f"{location}: {value!r} is no ISO 8601 date or time (2024-05-01T10:30)")
    return time


def _parse_content(content: Any, location: str, *, is_optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and is_optional:
        return ""
    if not isinstance(content, list | tuple):
        raise DataError(f"{location}: a text or a list of content blocks is needed, not {type(content).__name__}")
    texts = []
    for number, block in enumerate(content):
        block_location = f"{location}[{number}]"
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, Mapping):
            raise DataError(f"{block_location}: a content block is an object with 'type', not {type(block).__name__}")
        kind = block.get("type")
        if kind in _TEXT_BLOCKS:
            text = block.get("text")
            if not isinstance(text, str):
                raise DataError(f"{block_location}.text: a text is needed, not {type(text).__name__}")
            texts.append(text)
        elif not isinstance(kind, str) or kind not in _OTHER_BLOCKS:
            problem = "is missing" if kind is None else f"{kind!r} is unknown"
            raise DataError(f"{block_location}.type: {problem}: a block of words has the type 'text'")
    return "\n".join(text for text in texts if text.strip())
