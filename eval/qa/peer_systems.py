"""Stores of other libraries as systems under evaluation, in an environment that has the library.

    python eval/qa/systems.py locomo --data locomo10.json --outside peer_systems:Mem0System peer_systems:LangGraphSystem

mem0: a `Memory` with local Qdrant in a temporary folder and `infer=False`. Every turn is stored verbatim, no language
model runs, and nothing leaves the machine. memalpha's embedder replaces mem0's, so that only its store and search
differ from `append-only`. Needs mem0ai (tested with 2.2) and qdrant-client.

LangGraph: every turn is a value in an `InMemoryStore`, embedded by memalpha's embedder and found by the store's own
search. Needs langgraph-checkpoint (tested with 4.3), a dependency of langgraph.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from memalpha.errors import ConfigError
from memalpha.qa.systems import Passage, passage_tokens, turn_passages
from memalpha.store.embedding import Embedder
from memalpha.types import Chunk

_SCOPE = {"user_id": "conversation"}
_NAMESPACE = ("conversation",)
_NO_LIMIT = 1_000_000


class Mem0System:
    """One conversation in a mem0 `Memory`; a question gets the `k` memories of mem0's search."""

    name = "mem0"

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        self._folder = TemporaryDirectory(prefix="memalpha-mem0-")
        os.environ.setdefault("MEM0_TELEMETRY", "False")  # read on import
        os.environ.setdefault("MEM0_DIR", self._folder.name)
        try:
            from mem0 import Memory
        except ModuleNotFoundError as error:
            raise ConfigError(f"system mem0 needs {error.name}: pip install mem0ai qdrant-client") from error
        unused = {"provider": "openai", "config": {"api_key": "none"}}  # required by mem0, but never called
        vectors = {"path": f"{self._folder.name}/qdrant", "embedding_model_dims": embedder.dim, "on_disk": True}
        self._memory: Any = Memory.from_config(
            {
                "llm": unused,
                "embedder": unused,
                "vector_store": {"provider": "qdrant", "config": vectors},
                "history_db_path": f"{self._folder.name}/history.db",
            }
        )
        self._memory.embedding_model = _Embedding(embedder)
        self._k = k
        self._added: dict[str, Passage] = {}

    def read(self, chunk: Chunk) -> None:
        """Add the turns of a chunk, one by one."""
        for turn in turn_passages(chunk):
            message = {"role": "user", "content": turn.text}
            for result in self._memory.add([message], **_SCOPE, infer=False)["results"]:
                passage = Passage(result["memory"], result["id"], None, turn.timestamp, turn.turns, len(self._added))
                self._added[passage.id or ""] = passage

    def context(self, question: str) -> Sequence[Passage]:
        """Return the memories of mem0's search, with the dates and turns of the passages added."""
        return self._passages(self._memory.search(question, filters=_SCOPE, top_k=self._k))

    def size(self) -> int:
        """Return the tokens of all passages added."""
        return passage_tokens(self._added.values())

    def entries(self) -> Sequence[Passage]:
        """Return the memories that mem0 lists."""
        return self._passages(self._memory.get_all(filters=_SCOPE, top_k=_NO_LIMIT))

    def history(self) -> Sequence[Passage]:
        """Return all passages added: without a language model mem0 changes none."""
        return tuple(self._added.values())

    def _passages(self, response: Any) -> list[Passage]:
        return [self._added.get(item["id"]) or Passage(item["memory"], item["id"]) for item in response["results"]]


class _Embedding:
    """memalpha's embedder behind mem0's interface."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """Embed one text."""
        return self._embedder.encode([text])[0].tolist()

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        """Embed several texts."""
        return self._embedder.encode(list(texts)).tolist()


class LangGraphSystem:
    """One conversation in an `InMemoryStore`; a question gets the `k` values of its search."""

    name = "langgraph"

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        try:
            from langgraph.store.base import PutOp
            from langgraph.store.memory import InMemoryStore
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
