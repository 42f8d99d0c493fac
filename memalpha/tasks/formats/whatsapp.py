"""Exports of WhatsApp as text.

**WhatsApp** on a phone writes two forms: `[24/05/2024, 21:05:09] Ana: text` (iOS) and `24/05/2024, 21:05 - Ana: text`
(Android). Order, separators, seconds and the 12-hour clock follow the phone's language. A line without such a head
continues the message before it. Left out are lines of the app (no name, or text behind a U+200E), placeholders of
media, and some lines before the first message. Other apps write the same heads with the name alone behind them
and the words below (Discord, QQ, Teams), or with the name as `<ana>` or between tabulators (IRC).

Whether the day or the month comes first is decided over the whole file: by a number above 12, by the order of the
messages, or by dots (the day). If both readings fit, the file is refused, and `dates=` says which holds.

WhatsApp names media, deleted and edited messages in the phone's language. Nine languages are known; on an iPhone the
others count as notices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from shlex import quote

from memalpha.errors import DataError
from memalpha.tasks.formats.messages import ExportedConversation

DATE_ORDERS = ("day-first", "month-first")
_FIRST_YEAR = 2009  # WhatsApp's: an earlier one of two digits is a day (18-05-03)
_FIRST_FULL_YEAR = 1980  # of tables, and of logs of other apps: an earlier one counts by another calendar (1403)
OTHER_TEXTS = 'other texts belong into a task file, a line each: {"id": "diary", "chunks": [{"text": "..."}]} (.jsonl)'
NO_CHAT = f"no message of a chat export, such as '[24/05/2024, 21:05:09] Ana: text': {OTHER_TEXTS}"

_MARKS = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
SPACES = re.compile("[\u00a0\u2009\u202f]")
_MOMENT = (
    r"(?P<first>\d{1,4})(?P<separator>[./-]) ?(?P<second>\d{1,2})(?P=separator) ?(?P<third>\d{1,4})\.?"
    r"(?: \u0433\.| à)?[,،]? (?:klo )?(?P<before>오전|오후|午前|午後|上午|下午|凌晨|清晨|早上|中午|晚上)? ?"
    r"(?P<hour>\d{1,2})(?P<colon>[:.]| ?h ?)(?P<minute>\d{2})(?:(?:[:.]| min )(?P<seconds>\d{2})(?: s\b)?)?"
    r"(?: ?(?P<after>[ap]\.? ?m\.?|[πμ]\.?μ\.?|[صم]|[قب]\.ظ\.?|pt?g|sa|ch|öö|ös)| ?\u0447\.)?"
)
_MORNING = ("a", "π", "ص", "ق", "pg", "sa", "öö", "오전", "午前", "上午", "凌晨", "清晨", "早上")
"""How the names of hours before noon begin; those of the others are afternoon or evening, or noon itself."""
TIME = re.compile(_MOMENT, re.IGNORECASE)
_HEADS = tuple(
    re.compile(form % _MOMENT, re.IGNORECASE)
    for form in (r"\[%s\] ?", "%s [-\u2013] ", r"%s(?:\t| (?=<[ @+%%&~]?\S|-!- |\*+ |[^\d:<-](?:[^:]|:\S){0,60}$))")
)
# A quotation that ends before the colon is part of a name; others are of a notice: Ana created group "Trip: Rome".
_NAME = re.compile(
    '(?!(?:-!-|\\*+) )((?:[^:"\u201c-\u201e\u00ab\u00bb]|:(?! |$)|"[^:"]*"|'
    "[\u201c-\u201e][^:\u201c-\u201e]*[\u201c\u201d]|\u00ab[^:\u00ab\u00bb]*\u00bb){1,80}):(?: |$)"
)
_NICK = re.compile(r"<[ @+%&~]?([^\s<>]{1,40})>(?: |$)|[@+%&~]?(?=[^\t]*[^\W\d_])([\w\[\]{}`^|\\][^\t:]{0,40})\t")
"""A name and its colon in logs of IRC: `<ana> text`, or between tabulators. Notices begin with `-!-` or `*`."""
_LEVEL = re.compile(
    r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|(?:^|\[)(?:debug|info|warn|warning|error)(?:\]|$)"
)
"""What stands for a name in the log of a program."""
_NO_NAME = re.compile(f":(?: |$)|.{{61}}|{_LEVEL.pattern}")
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
class DatedMessage:
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


def read_whatsapp(text: str, path: Path, dates: str | None) -> ExportedConversation:
    """Return the chat of an exported text; its id is the file's name.

    Args:
        text: The text.
        path: Its file, for messages.
        dates: Order of the dates, one of `DATE_ORDERS`; None decides over the whole file.

    Raises:
        DataError: A date does not exist, or the order of dates stays open.
    """
    messages = list(_parse(text, str(path)))
    times = resolve_times(messages, path, dates)
    before = text.split("\n")[: messages[0].line - 1]
    left_out = Counter({"lines before the first message": sum(bool(line.strip()) for line in before)})
    utterances = [
        (*_read_message(message.text, left_out), time.isoformat(timespec="seconds" if time.second else "minutes"))
        for message, time in zip(messages, times, strict=True)
    ]
    return ExportedConversation.of_file(path, "whatsapp", utterances, left_out)


def is_chat_text(text: str, *, any_names: bool) -> bool:
    """Return True if a text begins with a message, or with a few lines before messages that are most of the rest.

    These are up to five lines, or eight where names stand alone behind the times.

    Args:
        text: The text.
        any_names: If a text begins with a message, the app's name or somebody who speaks twice is enough; else most
            messages need names.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if not any(map(_match_head, lines[:9])):
        return False
    entries = _split_messages(text)
    if _names_alone(entries, any_names=any_names):
        return True
    is_other = entries[0][1].re is _HEADS[2]  # whose heads may stand within words of WhatsApp
    matches = ((n, line, _match_head(line)) for n, line in enumerate(lines))
    heads = [(n, line, head) for n, line, head in matches if head and (head.re is _HEADS[2]) == is_other]
    first = heads[0][0]
    is_table = heads[0][2][0].endswith("\t") and not re.search(r"\t(?:-->|<--|--)\t", text)  # no log of IRC
    if first > 5 or is_table:
        return False
    names_of = (_NAME.match(_MARKS.sub("", _words_behind(line, head))) for _, line, head in heads)
    names = [match[1] for match in names_of if match is not None and not _LEVEL.search(match[1])]
    if first == 0 and any_names and ("WhatsApp" in "".join(lines[:6]) or len(set(names)) < len(names)):
        return True
    return 2 * len(names) >= (len(lines) - first if first else len(heads)) and (first == 0 or len(names) > 1)


def _match_head(line: str) -> re.Match[str] | None:
    """Match the head of a message in a line without its marks, with plain spaces."""
    plain = SPACES.sub(" ", _MARKS.sub("", line))
    return next((match for head in _HEADS if (match := head.match(plain))), None)


def _parse(text: str, location: str) -> Iterator[DatedMessage]:
    """Yield the messages."""
    entries = _split_messages(text)
    names = _names_alone(entries)
    for (number, head, lines), name in zip(entries, names or [""] * len(entries), strict=True):
        words = [f"{name}: {lines[1]}", *lines[2:]] if name else lines
        yield read_head(head, number, f"{location}:{number}", "\n".join(words))


def _split_messages(text: str) -> list[tuple[int, re.Match[str], list[str]]]:
    """Return line number, head and lines of the messages; only heads of the first one's form begin another."""
    entries: list[tuple[int, re.Match[str], list[str]]] = []
    first = None
    for number, line in enumerate(text.split("\n"), 1):
        match = _match_head(line)
        form = match and (match.re, match["separator"], match["colon"])
        if match and len(entries) == 1 and entries[0][1].re is _HEADS[2] is not match.re:  # a line before the messages
            entries, first = [], form
        if match is not None and form == (first := first or form):
            entries.append((number, match, [_words_behind(line, match)]))
        elif entries:
            entries[-1][2].append(line)
    return entries


def _names_alone(entries: Sequence[tuple[int, re.Match[str], Sequence[str]]], *, any_names: bool = True) -> list[str]:
    """Return the name that stands alone behind each head, or ""; nothing if most have none, or two do not speak twice.

    One who speaks twice is enough behind times in brackets with `any_names`: a diary or a timetable has none.
    """
    plain = [(_MARKS.sub("", lines[0]).strip(), "".join(lines[1:2]).strip()) for _, _, lines in entries]
    names = [name.removesuffix(" (pinned)") if words and not _NO_NAME.search(name) else "" for name, words in plain]
    named = list(filter(None, names))
    people = len(set(named))
    is_repeated = people < len(named) if any_names and entries[0][1].re is _HEADS[0] else 2 * people <= len(named)
    return names if is_repeated and people > 1 and 2 * len(named) > len(plain) else []


def read_head(head: re.Match[str], number: int, location: str, text: str = "") -> DatedMessage:
    """Return the message with a date and a time.

    Args:
        head: Match of `TIME`.
        number: Number of its line.
        location: File and line, for messages.
        text: Name and words.

    Raises:
        DataError: There is no such time.
    """
    hour, minute, second = (int(head[name] or 0) for name in ("hour", "minute", "seconds"))
    if half := head["before"] or head["after"]:
        if hour > 12:
            raise DataError(f"{location}: hour {hour} does not exist on a 12-hour clock")
        hour = hour % 12 + 12 * (not half.lower().startswith(_MORNING))
    hour *= hour != 24  # the clock of some browsers begins a day with 24:00
    if hour > 23 or minute > 59 or second > 59:
        raise DataError(f"{location}: there is no time {hour:02}:{minute:02}:{second:02}")
    day = head["first"], head["second"], head["third"]
    return DatedMessage(number, day, head["separator"], (hour, minute, second), text)


def _after_head(line: str, length: int) -> str:
    """Return what follows the first `length` characters of a line that are no marks; marks behind them stay."""
    if not _MARKS.search(line, 0, length):
        return line[length:]
    position = 0
    while length:
        length -= not _MARKS.match(line[position])
        position += 1
    return line[position:]


def _words_behind(line: str, head: re.Match[str]) -> str:
    """Return what follows a head, a name of IRC with a colon."""
    rest = _after_head(line, head.end())
    nick = None if head.re is _HEADS[1] else _NICK.match(rest)
    return f"{nick[1] or nick[2]}: {rest[nick.end() :]}" if nick else rest


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
    return SPACES.sub(" ", name[1]).strip(), _EDITED.sub("", "\n".join(lines).strip())


def _placeholder_kind(line: str, *, is_of_app: bool = True) -> str | None:
    """Return what a line stands for, "media" or "deleted messages"; None for other words.

    Args:
        line: The line, without marks.
        is_of_app: The line is marked as the app's, so that "image omitted" is no person's words.
    """
    if _DELETED.fullmatch(line):
        return "deleted messages"
    return "media" if _MEDIA.fullmatch(line) or (is_of_app and _OMITTED.fullmatch(line)) else None


def resolve_times(messages: Sequence[DatedMessage], path: Path, dates: str | None) -> list[datetime]:
    """Return the time of each message in the one order of dates that fits the whole file.

    Args:
        messages: The messages, of which the times run forwards or backwards.
        path: Their file, for messages.
        dates: Order of the dates, one of `DATE_ORDERS`; None finds it.

    Raises:
        DataError: A date does not exist, or the order stays open.
    """
    if dates is not None and dates not in DATE_ORDERS:
        raise DataError(f"dates={dates}: use {' or '.join(DATE_ORDERS)}")
    orders = DATE_ORDERS if dates is None else (dates,)
    all_times = [[message.read_time(order) for message in messages] for order in orders]
    readings = [[time for time in times if time is not None] for times in all_times if None not in times]
    if not readings:
        worst = messages[max(times.index(None) for times in all_times)]
        orders_read = f"read {' or '.join(orders)} from {_FIRST_YEAR} on: write years first with four digits"
        raise DataError(f"{path}:{worst.line}: there is no date {'/'.join(worst.date)}, {orders_read}")
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
