"""The words of contents as PostgreSQL keeps them: split and stemmed here, so that both back ends find the same.

A row of `words` stands for one content of a namespace: its distinct terms, each the 64-bit hash of a word, so that a
word may be as long as it likes; how often each is there; and how many words there are in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from memalpha.store.fields import digest
from memalpha.store.lexical import term_counts

if TYPE_CHECKING:
    from memalpha.store.rows import Namespace

NEW_WORDS = "INSERT INTO words (ns, digest, terms, counts, length) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_MOST = 32767  # times that one word is counted in a content: what the column holds

WordRow = tuple[bytes, list[int], list[int], int]


@lru_cache(maxsize=65536)
def term_of(word: str) -> int:
    """The term that stands for a word."""
    hashed = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed, "big", signed=True)


def word_row(content: str) -> WordRow:
    """What `words` holds of a content: digest, terms, counts, length."""
    counts = term_counts(content)
    return digest(content), list(map(term_of, counts)), [min(n, _MOST) for n in counts.values()], sum(counts.values())


def word_rows(ns: int, contents: Iterable[str]) -> list[tuple[int, bytes, list[int], list[int], int]]:
    """The parameters of `NEW_WORDS` for contents."""
    return [(ns, *word_row(content)) for content in contents]


def fill_words(rows: Namespace) -> int:
    """Give every content that has none its row, after versions were copied or mended; the number of new rows."""
    with rows.database.transaction() as connection:
        missing = connection.execute(
            "SELECT DISTINCT content FROM versions v WHERE ns = ? AND NOT EXISTS "
            "(SELECT 1 FROM words w WHERE w.ns = v.ns AND w.digest = v.digest)",
            (rows.ns,),
        )
        new = word_rows(rows.ns, [content for (content,) in missing.fetchall()])
        connection.executemany(NEW_WORDS, new)
    return len(new)
