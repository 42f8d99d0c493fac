"""Commands on the operation log of a store: history, diff, undo, redo, revert, review, fork, erase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from memalpha.cli.options import (
    AsJson,
    AsOf,
    EmbedderName,
    Namespace,
    StoreFile,
    Where,
    format_entry,
    open_store,
    parse_json_object,
    print_result,
    resolve_position,
    to_json_value,
)
from memalpha.errors import ScrubPending, StoreError

if TYPE_CHECKING:
    from memalpha.types import MemoryEntry, Operation


def history(
    store: StoreFile,
    entry_id: Annotated[str, typer.Argument(metavar="ID", help="The entry; it may be deleted.")],
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show every version of an entry.

    Each with the log positions between which it was valid, and who wrote it: speaker, source and key.

    Example: memalpha history ana.db ana-lives#k --json

    Raises:
        StoreError: There is no store, or it never held the entry.
    """
    with open_store(store, embedder, namespace, reads=True) as memory:
        versions = memory.history(entry_id)
    lines = []
    for v in versions:
        end = "now" if v.valid_to is None else v.valid_to
        lines.append(f"v{v.version}  {v.valid_from:>5} to {end:<5}  {v.content}{_writer(v)}")
    print_result([to_json_value(version) for version in versions], as_json, "\n".join(lines))


def _writer(record: MemoryEntry | Operation) -> str:
    """Return who wrote an entry or operation, in brackets; "" if nobody is recorded."""
    key = f"key {record.key}" if record.key else None
    names = ", ".join(name for name in (record.speaker, record.source, key) if name)
    return f"  [{names}]" if names else ""


def diff(
    store: StoreFile,
    start: Annotated[str, typer.Argument(metavar="FROM", help="Log position, or ISO date or time.")],
    end: Annotated[str | None, typer.Argument(metavar="[TO]", help="The same; by default the current state.")] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show the difference between two states of STORE.

    Entries added (+), removed (-) and changed (- before, + after), and the core memory.

    Example: memalpha diff ana.db 2024-05-01 2024-06-01

    Raises:
        StoreError: There is no store, or no such position.
    """
    with open_store(store, None, namespace, reads=True) as memory:
        changes = memory.diff(resolve_position(start, memory, "FROM") or 0, resolve_position(end, memory, "TO"))
    lines = [f"- core: {changes.core[0]}", f"+ core: {changes.core[1]}"] if changes.core else []
    lines += [f"- {format_entry(entry)}" for entry in changes.removed]
    for before, after in changes.changed:
        lines += [f"- {format_entry(before)}", f"+ {format_entry(after)}"]
    lines += [f"+ {format_entry(entry)}" for entry in changes.added]
    print_result(changes, as_json, "\n".join(lines) or "no difference")


def undo(
    store: StoreFile,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="POSITION", help="Go back to this log position in one step.")
    ] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Undo the last operation of STORE, or all since a position.

    The log keeps both: undo appends the inverse operation, and `memalpha redo` applies the undone one again.

    Example: memalpha undo ana.db

    Raises:
        StoreError: There is no store, no such position, or nothing to undo.
    """
    if to is None:
        _undo_or_redo(store, namespace, as_json, "undo")
        return
    with open_store(store, None, namespace) as memory:
        count = memory.restore(to)
    print_result({"operations": count}, as_json, f"the memory is as it was at position {to}: {count} operations")


def redo(store: StoreFile, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Redo the operation that the last undo took back.

    Possible until another operation is written.

    Example: memalpha redo ana.db

    Raises:
        StoreError: There is no store, or nothing to redo.
    """
    _undo_or_redo(store, namespace, as_json, "redo")


def _undo_or_redo(store: str, namespace: str, as_json: bool, command: Literal["undo", "redo"]) -> None:
    with open_store(store, None, namespace) as memory:
        operation = memory.undo() if command == "undo" else memory.redo()
    if operation is None:
        text = f"nothing to {command}"
    else:
        text = " ".join(filter(None, (command, operation.kind, operation.id, operation.content)))
    print_result(operation, as_json, text)


def revert(
    store: StoreFile,
    source: Annotated[str | None, typer.Option(help="Writes of this text or conversation.")] = None,
    speaker: Annotated[str | None, typer.Option(help="Writes on the word of this person.")] = None,
    key: Annotated[str | None, typer.Option(metavar="NAME", help="Writes with this key of the server.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Writes after this log position, or ISO date or time.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; write nothing.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Take back what a source, a speaker or a key wrote, and restore what it overwrote or deleted.

    What somebody else changed since stays as it is and is listed. The log keeps everything.

    Example: memalpha revert ana.db --source web-page --dry-run

    Raises:
        StoreError: There is no store, no such position, or no condition is given.
    """
    with open_store(store, None, namespace, reads=dry_run) as memory:
        start = resolve_position(since, memory, "--since")
        report = memory.revert(source=source, speaker=speaker, key=key, since=start, dry_run=dry_run)
    lines = []
    for change in report.changes:
        name = change.id or "core"
        lines += [f"- {name:<26} {change.before}"] if change.before is not None else []
        lines += [f"+ {name:<26} {change.after}"] if change.after is not None else []
    lines += [f"stays: {item.id or 'core'}: {item.conflict}" for item in report.conflicts]
    verb = "were reverted" if report.applied else "would be reverted"
    lines.append(f"{len(report.changes)} entries {verb}, {len(report.conflicts)} stay as they are")
    if report.applied and report.changes:
        lines.append(f"to take this back: memalpha undo {store} --to {report.position}")
    print_result(report, as_json, "\n".join(lines))


def review(
    store: StoreFile,
    accept: Annotated[
        list[int] | None, typer.Option(metavar="POSITION", help="Apply this operation; repeat for more.")
    ] = None,
    reject: Annotated[
        list[int] | None, typer.Option(metavar="POSITION", help="Leave this operation out; repeat for more.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List reviewed operations, too.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the operations that a trust rule put into quarantine, and accept or reject them.

    Example: memalpha review ana.db --accept 17

    Raises:
        StoreError: There is no store, nothing awaits a review there, or its entry was changed since.
    """
    decisions = dict.fromkeys(accept or (), True)
    for position in reject or ():
        if position in decisions:
            raise StoreError(f"review: {position} is accepted and rejected: choose one")
        decisions[position] = False
    with open_store(store, None, namespace, reads=not decisions) as memory:
        items = [memory.review(position, accept=is_accepted) for position, is_accepted in decisions.items()]
        if not decisions:
            items = memory.quarantined(pending=not everything)
    lines = []
    for item in items:
        operation = item.operation
        what = " ".join(filter(None, (operation.kind, operation.id, operation.content)))
        lines.append(f"{item.position:>6}  {item.decision or 'pending':<8}  {what}{_writer(operation)}")
        lines += [] if item.before is None else [f"        now: {item.before}"]
        lines.append(f"        why: {item.reason}")
    print_result(items, as_json, "\n".join(lines) or "nothing awaits a review")


def fork(
    store: StoreFile,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The new namespace.")] = None,
    path: Annotated[
        str | None, typer.Option(help="A new file, or a PostgreSQL URL, instead of a namespace of STORE.")
    ] = None,
    as_of: AsOf = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Copy a namespace of STORE with its history.

    The copy is independent: another namespace of STORE, or a store of its own.

    Example: memalpha fork ana.db what-if --as-of 2024-05-01

    Raises:
        StoreError: There is no store, no such position, or the target exists.
    """
    with (
        open_store(store, None, namespace) as memory,
        memory.fork(name, path=path, as_of=resolve_position(as_of, memory)) as copy,
    ):
        count = copy.snapshot()
        target = {"store": copy.path, "namespace": name or namespace, "operations": count}
    print_result(target, as_json, f"{count} operations: namespace {target['namespace']} of {target['store']}")


def erase(
    store: StoreFile,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="An entry; several: --id A --id B.")
    ] = None,
    where: Where = None,
    namespace: Annotated[
        str | None,
        typer.Option(help="Namespace of the entries (default: default); without --id or --where, all is erased."),
    ] = None,
    core_history: Annotated[
        bool, typer.Option("--core-history", help="Erase all texts of the core memory but the current one.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Delete the namespace with its name and log, not its content alone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: erased content cannot be restored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase entries, or a whole namespace, for good.

    `--where` takes every entry of which any version passes: live, deleted, expired, undone or quarantined. Their
    content leaves the log, past states, vectors and the free space of the file. Operations without content stay in
    their place, so that log positions do not change. Forks, exports and copies of the file are not touched; forks in
    this file are named. Exits with 1 if bytes may still lie in the file; the next opening of STORE goes on.

    Example: memalpha erase ana.db --where '{"user": "ana"}' --yes

    Raises:
        StoreError: Nothing is chosen, `yes` is missing, or an entry is unknown.
        typer.Exit: A scrub is pending (exit code 1).
    """
    if not ids and where is None and namespace is None and not core_history:
        raise StoreError("erase: choose entries or a namespace: --id ID or --namespace NAME or --where JSON")
    has_entries = bool(ids) or where is not None
    if has_entries + core_history + drop > 1:
        raise StoreError("erase: choose one of --id or --where, --core-history and --drop")
    if not yes:
        raise StoreError("erase: erased content cannot be restored: add --yes to confirm")
    with open_store(store, None, namespace or "default") as memory:
        count = memory.snapshot()
        pending, erasure = None, None
        try:
            if has_entries:
                erasure = memory.erase(*ids or (), where=parse_json_object("--where", where))
            elif core_history:
                count = memory.erase_core_history()
            elif drop:
                memory.drop_namespace(namespace or "default")
            else:
                count = memory.erase_all()
        except ScrubPending as error:
            pending, erasure = str(error), error.erasure if has_entries else None
    result: dict[str, Any] = {"operations": count}
    text = f"{count} operations erased"
    if erasure is not None:
        result = {"erased": list(erasure.ids), "same_content": list(erasure), "forks": list(erasure.forks)}
        text = f"{len(erasure.ids)} entries erased"
        text += "".join(f"\nthe same content is, or was, in {id}" for id in erasure)
        text += "".join(f"\nnamespace {name} is a fork and still has it" for name in erasure.forks)
    if pending:
        result, text = {**result, "pending_scrub": pending}, f"{text}\n{pending}"
    print_result(result, as_json, text)
    if pending:
        raise typer.Exit(1)
