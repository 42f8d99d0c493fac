"""Rule-based writer: keeps what people say of themselves and others, and updates attributes that changed.

It reads one sentence at a time and skips questions, thanks, praise and every word of an assistant, however its label is
written. Between people with names everything else is kept. In a chat with an assistant requests are skipped, too, and a
sentence must speak of the speaker (in a dozen languages) or begin with a person and a verb; up to two sentences that
follow it are stored with it.

English forms and a few of other languages give an attribute: name, home, employer, job, age, likes, and any "my X is
Y". If a visible entry has the attribute with another value, it is updated: "Actually, I moved to Porto", "I no longer
eat meat". Relative dates are written out if the chunk has a timestamp.

The writer resolves no pronouns, sees no irony and never deletes. `eval/results/sentence-rules.md` compares it with
keeping every turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memalpha.policy.hermes import format_call
from memalpha.policy.rules.dates import resolve_dates
from memalpha.policy.rules.slots import find_slot
from memalpha.policy.rules.statements import is_about_a_person, is_for_the_listener, is_small_talk, split_sentences
from memalpha.policy.rules.transcript import is_anonymous, is_assistant, spoken_lines
from memalpha.types import Chunk, Observation

_MAX_CONTEXT = 2
"""Sentences without a person that are stored after a statement."""
_MIN_WORDS = 3

_DATE_WORD = re.compile(
    r"\b(?:yesterday|today|tomorrow|tonight|ago|(?:last|next) (?:night|week|weekend|month|year)|\d{4}|Jan(?:uary)?"
    r"|February|March|April|June|July|August|September|October|November|December"
    r"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b"
)


def sentence_rule_calls(observation: Observation, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tool calls for one chunk as Hermes text, one string per call."""
    slots_in_view = {
        slot[:2]: (entry.id, slot.value) for entry in observation.entries if (slot := find_slot(entry.content))
    }
    contents, calls = {entry.content for entry in observation.entries}, []
    for content in dict.fromkeys(_statements(observation.chunk)):
        slot = find_slot(content)
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
    """Yield the contents worth storing, with dates and the speaker's name.

    A sentence with a slot is a content of its own. Other neighbouring sentences of a line are one.
    """
    lines = list(spoken_lines(chunk))
    is_conversation = _is_conversation(speaker for speaker, _ in lines)
    for speaker, line in lines:
        if is_assistant(speaker):
            continue
        prefix = "" if is_anonymous(speaker) else f"{speaker}: "
        passage: list[str] = []
        context = 0
        for sentence in split_sentences(line):
            if is_small_talk(sentence) or (not is_conversation and is_for_the_listener(sentence)):
                continue
            resolved = resolve_dates(sentence, chunk.timestamp)
            if find_slot(prefix + sentence):
                yield prefix + resolved
            elif is_conversation or is_about_a_person(sentence):
                passage.append(resolved)
                context = 0
            elif passage and context < _MAX_CONTEXT and len(sentence.split()) >= _MIN_WORDS:
                passage.append(resolved)
                context += 1
        if passage:
            yield prefix + " ".join(passage)


def _is_conversation(speakers: Iterable[str]) -> bool:
    """Return True if several people with names talk, and no assistant or user without a name."""
    labels = {speaker for speaker in speakers if speaker}
    return len(labels) > 1 and not any(is_assistant(label) or is_anonymous(label) for label in labels)


def _category(tools: Sequence[Mapping[str, Any]], preferred: str) -> str:
    """Return `preferred`, or the first category if the schema lacks it."""
    for tool in tools:
        category = tool["function"]["parameters"]["properties"].get("category")
        if category and preferred not in category["enum"]:
            return category["enum"][0]
    return preferred
