"""`StoreReader`: what a durable store answers: entries, searches, history, log and past states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store import history as timeline
from memalpha.store.backends.base import Backend
from memalpha.store.backends.namespace_reads import Tip
from memalpha.store.embedding import Embedder
from memalpha.store.filters import Where
from memalpha.store.history import Diff
from memalpha.store.indexing.context import surrounding_spans
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.memory import Memory
from memalpha.store.open import index_of, rows_of
from memalpha.store.schema import MemorySchema
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import Route
from memalpha.store.search.vectors import Precision
from memalpha.store.state import MemoryState
from memalpha.types import Hit, MemoryEntry, Operation

_PAGE = 1000


class StoreReader(Memory):
    """Reads of one namespace of a durable store. `MemoryStore` adds opening, writing and erasing.

    `as_of` in `get`, `list`, `search` and `core_at` is a log position (`snapshot`) or an ISO time (UTC unless it says
    otherwise) and means the memory after the operations up to and including it.
    """

    def __init__(
        self, database: Backend, schema: MemorySchema, embedder: RecordedEmbedder, namespace: str, vectors: Precision
    ) -> None:
        if not isinstance(namespace, str) or not namespace:
            raise StoreError(f"namespace {namespace!r}: a non-empty text is needed")
        self._database = database
        self._embedder = embedder
        self._rows = rows_of(database, namespace, schema)
        self._precision: Precision = vectors
        self._index = index_of(self._rows, embedder, vectors)

    @property
    def path(self) -> str:
        """Where it lies: the file's path, ":memory:", or the URL without its password."""
        return self._database.path

    @property
    def schema(self) -> MemorySchema:
        """The schema recorded in the file."""
        return self._rows.schema

    @property
    def embedder(self) -> str:
        """The name of the embedder recorded in the file."""
        return self._embedder.name

    def load_embedder(self) -> Embedder:
        """Return the embedder that searches use.

        Raises:
            StoreError: The recorded name is not a shipped one, and `open` was given no embedder.
            EmbedderError: The embedder cannot be loaded.
        """
        return self._embedder.load()

    @property
    def core(self) -> str:
        """The core memory text; "" where there is none."""
        return self.core_at(None)

    @property
    def state(self) -> MemoryState:
        """The memory as it is now, as a value: the state that replaying the log gives."""
        with self._now():
            position = self._rows.position
            return MemoryState.of(self.schema, self._rows.core(position), position, self._rows.newest())

    def get(self, id: str, *, as_of: int | str | None = None) -> MemoryEntry:
        """A live entry, or as it was at `as_of`; raises `UnknownEntry`."""
        with self._now():
            entry = self._rows.at(id, self._rows.position_of(as_of))
        if entry is None:
            raise UnknownEntry(f"no live entry has the id {id!r}" + ("" if as_of is None else f" as of {as_of!r}"))
        return entry

    def core_at(self, as_of: int | str | None) -> str:
        """The core memory text as it was at `as_of` (None: now); "" where there was none."""
        with self._now():
            return self._rows.core(self._rows.place_of(as_of))

    def list(
        self,
        category: str | None = None,
        *,
        where: Where = None,
        limit: int | None = None,
        after: str | None = None,
        as_of: int | str | None = None,
    ) -> list[MemoryEntry]:
        """The live entries, oldest id first; of one `category`, or those that pass `where` (see `filters`). `limit`
        and `after` (the id that ended the last page) give pages.

        Raises `UnknownCategory`, `UnknownEntry` for an `after` that was never an id, or `StoreError`.
        """
        chosen = self._filter(category, where)
        if limit is not None and limit < 0:
            raise StoreError(f"limit {limit}: 0 or more is needed")
        with self._now():
            if after is not None and self._rows.last(after) is None:
                raise UnknownEntry(f"after: no entry ever had the id {after!r}")
            position, found = self._rows.position_of(as_of), []
            if where is None:
                return self._rows.live(category, after=after, limit=limit, position=position)
            while limit is None or len(found) < limit:
                page = self._rows.live(category, after=after, limit=_PAGE, position=position)
                found += [entry for entry in page if chosen is None or chosen.matches(entry)]
                if len(page) < _PAGE:
                    break
                after = page[-1].id
            return found[:limit]

    def recent(self, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last (inserted or updated), newest first."""
        with self._now() as tip:
            return self._rows.recent(tip.seq, n)

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the log position that created each id; `list` is in this order."""
        with self._now():
            return self._rows.created(ids)

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content (outer whitespace aside), or None."""
        with self._now():
            return self._rows.find(category, content.strip())

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
        as_of: int | str | None = None,
        around: int = 0,
        exact: bool = False,
    ) -> list[Hit]:
        """The k best live entries, best first; see `retrieval` for the routes. With `category` and `where` (see
        `filters`): exactly what a memory of only the entries that pass would give. `boost` adds importance and recency.
        `as_of`: over the entries of that moment, exactly what searching then would have given. `around`: each hit has
        the raw text around it, as the method gives it for that many tokens. A search of more than 50,000 entries looks
        at likely ones alone (see `approximate`), unless it is `exact`."""
        return self.search_many(
            [query],
            k,
            category=category,
            where=where,
            route=route,
            boost=boost,
            as_of=as_of,
            around=around,
            exact=exact,
        )[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
        as_of: int | str | None = None,
        around: int = 0,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """`search` for several queries, embedded in one batch."""
        chosen, known = self._filter(category, where), None
        if len(queries) == 1 and route != "bm25":  # one question is hardly a stored text, whose vector is in the file
            known = self._embedder.load().encode(queries)
        with self._now() as tip:
            position = self._rows.position_of(as_of)
            found = self._index.search(
                tip.seq, position, queries, k, route=route, where=chosen, boost=boost, exact=exact, vectors=known
            )
            entries = {hit.id: hit.entry for hits in found for hit in hits if hit.entry is not None}
            entries |= self._rows.many(list({hit.id for hits in found for hit in hits} - entries.keys()), position)
            near = {id: tuple(surrounding_spans(self._rows, id, around, position)) for id in entries if around}
        return [[Hit(entries[id], score, parts, near.get(id, ())) for id, score, parts, _ in hits] for hits in found]

    def around(self, id: str, tokens: int = 200, *, as_of: int | str | None = None) -> list[MemoryEntry]:
        """The raw text around an entry: spans of its `source` (they have a `turn`), by `chunk` and then as stored, an
        unbroken run of at most `tokens` (characters / 4); see `around.surroundings`. Raises `UnknownEntry`."""
        with self._now():
            return surrounding_spans(self._rows, id, tokens, self._rows.position_of(as_of))

    def build_index(self) -> None:
        """Make ready what searches need, and save it beside the file; after many inserts, so that the next process
        starts at once. Searches do the same by themselves, in the background where it takes long."""
        with self._now() as tip:
            self._index.build(tip.seq)
        self._index.save()

    def history(self, id: str) -> list[MemoryEntry]:
        """All versions of an entry, oldest first, whether it lives or not; raises `UnknownEntry`."""
        with self._now():
            if versions := self._rows.history(id):
                return versions
        raise UnknownEntry(f"no entry ever had the id {id!r}")

    def log(self, after: int = 0) -> Iterator[tuple[int, str, Operation]]:
        """The operations beyond position `after`: position, time (ISO, UTC), operation as applied."""
        return ((seq, time, operation) for seq, time, _, operation in self._log(after))

    def snapshot(self) -> int:
        """The log position, for `restore` and `as_of`. It costs nothing and never expires."""
        with self._now():
            return self._rows.position

    def diff(self, a: int | str, b: int | str | None = None) -> Diff:
        """What changed from the state as of `a` to that as of `b` (now): entries added, changed and removed, core text.

        Positions or times, as in `as_of`; `b` may be the earlier one.
        """
        with self._now():
            return timeline.difference(self._rows, self._rows.place_of(a), self._rows.place_of(b))

    @contextmanager
    def _now(self, *, write: bool = False) -> Iterator[Tip]:
        """A transaction on the memory as it is by the store's clock, and the log's end: what has expired is ended
        first, in the log too, at the time it was to expire."""
        if not write:
            with self._rows.transaction(write=False):
                tip = self._rows.tip()
                if not self._is_due(tip):
                    yield tip
                    return
            with self._rows.transaction():
                self._expire()
        with self._rows.transaction(write=write):
            yield self._expire() if write else self._rows.tip()

    def _is_due(self, tip: Tip) -> bool:
        """Whether something live has expired."""
        return tip.expires is not None and tip.expires <= self._database.now()

    def _expire(self) -> Tip:
        """The log's end, after everything that has expired was ended. Inside a transaction that writes."""
        tip = self._rows.tip()
        if self._is_due(tip):
            timeline.expire(self._rows, self._rows.due(self._database.now()))
            tip = self._rows.tip()
        return tip

    def _log(self, after: int) -> Iterator[tuple[int, str, int, Operation]]:
        """The log in pages, so that a reader who stops half-way holds nothing open."""
        while True:
            with self._now():
                page = self._rows.log(after, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _vectors(self, contents: Sequence[str]) -> dict[str, np.ndarray]:
        """Embeddings by content."""
        vectors = StoredEmbedder(self._rows, self._embedder.load()).encode(contents)
        return dict(zip(contents, vectors, strict=True))
