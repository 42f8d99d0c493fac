"""The embedder that a store file records, and the vectors that the file keeps.

A store is never searched with the vectors of another embedder. A recorded name is a text in somebody's file and may
mean a folder or a download. Unless it is one of `SHIPPED_EMBEDDERS`, it is loaded only when the caller names it too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from memalpha.errors import EmbedderError, StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.embedding import SHIPPED_EMBEDDERS, CheckedEmbedder, Embedder, check_embedder, load_embedder

_CHEAP = {"static", "hash"}
_PROBE_TEXT = "Ana moved to Lisbon in 2024."


class RecordedEmbedder:
    """Embedder that a store file records, loaded on first use and then compared with the record.

    Attributes:
        name: Name in the record.
        dim: Dimension of its vectors.
        requested: Embedder, or its name, that the caller gave to `MemoryStore.open`; None if he named none.
        is_cheap: True if embedding a text costs less than a look for the vector that the file may have of it.
    """

    def __init__(self, path: str, record: str, requested: str | Embedder | None) -> None:
        """Read a record.

        Args:
            path: Path or URL of the store, for messages.
            record: JSON of `record_of`.
            requested: Embedder, or its name, that the caller gave; None if he named none.

        Raises:
            EmbedderError: `requested` is not the embedder of the record.
            StoreError: The record is not valid.
        """
        self._path = path
        self.name, self.dim, self._recorded_probe = _parse_record(path, record)
        if requested is not None and not isinstance(requested, str):
            check_embedder(requested)
        self.requested = requested
        self.is_cheap = self.name in _CHEAP
        self._loaded: Embedder | None = None
        self._checked: CheckedEmbedder | None = None
        name = self.name if requested is None else requested if isinstance(requested, str) else requested.name
        if name != self.name:
            raise EmbedderError(
                f"{path} was made with the embedder {self.name!r}, not {name!r}: open it without naming an embedder, "
                "or export it and import it into a new store"
            )

    def load(self) -> Embedder:
        """Return the embedder, loading it on the first call.

        Raises:
            StoreError: The caller named no embedder, and the recorded name is none of `SHIPPED_EMBEDDERS`.
            EmbedderError: The embedder cannot be loaded, or its vectors differ from the recorded one.
        """
        if self._loaded is None:
            embedder = self._resolve()
            probe, recorded_probe = _probe(embedder), self._recorded_probe
            if len(probe) != len(recorded_probe) or (
                max(abs(a - b) for a, b in zip(probe, recorded_probe, strict=True)) > 0.01
            ):
                raise EmbedderError(
                    f"{self._path} was made with another version of the embedder {self.name!r} (dimension "
                    f"{len(recorded_probe)}, now {len(probe)}; other vectors): export it and import it into a new store"
                )
            self._loaded = embedder
        return self._loaded

    def load_checked(self) -> CheckedEmbedder:
        """Return `load` with its vectors checked, for everything that is stored or searched. Raises the same."""
        if self._checked is None:
            self._checked = CheckedEmbedder(self.load())
        return self._checked

    def encode(self, contents: Sequence[str], rows: Namespace) -> np.ndarray:
        """Return the embeddings of contents to store in `rows`, float32 (n, dim); stored ones are reused."""
        embedder = self.load_checked()
        return (embedder if self.is_cheap else StoredEmbedder(rows, embedder)).encode(contents)

    def embed(self, contents: Sequence[str], rows: Namespace) -> dict[str, np.ndarray]:
        """Return `encode` by content."""
        return dict(zip(contents, self.encode(contents, rows), strict=True))

    def _resolve(self) -> Embedder:
        if self.requested is not None:
            return load_embedder(self.requested) if isinstance(self.requested, str) else self.requested
        if self.name not in SHIPPED_EMBEDDERS:
            raise StoreError(
                f"{self._path} records the embedder {self.name!r}, which is not loaded by a file's word alone: it may "
                f"be somebody else's folder or download. If you trust it, pass embedder={self.name!r} to "
                f"MemoryStore.open, or --embedder {self.name} to the command"
            )
        return load_embedder(self.name)


def embedder_record(embedder: str | Embedder) -> str:
    """Return what a store file records of its embedder: name, dimension, and one vector to recognise it by."""
    if isinstance(embedder, str):
        embedder = load_embedder(embedder)
    checked = CheckedEmbedder(embedder)
    return json.dumps({"name": checked.name, "dim": checked.dim, "probe": _probe(checked)})


def _parse_record(path: str, record: str) -> tuple[str, int, list[float]]:
    """Return name, dimension and probe vector of a record; raise `StoreError` if it is not what `record_of` writes."""
    try:
        fields: dict[str, Any] = json.loads(record)
        name, dim, probe = fields["name"], fields["dim"], fields["probe"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path}: its record of the embedder cannot be read ({error!r}): go back to a copy") from error
    is_valid = isinstance(name, str) and type(dim) is int and isinstance(probe, list)
    if not is_valid or len(probe) != dim or not probe or not all(type(x) in (int, float) for x in probe):
        raise StoreError(f"{path}: its record of the embedder holds no name, dimension and probe: go back to a copy")
    return name, dim, probe


def _probe(embedder: Embedder) -> list[float]:
    return [round(float(x), 4) for x in embedder.encode([_PROBE_TEXT])[0]]


class StoredEmbedder:
    """Embedder that takes vectors from the store's file where it has them, so that reopening embeds nothing again."""

    def __init__(self, rows: Namespace, inner: Embedder) -> None:
        self._rows, self.inner = rows, inner
        self.name, self.dim = inner.name, inner.dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`."""
        with self._rows.transaction(write=False):
            vectors = self._rows.vectors.of_texts(texts, self.dim)
        missing = list(dict.fromkeys(text for text in texts if text not in vectors))
        if missing:
            vectors.update(zip(missing, self.inner.encode(missing), strict=True))
        return np.array([vectors[text] for text in texts], np.float32).reshape(len(texts), self.dim)
