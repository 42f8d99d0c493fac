"""Conversations that apps export as JSON.

Of **ChatGPT and Claude**, `conversations.json` is read: a task for each conversation. Read are the words of the user
and of the assistant, on the branch that the app shows. Left out are hidden and system messages, tool calls and their
results, thoughts, images and attached files. Times are UTC. Neither company publishes the format and both extend it, so
unknown fields and kinds of content are skipped; what is needed must be there. No store holds a NUL or half of an emoji:
each becomes U+FFFD.

Of **Telegram** (`result.json`, "machine-readable JSON", of one chat or of all, also those that were left) and
**Discord** (the JSON that DiscordChatExporter writes) the messages with words are read. Forwarded ones say whose words
they are. A second person of one name, by his id, is `Ana (2)`. Read are also the messages of **Slack** (a day, or the
folder of a channel or a workspace), **Instagram** and **Messenger** (`message_1.json`, whose letters are mended, and
the download of encrypted chats) and **Google Chat** (`messages.json` of Takeout).
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from types import NoneType
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.formats.files import require_field
from memalpha.tasks.formats.jsonl import MESSAGES
from memalpha.tasks.formats.messages import (
    ExportedConversation,
    SpeakerNames,
    Utterance,
    is_messages,
    one_line,
    parse_message,
)
from memalpha.text_files import NO_TEXT, parse_json, parse_json_or_none, read_text
from memalpha.types import parse_iso_time

_SPEAKERS = {"human": "user", "assistant": "assistant"}
_WORDS = ("text", "voice_note")
"""Types of Claude's blocks that hold words of the conversation: written or spoken."""
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")


def read_assistant(value: object, path: Path) -> Iterator[ExportedConversation]:
    """Yield the conversations of ChatGPT or Claude, in the order of the file."""
    for number, conversation in enumerate(value if isinstance(value, list) else [value]):
        location = f"{path}: [{number}]" if isinstance(value, list) else f"{path}"
        if not isinstance(conversation, Mapping):
            raise DataError(f"{location}: a conversation is an object, not {type(conversation).__name__}")
        left_out = Counter[str]()
        source = "chatgpt" if "mapping" in conversation else "claude"
        read, id_field, title_field, time_field, unit = _ASSISTANTS[source]
        utterances, title = read(conversation, location, left_out), conversation.get(title_field)
        start = _to_utc(conversation.get(time_field), f"{location}.{time_field}", unit)
        id = conversation.get(id_field) or conversation.get("id")
        if not isinstance(id, str) or not id.strip():
            raise DataError(f"{location}.{id_field}: is missing: every conversation needs an id")
        texts = ((speaker, NO_TEXT.sub("\ufffd", text), time) for speaker, text, time in utterances)
        named = {"title": NO_TEXT.sub("\ufffd", title)} if isinstance(title, str) and title.strip() else {}
        yield ExportedConversation(id, {"source": source, **named}, texts, left_out, location, start)


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
            time = _to_utc(message.get("create_time"), f"{where}.create_time", 1)
            yield role, _CITATION.sub("", _join_lines(texts)).strip(), time


def _shown_leaf(current_node: object, nodes: Mapping[str, Any], location: str) -> str:
    """Return `current_node`, or the latest leaf of an export that names none of its nodes.

    Raises `DataError` if no single leaf is the latest.
    """
    if isinstance(current_node, str) and current_node in nodes:
        return current_node
    nodes = {id: node for id, node in nodes.items() if isinstance(node, Mapping)}
    parents = {parent for node in nodes.values() if isinstance(parent := node.get("parent"), str)}
    messages = {
        id: message for id in nodes.keys() - parents if isinstance(message := nodes[id].get("message"), Mapping)
    }
    times = {id: time for id, item in messages.items() if isinstance(time := item.get("create_time"), int | float)}
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
        yield _SPEAKERS[sender], text.strip(), _to_utc(message.get("created_at"), f"{where}.created_at")


def _join_lines(texts: Iterable[Any]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text.strip())


_ASSISTANTS = {
    "chatgpt": (_read_chatgpt, "conversation_id", "title", "create_time", 1),
    "claude": (_read_claude, "uuid", "name", "created_at", None),
}
"""Readers of the conversations, and their fields of the id, the title and the time."""


def _to_utc(value: Any, location: str, unit: int | None = None) -> str | None:
    """Return a time in UTC, to seconds; None for None.

    Args:
        value: An ISO time, or a number.
        location: Place that an error names.
        unit: Parts of a second that the number counts from 1970 on; None for an ISO time.

    Raises:
        DataError: It is no such time.
    """
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        time = datetime.fromtimestamp(value / unit, UTC) if unit else parse_iso_time(value)
        return (time.astimezone(UTC) if time.tzinfo else time).replace(tzinfo=None).isoformat(timespec="seconds")
    except (ValueError, TypeError, AttributeError, OverflowError, OSError) as error:
        kind = "time in seconds since 1970" if unit else "ISO 8601 time"
        raise DataError(f"{location}: {value!r} is no {kind}") from error


def is_messenger_chat(value: Mapping[str, Any]) -> bool:
    """Return True for a chat of Telegram or Discord, by the fields of its first message."""
    items = value.get("messages")
    if items == []:
        return value.keys() >= {"type", "id"} or "guild" in value
    first = items[0] if is_messages(items) else {}
    is_telegram = first.keys() > {"date", "text", "type"} and not first.keys().isdisjoint(("from", "actor"))
    return is_telegram or ("role" not in first and isinstance(first.get("author"), Mapping))


def read_messenger(value: Mapping[str, Any], path: Path) -> Iterator[ExportedConversation]:
    """Yield the chat of Telegram or Discord, or all chats of Telegram."""
    left = value.get("left_chats")  # groups that one has left; others export none, null or []
    has_left = isinstance(left, Mapping) and isinstance(left.get("list"), list)
    fields = ["chats"] * ("chats" in value) + ["left_chats"] * has_left
    ids, speakers = set[str](), SpeakerNames()  # of the whole file: its chats may go into one memory
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
        yield ExportedConversation(id, meta, _read_posts(messages, location, left_out, speakers), left_out, location)


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
            source = speakers.name(one_line(message["forwarded_from"] or "somebody"), message.get("forwarded_from_id"))
            text = f"[forwarded from {source}] {text}"
        name = author.get("nickname") or author.get("name") or message.get("from") or "Deleted account"
        name = speakers.name(one_line(name), author.get("id") if is_discord else message.get("from_id"))
        date = message.get("timestamp" if is_discord else "date")
        fields = {"role": "user", "name": name, "content": NO_TEXT.sub("\ufffd", text), "timestamp": date}
        yield parse_message(fields, place)


_SLACK_WORDS = (None, "bot_message", "file_share", "me_message", "thread_broadcast")
_SLACK_NAMES = ("display_name", "real_name", "name")
_SLACK_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
_SLACK_LINK = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")
_META_MEDIA = ("photos", "videos", "audio_files", "gifs", "files", "sticker", "share")
_META_ENCRYPTED = {"senderName": "sender_name", "timestamp": "timestamp_ms", "text": "content", "media": "photos"}
"""Fields of the download of Messenger's encrypted chats."""
_META_NOTE = re.compile(r"Reacted .{1,12} to your message ?|Liked a message|.{1,80} sent an attachment\.")
_GOOGLE_TIMES = ("%A, %B %d, %Y at %I:%M:%S %p UTC", "%A, %d %B %Y at %H:%M:%S UTC")


def is_slack(message: Mapping[str, Any]) -> bool:
    return message.keys() >= {"type", "ts"} and "role" not in message


def find_slack_channels(folder: Path, files: Sequence[Path]) -> list[ExportedConversation]:
    """Return the channels of an exported Slack workspace, or the one in the folder; none in another folder.

    Args:
        folder: The folder of a workspace, with `users.json`, or of a channel, with a file for each day.
        files: What it holds.
    """
    is_workspace, names, speakers = (folder / "users.json").is_file(), dict[str, str](), SpeakerNames()
    users_file = (folder if is_workspace else folder.parent) / "users.json"
    channels: list[tuple[Sequence[Any], Path, int]] = []  # messages, folder, number of other files
    for channel in (file for file in files if file.is_dir()) if is_workspace else [folder]:
        inside = sorted(file for file in channel.iterdir() if not file.name.startswith("."))
        days = [file for file in inside if _SLACK_DAY.fullmatch(file.name)]
        items = [parse_json(read_text(file), str(file)) for file in days if is_workspace or days == inside]
        messages = [message for day in items if isinstance(day, list) for message in day]
        if is_messages(messages) and is_slack(messages[0]):
            channels.append((messages, channel, len(inside) - len(days)))
    users = parse_json(read_text(users_file), str(users_file)) if channels and users_file.is_file() else None
    for user in users if is_messages(users) else ():
        id = user.get("id") if isinstance(user, Mapping) else None
        if isinstance(id, str) and (name := _slack_name(user.get("profile")) or _slack_name(user)):
            names[id] = speakers.name(one_line(name), id)
    return [slack_channel(*channel, names) for channel in channels]


def _slack_name(profile: object) -> str | None:
    return next((profile[k] for k in _SLACK_NAMES if profile.get(k)), None) if isinstance(profile, Mapping) else None


def slack_channel(
    messages: Sequence[Any], path: Path, others: int = 0, users: Mapping[Any, str] | None = None
) -> ExportedConversation:
    """Return the messages of a Slack channel: of a day (a file), or of all days (their folder, with `others`)."""
    left_out = Counter({"other files": others})
    return ExportedConversation.of_file(path, "slack", _read_slack(messages, path, left_out, users or {}), left_out)


def _read_slack(
    messages: Sequence[Any], path: Path, left_out: Counter[str], users: Mapping[Any, str]
) -> Iterator[Utterance]:
    """Yield the messages of Slack; names come from its users, or from the profiles in messages."""
    ids = [require_field(m, "user", (str, NoneType), f"{path}: [{number}]") for number, m in enumerate(messages)]
    profiles = [message.get("user_profile") or message.get("bot_profile") for message in messages]
    shown = [users.get(id) or _slack_name(profile) for id, profile in zip(ids, profiles, strict=True)]
    names = {**{id: name for id, name in zip(ids, shown, strict=True) if id and name}, **users}
    speakers = SpeakerNames()

    def write_link(match: re.Match[str]) -> str:
        mark, target, label = match.groups()
        if target in names:
            return f"@{speakers.name(one_line(names[target]), target)}"
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
            raise DataError(
                f"{path}: a Slack export without profiles, which names its people by ids: read the folder "
                f"of its workspace, with users.json, or write {MESSAGES}"
            )
        speaker = speakers.name(one_line(name), id)
        text = _SLACK_LINK.sub(write_link, text)
        time = _to_utc(parse_json_or_none(str(message.get("ts"))), f"{path}: [{number}].ts", 1)
        yield speaker, NO_TEXT.sub("\ufffd", html.unescape(text)), time


def find_reader(value: Mapping[str, Any]) -> tuple[str, Callable[..., Iterator[Utterance]]] | None:
    """Return source and reader of the messages of Instagram and Messenger, or of Google Chat; None for others."""
    messages = value.get("messages")
    if is_messages(messages) and messages[0].keys().isdisjoint(("role", "author")):
        if "participants" in value and not {"sender_name", "senderName"}.isdisjoint(messages[0]):
            return "messenger", _read_meta
        if "created_date" in messages[0]:
            return "google-chat", _read_google_chat
    return None


def _read_meta(messages: Sequence[Any], path: Path, left_out: Counter[str]) -> Iterator[Utterance]:
    """Yield the messages of Instagram or Messenger, which stand newest first, by time."""
    if "senderName" in messages[0]:
        messages = [
            {_META_ENCRYPTED.get(key, key): m[key] for key in m} if isinstance(m, Mapping) else m for m in messages
        ]
    places = [f"{path}: messages[{number}]" for number in range(len(messages))]
    times = [require_field(*item) for item in zip(messages, repeat("timestamp_ms"), repeat(int), places)]
    for number in sorted(range(len(messages)), key=lambda number: (times[number], -number)):
        message = messages[number]
        fields = (require_field(message, key, (str, NoneType), places[number]) for key in ("sender_name", "content"))
        name, text = (_mend_letters(field or "") for field in fields)
        has_media = any(message.get(field) for field in _META_MEDIA)
        left_out["media"] += has_media
        if message.get("is_unsent") or message.get("isUnsent"):
            left_out["deleted messages"] += 1
        elif "call_duration" in message or _META_NOTE.fullmatch(text):
            left_out["notices"] += not has_media
        else:
            time = _to_utc(times[number], f"{places[number]}.timestamp_ms", 1000)
            yield one_line(name) or "unknown", NO_TEXT.sub("\ufffd", text), time


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
        creator, time = require_field(message, "creator", dict, place), None
        date = require_field(message, "created_date", str, place)
        for form in _GOOGLE_TIMES:
            with suppress(ValueError):
                time = datetime.strptime(" ".join(date.split()), form).isoformat()
        if time is None:
            raise DataError(
                f"{place}.created_date: {date!r} is no date in a known form: Friday, May 3, 2024 at 2:31:05 PM UTC"
            )
        email = creator.get("email") or None
        name = speakers.name(one_line(creator.get("name") or email or "unknown"), email, str(email))
        yield name, NO_TEXT.sub("\ufffd", text), time
