"""The words of contents as PostgreSQL keeps them: split and stemmed here, so that both back ends find the same.

`postings` has a row for every distinct word of a content: the word's term, how often it is there, and how many words
the content has. A term is the 64-bit hash of a word, so that a word may be as long as it likes. The term 0 stands for
all words: every content has such a row, whose count is the number of its words.

These rows are found by a B-tree, not by a GIN index over arrays or a `tsvector`: under row-level security PostgreSQL
uses an index only for operators that cannot leak, and those of arrays and full text are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from memalpha.store.backends.row_codec import content_digest
from memalpha.store.search.bm25 import term_counts

if TYPE_CHECKING:
    from memalpha.store.backends.namespace import Namespace

ALL_WORDS = 0  # the term that every content has, once for each of its words
_BATCH = 2000  # contents whose rows one statement puts in
_SET_NESTED_LOOPS = "SELECT set_config('enable_nestloop', ?, true)"
_INSERT_POSTINGS = (
    "INSERT INTO postings (ns, term, digest, count, length) "
    "SELECT ?1, * FROM unnest(?2::bigint[], ?3::bytea[], ?4::integer[], ?5::integer[]) ON CONFLICT DO NOTHING"
)


@lru_cache(maxsize=65536)
def word_term(word: str) -> int:
    """The term that stands for a word."""
    hashed = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed, "big", signed=True) or 1


def content_postings(content: str) -> tuple[list[int], list[int], int]:
    """The terms of a content, `ALL` first, how often each is there, and how many words the content has."""
    counts = term_counts(content)
    length = sum(counts.values())
    return [ALL_WORDS, *map(word_term, counts)], [length, *counts.values()], length


def index_contents(connection: Any, ns: int, contents: Iterable[str]) -> None:
    """Give contents of a namespace their postings, where they have none. Inside a transaction that writes."""
    distinct = list(dict.fromkeys(contents))
    for start in range(0, len(distinct), _BATCH):
        terms: list[int] = []
        digests: list[bytes] = []
        counts: list[int] = []
        lengths: list[int] = []
        for content in distinct[start : start + _BATCH]:
            content_terms, content_counts, length = content_postings(content)
            terms += content_terms
            counts += content_counts
            digests += [content_digest(content)] * len(content_terms)
            lengths += [length] * len(content_terms)
        connection.execute(_INSERT_POSTINGS, (ns, terms, digests, counts, lengths))


@contextmanager
def hash_joins_only(connection: Any) -> Iterator[None]:
    """Inside, joins are by hashing, which is linear whatever PostgreSQL takes a namespace's size for."""
    (previous,) = connection.execute("SELECT current_setting('enable_nestloop')").fetchone()
    connection.execute(_SET_NESTED_LOOPS, ("off",))
    yield
    connection.execute(_SET_NESTED_LOOPS, (previous,))  # not after an error: that has ended what can be said


def fill_missing_postings(connection: Any, namespace: Namespace) -> None:
    """Give every content that has none its postings, after versions were copied or mended."""
    with hash_joins_only(connection):
        missing = connection.execute(
            "SELECT DISTINCT content FROM versions v WHERE ns = ? AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = ? AND p.term = {ALL_WORDS} AND p.digest = v.digest)",
            (namespace.namespace_id, namespace.namespace_id),
        ).fetchall()
    index_contents(connection, namespace.namespace_id, [content for (content,) in missing])
