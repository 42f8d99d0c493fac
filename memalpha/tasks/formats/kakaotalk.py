"""Exports of KakaoTalk and LINE as text, which name a day on a line of its own, or the day in every message.

KakaoTalk on a desktop writes `--------------- 2024년 5월 3일 금요일 ---------------` and `[Ana] [오후 2:31] text`, on
a phone `2024년 5월 3일 오후 2:31, Ana : text`. LINE writes `2024/05/03(金)` and `14:31<TAB>Ana<TAB>text`, and a text of
several lines in quotation marks; on a PC `2024.05.03 金曜日` and `14:31 Ana text` in a file `[LINE]Ana.txt`, where a
name ends at the first space. Both do so in English, too; LINE also in Chinese and Thai.
Where a day is `Fri, 5/3/2024`, the weekdays decide which of the numbers is the month, or else the file as in
WhatsApp's texts.

Other lines continue the message above. Placeholders of media, deleted messages and notices are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from memalpha.tasks.formats.message_tables import read_cells
from memalpha.tasks.formats.messages import Utterance

_CLOCK = r"(?:(?:오전|오후|午前|午後|上午|下午) ?)?\d{1,2}:\d{2}(?: ?[AaPp]\.?[Mm]\.?)?"
_DATE = r"\d{4}(?:년 |[./] ?)\d{1,2}(?:월 |[./] ?)\d{1,2}(?:일|\.)?|[A-Z][a-z]+ \d{1,2}, \d{4}|\d{1,2}/\d{1,2}/\d{4}"
_DAY = re.compile(
    rf"(?P<rule>-{{5,}} )?(?:(?P<weekday>[^\d\s]{{1,10}}), )?(?P<date>{_DATE})"
    rf"(?: ?[(\uff08]\w{{1,4}}\.?[)\uff09]| \w{{3,9}}| {_CLOCK})?(?: -{{5,}})?"
)
_HEADS = {
    re.compile(rf"\[(?P<name>.{{1,80}}?)\] \[(?P<clock>{_CLOCK})\](?: |$)"): "kakaotalk",
    re.compile(rf"(?P<clock>{_CLOCK})\t(?:(?P<name>[^\t]{{0,80}})\t)?"): "line",
    re.compile(
        rf"(?P<date>{_DATE}),?(?: at)? (?P<clock>{_CLOCK})(?:, (?P<name>.{{1,80}}?) :(?: |$)|[,:] )"
    ): "kakaotalk",
    re.compile(rf"(?P<clock>{_CLOCK}) (?P<name>[^\s:]{{1,80}}) (?=\S)"): "line",
}
_TITLE = re.compile(r"\[LINE\] .*|(?:저장한 날짜|Date Saved|保存日時|Saved on|儲存日期|บันทึกวันที่) ?[:\uff1a].*")
_FIRST_LINES = 8  # within which the first message must stand
_WORDS, _NUMBERS = ("%B %d, %Y", "%b %d, %Y"), ("%m/%d/%Y", "%d/%m/%Y")
_AFTERNOON = ("오후", "午後", "下午", "p")
_KINDS = {
    "media": re.compile(
        r"사진(?: \d+장)?|동영상|이모티콘|음성메시지|파일: .+|<\S+ 읽지 않음>|"
        r"(?:[0-9a-f]{32,}\.\w{3,4}\n?)+|"
        r"Photos?(?: \d+)?|\d+ photos|Videos?|Emoticons?|Stickers?|スタンプ|Voice (?:Message|Note)|File: .+|"
        r"\[(?:スタンプ|写真|動画|ボイスメッセージ|アルバム|Sticker|Photo|Video|Voice message|Album|GIF|"
        r"스티커|사진|동영상|음성 ?메시지|앨범|貼圖|照片|影片|語音訊息|สติกเกอร์|รูป|ภาพ|วิดีโอ)\]|"
        r"\[(?:ファイル|파일|File|檔案)\].*"
    ),
    "deleted messages": re.compile(
        r"삭제된 메시지입니다\.?|메시지가 삭제되었습니다\.?|This message was deleted\.?|"
        r"\S*メッセージの送信を取り消しました。?|.{0,80} unsent a message\.?|\S*已?收回訊息。?"
    ),
    "notices": re.compile("☎.*"),
}
_BARE_NOTICE = re.compile(
    r".{1,80}님이 (?:들어왔|나갔|.+님을 (?:초대|내보)).*|채팅방 관리자가 메시지를 가렸습니다\.?|"
    r"\S.{0,80} (?:joined|left|invited .+ to) (?:this|the) chatroom\.?"
)
"""Line of KakaoTalk's desktop between two messages."""


def read_day_text(
    text: str, path: Path, dates: str | None, left_out: Counter[str]
) -> tuple[str, list[Utterance]] | None:
    """Return app and messages of an export of KakaoTalk or LINE; None for another text.

    It is one if its title stands before the first message or its file is named `[LINE]`, or one of KakaoTalk if
    messages begin half of its lines.

    Args:
        text: The text.
        path: Its file, for messages.
        dates: Order of the dates; None finds it.
        left_out: Counts what is not read.
    """
    lines = [line.strip("\u200b\u200e\ufeff\r") for line in text.replace("\u202f", " ").split("\n")]
    filled = [line for line in lines if line.strip()]
    head = next((form for form in _HEADS if any(map(form.match, filled[:_FIRST_LINES]))), None)
    if head is None:
        return None
    matches = [head.match(line) for line in lines]
    first = next(number for number, match in enumerate(matches) if match)
    named = sum(match is not None and bool(match["name"]) for match in matches)
    is_titled = path.name.startswith("[LINE]") or any(map(_TITLE.fullmatch, lines[:first]))
    is_long = _HEADS[head] != "line" and named > 1 and 2 * named >= len(filled)
    if not named or not (is_titled or is_long):
        return None
    has_dates, day = "date" in head.groupindex, ""
    days: dict[int, re.Match[str]] = {}
    for number, line in enumerate(lines):
        has_head, is_apart = any(matches[number + 1 : number + 2]), not (number and lines[number - 1].strip())
        if (date := _DAY.fullmatch(line.strip())) and (date["rule"] or (has_head and (is_apart or not has_dates))):
            days[number] = date
    forms = [form for form in _NUMBERS if all(_is_weekday(day["date"], day["weekday"], form) for day in days.values())]
    forms = (*_WORDS, *(forms if len(forms) == 1 else ()))
    shape = _shape(matches[first])
    entries: list[tuple[int, str, str, list[str]]] = []
    for number, (line, match) in enumerate(zip(lines, matches, strict=True)):
        if match is not None and _shape(match) == shape and (day or has_dates):
            time = f"{_read_date(match['date'], forms) if has_dates else day} {_read_clock(match['clock'])}"
            entries.append((number + 1, time, (match["name"] or "").strip(), [line[match.end() :]]))
        elif number in days:
            day = _read_date(days[number]["date"], forms)
        elif not has_dates and head.pattern.startswith(r"\[") and _BARE_NOTICE.fullmatch(line.strip()):
            left_out["notices"] += 1
        elif entries:
            entries[-1][3].append(line)
        else:
            left_out["lines before the first message"] += bool(match or (line.strip() and not is_titled))
    times = read_cells([entry[1] for entry in entries], [f"{path}:{entry[0]}" for entry in entries], path, dates)
    left_out["unreadable dates"] += times.count(None)
    said = [(*_read_words(*entry[2:], left_out), time) for entry, time in zip(entries, times, strict=True)]
    return (_HEADS[head], said) if said else None


def _read_words(speaker: str, lines: list[str], left_out: Counter[str]) -> tuple[str, str]:
    """Return speaker and words of a message, both empty if only the app speaks."""
    words = "\n".join(lines).strip()
    if "\n" in words and words[0] == words[-1] == '"':
        words = words[1:-1].strip()
    kind = next((kind for kind, form in _KINDS.items() if form.fullmatch(words)), None if speaker else "notices")
    if kind is None:
        return speaker, words
    left_out[kind] += 1
    return "", ""


def _shape(match: re.Match[str] | None) -> str:
    """Return how a head writes its date: that of an appointment within a message may differ."""
    return re.sub(r"\d+|[A-Za-z]+", "", (match.groupdict().get("date") or "") if match is not None else "")


def _is_weekday(date: str, weekday: str | None, form: str) -> bool:
    """Return False if a date in this form falls on another weekday, or does not exist; True for one of another form."""
    with suppress(ValueError):
        return weekday is not None and datetime.strptime(date, form).strftime("%a") == weekday[:3]
    return re.match(r"\d{1,2}/", date) is None


def _read_date(date: str, forms: Sequence[str]) -> str:
    """Return a date as `2024/05/03`, if it has one of the forms or begins with the year; else as it is."""
    for form in forms:
        with suppress(ValueError):
            return f"{datetime.strptime(date, form):%Y/%m/%d}"
    return "/".join(re.findall(r"\d+", date))


def _read_clock(clock: str) -> str:
    """Return a time of the 24-hour clock."""
    hour, minute = re.findall(r"\d+", clock)
    if half := re.sub(r"[\d: .]", "", clock).lower():
        hour = int(hour) % 12 + 12 * half.startswith(_AFTERNOON)
    return f"{hour}:{minute}"
