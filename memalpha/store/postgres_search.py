"""Search in PostgreSQL: the server reads and compares, the scores are made here, of the same parts as everywhere.

For a query the server gives every entry that passes with the inner product of its vector, its length and where it
stands, and where the query's words are among these. All else, from word statistics to priors, is `ranking`: so a
filtered search is the search of a memory that holds only what passes, one of the past too, and what other namespaces
hold leaves no trace. Nothing is kept here between searches: what another process has written is seen by the next one.

Above `SIZE` entries a search of the whole memory looks at candidates alone: the `NEAR` whose vectors the HNSW index
finds nearest, the `WORDED` best by their words, and as many at random, for what is usual. How many contents hold a word
is then known to about 2 % (see `_Words`). Filtered searches, past states, the route "hard", and "soft" where there are
raw spans, look at every entry in question at any size, and so does a search for which the index does not find enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from memalpha.errors import DamagedStore
from memalpha.store.columns import number_of
from memalpha.store.fields import ENTRY, entry_of
from memalpha.store.filters import Filter
from memalpha.store.index import directions, inner_products
from memalpha.store.lexical import K1, B, Found, words
from memalpha.store.postgres import Vector
from memalpha.store.postgres_filters import narrowed
from memalpha.store.postgres_rows import PostgresRows
from memalpha.store.postgres_words import ALL, term_of
from memalpha.store.ranking import Route, Selection, check, score
from memalpha.store.recorded import RecordedEmbedder, StoredEmbedder
from memalpha.store.retrieval import Boost, Scored
from memalpha.store.scores import top

SIZE = 10_000  # entries: up to here a search looks at every one
MOST = 100  # results; for more, every entry is looked at
NEAR = WORDED = USUAL = 300
_POSTINGS = 2000  # of one word that are read to find candidates
_SCANNED = 40_000  # vectors that the index may go through

_SETTINGS = ", ".join(
    f"set_config('hnsw.{name}', '{value}', true)"
    for name, value in {
        "iterative_scan": "strict_order", "ef_search": NEAR, "max_scan_tuples": _SCANNED, "scan_mem_multiplier": 4
    }.items()
)  # fmt: skip

# Without statistics of its tables, as after many inserts, PostgreSQL takes a namespace for a row or two, and loops over
# all of it for each of its entries. Joins by hashing are linear whatever it takes it for.
JOINED = "SELECT set_config('enable_nestloop', 'off', true)"

_DOCUMENT = np.dtype(
    [("created", ">i8"), ("order", ">i8"), ("length", ">i4"), ("dense", ">f8"), ("source", ">i8"), ("chunk", ">i8")]
)
_POSTING = np.dtype([("created", ">i8"), ("count", ">i4")])
_WORD = np.dtype([("digest", ">u8"), ("rest", ">u8"), ("count", ">i4"), ("length", ">i4")])

_LIVE = "v.ns = ? AND v.valid_to IS NULL"
_WAS_LIVE = "v.ns = ? AND v.valid_from <= ? AND (v.valid_to IS NULL OR v.valid_to > ?)"


class Over(NamedTuple):
    """The entries that a search is over: a condition on `versions v`, and its parameters."""

    sql: str
    values: tuple[Any, ...]

    def only(self, condition: str, value: Any) -> Over:
        """Those of them that fulfil another condition."""
        return Over(f"{self.sql} AND {condition}", (*self.values, value))


class PostgresIndex:
    """Searches of one namespace; holds nothing. `search` belongs inside a transaction. See `live.LiveIndex`."""

    def __init__(self, rows: PostgresRows, embedder: RecordedEmbedder) -> None:
        self._rows, self._embedder = rows, embedder

    def search(
        self,
        end: int,
        position: int | None,
        queries: Sequence[str],
        k: int,
        *,
        route: Route = "soft",
        where: Filter | None = None,
        boost: Boost | None = None,
        exact: bool = False,
        vectors: np.ndarray | None = None,
    ) -> list[list[Scored]]:
        """The k best entries for each query among those that pass, now (the log's end is at `end`) or, with a
        `position`, as of then."""
        check(route, k)
        if not queries or not k:
            return [[] for _ in queries]
        encoder = StoredEmbedder(self._rows, self._embedder.load())
        if route == "bm25":
            vectors = None
        elif vectors is None:
            vectors = encoder.encode(queries)
        with self._rows.transaction(write=False) as connection:
            connection.execute(JOINED)
            server = _Server(connection, self._rows, encoder, position)
            over = server.over(where)
            every = exact or position is not None or where is not None or route in ("hard", "bm25") or k > MOST
            large = not every and end > SIZE and server.is_large(over, route)
            found = []
            for number, query in enumerate(queries):
                asked = Counter(words(query))
                vector = None if vectors is None else vectors[number : number + 1]
                selection = None
                if large and vector is not None:
                    selection = server.candidates(over, asked, vector, route, boost)
                if selection is None:
                    selection = server.selection(over, asked, vector, route, boost)
                found.append([] if selection is None else _ranked(selection, words(query), vector, k, route, boost))
            return found

    def build(self, end: int) -> None:
        """Nothing is to be made ready: the server keeps its indexes."""

    def save(self) -> None:
        """Nothing is to be saved."""

    def close(self) -> None:
        """Nothing is held."""


def _ranked(
    selection: Fetched, query: list[str], vector: np.ndarray | None, k: int, route: Route, boost: Boost | None
) -> list[Scored]:
    kept, parts, terms, _ = score(selection, query, vector, route, boost, selection.fields.__getitem__)
    total = sum(terms[1:], terms[0])
    places = np.arange(len(selection.ids))[kept]
    best = top(total, selection.orders[kept], k)
    return [
        Scored(selection.ids[place], value, {name: float(values[at]) for name, values in parts.items()})
        for at, place, value in zip(best.tolist(), places[best].tolist(), total[best].tolist(), strict=True)
    ]


class Fetched(Selection):
    """Entries that the server gave for one query.

    `ids`, `orders`, `lengths`, `products` and `places` (source, chunk, step) are by entry; `sums` `(groups, dim)`: of
    the vectors of each group; `fields`: what a boost needs.
    """

    def __init__(
        self,
        ids: list[str],
        groups: np.ndarray,
        documents: np.ndarray,
        sums: np.ndarray,
        fields: dict[str, np.ndarray],
    ) -> None:
        super().__init__(groups, len(sums))
        self.ids, self.fields = ids, fields
        self.created, self.orders = (documents[name].astype(np.int64) for name in ("created", "order"))
        self.products = np.round(documents["dense"].astype(np.float64), 5)
        self._lengths = documents["length"].astype(np.int64)
        sources = documents["source"]
        numbers = np.where(sources == 0, 0, 1 + np.unique(sources, return_inverse=True)[1])
        self._spans = np.stack([numbers, documents["chunk"].astype(np.int64), self.created], axis=1)
        self._sums = sums
        self.found: Found | None = None

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def find(self, query: Sequence[str]) -> Found | None:
        return self.found

    def spans(self) -> np.ndarray | None:
        return self._spans

    def dense(self, vector: np.ndarray) -> np.ndarray:
        return self.products

    def near(self, vector: np.ndarray) -> np.ndarray:
        return inner_products(vector, directions(self._sums))[0]


class _Words(NamedTuple):
    """What is known of the words of a large memory without reading all postings.

    Digests are spread evenly, so where the first `_POSTINGS` of a word's end tells how many there are in all (the
    estimate of Bar-Yossef et al., "Counting distinct elements in a data stream", 2002; its error is 2.2 % here).
    `idfs`: of each word of the query, by its place there; `mean`: words of a content.
    """

    idfs: np.ndarray
    mean: float


class Likely(Fetched):
    """The candidates of a large memory, with the word statistics of all of it."""

    words: _Words

    def bm25(self, query: Sequence[str]) -> np.ndarray:
        if self.found is None:
            return np.zeros(len(self.ids))
        _, terms, places, counts = self.found
        penalties = K1 * (1.0 - B + B * self.lengths[places] / self.words.mean)
        return np.bincount(places, self.words.idfs[terms] * counts / (counts + penalties), len(self.ids))


class _Server:
    """What is asked of the server for one search. `position`: as of which it is (None: now)."""

    def __init__(self, connection: Any, rows: PostgresRows, encoder: StoredEmbedder, position: int | None) -> None:
        self._connection, self._rows, self._encoder, self._position = connection, rows, encoder, position

    def over(self, where: Filter | None) -> Over:
        """The entries that pass."""
        over = Over(_LIVE, (self._rows.ns,))
        if self._position is not None:
            over = Over(_WAS_LIVE, (self._rows.ns, self._position, self._position))
        if where is None:
            return over
        condition = narrowed(where)
        passing = Over(f"{over.sql} AND {condition.sql}", (*over.values, *condition.values))
        if condition.exact:
            return passing
        query = f"SELECT created, {ENTRY}, version, valid_from, valid_to FROM versions v WHERE {passing.sql}"
        rows = self._connection.execute(query, passing.values)
        return over.only("v.created = ANY(?::bigint[])", [row[0] for row in rows if where.matches(entry_of(row[1:]))])

    def is_large(self, over: Over, route: Route) -> bool:
        """Whether a search is of so many entries that it looks at candidates alone."""
        if route == "soft":
            spans = f"SELECT 1 FROM versions v WHERE {over.sql} AND v.turn IS NOT NULL AND v.source IS NOT NULL LIMIT 1"
            if self._connection.execute(spans, over.values).fetchone() is not None:
                return False
        query = f"SELECT count(*) FROM (SELECT 1 FROM versions v WHERE {over.sql} LIMIT {SIZE + 1}) AS few"
        return self._connection.execute(query, over.values).fetchone()[0] > SIZE

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
        dense, place, more, values = "0::float8", "0::bigint", "", ()
        if vector is not None:
            dense, values = "coalesce(-(x.vector <#> ?), 'NaN'::float8)", (_bound(vector),)
            more = ", sum(x.vector)"
        if route == "soft":  # the number of a source: its hash, which is not 0
            place = "CASE WHEN v.turn IS NULL THEN 0 ELSE coalesce(v.source_key | 1, 0) END"
        fields = [] if boost is None else ["importance", "timestamp"]
        more += "".join(f", array_agg(v.{field})" for field in fields)
        query = (
            "SELECT v.category, array_agg(v.id), string_agg(int8send(v.created) || int8send(v.valid_from) || "
            f"int4send(coalesce(l.count, -1)) || float8send({dense}) || int8send({place}) || "
            f"int8send(coalesce(v.chunk, -1)), ''){more} FROM versions v "
            f"LEFT JOIN postings l ON l.ns = v.ns AND l.term = {ALL} AND l.digest = v.digest "
            + ("" if vector is None else "LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest ")
            + f"WHERE {over.sql} GROUP BY v.category ORDER BY v.category"
        )
        rows = self._connection.execute(query, (*values, *over.values)).fetchall()
        if not rows:
            return None
        documents = np.frombuffer(b"".join(row[2] for row in rows), _DOCUMENT).copy()
        if (documents["length"] < 0).any():
            raise DamagedStore(
                f"{self._rows.database.path} lacks the words of some contents: run `memalpha doctor --repair`"
            )
        ids = [id for row in rows for id in row[1]]
        groups = np.repeat(np.arange(len(rows)), [len(row[1]) for row in rows])
        sums = np.zeros((len(rows), self._encoder.dim))
        if vector is not None:
            for number, row in enumerate(rows):
                if row[3] is not None:
                    sums[number] = np.frombuffer(row[3], "<f4")
            self._embed(ids, groups, documents, sums, vector)
        at = len(rows[0]) - len(fields)
        numbers = {
            field: np.array([number_of(value) for row in rows for value in row[at + place]])
            for place, field in enumerate(fields)
        }
        selection = kind(ids, groups, documents, sums, numbers)
        if route != "dense":
            selection.found = self._found(over, asked, selection.created)
        return selection

    def _embed(
        self, ids: list[str], groups: np.ndarray, documents: np.ndarray, sums: np.ndarray, vector: np.ndarray
    ) -> None:
        """Embed what the store has no vector of."""
        missing = np.flatnonzero(np.isnan(documents["dense"]))
        if len(missing):
            entries = self._rows.many([ids[place] for place in missing], self._position)
            vectors = self._encoder.encode([entries[ids[place]].content for place in missing])
            documents["dense"][missing] = inner_products(vector, vectors)[0]
            np.add.at(sums, groups[missing], vectors)

    def _found(self, over: Over, asked: Counter[str], created: np.ndarray) -> Found | None:
        """Where a query's words are among entries, by the positions that made their ids."""
        query = (
            "SELECT p.term, string_agg(int8send(v.created) || int4send(p.count), '') FROM versions v "
            f"JOIN postings p ON p.ns = v.ns AND p.digest = v.digest WHERE {over.sql} AND p.term = ANY(?::bigint[]) "
            "GROUP BY p.term"
        )
        rows = self._connection.execute(query, (*over.values, list(map(term_of, asked)))) if asked else ()
        blobs = dict(rows)
        postings = [np.frombuffer(blobs.get(term_of(word), b""), _POSTING) for word in asked]
        if not blobs:
            return None
        together = np.concatenate(postings)
        order = np.argsort(created)
        places = order[np.searchsorted(created[order], together["created"].astype(np.int64))]
        numbers = np.repeat(np.arange(len(postings)), list(map(len, postings)))
        return Found(np.array(list(asked.values())), numbers, places, together["count"].astype(np.int64))

    def candidates(
        self, over: Over, asked: Counter[str], vector: np.ndarray, route: Route, boost: Boost | None
    ) -> Fetched | None:
        """The entries of a large memory that may be among the best; None where the index did not find enough."""
        self._connection.execute(f"SELECT {_SETTINGS}")
        rows = self._connection.execute(
            f"SELECT digest FROM vectors WHERE ns = ? ORDER BY vector <#> ? LIMIT {2 * NEAR}",
            (self._rows.ns, _bound(vector)),
        )
        found = [digest for (digest,) in rows]
        living = self._living(over, found)
        near = [digest for digest in found if digest in living][:NEAR]
        if len(near) < NEAR:
            return None
        known, worded = self._words(over, asked)
        digests = list({*near, *worded})
        some = over.only("v.digest = ANY(?::bytea[])", digests)
        selection = self.selection(some, asked, vector, route, boost, Likely)
        if isinstance(selection, Likely):
            selection.words = known
        return selection

    def _living(self, over: Over, digests: Iterable[bytes]) -> set[bytes]:
        """Those contents that entries hold."""
        query = f"SELECT v.digest FROM versions v WHERE {over.sql} AND v.digest = ANY(?::bytea[])"
        return {digest for (digest,) in self._connection.execute(query, (*over.values, list(digests)))}

    def _words(self, over: Over, asked: Counter[str]) -> tuple[_Words, set[bytes]]:
        """The statistics of a query's words, and the digests of the contents best by these, and of some others."""
        query = (
            "SELECT t.term, (SELECT string_agg(p.digest || int4send(p.count) || int4send(p.length), '') FROM "
            "(SELECT digest, count, length FROM postings WHERE ns = ? AND term = t.term ORDER BY digest "
            f"LIMIT {_POSTINGS}) p) FROM unnest(?::bigint[]) t(term)"
        )
        terms = [ALL, *map(term_of, asked)]
        blobs = dict(self._connection.execute(query, (self._rows.ns, terms)))
        read = [np.frombuffer(blobs[term] or b"", _WORD) for term in terms]
        living = self._living(over, {_digest(row) for some in read for row in some})
        kept = [some[np.array([_digest(row) in living for row in some], bool)] for some in read]
        number, *holders = map(_estimated, read, kept)
        usual, *postings = kept
        mean = max(float(usual["count"].mean()) if len(usual) else 0.0, 1.0)
        rarity = [(max(number - some, 0.0) + 0.5) / (some + 0.5) for some in holders]
        idfs = np.log1p(np.array(rarity)) * np.array(list(asked.values()))
        found = {_digest(row) for row in usual[:USUAL]}
        if postings:
            together = np.concatenate(postings)
            penalties = K1 * (1.0 - B + B * together["length"] / mean)
            scores = np.repeat(idfs, list(map(len, postings))) * together["count"] / (together["count"] + penalties)
            _, first, which = np.unique(together["digest"], return_index=True, return_inverse=True)
            totals = np.bincount(which, scores, len(first))
            best = first[np.argsort(-totals, kind="stable")[:WORDED]]
            found |= {_digest(row) for row in together[best]}
        return _Words(idfs, mean), found


def _bound(vector: np.ndarray) -> Vector:
    return Vector(vector.astype("<f4").tobytes())


def _estimated(read: np.ndarray, kept: np.ndarray) -> float:
    """How many postings of a word are those of living contents, where the first were `read` and some of these kept."""
    if len(read) < _POSTINGS:
        return len(kept)
    return len(kept) / ((float(read["digest"][-1]) + 1) / 2.0**64)


def _digest(row: Any) -> bytes:
    return row.tobytes()[:16]
