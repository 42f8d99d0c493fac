"""Sessions of the OpenAI Agents SDK in a store: `Runner.run(agent, text, session=MemorySession("7", store))`.

Each session has its own namespace, `session:ID` (`NAME/session:ID` in a namespace of the store), and keeps its items in
order. An item is an entry: its content is the message (`user: I live in Porto.`), or the whole item as text for calls
and the like; of a longer text than the store takes, its beginning. `metadata["message"]` is the item itself, whole.
`source` and `turn` give its position, so that searches know the neighbouring messages. Popped and cleared items are
deleted but stay in the history, and `undo` restores them; `session.store.erase_all()` erases them. Works with
openai-agents (tested with 0.24), but does not import it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.arguments import brief_repr, check_items
from memalpha.errors import StoreError
from memalpha.store.fields import format_utc, is_text
from memalpha.store.keyed_entries import KeyedEntries
from memalpha.store.store import MemoryStore

_CATEGORY = "episodic"


class MemorySession:
    """The SDK's `Session`, kept in a store. Every method works in a thread."""

    def __init__(self, session_id: str, store: MemoryStore, *, session_settings: Any = None) -> None:
        """Open a session.

        Args:
            session_id: Name of the session; not empty.
            store: May hold other sessions and memories; they do not see each other. The same id in another namespace
                is another session.
            session_settings: The SDK's settings; their `limit` is the default of `get_items`.

        Raises:
            StoreError: The id is no text, or empty: all sessions without an id would be one.
        """
        if not is_text(session_id) or not session_id:
            raise StoreError(f"session_id {brief_repr(session_id)}: a non-empty text is needed")
        self.session_id = session_id
        self.session_settings = session_settings
        tenant = "" if store.namespace_name == "default" else f"{store.namespace_name}/"
        self.store = store.namespace(f"{tenant}session:{session_id}")
        category = _CATEGORY if _CATEGORY in store.schema.category_names else None
        self._items = KeyedEntries(self.store, "message", category)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the newest `limit` items, oldest first; None returns all."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        entries = await asyncio.to_thread(self._items.list)
        newest = entries if limit is None else entries[max(0, len(entries) - max(0, limit)) :]
        return [entry.metadata["message"] for entry in newest]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append all items or none. Raises `StoreError` unless they are a list of JSON values."""
        items = check_items("items", items)

        def add() -> None:
            with self.store.exclusive():
                entries, time = self._items.list(), format_utc(self.store.database.clock())
                for number, item in enumerate(items, int(entries[-1].id) + 1 if entries else 1):
                    key, text = f"{number:06}", self._items.searchable_part(_text(item))
                    self._items.put(key, text, item, timestamp=time, source=self.session_id, turn=key)

        await asyncio.to_thread(add)

    async def pop_item(self) -> Any | None:
        """Remove the newest item and return it; None if there is none."""

        def pop() -> Any | None:
            with self.store.exclusive():
                if not (entries := self._items.list()):
                    return None
                self._items.delete(entries[-1].id)
                return entries[-1].metadata["message"]

        return await asyncio.to_thread(pop)

    async def clear_session(self) -> None:
        """Remove all items."""
        await asyncio.to_thread(self.store.delete_many, where={"message": {"$exists": True}})


def _text(item: Any) -> str:
    """Return the text of an item, to store and search."""
    content = item.get("content") if isinstance(item, Mapping) else None
    parts = content if isinstance(content, list) else ()
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    text = content if isinstance(content, str) else "\n".join(texts)
    return (
        f"{item.get('role') or 'user'}: {text}" if text.strip() else json.dumps(item, ensure_ascii=False, default=str)
    )
