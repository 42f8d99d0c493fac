"""Trust rule: who may change what in the memory, by who said it. The rule reads no language.

- An entry belongs to its speaker. An entry without a speaker, and the core memory, belong to the owner.
- Its speaker and the owner may change or end an entry. The call of anybody else waits for a review.
- What anybody states is stored under the speaker's name, which readers and the writer see (`view`).
- Nobody but the owner writes in the name of a role or of another person, or marks of prompts (`<|im_start|>`).
- Deletes are soft (versions stay), and limited in each read.

Judged are the operations that a call makes, whatever its tool: all of them are done, or all wait. A call rests on the
words of the speaker whose line its content shares most words with (`attribute`). Speakers come from the caller
(`speaker=`), from the turns of a chunk, or from the labels of a plain text; a model's reply never names one. Readers
and the writer see the memory with names, and others' words ranked lower (`AttributedMemory`). `redact` is a function
of the caller's that removes secrets from a chunk before model and memory see it.

A lie of somebody else is stored as that person's words: nothing here tells it from the truth.
`eval/results/poison.md` measures what the rule stops.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from memalpha.agent.prompts import DEMOTED
from memalpha.agent.transcript import is_anonymous, is_assistant, split_label, spoken_lines
from memalpha.config import TrustConfig
from memalpha.errors import ConfigError
from memalpha.store.memory import Memory
from memalpha.store.quarantine import WRITER
from memalpha.store.search.lexical import words
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Hit, MemoryEntry, Operation

_MARKUP = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|tools)>")
_CANDIDATES = 8  # entries nearest to a name whose speakers are compared with it


class Verdict(NamedTuple):
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

    def judge(self, operations: Sequence[Operation]) -> Verdict:
        """Judge a call by the operations that it requests."""
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
            assert isinstance(self._store, MemoryStore)  # a rule needs one: `MemoryAgent` checks it
            entries = self._store.count() + self._deletes  # when the read began
            allowed = min(self._config.max_deletes, max(1, int(self._config.max_delete_share * entries)))
            if self._deletes + deletes > allowed:
                reason = f"one read may delete {allowed} entries"
            else:
                self._deletes += deletes
        return Verdict(author, reason)

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
        for line in content.splitlines():
            label, rest = split_label(line)
            while label:  # a line may name speakers one after another (`Eve: user: I ...`)
                if not is_same(label, speaker) and (
                    is_assistant(label)
                    or is_anonymous(label)
                    or any(is_same(label, name) for name in [self._owner, *self._lines.speakers])
                    or any(is_same(label, hit.entry.speaker) for hit in self._store.search(label, _CANDIDATES))
                ):
                    return f"{speaker!r} may not speak in the name of {label}"
                label, rest = split_label(rest)
        return f"{speaker!r} may not write marks of prompts and calls" if _MARKUP.search(content) else ""


def trusted_view(store: Memory, config: TrustConfig | None) -> Memory:
    """Return the memory as readers and the writer see it: itself without a rule."""
    if config is None or not isinstance(store, MemoryStore):
        return store
    return cast(Memory, AttributedMemory(store, config.owner))


USER = "user"
"""Name of a person without a name: the role of a chat."""
NOBODY = "unknown"
"""Name under which a trust rule stores what nobody known said."""


class AttributedLines:
    """Lines of a chunk, found once for all calls of a reply.

    Args:
        chunk: The chunk.
        speaker: Person who said all of it, by the caller's word; None reads turns and labels.

    Attributes:
        speakers: Speaker of each line; None for a line without one.
        spoken: Speakers and lines.
    """

    def __init__(self, chunk: Chunk, speaker: str | None) -> None:
        if speaker is not None:
            spoken = [(speaker, chunk.render())]
        else:
            spoken = [(name or None, line) for name, line in spoken_lines(chunk) if line.strip()]
        self.words_by_text = {line: frozenset(words(line)) for _, line in spoken}
        self.spoken = frozenset(spoken)
        self.speakers = [name for name, _ in spoken]
        self._words = [self.words_by_text[line] for _, line in spoken]
        self.speakers_by_words: dict[frozenset[str], dict[str | None, None]] = defaultdict(dict)  # a set in order
        for name, line_words in zip(self.speakers, self._words, strict=True):
            self.speakers_by_words[line_words][name] = None

    @cached_property
    def line_numbers(self) -> dict[str, list[int]]:
        """Numbers of the lines that have each word."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for number, line_words in enumerate(self._words):
            for word in line_words:
                numbers[word].append(number)
        return numbers


def normalize_name(speaker: str | None) -> str | None:
    """Return a speaker's name for comparison: lower case, and `USER` for a person without a name."""
    if speaker is None or not speaker.strip():
        return None
    return USER if is_anonymous(speaker) else " ".join(speaker.lower().split())


def is_same(left: str | None, right: str | None) -> bool:
    """Return True if two speakers are known and have the same name."""
    name = normalize_name(left)
    return name is not None and name == normalize_name(right)


def attribute(content: str, chunk_lines: AttributedLines, *, owner: str = USER) -> tuple[str | None, str | None]:
    """Return whose right a content needs, and on whose word it is recorded.

    Lines are scored by the words that they share with the content, rare ones above all. The right is that of the best
    line's speaker; without shared words, and among equals, of the one of least rank (`rank`): a doubt gives no right.
    Recorded is the speaker of highest rank whose line shares half as many words as the best: who repeats another's
    statement does not become its author. Where lines have just the words of the content, they alone count, and of
    several the one with the speaker that the content names, if it is equal to the letter.

    Args:
        content: What is to be written, or what is to be removed.
        chunk_lines: Lines of the chunk.
        owner: Person of the highest rank.
    """
    names = chunk_lines.speakers
    if not names:
        return None, None
    statement = split_label(content)[1]
    terms = chunk_lines.words_by_text.get(statement) or frozenset(words(statement))
    if terms and (speakers := chunk_lines.speakers_by_words.get(terms)):
        if len(speakers) == 1:
            [speaker] = speakers
            return speaker, speaker
        label = split_label(content)[0]
        if named := [name for name in speakers if is_same(name, label) and (name, statement) in chunk_lines.spoken]:
            return named[0], named[0]  # whoever is named said just this
        return min(speakers, key=lambda name: rank(name, owner)), max(speakers, key=lambda name: rank(name, owner))
    weights: list[list[float]] = [[] for _ in names]  # of the words that a line shares with the content
    for word in sorted(terms & chunk_lines.line_numbers.keys()):
        numbers = chunk_lines.line_numbers[word]
        for number in numbers:
            weights[number].append(1 / len(numbers))
    scores = [round(sum(values), 6) for values in weights]
    best = max(scores)
    nearest = [name for name, score in zip(names, scores, strict=True) if score == best]
    speaker = min(nearest, key=lambda name: rank(name, owner))
    most = max(map(len, weights))
    sources = [name for name, values in zip(names, weights, strict=True) if values and 2 * len(values) >= most]
    return speaker, max(sources, key=lambda name: rank(name, owner), default=speaker)


def rank(speaker: str | None, owner: str) -> int:
    """Return the rank of a speaker: 0 an assistant, 1 nobody known, 2 a person, 3 the owner."""
    if speaker is not None and is_assistant(speaker):
        return 0
    name = normalize_name(speaker)
    if name is None:
        return 1
    return 3 if name == normalize_name(owner) else 2


def statement_words(content: str) -> frozenset[str]:
    """Return the words of a statement without the label of its speaker."""
    return frozenset(words(split_label(content)[1]))


OTHERS_SHARE = 0.5
"""Share of its score that a hit keeps if another than the owner said it."""


class AttributedMemory:
    """View of a memory in which an entry that another than the owner said begins with that person's name.

    Its score in a search is halved: of the same k hits, an entry of the owner that scores half as much comes first.
    Everything else is as in the memory.

    Args:
        store: The memory.
        owner: Person whose words need no name.
    """

    def __init__(self, store: MemoryStore, owner: str) -> None:
        self._store, self._owner = store, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, id: str) -> MemoryEntry:
        """Return an entry, named."""
        return self.name(self._store.get(id))

    def list(self, *args: Any, **keywords: Any) -> list[MemoryEntry]:
        """Return the entries of `MemoryStore.list`, named."""
        return [self.name(entry) for entry in self._store.list(*args, **keywords)]

    def recent(self, n: int) -> Sequence[MemoryEntry]:
        """Return the entries of `MemoryStore.recent`, named."""
        return [self.name(entry) for entry in self._store.recent(n)]

    def search(self, query: str, *args: Any, **keywords: Any) -> Sequence[Hit]:
        """Return the hits of `MemoryStore.search`, named and ranked."""
        return self.search_many([query], *args, **keywords)[0]

    def search_many(self, queries: Sequence[str], *args: Any, **keywords: Any) -> Sequence[Sequence[Hit]]:
        """Return the hits of `MemoryStore.search_many`, named and ranked."""
        results = self._store.search_many(queries, *args, **keywords)
        return [sorted(map(self._rank, hits), key=lambda hit: -hit.score) for hits in results]

    def _rank(self, hit: Hit) -> Hit:
        if self._is_owners(hit.entry):
            return hit
        explain = {**hit.explain, DEMOTED: OTHERS_SHARE}
        return replace(hit, entry=self.name(hit.entry), score=OTHERS_SHARE * hit.score, explain=explain)

    def name(self, entry: MemoryEntry) -> MemoryEntry:
        """Return an entry whose content begins with the name of its speaker, unless that is the owner."""
        if self._is_owners(entry) or is_same(split_label(entry.content)[0], entry.speaker):
            return entry
        return replace(entry, content=f"{' '.join(str(entry.speaker).split())}: {entry.content}")

    def _is_owners(self, entry: MemoryEntry) -> bool:
        return entry.speaker is None or is_same(entry.speaker, self._owner)


def redact_chunk(chunk: Chunk, redact: Callable[[str], str]) -> Chunk:
    """Return a chunk whose texts went through `redact`; speakers stay.

    Raises:
        ConfigError: `redact` returned no text.
    """

    def clean(text: str) -> str:
        if not isinstance(redacted := redact(text), str):
            raise ConfigError(f"redact: returned {type(redacted).__name__}; a function from text to text is needed")
        return redacted

    if chunk.text is not None:
        return chunk.model_copy(update={"text": clean(chunk.text)})
    turns = tuple(turn.model_copy(update={"text": clean(turn.text)}) for turn in chunk.turns)
    return chunk.model_copy(update={"turns": turns})
