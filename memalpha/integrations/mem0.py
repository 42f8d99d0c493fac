"""mem0 as a system under evaluation: `memalpha eval … 'systems=[rag,memalpha.integrations.mem0:Mem0System]'`.

Its `Memory` on its local Qdrant, in a folder that goes with the object, with `infer=False`: every turn is stored as it
was said, no language model is asked, and nothing leaves the machine. Our embedder takes the place of its own, so that
what differs from `append-only` is its store and its search. Needs mem0ai (2.2 was tried) and qdrant-client.
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
_ALL = 1_000_000


class Mem0System:
    """One conversation in a mem0 `Memory`; a question is shown the `k` memories that its search gives."""

    name = "mem0"

    def __init__(self, *, embedder: Embedder, k: int = 20) -> None:
        self._folder = TemporaryDirectory(prefix="memalpha-mem0-")
        os.environ.setdefault("MEM0_TELEMETRY", "False")  # read when it is imported
        os.environ.setdefault("MEM0_DIR", self._folder.name)
        try:
            from mem0 import Memory  # pyright: ignore
        except ModuleNotFoundError as error:
            raise ConfigError(f"system mem0 needs {error.name}: pip install mem0ai qdrant-client") from error
        unused = {"provider": "openai", "config": {"api_key": "none"}}  # it insists on having them, and asks neither
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
        """Add its turns, one by one."""
        for turn in turn_passages(chunk):
            message = {"role": "user", "content": turn.text}
            for result in self._memory.add([message], **_SCOPE, infer=False)["results"]:
                stored = Passage(result["memory"], result["id"], None, turn.timestamp, turn.turns, len(self._added))
                self._added[stored.id or ""] = stored

    def context(self, question: str) -> Sequence[Passage]:
        """What its search gives, with the date and turn of what was added."""
        return self._passages(self._memory.search(question, filters=_SCOPE, top_k=self._k))

    def size(self) -> int:
        """All that was added."""
        return passage_tokens(self._added.values())

    def entries(self) -> Sequence[Passage]:
        """What it says it holds."""
        return self._passages(self._memory.get_all(filters=_SCOPE, top_k=_ALL))

    def history(self) -> Sequence[Passage]:
        """All that was added: without a language model it changes nothing."""
        return tuple(self._added.values())

    def _passages(self, found: Any) -> list[Passage]:
        return [self._added.get(item["id"]) or Passage(item["memory"], item["id"]) for item in found["results"]]


class _Embedding:
    """Our embedder as mem0 calls one."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """One vector."""
        return self._embedder.encode([text])[0].tolist()

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        """Several."""
        return self._embedder.encode(list(texts)).tolist()
