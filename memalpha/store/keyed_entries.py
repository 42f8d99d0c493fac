"""Key-value entries: one live entry per key, so that history, undo and search also work for them.

A store holds contents without outer whitespace, but values may be empty or have some. `metadata["outer"]` keeps the
whitespace around a content. `metadata["exact"]` keeps the original text and its stored content where they differ more:
an empty text is stored as its key, and NULs and lone surrogates are replaced. If a content was changed by other means
since, the content is the text.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from memalpha.arguments import check_type
from memalpha.errors import DuplicateContent, UnknownEntry
from memalpha.store.fields import is_id
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation


def escape_key(text: str, special: str = "") -> str:
    """Escape a text for use in an id: whitespace, "%" and `special` become %XX; no two texts collide."""
    return re.sub(rf"[\s\x00%{re.escape(special)}]", lambda match: f"%{ord(match[0]):02X};", text)


def original_text(entry: MemoryEntry) -> str:
    """Return the text that was put."""
    exact = entry.metadata.get("exact")
    if exact is not None and exact["content"] == entry.content:
        return exact["text"]
    before, after = entry.metadata.get("outer", ("", ""))
    return before + entry.content + after


class KeyedEntries:
    """Entries of a store that have keys: those with `metadata[kind]`.

    Args:
        store: Store to read and write.
        kind: Metadata key that marks the entries and holds their values.
        category: Category of new entries; by default `schema.default_category`.

    Apply `escape_key` to the parts of a key.
    """

    def __init__(self, store: MemoryStore, kind: str, category: str | None = None) -> None:
        check_type("store", store, MemoryStore)
        self.store, self.kind = store, kind
        store.known_fields.add(kind)  # there may be no entry yet
        self.category = store.schema.check_category(category) if category else store.schema.default_category

    def searchable_part(self, text: str) -> str:
        """Return the beginning of a text that an entry can hold, for items that are whole in the metadata."""
        data, limit = text.encode("utf-8", "replace"), self.store.max_content
        limit = max(limit // 2, limit - 600)  # `put` may add the key
        return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")

    def entry_id(self, key: str) -> str:
        """Return the key, or its hash if the key cannot be an id (over 128 characters)."""
        return key if is_id(key) else "%-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    def get(self, key: str) -> MemoryEntry | None:
        """Return the live entry of a key, or None."""
        try:
            entry = self.store.get(self.entry_id(key))
        except UnknownEntry:
            return None
        return entry if self.kind in entry.metadata else None

    def list(self) -> list[MemoryEntry]:
        """Return the live entries that have keys."""
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
        """Store `text` under a key with `metadata[kind] = value`, replacing what the key had.

        Args:
            key: Key of the entry, with escaped parts.
            text: Text of the entry; may be empty or a duplicate.
            value: JSON value kept in the metadata.
            timestamp: ISO 8601 date or time; None clears it.
            expires: ISO 8601 time; None clears it.
            source: Conversation or document of origin.
            turn: Id of the turn of origin.

        Raises:
            InvalidContent: `value` is not JSON.
            StoreError: An entry without this kind of key has the id.
        """
        content = text.replace("\0", " ").encode("utf-8", "replace").decode()
        content = content if content.strip() else key
        outer: dict[str, Any] = {}  # what `original_text` needs beside the content
        if content != text:
            outer = {"exact": {"text": text, "content": content.strip()}}
        elif (stripped := text.strip()) != text:
            start = text.index(stripped)
            outer = {"outer": [text[:start], text[start + len(stripped) :]]}
        with self.store.exclusive():
            id, current = self.entry_id(key), self.get(key)
            operation = Operation(
                "insert" if current is None else "update",
                id=id,
                category=self.category,
                content=content,
                timestamp=timestamp or "",
                metadata={self.kind: value, **outer},
                expires=expires or "",
                source=source,
                turn=turn,
            )
            try:
                return self.store.change(operation).made
            except DuplicateContent:  # nothing but the origin would change
                return self.store.get(id)

    def delete(self, key: str) -> bool:
        """End the entry of a key; return False if there is none."""
        with self.store.exclusive():
            entry = self.get(key)
            if entry is not None:
                self.store.delete(entry.id)
            return entry is not None
