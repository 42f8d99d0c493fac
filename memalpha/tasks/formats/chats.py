"""Chats as apps export them, told apart by their content: WhatsApp, ChatGPT, Claude, chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK
from memalpha.tasks.formats.assistant_exports import is_assistant_export, load_assistant_export
from memalpha.tasks.formats.messages import is_messages, load_messages
from memalpha.tasks.formats.whatsapp import NO_CHAT, is_whatsapp, load_whatsapp
from memalpha.text_files import read_text
from memalpha.types import Chunk, SpeakerTurn, Task


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
    return task.model_copy(update={"chunks": tuple(map(_number_turns, task.chunks))})


def _number_turns(chunk: Chunk) -> Chunk:
    turns = [
        SpeakerTurn(speaker=turn.speaker, text=turn.text, id=f"{chunk.index}.{number}")
        for number, turn in enumerate(chunk.turns)
    ]
    return chunk.model_copy(update={"turns": tuple(turns)})
