"""Answers of bounded size: a page ends before it gets too large, and what has no pages is refused."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from memalpha.integrations.server.schemas import EntryPage, ListRequest, LoggedOperation, ServiceError
from memalpha.store.io.jsonl import to_json
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

MAX_ANSWER = 8 << 20
"""Bytes of entries in an answer, about."""
PAGE_STEP = 128
"""Entries that a page reads at once, so that large ones do not fill the memory."""


def read_page(store: MemoryStore, request: ListRequest, as_of: int | str | None) -> EntryPage:
    """Return a page of entries, and the core memory. It has at least one entry, if there are any.

    Args:
        store: Store of the namespace.
        request: Category, limit and the id after which the page begins.
        as_of: A past state; None is the current one.

    Raises:
        StoreError: No entry ever had the id, or the state does not exist.
    """
    entries: list[MemoryEntry] = []
    size, after, is_last = 0, request.after, False
    with store.read_transaction():  # core and entries of one moment
        core = store.core_at(as_of)
        while not is_last and len(entries) <= request.limit and size <= MAX_ANSWER:
            step = min(PAGE_STEP, request.limit + 1 - len(entries))
            rows = store.list(request.category, limit=step, after=after, as_of=as_of)
            is_last = len(rows) < step
            entries += rows
            size += sum(map(_count_bytes, rows))
            after = entries[-1].id if entries else None
    while len(entries) > 1 and (size > MAX_ANSWER or len(entries) > request.limit):
        size -= _count_bytes(entries.pop())
        is_last = False
    return EntryPage(core, tuple(entries), None if is_last else entries[-1].id)


def read_log(store: MemoryStore, after: int, limit: int) -> list[LoggedOperation]:
    """Return operations of the log, fewer if they are large, and at least one if there is one.

    Args:
        store: Store to read.
        after: Position before the first.
        limit: Most operations.
    """
    lines, size = [], 0
    for line in islice(store.log(after), limit):
        size += _count_bytes(line[2])
        if lines and size > MAX_ANSWER:
            break
        lines.append(LoggedOperation(*line))
    return lines


def check_answer_size(entries: Iterable[MemoryEntry], how: str) -> None:
    """Raise `ServiceError` if an answer with the entries would be too large.

    Args:
        entries: Entries of the answer.
        how: What to ask for instead.
    """
    if sum(map(_count_bytes, entries)) > MAX_ANSWER:
        raise ServiceError("answer_too_large", f"the answer is larger than {MAX_ANSWER} bytes: {how}")


def _count_bytes(entry: MemoryEntry | Operation) -> int:
    """Return about how many bytes an entry or an operation has in an answer."""
    metadata = len(to_json(dict(entry.metadata))) if entry.metadata else 0
    return 512 + len((entry.content or "").encode("utf-8", "surrogatepass")) + metadata
