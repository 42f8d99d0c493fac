"""Commands that move memories between stores and files: export, import, copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memalpha.cli.options import AsJson, EmbedderName, Namespace, SchemaName, StoreFile, open_store, print_result
from memalpha.errors import StoreError

if TYPE_CHECKING:
    from types import ModuleType

    from memalpha.store.io.importers.base import ImportReport

Source = Literal["jsonl", "markdown", "mem0", "langgraph"]
_MARKDOWN = (".md", ".markdown")
_MAX_SKIPPED = 20


def export(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: Markdown if it ends in .md.")],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write STORE to a file.

    JSON Lines hold the whole log, one operation per line; `memalpha import` restores the memory and its past states.
    Markdown (.md) holds the current entries, to read, edit and import again.

    Example: memalpha export ana.db notes.md

    Raises:
        StoreError: There is no store, or the file cannot be written.
    """
    with open_store(store, None, namespace, reads=True) as memory:
        if file.suffix in _MARKDOWN:
            count, unit = _markdown().export_markdown(memory, file), "entries"
        else:
            count, unit = memory.export_jsonl(file), "operations"
    print_result({unit: count, "path": str(file)}, as_json, f"{count} {unit}: {file}")


def import_(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(metavar="PATH", help="An export, or another library's file or folder.")],
    source: Annotated[
        Source | None, typer.Option("--from", help="Format of PATH (default: by its name and content).")
    ] = None,
    history: Annotated[Path | None, typer.Option(help="mem0's history.db, if it is not in PATH.")] = None,
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import memories into STORE.

    An exported log, facts of your own (one JSON object per line with a category and a content), Markdown, or the
    storage of mem0 (FAISS or Qdrant in a local folder) or of LangGraph's SqliteStore. mem0's users, agents and runs
    and LangGraph's prefixes become namespaces. All is imported or nothing; a missing STORE is created.

    Example: memalpha import audited.db qdrant-folder --from mem0 --history history.db

    Raises:
        DataError: The file does not fit; nothing is imported then.
        StoreError: The store cannot be opened.
    """
    from memalpha.store.io.importers.replay import detect_format, import_memories, read_events
    from memalpha.store.io.jsonl import read_jsonl

    form = source or ("markdown" if file.suffix in _MARKDOWN else detect_format(file) or "jsonl")
    if history is not None and form != "mem0":
        raise StoreError(f"--history belongs to mem0, but {file} is read as {form}")
    # Refuse an unreadable file before a store is created.
    if form == "markdown":
        _markdown().read_markdown(file)
    elif form == "jsonl":
        read_jsonl(file)
    else:
        read_events(file, form, namespace, history=history)
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        if form in ("mem0", "langgraph"):
            imported = import_memories(memory, file, form, history=history)
            print_result(imported, as_json, "\n".join(_format_imported(imported, store)))
            return
        count = _markdown().import_markdown(memory, file) if form == "markdown" else memory.import_jsonl(file)
    print_result({"operations": count, "path": str(store)}, as_json, f"{count} operations: {store}")


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The store: a file, or a postgresql:// URL.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The copy: a new file, or a postgresql:// URL.")],
    as_json: AsJson = False,
) -> None:
    """Copy a whole store: all namespaces, each with its log.

    Works between files and PostgreSQL databases in both directions. Ids, positions and times stay the same, and no
    text is embedded again. DST is complete or absent; SRC is not changed.

    Example: memalpha copy ana.db "postgresql://app@localhost/memories?schema=team"

    Raises:
        StoreError: The source is missing, or the target holds a store.
    """
    from memalpha.store.io.copy import copy_store

    counts = copy_store(source, target)
    lines = [f"{count} operations: namespace {name}" for name, count in counts.items()]
    print_result({"namespaces": counts}, as_json, "\n".join(lines) or "the store has no namespaces")


COMMANDS = {"export": export, "import": import_, "copy": copy}


def _markdown() -> ModuleType:
    from memalpha.store.io import markdown

    return markdown


def _format_imported(imported: ImportReport, store: Path | str) -> list[str]:
    lines = [f"{count} operations: namespace {name} of {store}" for name, count in imported.operations.items()]
    for item in imported.left_out[:_MAX_SKIPPED]:
        reason = f"the same as {item.same_as}" if item.same_as else "no text"
        lines.append(f"left out, {reason}: {item.id} of {item.namespace}  {item.content}")
    if len(imported.left_out) > _MAX_SKIPPED:
        lines.append(f"left out: {len(imported.left_out) - _MAX_SKIPPED} more")
    return lines + [f"note: {note}" for note in imported.notes]
