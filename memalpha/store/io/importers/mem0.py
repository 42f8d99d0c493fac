"""Reads mem0 (OSS 1 and 2) as events, from its vector payloads, its SQLite history, or both.

Payloads lie in FAISS's docstore (`NAME.json`, or the older `NAME.pkl`) or Qdrant's local folder (`meta.json`,
`collection/NAME/storage.sqlite` with pickled points). They hold the current memories and their owners. The history
(`history.db`, table `history`) holds additions, changes and deletions with times, but no owners. With both, a memory
gets its versions from the history and its final state from the payload. Where they disagree, the payload wins, because
mem0 searches it, and a note says so.

A memory goes to the namespace `user:ID`; without a user to `agent:ID`, then `run:ID`, else to the store's own
namespace, as deleted memories do. Metadata comes from the payload (user_id, agent_id, run_id, role, actor_id and
custom keys, the same for all versions). Timestamps are mem0's write times. A memory expires after its
`expiration_date`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.store.io.importers.base import (
    InertObject,
    SourceEvent,
    load_plain_pickle,
    open_sqlite_copy,
    parse_log_time,
    require_columns,
    require_json_fields,
)
from memalpha.store.io.jsonl import read_text
from memalpha.types import Operation

SCOPES = {"user_id": "user", "agent_id": "agent", "run_id": "run"}
_KINDS = {"ADD": "insert", "UPDATE": "update", "DELETE": "delete"}
_NOT_METADATA = ("data", "hash", "text_lemmatized", "created_at", "updated_at", "expiration_date")
_HISTORY_COLUMNS = ("memory_id", "new_memory", "event", "created_at")
_PACKAGES = ("qdrant_client", "numpy")
_MAX_LISTED = 5


class Payload(NamedTuple):
    """Current memory of mem0 and its location in the source."""

    location: str
    fields: dict[str, Any]

    @property
    def content(self) -> str:
        """Text of the memory."""
        text = self.fields.get("data")
        if not isinstance(text, str):
            raise DataError(f"{self.location}: data: the memory's text is needed, not {text!r}")
        return text

    @property
    def time(self) -> str:
        """Log time of the last change."""
        return parse_log_time(self.location, self.fields.get("updated_at") or self.fields.get("created_at"))

    @property
    def expires(self) -> str | None:
        """End of the last day on which mem0 returns the memory."""
        last = self.fields.get("expiration_date")
        try:
            return None if last is None else (date.fromisoformat(last) + timedelta(1)).isoformat()
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{self.location}: expiration_date {last!r}: a date is needed, such as 2030-01-31"
            ) from error


def read_events(
    path: Path, history: Path | None, default_namespace: str, notes: list[str]
) -> dict[str, list[SourceEvent]]:
    """Return the events by namespace.

    Args:
        path: File or folder of mem0.
        history: History file; None looks for `history.db` in the folder.
        default_namespace: Namespace of memories without a user, agent or run.
        notes: Receives remarks about gaps and contradictions of the source.

    Raises:
        DataError: The source is invalid; the message names file, table and row.
    """
    payloads = _read_payloads(path)
    if history is None:
        history_file = path / "history.db"
        history = path if payloads is None and not path.is_dir() else history_file if history_file.exists() else None
    elif not history.exists():
        raise DataError(f"{history}: no such file")
    if history is None:
        notes.append("no history.db beside it: what was changed and deleted is not known; --history gives it")
    events = [] if history is None else _read_history(history, payloads or {})
    if payloads is not None:
        events = _reconcile(events, payloads, notes)
    if payloads is None and not events:
        raise DataError(
            f"{path}: no memories of mem0: a docstore (.json, .pkl), a Qdrant folder or a history.db is needed"
        )
    events_by_namespace: dict[str, list[SourceEvent]] = {}
    for event in events:
        payload = (payloads or {}).get(event.operation.id or "")
        events_by_namespace.setdefault(_namespace_name(payload, default_namespace), []).append(event)
    return events_by_namespace


def _namespace_name(payload: Payload | None, default_namespace: str) -> str:
    fields = {} if payload is None else payload.fields
    return next((f"{name}:{fields[key]}" for key, name in SCOPES.items() if fields.get(key)), default_namespace)


def _make_operation(
    kind: Any, id: str, content: str | None, time: str, details: Payload | Mapping[str, Any]
) -> Operation:
    """Return the operation of a history event; `details` is the memory's payload, or its actor."""
    if kind == "delete":
        return Operation("delete", id=id)
    metadata = _metadata(details) if isinstance(details, Payload) else details
    expires = details.expires if isinstance(details, Payload) else None
    return Operation(kind, id=id, content=content, timestamp=time or None, metadata=metadata, expires=expires)


def _read_history(path: Path, payloads: Mapping[str, Payload]) -> list[SourceEvent]:
    """Return the events of the history, in the order of writing."""
    events, time = [], ""
    with open_sqlite_copy(path) as connection:
        available = require_columns(path, connection, "history", _HISTORY_COLUMNS)
        columns = [*_HISTORY_COLUMNS, *(name for name in ("updated_at", "actor_id", "role") if name in available)]
        for row, *values in connection.execute(f"SELECT rowid, {', '.join(columns)} FROM history ORDER BY rowid"):
            location, fields = f"{path}: table history, row {row}", dict(zip(columns, values, strict=True))
            id, kind, content = fields["memory_id"], _KINDS.get(fields["event"]), fields["new_memory"]
            if kind is None or not isinstance(id, str):
                raise DataError(
                    f"{location}: event {fields['event']!r} of memory {id!r}: ADD, UPDATE or DELETE is needed"
                )
            if kind != "delete" and not isinstance(content, str):
                raise DataError(f"{location}: new_memory: text is needed, not {content!r}")
            updated_at = fields.get("updated_at") if kind != "insert" else None
            time = max(time, parse_log_time(location, updated_at or fields["created_at"]))
            actor = {name: fields[name] for name in ("actor_id", "role") if fields.get(name)}
            events.append(
                SourceEvent(location, time, _make_operation(kind, id, content, time, payloads.get(id, actor)))
            )
    return events


def _metadata(payload: Payload) -> dict[str, Any]:
    return {name: value for name, value in payload.fields.items() if name not in _NOT_METADATA}


def _reconcile(history: list[SourceEvent], payloads: Mapping[str, Payload], notes: list[str]) -> list[SourceEvent]:
    """Add events to the history so that it ends at what the payloads hold."""
    last_operations = {event.operation.id or "": event.operation for event in history}
    added: list[SourceEvent] = []
    unlogged, differing = [], []
    for id, payload in payloads.items():
        logged = last_operations.get(id)
        if logged is None or logged.kind == "delete" or logged.content != payload.content:
            (unlogged if logged is None else differing).append(id)
            kind = "insert" if logged is None or logged.kind == "delete" else "update"
            operation = _make_operation(kind, id, payload.content, payload.time, payload)
            added.append(SourceEvent(payload.location, payload.time, operation))
    removed = [id for id, operation in last_operations.items() if operation.kind != "delete" and id not in payloads]
    end = history[-1].time if history else ""
    added += [SourceEvent("the vectors", end, Operation("delete", id=id)) for id in removed]
    if history:
        for ids, disagreement in (
            (unlogged, "are in the vectors but not in the history"),
            (differing, "are otherwise in the vectors than the history says"),
            (removed, "are in the history but not in these vectors"),
        ):
            if ids:
                listed = ", ".join(ids[:_MAX_LISTED]) + (" ..." if len(ids) > _MAX_LISTED else "")
                notes.append(f"{len(ids)} memories {disagreement}: {listed}")
    return sorted([*history, *added], key=lambda event: event.time)  # stable: the history is ordered already


def _read_payloads(path: Path) -> dict[str, Payload] | None:
    """Return mem0's current memories by id; None if the source has no payloads, only a history."""
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.json")) if file.name != "meta.json"]
        files = files or sorted(path.glob("*.pkl"))
        files += [path / "storage.sqlite"] if (path / "storage.sqlite").exists() else []
        files += sorted(path.glob("collection/*/storage.sqlite"))
        collections = [file for file in files if not _is_internal(file)]
        if not collections:
            return None
        if len(collections) > 1:
            raise DataError(f"{path}: several collections: give one of {', '.join(map(str, collections))}")
        return _read_payloads(collections[0])
    if path.suffix in (".json", ".pkl"):
        return dict(_read_docstore(path))
    with open_sqlite_copy(path) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'points'").fetchone():
            return None
        require_columns(path, connection, "points", ("id", "point"))
        return dict(_read_points(path, connection.execute("SELECT rowid, point FROM points ORDER BY rowid")))


def _is_internal(file: Path) -> bool:
    """Return True for mem0's internal collections: entities and its migration mark."""
    name = file.parent.name if file.name == "storage.sqlite" else file.stem
    return name.endswith("_entities") or name == "mem0migrations"


def _read_docstore(path: Path) -> Iterator[tuple[str, Payload]]:
    if path.suffix == ".json":
        try:
            data = json.loads(read_text(path))
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}") from error
        docstore = data.get("docstore") if isinstance(data, dict) else None
    else:
        try:
            data = load_plain_pickle(str(path), path.read_bytes())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        docstore = data[0] if isinstance(data, tuple) and len(data) == 2 else None
    if not isinstance(docstore, dict):
        raise DataError(f"{path}: no docstore of mem0's FAISS store")
    for id, fields in docstore.items():
        location = f"{path}: docstore: {id}"
        if not isinstance(fields, dict):
            raise DataError(f"{location}: a payload is needed, not {fields!r}")
        yield str(id), Payload(location, require_json_fields(location, fields))


def _read_points(path: Path, rows: Any) -> Iterator[tuple[str, Payload]]:
    """Iterate over the points of Qdrant's local store; the newest of an id comes last."""
    for row, data in rows:
        location = f"{path}: table points, row {row}"
        point = load_plain_pickle(location, data, _PACKAGES)
        state = point.state if isinstance(point, InertObject) and isinstance(point.state, dict) else {}
        fields = state.get("__dict__", state)
        if not isinstance(fields, dict) or not isinstance(fields.get("payload"), dict) or "id" not in fields:
            raise DataError(f"{location}: no point with an id and a payload")
        yield str(fields["id"]), Payload(location, require_json_fields(location, fields["payload"]))
