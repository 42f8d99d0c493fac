"""Chats exported as text by WhatsApp: one conversation, with a chunk for each day.

Phones write two forms: `[24/05/2024, 21:05:09] Ana: text` (iOS) and `24/05/2024, 21:05 - Ana: text` (Android). Order,
separators, seconds and the 12-hour clock follow the phone's language. A line without such a head continues the message
before it. Left out are lines of the app (no name, or text behind a U+200E) and placeholders of media.

Whether the day or the month comes first is decided over the whole file: by a number above 12, or by the order of the
messages. If both readings fit, the file is refused, and `dates=` says which holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from memalpha.errors import DataError
from memalpha.tasks.chunking import CHUNK
from memalpha.tasks.formats.messages import pack_days
from memalpha.text_files import read_text
from memalpha.types import Task

DATE_ORDERS = ("day-first", "month-first")
NO_CHAT = "no message of a chat export, such as '[24/05/2024, 21:05:09] Ana: text'"

_MARKS = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACES = re.compile("[\u00a0\u2009\u202f]")
_MOMENT = (
    r"(?P<first>\d{1,4})(?P<separator>[./-])(?P<second>\d{1,2})(?P=separator)(?P<third>\d{1,4})\.?,? "
    r"(?:klo )?(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<seconds>\d{2}))?(?: ?(?P<half>[ap])\.? ?m\.?)?"
)
_HEADS = tuple(re.compile(form % _MOMENT, re.IGNORECASE) for form in (r"\[%s\] ?", "%s [-\u2013] "))
_NAME = re.compile('([^:"\u201c\u201d\u201e\u00ab\u00bb]{1,80}):(?: |$)')
_APP_NOTE = re.compile("[ \n]?\u200e<[^<>\n]*>$")
_PLACEHOLDER = re.compile(
    r"<[^<>\n]{3,40}>|(?-i:null)|.{1,200} \(file attached\)|(?:this message was|you) deleted(?: this message)?\.?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Message:
    """Message of an export: the number of its line, its date and time as numbers, its name and text with all marks."""

    line: int
    date: tuple[str, str, str]
    time: tuple[int, int, int]
    text: str


def is_whatsapp(text: str) -> bool:
    """Return True if the first line of a text that is not blank has the head of a message."""
    line = next((line for line in text.split("\n") if line.strip()), "")
    return _match_head(line) is not None


def load_whatsapp(path: Path, *, dates: str | None = None, size: int = CHUNK) -> Task:
    """Return the chat as a task without questions; its id is the file's name.

    Args:
        path: The exported text.
        dates: "day-first" or "month-first"; None decides over the whole file.
        size: Most characters of a chunk.

    Raises:
        DataError: The file is no such text, a date does not exist, or the order of dates stays open.
    """
    if dates is not None and dates not in DATE_ORDERS:
        raise DataError(f"dates={dates}: use {' or '.join(DATE_ORDERS)}")
    text = read_text(path)
    if not is_whatsapp(text):
        raise DataError(f"{path}:1: {NO_CHAT}")
    messages = list(_parse(text, str(path)))
    times = _resolve_times(messages, path, dates)
    utterances = [
        (*_read_message(message.text), time.isoformat(timespec="seconds" if time.second else "minutes"))
        for message, time in zip(messages, times, strict=True)
    ]
    chunks = pack_days(utterances, size=size)
    if not chunks:
        raise DataError(f"{path}: no message has words of a person: there is nothing to read")
    return Task(id=path.stem, chunks=tuple(chunks), meta={"source": "whatsapp"})


def _match_head(line: str) -> re.Match[str] | None:
    """Match the head of a message in a line without its marks, with plain spaces."""
    plain = _SPACES.sub(" ", _MARKS.sub("", line))
    return next((match for head in _HEADS if (match := head.match(plain))), None)


def _parse(text: str, location: str) -> Iterator[_Message]:
    """Yield the messages; only heads of the first one's form begin another."""
    head: re.Match[str] | None = None
    first_line, lines = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        match = _match_head(line)
        if match is None or (head is not None and match.re is not head.re):
            lines.append(line)
            continue
        if head is not None:
            yield _build_message(head, lines, first_line, location)
        head, first_line, lines = match, number, [_after_head(line, match.end())]
    if head is not None:
        yield _build_message(head, lines, first_line, location)


def _after_head(line: str, length: int) -> str:
    """Return what follows the first `length` characters of a line that are no marks; marks behind them stay."""
    position = 0
    while length:
        length -= not _MARKS.match(line[position])
        position += 1
    return line[position:]


def _build_message(head: re.Match[str], lines: Sequence[str], line: int, location: str) -> _Message:
    hour, minute, second = int(head["hour"]), int(head["minute"]), int(head["seconds"] or 0)
    if half := head["half"]:
        if not 1 <= hour <= 12:
            raise DataError(f"{location}:{line}: hour {hour} does not exist on a 12-hour clock")
        hour = hour % 12 + 12 * (half.lower() == "p")
    if hour > 23 or minute > 59 or second > 59:
        raise DataError(f"{location}:{line}: there is no time {hour:02}:{minute:02}:{second:02}")
    return _Message(line, (head["first"], head["second"], head["third"]), (hour, minute, second), "\n".join(lines))


def _read_message(text: str) -> tuple[str, str]:
    """Return speaker and words of a message; both are empty where the app speaks or media are left out."""
    first, newline, rest = text.rstrip("\n").partition("\n")
    name = _NAME.match(_MARKS.sub("", first))
    if name is None:
        return "", ""
    words = _APP_NOTE.sub("", _after_head(first, name.end()) + newline + rest)
    # A line that begins with U+200E is the app's: "image omitted", "Ana joined".
    lines = [_MARKS.sub("", line) for line in words.split("\n") if not line.startswith("\u200e")]
    if lines and _PLACEHOLDER.fullmatch(lines[0].strip()):
        del lines[0]
    return name[1].strip(), "\n".join(lines).strip().removesuffix(" <This message was edited>")


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
                times.append(datetime(int(year) + 2000 * (len(year) == 2), int(month), int(day), *message.time))
            except ValueError:
                problem = max(problem, (message.line, "/".join(message.date)))
                break
        else:
            readings.append(times)
    if not readings:
        raise DataError(f"{path}:{problem[0]}: there is no date {problem[1]}, read {' or '.join(orders)}")
    if len(readings) == 1 or readings[0] == readings[1]:
        return readings[0]
    in_order = [times for times in readings if all(a.date() <= b.date() for a, b in pairwise(times))]
    if len(in_order) == 1:
        return in_order[0]
    raise DataError(
        f"{path}: the dates may begin with the day or the month ({'/'.join(messages[0].date)} on line "
        f"{messages[0].line}): say which with memalpha data prepare FILE tasks.jsonl dates=day-first, or month-first"
    )
