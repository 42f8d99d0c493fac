"""Tables of messages (`.csv`, `.tsv`), and JSON objects with the same fields: `{"sender": "Ana", "text": "Hi"}`.

The columns of speakers, words, times and conversations are known by their names (`_COLUMNS`, of seven languages); a
conversation is a task. Beside `sender` or `sender_name`, ids in `sender_id`
tell people apart. Messages that stand newest first are put in the order of time. The order of the numbers in its dates
is decided like WhatsApp's.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any

from memalpha.errors import DataError
from memalpha.tasks.chunking import read_time
from memalpha.tasks.formats.files import iter_csv_rows, open_text, require_field
from memalpha.tasks.formats.messages import ExportedConversation, SpeakerNames, Utterance, one_line
from memalpha.tasks.formats.whatsapp import DATE_ORDERS, SPACES, TIME, DatedMessage, read_head, resolve_times
from memalpha.types import parse_iso_time

_COLUMNS = {
    "speaker": "sender from author speaker user username sender_name sender_full_name from_name absender von autor "
    "verfasser benutzer remitente de usuario expéditeur auteur mittente da autore remetente afzender name",
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
_NO_IDS = ("", "null", "none", "nan")
_TASK_COLUMNS = frozenset(("question", "context", "task", "chunk", "turn"))

_OTHER_FIELDS = frozenset(("role", "chunks", "questions", "answer", "answers", "prompt", "chosen"))
"""Fields of JSON objects that hold more than a message of a person."""


def find_columns(path: Path) -> dict[str, str] | None:
    """Return the separator of a table of messages and its columns by what they hold; None for another table.

    A table of messages has columns of speakers and words, and none of a task file.
    """
    if path.name == "chunks.csv":  # a table of a folder of tasks
        return None
    first_line = ""
    with open_text(path) as file, suppress(UnicodeError):  # whoever reads it says where
        first_line = file.readline(csv.field_size_limit())  # a longer field is an error
    for mark in ",;\t":
        if columns := _match_columns(next(csv.reader([first_line], delimiter=mark), [])):
            return {"separator": mark, **columns}
    return None


def find_fields(message: object) -> dict[str, str] | None:
    """Return the fields of a JSON object as `find_columns` does; None for another value, and for one with a role."""
    if not isinstance(message, Mapping) or not _OTHER_FIELDS.isdisjoint(message):
        return None
    columns = _match_columns(list(map(str, message)))
    is_flat = columns and not any(isinstance(message.get(name, []), list | Mapping) for name in columns.values())
    return columns if is_flat else None


def _match_columns(header: Sequence[str]) -> dict[str, str] | None:
    names = {re.sub("[ _-]+", "_", name.strip().lower()): name.strip() for name in header}
    columns = {kind: names[w] for kind, words in _COLUMNS.items() for w in words.split()[::-1] if w in names}
    stem = re.sub("_?name$", "", re.sub("[ _-]+", "_", columns.get("speaker", "").lower()))
    if (id_column := names.get(f"{stem}_id", names.get(f"{stem}id"))) and stem:
        columns["id"] = id_column
    is_named = columns.get("speaker", "").lower() != "name" or "day" in columns  # things have names, too
    is_table = columns.keys() >= {"speaker", "text"} and is_named and _TASK_COLUMNS.isdisjoint(names)
    return columns if is_table else None


def read_table(path: Path, columns: Mapping[str, str], dates: str | None) -> list[ExportedConversation]:
    """Return the conversations of a table of messages; arguments as of `read_rows`, with the separator.

    Raises:
        DataError: A row is ragged, or a time has no known form.
    """
    used = {kind: name for kind, name in columns.items() if kind != "separator"}
    return read_rows(list(iter_csv_rows(path, list(used.values()), columns["separator"])), path, used, dates)


def read_objects(
    objects: Iterable[tuple[str, Any]], path: Path, columns: Mapping[str, str], dates: str | None
) -> list[ExportedConversation]:
    """Return the conversations of JSON objects, each with its place; the other arguments are those of `read_rows`.

    Raises:
        DataError: One is no object with a speaker and words or null for these, or a time has no known form.
    """
    rows = []
    for place, value in objects:
        require_field(value, columns["speaker"], (str, int), place)
        require_field(value, columns["text"], (str, int, NoneType), place)
        is_empty = {
            name: isinstance(cell, list | Mapping | bool | NoneType) and not cell for name, cell in value.items()
        }
        rows.append((place, {name: "" if is_empty[name] else str(cell) for name, cell in value.items()}))
        rows[-1][1].update({name: "" for name in columns.values() if name not in value})
    return read_rows(rows, path, columns, dates)


def read_rows(
    rows: Sequence[tuple[str, Mapping[str, str]]], path: Path, columns: Mapping[str, str], dates: str | None
) -> list[ExportedConversation]:
    """Return the conversations of rows.

    Args:
        rows: Place and cells by column.
        path: The file.
        columns: Its columns (`find_columns`, `find_fields`).
        dates: Order of the dates, "day-first" or "month-first"; None decides over the whole file.

    Raises:
        DataError: A time has no known form.
    """
    used = list(columns.values())
    speakers = SpeakerNames()
    days, clocks = (
        [row[columns[kind]].strip() if kind in columns else "" for _, row in rows] for kind in ("day", "clock")
    )
    if columns.get("day", "").lower() in _OTHER_DAYS and not any(
        read_time(day) is not None or TIME.fullmatch(f"{SPACES.sub(' ', day)} 0:00") is not None or _has_clock(day)
        for day in days
    ):
        used.remove(columns["day"])
        days = [""] * len(rows)
    cells = [
        f"{day} {clock}".strip() if clock and not _has_clock(day) else day
        for day, clock in zip(days, clocks, strict=True)
    ]
    places = [place for place, _ in rows]
    times = read_cells(["" if _CLOCK.fullmatch(cell) else cell for cell in cells], places, path, dates)
    conversations: dict[str, tuple[list[Utterance], Counter[str]]] = {}
    for (_, row), cell, time in zip(rows, cells, times, strict=True):
        chat = row[columns["chat"]].strip() if "chat" in columns else ""
        utterances, left_out = conversations.setdefault(chat or path.stem, ([], Counter()))
        speaker, text = one_line(row[columns["speaker"]]), row[columns["text"]].strip()
        left_out["empty messages"] += not text
        left_out["unreadable dates"] += time is None and bool(cell) and _CLOCK.fullmatch(cell) is None
        left_out["times without a day"] += _CLOCK.fullmatch(cell) is not None
        left_out["other cells"] += sum(bool(cell.strip()) for name, cell in row.items() if name not in used)
        id = row[columns["id"]].strip() if "id" in columns else ""
        speaker = speakers.name(speaker or "unknown", None if id.lower() in _NO_IDS else id)
        utterances.append((speaker, text, time))
    for utterances, _ in conversations.values():
        times = [parse_iso_time(time).replace(tzinfo=None) for _, _, time in utterances if time is not None]
        steps = [(a > b) - (a < b) for a, b in pairwise(times)]
        if steps.count(1) > 9 * steps.count(-1):  # newest first
            utterances.reverse()
    return [
        ExportedConversation(id, {"source": "table"}, utterances, left_out, str(path))
        for id, (utterances, left_out) in conversations.items()
    ]


def _has_clock(cell: str) -> bool:
    """Return True for a cell with a date and a time."""
    return len(read_time(cell) or "") > len("2024-05-24") or TIME.fullmatch(SPACES.sub(" ", cell)) is not None


def read_cells(cells: Sequence[str], places: Sequence[str], path: Path, dates: str | None) -> list[str | None]:
    """Return the ISO times in cells, in the one order of dates that fits all.

    None stands for an empty cell, and for one of no known form where at least nine of ten have one.

    Args:
        cells: The cells.
        places: File and line of each.
        path: The file, for messages.
        dates: Order of the dates; None finds it.

    Raises:
        DataError: More than a tenth of the cells have no known form, or the order stays open.
    """
    faults: list[DataError] = []
    times = [read_time(cell) for cell in cells]
    messages: dict[int, tuple[DatedMessage, bool]] = {}
    for index, (cell, location) in enumerate(zip(cells, places, strict=True)):
        plain = SPACES.sub(" ", cell)
        if times[index] is not None or not plain:
            continue
        head = TIME.fullmatch(plain)
        try:
            if (match := head or TIME.fullmatch(f"{plain} 0:00")) is None:
                raise DataError(f"{location}: {cell!r} is no date or time in a known form (2024-05-24 21:05)")
            message = read_head(match, int(re.findall(r"\d+", location)[-1]), location)
            if not any(map(message.read_time, DATE_ORDERS)):
                raise DataError(f"{location}: there is no date {cell}: write years first with four digits")
            messages[index] = message, head is not None
        except DataError as error:
            faults.append(error)
    if len(faults) * 10 > sum(map(bool, cells)):
        raise faults[0]
    if messages:
        resolved = resolve_times([message for message, _ in messages.values()], path, dates)
        for (index, (_, has_clock)), time in zip(messages.items(), resolved, strict=True):
            form = "seconds" if time.second else "minutes"
            times[index] = time.isoformat(timespec=form) if has_clock else time.date().isoformat()
    return times
