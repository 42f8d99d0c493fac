"""mem0 as a system under evaluation: `memalpha eval … 'systems=[rag,memalpha.integrations.mem0:Mem0System]'`.

Uses mem0's `Memory` with local Qdrant in a temporary folder and `infer=False`: every turn is stored verbatim, no
language model runs, and nothing leaves the machine. memalpha's embedder replaces mem0's, so that only its store and
search differ from `append-only`. Needs mem0ai (tested with 2.2) and qdrant-client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from memalpha.errors import ConfigError
from memalpha.qa.systems.base import Passage
from memalpha.qa.systems.baselines import turn_passages
from memalpha.qa.systems.budget import passage_tokens
from memalpha.store.embedding import Embedder
from memalpha.types import Chunk

_SCOPE = {"user_id": "conversation"}
_NO_LIMIT = 1_000_000


class Mem0System:
    """One conversation in a mem0 `Memory`; a question gets the `k` memories of mem0's search."""

    name = "mem0"

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        self._folder = TemporaryDirectory(prefix="memalpha-mem0-")
        os.environ.setdefault("MEM0_TELEMETRY", "False")  # read on import
        os.environ.setdefault("MEM0_DIR", self._folder.name)
        try:
            from mem0 import Memory  # pyright: ignore
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
