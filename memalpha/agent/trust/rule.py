"""Trust rule: what a speaker may change in the memory. What lacks the right goes to quarantine.

- A person changes what she said herself. The owner changes everything.
- First person over third: what was said of a person by others, she may change; what she said of herself, others may
  not, nor may they write something else on the same matter beside it.
- An assistant changes nothing, nor does a text of nobody known, but for what it wrote itself.
- Nobody but the owner writes in the name of a role or of another person, or marks of prompts (`<|im_start|>`).
- The core memory is the owner's.
- Hearsay (`hearsay`) is written in its plain form alone, and if nobody who knows better said otherwise. In other words
  it cannot be compared with what is known, so it waits.
- Deletes are soft (versions stay), and limited in each read.

Two statements are on the same matter if they set the same slot (`policy.rules.slots`), or share half the words of the
shorter one. These are rules of words, not of meaning: a lie that names nobody may pass, and honest statements wait for
a review. `eval/results/poison.md` measures both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from memalpha.agent.tools import CoreUpdate, Delete, Insert, Update, tool_of
from memalpha.agent.trust.hearsay import is_hearsay, is_plain, sentences, sources
from memalpha.agent.trust.speakers import Lines, attribute, attributed_lines, normalize_name, rank, statement_words
from memalpha.config import TrustConfig
from memalpha.errors import UnknownEntry
from memalpha.policy.rules.slots import find_slot
from memalpha.policy.rules.transcript import is_anonymous, is_assistant, split_label
from memalpha.store.memory import Memory
from memalpha.store.search.bm25 import words
from memalpha.store.store import MemoryStore
from memalpha.store.trust.provenance import WRITER
from memalpha.types import Chunk, MemoryEntry, ToolCall

_MARKUP = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|tools)>")
_CANDIDATES = 8  # entries nearest to a new content that are compared with it
_SAME_MATTER = 0.5  # shared words, as a share of the shorter statement's


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of one tool call.

    Attributes:
        speaker: Person on whose word it rests; None if nobody is known. Of several who said it, the one of the highest
            rank.
        reason: Why it must wait for a review; "" if it may be done.
    """

    speaker: str | None
    reason: str = ""


class TrustJudge:
    """Judge the calls of one reply: whose word each rests on and, with a rule, whether it may be done.

    Args:
        store: Memory that the calls change.
        chunk: Chunk that was read.
        config: The trust rule; None attributes calls and lets all of them pass.
        speaker: Person who said the whole chunk, by the caller's word.
    """

    def __init__(self, store: Memory, chunk: Chunk, config: TrustConfig | None, speaker: str | None) -> None:
        key = WRITER.get().get("key")
        if config is not None and key in config.key_speakers:
            speaker = config.key_speakers[key]
        self._store, self._config = store, config
        self._lines: Lines = attributed_lines(chunk, speaker)
        self._owner = "user" if config is None else config.owner
        self._deletes = 0

    def judge(self, call: ToolCall) -> Verdict:
        """Judge a call. A call that cannot be run gets no reason: running it gives the error."""
        tool, arguments = tool_of(call), call.arguments
        content = str(arguments.get("content") or "")
        entry = self._entry(arguments.get("id")) if tool in (Update, Delete) else None
        evidence = content
        if tool is Delete:
            evidence = "" if entry is None else entry.content
        elif tool is CoreUpdate:
            evidence = " ".join(sorted(statement_words(content) - statement_words(self._store.core)))
        speaker, author = attribute(evidence, self._lines, owner=self._owner)
        if self._config is None or tool not in (Insert, Update, Delete, CoreUpdate):
            return Verdict(author)
        if tool is CoreUpdate:
            return Verdict(author, "" if self._rank(speaker) == 3 else "the core memory is the owner's")
        reason = "" if entry is None else self._right_to_change(speaker, entry)
        if not reason and tool in (Insert, Update):
            reason = self._right_to_say(speaker, content, entry)
        if not reason and tool is Delete and entry is not None:
            reason = self._spend_delete(self._config)
        return Verdict(speaker if reason else author, reason)

    def _spend_delete(self, config: TrustConfig) -> str:
        """Count a delete; return why it is one too many for this read, "" if it is not."""
        assert isinstance(self._store, MemoryStore)  # a rule needs one: `MemoryAgent` checks it
        entries = self._store.count() + self._deletes  # when the read began
        allowed = min(config.max_deletes, max(1, int(config.max_delete_share * entries)))
        if self._deletes >= allowed:
            return f"one read may delete {allowed} entries"
        self._deletes += 1
        return ""

    def _right_to_change(self, speaker: str | None, entry: MemoryEntry) -> str:
        """Return why a speaker may not update or end an entry, "" if he may."""
        author_rank = self._rank(entry.speaker) if entry.speaker is not None else 3
        if self._rank(speaker) == 3 or (speaker is not None and _is_same(speaker, entry.speaker)):
            return ""
        is_about_speaker = speaker is not None and _mentions(entry.content, speaker)
        if self._rank(speaker) == 2 and is_about_speaker and author_rank <= 2:
            return ""
        return f"{_call(speaker)} may not change what {_call(entry.speaker or self._owner)} said"

    def _right_to_say(self, speaker: str | None, content: str, replaced: MemoryEntry | None) -> str:
        """Return why a speaker may not have a content stored, "" if he may."""
        if self._rank(speaker) == 3 or not content.strip():
            return ""
        for label in _labels(content):
            if not _is_same(label, speaker) and (_is_role(label) or self._is_person(label)):
                return f"{_call(speaker)} may not speak in the name of {label}"
        if _MARKUP.search(content):
            return f"{_call(speaker)} may not write marks of prompts and calls"
        entries = [hit.entry for hit in self._store.search(content, _CANDIDATES)]
        spoken = sources(content, sentences(line.text for line in self._lines if _is_same(line.speaker, speaker)))
        people = {self._owner, *(line.speaker for line in self._lines), *(entry.speaker for entry in entries)}
        names = [name for name in people if name is not None and not is_assistant(name) and not _is_same(name, speaker)]
        hearsay = [sentence for sentence in spoken if is_hearsay(sentence, names)]
        if not all(map(is_plain, hearsay)):
            return f"{_call(speaker)} speaks of somebody else in words that cannot be compared with what is known"
        for entry in entries:
            if entry.speaker is None or _is_same(entry.speaker, speaker) or (replaced and entry.id == replaced.id):
                continue
            entitled = self._rank(entry.speaker)
            texts = (content, *hearsay)
            is_about_author = self._rank(speaker) < 2 or any(_mentions(text, entry.speaker) for text in texts)
            if entitled >= 2 and is_about_author and _contradicts(content, entry):
                return f"{_call(entry.speaker)} said otherwise of the same matter: {entry.id}"
        return ""

    def _is_person(self, name: str) -> bool:
        """Return True for the owner, a speaker of the chunk or the author of an entry."""
        if self._rank(name) == 3 or any(_is_same(name, line.speaker) for line in self._lines):
            return True
        return any(_is_same(name, hit.entry.speaker) for hit in self._store.search(name, _CANDIDATES))

    def _entry(self, id: object) -> MemoryEntry | None:
        try:
            return self._store.get(id) if isinstance(id, str) else None
        except UnknownEntry:
            return None

    def _rank(self, speaker: str | None) -> int:
        return rank(speaker, self._owner)


def _labels(content: str) -> Iterator[str]:
    """Yield the speakers that the lines of a content name, also one after another (`Eve: user: I ...`)."""
    for line in content.splitlines():
        label, rest = split_label(line)
        while label:
            yield label
            label, rest = split_label(rest)


def _is_role(label: str) -> bool:
    return is_assistant(label) or is_anonymous(label)


def _call(speaker: str | None) -> str:
    return "nobody known" if speaker is None else repr(speaker)


def _is_same(left: str | None, right: str | None) -> bool:
    name = normalize_name(left)
    return name is not None and name == normalize_name(right)


def _mentions(content: str, name: str) -> bool:
    return set(words(name)) <= set(words(content))


def _contradicts(content: str, entry: MemoryEntry) -> bool:
    """Return True if a content says something else than an entry on the same matter."""
    new, old = find_slot(content), find_slot(entry.content)
    if new is not None and old is not None and new.attribute == old.attribute:
        return new.value != old.value
    names = set(words(entry.speaker or ""))
    new_words, old_words = (set(statement_words(text)) - names for text in (content, entry.content))
    shorter = min(len(new_words), len(old_words))
    return new_words != old_words and shorter > 0 and len(new_words & old_words) >= _SAME_MATTER * shorter
