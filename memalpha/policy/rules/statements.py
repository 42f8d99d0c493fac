"""Sentences that state something of a person: told apart from questions, requests and small talk by their words."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[\u3002\uff01\uff1f])\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|vs|e\.g|i\.e|etc|No|[A-Z]))\.$")

LEAD_IN = re.compile(
    r"(?:(?:actually|oh|ah|well|yeah|yes|yep|no|nope|ok|okay|sure|hey|hi|hello|wow|so|and|but|also|btw|fyi|anyway"
    r"|by the way|in fact|update|correction|sorry|right now|now|today|currently|these days|honestly|to be honest"
    r"|(?:please )?(?:remember|note|keep in mind|don't forget)(?: that)?|just so you know|for the record"
    r"|thanks(?: [^,.!-]*)?|thank you(?: [^,.!-]*)?|übrigens|eigentlich|por cierto|en realidad|au fait|en fait)"
    r"(?: there)?(?:,? [A-Z]\w+(?=[,!]))?[,:!-]+\s*|(?:actually|currently|also|so|and|but|oh|btw|now|today|fyi"
    r"|(?:please )?(?:remember|note|keep in mind|don't forget) that) (?=\w))+",
    re.IGNORECASE,
)
"""Words before the statement itself: `Actually, `, `Hey Tom, `, `Please remember that `."""

FIRST_PERSON = re.compile(
    r"\b(?:i|i['\u2019](?:m|ve|d|ll)|im|ive|my|me|mine|myself|we|we['\u2019](?:re|ve|d|ll)|our|ours|us"
    r"|ich|mein\w*|mir|mich|wir|unser\w*|uns|yo|mi|mis|nosotr[oa]s|nuestr\w+|vivo|tengo|trabajo|soy|llamo|estudio"
    r"|je|j['\u2019]\w+|mon|ma|mes|moi|nous|notre|nos|io|mio|mia|miei|abito|lavoro|chiamo|eu|meu"
    r"|minha|meus|moro|tenho|sou"
    r"|ik|mijn|wij|onze|я|мой|моя|моё|мои|мне|меня|мы|наш\w*)\b"
    r"|我|私|僕|俺|わたし|저는|나는|제 |أنا|عندي|لدي|اسمي|मैं|मेर[ाीे]",
    re.IGNORECASE,
)
_SECOND_PERSON = re.compile(r"\b(?:you|your|yours|you['\u2019](?:re|ve|ll|d)|u|ur)\b", re.IGNORECASE)
_FINITE = (
    r"(?:is|are|was|were|has|had|have|isn't|wasn't|doesn't|does|did|will|would|can|lives?|lived"
    r"|works?|worked|moved|goes|went"
    r"|got|gets|bought|likes?|liked|loves?|loved|hates?|hated|prefers?|plays?|played|studies"
    r"|studied|started|joined|left"
    r"|became|born|married|visited|met|finished|plans?|planned|wants?|wanted|said|told|made|makes|took|takes|runs|ran"
    r"|teaches|taught|speaks|owns?|drives?|eats?|drinks?|needs?|turned|passed|won|lost|broke|adopted|graduated"
    r"|retired|called|gave|came|comes|knows?|knew|uses?|used|wrote|writes|reads?|sold|sells|found|feels?|felt)"
)
_PERSON = re.compile(
    rf"(?P<name>[A-Z][a-zà-ÿ'\u2019-]+)(?: (?:and )?[A-Z][\wà-ÿ'\u2019-]+)*(?:'s [\w ]+?)?"
    rf" (?:just |now |also |recently |already |really |never |no longer |still )?{_FINITE}\b"
)
_HER = re.compile(rf"(?:he|she|they|her|his|their)\b(?: \w+){{0,3}} {_FINITE}\b", re.IGNORECASE)
_COMMON_WORDS = """
    the this that these those there it they he she we you what who nothing another every their his her
    its our my i a an all some any many most much more no none not if when while as because since after
    before until although though how why where which whose someone somebody everyone everybody anyone
    something everything anything people life work music time today tomorrow yesterday now then here
    maybe perhaps just only even still also and or but so yet yes okay well oh wow great good nice cool
    sounds congrats thanks thank please sorry hello hi hey keep take have be do don't let try go look
    hope glad love family friends being having getting doing going it's that's there's what's here's
    let's one two three both each such
    """
_NOT_NAMES = frozenset(_COMMON_WORDS.split())
_REQUEST = re.compile(
    r"(?:please|can|could|would|will|should|do|does|did|are|is|what|what's|who|who's|where|when|why"
    r"|how|which|whose|any"
    r"|tell|give|show|write|explain|help|make|create|list|translate|fix|summari[sz]e|generate|suggest|recommend|find"
    r"|compare|describe|rewrite|draft|add|remove|change|convert|calculate|define|provide|keep"
    r"|take care|take it|let|let's"
    r"|enjoy|don't|check|try|go|have a|have fun|have you|be|look|stay|hope|imagine|assume|suppose"
    r"|act|ignore|stop|continue"
    r"|remind me|kannst|könntest|was|wie|wo|bitte|schreib\w*|erklär\w*|puedes|podrías|qué|cómo"
    r"|dónde|por favor|peux|pouvez"
    r"|pourrais|comment|quel\w*)\b(?! I\b)",
    re.IGNORECASE,
)
_PRAISE = (
    "(?:great|good|nice|cool|awesome|amazing|wonderful|fantastic|lovely|beautiful|impressive|incredible|perfect|sweet)"
)
_SMALL_TALK = re.compile(
    r"(?:i (?:see|agree|understand|guess|think so|hope so|know,? right|get it|bet|wish|wonder"
    r"|appreciate|don't know|have no idea|can imagine)\b"
    r"|i['\u2019]?(?:m| am) (?:so |really |very |just |super )?(?:glad|happy|sorry|proud|excited"
    r"|curious|here|interested)"
    r" (?:to hear|to see|for you|of you|you|about that|that you|to help|to know|for the)"
    r"|i(?:['\u2019]d| would)? (?:really |so |absolutely |totally )?(?:love|like|appreciate"
    r"|enjoy) (?:it|that|this|them|to hear|to know|to see (?:it|that|your)|you|your)\b"
    r"|i (?:need|want|would like|['\u2019]d like) (?:you to|help|your|some (?:help|advice|ideas"
    r"|tips)|a (?:recipe|summary|list|poem|story|plan))"
    r"|i(?:['\u2019]d| would) like (?:you to|to ask|to know|help|some)|i have (?:a|one|another"
    r"|some) (?:quick )?questions?\b"
    r"|i can['\u2019]t (?:wait|believe|thank)|i (?:totally|completely|fully) (?:agree|understand"
    r"|get)|if i\b|what if\b|let me\b"
    rf"|(?:that['\u2019]s|that is|this is|it['\u2019]s|it is|sounds|looks)(?: (?:so|really|very"
    rf"|such|pretty|a|an|just))* {_PRAISE}|sounds"
    r"|good luck|take care|congrat|well done|great job|keep (?:up|it up|going|in touch)|way to go"
    r"|hang in there|go for it"
    rf"|happy birthday|have (?:a|fun)\b|enjoy\b|{_PRAISE}"
    r"|thanks|thank you|cheers|bye|goodbye|see you|talk to you|good (?:morning|night|evening|afternoon)"
    r"|danke|gracias|merci|grazie|obrigad|谢谢|ありがとう|you['\u2019]?re welcome|no (?:problem|worries)"
    r"|it helps me|that helps"
    r"|das hilft|me alegr|je suis content\w* pour)",
    re.IGNORECASE,
)  # fmt: skip


def split_sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line; a full stop of an abbreviation or a number ends none."""
    start = 0
    for match in _BOUNDARY.finditer(line):
        if _ABBREVIATION.search(line[start : match.start()]):
            continue
        if sentence := line[start : match.end()].strip():
            yield sentence
        start = match.end()
    if sentence := line[start:].strip():
        yield sentence


def strip_lead_in(sentence: str) -> str:
    """Return the sentence without `Actually, `, `Please remember that ` and the like."""
    return LEAD_IN.sub("", sentence, count=1) if LEAD_IN.match(sentence) else sentence


def is_small_talk(sentence: str) -> bool:
    """Return True for questions, thanks, praise, greetings and reactions."""
    core = strip_lead_in(sentence)
    if not re.search(r"\w", core) or core.rstrip("\"')]} ").endswith(("?", "\uff1f")):
        return True
    return bool(_SMALL_TALK.match(core))


def is_for_the_listener(sentence: str) -> bool:
    """Return True for requests, and for words about the listener alone."""
    core = strip_lead_in(sentence)
    if _REQUEST.match(core):
        return True
    return bool(_SECOND_PERSON.search(core)) and not FIRST_PERSON.search(core)


def is_about_a_person(sentence: str) -> bool:
    """Return True if a sentence speaks of the speaker, or begins with a person and a verb."""
    core = strip_lead_in(sentence)
    if FIRST_PERSON.search(core) or _HER.match(core):
        return True
    match = _PERSON.match(core)
    return bool(match) and match["name"].lower() not in _NOT_NAMES
