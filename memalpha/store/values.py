"""Comparable forms of short texts, in which numbers, names and dates stay what they are; whether two say the same.

SQuAD's normalization (Rajpurkar et al., EMNLP 2016) drops all punctuation, which merges 3.5 with 35 and C with C++.
Here the marks stay that tell values apart: those between digits, signs, those of a name (C#, .NET, AC/DC, O-), per cent
and currencies. Case, articles, grouped thousands (1,000), quotes, brackets and the marks of a sentence do not matter,
nor do the blank before a unit (5pm, 35 mg), the zero of an hour (09:00) and the script of the digits.

A date of digits or words becomes `9 january 2024`: 2024-01-09, 09.01.2024 (dots: day first), Jan 9th, 2024, and the
Chinese, Japanese and Korean form of year, month, day. Where slashes or dashes leave the order of day and month open
(03/04/2024) the date is equal to its own spelling alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from functools import lru_cache

from memalpha.store.search.lexical import UNSPACED, words
from memalpha.types import MemoryEntry

MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
FULL_DATE = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b")
"""A whole date in a normalized text."""

_ARTICLES = frozenset(("a", "an", "the"))
_CURRENCIES = "$\u00a2\u00a3\u00a5\u20a9\u20aa\u20ab\u20ac\u20b1\u20b4\u20b9\u20ba\u20bd\u0e3f"
_KEPT = frozenset("\u00b1\u00d7\u00f7\u2264\u2265\u2248")
_ASCII = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\u0060", "'"),
    "\u2044": "/",
    "\u2215": "/",
    **{mark: f" {mark} " for mark in (*_CURRENCIES, "\u2030")},
}


class _Marks(dict[int, str]):
    """Replacements of characters for `str.translate`: few kinds of marks remain."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        if char in _ASCII:
            replacement = _ASCII[char]
        elif kind == "Cf":  # soft hyphens and zero-width signs
            replacement = ""
        else:
            replacement = " " if kind[0] in "PS" and not char.isascii() and char not in _KEPT else char
        self[code] = replacement
        return replacement


_MARKS = _Marks()
_ALIKE = {0x66B: ".", 0x66C: ","}  # Arabic signs of decimals and thousands
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})\b"
_WORD_DATES = tuple(
    re.compile(rf"(?<![\w.,/-])(?:{form})(?![-/.:]\d)")
    for form in (
        rf"{_YEAR}[\s,-]+{_MONTH}[\s-]+{_DAY}\b",
        rf"{_MONTH}[\s-]+(?:the\s+)?{_DAY}\b(?:[\s,-]+{_YEAR})?",
        rf"{_DAY}\.?(?:\s+of)?[\s-]+{_MONTH}(?:(?:\s+of)?[\s,-]+{_YEAR})?",
        rf"{_MONTH}(?:\s+of)?[\s,-]+{_YEAR}",
    )
)
_NUMBER_DATE = re.compile(r"(?<![\w./-])(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})(?:t(?=\d\d:)|(?!\w|[-./]\d))")
_EAST_ASIAN_DATE = re.compile(
    "(?<!\\d)(\\d{4}) ?[\u5e74\ub144] ?(\\d{1,2}) ?[\u6708\uc6d4] ?(\\d{1,2}) ?[\u65e5\uc77c]"  # year, month, day
)
_RAISED = re.compile("(?<=\\d)(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079])")
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_THOUSANDS = re.compile(r"(?<![\d.,'])[1-9]\d{0,2}(?:[,']\d{2,3})*[,']\d{3}(?![\d']|,\d)")
_UNIT = re.compile(r"(?<=\d)(?=(?:am|pm|[km]g|ml|[ckm]m)\b)")  # 5pm, 35mg; 5m and 5g have other meanings
_HOUR_ZERO = re.compile(r"(?<![\w.,:/+-])0(?=\d:[0-5]\d(?!\d))")
_CURRENCY_FIRST = re.compile(rf"(?<!\d )([{_CURRENCIES}]) (-?\.?\d[\w.]*)")
_SIGNED_CURRENCY = re.compile(rf"([-+])([{_CURRENCIES}])(?=\s?\.?\d)")
_ABBREVIATION = re.compile(r"(?<![\w.@/-])(?:[^\W\d_]{1,2}\.)+[^\W\d_]{0,2}(?![\w.@/-]|:/)")
_BOLD = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|-{2,}")
_ANY_MARK = "!-#%-/:-@\\[-`{-~\u00b1\u00d7\u00f7\u2264\u2265\u2248"
_MARK = re.compile(
    rf"""(?P<kept>
        (?<=\d)[^\w\s"()\[\]{{}};](?=\d)                      # 3.5, 10:30, 1/2, 3-5
      | (?<![\w)\]%.])[-+](?=\.?\d)                           # -5, +5
      | (?<![^\s\d(\["'=:-])[<>\u2264\u2265\u2248~\u00b1](?=[-+]?\.?\d)  # <5
      | (?<=\d\ )%
      | (?<![\w.])\.(?=[^\W_]) | (?<![\w\#@])[\#@](?=[^\W_])  # .5, .NET, #1, @ana
      | (?<=[^\W_])[.&@/_^!](?=[^\W_])                        # Node.js, R&B, a_b
      | (?<=[^\W_])-(?=\d) | (?<=\d)-(?=[^\W_])               # B-12, 5-year
      | (?<=\w)[+\#]+                                         # C++, C#, 18+
      | (?:(?<=[\s("'][^\W\d_])|(?<=[\s("'][^\W\d_]{{2}}))[-*](?![\w*-])  # A-, O-, A*
    ) | (?P<joined>'|(?<=[^\W\d_])-(?=[^\W\d_])) | [{_ANY_MARK}]""",
    re.VERBOSE,
)


@lru_cache(maxsize=65536)
def normalize(text: str) -> str:
    """Return the comparable form of a text: lower case, values as they are, other punctuation and articles dropped.

    A text of nothing but punctuation and articles is only lower-cased and stripped, so that it does not become empty.
    """
    lowered = unicodedata.normalize("NFKC", _FRACTION.sub(" ", _RAISED.sub("^", text))).lower()
    lowered = lowered.replace("i\u0307", "i").translate(_ALIKE)  # the Turkish capital with a dot
    has_digit = any(map(str.isdigit, lowered))
    plain = re.sub(r"\d", lambda match: str(int(match[0])), lowered) if has_digit and not lowered.isascii() else lowered
    if not plain.replace(" ", "").isalnum():
        plain = _SIGNED_CURRENCY.sub(r"\2\1", plain).translate(_MARKS)
        if has_digit:
            plain = _THOUSANDS.sub(lambda match: re.sub("[,']", "", match[0]), " ".join(plain.split()))
            plain = _NUMBER_DATE.sub(_number_date, plain)
            plain = re.sub(r"(?<=\d)%", " %", _CURRENCY_FIRST.sub(r"\2 \1", plain))
    if has_digit:
        if not plain.isascii():
            plain = _EAST_ASIAN_DATE.sub(_east_asian_date, plain)
        for form in _WORD_DATES:
            plain = form.sub(_word_date, plain)
        plain = _HOUR_ZERO.sub("", _UNIT.sub(" ", plain))
    if plain.isascii() and plain.replace(" ", "").isalnum():
        marked = plain
    else:
        plain = _BOLD.sub(" ", re.sub(r"([<>])=", lambda match: "\u2264" if match[1] == "<" else "\u2265", plain))
        plain = re.sub(r"(?<![^\s])([<>\u2264\u2265\u2248~\u00b1])\s(?=[-+]?\.?\d)", r"\1", plain)
        plain = _ABBREVIATION.sub(lambda match: match[0].replace(".", ""), plain)
        marked = _MARK.sub(lambda match: match["kept"] or ("" if match["joined"] else " "), f" {plain}")
    return " ".join(word for word in marked.split() if word not in _ARTICLES) or lowered.strip()


def _number_date(match: re.Match[str]) -> str:
    """Return the date in words; the digits as they are if they are no date or the order is open."""
    first, mark, second, last = match.groups()
    if len(first) == 4 and len(last) <= 2:
        orders = [(first, second, last)]
    elif len(first) <= 2 and len(last) == 4:
        orders = [(last, second, first), (last, first, second)]  # day first, month first
    else:
        return match[0]
    dates = dict.fromkeys(text for order in orders if (text := _date_text(*map(int, order))))
    is_open = len(dates) > 1 and mark != "."
    return match[0] if is_open or not dates else f"{next(iter(dates))} "


def _east_asian_date(match: re.Match[str]) -> str:
    text = _date_text(*map(int, match.groups()))
    return f" {text} " if text else match[0]


def _date_text(year: int, month: int, day: int) -> str | None:
    try:
        return f"{date(year, month, day).day} {MONTHS[month - 1]} {year:04d}"
    except ValueError:
        return None


def _word_date(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = next(name for name in MONTHS if name.startswith(parts["month"][:3]))
    day, year = parts.get("day"), parts.get("year")
    if day is not None and not 1 <= int(day) <= 31:
        return match[0]
    return " ".join(part for part in (day and str(int(day)), month, year) if part)


EVENTS = "episodic"
MAX_SLOT_WORDS = 4
MAX_SLOT_CHARACTERS = 12
"""Of a script without spaces."""


_COLON = re.compile("[:\uff1a]")


def key_value(content: str) -> tuple[str, str] | None:
    """Split `City: Oslo` into (`city`, `Oslo`); None if no short name is before the colon, or it is of a time."""
    colon = ":" if content.isascii() or (match := _COLON.search(content)) is None else match[0]
    key, colon, value = content.partition(colon)
    if not value.strip() or (key[-1:] + value[:1]).isdecimal() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    if not key.isascii() and len(UNSPACED.findall(key)) > MAX_SLOT_CHARACTERS:
        return None
    return " ".join(key.lower().split()), value.strip()


def value_words(content: str) -> frozenset[str]:
    """Return the words of a note's value (`pet: cat`), or of a whole sentence."""
    return frozenset(words((key_value(content) or ("", content))[1]))


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Return the slot and value that an entry states; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def is_contradictory(entries: Iterable[MemoryEntry]) -> bool:
    """Return True if entries of one slot state different values, not all of them as events."""
    values_by_entry = [(entry, pair[1]) for entry in entries if (pair := key_value(entry.content))]
    values = {normalize(value) for _, value in values_by_entry}
    return len(values) > 1 and any(entry.category != EVENTS for entry, _ in values_by_entry)


MAX_REFUSAL_WORDS = 40
"""Words of the longest reply that can be a refusal."""
MAX_REFUSAL_CHARACTERS = 400
"""Characters of the longest reply that can be a refusal: where no space parts words, it may be one word."""

_NT = r"(?:do|does|did|ca|could|have|has|had|is|are|was|were|would|wo)nt"
_NEVER = rf"(?:(?:do|does|did|can|could|have|has|had|am|is|are|was|were|would) not|{_NT}|cannot|never)(?: ever| \w+ly)?"
_INFO = r"(?:information|info|details?|data|mention|indication|memory|idea|clue|answer|record|records|context)"
_SOURCE = (
    r"(?:(?:my|your|our|this|these|those|any|given|provided|available|stored|retrieved|conversation|chat) )*(?:notes?"
    r"|conversations?|context|text|memor(?:y|ies)|documents?|passages?|transcripts?|dialogues?|chats?|messages?|history"
    r"|information|entries|facts)(?: provided| given)?"
)
_STATED = (
    r"(?:mentioned|stated|specified|provided|given|discussed|described|indicated|recorded|revealed|disclosed|shared"
    r"|noted|told|said|known|clear|available|answerable|covered|addressed)"
)
_SAY = (
    r"(?:mention|state|specify|provide|give|discuss|describe|indicate|reveal|disclose|share|note|say|talk(?:ed)? about"
    r"|tell(?: me| us)?)"
)
_WHERE = rf"(?: (?:in|by|from|within|on|with) {_SOURCE}| anywhere| here| yet| at all| to me| so far)*"
_QUESTION = r"(?:who|whom|whose|what|when|where|which|why|how|whether|if) .*"
_ABOUT = rf"(?: (?:(?:about|on|regarding|concerning|of|for|as to|to|that|in|from|within) .*|{_QUESTION}))?"
_REFUSAL = re.compile(
    "|".join(
        (
            r"unknown|undisclosed|none|null|na|n/a|not (?:known|sure|found|applicable)|unsure|unclear|unanswerable",
            r"unspecified|undetermined|no (?:record|context)|not enough context",
            r"(?:dont|do not|cannot|cant|can not|unable to) (?:know|say|tell|answer|determine|remember|recall)"
            rf"(?: (?:from|in) {_SOURCE}| (?:based on|given) .*)?",
            # I don't know where she lives; I can't say for sure; I was not told
            rf"(?:i|we)(?: {_NEVER}| (?:am|are) unable to)(?: be)? (?:know|determine|recall|remember|sure|certain|able"
            r"|aware)\b.*",
            rf"(?:i|we)(?: {_NEVER}| (?:am|are) unable to) (?:say|tell|answer|find)(?: (?:it|that|this|exactly)"
            rf"| (?:it|that|this|you|your|for|from|based|with|exactly|about|any|which) .*| {_QUESTION})?",
            r"(?:i|we) (?:(?:was|were|have) (?:not|never)|wasnt|werent|havent) (?:been )?told\b.*",
            r"(?:i|im|we|were) (?:am |are )?(?:not (?:sure|certain|aware|able)|unsure|unaware|unable)\b.*",
            # I have no information about it; I found nothing about that; there is no way to know
            rf"(?:i|we) (?:{_NEVER} (?:have|find|found|see|possess|hold|get|been given)|(?:have|found|find|see|hold) "
            rf"(?:no|insufficient)|lack)(?: \w+){{0,4}}? (?:{_INFO}|knowledge|anything)\b.*",
            r"(?:i|we) (?:have|found|find|see) nothing (?:about|on|regarding|in) .*",
            r"theres? (?:is )?no way (?:to|of) (?:know|tell|say|determin|knowing|telling|saying)\w*\b.*",
            # no information is available; there isn't enough information to answer; no date is mentioned
            r"(?:theres? )?(?:(?:is|are|was|were) )?(?:no|not|isnt|arent|wasnt|werent|insufficient) (?:\w+ ){0,2}?"
            rf"{_INFO}(?: (?:is|was|are|were))?(?: (?:{_STATED}|found|stored|present))?{_WHERE}{_ABOUT}",
            rf"no (?:\S+ ){{1,4}}?(?:is|are|was|were) (?:mentioned|stated|specified|recorded){_WHERE}",
            # nothing is known about her; none of the notes mention it; nobody knows
            r"(?:nothing|nobody|no one|none|neither)(?: (?:of|in|about)(?: \S+){1,2})? (?:mentions?\b.*|mentioned\b.*"
            r"|(?:said|says|knows)(?: (?:it|this|that|anything))?|(?:is|are|was|were|has been) (?:\w+ly )?(?:known"
            rf"|mentioned|stated|recorded|specified|said){_ABOUT}){_WHERE}",
            # you did not mention this information; the notes don't say where; not in the notes
            rf"(?:you|user|speakers?) {_NEVER} (?:{_SAY}|{_STATED})\b.*",
            rf"{_SOURCE} {_NEVER} (?:{_SAY}|{_STATED}|contain|include|have|hold|answer|address|cover)\b.*",
            rf"(?:it is |its )?(?:not|nowhere) (?:in|within) {_SOURCE}",
            # she never mentioned it; Bo did not say
            rf"(?:\S+ ){{1,4}}{_NEVER} (?:{_SAY}|{_STATED}) (?:it|this|that|so|anything|{_QUESTION}"
            rf"|(?:(?:this|that|any|such) )?{_INFO}){_WHERE}",
            rf"(?:\S+ ){{1,4}}{_NEVER} (?:mention|mentioned|say|said|specify|specified|state|stated"
            rf"|(?:tell|told) (?:me|us)){_WHERE}",
            # her name is unknown; not specified; it has never been mentioned in the notes; it cannot be determined
            rf"(?!(?:i|you|he|she|they|we) )(?:(?:\S+ ){{1,10}}?(?:is|are|was|were|remains?) |(?:its|thats|{_INFO}) )?"
            r"(?:currently |still )?(?:unknown|unclear|unspecified|(?:not|never) (?:\w+ly |yet )?"
            rf"{_STATED})(?: by \w+)?{_WHERE}",
            rf"(?:it is|it was|its) (?:unknown|unclear|unspecified|not (?:\w+ly |yet )?{_STATED}) {_QUESTION}",
            r"(?:\S+ ){1,10}?(?:isnt|arent|wasnt|werent|(?:has|have|had)(?: not| never|nt) (?:\w+ly )?been) "
            rf"(?:\w+ly )?{_STATED}(?: by \w+)?{_WHERE}",
            r"(?:\S+ ){0,10}?(?:cannot|can not|cant|could not|couldnt) be (?:determined|answered|known|inferred"
            r"|established)\b.*",
            r"(?:answer|information)(?: to \S+(?: \S+)?)? (?:cannot|can not|cant|could not|couldnt) be found\b.*",
        )
    )
)
_FILLER = re.compile(
    r"(?:im |i am |we are )?(?:very |so )?sorry(?: about that)?|i apologize|apologies|unfortunately|well|hm+|no"
    r"|(?:based on|according to|given|as of|as an|as far as|in|from|within|looking at) .*|(?:my |final )*answer"
)
_LINK = re.compile(
    r"^(?:(?:but|so|and|therefore|thus|hence|unfortunately|however|sorry|im afraid|i am afraid) )+"
    r"|^(?:my |final )*answer is "
    r"|^(?:抱歉|对不起|對不起|죄송(?:합니다만|하지만)|すみませんが|申し訳(?:ありません|ございません)が) ?(?=.)"
)
_BREAK = re.compile(
    r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.!?]+(?=\s|$|[\"')*])|[,;:\n\u2014\u3001\u3002\uff01\uff0c\uff1b]|\s(?=but\s)"
)
_REFUSING = """
    i we you it this that no not yes none never nothing nobody is was do did have know known sure answer information
    mentioned stated given available memory notes conversation
"""
_REFUSAL_WORDS = frozenset(_REFUSING.split())
_OTHER_LANGUAGES = frozenset(
    normalize(text)
    for text in (
        *("ich weiß es nicht", "ich weiß nicht", "weiß ich nicht", "unbekannt", "nicht bekannt", "keine angabe"),
        *("keine information", "keine informationen", "nicht erwähnt", "je ne sais pas", "je l'ignore", "inconnu"),
        *("non mentionné", "aucune information", "no lo sé", "no sé", "desconocido", "no se menciona", "non lo so"),
        *("sconosciuto", "não sei", "desconhecido", "ik weet het niet", "onbekend", "не знаю", "неизвестно"),
        *("нет информации", "لا أعرف", "غير معروف", "पता नहीं", "मुझे नहीं पता", "अज्ञात", "ไม่ทราบ", "ไม่รู้"),
        *("keine ahnung", "das weiß ich nicht", "je n'en sais rien", "no se sabe", "non si sa", "não há informação"),
        *("nie wiem", "nieznane", "bilmiyorum", "bilinmiyor", "tidak tahu", "tidak diketahui", "không biết", "لا أعلم"),
    )
)
_CHINESE_MATTER = (
    r"(?:(?:这|這|那|该|該|任何)?(?:个|個|些|方面)?(?:相关|相關|有关|有關)?的?"
    r"(?:信息|資訊|记录|記錄|内容|內容|答案|[资資]料|记忆|記憶))"
)
_CHINESE_SOURCE = r"(?:用户|用戶|对话|對話|聊天|记录|記錄|记忆|記憶|笔记|筆記|上下文|[资資]料|信息|資訊|文章?|[你您])"
_CHINESE_SAID = (
    r"(?:[没沒]有?|从未|從未|未)(?:被|曾)?(?:提到|提及|提过|提過|说明|說明|说过|說過|记载|記載)(?![书書谎謊])"
)
_CHINESE_UNSURE = r"不太?(?:知道|清楚|确定|確定|记得|記得)"
_JAPANESE_SOURCE = "(?:会話|記憶|メモ|ノート|情報|文章|本文|テキスト|資料|記録|履歴|文脈)"
_JAPANESE_TOPIC = (
    r"(?:.*?(?:について(?:の|は)?|への|に関(?:する|して)は?|(?<!し)か(?:どうか)?[はがも]?"
    rf"|{_JAPANESE_SOURCE}(?:の?中)?(?:に|で|から)[はも]?|その情報[はがも]) ?)?"
)
_KOREAN_SOURCE = "(?:대화|기억|메모|내용|정보|기록|본문|글|문서)"
_KOREAN_TOPIC = r"(?:.*?(?:에 (?:대한|대해서?는?|관한)|지는?|로는|에서는?|에는?|은|는|이|가|도|그|이) )?"
_NOT = r"없(?:습니다|음|어요|다|네요)"
_EAST_ASIAN_REFUSAL = re.compile(
    "|".join(
        (
            # 我不太清楚他住在哪里; 笔记中没有提到他的电话; 没有关于他的信息
            rf"(?!(?:用户|用戶|[你您])[也都并还還目前]*{_CHINESE_UNSURE}.)"  # 用户不知道怎么选专业 tells of the user
            rf"(?:(?:根据|根據).*?)?(?:(?:[我中里裡也并都这目前尚还還]|{_CHINESE_SOURCE}) ?)*(?:(?:{_CHINESE_UNSURE}"
            r"|[无無]法(?:[从從].*?)?(?:确定|確定|回答|得知|判断|判斷|知道|确认|確認)|[无無][从從]得知|不得而知"
            rf"|{_CHINESE_SAID})了?(?:{_CHINESE_MATTER}|(?:(?:这|這|那|该|該)(?:个|個)?)?(?:问题|問題)"
            r"|.*(?:谁|誰|什么|什麼|哪|几|幾|多少|何时|何時|是否|怎|为何).*)?"
            rf"|(?:(?:[没沒]有?|未能?)(?:找到)?|暂?[无無]|暫無|找不到)(?:(?:关于|關於|有关|有關).*?)?{_CHINESE_MATTER}"
            r"|(?:信息|資訊|[资資]料)不(?:足|够|夠)(?:(?:以|而?[无無]法|不能)(?:回答|[判推](?:断|斷)|确定|確定|得[知出]).*)?"
            r"|未找到|未知|不明)|[无無]",
            rf"(?:[我在这這那本该該目前] ?)*(?:{_CHINESE_SOURCE}的? ?)+[中里裡]?[也并都]?"
            rf"(?:{_CHINESE_SAID}|[没沒]有?告[诉訴][过過]?我).*",
            # 町長が誰かは分かりません; 本文には書かれていません; 該当する情報はありません
            r"(?!(?:ユーザー|利用者|あなた|彼(?:女|ら)?)[はも].*(?:(?:知|分か|わか)ら|覚えてい)ない)"  # 彼は知らない
            rf"{_JAPANESE_TOPIC}(?:(?:私|それ|これ|その|この) ?(?:に?[はも]|が)? ?)?"
            r"(?:(?:わ|分)か(?:りません(?:でした)?|らない(?:です)?|りかねます)|知りません|知らない|存じません|不明(?:です)?"
            r"|覚えて(?:いません|いない)|(?:お?答え|回答|判断|特定|確認)(?:することは|[はが])?(?:られ|でき)(?:ません|ない|かねます)"
            r"|(?:回答|判断|特定)不(?:能|可)(?:です)?|無回答"
            r"|(?:該当する|関連する|十分な)?(?:情報|記載|言及|記述|記録|答え|該当)[はがも]?(?:ありません|ない(?:です)?|なし"
            r"|(?:見つかり|見当たり|されてい)ません)(?:でした)?)",
            rf".*{_JAPANESE_SOURCE}(?:の?中)?に[はも]?(?:ありません|ない(?:です)?|含まれてい(?:ません|ない))",
            rf".*(?:{_JAPANESE_SOURCE}(?:の?中)?に[はも]?|(?<!し)か[はがも]?)(?:書か|述べら)れてい(?:ません|ない)",
            r"(?:.*[はがも])?(?:記載|言及|明記)されてい(?:ません|ない)|なし",
            # 면적은 알 수 없습니다; 면적에 대한 정보가 없습니다; 본문에 나와 있지 않습니다
            rf"{_KOREAN_TOPIC}(?:알 수가? ?{_NOT}|(?:답변?|대답|확인|판단|파악) ?할 수 {_NOT}"
            rf"|(?:관련 |해당 )?(?:정보|언급|기록|내용|답변?|자료|기억)[은는이가도을를]? ?(?:찾을 수 )?{_NOT}"
            r"|(?:(?:언급|기록|명시|기재)(?:되지|되어 있지|돼 있지)|나와 있지|알려지지|기억나지|기억이 나지)"
            r" 않(?:습니다|았습니다|음|아요|다|았다|았어요))",
            r"(?!(?:사용자|고객|당신|그|그녀|그들)[은는도] (?:.* )?(?:잘 )?(?:모릅니다|모른다|모름|몰라))"
            rf"(?:.*?(?:지는?|에 대해서?는?) |(?:그|이|{_KOREAN_SOURCE}|답)[은는이가을를]? ?)?(?:잘 )?"
            r"(?:모릅니다|모르겠(?:습니다|어요|네요|다|음)|모른다|모름|몰라요?)",
            rf"(?:(?:.* )?{_KOREAN_SOURCE}+에(?:서|는|서는)? )?찾을 수 {_NOT}"
            rf"|(?:.* )?{_KOREAN_SOURCE}+에(?:서|는|서는)? {_NOT}|없음",
        )
    )
)
_EAST_ASIAN_FILLER = re.compile(
    "(?:很|非常)?(?:抱歉|对不起|對不起|不好意思)|(?:根据|根據|关于|關於).*|すみませんが?|申し訳(?:ありません|ございません)が?"
    "|.*に(?:ついて|関して)は?|죄송(?:합니다만?|하지만)|.*에 대해서?는?"
)


def is_same(left: str, right: str) -> bool:
    """Return True if two texts are equal after `normalize` and not empty."""
    return bool(normalize(left)) and normalize(left) == normalize(right)


def tokens(text: str) -> list[str]:
    """Split a text into normalized tokens: words, and single characters of scripts written without spaces."""
    return _spaced(text).split()


def _spaced(text: str) -> str:
    """Return the normalized tokens of a text with single spaces between them."""
    plain = normalize(text)
    if plain.isascii() or UNSPACED.search(plain) is None:
        return plain
    return " ".join(UNSPACED.sub(r" \g<0> ", plain).split())


def contains(text: str, part: str) -> bool:
    """Return True if `text` contains `part` as a run of whole normalized tokens; "Carol's" contains "Carol".

    An empty part is never contained. One character of a script without spaces has to stand between spaces or marks,
    since it is too little to tell a word by.
    """
    if len(normalize(part)) == 1 and UNSPACED.search(part):
        return f" {normalize(part)} " in f" {normalize(text)} "
    if _holds_run(text, part):
        return True
    return _POSSESSIVE.search(text) is not None and _holds_run(_POSSESSIVE.sub("", text), _POSSESSIVE.sub("", part))


def _holds_run(text: str, part: str) -> bool:
    needle = _spaced(part)
    return bool(needle) and f" {needle} " in f" {_spaced(text)} "


_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b", re.IGNORECASE)


def is_copied(content: str, source: str) -> bool:
    """Return True if a memory's content invents no value that `source` lacks.

    Values are names and numbers: words with a digit, and capitalized ones but the first. Of a line `key: value` all
    words but stop words count. Words are compared by their stems; dates such as 2025-01-12 may be worked out.

    Args:
        content: Content of an entry.
        source: Text that it was written from.
    """
    known = set(words(source))
    text = _ISO_DATE.sub(" ", content)
    if pair := key_value(text):
        return known.issuperset(words(pair[1]))
    values = [word for word in text.split()[1:] if word[:1].isupper()] + _NUMBER.findall(text)
    return known.issuperset(words(" ".join(values)))


_ISO_DATE = re.compile(r"\b\d{4}-\d\d(?:-\d\d)?(?:T\d\d:\d\d)?\b")
_NUMBER = re.compile(r"\S*\d\S*")


def is_abstention(answer: str) -> bool:
    """Return True if an answer says that it does not know, and nothing else.

    Every clause of a reply of at most `MAX_REFUSAL_WORDS` words has to be a refusal or a filler ("Sorry"), one of them
    a refusal. An empty answer is not an abstention.
    """
    if len(answer) > MAX_REFUSAL_CHARACTERS or len(answer.split()) > MAX_REFUSAL_WORDS:
        return False
    answer = re.sub(r"^[^.!?\n]*\?\s+(?=\S)", "", answer)  # the question again
    if normalize(answer) in _OTHER_LANGUAGES:
        return True
    clauses = [_LINK.sub("", normalize(clause)) for clause in _BREAK.split(answer) if clause.strip(" \t\"'*.!()")]
    refusals, fillers = (
        [any(form.fullmatch(clause) for form in forms) for clause in clauses if clause]
        for forms in ((_REFUSAL, _EAST_ASIAN_REFUSAL), (_FILLER, _EAST_ASIAN_FILLER))
    )
    return any(refusals) and all(map(max, refusals, fillers)) and clauses != ["no"]


def holds_answer(reply: str, accepted: str) -> bool:
    """Return True if a reply is an accepted answer, or contains one that has other words than refusals have."""
    is_telling = not frozenset(normalize(accepted).split()) <= _REFUSAL_WORDS and not is_abstention(accepted)
    return is_same(reply, accepted) or (is_telling and contains(reply, accepted))
