"""Commands that move memories between stores and files: export, import, copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memalpha.cli.options import AsJson, EmbedderName, Namespace, SchemaName, StoreFile, open_store, print_result

if TYPE_CHECKING:
    from types import ModuleType


Source = Literal["jsonl", "markdown"]
_MARKDOWN = (".md", ".markdown")


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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, or facts of your own.")],
    source: Annotated[
        Source | None, typer.Option("--from", help="Format of FILE (default: Markdown if it ends in .md).")
    ] = None,
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import memories into STORE.

    An exported log, facts of your own (one JSON object per line with a category and a content), or Markdown. All is
    imported or nothing; a missing STORE is created.

    Example: memalpha import copy.db ana.jsonl

    Raises:
        DataError: The file does not fit; nothing is imported then.
        StoreError: The store cannot be opened.
    """
    from memalpha.store.io.jsonl import read_jsonl

    is_markdown = source == "markdown" or (source is None and file.suffix in _MARKDOWN)
    # Refuse an unreadable file before a store is created.
    if is_markdown:
        _markdown().read_markdown(file)
    else:
        read_jsonl(file)
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        count = _markdown().import_markdown(memory, file) if is_markdown else memory.import_jsonl(file)
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
