"""What mem0 (OSS 1 and 2) keeps on disk, as events: its vectors' payloads, its SQLite history, or both.

Payloads: FAISS's docstore (`NAME.json`, or the older `NAME.pkl`), or Qdrant's local folder (`meta.json`,
`collection/NAME/storage.sqlite`, whose points are pickled). They say what mem0 holds now and whose it is. The history
(`history.db`, table `history`) says what was added, changed and deleted when, but not whose it was. With both, every
memory gets its versions from the history and its end state from the payload; where they disagree, the payload is right,
for that is what mem0 searches, and a note says so.

A memory goes to the namespace `user:ID`; without a user to `agent:ID`, then `run:ID`, and to the store's own namespace
if nobody is named, as with what was deleted. Metadata are the payload's (user_id, agent_id, run_id, role, actor_id and
one's own, the same for all versions), timestamps the times at which mem0 wrote; a memory expires when its
`expiration_date` is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import DataError
from memalpha.store.io.importers.base import Event, Inert, columns, log_time, plain, sqlite_copy, unpickled
from memalpha.store.io.jsonl import read_text
from memalpha.types import Operation

SCOPES = {"user_id": "user", "agent_id": "agent", "run_id": "run"}
_KINDS = {"ADD": "insert", "UPDATE": "update", "DELETE": "delete"}
_NOT_METADATA = ("data", "hash", "text_lemmatized", "created_at", "updated_at", "expiration_date")
_HISTORY = ("memory_id", "new_memory", "event", "created_at")
_PACKAGES = ("qdrant_client", "numpy")
_SHOWN = 5


class Payload(NamedTuple):
    """What mem0 holds of a memory now, and where that stands."""

    where: str
    fields: dict[str, Any]

    @property
    def content(self) -> str:
        text = self.fields.get("data")
        if not isinstance(text, str):
            raise DataError(f"{self.where}: data: the memory's text is needed, not {text!r}")
        return text

    @property
    def time(self) -> str:
        return log_time(self.where, self.fields.get("updated_at") or self.fields.get("created_at"))

    @property
    def expires(self) -> str | None:
        """The end of the last day on which mem0 gives it."""
        last = self.fields.get("expiration_date")
        try:
            return None if last is None else (date.fromisoformat(last) + timedelta(1)).isoformat()
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{self.where}: expiration_date {last!r}: a date is needed, such as 2030-01-31") from error


def read(path: Path, history: Path | None, nobody: str, notes: list[str]) -> dict[str, list[Event]]:
    """The events by namespace, `nobody`'s being that of memories without a scope; what the source disagrees with itself
    about goes to `notes`. Raises `DataError` naming file, table and row."""
    payloads = _payloads(path)
    if history is None:
        beside = path / "history.db"
        history = path if payloads is None and not path.is_dir() else beside if beside.exists() else None
    elif not history.exists():
        raise DataError(f"{history}: no such file")
    if history is None:
        notes.append("no history.db beside it: what was changed and deleted is not known; --history gives it")
    happened = [] if history is None else _history(history, payloads or {})
    if payloads is not None:
        happened = _agreed(happened, payloads, notes)
    if payloads is None and not happened:
        raise DataError(
            f"{path}: no memories of mem0: a docstore (.json, .pkl), a Qdrant folder or a history.db is needed"
        )
    found: dict[str, list[Event]] = {}
    for event in happened:
        payload = (payloads or {}).get(event.operation.id or "")
        found.setdefault(_namespace(payload, nobody), []).append(event)
    return found


def _namespace(payload: Payload | None, nobody: str) -> str:
    fields = {} if payload is None else payload.fields
    return next((f"{name}:{fields[key]}" for key, name in SCOPES.items() if fields.get(key)), nobody)


def _operation(kind: Any, id: str, content: str | None, time: str, known: Payload | Mapping[str, Any]) -> Operation:
    """What happened to a memory, of which a payload or some metadata are known."""
    if kind == "delete":
        return Operation("delete", id=id)
    metadata = _metadata(known) if isinstance(known, Payload) else known
    expires = known.expires if isinstance(known, Payload) else None
    return Operation(kind, id=id, content=content, timestamp=time or None, metadata=metadata, expires=expires)


def _history(path: Path, payloads: Mapping[str, Payload]) -> list[Event]:
    """What the history says, in the order it was written."""
    events, time = [], ""
    with sqlite_copy(path) as rows:
        there = columns(path, rows, "history", _HISTORY)
        names = [*_HISTORY, *(name for name in ("updated_at", "actor_id", "role") if name in there)]
        for row, *values in rows.execute(f"SELECT rowid, {', '.join(names)} FROM history ORDER BY rowid"):
            where, fields = f"{path}: table history, row {row}", dict(zip(names, values, strict=True))
            id, kind, content = fields["memory_id"], _KINDS.get(fields["event"]), fields["new_memory"]
            if kind is None or not isinstance(id, str):
                raise DataError(f"{where}: event {fields['event']!r} of memory {id!r}: ADD, UPDATE or DELETE is needed")
            if kind != "delete" and not isinstance(content, str):
                raise DataError(f"{where}: new_memory: text is needed, not {content!r}")
            changed = fields.get("updated_at") if kind != "insert" else None
            time = max(time, log_time(where, changed or fields["created_at"]))
            known = {name: fields[name] for name in ("actor_id", "role") if fields.get(name)}
            events.append(Event(where, time, _operation(kind, id, content, time, payloads.get(id, known))))
    return events


def _metadata(payload: Payload) -> dict[str, Any]:
    return {name: value for name, value in payload.fields.items() if name not in _NOT_METADATA}


def _agreed(happened: list[Event], payloads: Mapping[str, Payload], notes: list[str]) -> list[Event]:
    """The events with those that are missing for them to end at what the payloads hold."""
    last = {event.operation.id or "": event.operation for event in happened}
    more: list[Event] = []
    unsaid, differing = [], []
    for id, payload in payloads.items():
        said = last.get(id)
        if said is None or said.kind == "delete" or said.content != payload.content:
            (unsaid if said is None else differing).append(id)
            kind = "insert" if said is None or said.kind == "delete" else "update"
            operation = _operation(kind, id, payload.content, payload.time, payload)
            more.append(Event(payload.where, payload.time, operation))
    gone = [id for id, said in last.items() if said.kind != "delete" and id not in payloads]
    end = happened[-1].time if happened else ""
    more += [Event("the vectors", end, Operation("delete", id=id)) for id in gone]
    if happened:
        for ids, what in (
            (unsaid, "are in the vectors but not in the history"),
            (differing, "are otherwise in the vectors than the history says"),
            (gone, "are in the history but not in these vectors"),
        ):
            if ids:
                some = ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")
                notes.append(f"{len(ids)} memories {what}: {some}")
    return sorted([*happened, *more], key=lambda event: event.time)  # stable: a history is in order already


def _payloads(path: Path) -> dict[str, Payload] | None:
    """What mem0 holds now by id; None where a path is no store of payloads."""
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.json")) if file.name != "meta.json"]
        files = files or sorted(path.glob("*.pkl"))
        files += [path / "storage.sqlite"] if (path / "storage.sqlite").exists() else []
        files += sorted(path.glob("collection/*/storage.sqlite"))
        mine = [file for file in files if not _is_beside(file)]
        if not mine:
            return None
        if len(mine) > 1:
            raise DataError(f"{path}: several collections: give one of {', '.join(map(str, mine))}")
        return _payloads(mine[0])
    if path.suffix in (".json", ".pkl"):
        return dict(_docstore(path))
    with sqlite_copy(path) as rows:
        if not rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'points'").fetchone():
            return None
        columns(path, rows, "points", ("id", "point"))
        return dict(_points(path, rows.execute("SELECT rowid, point FROM points ORDER BY rowid")))


def _is_beside(file: Path) -> bool:
    """Whether a collection is one that mem0 keeps beside the memories: entities, and a mark of its own."""
    name = file.parent.name if file.name == "storage.sqlite" else file.stem
    return name.endswith("_entities") or name == "mem0migrations"


def _docstore(path: Path) -> Iterator[tuple[str, Payload]]:
    if path.suffix == ".json":
        try:
            data = json.loads(read_text(path))
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}") from error
        found = data.get("docstore") if isinstance(data, dict) else None
    else:
        try:
            data = unpickled(str(path), path.read_bytes())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        found = data[0] if isinstance(data, tuple) and len(data) == 2 else None
    if not isinstance(found, dict):
        raise DataError(f"{path}: no docstore of mem0's FAISS store")
    for id, fields in found.items():
        where = f"{path}: docstore: {id}"
        if not isinstance(fields, dict):
            raise DataError(f"{where}: a payload is needed, not {fields!r}")
        yield str(id), Payload(where, plain(where, fields))


def _points(path: Path, rows: Any) -> Iterator[tuple[str, Payload]]:
    """The points of Qdrant's local store, the newest of an id last."""
    for row, data in rows:
        where = f"{path}: table points, row {row}"
        point = unpickled(where, data, _PACKAGES)
        state = point.state if isinstance(point, Inert) and isinstance(point.state, dict) else {}
        fields = state.get("__dict__", state)
        if not isinstance(fields, dict) or not isinstance(fields.get("payload"), dict) or "id" not in fields:
            raise DataError(f"{where}: no point with an id and a payload")
        yield str(fields["id"]), Payload(where, plain(where, fields["payload"]))
