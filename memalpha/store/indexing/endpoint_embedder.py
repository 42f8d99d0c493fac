"""Embedder behind an OpenAI-compatible `/embeddings`, with retries and a file of paid vectors.

It needs no package beyond memalpha's own: requests go through the standard library, one batch after another.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import numpy as np

from memalpha.endpoint_calls import backoff, is_retryable, parse_name, read_error, retry_after
from memalpha.errors import EmbedderError, PolicyError

KEY_VARIABLE = "MEMALPHA_EMBEDDING_KEY"
"""Environment variable with the key of an embedder `http://...`; `openai:MODEL` takes OPENAI_API_KEY."""
CACHE_VARIABLE = "MEMALPHA_EMBEDDING_CACHE"
"""Environment variable with the file of vectors."""
BATCH_TEXTS = 32
"""Texts of a request; text-embeddings-inference takes no more unless told otherwise."""
BATCH_CHARACTERS = 100_000
"""Characters of a request with several texts."""
TRIES = 6
MAX_WAIT = 60.0
"""Longest wait before a retry, in seconds; a server that asks for more counts as down."""
TIMEOUT = 60.0


class EndpointEmbedder:
    """Embed with the model of an endpoint.

    Texts go out in batches, each distinct text once. Status 429, 5xx and broken connections are retried, at most
    `TRIES` times a batch. If a call fails, the batches before it are kept, and a repeated call sends the rest. Rows are
    checked and divided by their norm. A text of whitespace is not sent and gives the zero row.

    Args:
        name: `http://host:port/v1#model` or `openai:MODEL` (`OPENAI_BASE_URL` replaces its address).
        cache: SQLite file that keeps every vector by a hash of its text; default: the variable `CACHE_VARIABLE`,
            else none. Erasing an entry from a store does not erase its vector here.
        key_env: environment variable with the key; default: OPENAI_API_KEY for `openai:MODEL`, `KEY_VARIABLE` for an
            address, if it is set.
        sleep: waits some seconds; for tests.

    Raises:
        EmbedderError: The name is invalid, the key is missing, or the endpoint does not answer with vectors.
    """

    def __init__(
        self,
        name: str,
        *,
        cache: str | Path | None = None,
        key_env: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            self._base, self._model = parse_name(name)
        except PolicyError as error:
            raise EmbedderError(f"embedder: {error}") from error
        self.name = name
        self._key_variable = key_env or ("OPENAI_API_KEY" if name.startswith("openai:") else KEY_VARIABLE)
        self._key = self._read_key(is_needed=key_env is not None or name.startswith("openai:"))
        path = cache or os.environ.get(CACHE_VARIABLE)
        self._file = _VectorFile(Path(path), f"{self._base}#{self._model}") if path else None
        self._unfinished: dict[str, np.ndarray] = {}  # vectors of a call that failed later
        self._sleep, self._rng = sleep, Random()
        self._opener = urllib.request.build_opener(_NoRedirect)  # a redirect would carry the key to another host
        self.dim = 0
        self.dim = len(self.encode(["dimension"])[0])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`.

        Raises:
            EmbedderError: The endpoint refuses, gives no answer after all tries, or returns something else than one
                finite vector of the recorded dimension for each text.
        """
        distinct = list(dict.fromkeys(text for text in texts if text.strip()))
        vectors = {text: self._unfinished[text] for text in distinct if text in self._unfinished}
        if self._file is not None:
            vectors |= self._file.get([text for text in distinct if text not in vectors])
        for batch in _batches([text for text in distinct if text not in vectors]):
            answer = dict(zip(batch, self._embed(batch), strict=True))
            if self._file is not None:
                self._file.put(answer)
            self._unfinished |= answer
            vectors |= answer
        for text in distinct:
            self._check_dim(vectors[text], text)
        self._unfinished.clear()
        rows = np.zeros((len(texts), self.dim or len(vectors[distinct[0]])), np.float32)
        for index, text in enumerate(texts):
            if text in vectors:
                rows[index] = vectors[text]
        return rows

    def _read_key(self, *, is_needed: bool) -> str | None:
        key = os.environ.get(self._key_variable, "").strip()
        if is_needed and not key:
            raise EmbedderError(
                f"embedder {self.name!r} needs a key: set the environment variable {self._key_variable}"
            )
        if not (key.isascii() and (key.isprintable() or not key)):
            raise EmbedderError(f"embedder {self.name!r}: {self._key_variable} holds characters that no key has")
        return key or None

    def _check_dim(self, vector: np.ndarray, text: str) -> None:
        if self.dim and len(vector) != self.dim:
            raise EmbedderError(
                f"embedder {self.name!r} returned {len(vector)} numbers for {text[:80]!r}, {self.dim} before: the "
                "server has another model now"
            )

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of one batch, with retries."""
        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"}).encode()
        reason = ""
        for attempt in range(TRIES):
            status, headers, content = self._post(body)
            if status == 200 and (answer := _parse_json(content)) is not None:
                return self._read_vectors(answer, texts)
            reason = self._describe(status, content)
            if status != 200 and not is_retryable(status):
                raise EmbedderError(f"embedder {self.name!r} refused a request ({reason}){self._key_hint(status)}")
            wait = retry_after(headers) or 0.0
            if wait > MAX_WAIT:
                raise EmbedderError(f"embedder {self.name!r}: {reason}; it asks to wait {wait:.0f} s: try again later")
            if attempt < TRIES - 1:
                self._sleep(wait + backoff(attempt, MAX_WAIT, self._rng))
        raise EmbedderError(
            f"embedder {self.name!r} gave no answer in {TRIES} tries, the last: {reason}. A repeated call sends only "
            f"what is missing; {CACHE_VARIABLE}=FILE keeps paid vectors for other processes too"
        )

    def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; return status, headers in lower case and content. Status 503 also means: no connection."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        try:
            request = urllib.request.Request(f"{self._base}/embeddings", body, headers)
            with self._opener.open(request, timeout=TIMEOUT) as response:
                return response.status, _lower(response.headers), response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _lower(error.headers), error.read()
        except (OSError, HTTPException) as error:
            return 503, {}, str(getattr(error, "reason", None) or error or type(error).__name__).encode()

    def _describe(self, status: int, content: bytes) -> str:
        if status == 200:
            return "an answer that is no JSON"
        words = read_error(_parse_json(content), content.decode("utf-8", "replace"), self._key)
        return f"status {status}" + (f": {words}" if words else "")

    def _key_hint(self, status: int) -> str:
        if status not in (401, 403):
            return ""
        return f": the key is read from the environment variable {self._key_variable}" + (
            "" if self._key else ", which is not set"
        )

    def _read_vectors(self, answer: Any, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of an answer in the order of the texts, float32 of length 1."""
        rows = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(rows, list) or len(rows) != len(texts):
            number = len(rows) if isinstance(rows, list) else "no"
            raise EmbedderError(f"embedder {self.name!r} returned {number} vectors for {len(texts)} texts")
        try:
            numbers = [row.get("index", position) for position, row in enumerate(rows)]
            if sorted(numbers) != list(range(len(texts))):
                raise ValueError(f"the indices {numbers[:8]}")
            ordered = [row["embedding"] for _, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])]
            vectors = np.array(ordered, np.float64)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise EmbedderError(f"embedder {self.name!r} returned no vectors of one length ({error})") from error
        if vectors.ndim != 2 or not vectors.shape[1]:
            raise EmbedderError(f"embedder {self.name!r} returned numbers of the shape {vectors.shape}, not vectors")
        norms = np.linalg.norm(vectors, axis=1)
        for text, norm in zip(texts, norms, strict=True):
            if not (np.isfinite(norm) and norm > 0):
                raise EmbedderError(
                    f"embedder {self.name!r} returned a vector that is 0 or not finite for {text[:80]!r}"
                )
        return (vectors / norms[:, None]).astype(np.float32)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


class _VectorFile:
    """Vectors on disk, by the hash of model and text: no text is in the file."""

    def __init__(self, path: Path, model: str) -> None:
        self._path, self._model, self._lock = path, model, Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT, 0o600))
            self._db = sqlite3.connect(path, timeout=60.0, isolation_level=None, check_same_thread=False)
            self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the stored vectors by text."""
        vectors = {}
        try:
            with self._lock:
                for text in texts:
                    row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (self._hash(text),)).fetchone()
                    if row is not None:
                        vectors[text] = np.frombuffer(row[0], "<f4")
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._unusable(error) from error
        return vectors

    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Store vectors, all in one transaction."""
        rows = [(self._hash(text), vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        try:
            with self._lock:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _hash(self, text: str) -> bytes:
        payload = json.dumps([self._model, text])
        return hashlib.sha256(payload.encode()).digest()

    def _unusable(self, error: Exception) -> EmbedderError:
        return EmbedderError(f"{self._path}: vectors cannot be kept here ({error}): name another file, or remove it")


def _batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if not batches or len(batches[-1]) == BATCH_TEXTS or characters > BATCH_CHARACTERS:
            batches.append([])
            characters = len(text)
        batches[-1].append(text)
    return batches


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
