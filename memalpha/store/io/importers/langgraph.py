"""Reads LangGraph's `SqliteStore` (langgraph-checkpoint-sqlite, table `store`) as events.

An item goes to the namespace of its prefix (`users.ana` for `("users", "ana")`), under its key if that can be an id.
Its content is the text under `text`, `content`, `memory` or `data` of its value, or of a mapping under `content` (as
LangMem writes it); any other value becomes JSON text. The rest of the value becomes metadata. The metadata key
`langgraph` holds a key that is no id, and the creation time of a changed item. The timestamp is the time of the last
change, and expiry is kept. LangGraph has no history; vectors are computed anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.store.io.importers.base import (
    SourceEvent,
    open_sqlite_copy,
    parse_log_time,
    require_columns,
    require_json_fields,
)
from memalpha.store.validation import is_id
from memalpha.types import Operation

TEXT_KEYS = ("text", "content", "memory", "data")
_COLUMNS = ("prefix", "key", "value", "created_at", "updated_at")


def read_events(path: Path, default_namespace: str) -> dict[str, list[SourceEvent]]:
    """Return the events by namespace, ordered by last change.

    Items without a prefix go to `default_namespace`. Raises `DataError` naming file, table and row.
    """
    events: dict[str, list[SourceEvent]] = {}
    with open_sqlite_copy(path) as connection:
        columns = [
            *_COLUMNS,
            *(name for name in require_columns(path, connection, "store", _COLUMNS) if name == "expires_at"),
        ]
        for row, *values in connection.execute(
            f"SELECT rowid, {', '.join(columns)} FROM store ORDER BY updated_at, rowid"
        ):
            location, fields = f"{path}: table store, row {row}", dict(zip(columns, values, strict=True))
            try:
                value = json.loads(fields["value"])
            except (TypeError, ValueError) as error:
                raise DataError(f"{location}: value: not JSON: {error}") from error
            if not isinstance(value, dict):
                raise DataError(f"{location}: value: an object is needed, not {value!r}")
            content, rest = split_content(value)
            time = parse_log_time(location, fields["updated_at"] or fields["created_at"])
            origin = {"created_at": fields["created_at"]} if fields["created_at"] != fields["updated_at"] else {}
            key = str(fields["key"])
            if not is_id(key):
                origin["key"] = key
            metadata = require_json_fields(location, rest) | ({"langgraph": origin} if origin else {})
            operation = Operation(
                "insert",
                id=key if is_id(key) else None,
                content=content,
                timestamp=time or None,
                metadata=metadata,
                expires=parse_log_time(location, fields.get("expires_at")) or None,
            )
            events.setdefault(fields["prefix"] or default_namespace, []).append(SourceEvent(location, time, operation))
    return events


def split_content(value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of an item and the rest of its value."""
    for name in TEXT_KEYS:
        text = value.get(name)
        rest = {key: item for key, item in value.items() if key != name}
        if isinstance(text, str) and text.strip():
            return text, rest
        if name == "content" and isinstance(text, Mapping):
            inner, inner_rest = split_content(text)
            return inner, {**inner_rest, **rest}
    return json.dumps(value, ensure_ascii=False), {}
