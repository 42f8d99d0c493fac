"""Chats exported by apps, mails, transcripts and tables of messages as chunks of a day each, told apart by content.

Of **ChatGPT and Claude**, `conversations.json` is read: a task for each conversation. Read are the words of the user
and of the assistant, on the branch that the app shows. Left out are hidden and system messages, tool calls and their
results, thoughts, images and attached files. Times are UTC. Neither company publishes the format and both extend it, so
unknown fields and kinds of content are skipped; what is needed must be there. No store holds a NUL or half of an emoji:
each becomes U+FFFD.

Of **Telegram** (`result.json`, "machine-readable JSON", of one chat or of all, also those that were left) and
**Discord** (the JSON that DiscordChatExporter writes) the messages with words are read. Forwarded ones say whose words
they are. A second person of one name, by his id, is `Ana (2)`. Read are also the messages of **Slack**
(a day, or the folder of a channel), **Instagram** and **Messenger** (`message_1.json`, whose letters are mended) and
**Google Chat** (`messages.json` of Takeout).

**WhatsApp** on a phone writes two forms: `[24/05/2024, 21:05:09] Ana: text` (iOS) and `24/05/2024, 21:05 - Ana: text`
(Android). Order, separators, seconds and the 12-hour clock follow the phone's language. A line without such a head
continues the message before it. Left out are lines of the app (no name, or text behind a U+200E), placeholders of
media, and up to five lines before the first message. Whether the day or the month comes first is decided over the whole
file: by a number above 12, by the order of the messages, or by dots (the day). If both readings fit, the file is
refused, and `dates=` says which holds. **KakaoTalk** and **LINE** write texts as well (`formats.kakaotalk`).

Of a **table of messages** (`.csv`, `.tsv`) the columns of speakers, words, times and conversations are known by their
names (`_COLUMNS`, of seven languages); a conversation is a task. Beside `sender` or `sender_name`, ids in `sender_id`
tell people apart. Messages that stand newest first are put in the order of time. The order of the numbers in its dates
is decided like WhatsApp's.

What an export loses is counted in `Task.meta["left_out"]`: media, deleted messages, notices of WhatsApp, calls of
tools, and edited branches, which are replies and questions that were replaced by others. WhatsApp names media, deleted
and edited messages in the phone's language. Nine languages are known; on an iPhone the others count as notices.
"""

from __future__ import annotations

import csv
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise, repeat
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK, split_lines, to_iso_time
from memalpha.tasks.formats.files import iter_csv_rows, open_text, require_field
from memalpha.tasks.formats.jsonl import MESSAGES, find_problems, iterate_lines, parse_unique
from memalpha.tasks.formats.kakaotalk import read_day_text
from memalpha.tasks.formats.mail import is_mail, read_mails
from memalpha.tasks.formats.messages import (
    SpeakerNames,
    Utterance,
    chunk_messages,
    is_message_file,
    is_messages,
    load_messages,
    pack_days,
    parse_message,
)
from memalpha.tasks.formats.subtitles import read_subtitles
from memalpha.text_files import NO_TEXT, parse_json, parse_json_or_none, read_text
from memalpha.types import Chunk, Task, parse_iso_time

_SUFFIXES = (".txt", ".json", ".zip", ".eml", ".mbox", ".srt", ".vtt")
"""Endings of files in a folder of chats; an archive is refused with a word on unpacking it."""


class _Conversation(NamedTuple):
    """Hold a conversation of an export; reading its utterances counts in `left_out` what is not read."""

    id: str
    meta: dict[str, Any]
    utterances: Iterable[Utterance]
    left_out: Counter[str]
    location: str
    start: str | None = None


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
    if tasks is None:
        if path.suffix.lower() == ".txt" or (dates is None and path.suffix.lower() in (".csv", ".tsv")):
            return None
        if dates is not None:
            raise DataError(f"{path}: dates belongs to chats exported as text only")
        if not (path.is_file() and is_message_file(path)):
            return None
        tasks = [Task(id=path.stem, chunks=tuple(load_messages(path)), meta={"source": "messages"})]
    return [with_turn_ids(task) for task in tasks]


def load_message_lines(path: Path) -> list[Task] | None:
    """Return the conversations of a file with `{"messages": [...]}` a line as tasks; None for other files.

    A line may have an `id` of its task (default: NAME-LINE) and a `timestamp` of its messages without one.

    Raises:
        DataError: A line is no such object, holds no words or the id of another, or a message is invalid; the error
            names line and field.
    """
    first = parse_json_or_none(next((line for _, line in iterate_lines(path)), b""))
    if not isinstance(first, Mapping) or "chunks" in first or not isinstance(first.get("messages"), list):
        return None
    return parse_unique(((f"{path}:{number}", line) for number, line in iterate_lines(path)), _parse_messages)


def _parse_messages(raw: bytes, location: str) -> Task:
    """Return the conversation of one line, `location` being `file:line`."""
    value = parse_json(raw, location)
    messages = require_field(value, "messages", list, location)
    if unknown := value.keys() - {"messages", "id", "timestamp"}:
        raise DataError(f"{location}.{min(unknown)}: no field of a conversation: use messages, id, timestamp")
    id, timestamp = (require_field(value, name, (str, NoneType), location) for name in ("id", "timestamp"))
    chunks = chunk_messages(messages, timestamp=timestamp, location=f"{location}: messages")
    if not chunks:
        raise DataError(f"{location}: messages: none has words of a user or an assistant: leave the line out")
    file, _, line = location.rpartition(":")
    id = f"{Path(file).stem}-{line}" if id is None else id
    task = with_turn_ids(Task(id=id, chunks=tuple(chunks), meta={"source": "messages"}))
    for field, problem in find_problems(task):
        raise DataError(f"{location}: {field}: {problem}")
    return task


def count_left_out(tasks: Iterable[Task]) -> dict[str, int]:
    """Sum what the exports of tasks lost, by kind, from `meta["left_out"]`."""
    total = Counter[str]()
    for task in tasks:
        counts = task.meta.get("left_out")
        for kind, count in counts.items() if isinstance(counts, Mapping) else ():
            total[str(kind)] += count if isinstance(count, int) else 0
    return dict(+total)


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
    if files and all(_SLACK_DAY.fullmatch(file.name) for file in files):  # a day of a channel each
        days = [parse_json(read_text(file), str(file)) for file in files]
        messages = [message for day in days if isinstance(day, list) for message in day]
        if messages and isinstance(messages[0], Mapping) and _is_slack(messages[0]):
            tasks = _pack_conversations([_slack_channel(messages, path)], "message has words", path)
            return [with_turn_ids(task) for task in tasks]
    file_of: dict[str, Path] = {}
    tasks: list[Task] = []
    for file in files:
        is_text, chats = file.suffix.lower() == ".txt", None
        if file.is_file() and file.suffix.lower() in _SUFFIXES:
            try:
                chats = load_chats(file, dates if is_text else None)
            except DataError:  # phones differ in the order of dates: it gives way if it makes none here
                if dates is None or not is_text:
                    raise
                with suppress(DataError):  # the first error names the order that was asked for
                    chats = load_chats(file, None)
                if chats is None:
                    raise
        if chats is None:
            raise DataError(
                f"{path} is a folder without a questions.csv, where every file is an exported chat: {file} is none: "
                f"move it to another folder; {_OTHER_TEXTS}"
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
    path: Path, *, dates: str | None = None, size: int = CHUNK, exact_times: bool = False, text: str | None = None
) -> list[Task] | None:
    """Return the conversations with words that an app exported; None for a file of another kind.

    Args:
        path: The file, or the name of `text` in messages.
        dates: Order of the dates of a text.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp, not of a day.
        text: Text to read in the place of the file; that of a mail or a table is not known as one.

    Raises:
        DataError: It is such a file and cannot be read, or an archive of such files; the error names file, and line or
            field.
    """
    if text is None and not path.is_file():
        return None
    is_table = path.suffix.lower() in (".csv", ".tsv")
    columns = _find_columns(path) if is_table else None
    if is_table and columns is None:
        return None
    is_of_mail = text is None and not is_table and is_mail(path)
    text = "" if is_table or is_of_mail else read_text(path) if text is None else text
    if (words := read_subtitles(text)) is not None:
        return [_pack_words(words, path, size)]
    left_out = Counter[str]()
    day_text = read_day_text(text, left_out)
    is_text = day_text is None and _is_chat_text(text, any_names=path.suffix.lower() == ".txt")
    value = None if is_text else parse_json_or_none(text)
    items = value if isinstance(value, list) else [value]
    first = next((item for item in items if isinstance(item, Mapping)), {})
    conversations: Iterable[_Conversation]
    if columns is not None:
        conversations, needed = _read_table(path, columns, dates), "row has a speaker and words"
    elif is_of_mail:
        mails = read_mails(path, left_out)
        conversations = [_Conversation(path.stem, {"source": "mail"}, mails, left_out, str(path))]
        needed = "mail has words"
    elif day_text is not None:
        source, messages = day_text
        places = [(f"{path}:{message.line}", None) for message in messages]
        times = _read_cells([message.time for message in messages], places, path, dates)
        said = [(message.speaker, message.words, time) for message, time in zip(messages, times, strict=True)]
        conversations = [_Conversation(path.stem, {"source": source}, said, left_out, str(path))]
        needed = "message has words of a person"
    elif is_text:
        conversations, needed = [_read_whatsapp(text, path, dates)], "message has words of a person"
    elif "mapping" in first or "chat_messages" in first:
        conversations, needed = _read_assistant(value, path), "conversation has words of a user or an assistant"
    elif _is_slack(first):
        conversations, needed = [_slack_channel(items, path)], "message has words"
    elif isinstance(value, Mapping) and (read := _find_reader(value)):
        source, read_messages = read
        said = read_messages(value["messages"], path, left_out)
        conversations = [_Conversation(path.stem, {"source": source}, said, left_out, str(path))]
        needed = "message has words"
    elif isinstance(value, Mapping) and (isinstance(value.get("chats"), Mapping) or _is_messenger_chat(value)):
        conversations, needed = _read_messenger(value, path), "message has words"
    else:
        return None
    return _pack_conversations(conversations, needed, path, size, exact_times)


def _pack_conversations(
    conversations: Iterable[_Conversation], needed: str, path: Path, size: int = CHUNK, exact_times: bool = False
) -> list[Task]:
    """Return conversations as tasks. Raises `DataError` if two have one id, or none has words."""
    tasks: dict[str, Task] = {}
    for id, meta, utterances, left_out, location, start in conversations:
        if chunks := pack_days(utterances, timestamp=start, size=size, exact_times=exact_times):
            if id in tasks:
                raise DataError(f"{location.rstrip('.')}: the id {id!r} occurs twice: ids are unique")
            meta |= {"left_out": dict(+left_out)} if +left_out else {}
            tasks[id] = Task(id=id, chunks=tuple(chunks), meta=meta)
    if not tasks:
        raise DataError(f"{path}: no {needed}: there is nothing to read")
    return list(tasks.values())


def _pack_words(words: Sequence[tuple[str, str]], path: Path, size: int) -> Task:
    """Return what speakers said at no known day, or a text if none is named. Raises `DataError` if nobody said any."""
    chunks = pack_days([(speaker or "unknown", text, None) for speaker, text in words], size=size)
    if not any(speaker for speaker, _ in words):
        pieces = split_lines("\n".join(text for _, text in words), size)
        chunks = [Chunk(text=piece, index=index) for index, piece in enumerate(pieces)]
    if not chunks:
        raise DataError(f"{path}: no cue has words: there is nothing to read")
    return Task(id=path.stem, chunks=tuple(chunks), meta={"source": "transcript"})


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

_SPEAKERS = {"human": "user", "assistant": "assistant"}
_WORDS = ("text", "voice_note")
"""Types of Claude's blocks that hold words of the conversation: written or spoken."""
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")


def _read_assistant(value: object, path: Path) -> Iterator[_Conversation]:
    """Yield the conversations of ChatGPT or Claude, in the order of the file."""
    for number, conversation in enumerate(value if isinstance(value, list) else [value]):
        location = f"{path}: [{number}]" if isinstance(value, list) else f"{path}"
        if not isinstance(conversation, Mapping):
            raise DataError(f"{location}: a conversation is an object, not {type(conversation).__name__}")
        left_out = Counter[str]()
        if "mapping" in conversation:
            source, id_field, title = "chatgpt", "conversation_id", conversation.get("title")
            utterances = _read_chatgpt(conversation, location, left_out)
            id = conversation.get("conversation_id") or conversation.get("id")
            start = _from_unix(conversation.get("create_time"), f"{location}.create_time")
        else:
            source, id_field, title = "claude", "uuid", conversation.get("name")
            utterances = _read_claude(conversation, location, left_out)
            id = conversation.get("uuid")
            start = _from_iso(conversation.get("created_at"), f"{location}.created_at")
        if not isinstance(id, str) or not id.strip():
            raise DataError(f"{location}.{id_field}: is missing: every conversation needs an id")
        texts = ((speaker, NO_TEXT.sub("\ufffd", text), time) for speaker, text, time in utterances)
        named = {"title": NO_TEXT.sub("\ufffd", title)} if isinstance(title, str) and title.strip() else {}
        yield _Conversation(id, {"source": source, **named}, texts, left_out, location, start)


def _read_chatgpt(conversation: Mapping[str, Any], location: str, left_out: Counter[str]) -> Iterator[Utterance]:
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
        metadata = message.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        is_for_tool = message.get("recipient") not in (None, "all")
        left_out["tool calls"] += role == "assistant" and is_for_tool
        if (
            role in ("user", "assistant")
            and not metadata.get("is_visually_hidden_from_conversation")
            and not is_for_tool
            and message.get("channel") in (None, "final")
            and content.get("content_type") in ("text", "multimodal_text")
        ):
            parts = require_field(content, "parts", list, f"{where}.content")
            # A spoken message is an object with the words as `text`; images and files have none.
            texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
            files = metadata.get("attachments")
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


def _read_claude(conversation: Mapping[str, Any], location: str, left_out: Counter[str]) -> Iterator[Utterance]:
    """Yield the utterances from the first to the leaf, by their parents; count the others in `left_out`.

    The leaf is the last message unless it is named. Older exports name no parents: they hold one branch, all messages.
    """
    messages = require_field(conversation, "chat_messages", list, location)
    parents = [item.get("parent_message_uuid") for item in messages if isinstance(item, Mapping)]
    branch = dict.fromkeys(range(len(messages)))
    if messages and sum(isinstance(parent, str) for parent in parents) == len(messages):
        by_id = {str(message.get("uuid")): index for index, message in enumerate(messages)}
        index: int | None = by_id.get(str(conversation.get("current_leaf_message_uuid")), len(messages) - 1)
        path: dict[int, None] = {}
        while index is not None and index not in path:
            path[index] = None
            index = by_id.get(str(parents[index]))  # that of the first message is nobody's
        branch = dict.fromkeys(reversed(path))
        # A message off the branch begins another one if what it answers is on the branch, or nothing is before it.
        before = {None, *branch}
        left_out["edited branches"] += sum(
            by_id.get(str(parent)) in before and n not in branch for n, parent in enumerate(parents)
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


# --------------------------------------------------------------------------------------------------- Telegram, Discord


def _is_messenger_chat(value: Mapping[str, Any]) -> bool:
    """Return True for a chat of Telegram or Discord: messages with a date and an author instead of a role."""
    items = value.get("messages")
    if items == []:
        return value.keys() >= {"type", "id"} or "guild" in value
    first = items[0] if is_messages(items) else {}
    return "role" not in first and (first.keys() > {"date", "text"} or first.keys() > {"author", "content"})


def _read_messenger(value: Mapping[str, Any], path: Path) -> Iterator[_Conversation]:
    """Yield the chat of Telegram or Discord, or all chats of Telegram."""
    fields = ["chats"] if "chats" in value else []
    left = value.get("left_chats")  # groups that one has left; others export none, null or []
    if isinstance(left, Mapping) and isinstance(left.get("list"), list):
        fields.append("left_chats")
    ids: set[str] = set()
    speakers = SpeakerNames()  # of the whole file: its chats may go into one memory
    chats = [
        (f"{path}: {field}.list[{index}].", chat)
        for field in fields
        for index, chat in enumerate(require_field(value[field], "list", list, f"{path}: {field}"))
    ]
    for index, (location, chat) in enumerate(chats if fields else [(f"{path}: ", value)]):
        messages = require_field(chat, "messages", list, location)
        id = f"{chat.get('name') or 'chat'}-{chat.get('id', index)}" if fields else path.stem
        if id in ids and location.startswith(f"{path}: left_chats."):  # it is in both lists
            continue
        ids.add(id)
        meta, left_out = {"source": "telegram" if "guild" not in chat else "discord"}, Counter[str]()
        yield _Conversation(id, meta, _read_posts(messages, location, left_out, speakers), left_out, location)


def _read_posts(
    messages: Sequence[Any], location: str, left_out: Counter[str], speakers: SpeakerNames
) -> Iterator[Utterance]:
    for number, message in enumerate(messages):
        place = f"{location}messages[{number}]"
        if not isinstance(message, Mapping):
            raise DataError(f"{place}: a message is an object, not {type(message).__name__}")
        is_discord = "content" in message  # Telegram's author is the signature of a channel's post
        author = require_field(message, "author", dict, place) if is_discord else {}
        text = message.get("content" if is_discord else "text")
        parts = text if isinstance(text, list) else [text]  # Telegram's links, names and bold words are objects
        words = (part if isinstance(part, str) else require_field(part, "text", str, place) for part in parts if part)
        text = "".join(words)
        kind = "notices" if message.get("type") not in ("message", "Default", "Reply") else "media"
        if kind == "notices" or not text.strip():
            left_out[kind] += 1
            continue
        if "forwarded_from" in message:  # another's words
            source = speakers.name(_one_line(message["forwarded_from"] or "somebody"), message.get("forwarded_from_id"))
            text = f"[forwarded from {source}] {text}"
        name = author.get("nickname") or author.get("name") or message.get("from") or "Deleted account"
        name = speakers.name(_one_line(name), author.get("id") if is_discord else message.get("from_id"))
        date = message.get("timestamp" if is_discord else "date")
        fields = {"role": "user", "name": name, "content": NO_TEXT.sub("\ufffd", text), "timestamp": date}
        yield parse_message(fields, place)


def _one_line(name: object) -> str:
    return " ".join(NO_TEXT.sub("\ufffd", str(name)).split())


# ----------------------------------------------------------------------------- Slack, Instagram, Messenger, Google Chat

_SLACK_WORDS = (None, "bot_message", "file_share", "me_message", "thread_broadcast")
_SLACK_NAMES = ("display_name", "real_name", "name")
_SLACK_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
_SLACK_LINK = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")
_META_MEDIA = ("photos", "videos", "audio_files", "gifs", "files", "sticker", "share")
_META_NOTE = re.compile(r"Reacted .{1,12} to your message ?|Liked a message|.{1,80} sent an attachment\.")
_GOOGLE_TIMES = ("%A, %B %d, %Y at %I:%M:%S %p UTC", "%A, %d %B %Y at %H:%M:%S UTC")


def _is_slack(message: Mapping[str, Any]) -> bool:
    return message.keys() >= {"type", "ts"} and "role" not in message


def _slack_channel(messages: Sequence[Any], path: Path) -> _Conversation:
    """Return the messages of a Slack channel: of a day (a file), or of all days (their folder)."""
    left_out = Counter[str]()
    return _Conversation(path.stem, {"source": "slack"}, _read_slack(messages, path, left_out), left_out, str(path))


def _read_slack(messages: Sequence[Any], path: Path, left_out: Counter[str]) -> Iterator[Utterance]:
    """Yield the messages of Slack; names come from the profiles in them."""
    ids = [require_field(m, "user", (str, NoneType), f"{path}: [{number}]") for number, m in enumerate(messages)]
    profiles = [message.get("user_profile") or message.get("bot_profile") for message in messages]
    shown = [next((p[k] for k in _SLACK_NAMES if p.get(k)), None) if isinstance(p, Mapping) else None for p in profiles]
    names = {id: name for id, name in zip(ids, shown, strict=True) if id and name}
    speakers = SpeakerNames()

    def write_link(match: re.Match[str]) -> str:
        mark, target, label = match.groups()
        if target in names:
            return f"@{speakers.name(_one_line(names[target]), target)}"
        return f"{mark.replace('!', '@')}{label or target}"

    for number, (message, id, name) in enumerate(zip(messages, ids, shown, strict=True)):
        text = require_field(message, "text", (str, NoneType), f"{path}: [{number}]") or ""
        is_said = message.get("subtype") in _SLACK_WORDS
        left_out["media"] += bool(message.get("files"))
        left_out["notices"] += not is_said
        left_out["empty messages"] += is_said and not text.strip() and not message.get("files")
        if not is_said or not text.strip():
            continue
        name = name or names.get(id) or message.get("username") or (id if names else None)
        if name is None:
            raise DataError(f"{path}: a Slack export without profiles, which names its people by ids: write {MESSAGES}")
        speaker = speakers.name(_one_line(name), id)
        text = _SLACK_LINK.sub(write_link, text)
        time = _from_unix(parse_json_or_none(str(message.get("ts"))), f"{path}: [{number}].ts")
        yield speaker, NO_TEXT.sub("\ufffd", html.unescape(text)), time


def _find_reader(value: Mapping[str, Any]) -> tuple[str, Callable[..., Iterator[Utterance]]] | None:
    """Return source and reader of the messages of Instagram and Messenger, or of Google Chat; None for others."""
    messages = value.get("messages")
    if is_messages(messages) and messages[0].keys().isdisjoint(("role", "author")):
        if "participants" in value and "sender_name" in messages[0]:
            return "messenger", _read_meta
        if "created_date" in messages[0]:
            return "google-chat", _read_google_chat
    return None


def _read_meta(messages: Sequence[Any], path: Path, left_out: Counter[str]) -> Iterator[Utterance]:
    """Yield the messages of Instagram or Messenger, which stand newest first, by time."""
    places = [f"{path}: messages[{number}]" for number in range(len(messages))]
    times = [require_field(*item) for item in zip(messages, repeat("timestamp_ms"), repeat(int), places)]
    for number in sorted(range(len(messages)), key=lambda number: (times[number], -number)):
        message = messages[number]
        fields = (require_field(message, key, (str, NoneType), places[number]) for key in ("sender_name", "content"))
        name, text = (_mend_letters(field or "") for field in fields)
        has_media = any(message.get(field) for field in _META_MEDIA)
        left_out["media"] += has_media
        if message.get("is_unsent"):
            left_out["deleted messages"] += 1
        elif "call_duration" in message or _META_NOTE.fullmatch(text):
            left_out["notices"] += not has_media
        else:
            time = _from_unix(times[number] / 1000, f"{places[number]}.timestamp_ms")
            yield _one_line(name) or "unknown", NO_TEXT.sub("\ufffd", text), time


def _mend_letters(text: str) -> str:
    """Return a text of Meta, each byte of which was written as a letter of Latin-1."""
    with suppress(UnicodeError):
        return text.encode("latin-1").decode()
    return text


def _read_google_chat(messages: Sequence[Any], path: Path, left_out: Counter[str]) -> Iterator[Utterance]:
    """Yield the messages of Google Chat (Takeout)."""
    speakers = SpeakerNames()
    for number, message in enumerate(messages):
        place = f"{path}: messages[{number}]"
        text = require_field(message, "text", (str, NoneType), place) or ""
        left_out["media"] += bool(message.get("attached_files"))
        left_out["deleted messages"] += message.get("message_state") == "DELETED"
        if not text.strip():
            continue
        creator, date = (
            require_field(message, "creator", dict, place),
            require_field(message, "created_date", str, place),
        )
        time = None
        for form in _GOOGLE_TIMES:
            with suppress(ValueError):
                time = datetime.strptime(" ".join(date.split()), form).isoformat()
        if time is None:
            raise DataError(
                f"{place}.created_date: {date!r} is no date in a known form: Friday, May 3, 2024 at 2:31:05 PM UTC"
            )
        email = creator.get("email") or None
        name = speakers.name(_one_line(creator.get("name") or email or "unknown"), email, str(email))
        yield name, NO_TEXT.sub("\ufffd", text), time


# ------------------------------------------------------------------------------------------------------------ WhatsApp

DATE_ORDERS = ("day-first", "month-first")
_FIRST_YEAR = 2009  # WhatsApp's: an earlier one of two digits is a day (18-05-03)
_FIRST_FULL_YEAR = 1980  # of tables, and of logs of other apps: an earlier one counts by another calendar (1403)
_OTHER_TEXTS = 'other texts belong into a task file, a line each: {"id": "diary", "chunks": [{"text": "..."}]} (.jsonl)'
NO_CHAT = f"no message of a chat export, such as '[24/05/2024, 21:05:09] Ana: text': {_OTHER_TEXTS}"

_MARKS = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACES = re.compile("[\u00a0\u2009\u202f]")
_MOMENT = (
    r"(?P<first>\d{1,4})(?P<separator>[./-]) ?(?P<second>\d{1,2})(?P=separator) ?(?P<third>\d{1,4})\.?"
    r"(?: \u0433\.| à)?[,،]? (?:klo )?(?P<before>오전|오후|午前|午後|上午|下午|凌晨|清晨|早上|中午|晚上)? ?"
    r"(?P<hour>\d{1,2})(?P<colon>[:.]| ?h ?)(?P<minute>\d{2})(?:(?:[:.]| min )(?P<seconds>\d{2})(?: s\b)?)?"
    r"(?: ?(?P<after>[ap]\.? ?m\.?|[πμ]\.?μ\.?|[صم]|[قب]\.ظ\.?|pt?g|sa|ch|öö|ös)| ?\u0447\.)?"
)
_MORNING = ("a", "π", "ص", "ق", "pg", "sa", "öö", "오전", "午前", "上午", "凌晨", "清晨", "早上")
"""How the names of hours before noon begin; those of the others are afternoon or evening, or noon itself."""
_TIME = re.compile(_MOMENT, re.IGNORECASE)
_HEADS = tuple(re.compile(form % _MOMENT, re.IGNORECASE) for form in (r"\[%s\] ?", "%s [-\u2013] "))
# A quotation that ends before the colon is part of a name; others are of a notice: Ana created group "Trip: Rome".
_NAME = re.compile(
    '((?:[^:"\u201c-\u201e\u00ab\u00bb]|"[^:"]*"|[\u201c-\u201e][^:\u201c-\u201e]*[\u201c\u201d]|'
    "\u00ab[^:\u00ab\u00bb]*\u00bb){1,80}):(?: |$)"
)
_LEVEL = re.compile(
    r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\[(?:info|warn|warning|error)\]"
)
"""What stands for a name in the log of a program."""
_LEFT_OUT_WORDS = (
    r"(?:omitted|(?:weg|aus)gelassen|omitid[oa]|ocultad[oa]|omise?|absente?|omess[oa]|weggelaten|отсутствует|"
    r"пропущен\w?|dahil edilmedi)"
)
_APP_NOTE = re.compile("[ \n]?\u200e<[^<>\n]*>$")
# An iPhone writes the name of a document before its note: "Rent.pdf • \u200e2 pages \u200edocument omitted".
_MEDIA_NOTE = re.compile(
    r"(?:^[^\n]* • \u200e[^\u200e\n]+)?[ \n]?\u200e<[^<>\n]*:[^<>\n]*>$|"
    r"(?:^[^\n]*(?:\.(?:pdf|docx?|xlsx?|pptx?|txt|csv|zip)| • \u200e[^\u200e\n]+))?[ \n]?"
    rf"\u200e[^\u200e<>\n]{{1,80}} {_LEFT_OUT_WORDS}$",
    re.IGNORECASE,
)
_POLL_OPTION = re.compile(r"\u200e[^:\n]{1,30}: .+ \(\u200e?\d+ [^()]+\)")
"""A choice that somebody wrote, in a poll of an iPhone: "OPTION: Rome (2 votes)", marked as the app's."""
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
    r"<[^<>\n]{3,40}>|(?-i:null)|(?-i:[A-Z]{3})-\d{8}-WA\d{4}\.\w+ \(.{3,40}\)|.{1,200} \((?:file attached|"
    r"datei angehängt|archivo adjunto|fichier joint|file allegato|(?:arquivo|ficheiro) anexado|bestand bijgevoegd|"
    r"файл добавлен|dosya ekli)\)",
    re.IGNORECASE,
)
_OMITTED = re.compile(rf".{{1,80}} {_LEFT_OUT_WORDS}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Message:
    """Message of an export: the number of its line, its date and time as numbers, its name and text with all marks."""

    line: int
    date: tuple[str, str, str]
    separator: str
    time: tuple[int, int, int]
    text: str

    def read_time(self, order: str) -> datetime | None:
        """Return date and time for an order of dates; None if there is no such date."""
        first, second, year = self.date
        day, month = (first, second) if order == "day-first" else (second, first)
        if len(first) == 4:
            year, month, day = self.date
        number = int(year) + 2000 * (len(year) == 2)
        number -= 543 * (number > 2400)  # Thai phones count from the Buddha
        with suppress(ValueError):
            if number >= {2: _FIRST_YEAR, 4: _FIRST_FULL_YEAR}.get(len(year), 10**4):
                return datetime(number, int(month), int(day), *self.time)
        return None


def _read_whatsapp(text: str, path: Path, dates: str | None) -> _Conversation:
    """Return the chat of an exported text; its id is the file's name.

    Raises `DataError` if a date does not exist, or the order of dates stays open.
    """
    messages = list(_parse(text, str(path)))
    times = _resolve_times(messages, path, dates)
    before = text.split("\n")[: messages[0].line - 1]
    left_out = Counter({"lines before the first message": sum(bool(line.strip()) for line in before)})
    utterances = [
        (*_read_message(message.text, left_out), time.isoformat(timespec="seconds" if time.second else "minutes"))
        for message, time in zip(messages, times, strict=True)
    ]
    return _Conversation(path.stem, {"source": "whatsapp"}, utterances, left_out, str(path))


def _is_chat_text(text: str, *, any_names: bool) -> bool:
    """Return True if a text begins with a message, or with up to five lines before messages that are most of the rest.

    Args:
        text: The text.
        any_names: A text that begins with a message need not have names in most of its messages, as a log of a program.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    first = next((number for number, line in enumerate(lines[:6]) if _match_head(line)), None)
    if first is None or (first == 0 and any_names):
        return first == 0
    heads = [(line, match.end()) for line in lines[first:] if (match := _match_head(line))]
    names = (_NAME.match(_MARKS.sub("", _after_head(line, end))) for line, end in heads)
    named = sum(name is not None and not _LEVEL.search(name[1]) for name in names)
    return 2 * named >= (len(lines) - first if first else len(heads)) and (first == 0 or named > 1)


def _match_head(line: str) -> re.Match[str] | None:
    """Match the head of a message in a line without its marks, with plain spaces."""
    plain = _SPACES.sub(" ", _MARKS.sub("", line))
    return next((match for head in _HEADS if (match := head.match(plain))), None)


def _parse(text: str, location: str) -> Iterator[_Message]:
    """Yield the messages; only heads of the first one's form, with its separators, begin another."""
    entries: list[tuple[int, re.Match[str], list[str]]] = []  # number of its first line, head, lines
    first = None
    for number, line in enumerate(text.split("\n"), 1):
        match = _match_head(line)
        form = match and (match.re, match["separator"], match["colon"])
        if match is not None and form == (first := first or form):
            entries.append((number, match, [_after_head(line, match.end())]))
        elif entries:
            entries[-1][2].append(line)
    for number, head, lines in entries:
        yield _read_head(head, number, f"{location}:{number}", "\n".join(lines))


def _read_head(head: re.Match[str], number: int, location: str, text: str = "") -> _Message:
    """Return the message with this date and time; raises `DataError` if there is no such time."""
    hour, minute, second = int(head["hour"]), int(head["minute"]), int(head["seconds"] or 0)
    if half := head["before"] or head["after"]:
        if hour > 12:
            raise DataError(f"{location}: hour {hour} does not exist on a 12-hour clock")
        hour = hour % 12 + 12 * (not half.lower().startswith(_MORNING))
    if hour > 23 or minute > 59 or second > 59:
        raise DataError(f"{location}: there is no time {hour:02}:{minute:02}:{second:02}")
    day = head["first"], head["second"], head["third"]
    return _Message(number, day, head["separator"], (hour, minute, second), text)


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
    words, media = _MEDIA_NOTE.subn("", words)
    left_out["media"] += media
    words = _APP_NOTE.sub("", words)
    # A line that begins with U+200E is the app's: "image omitted", "Ana joined".
    lines = []
    for line in words.split("\n"):
        plain = _MARKS.sub("", line)
        if not line.startswith("\u200e") or _POLL_OPTION.fullmatch(line):
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
    if dates is not None and dates not in DATE_ORDERS:
        raise DataError(f"dates={dates}: use {' or '.join(DATE_ORDERS)}")
    orders = DATE_ORDERS if dates is None else (dates,)
    readings: list[list[datetime]] = []
    problem = (0, "")
    for order in orders:
        times = [message.read_time(order) for message in messages]
        if None in times:
            message = messages[times.index(None)]
            problem = max(problem, (message.line, "/".join(message.date)))
        else:
            readings.append([time for time in times if time is not None])
    if not readings:
        orders_read = f"read {' or '.join(orders)} from {_FIRST_YEAR} on: write years first with four digits"
        raise DataError(f"{path}:{problem[0]}: there is no date {problem[1]}, {orders_read}")
    if len(readings) == 1 or readings[0] == readings[1]:
        return readings[0]
    for step in (1, -1):  # tables may stand newest first
        in_order = [times for times in readings if all(a.date() <= b.date() for a, b in pairwise(times[::step]))]
        if len(in_order) == 1:
            return in_order[0]
        if messages[0].separator == ".":  # with dots, every language writes the day before the month
            return readings[0]
    raise DataError(
        f"{path}: the dates may begin with the day or the month ({'/'.join(messages[0].date)} on line "
        f"{messages[0].line}): say which with dates=day-first or dates=month-first; memalpha read takes the task file "
        f"of memalpha data prepare {quote(str(path))} chat.jsonl dates=..."
    )


# -------------------------------------------------------------------------------------------------- tables of messages

_COLUMNS = {
    "speaker": "sender from author speaker user username sender_name from_name absender von autor verfasser benutzer "
    "remitente de usuario expéditeur auteur mittente da autore remetente afzender name",
    "text": "message text content body message_text nachricht inhalt mensaje texto contenido contenu messaggio testo "
    "mensagem conteúdo bericht",
    "day": "timestamp datetime date_time date/time date sent_at created_at message_date sent datum zeitstempel "
    "zeitpunkt fecha fecha_y_hora data data_e_hora day tag",
    "clock": "time zeit uhrzeit hora heure ora tijd",
    "chat": "conversation_id conversation chat_id chat chat_session channel thread_id thread",
}
"""Names of columns in tables of messages, the best first."""
_OTHER_DAYS = frozenset(("sent", "data", "day", "tag"))
"""Names of columns of dates that hold something else in another language or another table."""
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]\.?m\.?)?", re.IGNORECASE)
_EPOCH = re.compile(r"(\d{10})(?:\.\d+|\d{3})?")
_OPEN_DATE = re.compile(r"\d{1,2}[./-] ?\d")
_MAIL_DATE = re.compile(r"(?:[a-z]{3}, ?)?\d{1,2} [a-z]{3} \d{4},? \d{1,2}:\d{2}.*", re.IGNORECASE)
_NO_IDS = ("", "null", "none", "nan")
_TASK_COLUMNS = frozenset(("question", "context", "task", "chunk", "turn"))


def _find_columns(path: Path) -> dict[str, str] | None:
    """Return the separator of a table of messages and its columns by what they hold; None for another table.

    A table of messages has columns of speakers and words, and none of a task file.
    """
    if path.name == "chunks.csv":  # a table of a folder of tasks
        return None
    with open_text(path) as file:
        try:
            first_line = file.readline()
        except UnicodeError:  # whoever reads it says where
            return None
    for mark in ",;\t":
        header = next(csv.reader([first_line], delimiter=mark), [])
        names = {re.sub("[ _-]+", "_", name.strip().lower()): name.strip() for name in header}
        columns = {
            kind: names[known[0]]
            for kind, words in _COLUMNS.items()
            if (known := [w for w in words.split() if w in names])
        }
        stem = re.sub("_?name$", "", re.sub("[ _-]+", "_", columns.get("speaker", "").lower()))
        if (id_column := names.get(f"{stem}_id", names.get(f"{stem}id"))) and stem:
            columns["id"] = id_column
        is_named = columns.get("speaker", "").lower() != "name" or "day" in columns  # things have names, too
        if columns.keys() >= {"speaker", "text"} and is_named and _TASK_COLUMNS.isdisjoint(names):
            return {"separator": mark, **columns}
    return None


def _read_table(path: Path, columns: Mapping[str, str], dates: str | None) -> list[_Conversation]:
    """Return the conversations of a table of messages; raises `DataError` for a time of no known form."""
    used = [name for kind, name in columns.items() if kind != "separator"]
    speakers = SpeakerNames()
    rows = list(iter_csv_rows(path, used, columns["separator"]))
    days, clocks = (
        [row[columns[kind]].strip() if kind in columns else "" for _, row in rows] for kind in ("day", "clock")
    )
    if columns.get("day", "").lower() in _OTHER_DAYS and not any(_is_day(day) for day in days):
        used.remove(columns["day"])
        days = [""] * len(rows)
    cells = [
        f"{day} {clock}".strip() if clock and not _has_clock(day) else day
        for day, clock in zip(days, clocks, strict=True)
    ]
    times = _read_cells(["" if _CLOCK.fullmatch(cell) else cell for cell in cells], rows, path, dates)
    conversations: dict[str, tuple[list[Utterance], Counter[str]]] = {}
    for (_, row), cell, time in zip(rows, cells, times, strict=True):
        chat = row[columns["chat"]].strip() if "chat" in columns else ""
        utterances, left_out = conversations.setdefault(chat or path.stem, ([], Counter()))
        speaker, text = _one_line(row[columns["speaker"]]), row[columns["text"]].strip()
        left_out["empty messages"] += not text
        left_out["times without a day"] += _CLOCK.fullmatch(cell) is not None
        left_out["other cells"] += sum(bool(cell.strip()) for name, cell in row.items() if name not in used)
        id = row[columns["id"]].strip() if "id" in columns else ""
        speaker = speakers.name(speaker or "unknown", None if id.lower() in _NO_IDS else id)
        utterances.append((speaker, text, time))
    return [
        _Conversation(id, {"source": "table"}, _put_oldest_first(utterances), left_out, str(path))
        for id, (utterances, left_out) in conversations.items()
    ]


def _put_oldest_first(utterances: list[Utterance]) -> list[Utterance]:
    """Return utterances in the order of time if they stand newest first."""
    times = [parse_iso_time(time).replace(tzinfo=None) for _, _, time in utterances if time is not None]
    steps = [(a > b) - (a < b) for a, b in pairwise(times)]
    return utterances[::-1] if steps.count(1) > 9 * steps.count(-1) else utterances


def _read_time(cell: str) -> str | None:
    """Return the ISO time in a cell that names or begins with the year, or counts seconds; None for another one."""
    if _OPEN_DATE.match(cell):
        return None
    if (time := to_iso_time(cell.removesuffix(" UTC"))) is not None:
        return time
    with suppress(ValueError, TypeError):
        if (match := _EPOCH.fullmatch(cell)) is not None:
            return datetime.fromtimestamp(int(match[1]), UTC).replace(tzinfo=None).isoformat()
        if _MAIL_DATE.fullmatch(cell):
            return parsedate_to_datetime(cell).isoformat()
    return None


def _is_day(cell: str) -> bool:
    """Return True for a cell with a date."""
    plain = _SPACES.sub(" ", cell)
    return _read_time(cell) is not None or _TIME.fullmatch(f"{plain} 0:00") is not None or _has_clock(cell)


def _has_clock(cell: str) -> bool:
    """Return True for a cell with a date and a time."""
    return len(_read_time(cell) or "") > len("2024-05-24") or _TIME.fullmatch(_SPACES.sub(" ", cell)) is not None


def _read_cells(
    cells: Sequence[str], rows: Sequence[tuple[str, object]], path: Path, dates: str | None
) -> list[str | None]:
    """Return the ISO times in cells, in the one order of dates that fits all; None for an empty cell."""
    times = [_read_time(cell) for cell in cells]
    messages: dict[int, tuple[_Message, bool]] = {}
    for index, (cell, (location, _)) in enumerate(zip(cells, rows, strict=True)):
        plain = _SPACES.sub(" ", cell)
        if times[index] is not None or not plain:
            continue
        head = _TIME.fullmatch(plain)
        if (match := head or _TIME.fullmatch(f"{plain} 0:00")) is None:
            raise DataError(f"{location}: {cell!r} is no date or time in a known form (2024-05-24 21:05)")
        line = int(location.rpartition(":")[2])
        messages[index] = _read_head(match, line, location), head is not None
    if messages:
        resolved = _resolve_times([message for message, _ in messages.values()], path, dates)
        for (index, (_, has_clock)), time in zip(messages.items(), resolved, strict=True):
            form = "seconds" if time.second else "minutes"
            times[index] = time.isoformat(timespec=form) if has_clock else time.date().isoformat()
    return times
