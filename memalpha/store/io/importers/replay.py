"""Importing from mem0 or LangGraph: its events are replayed as operations of new namespaces.

A reader (`mem0`, `langgraph`) returns events by namespace, oldest first. They become a log with the other store's ids
and times, so that `as_of`, `history` and `audit` work on imported memories. The source is only read: SQLite files from
a copy, pickles without creating any of their objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.store.io.importers import langgraph, mem0
from memalpha.store.io.importers.base import SQLITE_MAGIC, ImportReport, SkippedMemory, SourceEvent, open_sqlite_copy
from memalpha.store.io.jsonl import locate_errors
from memalpha.store.schema import MemorySchema
from memalpha.store.state import MemoryState, plan
from memalpha.types import Operation

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

SourceFormat = Literal["mem0", "langgraph"]


def detect_format(path: str | Path) -> SourceFormat | None:
    """Return the kind of store that a file or folder is, by its content; None for anything else.

    Raises `DataError` for an unknown SQLite file and for an unreadable file.
    """
    path = Path(path)
    if path.is_dir() or path.suffix == ".pkl":
        return "mem0"
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not head.startswith(SQLITE_MAGIC):
        return "mem0" if head.lstrip()[:1] == b"{" and b'"docstore"' in head else None
    with open_sqlite_copy(path) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if "store" in names:
        return "langgraph"
    if names & {"history", "points"}:
        return "mem0"
    if {"operations", "versions"} <= names:
        raise DataError(f"{path}: a memalpha store: copy it as a file, or a namespace of it with `memalpha fork`")
    raise DataError(f"{path}: an SQLite file without mem0's table history or points, or LangGraph's table store")


def read_events(
    path: str | Path, form: SourceFormat, default_namespace: str, *, history: str | Path | None = None
) -> tuple[dict[str, list[SourceEvent]], list[str]]:
    """Read the events of another store.

    Args:
        path: File or folder of the other store.
        form: Its format.
        default_namespace: Namespace of memories without an owner.
        history: History file of mem0, if it does not lie in the folder `path`.

    Returns:
        Events by namespace, and remarks about the source.

    Raises:
        DataError: The source is invalid; the message names file, table and row.
    """
    notes: list[str] = []
    if form == "mem0":
        return mem0.read_events(Path(path), None if history is None else Path(history), default_namespace, notes), notes
    return langgraph.read_events(Path(path), default_namespace), notes


def import_memories(
    store: MemoryStore, path: str | Path, form: SourceFormat, *, history: str | Path | None = None
) -> ImportReport:
    """Replay another store's memories into namespaces of `store`, all or none.

    `mem0` and `langgraph` say which namespaces. Entries go to the first category of the schema. The log has the times
    of the source, so the namespaces must be new. An exact copy of a live entry is skipped, whatever its other fields,
    and is inserted when that entry is changed or deleted. Memories that stay skipped are listed.

    Args:
        store: Store to write to.
        path: File or folder of the other store.
        form: Its format, from `detect_format`.
        history: History file of mem0, if it does not lie in the folder `path`.

    Raises:
        DataError: The source is invalid; the message names file, table and row.
        StoreError: A namespace has a log already.
    """
    report = ImportReport()
    events_by_namespace, report.notes = read_events(path, form, store._namespace.name, history=history)
    logs = {name: _replay(store.schema, name, events, report.left_out) for name, events in events_by_namespace.items()}
    contents = {operation.content for log in logs.values() for _, operation in log if operation.content is not None}
    vectors = store._embed(sorted(contents))
    with store._database.transaction(store._namespace.name, *logs), store._transaction(write=True):
        for name, log in logs.items():
            namespace = store.namespace(name)._namespace
            if namespace.log.position:
                raise StoreError(f"namespace {name!r} has a log already: import into a new store")
            for time, operation in log:
                namespace.write(operation, vectors, time=time or None)
            report.operations[name] = namespace.log.position
    return report


def _replay(
    schema: MemorySchema, namespace: str, events: Sequence[SourceEvent], left_out: list[SkippedMemory]
) -> list[tuple[str, Operation]]:
    """Return the operations, with times, that events amount to under the rules of a store."""
    state, log = MemoryState.empty(schema), []
    inserts: dict[str, Operation] = {}  # memories of the source by its id, as inserts
    waiting_ids: dict[str, list[str]] = {}  # ids of skipped copies by content

    def append(time: str, operation: Operation) -> None:
        nonlocal state
        change = plan(state, operation, state.position + 1)
        state = state.advance(change)
        log.append((time, change.operation))
        if change.ended is not None and (change.entry is None or change.entry.content != change.ended.content):
            for id in waiting_ids.pop(change.ended.content, []):
                if (
                    id in inserts
                    and id not in state.entries
                    and (inserts[id].content or "").strip() == change.ended.content
                ):
                    put(time, id)

    def put(time: str, id: str) -> None:
        """Make a memory live as the source holds it, unless another entry has the same content."""
        live, operation = id in state.entries, inserts[id]
        try:
            append(time, replace(operation, kind="update") if live else operation)
        except DuplicateContent as same:
            if same.entry_id != id:
                waiting_ids.setdefault((operation.content or "").strip(), []).append(id)
                if live:
                    append(time, Operation("delete", id=id))

    for number, (location, time, operation) in enumerate(events):
        with locate_errors(location):
            if operation.kind == "delete":
                inserts.pop(operation.id or "", None)
                if operation.id in state.entries:
                    append(time, operation)
                continue
            insert = replace(operation, kind="insert", category=schema.category_names[0])
            id = operation.id or f"{number}"
            if not (operation.content or "").strip():
                left_out.append(SkippedMemory(namespace, operation.id, "", None))
            elif operation.id is not None:
                inserts[id] = insert
                put(time, id)
            else:
                try:
                    append(time, insert)
                except DuplicateContent as same:
                    left_out.append(SkippedMemory(namespace, None, operation.content or "", same.entry_id))
    for id, operation in inserts.items():
        if id not in state.entries:
            same = state.find(schema.category_names[0], operation.content or "")
            left_out.append(SkippedMemory(namespace, id, operation.content or "", same.id if same else None))
    return log
