"""Trust rule: who may change what in the memory, by who said it. The rule reads no language.

- An entry belongs to its speaker. An entry without a speaker, and the core memory, belong to the owner.
- Its speaker and the owner may change or end an entry. The call of anybody else waits for a review.
- What anybody states is stored under the speaker's name, which readers and the writer see (`view`).
- Nobody but the owner writes in the name of a role or of another person, or marks of prompts (`<|im_start|>`).
- Deletes are soft (versions stay), and limited in each read. A tool that has no rule here waits for a review.

A lie of somebody else is stored as that person's words: nothing here tells it from the truth.
`eval/results/poison.md` measures what the rule stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from memalpha.agent.tools import CoreUpdate, Delete, Insert, Skip, Update, tool_of
from memalpha.agent.transcript import is_anonymous, is_assistant, split_label
from memalpha.agent.trust.speakers import NOBODY, AttributedLines, attribute, is_same, rank, statement_words
from memalpha.agent.trust.view import AttributedMemory
from memalpha.config import TrustConfig
from memalpha.errors import UnknownEntry
from memalpha.store.memory import Memory
from memalpha.store.store import MemoryStore
from memalpha.store.trust.provenance import WRITER
from memalpha.types import Chunk, MemoryEntry, ToolCall

_MARKUP = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|tools)>")
_CANDIDATES = 8  # entries nearest to a name whose speakers are compared with it


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of one tool call.

    Attributes:
        speaker: Person on whose word it rests; None if nobody is known. Of several who said it, the one of the highest
            rank. A rule gives it to nobody (`NOBODY`) if that is not the one who said it most clearly: else a lie would
            be the owner's who uttered half of it, or a fact of the owner's would be another's who repeated it.
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
        self._lines = AttributedLines(chunk, speaker)
        self._owner = "user" if config is None else config.owner
        self._deletes = 0
        self.view = trusted_view(store, config)

    @property
    def has_rule(self) -> bool:
        """True if verdicts may depend on the memory."""
        return self._config is not None

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
        if self._config is None:
            return Verdict(author)
        author = author if author is not None and is_same(author, speaker) else NOBODY
        if tool not in (Insert, Update, Delete, CoreUpdate, Skip):
            return Verdict(author, f"no rule says who may use {call.name}")
        reason = "" if rank(speaker, self._owner) == 3 else self._missing_right(speaker or NOBODY, tool, content, entry)
        if not reason and tool is Delete and entry is not None:
            reason = self._spend_delete(self._config)
        return Verdict(author, reason)

    def _missing_right(self, speaker: str, tool: object, content: str, entry: MemoryEntry | None) -> str:
        """Return why somebody who is not the owner may not do this, "" if he may."""
        if tool is CoreUpdate:
            return "the core memory is the owner's"
        if entry is not None and not is_same(speaker, entry.speaker):
            return f"{speaker!r} may not change what {entry.speaker or self._owner!r} said"
        for label in _labels(content):
            if not is_same(label, speaker) and (is_assistant(label) or is_anonymous(label) or self._is_person(label)):
                return f"{speaker!r} may not speak in the name of {label}"
        return f"{speaker!r} may not write marks of prompts and calls" if _MARKUP.search(content) else ""

    def _spend_delete(self, config: TrustConfig) -> str:
        """Count a delete; return why it is one too many for this read, "" if it is not."""
        assert isinstance(self._store, MemoryStore)  # a rule needs one: `MemoryAgent` checks it
        entries = self._store.count() + self._deletes  # when the read began
        allowed = min(config.max_deletes, max(1, int(config.max_delete_share * entries)))
        if self._deletes >= allowed:
            return f"one read may delete {allowed} entries"
        self._deletes += 1
        return ""

    def _is_person(self, name: str) -> bool:
        """Return True for the owner, a speaker of the chunk, or the speaker of one of the entries nearest to a name."""
        speakers = [self._owner, *(line.speaker for line in self._lines.lines)]
        speakers += [hit.entry.speaker for hit in self._store.search(name, _CANDIDATES)]
        return any(is_same(name, speaker) for speaker in speakers)

    def _entry(self, id: object) -> MemoryEntry | None:
        try:
            return self._store.get(id) if isinstance(id, str) else None
        except UnknownEntry:
            return None


def trusted_view(store: Memory, config: TrustConfig | None) -> Memory:
    """Return the memory as readers and the writer see it: itself without a rule."""
    if config is None or not isinstance(store, MemoryStore):
        return store
    return cast(Memory, AttributedMemory(store, config.owner))


def _labels(content: str) -> Iterator[str]:
    """Yield the speakers that the lines of a content name, also one after another (`Eve: user: I ...`)."""
    for line in content.splitlines():
        label, rest = split_label(line)
        while label:
            yield label
            label, rest = split_label(rest)
