"""The embedder that a store file records, and the vectors it keeps: a store is never searched with another one's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from memalpha.errors import EmbedderError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.embedding import Embedder, load_embedder


class RecordedEmbedder:
    """The embedder a store file was made with, loaded when first needed and then compared with the record.

    Raises `EmbedderError` if `named` is another one.
    """

    def __init__(self, path: str, record: str, named: str | Embedder | None) -> None:
        self._path = path
        self._record: dict[str, Any] = json.loads(record)
        self.name: str = self._record["name"]
        self.dim: int = self._record["dim"]
        self.named = self.name if named is None else named
        self._loaded: Embedder | None = None
        name = self.named if isinstance(self.named, str) else self.named.name
        if name != self.name:
            raise EmbedderError(
                f"{path} was made with the embedder {self.name!r}, not {name!r}: open it without naming an embedder, "
                "or export it and import it into a new store"
            )

    def load(self) -> Embedder:
        """The embedder; raises `EmbedderError` if it cannot be had, or does not give the vectors it once gave."""
        if self._loaded is None:
            embedder = load_embedder(self.named) if isinstance(self.named, str) else self.named
            now, then = _probe(embedder), self._record["probe"]
            if len(now) != len(then) or max(abs(a - b) for a, b in zip(now, then, strict=True)) > 0.01:
                raise EmbedderError(
                    f"{self._path} was made with another version of the embedder {self.name!r} (dimension {len(then)}, "
                    f"now {len(now)}; other vectors): export it and import it into a new store"
                )
            self._loaded = embedder
        return self._loaded


def record_of(embedder: str | Embedder) -> str:
    """What a store file records of its embedder: name, dimension, and one vector to know it by."""
    if isinstance(embedder, str):
        embedder = load_embedder(embedder)
    return json.dumps({"name": embedder.name, "dim": embedder.dim, "probe": _probe(embedder)})


def _probe(embedder: Embedder) -> list[float]:
    return [round(float(x), 4) for x in embedder.encode(["Ana moved to Lisbon in 2024."])[0]]


class StoredEmbedder:
    """A store's embedder with the vectors kept in its file before it: reopening embeds nothing anew."""

    def __init__(self, rows: Namespace, inner: Embedder) -> None:
        self._rows, self._inner = rows, inner
        self.name, self.dim = inner.name, inner.dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 `(len(texts), dim)`, rows L2-normalised."""
        with self._rows.transaction(write=False):
            known = self._rows.vectors(texts)
        missing = list(dict.fromkeys(text for text in texts if text not in known))
        if missing:
            known.update(zip(missing, self._inner.encode(missing), strict=True))
        return np.array([known[text] for text in texts], np.float32).reshape(len(texts), self.dim)

    def of_entries(self, ids: Sequence[str]) -> np.ndarray:
        """What `encode` gives for the contents of live entries, in one statement where the file has their vectors."""
        with self._rows.transaction(write=False):
            known = self._rows.vectors_of(ids)
            if missing := self._rows.many([id for id in ids if id not in known], None):
                vectors = self.encode([entry.content for entry in missing.values()])
                known.update(zip(missing, vectors, strict=True))
        return np.array([known[id] for id in ids])
