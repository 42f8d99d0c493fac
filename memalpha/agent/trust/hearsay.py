"""Hearsay: what a person says of somebody else. Only its plain form can be compared with what that person said.

A sentence is hearsay if it names somebody who is known, or has a pronoun of the third person and another subject than
its speaker. "I took my children there, they loved it" has the speaker for subject; "I know that she likes it" has not.

The plain form names subject and attribute (`Ana's job is teaching`, `Ana works at Initech`). In any other form the rule
cannot tell which matter the sentence is of, so it cannot tell either whether it contradicts. No list of such forms is
needed: whatever is not plain is vague.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from memalpha.agent.trust.speakers import statement_words
from memalpha.policy.rules.slots import find_slot
from memalpha.policy.rules.statements import strip_lead_in
from memalpha.policy.rules.transcript import split_label
from memalpha.store.search.bm25 import words

_THIRD_PERSON = re.compile(
    r"\b(?:he|him|his|himself|she|her|hers|herself|they|them|their|theirs|themselves)\b(?!['\u2019]?\w)"
    r"|\b(?:he|she|they)['\u2019](?:s|d|ll|re|ve)\b",
    re.IGNORECASE,
)
_OWN_SUBJECT = re.compile(r"(?:I|we|my|our)\b(?:['\u2019]\w+)?\s*(?P<verb>\w*)", re.IGNORECASE)
_REPORTS = frozenset(
    {"know", "knew", "known", "think", "thought", "believe", "believed", "hear", "heard", "see", "saw", "seen", "say"}
    | {"said", "tell", "told", "bet", "swear", "guess", "remember", "suppose", "assume", "read", "learned", "learnt"}
    | {"found", "understand", "understood", "gather", "noticed", "confirm", "promise", "mean", "can", "must", "should"}
    | {"have", "had", "would", "could", "will"}
)
"""Verbs after which a clause with a subject of its own may follow, and auxiliaries before such a verb."""
_PLAIN = re.compile(
    r"(?:[Tt]he user|[A-Z][\w-]*(?: [A-Z][\w-]*)?)['\u2019]s \w+(?: \w+){0,2}? (?:is|are) .+", re.DOTALL
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


def sentences(lines: Iterable[str]) -> list[str]:
    """Return the sentences of the lines of a speaker, without the labels of speakers."""
    return [part for line in lines for part in _SENTENCE_END.split(split_label(line)[1]) if part.strip()]


def sources(content: str, spoken: Iterable[str]) -> list[str]:
    """Return the sentences that share most words with a content; all of them if none shares any.

    Args:
        content: What is to be written.
        spoken: Sentences of the speaker.
    """
    terms, candidates = statement_words(content), list(spoken)
    shares = [len(terms & set(words(sentence))) for sentence in candidates]
    best = max(shares, default=0)
    return [sentence for sentence, share in zip(candidates, shares, strict=True) if share == best]


def is_hearsay(sentence: str, names: Collection[str]) -> bool:
    """Return True if a sentence speaks of somebody other than its speaker.

    Args:
        sentence: Sentence of a speaker.
        names: Names of the other people who are known.
    """
    sentence_words = set(words(sentence))
    if any(name and set(words(name)) <= sentence_words for name in names):
        return True
    subject = _OWN_SUBJECT.match(strip_lead_in(sentence).strip())
    return _THIRD_PERSON.search(sentence) is not None and (subject is None or subject["verb"].lower() in _REPORTS)


def is_plain(sentence: str) -> bool:
    """Return True if a sentence names its subject and the attribute that it sets."""
    return find_slot(sentence) is not None or _PLAIN.match(sentence.strip()) is not None
