"""Chats as apps export them, told apart by their content: WhatsApp, ChatGPT, Claude, chat messages.

Of ChatGPT and Claude, `conversations.json` is read: a task for each conversation, with a chunk for each day. Read are
the words of the user and of the assistant, on the branch that the app shows. Left out are hidden and system messages,
tool calls and their results, thoughts, images and attached files. Times are UTC. Neither company publishes the format
and both extend it, so unknown fields and kinds of content are skipped; what is needed must be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK
from memalpha.tasks.formats.files import require_field
from memalpha.tasks.formats.messages import is_messages, load_messages, pack_days
from memalpha.tasks.formats.whatsapp import NO_CHAT, is_whatsapp, load_whatsapp
from memalpha.text_files import read_text
from memalpha.types import Task


def load_chats(path: Path, dates: str | None = None) -> list[Task] | None:
    """Return exported chats, or the chat messages of a `.json` file, as tasks without questions.

    Every turn gets an id, `chunk.turn` from 0, which the evidence of a question can name.

    Args:
        path: The file.
        dates: Order of the dates of a text, "day-first" or "month-first"; None decides over the whole file.

    Returns:
        The tasks; None for a file of another kind.

    Raises:
        DataError: It is such a file and cannot be read; the error names file, and line or field.
    """
    tasks = load_exports(path, dates=dates)
    if tasks is None and path.suffix == ".txt" and path.is_file():
        raise DataError(f"{path}:1: {NO_CHAT}: other texts belong into the chunks of a task file")
    if tasks is None and dates is not None:
        raise DataError(f"{path}: dates belongs to chats exported as text only")
    if tasks is None:
        value = _parse_json(read_text(path)) if path.is_file() else None
        messages = value.get("messages") if isinstance(value, Mapping) else value
        if not is_messages(messages) or "role" not in messages[0]:
            return None
        chunks = load_messages(path)
        if not chunks:
            raise DataError(f"{path}: no message has words of a user or an assistant: there is nothing to read")
        tasks = [Task(id=path.stem, chunks=tuple(chunks), meta={"source": "messages"})]
    return [with_turn_ids(task) for task in tasks]


def load_exports(path: Path, *, dates: str | None = None, size: int = CHUNK) -> list[Task] | None:
    """Return the conversations that WhatsApp, ChatGPT or Claude exported; None for a file of another kind.

    Args:
        path: The file.
        dates: Order of the dates of a text.
        size: Most characters of a chunk.

    Raises:
        DataError: It is such a file and cannot be read, or an archive of such files.
    """
    if not path.is_file():
        return None
    if is_zipfile(path):
        raise DataError(f"{path}: an archive: unpack it and give the path of its conversations.json or .txt")
    text = read_text(path)
    if is_whatsapp(text):
        return [load_whatsapp(path, dates=dates, size=size)]
    value = _parse_json(text)
    return load_assistant_export(value, path, size) if is_assistant_export(value) else None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def with_turn_ids(task: Task) -> Task:
    """Return the task with ids `chunk.turn` for its turns; a task of which a turn has an id stays as it is."""
    if any(turn.id for chunk in task.chunks for turn in chunk.turns):
        return task
    chunks = []
    for chunk in task.chunks:
        turns = [turn.model_copy(update={"id": f"{chunk.index}.{n}"}) for n, turn in enumerate(chunk.turns)]
        chunks.append(chunk.model_copy(update={"turns": tuple(turns)}))
    return task.model_copy(update={"chunks": tuple(chunks)})


_Utterance = tuple[str, str, str | None]

_SPEAKERS = {"human": "user", "assistant": "assistant"}
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")


def is_assistant_export(value: object) -> bool:
    """Return True for parsed JSON that is a conversation of ChatGPT or Claude, or a list of them."""
    items = value if isinstance(value, list) else [value]
    first = next((item for item in items if isinstance(item, Mapping)), {})
    return "mapping" in first or "chat_messages" in first


def load_assistant_export(value: object, path: Path, size: int = CHUNK) -> list[Task]:
    """Return the conversations that hold words as tasks without questions, in the order of the file.

    Args:
        value: The parsed JSON of an export.
        path: Its file, for error messages.
        size: Most characters of a chunk.

    Raises:
        DataError: A field is missing or of another kind; the error names file, conversation and field.
    """
    tasks: dict[str, Task] = {}
    for number, conversation in enumerate(value if isinstance(value, list) else [value]):
        location = f"{path}: [{number}]" if isinstance(value, list) else f"{path}"
        if not isinstance(conversation, Mapping):
            raise DataError(f"{location}: a conversation is an object, not {type(conversation).__name__}")
        if "mapping" in conversation:
            source, title, utterances = "chatgpt", conversation.get("title"), _read_chatgpt(conversation, location)
            id = conversation.get("conversation_id") or conversation.get("id")
            start = _from_unix(conversation.get("create_time"), f"{location}.create_time")
        else:
            source, title, utterances = "claude", conversation.get("name"), _read_claude(conversation, location)
            id = conversation.get("uuid")
            start = _from_iso(conversation.get("created_at"), f"{location}.created_at")
        if not isinstance(id, str) or not id.strip():
            name = "conversation_id" if source == "chatgpt" else "uuid"
            raise DataError(f"{location}.{name}: is missing: every conversation needs an id")
        chunks = pack_days(utterances, timestamp=start, size=size)
        meta = {"source": source, **({"title": title} if isinstance(title, str) and title.strip() else {})}
        if chunks:
            if id in tasks:
                raise DataError(f"{location}: the id {id!r} occurs twice: ids are unique")
            tasks[id] = Task(id=id, chunks=tuple(chunks), meta=meta)
    if not tasks:
        raise DataError(f"{path}: no conversation has words of a user or an assistant: there is nothing to read")
    return list(tasks.values())


def _read_chatgpt(conversation: Mapping[str, Any], location: str) -> Iterator[_Utterance]:
    """Yield the utterances from the root of the tree to `current_node`."""
    nodes = require_field(conversation, "mapping", dict, location)
    id: Any = require_field(conversation, "current_node", str, location)
    path: dict[str, Any] = {}
    where = f"{location}.current_node"
    while id is not None:
        if not isinstance(id, str) or id not in nodes:
            raise DataError(f"{where}: there is no node {id!r} in the mapping")
        if id in path:
            raise DataError(f"{where}: node {id!r} is its own ancestor")
        where = f"{location}.mapping[{id!r}]"
        if not isinstance(nodes[id], Mapping):
            raise DataError(f"{where}: a node is an object, not {type(nodes[id]).__name__}")
        path[id] = nodes[id]
        id, where = nodes[id].get("parent"), f"{where}.parent"
    for id, node in reversed(path.items()):
        message = node.get("message")
        if message is not None:
            yield _read_chatgpt_message(message, f"{location}.mapping[{id!r}].message")


def _read_chatgpt_message(message: Any, location: str) -> _Utterance:
    author = require_field(message, "author", dict, location)
    role = require_field(author, "role", str, f"{location}.author")
    content = require_field(message, "content", dict, location)
    metadata = message.get("metadata") or {}
    is_hidden = isinstance(metadata, Mapping) and metadata.get("is_visually_hidden_from_conversation")
    is_read = (
        role in ("user", "assistant")
        and not is_hidden
        and message.get("recipient") in (None, "all")
        and message.get("channel") in (None, "final")
        and content.get("content_type") in ("text", "multimodal_text")
    )
    if not is_read:
        return "", "", None
    parts = require_field(content, "parts", list, f"{location}.content")
    # A spoken message is an object with the words as `text`; images and files have none.
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    text = "\n".join(text for text in texts if isinstance(text, str) and text.strip())
    timestamp = _from_unix(message.get("create_time"), f"{location}.create_time")
    return role, _CITATION.sub("", text).strip(), timestamp


def _read_claude(conversation: Mapping[str, Any], location: str) -> Iterator[_Utterance]:
    messages = require_field(conversation, "chat_messages", list, location)
    for number in _current_branch(messages, conversation.get("current_leaf_message_uuid")):
        yield _read_claude_message(messages[number], f"{location}.chat_messages[{number}]")


def _current_branch(messages: Sequence[Any], leaf: Any) -> list[int]:
    """Return the indices of the messages from the first to the leaf, by their parents.

    The leaf is the last message unless it is named. Older exports name no parents: they hold one branch, all messages.
    """
    parents = [item.get("parent_message_uuid") for item in messages if isinstance(item, Mapping)]
    if not messages or sum(isinstance(parent, str) for parent in parents) < len(messages):
        return list(range(len(messages)))
    by_id = {message.get("uuid"): index for index, message in enumerate(messages)}
    index: int | None = by_id.get(leaf, len(messages) - 1)
    path: dict[int, None] = {}
    while index is not None and index not in path:
        path[index] = None
        index = by_id.get(parents[index])  # that of the first message is nobody's
    return list(reversed(path))


def _read_claude_message(message: Any, location: str) -> _Utterance:
    sender = require_field(message, "sender", str, location)
    if sender not in _SPEAKERS:
        raise DataError(f"{location}.sender: is {sender!r}: use human or assistant")
    blocks = message.get("content") or []
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise DataError(f"{location}.content: a list of blocks is needed")
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    # `text` repeats the blocks, with notes about those that cannot be shown; old exports have it alone.
    text = "\n".join(text for text in texts if isinstance(text, str) and text.strip())
    if not blocks:
        text = require_field(message, "text", str, location)
    return _SPEAKERS[sender], text.strip(), _from_iso(message.get("created_at"), f"{location}.created_at")


def _from_unix(value: Any, location: str) -> str | None:
    """Return seconds since 1970 as an ISO time in UTC; None for None."""
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        return datetime.fromtimestamp(value, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(f"{location}: {value!r} is no time in seconds since 1970") from error


def _from_iso(value: Any, location: str) -> str | None:
    """Return an ISO time in UTC, to seconds; None for None."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{location}: {value!r} is no ISO 8601 time") from error
    return (time.astimezone(UTC) if time.tzinfo else time).replace(tzinfo=None).isoformat(timespec="seconds")
