"""Answering from memory: what a reader is, a language-model reader, and the extractive floor.

Readers take many (question, memory) pairs at once, because in training all questions of a step are one batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from memalpha.agent.conflict import answer_slot, in_conflict, newest_wins
from memalpha.agent.parsing import after_thinking
from memalpha.agent.prompts import ABSTAIN, reader_messages
from memalpha.agent.text import is_abstention
from memalpha.config import ReaderConfig
from memalpha.policy.base import Policy
from memalpha.store.slots import key_value
from memalpha.store.stem import stem
from memalpha.store.working import Memory
from memalpha.types import Hit, MemoryEntry, SampleRequest

Conflicts = Literal["keep", "refuse", "newest"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's answer with what it was read from.

    `abstained`: it says that the memory does not hold the answer. `conflict`: it comes from a slot with two different
    live values, so it is never right. `prompt` is what a language-model reader was shown.
    """

    text: str
    abstained: bool = False
    conflict: bool = False
    hits: tuple[Hit, ...] = ()
    prompt: str | None = None


class Reader(Protocol):
    """Answers questions from memories. `name` goes into reports; `conflicts` is the rule for contradicting entries."""

    name: str
    conflicts: Conflicts

    def answer(self, items: Sequence[tuple[str, Memory]], *, k: int | None = None) -> list[Answer]:
        """One answer per (question, memory), in order; `k` entries are retrieved (default: the reader's own)."""
        ...


def retrieve(items: Sequence[tuple[str, Memory]], k: int, conflicts: Conflicts = "keep") -> list[list[Hit]]:
    """The k best entries for each (question, memory); questions of one memory are one search.

    With `conflicts="newest"` only the newest of the entries found for one slot is left.
    """
    by_memory: dict[int, list[int]] = {}
    for number, (_, memory) in enumerate(items):
        by_memory.setdefault(id(memory), []).append(number)
    found: list[list[Hit]] = [[] for _ in items]
    for numbers in by_memory.values():
        memory = items[numbers[0]][1]
        for number, hits in zip(numbers, memory.search_many([items[n][0] for n in numbers], k), strict=True):
            found[number] = newest_wins(hits) if conflicts == "newest" else hits
    return found


class PolicyReader:
    """A frozen language model that reads the k best entries, dated and oldest first, and answers or abstains."""

    def __init__(self, policy: Policy, config: ReaderConfig | None = None) -> None:
        self.policy = policy
        self.config = config or ReaderConfig(kind="policy")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = f"policy:{policy.name}"

    def answer(self, items: Sequence[tuple[str, Memory]], *, k: int | None = None) -> list[Answer]:
        """Greedy answers; equal prompts are asked once."""
        found = retrieve(items, k or self.config.k, self.conflicts)
        prompts: dict[tuple[str, ...], SampleRequest] = {}
        keys = []
        for (question, memory), hits in zip(items, found, strict=True):
            messages = reader_messages(question, hits, self.config, core=memory.core)
            keys.append(key := tuple(message["content"] for message in messages))
            if key not in prompts:
                prompts[key] = SampleRequest(messages, max_new_tokens=self.config.max_new_tokens)
        completions = self.policy.sample(list(prompts.values())) if prompts else []
        texts = {
            key: completion.text[after_thinking(completion.text) :].strip()
            for key, completion in zip(prompts, completions, strict=True)
        }
        answers = [
            Answer(texts[key], is_abstention(texts[key]), hits=tuple(hits), prompt="\n\n".join(key))
            for key, hits in zip(keys, found, strict=True)
        ]
        return _with_conflicts(answers, items) if self.conflicts == "refuse" else answers


class ExtractiveReader:
    """A floor without a language model; it knows no paraphrase, so never take its score for a system's.

    It reads entries only, not the core memory.

    "How many" counts the entries whose key is in the question, "when" gives the date of the best entry, everything else
    the value of the best entry whose key (whole text where there is no key) shares a word with the question. It
    abstains where no entry does.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig()
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "extractive (floor)"

    def answer(self, items: Sequence[tuple[str, Memory]], *, k: int | None = None) -> list[Answer]:
        """One answer per item; nothing is sampled."""
        found = retrieve(items, k or self.config.k, self.conflicts)
        answers = [
            Answer(text, text == ABSTAIN, hits=tuple(hits))
            for (question, memory), hits in zip(items, found, strict=True)
            for text in [_extract(question, hits, memory)]
        ]
        return _with_conflicts(answers, items) if self.conflicts == "refuse" else answers


def _with_conflicts(answers: Sequence[Answer], items: Sequence[tuple[str, Memory]]) -> list[Answer]:
    live: dict[int, list[MemoryEntry]] = {}
    marked = []
    for answer, (_, memory) in zip(answers, items, strict=True):
        slot = None if answer.abstained else answer_slot(answer.text, answer.hits)
        if slot is not None:
            entries = live.setdefault(id(memory), []) or memory.list()
            live[id(memory)] = entries
            if in_conflict(slot, entries):
                answer = replace(answer, conflict=True)
        marked.append(answer)
    return marked


_WORD = re.compile(r"\w+")
_STOP = frozenset(
    _WORD.findall(
        "a an and any are at be been did do does for from had has have he her his how i in is it its many me much my of"
        " on or our she so that the their them they this to was we were what when where which who whom why will with"
        " you your"
    )
)


def _stems(text: str) -> set[str]:
    return {stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP}


def _extract(question: str, hits: Sequence[Hit], memory: Memory) -> str:
    asked = _stems(question)
    plain = question.lower()
    if plain.startswith("how many"):
        keys = [pair[0] for entry in memory.list() if (pair := key_value(entry.content)) and asked & _stems(pair[0])]
        return str(len(keys)) if keys else ABSTAIN
    for hit in hits:
        pair = key_value(hit.entry.content)
        key, value = pair or (hit.entry.content, hit.entry.content)
        if plain.startswith("when"):
            if hit.entry.timestamp and asked & _stems(hit.entry.content):
                return hit.entry.timestamp
        elif asked & _stems(key):
            return value
    return ABSTAIN
