"""LangGraph's `BaseStore` on a `MemoryStore`: `graph.compile(store=LangGraphStore(MemoryStore.open("memory.db")))`.

An item is an entry of the store it is given, under an id of its namespace and key (`users.ana/prefs`): every version
stays in the history; `undo`, `as_of`, audit and export hold. Its content is the text that searches look at: `fields`,
or what `memalpha import` takes of LangGraph's own store (the text under `text`, `content`, `memory` or `data`, else the
value as JSON). `metadata["item"]` has namespace, key, value and time of creation; the timestamp is that of the last
change. All items lie in one namespace of the store: `MemoryStore.namespace` keeps tenants apart.

What differs from LangGraph's own stores: values must be JSON; a search with a query is the store's default search, by
words as well as by vectors; filters compare numbers with numbers and texts with texts; refreshing a time to live is a
write. Needs langgraph-checkpoint (4.3 was tried), which langgraph brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from memalpha.errors import ConfigError, DuplicateContent, InvalidContent
from memalpha.store.filters import utc
from memalpha.store.io.importers.langgraph import content_of
from memalpha.store.keyed_entries import Keyed, escaped
from memalpha.store.search.corpus import Route
from memalpha.store.store import MemoryStore
from memalpha.store.validation import validate_fields
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
    """A `BaseStore` that keeps its items in `store`, in `category` ("semantic", or the schema's first).

    `fields`: the paths of values that searches look at, as LangGraph's index configuration has them. `route`: the
    store's, for searches with a query; with "dense" scores are cosines, as LangGraph's own are. `ttl`: LangGraph's
    settings (`default_ttl` in minutes, `refresh_on_read`); expired items are never given, so nothing has to be swept.
    A put with `index=False` is left out of searches with a query, but for filling up their last page, as LangGraph has
    it. A batch reads first and then writes all or nothing. Several threads and event loops may share it.
    """

    supports_ttl = True

    def __init__(
        self,
        store: MemoryStore,
        *,
        category: str | None = None,
        fields: Sequence[str] | None = None,
        route: Route = "soft",
        ttl: TTLConfig | None = None,
    ) -> None:
        self.store = store
        self.ttl_config = ttl
        self._items = Keyed(store, "item", category)
        self._fields = fields
        self._route: Route = route

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The result of each operation, in order: first all reads, then the last put of each key, all or none."""
        results: list[Result] = []
        puts: dict[tuple[Path, str], PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(self._get(op))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._namespaces(op))
            else:
                raise ValueError(f"no operation of a store: {op!r}")
        with self._items.together():
            for op in puts.values():
                self._put(op)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _get(self, op: GetOp) -> Item | None:
        entry = self._items.get(_key(op.namespace, op.key))
        if entry is None:
            return None
        self._refresh([entry] if op.refresh_ttl else [])
        return Item(**_fields(entry))

    def _search(self, op: SearchOp) -> list[SearchItem]:
        if op.offset < 0 or op.limit < 0:
            raise ValueError(f"offset {op.offset}, limit {op.limit}: 0 or more is needed")
        end = op.offset + op.limit
        where = [*_inside(op.namespace_prefix), *_conditions("item.value", op.filter or {})]
        scored: list[tuple[MemoryEntry, float | None]]
        if op.query:
            ranked = self.store.search(
                op.query, end, where={"$and": [*where, {"item.index": {"$ne": False}}]}, route=self._route
            )
            scored = [(hit.entry, hit.score) for hit in ranked]
            where.append({"item.index": False})
        else:
            scored = []
        if len(scored) < end:
            rest = self.store.list(where={"$and": where}, limit=end - len(scored))
            scored += [(entry, None) for entry in rest]
        page = scored[op.offset :]
        self._refresh([entry for entry, _ in page] if op.refresh_ttl else [])
        return [SearchItem(**_fields(entry), score=score) for entry, score in page]

    def _namespaces(self, op: ListNamespacesOp) -> list[Path]:
        conditions = op.match_conditions or ()
        found = {tuple(entry.metadata["item"]["namespace"]) for entry in self._items.all()}
        paths = [path for path in found if all(_matches(condition, path) for condition in conditions)]
        return sorted({path[: op.max_depth] for path in paths})[op.offset : op.offset + op.limit]

    def _put(self, op: PutOp) -> None:
        key = _key(op.namespace, op.key)
        if op.value is None:
            self._items.delete(key)
            return
        value = validate_fields({"metadata": op.value}).get("metadata", {})  # in JSON's own types
        time, current = self._items.now(), self._items.get(key)
        created = utc(time) if current is None else current.metadata["item"]["created_at"]
        item: dict[str, Any] = {
            "namespace": list(op.namespace),
            "within": _paths(op.namespace),
            "key": op.key,
            "value": value,
            "created_at": created,
        }
        if op.index is False:
            item["index"] = False
        if op.ttl is not None:
            item["ttl"] = op.ttl
        expires = None if op.ttl is None else _later(time, op.ttl)
        text = self._text(value, op.index or None)
        self._items.put(key, text, item, timestamp=utc(time), expires=expires)

    def _text(self, value: dict[str, Any], index: Sequence[str] | None) -> str:
        """What searches look at."""
        fields = self._fields if index is None else index
        texts = [text for path in fields or () for text in get_text_at_path(value, tokenize_path(path))]
        return "\n".join(texts) or content_of(value)[0]

    def _refresh(self, entries: Iterable[MemoryEntry]) -> None:
        """Let those that have a time to live expire that much after now, as they are now: others may have put or
        deleted since they were read."""
        ids = [entry.id for entry in entries if "ttl" in entry.metadata["item"]]
        if not ids:
            return
        with self._items.together():
            for id in ids:
                entry = self._items.get(id)
                minutes = None if entry is None else entry.metadata["item"].get("ttl")
                if entry is not None and minutes is not None:
                    expires = _later(self._items.now(), minutes)
                    with suppress(DuplicateContent):  # it expires then already
                        self.store.change(Operation("update", id=id, content=entry.content, expires=expires))


def _later(time: datetime, minutes: float) -> str:
    try:
        return utc(time + timedelta(minutes=minutes))
    except (OverflowError, ValueError) as error:
        raise InvalidContent(f"ttl {minutes!r}: not so many minutes") from error


def _key(namespace: Path, key: str) -> str:
    return f"{_joined(namespace)}/{escaped(key)}"


def _joined(namespace: Path) -> str:
    return ".".join(escaped(label, "./") for label in namespace)


def _paths(namespace: Path) -> list[str]:
    """The namespace and all above it."""
    return [_joined(namespace[: length + 1]) for length in range(len(namespace))]


def _fields(entry: MemoryEntry) -> dict[str, Any]:
    item = entry.metadata["item"]
    return {
        "value": item["value"],
        "key": item["key"],
        "namespace": tuple(item["namespace"]),
        "created_at": datetime.fromisoformat(item["created_at"]),
        "updated_at": datetime.fromisoformat(entry.timestamp or item["created_at"]),
    }


def _inside(prefix: Path) -> list[dict[str, Any]]:
    return [{"item.within": {"$contains": _joined(prefix)}} if prefix else {"item.key": {"$ne": None}}]


def _conditions(place: str, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions of a filter; a mapping without operators is compared by the keys it has."""
    found: list[dict[str, Any]] = []
    for name, value in wanted.items():
        if isinstance(value, Mapping) and value and not any(str(key).startswith("$") for key in value):
            found += _conditions(f"{place}.{name}", value)
        else:
            found.append({f"{place}.{name}": value})
    return found


def _matches(condition: MatchCondition, path: Path) -> bool:
    wanted = condition.path
    if len(path) < len(wanted):
        return False
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"match type {condition.match_type!r}: prefix or suffix is needed")
    part = path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    return all(want in ("*", label) for want, label in zip(wanted, part, strict=True))
