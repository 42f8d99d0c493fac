"""A corpus as arrays, and back: what an index file holds of it. Of the entries themselves it holds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from memalpha.store.embedding import Embedder
from memalpha.store.indexing.file_format import pack_strings, unpack_strings
from memalpha.store.search.ann import InvertedLists
from memalpha.store.search.background import Background
from memalpha.store.search.bm25 import LexicalIndex
from memalpha.store.search.corpus import CompactVectors, Corpus
from memalpha.store.search.string_table import StringTable
from memalpha.store.search.vectors import Prototypes, VectorIndex
from memalpha.types import MemoryEntry

_WORDS = "words "


def corpus_to_arrays(corpus: Corpus) -> dict[str, np.ndarray]:
    """All that a corpus consists of but the entries, as arrays by name; no copies where they are as they lie."""
    corpus._embed()
    live = corpus._live[: corpus._size]
    words = {f"{_WORDS}{name}": part for name, part in corpus._lexical.to_arrays(live).items()}
    corpus._drop_removed()
    lists = {} if corpus._near is None else corpus._near.to_arrays()
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
    parts: Mapping[str, np.ndarray],
    embedder: Embedder,
    entries: Callable[[], Iterable[MemoryEntry]],
    background: Background | None,
    compact: CompactVectors | None,
) -> Corpus:
    """The corpus that gave these parts, which become its own."""
    corpus = Corpus(embedder, (), entries, background, compact)
    corpus._slots, corpus._live, corpus._size = (
        StringTable.from_arrays("ids", parts),
        parts["live"],
        int(parts["size"][0]),
    )
    corpus._orders, corpus._groups = parts["orders"], parts["groups"]
    slots = np.flatnonzero(corpus._live)
    corpus._free = np.flatnonzero(~corpus._live[: corpus._size]).tolist()
    corpus._group_numbers = {name: number for number, name in enumerate(unpack_strings("groups", parts))}
    corpus._source_numbers = {name: number for number, name in enumerate(unpack_strings("sources", parts), 1)}
    corpus._spans = parts["spans"] if corpus._source_numbers else np.zeros((len(corpus._live), 3), np.int64)
    corpus._vectors = VectorIndex(embedder.dim, corpus._vectors.precision, parts["vectors"], corpus._size)
    corpus._prototypes = Prototypes(embedder.dim, parts["prototypes"])
    words = {name.removeprefix(_WORDS): part for name, part in parts.items() if name.startswith(_WORDS)}
    corpus._lexical = LexicalIndex.from_arrays(words)
    corpus._update_group_counts(slots, 1)
    if corpus._near is not None and "lists" in parts:
        corpus._near.restore(InvertedLists.from_bytes(parts["lists"]), parts["since"].tolist())
    return corpus
