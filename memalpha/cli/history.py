"""Commands on the operation log of a store: history, diff, undo, redo, fork, erase."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from memalpha.cli.options import (
    AsJson,
    AsOf,
    EmbedderName,
    Namespace,
    StoreFile,
    format_entry,
    open_store,
    print_result,
    resolve_position,
    to_json_value,
)
from memalpha.errors import ScrubPending, StoreError


def history(
    store: StoreFile,
    entry_id: Annotated[str, typer.Argument(metavar="ID", help="The entry; it may be deleted.")],
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show every version of an entry.

    Each with the log positions between which it was valid.

    Example: memalpha history ana.db ana-lives#k --json

    Raises:
        StoreError: There is no store, or it never held the entry.
    """
    with open_store(store, embedder, namespace, reads=True) as memory:
        versions = memory.history(entry_id)
    lines = [
        f"v{v.version}  {v.valid_from:>5} to {v.valid_to if v.valid_to is not None else 'now':<5}  {v.content}"
        for v in versions
    ]
    print_result([to_json_value(version) for version in versions], as_json, "\n".join(lines))


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


def undo(store: StoreFile, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Undo the last operation of STORE.

    The log keeps both: undo appends the inverse operation, and `memalpha redo` applies the undone one again.

    Example: memalpha undo ana.db

    Raises:
        StoreError: There is no store, or nothing to undo.
    """
    _undo_or_redo(store, namespace, as_json, "undo")


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
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the ids (default: default); without --id, all of it is erased.")
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

    Their content leaves the log, past states, vectors and the free space of the file. Operations without content stay
    in their place, so that log positions do not change. Forks, exports and copies of the file are not touched. Exits
    with 1 if bytes may still lie in the file; the next opening of STORE goes on.

    Example: memalpha erase ana.db --id ana-lives#k --yes

    Raises:
        StoreError: Nothing is chosen, `yes` is missing, or an entry is unknown.
        typer.Exit: A scrub is pending (exit code 1).
    """
    if not ids and namespace is None and not core_history:
        raise StoreError("erase: choose entries or a namespace: --id ID or --namespace NAME")
    if bool(ids) + core_history + drop > 1:
        raise StoreError("erase: choose one of --id, --core-history and --drop")
    if not yes:
        raise StoreError("erase: erased content cannot be restored: add --yes to confirm")
    with open_store(store, None, namespace or "default") as memory:
        count = memory.snapshot()
        pending, same_content = None, []
        try:
            if ids:
                same_content = memory.erase(*ids)
            elif core_history:
                count = memory.erase_core_history()
            elif drop:
                memory.drop_namespace(namespace or "default")
            else:
                count = memory.erase_all()
        except ScrubPending as error:
            pending, same_content = str(error), list(error.same_content)
    text = f"{len(ids)} entries erased" if ids else f"{count} operations erased"
    text += "".join(f"\nthe same content is, or was, in {id}" for id in same_content)
    result = {"erased": ids, "same_content": same_content} if ids else {"operations": count}
    if pending:
        result, text = {**result, "pending_scrub": pending}, f"{text}\n{pending}"
    print_result(result, as_json, text)
    if pending:
        raise typer.Exit(1)


COMMANDS = {"history": history, "diff": diff, "undo": undo, "redo": redo, "fork": fork, "erase": erase}
