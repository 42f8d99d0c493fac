"""`MemoryAgent` with `smol` as a system under evaluation, and keeping everything cut to as many tokens.

    PYTHONPATH=eval/qa memalpha eval locomo data=locomo10.json limit=2 chunk_tokens=120 \\
      'systems=[append-only,smol,agent_system:Smol,agent_system:Newest,agent_system:Longest,agent_system:Asked]'

As a writer of `memalpha eval`, `smol` keeps its own words. `MemoryAgent` writes sentences of the chunk in their place
and shows it its own, which is what a user meets (`memalpha.agent.quoting`). The others keep whole turns up to a share
of the tokens read: `Newest` the last ones, `Longest` those of most words, `Asked` those that a search finds for the
questions of other conversations. The environment gives the share, KEPT_SHARE, and a file of such questions, one a line,
QUESTIONS.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from memalpha import MemoryAgent, MemoryStore, load_policy
from memalpha.policy.base import Policy
from memalpha.qa.systems import Passage, SearchSystem, as_passage, passage_tokens, turn_passages
from memalpha.store.embedding import Embedder
from memalpha.types import Chunk

SHARE = float(os.environ.get("KEPT_SHARE", "0.3"))
"""Share of the tokens read that the cut baselines keep; the environment sets it to that of the writer."""

_load = cache(load_policy)


class Smol:
    """One conversation read by `MemoryAgent("smol")`; a question gets the `k` entries of the store's search."""

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        policy = _load("smol")
        assert isinstance(policy, Policy)
        self._store = MemoryStore.open(":memory:", embedder=embedder)
        self._agent = MemoryAgent(policy, self._store)
        self._k = k

    def read(self, chunk: Chunk) -> None:
        """Let the writer read the chunk."""
        self._agent.read(chunk)

    def context(self, question: str) -> Sequence[Passage]:
        """Return the entries that the store finds."""
        return [as_passage(hit.entry) for hit in self._store.search(question, self._k)]

    def size(self) -> int:
        """Return the tokens of all entries."""
        return passage_tokens(self.entries())

    def entries(self) -> Sequence[Passage]:
        """Return the live entries."""
        return [as_passage(entry) for entry in self._store.list()]

    def history(self) -> Sequence[Passage]:
        """Return all that was ever written."""
        operations = [operation for _, _, operation in self._store.log() if operation.content]
        return [
            Passage(item.content or "", item.id, item.category, item.timestamp, chunk=item.chunk) for item in operations
        ]


class _Cut(ABC):
    """Keep whole turns up to `SHARE` of the tokens read, and search them."""

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        self._embedder, self._k = embedder, k
        self._read: list[tuple[Chunk, Passage]] = []
        self._search: SearchSystem | None = None

    def read(self, chunk: Chunk) -> None:
        """Take the turns of a chunk; which of them stay is decided when somebody asks."""
        self._read += [(chunk, turn) for turn in turn_passages(chunk)]
        self._search = None

    def entries(self) -> Sequence[Passage]:
        """Return the turns that are kept, in their order."""
        room, kept = SHARE * passage_tokens(turn for _, turn in self._read), set[int]()
        for number in self.ranked():
            room -= passage_tokens([self._read[number][1]])
            if room < 0:
                break
            kept.add(number)
        return [turn for number, (_, turn) in enumerate(self._read) if number in kept]

    def history(self) -> Sequence[Passage]:
        """Return all turns."""
        return [turn for _, turn in self._read]

    def size(self) -> int:
        """Return the tokens of the turns that are kept."""
        return passage_tokens(self.entries())

    def context(self, question: str) -> Sequence[Passage]:
        """Return the kept turns that a search finds."""
        if self._search is None:
            kept = self.entries()
            self._search = SearchSystem("cut", lambda chunk: kept, self._k, self._embedder, raw=False)
            self._search.read(self._read[-1][0])
        return self._search.context(question)

    @abstractmethod
    def ranked(self) -> Sequence[int]:
        """Return the numbers of the turns, the first to keep first."""


class Newest(_Cut):
    """Keep the last turns."""

    def ranked(self) -> Sequence[int]:
        """Return the numbers of the turns, newest first."""
        return range(len(self._read))[::-1]


class Longest(_Cut):
    """Keep the turns of most words."""

    def ranked(self) -> Sequence[int]:
        """Return the numbers of the turns, longest first."""
        return sorted(range(len(self._read)), key=lambda number: -len(self._read[number][1].text.split()))


class Asked(_Cut):
    """Keep the turns that questions about other conversations find: the sum of 1 / rank over their first 20 hits."""

    def ranked(self) -> Sequence[int]:
        """Return the numbers of the turns, those that are asked for most first."""
        turns, worth = [turn for _, turn in self._read], defaultdict[int, float](float)
        search = SearchSystem("all", lambda chunk: turns, 20, self._embedder)
        search.read(self._read[-1][0])
        for question in Path(os.environ["QUESTIONS"]).read_text(encoding="utf-8").splitlines():
            for rank, hit in enumerate(search.context(question), start=1):
                worth[hit.order - 1] += 1 / rank
        return sorted(range(len(turns)), key=lambda number: -worth[number])
