"""Queries of a PostgreSQL search: entries with their inner products and words, candidates of a large memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from memalpha.errors import DamagedStore
from memalpha.store.backends.postgres.fetched import (
    CandidateEntries,
    EntryScope,
    FetchedEntries,
    WordStatistics,
    live_scope,
)
from memalpha.store.backends.postgres.namespace import PostgresNamespace
from memalpha.store.backends.postgres.terms import ALL_WORDS, word_term
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import ENTRY_COLUMNS, decode_entry
from memalpha.store.filters import Filter
from memalpha.store.indexing.stored_embedder import StoredEmbedder
from memalpha.store.search import passages as passage_index
from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.filter_columns import to_number
from memalpha.store.search.options import SearchOptions
from memalpha.store.search.passages import PassageMatches, effective_total
from memalpha.store.search.ranking import Route
from memalpha.store.search.vectors import inner_products
from memalpha.types import MemoryEntry

NEAREST = LEXICAL = SAMPLED = 300
_MAX_POSTINGS = 2000  # postings per word that are read to find candidates
_MAX_LOOKUPS = 1000  # entries looked up by their keys
_MAX_SCANNED = 40_000  # vectors that the HNSW index may visit


def _set_config(**values: object) -> str:
    """Return the statement that sets parameters for the rest of the transaction."""
    settings = (f"set_config('{name.replace('__', '.')}', '{value}', true)" for name, value in values.items())
    return f"SELECT {', '.join(settings)}"


# Settings to scan the HNSW index and check each vector for a live entry, and the settings afterwards.
_HNSW_SCAN = _set_config(
    hnsw__iterative_scan="strict_order",
    hnsw__ef_search=NEAREST,
    hnsw__max_scan_tuples=_MAX_SCANNED,
    hnsw__scan_mem_multiplier=4,
    **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_sort"), "off"),
    enable_nestloop="on",
)
_AFTER_HNSW_SCAN = _set_config(
    enable_nestloop="off", **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_sort"), "on")
)
# Without table statistics, as after many inserts, PostgreSQL estimates a row or two per namespace and plans nested
# loops over all entries. Hash joins are linear whatever it estimates.
HASH_JOINS = _set_config(enable_nestloop="off")
# Fetched columns: name, numpy type, and SQL of the bytes. `dense` is the inner product with the query's vector.
# `source` is a hash, never 0; 0 means no span.
_POSITION_COLUMNS = [("created", ">i8", "int8send(v.created)"), ("order", ">i8", "int8send(v.valid_from)")]
_DENSE_COLUMNS = [("dense", ">f8", "float8send(coalesce(-(x.vector <#> ?), 'NaN'::float8))")]
_SPAN_COLUMNS = [
    ("source", ">i8", "int8send(CASE WHEN v.turn IS NULL THEN 0 ELSE coalesce(v.source_key | 1, 0) END)"),
    ("chunk", ">i8", "int8send(coalesce(v.chunk, -1))"),
]
_DIGEST_COLUMNS = [("digest", "V16", "v.digest")]
_UNSURE_COLUMNS = [("unsure", ">i4", "int4send(CASE WHEN v.passes THEN 0 ELSE 1 END)")]
_POSTING_TYPE = np.dtype([("created", ">i8"), ("count", ">i4")])
_WORD_TYPE = np.dtype([("digest", ">u8"), ("rest", ">u8"), ("count", ">i4"), ("length", ">i4"), ("live", ">i4")])


class SearchQueries:
    """Queries of one search, on the state at `position` (None: now)."""

    def __init__(self, connection: Any, rows: PostgresNamespace, encoder: StoredEmbedder, position: int | None) -> None:
        self._connection, self._rows, self._encoder, self._position = connection, rows, encoder, position

    @cached_property
    def all(self) -> EntryScope:
        """Scope of all live entries."""
        return live_scope(self._rows.scope.namespace_id, self._position)

    def is_large(self, route: Route, size: int) -> bool:
        """Return True if the memory has more than `size` entries and the route supports candidates."""
        scope = self.all
        if route == "soft":
            spans = (
                f"SELECT 1 FROM versions v WHERE {scope.sql} AND v.turn IS NOT NULL AND v.source IS NOT NULL LIMIT 1"
            )
            if self._connection.execute(spans, scope.values).fetchone() is not None:
                return False
        query = f"SELECT count(*) FROM (SELECT 1 FROM versions v WHERE {scope.sql} LIMIT {size + 1}) AS few"
        return self._connection.execute(query, scope.values).fetchone()[0] > size

    def entries(self, created: Sequence[int]) -> dict[int, MemoryEntry]:
        """Return entries by creation position, as of the searched position."""
        if not created:
            return {}
        scope = self.all.restrict("v.created = ANY(?::bigint[])", created)
        query = f"SELECT created, {ENTRY_COLUMNS}, version, valid_from, valid_to FROM versions v WHERE {scope.sql}"
        versions = {
            position: decode_entry(tuple(row)) for position, *row in self._connection.execute(query, scope.values)
        }
        return {
            position: entry if entry.valid_to is None else replace(entry, valid_to=None)
            for position, entry in versions.items()
        }

    def selection(
        self,
        scope: EntryScope,
        query_words: Counter[str],
        vector: np.ndarray | None,
        options: SearchOptions,
        kind: type[FetchedEntries] = FetchedEntries,
    ) -> FetchedEntries | None:
        """Fetch the entries with all parts of their scores for one query; None if the scope is empty.

        Args:
            scope: Entries to read.
            query_words: Words of the query with their counts.
            vector: Embedding of the query, (1, dim); None leaves the dense part out.
            options: Options of the search.
            kind: Class of the result.
        """
        route = options.route
        groups, filtered = route in ("soft", "hard"), scope is not self.all
        columns = (
            _POSITION_COLUMNS
            + (_SPAN_COLUMNS if route == "soft" else [])
            + ([] if scope.where is None else _UNSURE_COLUMNS)
        )
        columns += ([] if vector is None else _DENSE_COLUMNS) + (_DIGEST_COLUMNS if filtered else [])
        fields = [] if options.boost is None else ["importance", "timestamp"]
        sums = vector is not None and groups
        source, values = (
            (scope.rows, scope.row_values)
            if vector is None
            else scope.join(self._rows.scope.namespace_id, "LEFT", "vectors")
        )
        query = (
            f"SELECT string_agg({' || '.join(value for _, _, value in columns)}, '')"
            + (", sum(x.vector)" if sums else "")
            + "".join(f", array_agg(v.{field})" for field in fields)
            + f" FROM {source} WHERE {scope.sql}"
            + (" GROUP BY v.category ORDER BY v.category" if groups else " HAVING count(*) > 0")
        )
        vector_parameters = () if vector is None else (_vector_parameter(vector),)
        rows = self._connection.execute(query, (*vector_parameters, *values, *scope.values)).fetchall()
        if not rows:
            return None
        dtype = np.dtype([(name, kind) for name, kind, _ in columns])
        blocks = [np.frombuffer(row[0], dtype) for row in rows]
        documents = np.concatenate(blocks)
        if scope.where is not None and documents["unsure"].any():
            return self.selection(self._resolve_unsure(documents, scope.where), query_words, vector, options, kind)
        prototypes = np.zeros((len(rows), self._encoder.dim))
        if sums:
            for number, row in enumerate(rows):
                if row[1] is not None:
                    prototypes[number] = np.frombuffer(row[1], "<f4")
        numbers = np.repeat(np.arange(len(rows)), list(map(len, blocks)))
        if vector is not None:
            self._embed_missing(numbers, documents, prototypes, vector)
        first_field = len(rows[0]) - len(fields)
        values = {
            field: np.array([to_number(value) for row in rows for value in row[first_field + offset]])
            for offset, field in enumerate(fields)
        }
        selection = kind(numbers, documents, prototypes, values)
        if route != "dense":
            self._add_words(
                self._scope_of(selection.created, documents["digest"]) if filtered else scope, query_words, selection
            )
        return selection

    def _scope_of(self, created: np.ndarray, digests: np.ndarray) -> EntryScope:
        """Return the scope of entries given by creation position and content digest."""
        if len(created) > _MAX_LOOKUPS:
            return self.all.restrict("v.created IN (SELECT unnest(?::bigint[]))", created.tolist())
        scope = self.all.restrict("v.created = ANY(?::bigint[])", created.tolist())
        return scope._replace(digests=[digest.tobytes() for digest in digests])

    def _resolve_unsure(self, documents: np.ndarray, where: Filter) -> EntryScope:
        """Return the scope of the matching entries, asking `matches` where the server could not decide."""
        entries = self.entries(documents["created"][documents["unsure"] != 0].tolist())
        passes = [not row["unsure"] or where.matches(entries[int(row["created"])]) for row in documents]
        matching = documents[np.array(passes, bool)]
        return self._scope_of(matching["created"], matching["digest"])

    def _embed_missing(self, groups: np.ndarray, documents: np.ndarray, sums: np.ndarray, vector: np.ndarray) -> None:
        """Embed contents without a stored vector."""
        missing = np.flatnonzero(np.isnan(documents["dense"]))
        if len(missing):
            positions = documents["created"][missing].tolist()
            entries = self.entries(positions)
            vectors = self._encoder.encode([entries[created].content for created in positions])
            documents["dense"][missing] = inner_products(vector, vectors)[0]
            np.add.at(sums, groups[missing], vectors)

    def _add_words(self, scope: EntryScope, query_words: Counter[str], selection: FetchedEntries) -> None:
        """Set the word counts of the entries and the postings of the query's words."""
        source, values = scope.join(self._rows.scope.namespace_id, "INNER", "postings")
        query = (
            f"SELECT x.term, string_agg(int8send(v.created) || int4send(x.count), '') FROM {source} "
            f"WHERE {scope.sql} AND x.term = ANY(?::bigint[]) GROUP BY x.term"
        )
        rows = self._connection.execute(query, (*values, *scope.values, [ALL_WORDS, *map(word_term, query_words)]))
        blobs = {term: np.frombuffer(blob, _POSTING_TYPE) for term, blob in rows}
        empty = np.zeros(0, _POSTING_TYPE)
        order = np.argsort(selection.created)
        created = selection.created[order]

        def entry_indices(postings: np.ndarray) -> np.ndarray:
            return order[np.searchsorted(created, postings["created"].astype(np.int64))]

        lengths = np.full(len(created), -1)
        all_words = blobs.get(ALL_WORDS, empty)
        lengths[entry_indices(all_words)] = all_words["count"]
        if (lengths < 0).any():
            raise DamagedStore(
                f"{self._rows.database.path} lacks the postings of some contents: run `memalpha doctor --repair`"
            )
        postings = [blobs.get(word_term(word), empty) for word in query_words]
        all_postings = np.concatenate([empty, *postings])
        matches = None
        if len(all_postings):
            numbers = np.repeat(np.arange(len(postings)), list(map(len, postings)))
            counts = all_postings["count"].astype(np.int64)
            matches = TermMatches(np.array(list(query_words.values())), numbers, entry_indices(all_postings), counts)
        selection.set_words(lengths, matches)
        if matches is None:
            return
        long = np.unique(matches.documents[lengths[matches.documents] > passage_index.WINDOW])
        if len(long):
            positions = selection.created[long].tolist()
            entries = self.entries(positions)
            texts = [entries[position].content for position in positions]
            selection.passages = PassageMatches.from_texts(list(query_words), long.tolist(), texts)

    def candidates(
        self, query_words: Counter[str], vector: np.ndarray, options: SearchOptions
    ) -> FetchedEntries | None:
        """Fetch the likely best entries of a large memory; None if the index finds too few.

        Args:
            query_words: Words of the query with their counts.
            vector: Embedding of the query, (1, dim).
            options: Options of the search.
        """
        namespace_id, live = self._rows.scope.namespace_id, "v.ns = ? AND v.digest = x.digest AND v.valid_to IS NULL"
        self._connection.execute(_HNSW_SCAN)
        rows = self._connection.execute(
            f"SELECT x.digest FROM vectors x WHERE x.ns = ? AND EXISTS (SELECT 1 FROM versions v WHERE {live}) "
            f"ORDER BY x.vector <#> ? LIMIT {NEAREST}",
            (namespace_id, namespace_id, _vector_parameter(vector)),
        )
        nearest = [digest for (digest,) in rows]
        self._connection.execute(_AFTER_HNSW_SCAN)
        if len(nearest) < NEAREST:
            return None
        if options.route == "dense":
            statistics, digests = None, nearest
        else:
            statistics, lexical = self._word_statistics(query_words)
            digests = list({*nearest, *lexical})
        scope = self.all.restrict("v.digest = ANY(?::bytea[])", digests)._replace(digests=digests)
        selection = self.selection(scope, query_words, vector, options, CandidateEntries)
        if isinstance(selection, CandidateEntries) and statistics is not None:
            selection.words = statistics
        return selection

    def _word_statistics(self, query_words: Counter[str]) -> tuple[WordStatistics, set[bytes]]:
        """Return the statistics of the query's words, and digests of the best contents and of a sample."""
        query = (
            "SELECT t.term, (SELECT string_agg(p.digest || int4send(p.count) || int4send(p.length) || int4send(p.live)"
            ", '') FROM (SELECT digest, count, length, CASE WHEN EXISTS (SELECT 1 FROM versions v WHERE v.ns = ? AND "
            "v.digest = x.digest AND v.valid_to IS NULL) THEN 1 ELSE 0 END AS live FROM postings x "
            f"WHERE ns = ? AND term = t.term ORDER BY digest LIMIT {_MAX_POSTINGS}) p) FROM unnest(?::bigint[]) t(term)"
        )
        terms = [ALL_WORDS, *map(word_term, query_words)]
        blobs = dict(
            self._connection.execute(query, (self._rows.scope.namespace_id, self._rows.scope.namespace_id, terms))
        )
        read = [np.frombuffer(blobs[term] or b"", _WORD_TYPE) for term in terms]
        live = [part[part["live"] != 0] for part in read]
        total, *content_counts = map(_estimate_count, read, live)
        all_words, *postings = live
        passages, words = effective_total(all_words["count"])
        mean = max(words / passages if passages else 0.0, 1.0)
        rarity = [(max(total - count, 0.0) + 0.5) / (count + 0.5) for count in content_counts]
        idfs = np.log1p(np.array(rarity)) * np.array(list(query_words.values()))
        digests = {_digest_bytes(row) for row in all_words[:SAMPLED]}
        if postings:
            all_postings = np.concatenate(postings).astype(_WORD_TYPE)  # back to big-endian digests
            penalties = K1 * (1.0 - B + B * all_postings["length"] / mean)
            scores = (
                np.repeat(idfs, list(map(len, postings))) * all_postings["count"] / (all_postings["count"] + penalties)
            )
            _, first, groups = np.unique(all_postings["digest"], return_index=True, return_inverse=True)
            totals = np.bincount(groups, scores, len(first))
            best = first[np.argsort(-totals, kind="stable")[:LEXICAL]]
            digests |= {_digest_bytes(row) for row in all_postings[best]}
        return WordStatistics(idfs, mean), digests


def _vector_parameter(vector: np.ndarray) -> Vector:
    return Vector(vector.astype("<f4").tobytes())


def _estimate_count(read: np.ndarray, live: np.ndarray) -> float:
    """Return the estimated number of postings of live contents, from the first ones `read`."""
    if len(read) < _MAX_POSTINGS:
        return len(live)
    return len(live) / ((float(read["digest"][-1]) + 1) / 2.0**64)


def _digest_bytes(row: Any) -> bytes:
    return row.tobytes()[:16]
