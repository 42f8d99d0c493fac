"""Trust rule: who may change what in the memory, by who said it. The rule reads no language.

- An entry belongs to its speaker. An entry without a speaker, and the core memory, belong to the owner.
- Its speaker and the owner may change or end an entry. The call of anybody else waits for a review.
- What anybody states is stored under the speaker's name, which readers and the writer see (`view`).
- Nobody but the owner writes in the name of a role or of another person, or marks of prompts (`<|im_start|>`).
- Deletes are soft (versions stay), and limited in each read.

Judged are the operations that a call makes, whatever its tool: all of them are done, or all wait.

A lie of somebody else is stored as that person's words: nothing here tells it from the truth.
`eval/results/poison.md` measures what the rule stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from memalpha.agent.tools import Tool
from memalpha.agent.transcript import is_anonymous, is_assistant, split_label
from memalpha.agent.trust.speakers import NOBODY, AttributedLines, attribute, is_same, rank, statement_words
from memalpha.agent.trust.view import AttributedMemory
from memalpha.config import TrustConfig
from memalpha.errors import StoreError
from memalpha.store.memory import Memory
from memalpha.store.store import MemoryStore
from memalpha.store.trust.provenance import WRITER
from memalpha.types import Chunk, Operation

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

    def judge(self, tool: Tool | None) -> Verdict:
        """Judge a call by its arguments; one that cannot be run (None) gets no reason: running it gives the error."""
        operations = self._operations(tool)
        speaker, author = attribute(self._evidence(operations), self._lines, owner=self._owner)
        if self._config is None:
            return Verdict(author)
        author = author if author is not None and is_same(author, speaker) else NOBODY
        reason = ""
        if rank(speaker, self._owner) != 3:
            reasons = (self._missing_right(speaker or NOBODY, operation) for operation in operations)
            reason = next(filter(None, reasons), "")
        deletes = sum(operation.kind == "delete" for operation in operations)
        if not reason and deletes:
            reason = self._spend_deletes(deletes, self._config)
        return Verdict(author, reason)

    def _operations(self, tool: Tool | None) -> Sequence[Operation]:
        try:
            return () if tool is None else tool.apply(self._store)
        except StoreError:
            return ()

    def _evidence(self, operations: Sequence[Operation]) -> str:
        """Return the words by which the speaker of a call is found: what it writes, or else what it removes."""
        words = [operation.content or "" for operation in operations if operation.kind in ("insert", "update")]
        core = [operation.content or "" for operation in operations if operation.kind == "core_update"]
        words += [" ".join(sorted(statement_words(text) - statement_words(self._store.core))) for text in core]
        return " ".join(words or [self._store.get(str(operation.id)).content for operation in operations])

    def _missing_right(self, speaker: str, operation: Operation) -> str:
        """Return why somebody who is not the owner may not do this, "" if he may."""
        if operation.kind == "core_update":
            return "the core memory is the owner's"
        if operation.kind != "insert":
            entry = self._store.get(str(operation.id))
            if not is_same(speaker, entry.speaker):
                return f"{speaker!r} may not change what {entry.speaker or self._owner!r} said"
        content = operation.content or ""
        for label in _labels(content):
            if not is_same(label, speaker) and (is_assistant(label) or is_anonymous(label) or self._is_person(label)):
                return f"{speaker!r} may not speak in the name of {label}"
        return f"{speaker!r} may not write marks of prompts and calls" if _MARKUP.search(content) else ""

    def _spend_deletes(self, number: int, config: TrustConfig) -> str:
        """Count deletes; return why they are too many for this read, "" if they are not."""
        assert isinstance(self._store, MemoryStore)  # a rule needs one: `MemoryAgent` checks it
        entries = self._store.count() + self._deletes  # when the read began
        allowed = min(config.max_deletes, max(1, int(config.max_delete_share * entries)))
        if self._deletes + number > allowed:
            return f"one read may delete {allowed} entries"
        self._deletes += number
        return ""

    def _is_person(self, name: str) -> bool:
        """Return True for the owner, a speaker of the chunk, or the speaker of one of the entries nearest to a name."""
        speakers = [self._owner, *(line.speaker for line in self._lines.lines)]
        speakers += [hit.entry.speaker for hit in self._store.search(name, _CANDIDATES)]
        return any(is_same(name, speaker) for speaker in speakers)


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
