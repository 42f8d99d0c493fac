"""Queries of a PostgreSQL search: entries with their products and words, candidates of a large memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from memalpha.errors import DamagedStore
from memalpha.store.backends.postgres.fetched import Fetched, Likely, Over, WordStatistics
from memalpha.store.backends.postgres.namespace import PostgresRows
from memalpha.store.backends.postgres.terms import ALL, term_of
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import ENTRY, entry_of
from memalpha.store.filters import Filter
from memalpha.store.indexing.stored_embedder import StoredEmbedder
from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.boost import Boost
from memalpha.store.search.filter_columns import to_number
from memalpha.store.search.ranking import Route
from memalpha.store.search.vectors import inner_products
from memalpha.types import MemoryEntry

NEAR = WORDED = USUAL = 300
_POSTINGS = 2000  # of one word that are read to find candidates
_FEW = 1000  # entries that are looked up one by one
_SCANNED = 40_000  # vectors that the index may go through


def _set(**values: object) -> str:
    """The statement that makes settings for the rest of the transaction."""
    each = (f"set_config('{name.replace('__', '.')}', '{value}', true)" for name, value in values.items())
    return f"SELECT {', '.join(each)}"


# To go along the HNSW index, and look for each of its vectors whether anything alive has it; and back again.
_NEAREST = _set(
    hnsw__iterative_scan="strict_order",
    hnsw__ef_search=NEAR,
    hnsw__max_scan_tuples=_SCANNED,
    hnsw__scan_mem_multiplier=4,
    **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_sort"), "off"),
    enable_nestloop="on",
)
_AGAIN = _set(enable_nestloop="off", **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_sort"), "on"))
# Without statistics of its tables, as after many inserts, PostgreSQL takes a namespace for a row or two, and loops over
# all of it for each of its entries. Joins by hashing are linear whatever it takes it for.
JOINED = _set(enable_nestloop="off")
# What is read of each entry: name, type, and the bytes of its value. `{near}`: its product with the query's vector; a
# source is told by its hash, which is not 0.
_PLAIN = [("created", ">i8", "int8send(v.created)"), ("order", ">i8", "int8send(v.valid_from)")]
_DENSE = [("dense", ">f8", "float8send(coalesce(-(x.vector <#> ?), 'NaN'::float8))")]
_SPAN = [
    ("source", ">i8", "int8send(CASE WHEN v.turn IS NULL THEN 0 ELSE coalesce(v.source_key | 1, 0) END)"),
    ("chunk", ">i8", "int8send(coalesce(v.chunk, -1))"),
]
_DIGEST = [("digest", "V16", "v.digest")]
_UNSURE = [("unsure", ">i4", "int4send(CASE WHEN v.passes THEN 0 ELSE 1 END)")]
_POSTING = np.dtype([("created", ">i8"), ("count", ">i4")])
_WORD = np.dtype([("digest", ">u8"), ("rest", ">u8"), ("count", ">i4"), ("length", ">i4"), ("live", ">i4")])
_LIVE = "v.ns = ? AND v.valid_to IS NULL"
_WAS_LIVE = "v.ns = ? AND v.valid_from <= ? AND (v.valid_to IS NULL OR v.valid_to > ?)"


class SearchQueries:
    """What is asked of the server for one search. `position`: as of which it is (None: now)."""

    def __init__(self, connection: Any, rows: PostgresRows, encoder: StoredEmbedder, position: int | None) -> None:
        self._connection, self._rows, self._encoder, self._position = connection, rows, encoder, position

    @cached_property
    def all(self) -> Over:
        """All entries there are."""
        if self._position is None:
            return Over(_LIVE, (self._rows.ns,))
        return Over(_WAS_LIVE, (self._rows.ns, self._position, self._position))

    def is_large(self, route: Route, size: int) -> bool:
        """Whether a search is of so many entries that it looks at candidates alone."""
        over = self.all
        if route == "soft":
            spans = f"SELECT 1 FROM versions v WHERE {over.sql} AND v.turn IS NOT NULL AND v.source IS NOT NULL LIMIT 1"
            if self._connection.execute(spans, over.values).fetchone() is not None:
                return False
        query = f"SELECT count(*) FROM (SELECT 1 FROM versions v WHERE {over.sql} LIMIT {size + 1}) AS few"
        return self._connection.execute(query, over.values).fetchone()[0] > size

    def entries(self, created: Sequence[int]) -> dict[int, MemoryEntry]:
        """Entries by the positions that made their ids, as they are, or were."""
        if not created:
            return {}
        over = self.all.only("v.created = ANY(?::bigint[])", created)
        query = f"SELECT created, {ENTRY}, version, valid_from, valid_to FROM versions v WHERE {over.sql}"
        found = {made: entry_of(tuple(row)) for made, *row in self._connection.execute(query, over.values)}
        return {
            made: entry if entry.valid_to is None else replace(entry, valid_to=None) for made, entry in found.items()
        }

    def selection(
        self,
        over: Over,
        asked: Counter[str],
        vector: np.ndarray | None,
        route: Route,
        boost: Boost | None,
        kind: type[Fetched] = Fetched,
    ) -> Fetched | None:
        """The entries with all that their scores for a query are made of; None where there are none."""
        groups, filtered = route in ("soft", "hard"), over is not self.all
        columns = _PLAIN + (_SPAN if route == "soft" else []) + ([] if over.where is None else _UNSURE)
        columns += ([] if vector is None else _DENSE) + (_DIGEST if filtered else [])
        fields = [] if boost is None else ["importance", "timestamp"]
        sums = vector is not None and groups
        source, given = (over.rows, over.given) if vector is None else over.source(self._rows.ns, "LEFT", "vectors")
        query = (
            f"SELECT string_agg({' || '.join(value for _, _, value in columns)}, '')"
            + (", sum(x.vector)" if sums else "")
            + "".join(f", array_agg(v.{field})" for field in fields)
            + f" FROM {source} WHERE {over.sql}"
            + (" GROUP BY v.category ORDER BY v.category" if groups else " HAVING count(*) > 0")
        )
        near = () if vector is None else (_bound(vector),)
        rows = self._connection.execute(query, (*near, *given, *over.values)).fetchall()
        if not rows:
            return None
        dtype = np.dtype([(name, kind) for name, kind, _ in columns])
        blocks = [np.frombuffer(row[0], dtype) for row in rows]
        documents = np.concatenate(blocks)
        if over.where is not None and documents["unsure"].any():
            return self.selection(self._sure(documents, over.where), asked, vector, route, boost, kind)
        prototypes = np.zeros((len(rows), self._encoder.dim))
        if sums:
            for number, row in enumerate(rows):
                if row[1] is not None:
                    prototypes[number] = np.frombuffer(row[1], "<f4")
        numbers = np.repeat(np.arange(len(rows)), list(map(len, blocks)))
        if vector is not None:
            self._embed(numbers, documents, prototypes, vector)
        at = len(rows[0]) - len(fields)
        given = {
            field: np.array([to_number(value) for row in rows for value in row[at + place]])
            for place, field in enumerate(fields)
        }
        selection = kind(numbers, documents, prototypes, given)
        if route != "dense":
            self._hold(self._these(selection.created, documents["digest"]) if filtered else over, asked, selection)
        return selection

    def _these(self, created: np.ndarray, digests: np.ndarray) -> Over:
        """Entries by the positions that made their ids, and their contents."""
        if len(created) > _FEW:  # so many are not looked up one by one
            return self.all.only("v.created IN (SELECT unnest(?::bigint[]))", created.tolist())
        over = self.all.only("v.created = ANY(?::bigint[])", created.tolist())
        return over._replace(digests=[digest.tobytes() for digest in digests])

    def _sure(self, documents: np.ndarray, where: Filter) -> Over:
        """What passes, of entries of which the server was sure or was not."""
        entries = self.entries(documents["created"][documents["unsure"] != 0].tolist())
        passes = [not row["unsure"] or where.matches(entries[int(row["created"])]) for row in documents]
        kept = documents[np.array(passes, bool)]
        return self._these(kept["created"], kept["digest"])

    def _embed(self, groups: np.ndarray, documents: np.ndarray, sums: np.ndarray, vector: np.ndarray) -> None:
        """Embed what the store has no vector of."""
        missing = np.flatnonzero(np.isnan(documents["dense"]))
        if len(missing):
            made = documents["created"][missing].tolist()
            entries = self.entries(made)
            vectors = self._encoder.encode([entries[created].content for created in made])
            documents["dense"][missing] = inner_products(vector, vectors)[0]
            np.add.at(sums, groups[missing], vectors)

    def _hold(self, over: Over, asked: Counter[str], selection: Fetched) -> None:
        """Give entries the numbers of their words, and where a query's words are among them."""
        source, given = over.source(self._rows.ns, "INNER", "postings")
        query = (
            f"SELECT x.term, string_agg(int8send(v.created) || int4send(x.count), '') FROM {source} "
            f"WHERE {over.sql} AND x.term = ANY(?::bigint[]) GROUP BY x.term"
        )
        rows = self._connection.execute(query, (*given, *over.values, [ALL, *map(term_of, asked)]))
        blobs = {term: np.frombuffer(blob, _POSTING) for term, blob in rows}
        empty = np.zeros(0, _POSTING)
        order = np.argsort(selection.created)
        created = selection.created[order]

        def places(postings: np.ndarray) -> np.ndarray:
            return order[np.searchsorted(created, postings["created"].astype(np.int64))]

        lengths = np.full(len(created), -1)
        usual = blobs.get(ALL, empty)
        lengths[places(usual)] = usual["count"]
        if (lengths < 0).any():
            raise DamagedStore(
                f"{self._rows.database.path} lacks the words of some contents: run `memalpha doctor --repair`"
            )
        postings = [blobs.get(term_of(word), empty) for word in asked]
        together = np.concatenate([empty, *postings])
        found = None
        if len(together):
            numbers = np.repeat(np.arange(len(postings)), list(map(len, postings)))
            counts = together["count"].astype(np.int64)
            found = TermMatches(np.array(list(asked.values())), numbers, places(together), counts)
        selection.hold(lengths, found)

    def candidates(self, asked: Counter[str], vector: np.ndarray, route: Route, boost: Boost | None) -> Fetched | None:
        """The entries of a large memory that may be among the best; None where the index did not find enough."""
        ns, live = self._rows.ns, "v.ns = ? AND v.digest = x.digest AND v.valid_to IS NULL"
        self._connection.execute(_NEAREST)
        rows = self._connection.execute(
            f"SELECT x.digest FROM vectors x WHERE x.ns = ? AND EXISTS (SELECT 1 FROM versions v WHERE {live}) "
            f"ORDER BY x.vector <#> ? LIMIT {NEAR}",
            (ns, ns, _bound(vector)),
        )
        near = [digest for (digest,) in rows]
        self._connection.execute(_AGAIN)
        if len(near) < NEAR:
            return None
        if route == "dense":
            known, digests = None, near
        else:
            known, worded = self._words(asked)
            digests = list({*near, *worded})
        some = self.all.only("v.digest = ANY(?::bytea[])", digests)._replace(digests=digests)
        selection = self.selection(some, asked, vector, route, boost, Likely)
        if isinstance(selection, Likely) and known is not None:
            selection.words = known
        return selection

    def _words(self, asked: Counter[str]) -> tuple[WordStatistics, set[bytes]]:
        """The statistics of a query's words, and the digests of the contents best by these, and of some others."""
        query = (
            "SELECT t.term, (SELECT string_agg(p.digest || int4send(p.count) || int4send(p.length) || int4send(p.live)"
            ", '') FROM (SELECT digest, count, length, CASE WHEN EXISTS (SELECT 1 FROM versions v WHERE v.ns = ? AND "
            "v.digest = x.digest AND v.valid_to IS NULL) THEN 1 ELSE 0 END AS live FROM postings x "
            f"WHERE ns = ? AND term = t.term ORDER BY digest LIMIT {_POSTINGS}) p) FROM unnest(?::bigint[]) t(term)"
        )
        terms = [ALL, *map(term_of, asked)]
        blobs = dict(self._connection.execute(query, (self._rows.ns, self._rows.ns, terms)))
        read = [np.frombuffer(blobs[term] or b"", _WORD) for term in terms]
        kept = [some[some["live"] != 0] for some in read]
        number, *holders = map(_estimated, read, kept)
        usual, *postings = kept
        mean = max(float(usual["count"].mean()) if len(usual) else 0.0, 1.0)
        rarity = [(max(number - some, 0.0) + 0.5) / (some + 0.5) for some in holders]
        idfs = np.log1p(np.array(rarity)) * np.array(list(asked.values()))
        found = {_digest(row) for row in usual[:USUAL]}
        if postings:
            together = np.concatenate(postings).astype(_WORD)  # which has made them little-endian
            penalties = K1 * (1.0 - B + B * together["length"] / mean)
            scores = np.repeat(idfs, list(map(len, postings))) * together["count"] / (together["count"] + penalties)
            _, first, which = np.unique(together["digest"], return_index=True, return_inverse=True)
            totals = np.bincount(which, scores, len(first))
            best = first[np.argsort(-totals, kind="stable")[:WORDED]]
            found |= {_digest(row) for row in together[best]}
        return WordStatistics(idfs, mean), found


def _bound(vector: np.ndarray) -> Vector:
    return Vector(vector.astype("<f4").tobytes())


def _estimated(read: np.ndarray, kept: np.ndarray) -> float:
    """How many postings of a word are those of living contents, where the first were `read` and some of these kept."""
    if len(read) < _POSTINGS:
        return len(kept)
    return len(kept) / ((float(read["digest"][-1]) + 1) / 2.0**64)


def _digest(row: Any) -> bytes:
    return row.tobytes()[:16]
