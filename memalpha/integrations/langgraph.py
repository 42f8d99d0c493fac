"""LangGraph's `BaseStore` on a `MemoryStore`: `graph.compile(store=LangGraphStore(MemoryStore.open("memory.db")))`.

An item is an entry; its id is made of namespace and key (`users.ana/prefs`). Every version stays in the history, and
`undo`, `as_of`, audit and export work. The content is the text that searches use: `fields`, or else the text under
`text`, `content`, `memory` or `data`, or the value as JSON. `metadata["item"]` has namespace, key, value and creation
time; the timestamp is that of the last change. All items are in one namespace of the `MemoryStore`:
`MemoryStore.namespace` separates tenants.

Differences to LangGraph's own stores: values must be JSON. A search with a query is the store's default search, by
words and vectors. Filters compare numbers with numbers and texts with texts. Refreshing a time to live is a write.
Needs langgraph-checkpoint (tested with 4.3), a dependency of langgraph.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from memalpha.errors import ConfigError, DuplicateContent, InvalidContent, StoreError
from memalpha.store.fields import FIELD_CHECKS, format_utc
from memalpha.store.filters import COMBINATIONS
from memalpha.store.keyed_entries import KeyedEntries, escape_key
from memalpha.store.search.ranking import Route
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        get_text_at_path,
        tokenize_path,
    )
except ModuleNotFoundError as missing:
    raise ConfigError(f"LangGraphStore needs {missing.name}: pip install langgraph") from missing

Path = tuple[str, ...]


class LangGraphStore(BaseStore):
    """`BaseStore` that keeps its items in a `MemoryStore`.

    Searches with a query skip items that were put with `index=False`, except to fill their last page, as in LangGraph.
    A batch reads first, then writes all or nothing. Several threads and event loops may share a store.
    """

    supports_ttl = True

    def __init__(
        self,
        store: MemoryStore,
        *,
        fields: Sequence[str] | None = None,
        route: Route = "soft",
        ttl: TTLConfig | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: Holds the items, in the schema's default category.
            fields: Paths of the values that searches use, as in LangGraph's index configuration.
            route: Route of searches with a query; scores of "dense" are cosines, as LangGraph's are.
            ttl: LangGraph's settings (`default_ttl` in minutes, `refresh_on_read`). Expired items are never returned,
                so no sweep is needed.
        """
        self.store = store
        self.ttl_config = ttl
        self._items = KeyedEntries(store, "item")
        self._fields = fields
        self._route: Route = route

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Return the result of each operation, in order.

        All reads run first, then the last put of each key; all puts are written or none.
        """
        results: list[Result] = []
        puts: dict[tuple[Path, str], PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                entry = self._items.get(_key(op.namespace, op.key))
                self._refresh([entry] if entry is not None and op.refresh_ttl else [])
                results.append(None if entry is None else Item(**_fields(entry)))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                namespaces = {tuple(entry.metadata["item"]["namespace"]) for entry in self._items.list()}
                paths = [path for path in namespaces if all(_matches(item, path) for item in op.match_conditions or ())]
                results.append(sorted({path[: op.max_depth] for path in paths})[_page(op)])
            else:
                raise ValueError(f"unknown operation: {op!r}")
        with self.store.exclusive():
            for op in puts.values():
                self._put(op)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `batch` in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end, prefix = _page(op).stop, op.namespace_prefix
        where: list[dict[str, Any]] = [
            {"item.within": {"$contains": _joined(prefix)}} if prefix else {"item.key": {"$ne": None}},
            *_conditions("item.value", op.filter or {}),
        ]
        scored: list[tuple[MemoryEntry, float | None]] = []
        if op.query:
            ranked = self.store.search(
                op.query, end, where={"$and": [*where, {"item.index": {"$ne": False}}]}, route=self._route
            )
            scored = [(hit.entry, hit.score) for hit in ranked]
            where.append({"item.index": False})
        if len(scored) < end:
            rest = self.store.list(where={"$and": where}, limit=end - len(scored))
            scored += [(entry, None) for entry in rest]
        page = scored[op.offset :]
        self._refresh([entry for entry, _ in page] if op.refresh_ttl else [])
        return [SearchItem(**_fields(entry), score=score) for entry, score in page]

    def _put(self, op: PutOp) -> None:
        key = _key(op.namespace, op.key)
        if op.value is None:
            self._items.delete(key)
            return
        value: Any = FIELD_CHECKS["metadata"]("value", op.value)  # in JSON's own types
        time, current = self.store.database.clock(), self._items.get(key)
        created = format_utc(time) if current is None else current.metadata["item"]["created_at"]
        item: dict[str, Any] = {
            "namespace": list(op.namespace),
            "within": [_joined(op.namespace[: length + 1]) for length in range(len(op.namespace))],  # and its ancestors
            "key": op.key,
            "value": value,
            "created_at": created,
        }
        if op.index is False:
            item["index"] = False
        if op.ttl is not None:
            item["ttl"] = op.ttl
        expires = None if op.ttl is None else _expiry(time, op.ttl)
        text = self._text(value, op.index or None)
        self._items.put(key, self._items.searchable_part(text), item, timestamp=format_utc(time), expires=expires)

    def _text(self, value: dict[str, Any], index: Sequence[str] | None) -> str:
        """Return the text that searches use."""
        fields = self._fields if index is None else index
        texts = [text for path in fields or () for text in get_text_at_path(value, tokenize_path(path))]
        return "\n".join(texts) or _content_text(value)

    def _refresh(self, entries: Iterable[MemoryEntry]) -> None:
        """Restart the time to live of entries that have one.

        Reads them again first: another thread may have changed or deleted them since.
        """
        ids = [entry.id for entry in entries if "ttl" in entry.metadata["item"]]
        if not ids:
            return
        with self.store.exclusive():
            for id in ids:
                entry = self._items.get(id)
                if entry is not None and (minutes := entry.metadata["item"].get("ttl")) is not None:
                    expires = _expiry(self.store.database.clock(), minutes)
                    with suppress(DuplicateContent):  # it already expires at that time
                        self.store.change(Operation("update", id=id, content=entry.content, expires=expires))


def _page(op: SearchOp | ListNamespacesOp) -> slice:
    """Return the results that are asked for. Raises `ValueError` for what Python would count from the end."""
    if op.offset < 0 or op.limit < 0:
        raise ValueError(f"offset {op.offset}, limit {op.limit}: 0 or more is needed")
    return slice(op.offset, op.offset + op.limit)


def _content_text(value: Mapping[str, Any]) -> str:
    """Return the text under the first of the usual keys, also inside `content`; else the value as JSON."""
    for name in ("text", "content", "memory", "data"):
        text = value.get(name)
        if isinstance(text, str) and text.strip():
            return text
        if name == "content" and isinstance(text, Mapping):
            return _content_text(text)
    return json.dumps(value, ensure_ascii=False)


def _expiry(time: datetime, minutes: float) -> str:
    try:
        return format_utc(time + timedelta(minutes=minutes))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidContent(f"ttl {minutes!r}: a number of minutes is needed, up to the year 9999") from error


def _key(namespace: Path, key: str) -> str:
    return f"{_joined(namespace)}/{escape_key(key)}"


def _joined(namespace: Path) -> str:
    return ".".join(escape_key(label, "./") for label in namespace)


def _fields(entry: MemoryEntry) -> dict[str, Any]:
    item = entry.metadata["item"]
    return {
        "value": item["value"],
        "key": item["key"],
        "namespace": tuple(item["namespace"]),
        "created_at": datetime.fromisoformat(item["created_at"]),
        "updated_at": datetime.fromisoformat(entry.timestamp or item["created_at"]),
    }


def _conditions(path: str, conditions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions of a filter; a mapping without operators is compared key by key."""
    flat: list[dict[str, Any]] = []
    for name, value in conditions.items():
        if name in COMBINATIONS:
            raise StoreError(f"filter: {name} is no field: LangGraph's filters name fields, all of which must hold")
        if isinstance(value, Mapping) and value and not any(str(key).startswith("$") for key in value):
            flat += _conditions(f"{path}.{name}", value)
        else:
            flat.append({f"{path}.{name}": value})
    return flat


def _matches(condition: MatchCondition, path: Path) -> bool:
    pattern = condition.path
    if len(path) < len(pattern):
        return False
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"match type {condition.match_type!r}: prefix or suffix is needed")
    part = path[: len(pattern)] if condition.match_type == "prefix" else path[len(path) - len(pattern) :]
    return all(expected in ("*", label) for expected, label in zip(pattern, part, strict=True))
