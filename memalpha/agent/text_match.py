"""Compare normalized short texts, test token containment, detect refusals."""

from __future__ import annotations

import re

from memalpha.store.search.lexical import words
from memalpha.store.values import key_value, normalize

MAX_REFUSAL_WORDS = 40
"""Words of the longest reply that can be a refusal."""

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
            r"unknown|undisclosed|none|na|n/a|not (?:known|sure|found|applicable)|unsure|unclear|unanswerable",
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
)
_BREAK = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.!?]+(?=\s|$|[\"')*])|[,;:\n\u2014\u3002\uff01]|\s(?=but\s)")
_REFUSAL_WORDS = frozenset(
    (
        *(
            "i",
            "we",
            "you",
            "it",
            "this",
            "that",
            "no",
            "not",
            "yes",
            "none",
            "never",
            "nothing",
            "nobody",
            "is",
            "was",
        ),
        *("do", "did", "have", "know", "known", "sure", "answer", "information", "mentioned", "stated", "given"),
        *("available", "memory", "notes", "conversation"),
    )
)
_OTHER_LANGUAGES = frozenset(
    normalize(text)
    for text in (
        *("ich weiß es nicht", "ich weiß nicht", "weiß ich nicht", "unbekannt", "nicht bekannt", "keine angabe"),
        *("keine information", "keine informationen", "nicht erwähnt", "je ne sais pas", "je l'ignore", "inconnu"),
        *("non mentionné", "aucune information", "no lo sé", "no sé", "desconocido", "no se menciona", "non lo so"),
        *("sconosciuto", "não sei", "desconhecido", "ik weet het niet", "onbekend", "не знаю", "неизвестно"),
        *("нет информации", "不知道", "我不知道", "未知", "没有提到", "无法确定", "わかりません", "分かりません"),
        *("不明", "不明です", "모릅니다", "모르겠습니다", "알 수 없음", "لا أعرف", "غير معروف", "पता नहीं"),
        *("मुझे नहीं पता", "अज्ञात", "ไม่ทราบ", "ไม่รู้"),
    )
)


def is_same(left: str, right: str) -> bool:
    """Return True if two texts are equal after `normalize` and not empty."""
    return bool(normalize(left)) and normalize(left) == normalize(right)


def contains(text: str, part: str) -> bool:
    """Return True if `text` contains `part` as a run of whole normalized tokens.

    An empty part is never contained.
    """
    needle = normalize(part)
    return bool(needle) and f" {needle} " in f" {normalize(text)} "


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
    if len(answer.split()) > MAX_REFUSAL_WORDS:
        return False
    answer = re.sub(r"^[^.!?\n]*\?\s+(?=\S)", "", answer)  # the question again
    if normalize(answer) in _OTHER_LANGUAGES:
        return True
    clauses = [_LINK.sub("", normalize(clause)) for clause in _BREAK.split(answer) if clause.strip(" \t\"'*.!()")]
    refusals = [_REFUSAL.fullmatch(clause) is not None for clause in clauses if clause]
    fillers = [_FILLER.fullmatch(clause) is not None for clause in clauses if clause]
    return any(refusals) and all(map(max, refusals, fillers)) and clauses != ["no"]


def holds_answer(reply: str, accepted: str) -> bool:
    """Return True if a reply is an accepted answer, or contains one that has other words than refusals have."""
    is_telling = not frozenset(normalize(accepted).split()) <= _REFUSAL_WORDS and not is_abstention(accepted)
    return is_same(reply, accepted) or (is_telling and contains(reply, accepted))
