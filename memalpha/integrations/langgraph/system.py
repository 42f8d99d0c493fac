"""LangGraph's store under evaluation: `memalpha eval … 'systems=[memalpha.integrations.langgraph:LangGraphSystem]'`.

Every turn is a value in LangGraph's `InMemoryStore`, embedded by memalpha's embedder and found by the store's own
search. Needs langgraph-checkpoint (tested with 4.3), a dependency of langgraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.errors import ConfigError
from memalpha.qa.systems.base import Passage
from memalpha.qa.systems.baselines import turn_passages
from memalpha.qa.systems.budget import passage_tokens
from memalpha.store.embedding import Embedder
from memalpha.types import Chunk

_NAMESPACE = ("conversation",)


class LangGraphSystem:
    """One conversation in an `InMemoryStore`; a question gets the `k` values of its search."""

    name = "langgraph"

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        try:
            from langgraph.store.base import PutOp  # pyright: ignore[reportMissingImports]
            from langgraph.store.memory import InMemoryStore  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ConfigError(f"system langgraph needs {error.name}: pip install langgraph") from error
        embed = lambda texts: embedder.encode(list(texts)).tolist()  # noqa: E731
        self._store: Any = InMemoryStore(index={"dims": embedder.dim, "embed": embed, "fields": ["text"]})
        self._put, self._k = PutOp, k
        self._count = self._tokens = 0

    def read(self, chunk: Chunk) -> None:
        """Put the turns of a chunk, embedded in one batch."""
        puts = []
        for turn in turn_passages(chunk):
            value = {"text": turn.text, "timestamp": turn.timestamp, "turns": list(turn.turns), "order": self._count}
            puts.append(self._put(_NAMESPACE, f"{chunk.index}-{turn.id}", value))
            self._count += 1
            self._tokens += passage_tokens((turn,))
        self._store.batch(puts)

    def context(self, question: str) -> Sequence[Passage]:
        """Return the values of LangGraph's search."""
        return self._passages(self._store.search(_NAMESPACE, query=question, limit=self._k))

    def size(self) -> int:
        """Return the tokens of all turns put."""
        return self._tokens

    def entries(self) -> Sequence[Passage]:
        """Return the values that LangGraph lists."""
        return self._passages(self._store.search(_NAMESPACE, limit=max(1, self._count)))

    def history(self) -> Sequence[Passage]:
        """Return `entries`: nothing is ever deleted."""
        return self.entries()

    def _passages(self, items: Sequence[Any]) -> list[Passage]:
        return [
            Passage(
                item.value["text"],
                item.key,
                None,
                item.value["timestamp"],
                tuple(item.value["turns"]),
                item.value["order"],
            )
            for item in items
        ]
