"""Mails: one (`.eml`) or a mailbox (`.mbox`), as Gmail, Thunderbird and Apple Mail save them.

A mail is a message of its author at its date, with the subject before its words. Another address behind a name that
was read before is named: `Ana (ana@example.org)`. Mails are read in the order of their
dates. Read is the plain text, or the words of the HTML. Lines that quote a mail of the same file are left out and
counted; other quotations stay, with their `>`. Attached files are counted.
"""

from __future__ import annotations

import email
import mailbox
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email import policy
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import parseaddr, parsedate_to_datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from memalpha.tasks.formats.messages import name_speaker
from memalpha.text_files import NO_TEXT

_START = re.compile(rb"(?:\xef\xbb\xbf|From .*\r?\n)?(?:[\w-]+:.*\r?\n(?:[ \t].*\r?\n)*)+")
_NEEDED = ("from", "date")
_TYPICAL = ("message-id", "mime-version", "received", "x-gm-thrid")
"""Fields that programs write: a letter that somebody typed, with From and Date, has none."""
_QUOTES = re.compile(r"((?:^>.*(?:\n|\Z))+)(?P<end>\s*\Z)?", re.MULTILINE)
_ATTRIBUTION = re.compile(r"\n[^\n]*[\d@][^\n]*(?:\n[^\n>]{1,40})?:\s*\Z")
"""Line or two before quoted lines that name the author: `On Friday 24 May, Ana wrote:`."""
_LONGEST_ATTRIBUTION = 200
_OUTLOOK = re.compile(r"^(?:[_-]{3,}.*\n+)?(?:\w+: .*\n){3,}", re.MULTILINE)
"""Head of a quotation without marks: From, Sent, To and Subject in any language."""
_LONG_QUOTE = 3  # lines; a shorter quotation may be a question that the line below it answers
_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, MessageError)  # from the words of a broken mail
_BREAKS = frozenset(("br", "p", "div", "tr", "li", "h1", "h2", "h3", "blockquote", "table"))
_SILENT = frozenset(("style", "script", "title"))


def is_mail(path: Path) -> bool:
    """Return True for a file that begins with the head of a mail, or with the line `From ` of a mailbox before it."""
    try:
        with path.open("rb") as file:
            match = _START.match(file.read(1 << 16))
    except OSError:  # whoever reads it says why
        return False
    if match is None:
        return False
    fields = {line.partition(b":")[0].lower().decode("ascii", "replace") for line in match[0].split(b"\n")}
    return fields.issuperset(_NEEDED) and not fields.isdisjoint(_TYPICAL)


class _Mail(NamedTuple):
    """Hold a mail: date in UTC, author, his address, subject, words, its id and those of the mails that it answers."""

    date: datetime
    author: str
    address: str
    subject: str
    words: str
    id: str
    answered: list[str]


def read_mails(path: Path, left_out: Counter[str]) -> list[tuple[str, str, str | None]]:
    """Return author, words and ISO time in UTC of each mail, by date; count in `left_out` what is not read."""
    mails: list[_Mail] = []
    for data in _split(path):
        mail = email.message_from_bytes(data, policy=policy.default)
        date = _read_date(mail)
        left_out["unreadable dates"] += date is None
        try:
            name, address = parseaddr(str(mail["from"]))
            author, subject = (" ".join(text.split()) for text in (name or address, str(mail["subject"] or "")))
            answered = re.findall("<[^<>]+>", f"{mail['references']} {mail['in-reply-to']}")
            id, words = str(mail["message-id"]).strip(), _read_body(mail)
            left_out["media"] += sum(1 for _ in mail.iter_attachments())
        except _UNREADABLE:
            left_out["unreadable mails"] += 1
            continue
        date = date or (mails[-1].date if mails else datetime.min)
        mails.append(_Mail(date, author or "unknown", address.lower(), subject, words, id, answered))
    mails.sort(key=lambda mail: mail.date)
    known: dict[str, str] = {}  # words with quotations on one line, by the id
    owners: dict[str, object] = {}
    letters: list[tuple[str, str, str | None]] = []
    for mail in mails:
        words, quotes = _drop_quotes(mail.words, " ".join(known.get(id, "") for id in mail.answered))
        known[mail.id] = " ".join(re.sub("^[> ]+", "", mail.words, flags=re.MULTILINE).split())
        left_out["quoted lines"] += quotes
        time = mail.date.isoformat() if mail.date > datetime.min else None
        text = NO_TEXT.sub("\ufffd", f"{mail.subject}\n{words}".strip())
        address = mail.address if "@" in mail.address else ""
        author = name_speaker(mail.author, address or None, owners, address)
        letters.append((NO_TEXT.sub("\ufffd", author), text, time))
    return letters


def _split(path: Path) -> Iterator[bytes]:
    """Yield the mails of a file."""
    with path.open("rb") as file:
        is_box = file.read(5) == b"From "
    if not is_box:
        yield path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        return
    with closing(mailbox.mbox(path, create=False)) as box:
        for key in box.iterkeys():
            yield box.get_bytes(key)


def _read_date(mail: EmailMessage) -> datetime | None:
    """Return the date of a mail in UTC; None if it has none that can be read."""
    try:
        return parsedate_to_datetime(str(mail["date"])).astimezone(UTC).replace(tzinfo=None)
    except (*_UNREADABLE, OverflowError):
        return None


def _read_body(mail: EmailMessage) -> str:
    """Return the words of a mail: its plain text, or else those of its HTML."""
    for kind in ("plain", "html"):
        part = mail.get_body((kind,))
        text = part.get_content() if part is not None else ""
        if kind == "html":
            text = read_html(text)
        if text.strip():
            return re.sub("^>(>*From )", r"\1", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return ""


def _drop_quotes(body: str, known: str) -> tuple[str, int]:
    """Return a mail without quotations of what is known, and the number of lines left out."""

    def is_known(text: str) -> bool:
        return all(" ".join(line.lstrip("> ").split()) in known for line in text.split("\n"))

    parts: list[str] = []
    position, body = 0, f"\n{body}"
    for match in _QUOTES.finditer(body):
        is_short = match["end"] is None and match[1].count("\n") <= _LONG_QUOTE
        if is_short or not is_known(match[1]):
            continue
        start = max(position, match.start() - _LONGEST_ATTRIBUTION)
        parts += body[position:start], _ATTRIBUTION.sub("\n", body[start : match.start()])
        position = match.end()
    text = "".join(parts) + body[position:]
    if (match := _OUTLOOK.search(text)) is not None and is_known(text[match.end() :]):
        text = text[: match.start()]
    count, rest = (sum(bool(line.strip()) for line in part.split("\n")) for part in (body, text))
    return text.strip(), count - rest


class _Words(HTMLParser):
    """Collect the words of a page; those of quoted blocks are marked as in plain text."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent = self._quoted = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent += tag in _SILENT
        self._quoted += tag == "blockquote"
        if tag in _BREAKS:
            self.parts.append("\n" + "> " * self._quoted)

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(self._silent - (tag in _SILENT), 0)
        self._quoted = max(self._quoted - (tag == "blockquote"), 0)
        if tag in _BREAKS - {"br"}:
            self.parts.append("\n" + "> " * self._quoted)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(re.sub(r"\s+", " ", data))


def read_html(page: str) -> str:
    """Return the words of a page of HTML, a line for each block."""
    parser = _Words()
    parser.feed(page)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line.strip("> "))
