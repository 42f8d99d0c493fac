"""Values under keys of one's own: one live entry a key, whose id is made of it, so that history, undo, search hold.

A store keeps a content once a category, without outer whitespace; what is kept here may be equal, empty or have any
whitespace. So `metadata["outer"]` holds the whitespace around a content, and `metadata["exact"]` the text and its
content, wherever that is another one: the key for an empty text, the text without what no content may hold (NUL, halves
of surrogate pairs), or with the key in brackets behind it where another entry has that text. A content that was changed
since by other means is the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from memalpha.errors import DuplicateContent, StoreError, UnknownEntry
from memalpha.store.store import MemoryStore
from memalpha.store.validation import is_id
from memalpha.types import MemoryEntry, Operation


def escape_key(text: str, special: str = "") -> str:
    """A text that can be a part of an id: whitespace, "%" and the characters of `more` as %XX; no two give the same."""
    return re.sub(rf"[\s\x00%{re.escape(special)}]", lambda found: f"%{ord(found[0]):02X};", text)


def original_text(entry: MemoryEntry) -> str:
    """The text that was put."""
    exact = entry.metadata.get("exact")
    if exact is not None and exact["content"] == entry.content:
        return exact["text"]
    before, after = entry.metadata.get("outer", ("", ""))
    return before + entry.content + after


def _original_metadata(text: str, content: str) -> dict[str, Any]:
    """What `text_of` needs beside the content."""
    if content != text:
        return {"exact": {"text": text, "content": content.strip()}}
    stripped = text.strip()
    start = text.index(stripped)
    return {} if stripped == text else {"outer": [text[:start], text[start + len(stripped) :]]}


class KeyedEntries:
    """The entries of a store that have keys: those whose `metadata[kind]` says what they are.

    `category`: where new ones go (None: "semantic", or the schema's first). A key should be `escaped` in its parts.
    """

    def __init__(self, store: MemoryStore, kind: str, category: str | None = None) -> None:
        if not isinstance(store, MemoryStore):
            raise StoreError(f"a MemoryStore is needed, not {type(store).__name__}")
        names = store.schema.category_names
        self.store, self.kind = store, kind
        self.category = (
            store.schema.check_category(category) if category else "semantic" if "semantic" in names else names[0]
        )

    def now(self) -> datetime:
        """The time by the store's own clock, by which its entries expire."""
        return self.store._database.clock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside happens at once or not at all."""
        with self.store._namespace.transaction():
            yield

    def entry_id(self, key: str) -> str:
        """The key, or a hash of one that cannot be an id, having more than 128 characters."""
        return key if is_id(key) else "%-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    def get(self, key: str) -> MemoryEntry | None:
        """The live entry of a key."""
        try:
            entry = self.store.get(self.entry_id(key))
        except UnknownEntry:
            return None
        return entry if self.kind in entry.metadata else None

    def list(self) -> list[MemoryEntry]:
        """The live entries that have keys."""
        return self.store.list(where={self.kind: {"$ne": None}})

    def put(
        self,
        key: str,
        text: str,
        value: Any,
        *,
        timestamp: str | None = None,
        expires: str | None = None,
        source: str | None = None,
        turn: str | None = None,
    ) -> MemoryEntry:
        """Have `text` under a key, with `metadata[kind] = value`, in the place of what it had.

        Raises `InvalidContent` for a value that is not JSON, `StoreError` where another entry has the key as its id.
        """
        content = text.replace("\0", " ").encode("utf-8", "replace").decode()
        content = content if content.strip() else key
        with self.transaction():
            id, current = self.entry_id(key), self.get(key)
            while True:
                operation = Operation(
                    "insert" if current is None else "update",
                    id=id,
                    category=self.category,
                    content=content,
                    timestamp=timestamp or "",
                    metadata={self.kind: value, **_original_metadata(text, content)},
                    expires=expires or "",
                    source=source,
                    turn=turn,
                )
                try:
                    entry = self.store.change(operation).entry
                except DuplicateContent as error:
                    if current is not None and error.entry_id == id:  # it says so already
                        return current
                    content = f"{content.strip()}\n({key})"
                    continue
                assert entry is not None
                return entry

    def delete(self, key: str) -> bool:
        """End the entry of a key; False where there is none."""
        with self.transaction():
            entry = self.get(key)
            if entry is not None:
                self.store.delete(entry.id)
            return entry is not None
