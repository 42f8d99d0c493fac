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
    corpus._vectors = VectorIndex(embedder.dim, corpus._vectors.precision, arrays["vectors"], corpus._size)
    corpus._prototypes = Prototypes(embedder.dim, arrays["prototypes"])
    words = {name.removeprefix(_WORDS): part for name, part in arrays.items() if name.startswith(_WORDS)}
    corpus._lexical = LexicalIndex.from_arrays(words)
    passages = {name.removeprefix(_PASSAGES): part for name, part in arrays.items() if name.startswith(_PASSAGES)}
    corpus._passages = PassageIndex.from_arrays(passages)
    corpus._update_group_counts(slots, 1)
    if corpus._approximate is not None and "lists" in arrays:
        corpus._approximate.restore(InvertedLists.from_bytes(arrays["lists"]), arrays["since"].tolist())
    return corpus
