"""Chats exported by apps, mails, transcripts and tables of messages as chunks of a day each, told apart by content.

Apps write JSON (`chat_json`), texts (`whatsapp`, `kakaotalk`, `subtitles`), mails (`mail`) and tables
(`message_tables`).

What an export loses is counted in `Task.meta["left_out"]`: media, deleted messages, notices of WhatsApp, calls of
tools, and edited branches, which are replies and questions that were replaced by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK, split_lines
from memalpha.tasks.formats import chat_json
from memalpha.tasks.formats.files import require_field
from memalpha.tasks.formats.jsonl import find_problems, iterate_lines, parse_unique
from memalpha.tasks.formats.kakaotalk import read_day_text
from memalpha.tasks.formats.mail import is_mail, read_mails
from memalpha.tasks.formats.message_tables import find_columns, find_fields, read_objects, read_table
from memalpha.tasks.formats.messages import (
    HOLDERS,
    ExportedConversation,
    Utterance,
    chunk_messages,
    holds_conversations,
    is_message_file,
    is_messages,
    iter_conversations,
    load_messages,
    pack_days,
    parse_timestamp,
)
from memalpha.tasks.formats.subtitles import read_subtitles
from memalpha.tasks.formats.whatsapp import OTHER_TEXTS, is_chat_text, read_whatsapp
from memalpha.text_files import parse_json, parse_json_or_none, read_text
from memalpha.types import Chunk, Task

_SUFFIXES = (".txt", ".json", ".zip", ".eml", ".mbox", ".srt", ".vtt")
"""Endings of files in a folder of chats; an archive is refused with a word on unpacking it."""

_ASKED = ({"q", "question"}, {"a", "answer", "answers"})
_AS_TASK = "write a task with chunks and questions (data/README.md)"


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
        if path.suffix.lower() == ".txt" or (dates is None and path.suffix.lower() in (".csv", ".tsv", ".jsonl")):
            return None
        if dates is not None:
            raise DataError(f"{path}: dates belongs to chats exported as text only")
        if not path.is_file():
            return None
        value = parse_json_or_none(read_text(path))
        if not is_message_file(path):
            if not holds_conversations(value) and not _holds_talks(value):
                return None
            return build_chats([(path.stem, str(path), parse_json(read_text(path), str(path)))])
        _refuse_questions(value, path)
        tasks = [Task(id=path.stem, chunks=tuple(load_messages(path)), meta={"source": "messages"})]
    return [with_turn_ids(task) for task in tasks]


def _holds_talks(value: Any) -> bool:
    """Return True for messages of people (`find_fields`), and for what holds them as `holds_conversations` says."""
    if isinstance(value, list):
        return bool(value) and (find_fields(value[0]) is not None or _holds_talks(value[0]))
    is_holder = isinstance(value, Mapping) and "chunks" not in value
    return is_holder and any(_holds_talks(value.get(field)) for field in HOLDERS)


def _refuse_questions(value: Any, path: Path) -> None:
    for field, items in value.items() if isinstance(value, Mapping) else ():
        if is_messages(items) and all(items[0].keys() & names for names in _ASKED):
            raise DataError(f"{path}: {field}: questions beside messages are not read: {_AS_TASK}")


def load_message_lines(path: Path) -> list[Task] | None:
    """Return the conversations of a file with `{"messages": [...]}` a line as tasks; None for other files.

    A line may have an `id` of its task (default: NAME-LINE) and a `timestamp` of its messages without one. The list may
    be in another of `HOLDERS`, or the line itself, or be several (NAME-LINE-NUMBER).

    Raises:
        DataError: A line is no such object, holds no words or the id of another, or a message is invalid; the error
            names line and field.
    """
    first = parse_json_or_none(next((line for _, line in iterate_lines(path)), b""))
    has_messages = isinstance(first, Mapping) and "chunks" not in first and isinstance(first.get("messages"), list)
    if not has_messages and not holds_conversations(first) and not _holds_talks(first):
        return None
    places = ((f"{path.stem}-{number}", f"{path}:{number}", line) for number, line in iterate_lines(path))
    return build_chats((id, place, parse_json(line, place)) for id, place, line in places)


def build_chats(values: Iterable[tuple[str, str, Any]]) -> list[Task]:
    """Return the conversations in (id, place, value) as tasks; several in one value are numbered: ID-NUMBER."""
    held = ((id, list(iter_conversations(value, place))) for id, place, value in values)
    named = (
        (place, (f"{id}-{number}" if items[1:] else id, fields))
        for id, items in held
        for number, (place, fields) in enumerate(items, 1)
    )
    return parse_unique(named, _parse_conversation)


def _parse_conversation(item: tuple[str, Mapping[str, Any]], location: str) -> Task:
    id, value = item
    messages = require_field(value, "messages", list, location)
    if unknown := value.keys() - {"messages", "id", "timestamp"}:
        remedy = f"take it out, as Dataset.remove_columns does; for questions, {_AS_TASK}"
        raise DataError(f"{location}.{min(unknown)}: no field of a conversation (messages, id, timestamp): {remedy}")
    if (own_id := require_field(value, "id", (str, int, NoneType), location)) is not None:
        id = str(own_id)
    timestamp = parse_timestamp(value.get("timestamp"), f"{location}: timestamp")
    place, left_out = f"{location}: messages", Counter[str]()
    if columns := find_fields(messages[0] if messages else None):
        placed = ((f"{place}[{number}]", message) for number, message in enumerate(messages))
        talks = read_objects(placed, Path(location), columns, None)
        chunks = pack_days((said for talk in talks for said in talk.utterances), timestamp=timestamp)
        left_out = sum((talk.left_out for talk in talks), left_out)
    else:
        chunks = chunk_messages(messages, timestamp=timestamp, location=place)
    if not chunks:
        raise DataError(f"{location}: messages: none has words of a user or an assistant: leave the line out")
    meta = {"source": "messages", **({"left_out": dict(+left_out)} if +left_out else {})}
    task = with_turn_ids(Task(id=id, chunks=tuple(chunks), meta=meta))
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
    if channels := chat_json.find_slack_channels(path, files):
        return [with_turn_ids(task) for task in _pack_conversations(channels, path)]
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
                f"move it to another folder; {OTHER_TEXTS}"
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
    """Return the conversations with words that an app exported; None for a file of another kind.

    Args:
        path: The file.
        dates: Order of the dates of a text.
        size: Most characters of a chunk.
        exact_times: A chunk holds the utterances of one timestamp, not of a day.

    Raises:
        DataError: It is such a file and cannot be read, or an archive of such files; the error names file, and line or
            field.
    """

    def pack(conversations: Iterable[ExportedConversation]) -> list[Task]:
        return _pack_conversations(conversations, path, size, exact_times)

    def pack_one(source: str, utterances: Iterable[Utterance]) -> list[Task]:
        return pack([ExportedConversation.of_file(path, source, utterances, left_out)])

    left_out = Counter[str]()
    if not path.is_file():
        return None
    if path.suffix.lower() in (".csv", ".tsv"):
        columns = find_columns(path)
        return pack(read_table(path, columns, dates)) if columns else None
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        if (columns := find_fields(parse_json_or_none(next((line for _, line in iterate_lines(path)), b"")))) is None:
            return None
        places = ((f"{path}:{number}", line) for number, line in iterate_lines(path))
        return pack(read_objects(((place, parse_json(line, place)) for place, line in places), path, columns, dates))
    if is_mail(path):
        return pack_one("mail", read_mails(path, left_out))
    text = read_text(path)
    if (words := read_subtitles(text)) is not None:
        return [_pack_words(words, path, size)]
    if chat := read_day_text(text, path, dates, left_out):
        return pack_one(*chat)
    if is_chat_text(text, any_names=path.suffix.lower() == ".txt"):
        return pack([read_whatsapp(text, path, dates)])
    value = parse_json_or_none(text)
    items = value if isinstance(value, list) else [value]
    first = next((item for item in items if isinstance(item, Mapping)), {})
    if "mapping" in first or "chat_messages" in first:
        return pack(chat_json.read_assistant(value, path))
    if chat_json.is_slack(first):
        return pack([chat_json.slack_channel(items, path)])
    if isinstance(value, Mapping) and (reader := chat_json.find_reader(value)):
        source, read_messages = reader
        return pack_one(source, read_messages(value["messages"], path, left_out))
    if isinstance(value, Mapping) and (isinstance(value.get("chats"), Mapping) or chat_json.is_messenger_chat(value)):
        return pack(chat_json.read_messenger(value, path))
    messages, start = (value.get("messages"), value.get("timestamp")) if isinstance(value, Mapping) else (value, None)
    if is_messages(messages) and (columns := find_fields(messages[0])):
        _refuse_questions(value, path)
        start = parse_timestamp(start, f"{path}: timestamp")
        placed = ((f"{path}: message {number}", message) for number, message in enumerate(messages))
        return pack(ExportedConversation(*chat[:-1], start) for chat in read_objects(placed, path, columns, dates))
    return None


def _pack_conversations(
    conversations: Iterable[ExportedConversation], path: Path, size: int = CHUNK, exact_times: bool = False
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
        raise DataError(f"{path}: no message has words of a person: there is nothing to read")
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
