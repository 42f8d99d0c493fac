"""The command `audit`: what is wrong with what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalpha.cli.store import (
    AsJson,
    EmbedderName,
    StoreFile,
    chunks_of,
    line_of,
    open_store,
    print_result,
    text_of,
)
from memalpha.errors import DataError

if TYPE_CHECKING:
    from memalpha.store.checks.audit import Audit, Finding
    from memalpha.types import Chunk


def audit(
    store: StoreFile,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is asked of it: a line each, or a task file (.jsonl).")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What it was written from: a text or a task file, as for read.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits count as retrieved.")] = 10,
    near: Annotated[float, typer.Option(help="The cosine from which two entries are near duplicates.")] = 0.95,
    limit: Annotated[int, typer.Option(min=1, help="Findings, and entries of each, to print (--json: all).")] = 20,
    namespace: Annotated[str | None, typer.Option(help="Only this scope (default: each by itself).")] = None,
    embedder: EmbedderName = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with what STORE holds.

    By rules alone, no model: contradictions, entries that are outdated but live, duplicates, categories that no query
    retrieves, entries without an origin, and how much of the source the facts cover. Nothing is changed.

    Example: memalpha audit ana.db --queries questions.txt --source chat.txt --json
    """
    from memalpha.store.checks.audit import audit as look

    asked = None if queries is None else _queries(queries)
    origin = None if source is None else (str(source), _chunks(source))
    with open_store(store, embedder, namespace or "default") as memory:
        names = [namespace] if namespace is not None else memory.namespaces()
        found = [look(memory.namespace(name), queries=asked, k=k, near=near, source=origin) for name in names]
    print_result(found, as_json, "\n".join(line for report in found for line in _lines(report, limit)))


COMMANDS = (audit,)


def _queries(file: Path) -> list[str]:
    if file.suffix == ".jsonl":
        from memalpha.tasks.formats.jsonl import load_jsonl

        return [question.question for task in load_jsonl(file) for question in task.questions]
    found = [line.strip() for line in text_of(file).splitlines() if line.strip()]
    if not found:
        raise DataError(f"{file} is empty: write a query a line")
    return found


def _chunks(file: Path) -> list[Chunk]:
    """What `memalpha read` makes of a file; of a task file, the chunks of its one task."""
    chunks = chunks_of(file, None)
    if len({chunk.index for chunk in chunks}) < len(chunks):
        raise DataError(f"{file} holds several tasks, whose chunks have the same numbers: give a file with one")
    return chunks


def _lines(report: Audit, limit: int) -> list[str]:
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    lines = [f"namespace {report.namespace}: {counts}"]
    for finding in report.findings[:limit]:
        lines += _finding(finding, limit)
    if len(report.findings) > limit:
        lines.append(f"  ... {len(report.findings) - limit} findings more: --limit")
    if report.retrieval is not None and report.counts["entries"]:
        how = "by their own contents" if report.retrieval.own else "queries"
        some = (f"{name} {of['found']} of {of['asked']}" for name, of in report.retrieval.categories.items())
        lines.append(f"  retrieved among {report.retrieval.k}, {how}: {', '.join(some)}")
    if (held := report.coverage) is not None:
        lines.append(
            f"  covered: {held.by_origin} of {held.spans} spans by their origin, {held.by_content} more by content; "
            f"{held.chunks_by_origin} of {held.chunks} chunks"
        )
    return lines


def _finding(finding: Finding, limit: int) -> list[str]:
    lines = [f"  {finding.kind} ({finding.reason}): {finding.message}"]
    lines += [f"    {line_of(entry)}" for entry in finding.entries[:limit]]
    if len(finding.entries) > limit:
        lines.append(f"    ... {len(finding.entries) - limit} entries more")
    return lines
