"""Subject, attribute and value of a statement: what an update replaces."""

from __future__ import annotations

import re
from typing import NamedTuple

from memalpha.policy.rules.statements import strip_lead_in
from memalpha.policy.rules.transcript import is_anonymous, split_label


class StatedValue(NamedTuple):
    """Attribute of a subject with its value, all in lower case. The speaker without a name is "i"."""

    subject: str
    attribute: str
    value: str


_WHO = r"(?P<who>[Ii]|[A-Z][a-zà-ÿ]+(?: [A-Z][a-zà-ÿ]+)?)(?:['\u2019](?:m|ve|s))?"
_ADVERBS = r"(?: (?:now|just|recently|currently|already|finally))?"
_CITY_VALUE = r"(?P<value>[A-Z一-龥].*|[a-z]\w+(?: now)?[.!]*$)"
_JOB_SUFFIX = (
    r"(?:er|or|ist|ian|eer|yst|nurse|chef|pilot"
    r"|student|clerk|lawyer|vet|dentist|surgeon|architect|accountant|consultant|intern|professor)"
)
_NOT_JOBS = (
    "beginner|gamer|runner|lover|mother|father|brother|sister|member|believer|owner"
    "|morning person|night owl|winner|either"
)
_STOP = re.compile(
    r"(?:,|;|\(| - | — |[\u3002\uff0c])| (?:now|with|and|but|since|because|so|when|where|which|who"
    r"|for|these days|any ?more)\b"
)
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), attribute)
    for pattern, attribute in (
        (r"(?i:my name is|my name['\u2019]s|(?:please )?call me|i(?:['\u2019]m| am) called"
         r"|i go by) (?P<value>[\w'\u2019-]+(?: [A-Z][\w'\u2019-]+)*)", "name"),
        (r"(?i:ich hei(?:ß|ss)e|mein name ist|me llamo|mi nombre es|je m['\u2019]appelle|mi chiamo"
         r"|meu nome é) (?P<value>\w+)", "name"),
        (r"(?:我叫|我的名字是)(?P<value>\w+)", "name"),
        (rf"{_WHO}{_ADVERBS} (?:lives?|living) in {_CITY_VALUE}", "home"),
        (rf"{_WHO}{_ADVERBS} (?:moved|moving|relocated)(?: back)?(?: from [\w ]+?)? to {_CITY_VALUE}", "home"),
        (r"[Tt]he home of (?P<who>[A-Z]\w+) is (?:now )?(?:in )?(?P<value>.+)", "home"),
        (r"(?i:ich (?:wohne|lebe)(?: jetzt)? in|(?:yo )?vivo(?: ahora)? en|me mudé a"
         r"|j['\u2019]habite(?: maintenant)? (?:à|en|au)|abito a|vivo a|moro em) (?P<value>.+)", "home"),
        (r"(?i:ich bin nach) (?P<value>\w+) (?i:(?:um)?gezogen)", "home"),
        (r"我(?:现在)?(?:住在|搬到了?)(?P<value>\w+)", "home"),
        (rf"{_WHO}{_ADVERBS} (?:works? (?:for|at)|working (?:for|at)|joined) (?P<value>.+)", "employer"),
        (rf"{_WHO}{_ADVERBS} (?:started|got|took|have|has) an? (?:new )?(?:job|position|role) (?:at"
         rf"|with) (?P<value>.+)", "employer"),
        (rf"{_WHO}(?:{_ADVERBS} (?:works? as|working as|became|am|is))? an? "
         rf"(?P<value>(?!(?:\w+ )*(?:{_NOT_JOBS})\b)(?:[\w-]+ ){{0,3}}?\w*{_JOB_SUFFIX})"
         r"(?=[.,!;]| at | in | now|$)", "job"),
        (rf"{_WHO} (?:am|is|turned|just turned)? ?(?P<value>\d+)(?: years old)?[.!]?$", "age"),
        (r"(?P<who>[Mm]y|[A-Z]\w+['\u2019]s) (?P<slot>(?!name\b)\w+(?: \w+){0,2}?) (?:is|are"
         r"|has changed to|changed to|became)(?: now| actually)? (?P<value>.+)", ""),
        (r"[Ii] (?:have )?changed (?P<who>my) (?P<slot>\w+(?: \w+){0,2}?) to (?P<value>.+)", ""),
        (r"[Tt]he (?P<slot>\w+(?: \w+)?) of (?P<who>[A-Z]\w+) is(?: now)? (?P<value>.+)", ""),
    )
)  # fmt: skip
_ACTION = re.compile(
    rf"{_WHO} (?:really |still |also )?(?P<verb>like|love|enjoy|hate|dislike|prefer|eat|drink|play"
    rf"|use|drive|own|have|speak"
    r"|smoke|teach|study)s? (?P<object>(?!it\b|that\b|this\b|them\b|to\b|you\b|your\b"
    r"|been\b)[\w'\u2019-]+(?: [\w'\u2019-]+){0,3})[.!]*$"
)
_ATTITUDES = ("like", "love", "enjoy", "hate", "dislike", "prefer")
_NO_LONGER = re.compile(r"\b(?:am |is |'m |\u2019m )?no longer\b")
_ANY_MORE = re.compile(r"\b(?:(?:do|does|am|is)(?: not|n['\u2019]t)|['\u2019]m not) (.+?),? (?:any ?more|any longer)\b")
_NOT_SUBJECTS = frozenset(
    {"the", "this", "that", "it", "they", "he", "she", "we", "you", "what", "who", "there", "nothing"}
)


def find_slot(content: str) -> StatedValue | None:
    """Return the slot that a statement sets, with its speaker's label or without; None if no form matches.

    `no longer` and `not ... any more` set the slot of the statement that they end, to another value.
    """
    label, words = split_label(content)
    speaker = "i" if is_anonymous(label) else label
    sentence = strip_lead_in(words).strip()
    negated = sentence
    if _NO_LONGER.search(sentence):
        negated = re.sub(r"\b(am|is|['\u2019]m) no longer\b", r"\1", sentence)
        negated = _NO_LONGER.sub("", negated)
    elif _ANY_MORE.search(sentence):
        negated = _ANY_MORE.sub(lambda match: ("am " if "m" in match[0][:3] else "") + match[1], sentence)
    is_ended = negated != sentence
    slot = _match_forms(re.sub(r"\s+", " ", negated), speaker)
    return slot if slot is None or not is_ended else slot._replace(value=f"no longer {slot.value}")


def _match_forms(sentence: str, speaker: str) -> StatedValue | None:
    for pattern, attribute in _FORMS:
        match = pattern.match(sentence)
        if match is None:
            continue
        groups = match.groupdict()
        who = groups.get("who") or "I"
        subject = speaker if who.lower() in ("i", "my") else re.sub(r"['\u2019]s$", "", who)
        value = _STOP.split(match["value"])[0].strip(" .!\"'").lower()
        if subject.lower() in _NOT_SUBJECTS or not value:
            continue
        return StatedValue(subject.lower(), (attribute or groups["slot"]).lower(), value)
    match = _ACTION.match(sentence)
    if match is None or match["who"].lower() in _NOT_SUBJECTS:
        return None
    subject = speaker if match["who"].lower() == "i" else match["who"]
    is_attitude = match["verb"] in _ATTITUDES
    attribute = f"{'attitude to' if is_attitude else match['verb']} {match['object']}"
    return StatedValue(subject.lower(), attribute.lower(), match["verb"])
