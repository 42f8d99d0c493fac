"""Embedder behind an OpenAI-compatible `/embeddings`, with retries.

It needs no package beyond memalpha's own: requests go through the standard library, one batch after another.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from random import Random
from typing import Any

import numpy as np

from memalpha.endpoint_calls import backoff, is_retryable, parse_name, read_error, read_key, retry_after
from memalpha.errors import EmbedderError, PolicyError

KEY_VARIABLE = "MEMALPHA_EMBEDDING_KEY"
"""Environment variable with the key of an embedder `http://...`; `openai:MODEL` takes OPENAI_API_KEY."""
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
        sleep: waits some seconds; for tests.

    Raises:
        EmbedderError: The name is invalid, the key is missing, or the endpoint does not answer with vectors.
    """

    def __init__(self, name: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        is_openai = name.startswith("openai:")
        self.name, self._sleep, self._rng = name, sleep, Random()
        self._key_variable = "OPENAI_API_KEY" if is_openai else KEY_VARIABLE
        try:
            self._base, self._model = parse_name(name)
            is_key_set = bool(os.environ.get(self._key_variable, "").strip())
            self._key = read_key(name, self._key_variable) if is_openai or is_key_set else None
        except PolicyError as error:
            raise EmbedderError(f"embedder: {error}") from error
        self._unfinished: dict[str, np.ndarray] = {}  # vectors of a call that failed later
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
        vectors = dict(self._unfinished)  # a copy: another thread may clear it
        for batch in _batches([text for text in distinct if text not in vectors]):
            answer = dict(zip(batch, self._embed(batch), strict=True))
            vectors |= answer
            self._unfinished |= answer
        dim = self.dim or len(vectors[distinct[0]])
        rows = np.zeros((len(texts), dim), np.float32)
        for index, text in enumerate(texts):
            if text.strip():
                if len(vectors[text]) != dim:
                    raise EmbedderError(
                        f"embedder {self.name!r} returned {len(vectors[text])} numbers for {text[:80]!r}, {dim} "
                        "before: the server has another model now"
                    )
                rows[index] = vectors[text]
        self._unfinished.clear()
        return rows

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of one batch, with retries."""
        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"}).encode()
        reason = ""
        for attempt in range(TRIES):
            status, headers, content = self._post(body)
            answer = _parse_json(content)
            if status == 200 and answer is not None:
                return self._read_vectors(answer, texts)
            words = read_error(answer, content.decode("utf-8", "replace"), self._key)
            reason = "an answer that is no JSON" if status == 200 else f"status {status}: {words}".removesuffix(": ")
            if status != 200 and not is_retryable(status):
                hint = f": the key is read from the environment variable {self._key_variable}"
                hint += "" if self._key else ", which is not set"
                raise EmbedderError(
                    f"embedder {self.name!r} refused a request ({reason}){hint if status in (401, 403) else ''}"
                )
            wait = retry_after(headers) or 0.0
            if wait > MAX_WAIT:
                raise EmbedderError(f"embedder {self.name!r}: {reason}; it asks to wait {wait:.0f} s: try again later")
            if attempt < TRIES - 1:
                self._sleep(wait + backoff(attempt, MAX_WAIT, self._rng))
        raise EmbedderError(
            f"embedder {self.name!r} gave no answer in {TRIES} tries, the last: {reason}. A repeated call sends only "
            "what is missing"
        )

    def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; return status, headers in lower case and content. Status 503 also means: no connection."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        try:
            request = urllib.request.Request(f"{self._base}/embeddings", body, headers)
            with self._opener.open(request, timeout=TIMEOUT) as response:
                return response.status, {}, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()
        except (OSError, HTTPException) as error:
            return 503, {}, str(getattr(error, "reason", None) or error or type(error).__name__).encode()

    def _read_vectors(self, answer: Any, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of an answer in the order of the texts, float32 of length 1."""
        rows = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(rows, list) or len(rows) != len(texts):
            number = len(rows) if isinstance(rows, list) else "no"
            raise EmbedderError(f"embedder {self.name!r} returned {number} vectors for {len(texts)} texts")
        try:
            by_index = {row.get("index", position): row["embedding"] for position, row in enumerate(rows)}
            if by_index.keys() != set(range(len(texts))):
                raise ValueError(f"the indices {list(by_index)[:8]}")
            vectors = np.array([by_index[index] for index in range(len(texts))], np.float64)
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


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
