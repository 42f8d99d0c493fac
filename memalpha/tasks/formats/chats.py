"""Chats as chunks of a day each: chat messages, and exports of six apps, told apart by content.

**Chat messages** are `[{"role", "content", "name"?, "timestamp"?}]`, as chat APIs take and return them. The words of
users and assistants are read. Messages of other roles (system, developer, tool, function) are left out. So are tool
calls, tool results, thoughts and media inside a message. The speaker of a turn is the role, or the `name` of a user.

Of **ChatGPT and Claude**, `conversations.json` is read: a task for each conversation. Read are the words of the user
and of the assistant, on the branch that the app shows. Left out are hidden and system messages, tool calls and their
results, thoughts, images and attached files. Times are UTC. Neither company publishes the format and both extend it, so
unknown fields and kinds of content are skipped; what is needed must be there. No store holds a NUL or half of an emoji:
each becomes U+FFFD.

Of **Telegram** (`result.json`, "machine-readable JSON", of one chat or of all) and **Discord** (the JSON that
DiscordChatExporter writes) the messages with words are read. A Slack export is refused with a word on converting it.

**WhatsApp** on a phone writes two forms: `[24/05/2024, 21:05:09] Ana: text` (iOS) and `24/05/2024, 21:05 - Ana: text`
(Android). Order, separators, seconds and the 12-hour clock follow the phone's language. A line without such a head
continues the message before it. Left out are lines of the app (no name, or text behind a U+200E) and placeholders of
media. Whether the day or the month comes first is decided over the whole file: by a number above 12, or by the order of
the messages. If both readings fit, the file is refused, and `dates=` says which holds.

What an export loses is counted in `Task.meta["left_out"]`: media, deleted messages, notices of WhatsApp, calls of
tools, and edited branches, which are replies and questions that were replaced by others. WhatsApp names media, deleted
and edited messages in the phone's language. Nine languages are known; on an iPhone the others count as notices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK, split_text
from memalpha.tasks.formats.files import open_text, pack_turns, require_field
from memalpha.text_files import parse_json, parse_json_or_none, read_text, split_json_items
from memalpha.types import Chunk, SpeakerTurn, Task, is_iso_time, parse_iso_time

_AS_MESSAGES = (
    'write its messages as a list: [{"role": "user", "name": "Ana", "content": "Hi", "timestamp": "2024-05-01T10:30"}]'
)
_SUFFIXES = (".txt", ".json", ".zip")
"""Endings of files in a folder of chats; an archive is refused with a word on unpacking it."""


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
    tasks = _load_chats(path, dates)
    if tasks is None and path.suffix.lower() == ".txt" and path.is_file():
        raise DataError(f"{path}:1: {NO_CHAT}: {OTHER_TEXTS}" if read_text(path).strip() else f"{path}: is empty")
    return tasks


def _load_chats(path: Path, dates: str | None) -> list[Task] | None:
    """Return what `load_chats` does, and None for a text of another kind."""
    tasks = load_exports(path, dates=dates)
    if tasks is None and path.suffix.lower() == ".txt":
        return None
    if tasks is None and dates is not None:
        raise DataError(f"{path}: dates belongs to chats exported as text only")
    if tasks is None:
        value = parse_json_or_none(read_text(path)) if path.is_file() else None
        messages = value.get("messages") if isinstance(value, Mapping) else value
        if not is_messages(messages) or "role" not in messages[0]:
            return None
        chunks = load_messages(path)
        if not chunks:
            raise DataError(f"{path}: no message has words of a user or an assistant: there is nothing to read")
        tasks = [Task(id=path.stem, chunks=tuple(chunks), meta={"source": "messages"})]
    return [with_turn_ids(task) for task in tasks]


def count_left_out(tasks: Iterable[Task]) -> dict[str, int]:
    """Sum what the exports of tasks lost, by kind, from `meta["left_out"]`."""
    total = Counter[str]()
    for task in tasks:
        counts = task.meta.get("left_out")
        for kind, count in counts.items() if isinstance(counts, Mapping) else ():
            total[str(kind)] += count if isinstance(count, int) else 0
    return dict(+total)


def _left_out_meta(counts: Counter[str]) -> dict[str, Any]:
    return {"left_out": dict(+counts)} if +counts else {}


def is_chat_folder(path: Path) -> bool:
    """Return True for a folder that holds texts, JSON files or archives, and no tables of a task file."""
    if not path.is_dir() or any((path / name).exists() for name in ("questions.csv", "chunks.csv")):
        return False
    return any(file.suffix.lower() in _SUFFIXES for file in _visible_files(path))


def load_chat_folder(path: Path, dates: str | None = None) -> list[Task]:
    """Return the chats of a folder, file by file in the order of their names.

    Ids come from the names of the files; conversations of ChatGPT or Claude have their own. Hidden files are skipped.

    Args:
        path: The folder.
        dates: Order of the dates of texts, but for those in which only the other one makes dates.

    Raises:
        DataError: A file is no chat or cannot be read, or two conversations have the same id.
    """
    files = _visible_files(path)
    if dates is not None and not any(file.suffix.lower() == ".txt" for file in files):
        raise DataError(f"{path}: dates belongs to chats exported as text, and the folder has none")
    file_of: dict[str, Path] = {}
    tasks: list[Task] = []
    for file in files:
        is_text, chats = file.suffix.lower() == ".txt", None
        if file.is_file() and file.suffix.lower() in _SUFFIXES:
            try:
                chats = _load_chats(file, dates if is_text else None)
            except DataError:  # phones differ in the order of dates: it gives way if it makes none here
                if dates is None or not is_text:
                    raise
                with suppress(DataError):  # the first error names the order that was asked for
                    chats = _load_chats(file, None)
                if chats is None:
                    raise
        if chats is None:
            raise DataError(
                f"{path} is a folder without a questions.csv, where every file is an exported chat: {file} is none: "
                "move it to another folder"
            )
        for task in chats:
            if task.id in file_of:
                other = file_of[task.id].name
                advice = "rename it" if task.id == file.stem else "leave it out of one of them"
                raise DataError(f"{file}: the id {task.id!r} is that of a chat in {other} too: {advice}")
            file_of[task.id] = file
        tasks += chats
    return tasks


def _visible_files(path: Path) -> list[Path]:
    """Return what a folder holds, hidden files aside, in the order of names."""
    try:
        return sorted(file for file in path.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def load_exports(
    path: Path, *, dates: str | None = None, size: int = CHUNK, exact_times: bool = False
) -> list[Task] | None:
    """Return the conversations that an app exported; None for a file of another kind.

    Args:
        path: The file.
        dates: Order of the dates of a text.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp, not of a day.

    Raises:
        DataError: It is such a file and cannot be read, or an archive of such files.
    """
    if not path.is_file():
        return None
    text = read_text(path)
    first_line = next((line for line in text.split("\n") if line.strip()), "")
    if _match_head(first_line) is not None:
        return [_read_whatsapp(text, path, dates, size, exact_times)]
    value = parse_json_or_none(text)
    items = value if isinstance(value, list) else [value]
    first = next((item for item in items if isinstance(item, Mapping)), {})
    if "mapping" in first or "chat_messages" in first:
        return load_assistant_export(value, path, size, exact_times=exact_times)
    if "ts" in first and "user" in first:
        raise DataError(f"{path}: a day of a Slack export, which names its people by ids: {_AS_MESSAGES}")
    if "conversations" in first and "chunks" not in first:
        raise DataError(f"{path}: conversations in the form of ShareGPT: {_AS_MESSAGES}")
    if isinstance(value, Mapping) and (isinstance(value.get("chats"), Mapping) or is_messenger_export(value)):
        return load_messenger_export(value, path, size, exact_times=exact_times)
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


# ----------------------------------------------------------------------------------------------------- ChatGPT, Claude

_Utterance = tuple[str, str, str | None]

_SPEAKERS = {"human": "user", "assistant": "assistant"}
_WORDS = ("text", "voice_note")
"""Types of Claude's blocks that hold words of the conversation: written or spoken."""
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def load_assistant_export(value: object, path: Path, size: int = CHUNK, *, exact_times: bool = False) -> list[Task]:
    """Return the conversations that hold words as tasks without questions, in the order of the file.

    Args:
        value: The parsed JSON of an export.
        path: Its file, for error messages.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp, not of a day.

    Raises:
        DataError: A field is missing or of another kind; the error names file, conversation and field.
    """
    tasks: dict[str, Task] = {}
    for number, conversation in enumerate(value if isinstance(value, list) else [value]):
        location = f"{path}: [{number}]" if isinstance(value, list) else f"{path}"
        if not isinstance(conversation, Mapping):
            raise DataError(f"{location}: a conversation is an object, not {type(conversation).__name__}")
        left_out = Counter[str]()
        if "mapping" in conversation:
            source, title = "chatgpt", conversation.get("title")
            utterances = _read_chatgpt(conversation, location, left_out)
            id = conversation.get("conversation_id") or conversation.get("id")
            start = _from_unix(conversation.get("create_time"), f"{location}.create_time")
        else:
            source, title = "claude", conversation.get("name")
            utterances = _read_claude(conversation, location, left_out)
            id = conversation.get("uuid")
            start = _from_iso(conversation.get("created_at"), f"{location}.created_at")
        if not isinstance(id, str) or not id.strip():
            name = "conversation_id" if source == "chatgpt" else "uuid"
            raise DataError(f"{location}.{name}: is missing: every conversation needs an id")
        texts = ((speaker, _NO_TEXT.sub("\ufffd", text), time) for speaker, text, time in utterances)
        chunks = pack_days(texts, timestamp=start, size=size, exact_times=exact_times)
        meta: dict[str, Any] = {"source": source}
        meta |= {"title": _NO_TEXT.sub("\ufffd", title)} if isinstance(title, str) and title.strip() else {}
        meta |= _left_out_meta(left_out)
        if chunks:
            if id in tasks:
                raise DataError(f"{location}: the id {id!r} occurs twice: ids are unique")
            tasks[id] = Task(id=id, chunks=tuple(chunks), meta=meta)
    if not tasks:
        raise DataError(f"{path}: no conversation has words of a user or an assistant: there is nothing to read")
    return list(tasks.values())


def is_messenger_export(value: Mapping[str, Any]) -> bool:
    """Return True for a chat of Telegram or Discord: messages with a date and an author instead of a role."""
    items = value.get("messages")
    first = items[0] if isinstance(items, list) and items and isinstance(items[0], Mapping) else {}
    return "role" not in first and (first.keys() > {"date", "text"} or first.keys() > {"author", "content"})


def load_messenger_export(
    value: Mapping[str, Any], path: Path, size: int = CHUNK, *, exact_times: bool = False
) -> list[Task]:
    """Return the chats of Telegram or Discord that hold words as tasks without questions.

    Args:
        value: The parsed JSON: a chat, or all chats of Telegram.
        path: Its file, for error messages.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp, not of a day.

    Raises:
        DataError: A field is missing or of another kind; the error names file, message and field.
    """
    every = value.get("chats")
    chats = require_field(every, "list", list, f"{path}: chats") if every is not None else [value]
    tasks = []
    for index, chat in enumerate(chats):
        where = f"{path}: " + (f"chats.list[{index}]." if every is not None else "")
        left_out, messages, located = Counter[str](), [], enumerate(require_field(chat, "messages", list, where))
        for number, message in located:
            place = f"{where}messages[{number}]"
            if not isinstance(message, Mapping):
                raise DataError(f"{place}: a message is an object, not {type(message).__name__}")
            author = require_field(message, "author", dict, place) if "author" in message else {}
            text = message.get("content" if author else "text")
            parts = text if isinstance(text, list) else [text]  # Telegram's links, names and bold words are objects
            text = "".join(
                part if isinstance(part, str) else require_field(part, "text", str, place) for part in parts if part
            )
            kind = "notices" if message.get("type") not in ("message", "Default", "Reply") else "media"
            if kind == "notices" or not text.strip():
                left_out[kind] += 1
                continue
            name = author.get("nickname") or author.get("name") or message.get("from") or "Deleted account"
            date = message.get("timestamp" if author else "date")
            messages.append({"role": "user", "name": " ".join(str(name).split()), "content": text, "timestamp": date})
        chunks = chunk_messages(messages, size=size, location=f"{where}messages", exact_times=exact_times)
        id = path.stem if every is None else f"{chat.get('name') or 'chat'}-{chat.get('id', index)}"
        source = "telegram" if "guild" not in chat else "discord"
        tasks += (
            [Task(id=id, chunks=tuple(chunks), meta={"source": source} | _left_out_meta(left_out))] if chunks else []
        )
    if not tasks:
        raise DataError(f"{path}: no message has words: there is nothing to read")
    return tasks


def _read_chatgpt(conversation: Mapping[str, Any], location: str, left_out: Counter[str]) -> Iterator[_Utterance]:
    """Yield the utterances from the root of the tree to the leaf that is shown; count the others in `left_out`."""
    nodes = require_field(conversation, "mapping", dict, location)
    if not nodes and conversation.get("current_node") is None:  # nothing was said
        return
    id: Any = _shown_leaf(conversation.get("current_node"), nodes, location)
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
    left_out["edited branches"] += sum(
        isinstance(node, Mapping) and node.get("parent") in path and id not in path for id, node in nodes.items()
    )
    for id, node in reversed(path.items()):
        if (message := node.get("message")) is None:
            continue
        where = f"{location}.mapping[{id!r}].message"
        author = require_field(message, "author", dict, where)
        role = require_field(author, "role", str, f"{where}.author")
        content = require_field(message, "content", dict, where)
        metadata = message.get("metadata") or {}
        left_out["tool calls"] += role == "assistant" and message.get("recipient") not in (None, "all")
        is_hidden = isinstance(metadata, Mapping) and metadata.get("is_visually_hidden_from_conversation")
        if (
            role in ("user", "assistant")
            and not is_hidden
            and message.get("recipient") in (None, "all")
            and message.get("channel") in (None, "final")
            and content.get("content_type") in ("text", "multimodal_text")
        ):
            parts = require_field(content, "parts", list, f"{where}.content")
            # A spoken message is an object with the words as `text`; images and files have none.
            texts = [
                part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)
            ]
            files = metadata.get("attachments") if isinstance(metadata, Mapping) else None
            # An uploaded image is a part and an attachment.
            media = sum(isinstance(part, dict) and not part.get("text") for part in parts)
            left_out["media"] += max(media, len(files) if isinstance(files, list) else 0)
            time = _from_unix(message.get("create_time"), f"{where}.create_time")
            yield role, _CITATION.sub("", _join_lines(texts)).strip(), time


def _shown_leaf(current_node: object, nodes: Mapping[str, Any], location: str) -> str:
    """Return `current_node`, or the latest leaf of an export that names none of its nodes.

    Raises `DataError` if no single leaf is the latest.
    """
    if isinstance(current_node, str) and current_node in nodes:
        return current_node
    nodes = {id: node for id, node in nodes.items() if isinstance(node, Mapping)}
    parents = {parent for node in nodes.values() if isinstance(parent := node.get("parent"), str)}
    times: dict[str, float] = {}
    for id in nodes.keys() - parents:
        message = nodes[id].get("message")
        time = message.get("create_time") if isinstance(message, Mapping) else None
        times |= {id: time} if isinstance(time, int | float) else {}
    last = max(times.values(), default=None)
    latest = [id for id, time in times.items() if time == last]
    if len(latest) == 1:
        return latest[0]
    raise DataError(f"{location}.current_node: there is no node {current_node!r} in the mapping, and no latest leaf")


def _read_claude(conversation: Mapping[str, Any], location: str, left_out: Counter[str]) -> Iterator[_Utterance]:
    """Yield the utterances from the first to the leaf, by their parents; count the others in `left_out`.

    The leaf is the last message unless it is named. Older exports name no parents: they hold one branch, all messages.
    """
    messages = require_field(conversation, "chat_messages", list, location)
    parents = [item.get("parent_message_uuid") for item in messages if isinstance(item, Mapping)]
    branch = dict.fromkeys(range(len(messages)))
    if messages and sum(isinstance(parent, str) for parent in parents) == len(messages):
        by_id = {message.get("uuid"): index for index, message in enumerate(messages)}
        index: int | None = by_id.get(conversation.get("current_leaf_message_uuid"), len(messages) - 1)
        path: dict[int, None] = {}
        while index is not None and index not in path:
            path[index] = None
            index = by_id.get(parents[index])  # that of the first message is nobody's
        branch = dict.fromkeys(reversed(path))
        # A message off the branch begins another one if what it answers is on the branch, or nothing is before it.
        before = {None, *branch}
        left_out["edited branches"] += sum(
            by_id.get(parent) in before and n not in branch for n, parent in enumerate(parents)
        )
    for number in branch:
        message, where = messages[number], f"{location}.chat_messages[{number}]"
        sender = require_field(message, "sender", str, where)
        if sender not in _SPEAKERS:
            raise DataError(f"{where}.sender: is {sender!r}: use human or assistant")
        blocks = message.get("content") or []
        if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
            raise DataError(f"{where}.content: a list of blocks is needed")
        left_out["tool calls"] += sum(block.get("type") == "tool_use" for block in blocks)
        for name in ("attachments", "files"):
            left_out["media"] += len(message[name]) if isinstance(message.get(name), list) else 0
        # `text` repeats the blocks, with notes about those that cannot be shown; old exports have it alone.
        text = _join_lines([block.get("text") for block in blocks if block.get("type") in _WORDS])
        if not blocks:
            text = require_field(message, "text", str, where)
        yield _SPEAKERS[sender], text.strip(), _from_iso(message.get("created_at"), f"{where}.created_at")


def _join_lines(texts: Iterable[Any]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text.strip())


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
        time = parse_iso_time(value)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{location}: {value!r} is no ISO 8601 time") from error
    return (time.astimezone(UTC) if time.tzinfo else time).replace(tzinfo=None).isoformat(timespec="seconds")


# ------------------------------------------------------------------------------------------------------- chat messages

Messages = Sequence[Mapping[str, Any]]

READ_ROLES = ("user", "assistant")
"""Roles whose words are read."""
OTHER_ROLES = ("system", "developer", "tool", "function")
"""Roles whose messages are left out."""

_FIELDS = ("role", "content", "name", "timestamp")
# Further fields of the messages that OpenAI's and Anthropic's APIs take or return; none has words of the conversation.
_API_FIELDS = frozenset(
    {"id", "type", "object", "model", "status", "created_at", "metadata", "cache_control", "usage", "stop_reason"}
    | {"stop_sequence", "stop_details", "container", "context_management", "tool_calls", "tool_call_id"}
    | {"function_call", "refusal", "annotations", "audio", "reasoning", "reasoning_content", "phase"}
)
_TEXT_BLOCKS = ("text", "input_text", "output_text")
_OTHER_BLOCKS = frozenset(
    {"image_url", "input_audio", "audio", "file", "refusal", "input_image", "input_file", "reasoning"}
    | {"image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"}
    | {"server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result"}
    | {"code_execution_tool_result", "container_upload", "compaction"}
)


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
    located = ((f"{location}[{number}]", message) for number, message in enumerate(messages))
    return _pack(located, timestamp, size, first_index, exact_times)


def load_messages(
    path: Path, *, timestamp: str | None = None, size: int = CHUNK, exact_times: bool = False
) -> list[Chunk]:
    """Return the chunks of a file of chat messages, as `chunk_messages` does.

    Args:
        path: JSON Lines with a message a line, or one JSON value: a list of messages, or an object with the list as its
            field `messages`.
        timestamp: ISO 8601 date of messages without one.
        size: most characters of a chunk.
        exact_times: a chunk holds the messages of one timestamp.

    Raises:
        DataError: the file is no such file, or a message is invalid; the error names line and field.
    """
    text = read_text(path)
    if path.suffix == ".jsonl":
        lines = split_json_items(text.encode(), str(path))
        return _pack(((place, parse_json(line, place)) for place, line in lines), timestamp, size, 0, exact_times)
    value = parse_json(text, str(path))
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise DataError(f'{path}: a list of messages is needed, or {{"messages": [...]}}')
    location = f"{path}: messages"
    return chunk_messages(messages, timestamp=timestamp, size=size, location=location, exact_times=exact_times)


def is_message_file(path: Path) -> bool:
    """Return True if the first JSON line of a file is a chat message: an object with `role` and without `chunks`."""
    try:
        with open_text(path) as file:
            value = parse_json_or_none(next((line for line in file if line.strip()), ""))
    except (DataError, UnicodeError):  # a pipe, or no text
        return False
    return isinstance(value, dict) and "role" in value and "chunks" not in value


def _pack(
    messages: Iterable[tuple[str, Any]], timestamp: str | None, size: int, first_index: int, exact_times: bool
) -> list[Chunk]:
    utterances = (_parse_message(message, location) for location, message in messages)
    chunks = pack_days(utterances, timestamp=timestamp, size=size, exact_times=exact_times)
    return [chunk.model_copy(update={"index": index}) for index, chunk in enumerate(chunks, first_index)]


def pack_days(
    utterances: Iterable[tuple[str, str, str | None]],
    *,
    timestamp: str | None = None,
    size: int = CHUNK,
    exact_times: bool = False,
) -> list[Chunk]:
    """Pack utterances into as few chunks as hold them; a chunk holds those of one day.

    Args:
        utterances: Speaker, text and ISO timestamp, in the order of the conversation. An utterance without a timestamp
            has that of the one before it; one without speaker or text is left out.
        timestamp: ISO 8601 date of utterances before the first one with a date of its own.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp instead.

    Returns:
        The chunks, each with the timestamp of its first utterance.
    """

    def moment_of(timestamp: str) -> date | str:
        return timestamp if exact_times else parse_iso_time(timestamp).date()

    days: list[tuple[str | None, list[SpeakerTurn]]] = []
    for speaker, text, own_timestamp in utterances:
        if own_timestamp is not None and (timestamp is None or moment_of(own_timestamp) != moment_of(timestamp)):
            timestamp = own_timestamp
        if not speaker or not text.strip():
            continue
        if not days or days[-1][0] != timestamp:
            days.append((timestamp, []))
        pieces = split_text(text, max(size // 2, size - len(speaker) - 3))
        days[-1][1].extend(SpeakerTurn(speaker=speaker, text=piece) for piece in pieces)
    return [
        chunk.model_copy(update={"timestamp": day_timestamp})
        for day_timestamp, turns in days
        for chunk in pack_turns(turns, max(size // 4, 1))
    ]


def _parse_message(message: Any, location: str) -> tuple[str, str, str | None]:
    """Return speaker, text and timestamp of a message; the speaker is "" if the role is not read."""
    if not isinstance(message, Mapping):
        raise DataError(f"{location}: a message is an object with 'role' and 'content', not {type(message).__name__}")
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
    if timestamp is not None and not (isinstance(timestamp, str) and is_iso_time(timestamp)):
        raise DataError(f"{location}.timestamp: {timestamp!r} is no ISO 8601 date or time (2024-05-01T10:30)")
    if role == "user" and name and name.strip().lower() in (*READ_ROLES[1:], *OTHER_ROLES):
        raise DataError(f"{location}.name: {name!r} is a role: a user needs another name")
    if "content" not in message and role != "assistant":  # an assistant may have only called tools
        raise DataError(f"{location}.content: is missing: a text or a list of content blocks is needed")
    text = _parse_content(message.get("content"), f"{location}.content", is_optional=role == "assistant")
    if role not in READ_ROLES:
        return "", "", timestamp
    if "\0" in text:
        raise DataError(f"{location}.content: holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{location}.content: holds half of a surrogate pair, which is not text") from error
    return (name.strip() if role == "user" and name else role), text, timestamp


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
            texts.append(block)
            continue
        if not isinstance(block, Mapping):
            raise DataError(f"{block_location}: a content block is an object with 'type', not {type(block).__name__}")
        kind = block.get("type")
        if kind in _TEXT_BLOCKS:
            text = block.get("text")
            if not isinstance(text, str):
                raise DataError(f"{block_location}.text: a text is needed, not {type(text).__name__}")
            texts.append(text)
        elif kind not in _OTHER_BLOCKS:
            problem = "is missing" if kind is None else f"{kind!r} is unknown"
            raise DataError(f"{block_location}.type: {problem}: a block of words has the type 'text'")
    return "\n".join(text for text in texts if text.strip())


# ------------------------------------------------------------------------------------------------------------ WhatsApp

DATE_ORDERS = ("day-first", "month-first")
_FIRST_YEAR = 2009  # WhatsApp's: an earlier one is a day (18-05-03), or counts by another calendar (1403)
NO_CHAT = "no message of a chat export, such as '[24/05/2024, 21:05:09] Ana: text'"
OTHER_TEXTS = (
    """other texts belong into a task file, a line each: {"id": "diary", "chunks": [{"text": "..."}]} (.jsonl)"""
)

_MARKS = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACES = re.compile("[\u00a0\u2009\u202f]")
_MOMENT = (
    r"(?P<first>\d{1,4})(?P<separator>[./-]) ?(?P<second>\d{1,2})(?P=separator) ?(?P<third>\d{1,4})\.?"
    r"(?: \u0433\.| à)?[,،]? (?:klo )?(?P<before>오전|오후|午前|午後|上午|下午|凌晨|清晨|早上|中午|晚上)? ?"
    r"(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<seconds>\d{2}))?(?: ?(?P<after>[ap]\.? ?m\.?|[πμ]\.?μ\.?|[صم]))?"
)
_MORNING = ("a", "π", "ص", "오전", "午前", "上午", "凌晨", "清晨", "早上")
"""How the names of hours before noon begin; those of the others are afternoon or evening, or noon itself."""
_HEADS = tuple(re.compile(form % _MOMENT, re.IGNORECASE) for form in (r"\[%s\] ?", "%s [-\u2013] "))
_NAME = re.compile('([^:"\u201c\u201d\u201e\u00ab\u00bb]{1,80}):(?: |$)')
_APP_NOTE = re.compile("[ \n]?\u200e<[^<>\n]*>$")
_ATTACHED = re.compile(r"[ \n]?\u200e<[^<>\n]*:[^<>\n]*>$")
# Android marks none of the app's words, in no language.
_DELETED = re.compile(
    r"<?(?:(?:this message was|you) deleted(?: this message)?|diese nachricht wurde gelöscht|du hast diese nachricht "
    r"gelöscht|(?:se eliminó|eliminaste) este mensaje|este mensaje fue eliminado|ce message a été supprimé|vous avez "
    r"supprimé ce message|questo messaggio è stato eliminato|hai eliminato questo messaggio|(?:esta )?mensagem "
    r"(?:foi )?apagada|(?:você )?apagou esta mensagem|dit bericht is verwijderd|(?:u hebt|je hebt|u heeft) dit bericht "
    r"verwijderd|данное сообщение удалено|вы удалили данное сообщение|bu mesaj silindi|bu mesaj\u0131 sildiniz)\.?>?",
    re.IGNORECASE,
)
_EDITED = re.compile(
    r" <(?:this message was edited|diese nachricht wurde bearbeitet|se editó este mensaje|ce message a été modifié|"
    r"questo messaggio è stato modificato|(?:esta )?mensagem (?:foi )?editada|dit bericht is bewerkt|(?:данное )?"
    r"сообщение изменено|bu mesaj düzenlendi)\.?>$",
    re.IGNORECASE,
)
_MEDIA = re.compile(
    r"<[^<>\n]{3,40}>|(?-i:null)|.{1,200} \(file attached\)|(?-i:[A-Z]{3})-\d{8}-WA\d{4}\.\w+ \(.{3,40}\)",
    re.IGNORECASE,
)
_OMITTED = re.compile(r".{1,80} omitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Message:
    """Message of an export: the number of its line, its date and time as numbers, its name and text with all marks."""

    line: int
    date: tuple[str, str, str]
    time: tuple[int, int, int]
    text: str


def _read_whatsapp(text: str, path: Path, dates: str | None, size: int, exact_times: bool) -> Task:
    """Return the chat of an exported text as a task without questions; its id is the file's name.

    Raises `DataError` if a date does not exist, or the order of dates stays open.
    """
    if dates is not None and dates not in DATE_ORDERS:
        raise DataError(f"dates={dates}: use {' or '.join(DATE_ORDERS)}")
    messages = list(_parse(text, str(path)))
    times = _resolve_times(messages, path, dates)
    left_out = Counter[str]()
    utterances = [
        (*_read_message(message.text, left_out), time.isoformat(timespec="seconds" if time.second else "minutes"))
        for message, time in zip(messages, times, strict=True)
    ]
    chunks = pack_days(utterances, size=size, exact_times=exact_times)
    if not chunks:
        raise DataError(f"{path}: no message has words of a person: there is nothing to read")
    meta = {"source": "whatsapp", **_left_out_meta(left_out)}
    return Task(id=path.stem, chunks=tuple(chunks), meta=meta)


def _match_head(line: str) -> re.Match[str] | None:
    """Match the head of a message in a line without its marks, with plain spaces."""
    plain = _SPACES.sub(" ", _MARKS.sub("", line))
    return next((match for head in _HEADS if (match := head.match(plain))), None)


def _parse(text: str, location: str) -> Iterator[_Message]:
    """Yield the messages; only heads of the first one's form begin another."""
    head: re.Match[str] | None = None
    first_line, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), None], 1):
        match = None if line is None else _match_head(line)
        if line is not None and (match is None or (head is not None and match.re is not head.re)):
            lines.append(line)
            continue
        if head is not None:
            hour, minute, second = int(head["hour"]), int(head["minute"]), int(head["seconds"] or 0)
            if half := head["before"] or head["after"]:
                if hour > 12:
                    raise DataError(f"{location}:{first_line}: hour {hour} does not exist on a 12-hour clock")
                hour = hour % 12 + 12 * (not half.lower().startswith(_MORNING))
            if hour > 23 or minute > 59 or second > 59:
                raise DataError(f"{location}:{first_line}: there is no time {hour:02}:{minute:02}:{second:02}")
            day = head["first"], head["second"], head["third"]
            yield _Message(first_line, day, (hour, minute, second), "\n".join(lines))
        if match is not None and line is not None:
            head, first_line, lines = match, number, [_after_head(line, match.end())]


def _after_head(line: str, length: int) -> str:
    """Return what follows the first `length` characters of a line that are no marks; marks behind them stay."""
    position = 0
    while length:
        length -= not _MARKS.match(line[position])
        position += 1
    return line[position:]


def _read_message(text: str, left_out: Counter[str]) -> tuple[str, str]:
    """Return speaker and words of a message, both empty where only the app speaks; count the rest in `left_out`."""
    first, newline, rest = text.rstrip("\n").partition("\n")
    name = _NAME.match(_MARKS.sub("", first))
    if name is None:
        left_out["notices"] += 1
        return "", ""
    words = _after_head(first, name.end()) + newline + rest
    if _ATTACHED.search(words):
        left_out["media"] += 1
    words = _APP_NOTE.sub("", words)
    # A line that begins with U+200E is the app's: "image omitted", "Ana joined".
    lines = []
    for line in words.split("\n"):
        plain = _MARKS.sub("", line)
        if not line.startswith("\u200e"):
            lines.append(plain)
        elif plain.strip():
            left_out[_placeholder_kind(plain.strip()) or "notices"] += 1
    if lines and (kind := _placeholder_kind(lines[0].strip(), is_of_app=False)):
        left_out[kind] += 1
        del lines[0]
    return _SPACES.sub(" ", name[1]).strip(), _EDITED.sub("", "\n".join(lines).strip())


def _placeholder_kind(line: str, *, is_of_app: bool = True) -> str | None:
    """Return what a line stands for, "media" or "deleted messages"; None for other words.

    Args:
        line: The line, without marks.
        is_of_app: The line is marked as the app's, so that "image omitted" is no person's words.
    """
    if _DELETED.fullmatch(line):
        return "deleted messages"
    return "media" if _MEDIA.fullmatch(line) or (is_of_app and _OMITTED.fullmatch(line)) else None


def _resolve_times(messages: Sequence[_Message], path: Path, dates: str | None) -> list[datetime]:
    """Return the time of each message in the one order of dates that fits the whole file."""
    orders = DATE_ORDERS if dates is None else (dates,)
    readings: list[list[datetime]] = []
    problem = (0, "")
    for order in orders:
        times: list[datetime] = []
        for message in messages:
            try:
                first, second, third = message.date
                if len(first) == 4:
                    year, month, day = first, second, third
                else:
                    day, month = (first, second) if order == "day-first" else (second, first)
                    year = third
                if len(year) not in (2, 4):
                    raise ValueError(year)
                number = int(year) + 2000 * (len(year) == 2)
                number -= 543 * (number > 2400)  # Thai phones count from the Buddha
                if number < _FIRST_YEAR:
                    raise ValueError(number)
                times.append(datetime(number, int(month), int(day), *message.time))
            except ValueError:
                problem = max(problem, (message.line, "/".join(message.date)))
                break
        else:
            readings.append(times)
    if not readings:
        orders_read = f"read {' or '.join(orders)} from {_FIRST_YEAR} on: write years first with four digits"
        raise DataError(f"{path}:{problem[0]}: there is no date {problem[1]}, {orders_read}")
    if len(readings) == 1 or readings[0] == readings[1]:
        return readings[0]
    in_order = [times for times in readings if all(a.date() <= b.date() for a, b in pairwise(times))]
    if len(in_order) == 1:
        return in_order[0]
    raise DataError(
        f"{path}: the dates may begin with the day or the month ({'/'.join(messages[0].date)} on line "
        f"{messages[0].line}): say which with dates=day-first or dates=month-first"
    )
