"""The commands that carry memories in and out of a store: export, import and copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memalpha.cli.store import AsJson, EmbedderName, Namespace, SchemaName, StoreFile, open_store, print_result
from memalpha.errors import StoreError

if TYPE_CHECKING:
    from memalpha.store.io.importers.base import Imported

Source = Literal["jsonl", "markdown", "mem0", "langgraph"]
_MARKDOWN = (".md", ".markdown")
_SHOWN = 20


def export(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: Markdown if it ends in .md.")],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write STORE to a file.

    As JSON Lines, one operation a line, the whole log; `memalpha import` makes the same memory of it, past states
    included. As Markdown (.md), what it holds now, to be read, edited and imported again.

    Example: memalpha export ana.db notes.md
    """
    with open_store(store, None, namespace) as memory:
        if file.suffix in _MARKDOWN:
            from memalpha.store.io.markdown import export_markdown

            count, what = export_markdown(memory, file), "entries"
        else:
            count, what = memory.export_jsonl(file), "operations"
    print_result({what: count, "path": str(file)}, as_json, f"{count} {what}: {file}")


def import_(
    store: StoreFile,
    file: Annotated[
        Path, typer.Argument(metavar="PATH", help="What export wrote, or another library's file or folder.")
    ],
    source: Annotated[
        Source | None, typer.Option("--from", help="What PATH is; without: by its name and by what is in it.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="mem0's history.db, where it does not lie in PATH itself.")
    ] = None,
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Take memories into STORE.

    An exported log, facts of your own (a line of JSON each, no more than a category and a content), Markdown, or what
    mem0 (FAISS or Qdrant in a local folder) or LangGraph's SqliteStore keep. All of it or nothing; STORE is made when
    it is not there. mem0's users, agents and runs and LangGraph's prefixes become namespaces.

    Example: memalpha import audited.db qdrant-folder --from mem0 --history history.db
    """
    from memalpha.store.io.importers.replay import form_of, import_foreign, read_foreign
    from memalpha.store.io.jsonl import read_jsonl
    from memalpha.store.io.markdown import import_markdown, read_markdown

    form = source or ("markdown" if file.suffix in _MARKDOWN else form_of(file) or "jsonl")
    if history is not None and form != "mem0":
        raise StoreError(f"--history is mem0's, and {file} is read as {form}")
    # What cannot be read is refused before a store is made.
    if form == "markdown":
        read_markdown(file)
    elif form == "jsonl":
        read_jsonl(file)
    else:
        read_foreign(file, form, namespace, history=history)
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        if form in ("mem0", "langgraph"):
            done = import_foreign(memory, file, form, history=history)
            print_result(done, as_json, "\n".join(_lines(done, store)))
            return
        count = import_markdown(memory, file) if form == "markdown" else memory.import_jsonl(file)
    print_result({"operations": count, "path": str(store)}, as_json, f"{count} operations: {store}")


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The store: a file, or a URL postgresql://...")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Where to: a new file, or a URL.")],
    as_json: AsJson = False,
) -> None:
    """Copy a whole store to another place: all namespaces, each with its log.

    Between files and PostgreSQL databases, either way. Ids, positions and times are kept and nothing is embedded anew.
    The copy is there as a whole or not at all; SRC stays as it is.

    Example: memalpha copy ana.db "postgresql://app@localhost/memories?schema=team"
    """
    from memalpha.store.io.copy import copy_store

    done = copy_store(source, target)
    lines = [f"{count} operations: namespace {name}" for name, count in done.items()]
    print_result({"namespaces": done}, as_json, "\n".join(lines) or "the store has no namespaces")


COMMANDS = (export, import_, copy)


def _lines(done: Imported, store: Path | str) -> list[str]:
    lines = [f"{count} operations: namespace {name} of {store}" for name, count in done.operations.items()]
    for item in done.left_out[:_SHOWN]:
        why = f"the same as {item.same_as}" if item.same_as else "no text"
        lines.append(f"left out, {why}: {item.id} of {item.namespace}  {item.content}")
    if len(done.left_out) > _SHOWN:
        lines.append(f"left out: {len(done.left_out) - _SHOWN} more")
    return lines + [f"note: {note}" for note in done.notes]
