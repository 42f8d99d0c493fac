"""Rule-based writer that stores English sentences of a few forms and updates changed values.

It reads one sentence at a time. It stores sentences in the first person, about "my" or somebody's something, or whose
first word is capitalised like a name. So small talk gets in as well: of its entries on LoCoMo, 30 % begin with a
person. It skips questions and turns of an assistant; in plain text it knows only labels with a capital (`Assistant:`).
It keeps less evidence than storing every turn: on LoCoMo its F1 is .081, that of append-only .114.

A few sentence forms give a slot (subject and attribute): home, employer, job, age, and any "my X is Y". If a visible
entry has the same slot with another value, it is updated; everything else is inserted.

The writer resolves no pronouns, ignores negation and never deletes. It is a lower bound for writers, like the
extractive reader for readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memalpha.policy.hermes import format_call
from memalpha.types import Chunk, Observation

_ASSISTANT_ROLES = ("assistant", "system", "tool")
_ANONYMOUS_SPEAKERS = ("user", "story")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_LABEL = re.compile(r"([A-Z][\w'-]*(?: [A-Z][\w'-]*)?): (.+)", re.S)
_TIME_PREFIX = re.compile(r"^(?:Now|Today|Currently|These days),? ")
_SUBJECT = r"(?P<who>I|[A-Z][a-z]+(?: [A-Z][a-z]+)?)"
_SLOTS = tuple(
    (re.compile(pattern), slot)
    for pattern, slot in (
        (rf"{_SUBJECT} (?:now )?(?:lives?|moved|relocated) (?:in|to) (?P<value>.+)", "home"),
        (r"[Tt]he home of (?P<who>[A-Z]\w+) is (?:now )?(?:in )?(?P<value>.+)", "home"),
        (rf"{_SUBJECT} (?:now )?(?:works? (?:for|at)|joined) (?P<value>.+)", "employer"),
        (rf"{_SUBJECT} (?:now )?(?:works? as|became|am an?|is an?) (?P<value>.+)", "job"),
        (rf"{_SUBJECT} (?:am|is|turned) (?P<value>\d+)(?: years old)?", "age"),
        (r"(?P<who>[Mm]y|[A-Z]\w+'s) (?P<slot>\w+(?: \w+){0,2}) (?:is|are)(?: now)? (?P<value>.+)", ""),
        (r"[Tt]he (?P<slot>\w+(?: \w+)?) of (?P<who>[A-Z]\w+) is(?: now)? (?P<value>.+)", ""),
    )
)
_STATEMENT = re.compile(
    rf"(?:{_SUBJECT}|[Mm]y|We|[Oo]ur)(?:'s|'m|'ve)? .*"
    r"(?:\b(?:am|is|are|was|were|have|has|had|live[sd]?|work(?:s|ed)?|moved|bought|got|went|started|joined|stud(?:y|ied)"
    r"|like[sd]?|love[sd]?|hate[sd]?|prefers?|play(?:s|ed)?|allergic|born|married|visited|met|finished|plan(?:s|ned)?)\b)"
)
_DATE_WORD = re.compile(
    r"\b(?:yesterday|today|tomorrow|tonight|(?:last|next) (?:night|week|weekend|month|year)|\d{4}|Jan(?:uary)?|February"
    r"|March|April|June|July|August|September|October|November|December|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b"
)
_NOT_NAMES = frozenset(
    {"The", "This", "That", "These", "Those", "There", "It", "They", "He", "She", "We", "You", "What", "Who", "Nothing"}
    | {"Another", "Every", "Their"}
)


class _Slot(NamedTuple):
    subject: str
    attribute: str
    value: str


def heuristic_calls(observation: Observation, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tool calls for one chunk as Hermes text, one string per call."""
    slots_in_view = {
        slot[:2]: (entry.id, slot.value) for entry in observation.entries if (slot := _slot(entry.content))
    }
    contents, calls = {entry.content for entry in observation.entries}, []
    for content in dict.fromkeys(_statements(observation.chunk)):
        slot = _slot(content)
        id, value = slots_in_view.get(slot[:2], (None, "")) if slot else (None, "")
        if content in contents or (slot and slot.value == value):
            continue
        if id is not None and slot is not None:
            calls.append(format_call("memory_update", {"id": id, "content": content}))
            slots_in_view[slot[:2]] = (id, slot.value)
            continue
        category = _category(tools, "episodic" if slot is None and _DATE_WORD.search(content) else "semantic")
        calls.append(format_call("memory_insert", {"category": category, "content": content}))
    return calls


def _statements(chunk: Chunk) -> Iterator[str]:
    """Yield the sentences worth storing, prefixed with the speaker's name."""
    lines = [("", line) for line in (chunk.text or "").splitlines()]
    for speaker, text in [(turn.speaker, turn.text) for turn in chunk.turns] or lines:
        if not speaker and (label := _LABEL.fullmatch(text.strip())):
            speaker, text = label[1], label[2]
        if speaker.lower() in _ASSISTANT_ROLES:
            continue
        for sentence in _SENTENCE.findall(text):
            sentence = sentence.strip()
            if sentence and not sentence.endswith("?") and _is_statement(sentence):
                has_name = speaker and speaker.lower() not in _ANONYMOUS_SPEAKERS
                yield f"{speaker}: {sentence}" if has_name else sentence


def _is_statement(sentence: str) -> bool:
    sentence = _TIME_PREFIX.sub("", sentence)
    if not sentence:
        return False
    if sentence.split()[0] in _NOT_NAMES:
        return any(pattern.match(sentence) for pattern, _ in _SLOTS)
    return bool(_STATEMENT.match(sentence))


def _slot(content: str) -> _Slot | None:
    """Return subject, attribute and value of a statement in lower case.

    Returns None if no sentence form matches.
    """
    label = _LABEL.fullmatch(content)
    speaker, sentence = (label[1], label[2]) if label else ("I", content)
    sentence = _TIME_PREFIX.sub("", sentence)
    for pattern, slot in _SLOTS:
        if match := pattern.match(sentence):
            subject = match["who"].removesuffix("'s")
            if subject in _NOT_NAMES:
                continue
            subject = speaker if subject in ("I", "My", "my") else subject
            attribute = slot or match["slot"]
            return _Slot(subject.lower(), attribute.lower(), match["value"].rstrip(".! ").lower())
    return None


def _category(tools: Sequence[Mapping[str, Any]], preferred: str) -> str:
    """Return `preferred`, or the first category if the schema lacks it."""
    for tool in tools:
        category = tool["function"]["parameters"]["properties"].get("category")
        if category and preferred not in category["enum"]:
            return category["enum"][0]
    return preferred
