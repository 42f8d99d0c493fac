"""Words of contents in PostgreSQL, split and stemmed here, so that both databases find the same.

`postings` has a row for every distinct word of a content: its term, its count, and the content's number of words. A
term is the 64-bit hash of a word, so words may have any length. The term 0 stands for all words: every content has
such a row, whose count is its number of words.

A B-tree finds these rows, not a GIN index over arrays or a `tsvector`. Under row-level security PostgreSQL uses an
index only for leakproof operators, and those of arrays and full text are not.
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
    from memalpha.store.backends.scope import NamespaceScope

ALL_WORDS = 0  # the term that every content has; its count is the number of words
_BATCH = 2000  # contents indexed per statement
_SET_NESTED_LOOPS = "SELECT set_config('enable_nestloop', ?, true)"
_INSERT_POSTINGS = (
    "INSERT INTO postings (ns, term, digest, count, length) "
    "SELECT ?1, * FROM unnest(?2::bigint[], ?3::bytea[], ?4::integer[], ?5::integer[]) ON CONFLICT DO NOTHING"
)


@lru_cache(maxsize=65536)
def word_term(word: str) -> int:
    """Return the term of a word."""
    word_hash = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(word_hash, "big", signed=True) or 1


def content_postings(content: str) -> tuple[list[int], list[int], int]:
    """Return the terms of a content (`ALL_WORDS` first), their counts, and the content's number of words."""
    counts = term_counts(content)
    length = sum(counts.values())
    return [ALL_WORDS, *map(word_term, counts)], [length, *counts.values()], length


def index_contents(connection: Any, ns: int, contents: Iterable[str]) -> None:
    """Insert the postings of contents that have none. Call inside a writing transaction.

    Args:
        connection: Executor of statements.
        ns: Id of the namespace.
        contents: Contents to index; duplicates are skipped.
    """
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
    """Disable nested-loop joins inside the block.

    Hash joins take linear time even if PostgreSQL underestimates a namespace.
    """
    (previous,) = connection.execute("SELECT current_setting('enable_nestloop')").fetchone()
    connection.execute(_SET_NESTED_LOOPS, ("off",))
    yield
    connection.execute(_SET_NESTED_LOOPS, (previous,))  # not after an error: the transaction is aborted


def fill_missing_postings(scope: NamespaceScope) -> None:
    """Insert the postings of contents that have none, after versions were copied or repaired."""
    with hash_joins_only(scope.statements):
        missing = scope.select(
            "SELECT DISTINCT content FROM versions v WHERE ns = ?1 AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = ?1 AND p.term = {ALL_WORDS} AND p.digest = v.digest)"
        ).fetchall()
    index_contents(scope.statements, scope.namespace_id, [content for (content,) in missing])
