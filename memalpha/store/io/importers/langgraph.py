"""What LangGraph's `SqliteStore` (langgraph-checkpoint-sqlite) keeps in its table `store`, as events.

An item goes to the namespace that its prefix names (`users.ana` for `("users", "ana")`), under its key where that can
be an id. Its content is the text under `text`, `content`, `memory` or `data` of its value, or of a mapping under
`content` (as LangMem writes it); of any other value, the value itself as JSON. All else that the value holds is
metadata; so are, under `langgraph`, a key that is no id, and when it was created if it was changed since. The timestamp
is the time of the last change; an item expires as it does there. There is no history, and vectors are made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.errors import DataError
from memalpha.store.io.importers.base import Event, columns, log_time, plain, sqlite_copy
from memalpha.store.validation import is_id
from memalpha.types import Operation

TEXTS = ("text", "content", "memory", "data")
_COLUMNS = ("prefix", "key", "value", "created_at", "updated_at")


def read(path: Path, nowhere: str) -> dict[str, list[Event]]:
    """The events by namespace, `nowhere` being that of items without a prefix, each by its last change. Raises
    `DataError` naming file, table and row."""
    found: dict[str, list[Event]] = {}
    with sqlite_copy(path) as rows:
        names = [*_COLUMNS, *(name for name in columns(path, rows, "store", _COLUMNS) if name == "expires_at")]
        for row, *values in rows.execute(f"SELECT rowid, {', '.join(names)} FROM store ORDER BY updated_at, rowid"):
            where, fields = f"{path}: table store, row {row}", dict(zip(names, values, strict=True))
            try:
                value = json.loads(fields["value"])
            except (TypeError, ValueError) as error:
                raise DataError(f"{where}: value: not JSON: {error}") from error
            if not isinstance(value, dict):
                raise DataError(f"{where}: value: an object is needed, not {value!r}")
            content, rest = content_of(value)
            time = log_time(where, fields["updated_at"] or fields["created_at"])
            said = {"created_at": fields["created_at"]} if fields["created_at"] != fields["updated_at"] else {}
            key = str(fields["key"])
            if not is_id(key):
                said["key"] = key
            metadata = plain(where, rest) | ({"langgraph": said} if said else {})
            operation = Operation(
                "insert",
                id=key if is_id(key) else None,
                content=content,
                timestamp=time or None,
                metadata=metadata,
                expires=log_time(where, fields.get("expires_at")) or None,
            )
            found.setdefault(fields["prefix"] or nowhere, []).append(Event(where, time, operation))
    return found


def content_of(value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of an item, and what else its value holds."""
    for name in TEXTS:
        text = value.get(name)
        rest = {key: item for key, item in value.items() if key != name}
        if isinstance(text, str) and text.strip():
            return text, rest
        if name == "content" and isinstance(text, Mapping):
            inner, more = content_of(text)
            return inner, {**more, **rest}
    return json.dumps(value, ensure_ascii=False), {}
