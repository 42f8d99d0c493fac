"""Mails: one (`.eml`) or a mailbox (`.mbox`), as Gmail, Thunderbird and Apple Mail save them.

A mail is a message of its author at its date, with the subject before its words. Another address behind a name that
was read before is named: `Ana (ana@example.org)`. Mails are read in the order of their
dates. Read is the plain text, or the words of the HTML. Lines that quote a mail of the same file are left out and
counted; other quotations stay, with their `>`. Attached files and mails are counted. A date without a zone is UTC.
"""

from __future__ import annotations

import email
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.errors import MessageError
from email.message import EmailMessage, MIMEPart
from email.policy import EmailPolicy
from email.utils import parseaddr, parsedate_to_datetime
from html.parser import HTMLParser
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple, cast

from memalpha.tasks.formats.messages import SpeakerNames
from memalpha.text_files import NO_TEXT

_START = re.compile(rb"(?:\xef\xbb\xbf|From .*\r?\n)?(?:[\w-]+:.*\r?\n(?:[ \t].*\r?\n)*)+")
_BORDER = re.compile(
    rb"^(?:(?<=\n\n)|(?<=\n\r\n)|(?=From .{0,200}\d:\d\d:\d\d))From .*\n(?=[\w-]+:|>From )|\AFrom .*\n", re.MULTILINE
)
"""Line between mails of a mailbox: behind a blank line or with a time, and before a field."""
_TYPICAL = ("message-id", "mime-version", "received", "x-gm-thrid")
"""Fields that programs write: a letter that somebody typed, with From and Date, has none."""
_QUOTES = re.compile(r"((?:^>.*(?:\n|\Z))+)(?P<end>\s*\Z)?", re.MULTILINE)
_ATTRIBUTION = re.compile(r"\n[^\n]*[\d@][^\n]*(?:\n[^\n>]{1,40})?:\s*\Z")
"""Line or two before quoted lines; they name the author: `On Friday 24 May, Ana wrote:`."""
_LONGEST_ATTRIBUTION = 200
_OUTLOOK = re.compile(r"^(?:[_-]{3}.*\n+)?(?:\w+: .*\n){3,}", re.MULTILINE)
"""Head of a quotation without marks: From, Sent, To and Subject in any language."""
_START_LENGTH = 40  # characters of a mail with which a quotation without marks begins
_LONG_QUOTE = 3  # lines; a shorter quotation may be a question that the line below it answers
_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, MessageError, RecursionError)  # of a broken mail
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BREAKS = frozenset(
    (*_HEADINGS, "br", "p", "div", "tr", "li", "ul", "ol", "dt", "dd", "pre", "hr", "section", "blockquote", "table")
)
_DEEPEST_QUOTE = 20
_SILENT = frozenset(("style", "script", "title"))
_WHOLE_FIELDS = ("subject", "references", "in-reply-to")
_LONGEST_FIELD = 2000  # characters of the others: the parser takes quadratic time


class _Policy(EmailPolicy):
    """Read the beginning of long fields, as of hostile mails."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value if name.lower() in _WHOLE_FIELDS else value[:_LONGEST_FIELD]


_POLICY = cast("EmailPolicy[EmailMessage]", _Policy())


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
    return "from" in fields and not fields.isdisjoint(_TYPICAL if "date" in fields else _TYPICAL[:2])


class _Mail(NamedTuple):
    """Hold a mail.

    Attributes:
        date: In UTC.
        author: Name of the author, or his address.
        address: The address.
        names: Words of name and address by which others quote him.
        subject: Its subject.
        words: Its words.
        id: Its id.
        answered: Ids of the mails that it answers.
    """

    date: datetime
    author: str
    address: str
    names: set[str]
    subject: str
    words: str
    id: str
    answered: list[str]


def read_mails(path: Path, left_out: Counter[str]) -> list[tuple[str, str, str | None]]:
    """Return author, words and ISO time in UTC of each mail, by date; count in `left_out` what is not read."""
    mails: list[_Mail] = []
    for data in _split(path):
        try:
            mail = email.message_from_bytes(data, policy=_POLICY)
            name, address = parseaddr(str(mail["from"] or ""))
            names = set(re.findall(r"\w+", f"{name} {address.partition('@')[0]}".lower()))
            author, subject = (" ".join(text.split()) for text in (name or address, str(mail["subject"] or "")))
            answered = re.findall("<[^<>]+>", f"{mail['references']} {mail['in-reply-to']}")
            id, left_out_here = str(mail["message-id"]).strip(), Counter[str]()
            words = _read_words(mail, left_out_here)
        except _UNREADABLE:
            left_out["unreadable mails"] += 1
            continue
        date = _read_date(mail)
        left_out["unreadable dates"] += date is None
        left_out.update(left_out_here)
        date = date or (mails[-1].date if mails else datetime.min)
        mails.append(_Mail(date, author or "unknown", address.lower(), names, subject, words, id, answered))
    mails.sort(key=lambda mail: mail.date)
    known: dict[str, str] = {}  # words with quotations on one line, by the id
    names_of: dict[str, set[str]] = {}
    speakers = SpeakerNames()
    letters: list[tuple[str, str, str | None]] = []
    for mail in mails:
        # The last one quotes the others: what is quoted is found soonest there.
        answered = [id for id in dict.fromkeys(reversed(mail.answered)) if id in known]
        names = set[str]().union(*(names_of[id] for id in answered))
        words, quotes = _drop_quotes(mail.words, [known[id] for id in answered], names)
        names_of[mail.id] = mail.names
        known[mail.id] = " ".join(re.sub("^[> ]+", "", mail.words, flags=re.MULTILINE).split())
        left_out["quoted lines"] += quotes
        time = mail.date.isoformat() if mail.date > datetime.min else None
        text = NO_TEXT.sub("\ufffd", f"{mail.subject}\n{words}".strip())
        address = mail.address if "@" in mail.address else ""
        author = speakers.name(mail.author, address or None, address)
        letters.append((NO_TEXT.sub("\ufffd", author), text, time))
    return letters


def _split(path: Path) -> Iterator[bytes]:
    """Yield the mails of a file."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if data[:5] != b"From ":
            yield data[:].removeprefix(b"\xef\xbb\xbf")
            return
        borders = [match.span() for match in _BORDER.finditer(data)]
        for (_, start), (end, _) in zip(borders, [*borders[1:], (len(data), 0)], strict=True):
            yield data[start:end]


def _read_date(mail: EmailMessage) -> datetime | None:
    """Return the date of a mail in UTC; None if it has none that can be read."""
    try:
        date = parsedate_to_datetime(str(mail["date"]))
        return (date if date.tzinfo is None else date.astimezone(UTC)).replace(tzinfo=None)
    except (*_UNREADABLE, OverflowError):
        return None


def _read_words(part: MIMEPart, left_out: Counter[str]) -> str:
    """Return the words of a mail or of one of its parts; count in `left_out` the parts that are no words."""
    kind, subkind = part.get_content_type().split("/", 1)
    if kind == "multipart":
        texts = [text for child in part.iter_parts() if (text := _read_words(child, left_out)).strip()]
        return "\n".join(texts[:1] if subkind == "alternative" else texts)
    if kind != "text" or subkind not in ("plain", "html") or part.is_attachment() or part.get_filename():
        left_out["attached mails" if kind == "message" else "media"] += 1
        return ""
    payload = part.get_payload(decode=True)
    text = _decode(payload, part.get_content_charset()) if isinstance(payload, bytes) else ""
    text = read_html(text) if subkind == "html" else text
    return re.sub("^>(>*From )", r"\1", text.replace("\r\n", "\n"), flags=re.MULTILINE)


def _decode(data: bytes, charset: str | None) -> str:
    """Decode words; those that are not in the encoding that the mail names are UTF-8, or of a Western Windows."""
    for encoding in (charset or "utf-8", "utf-8", "cp1252"):
        with suppress(ValueError, LookupError):
            return data.decode(encoding)
    return data.decode("latin-1")


def _drop_quotes(body: str, mails: list[str], names: set[str]) -> tuple[str, int]:
    """Return a mail without quotations of what is known, and the number of lines left out.

    Args:
        body: Words of the mail.
        mails: Words of the mails that it answers, each on one line.
        names: Names of their authors.
    """
    known = " ".join(mails)

    def is_known(text: str) -> bool:
        return all(" ".join(line.lstrip("> ").split()) in known for line in text.split("\n"))

    def drop_attribution(match: re.Match[str]) -> str:
        return match[0] if names.isdisjoint(re.findall(r"\w+", match[0].lower())) else "\n"

    parts: list[str] = []
    position, body = 0, f"\n{body}"
    for match in _QUOTES.finditer(body):
        is_short = match["end"] is None and match[1].count("\n") <= _LONG_QUOTE
        if is_short or not is_known(match[1]):
            continue
        start = max(position, match.start() - _LONGEST_ATTRIBUTION)
        parts += body[position:start], _ATTRIBUTION.sub(drop_attribution, body[start : match.start()])
        position = match.end()
    text = "".join(parts) + body[position:]
    if (match := _OUTLOOK.search(text)) is not None and is_known(text[match.end() :]):
        first_words = " ".join(text[match.end() :].split())[:_START_LENGTH]
        if first_words and any(mail.startswith(first_words) for mail in mails):
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
            self.parts.append("\n" + "> " * min(self._quoted, _DEEPEST_QUOTE))
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(self._silent - (tag in _SILENT), 0)
        self._quoted = max(self._quoted - (tag == "blockquote"), 0)
        if tag in _BREAKS - {"br"}:
            self.parts.append("\n" + "> " * min(self._quoted, _DEEPEST_QUOTE))

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(re.sub(r"\s+", " ", data))


def read_html(page: str) -> str:
    """Return the words of a page of HTML, a line for each block."""
    parser = _Words()
    end = page.rfind(">") + 1  # the parser takes quadratic time for tags without an end
    parser.feed(page[:end] + page[end:].replace("<", "&lt;"))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line.strip("> "))
