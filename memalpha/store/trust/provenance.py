"""Who is behind a write: the speaker and the key that its operation, entry and history carry.

Both come from the caller or the server, never from the text of a model or the metadata of a client. The value belongs
to the thread or task: `asyncio.to_thread` and the server's threads pass it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from memalpha.store.validation import check_text

WRITER: ContextVar[Mapping[str, str]] = ContextVar("memalpha_writer", default=MappingProxyType({}))
"""Fields `speaker` and `key` that operations get unless they have their own."""


@contextmanager
def writing_as(*, speaker: str | None = None, key: str | None = None) -> Iterator[None]:
    """Record who is behind the operations of the block: see `MemoryStore.writing_as`."""
    names = {"speaker": speaker, "key": key}
    fields = {name: check_text(name, value) for name, value in names.items() if value is not None}
    token = WRITER.set({**WRITER.get(), **fields})
    try:
        yield
    finally:
        WRITER.reset(token)
