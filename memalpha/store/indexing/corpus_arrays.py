"""Conversion of a corpus to the arrays of an index file, and back.

The arrays hold no entries; a loaded corpus reads them from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from memalpha.store.embedding import Embedder
from memalpha.store.indexing.file_format import pack_strings, unpack_strings
from memalpha.store.search.ann import InvertedLists
from memalpha.store.search.background import Background
from memalpha.store.search.bm25 import LexicalIndex
from memalpha.store.search.corpus import CompactVectors, Corpus
from memalpha.store.search.passages import PassageIndex
from memalpha.store.search.string_table import StringTable
from memalpha.store.search.vectors import Prototypes, VectorIndex
from memalpha.types import MemoryEntry

_WORDS, _PASSAGES = "words ", "passages "


def corpus_to_arrays(corpus: Corpus) -> dict[str, np.ndarray]:
    """Return a corpus without its entries as arrays by name, not copied where possible."""
    corpus._embed()
    live = corpus._live[: corpus._size]
    words = {f"{_WORDS}{name}": part for name, part in corpus._lexical.to_arrays(live).items()}
    corpus._drop_removed()
    words |= {f"{_PASSAGES}{name}": part for name, part in corpus._passages.to_arrays().items()}
    lists = {} if corpus._approximate is None else corpus._approximate.to_arrays()
    return {
        **words,
        **lists,
        **corpus._slots.to_arrays("ids"),
        **pack_strings("groups", corpus._group_numbers),
        **pack_strings("sources", corpus._source_numbers),
        "live": live,
        "orders": corpus._orders[: len(live)],
        "groups": corpus._groups[: len(live)],
        "spans": corpus._spans[: len(live) if corpus._source_numbers else 0],
        "size": np.array([corpus._size]),
        "vectors": corpus._vectors.rows,
        "prototypes": corpus._prototypes.sums,
    }


def are_sound(arrays: Mapping[str, np.ndarray], embedder: Embedder, compact: CompactVectors | None) -> bool:
    """Return True if the arrays fit together: types and shapes are right, and no index points outside of its array.

    An index file may come from somebody else, together with the store that holds its key, and FAISS checks no bounds.
    The inverted lists are FAISS's own and not checked.

    Args:
        arrays: Arrays by name, those of slots with spare rows.
        embedder: Embedder of the vectors.
        compact: Precision of the vectors; None for float32.
    """
    expected = corpus_to_arrays(Corpus(embedder, compact=compact))
    optional = {"lists": np.zeros(0, np.uint8), "since": np.zeros(0, np.int64)}
    if not expected.keys() <= arrays.keys() <= expected.keys() | optional.keys():
        return False
    for name, array in arrays.items():
        model = optional.get(name, expected.get(name, array))
        has_type = array.dtype.kind == "u" if name.endswith("counts") else array.dtype == model.dtype
        if not has_type or array.ndim != model.ndim or array.shape[1:] != model.shape[1:]:
            return False
    if len(arrays["size"]) != 1:
        return False
    size, sources = int(arrays["size"][0]), len(arrays["sources lengths"])
    groups, passages = len(arrays["groups lengths"]), arrays[f"{_PASSAGES}slots"]
    by_slot = [arrays[name] for name in ("live", "orders", "groups", "vectors", *(["spans"] if sources else []))]
    return (
        0 <= size <= min(map(len, by_slot))
        and np.array_equal(np.flatnonzero(arrays["live"]), np.flatnonzero(arrays["ids lengths"] >= 0))
        and _is_within(np.flatnonzero(arrays["live"]), 0, size)
        and _is_cut_between_characters(arrays, "ids")
        and _are_names(arrays, "groups")
        and _are_names(arrays, "sources")
        and _is_within(arrays["groups"], 0, groups)
        and len(arrays["prototypes"]) == groups
        and _is_within(arrays["spans"][:, 0], 0, sources + 1)
        and _are_postings_sound(arrays, _WORDS, size)
        and _are_postings_sound(arrays, _PASSAGES + _WORDS, len(passages))
        and len(passages) == len(arrays[f"{_PASSAGES}numbers"])
        and _is_within(passages, -1, size)
        and _is_within(arrays.get("since", passages[:0]), 0, size)
    )


def _are_postings_sound(arrays: Mapping[str, np.ndarray], prefix: str, slot_count: int) -> bool:
    starts, slots, counts, lengths = (arrays[prefix + name] for name in ("starts", "slots", "counts", "lengths"))
    return (
        len(starts) > 0
        and starts[0] == 0
        and bool((starts[1:] >= starts[:-1]).all())
        and starts[-1] == len(slots) == len(counts)
        and len(lengths) >= slot_count
        and _is_within(slots, 0, slot_count)
        and _is_cut_between_characters(arrays, f"{prefix}terms")
    )


def _are_names(arrays: Mapping[str, np.ndarray], name: str) -> bool:
    """Return True if an array of strings holds different texts."""
    try:
        names = unpack_strings(name, arrays)
    except UnicodeDecodeError:
        return False
    return len(set(names)) == len(names)


def _is_within(numbers: np.ndarray, start: int, end: int) -> bool:
    return not len(numbers) or bool(start <= numbers.min() and numbers.max() < end)


def _is_cut_between_characters(arrays: Mapping[str, np.ndarray], name: str) -> bool:
    """Return True if the texts of a `StringTable` are UTF-8 each."""
    text, ends = arrays[f"{name} text"], np.cumsum(np.maximum(arrays[f"{name} lengths"], 0), dtype=np.int64)
    try:
        text.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    inner_ends = ends[ends < len(text)]
    return bool(ends[-1:].sum() == len(text) and ((text[inner_ends] & 0xC0) != 0x80).all())


def corpus_from_arrays(
    arrays: Mapping[str, np.ndarray],
    embedder: Embedder,
    entries: Callable[[], Iterable[MemoryEntry]],
    background: Background | None,
    compact: CompactVectors | None,
) -> Corpus:
    """Build the corpus that `corpus_to_arrays` gave the arrays of.

    Args:
        arrays: Arrays by name; the corpus takes them over.
        embedder: Embedder of the vectors.
        entries: Returns the entries of all documents, for filters.
        background: Thread for building inverted lists; None builds none.
        compact: Precision of the vectors; None for float32.
    """
    corpus = Corpus(embedder, (), entries, background, compact)
    corpus._slots = StringTable.from_arrays("ids", arrays)
    corpus._live, corpus._size = arrays["live"], int(arrays["size"][0])
    corpus._orders, corpus._groups = arrays["orders"], arrays["groups"]
    slots = np.flatnonzero(corpus._live)
    corpus._free = np.flatnonzero(~corpus._live[: corpus._size]).tolist()
    corpus._group_numbers = {name: number for number, name in enumerate(unpack_strings("groups", arrays))}
    corpus._source_numbers = {name: number for number, name in enumerate(unpack_strings("sources", arrays), 1)}
    corpus._spans = arrays["spans"] if corpus._source_numbers else np.zeros((len(corpus._live), 3), np.int64)
    # Documents that were removed before they were embedded may leave slots without a row at the end.
    rows = min(corpus._size, len(arrays["vectors"]))
    corpus._vectors = VectorIndex(embedder.dim, corpus._vectors.precision, arrays["vectors"], rows)
    corpus._prototypes = Prototypes(embedder.dim, arrays["prototypes"])
    words = {name.removeprefix(_WORDS): part for name, part in arrays.items() if name.startswith(_WORDS)}
    corpus._lexical = LexicalIndex.from_arrays(words)
    passages = {name.removeprefix(_PASSAGES): part for name, part in arrays.items() if name.startswith(_PASSAGES)}
    corpus._passages = PassageIndex.from_arrays(passages)
    corpus._update_group_counts(slots, 1)
    if corpus._approximate is not None and "lists" in arrays:
        corpus._approximate.restore(InvertedLists.from_bytes(arrays["lists"]), arrays["since"].tolist())
    return corpus


def copy_corpus(corpus: Corpus, entries: Callable[[], Iterable[MemoryEntry]], background: Background | None) -> Corpus:
    """Return a copy of a corpus that can be changed by itself.

    Args:
        corpus: Corpus with float32 vectors.
        entries: Returns the entries of all documents of the copy, for filters.
        background: Thread for updating inverted lists; None leaves them out.
    """
    arrays = {name: array.copy() for name, array in corpus_to_arrays(corpus).items()}
    copy = corpus_from_arrays(arrays, corpus.embedder, entries, background, None)
    copy._columns = corpus._columns.copy(entries)
    return copy
