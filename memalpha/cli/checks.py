"""Commands that check and tidy a store: audit, consolidate (content), doctor (file and log), and check-policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from memalpha.arguments import counted
from memalpha.cli.options import (
    Result,
    failed_if,
    format_entry,
    load_policy,
    open_store,
    parse_store_writer,
    parse_writer_settings,
    read_text,
)
from memalpha.errors import ConfigError, DataError, PolicyError
from memalpha.tasks.formats.jsonl import load_jsonl

if TYPE_CHECKING:
    from memalpha.agent.policy_check import PolicyCheck


def audit(
    store: str,
    queries: Annotated[Path | None, Option(metavar="FILE")] = None,
    k: int = 10,
    limit: int = 20,
    namespace: str | None = None,
    embedder: str | None = None,
) -> Result:
    """Look for problems in the content of STORE.

    By rules, without a model: contradictions, outdated entries that are still live, duplicates, categories that no
    query retrieves, and entries without an origin. Nothing is changed.

    Example: memalpha audit ana.db --queries questions.txt --json

    Args:
        queries: Queries to try: one per line, or a task file (.jsonl).
        k: An entry counts as retrieved among the first K hits.
        limit: Findings, and entries per finding, to print (--json prints all).
        namespace: Audit only this namespace (default: all).

    Raises:
        DataError: The file of queries cannot be read.
        StoreError: There is no store, or it cannot be opened.
    """
    from memalpha.store.checks.audit import audit as audit_store

    questions: list[str] | None = None
    if queries is not None and queries.suffix == ".jsonl":
        questions = [question.question for task in load_jsonl(queries) for question in task.questions]
    elif queries is not None:
        questions = [line.strip() for line in read_text(queries).splitlines() if line.strip()]
        if not questions:
            raise DataError(f"{queries} is empty: write one query per line")
    with open_store(store, embedder, namespace, reads=True) as memory:
        names = [namespace] if namespace is not None else memory.namespaces()
        reports = [audit_store(memory.namespace(name), queries=questions, k=k) for name in names]
    lines: list[str] = []
    for report in reports:
        kinds = (f"{count} {name}" for name, count in report.counts.items() if name != "entries")
        lines.append(f"namespace {report.namespace}: {', '.join([counted(report.counts['entries'], 'entry'), *kinds])}")
        for finding in report.findings[:limit]:
            lines.append(f"  {finding.kind} ({finding.reason}): {finding.message}")
            lines += [f"    {format_entry(entry)}" for entry in finding.entries[:limit]]
            if len(finding.entries) > limit:
                lines.append(f"    ... {len(finding.entries) - limit} entries more")
        if len(report.findings) > limit:
            lines.append(f"  ... {len(report.findings) - limit} findings more: --limit")
        if report.retrieval is not None and report.counts["entries"]:
            by = "by their own contents" if report.retrieval.own else "queries"
            found = report.retrieval.categories.items()
            shares = ", ".join(f"{name} {count['found']} of {count['asked']}" for name, count in found)
            lines.append(f"  retrieved among {report.retrieval.k}, {by}: {shares}")
    return Result(reports, "\n".join(lines))


def consolidate(
    store: str,
    policy: str | None = None,
    apply: bool = False,
    undo: bool = False,
    settings: list[str] | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Merge duplicates in STORE, end what is outdated, rewrite the core.

    Lists the changes with their reasons. With --apply they are written in one transaction, and the log keeps each
    reason. Rules do what is certain: equal texts, updated or labelled entries. A model is shown related entries and
    decides the rest, dates such as "yesterday" among it. Raw turns stay as they were said.

    Example: memalpha consolidate ana.db --policy openai:gpt-4o-mini

    Args:
        policy: A model that decides what rules cannot (default: rules alone).
        apply: Write the changes (default: only list them).
        undo: Undo the last consolidation, in one step.

    Raises:
        ConfigError: A setting does not fit, or the policy cannot consolidate.
        PolicyError: The policy cannot be loaded or asked; nothing is written.
        StoreError: There is no store, or nothing to undo.
    """
    from memalpha.agent import consolidate as consolidation
    from memalpha.agent.prompts import prompted_config

    if undo and (apply or policy is not None):
        raise ConfigError("--undo: undoes the last consolidation: leave --apply and --policy out")
    model = None if policy is None else load_policy(policy)
    config = parse_store_writer(settings, None)
    config = config if model is None else prompted_config(config, model)
    with open_store(store, embedder, namespace, reads=not (apply or undo)) as memory:
        if undo:
            count = consolidation.undo_consolidation(memory)
            return Result({"operations": count}, f"{counted(count, 'operation')} undone")
        result = consolidation.propose_consolidation(memory, model, config)
        if apply:
            result = consolidation.apply_consolidation(memory, result)
    lines = []
    for change in result.changes:
        operation = change.operation
        lines += [f"{operation.id or 'core memory'}: {change.reason}", f"  - {change.before}"]
        lines += [] if operation.kind == "delete" else [f"  + {operation.content}"]
    lines += [f"unsure: {line}" for line in result.unsure]
    lines += [f"refused: {line}" for line in result.refused]
    ending = "written; --undo takes them back" if result.applied else "proposed; --apply writes them"
    lines.append(f"{counted(len(result.changes), 'change')} {ending}" if result.changes else "nothing to change")
    return Result(result, "\n".join(lines))


def doctor(store: str, repair: bool = False, embedder: str | None = None) -> Result:
    """Check the file and the log of STORE, and repair them.

    Compares stored versions and vectors with those that the log gives. Exits with 1 if there are problems, or if some
    remain after --repair.

    Example: memalpha doctor ana.db --repair

    Args:
        repair: Rebuild from the log what differs from it.

    Raises:
        StoreError: There is no store, or it cannot be opened.
    """
    from memalpha.store.checks.integrity import examine

    health = examine(store, repair=repair, embedder=embedder)
    lines = [f"repaired: {problem}" for problem in health.repaired]
    lines += [*map(str, health.problems), *(f"note: {note}" for note in health.notes)]
    counts = ", ".join(counted(count, name.removesuffix("s")) for name, count in health.counts.items())
    lines.append(f"{counted(len(health.problems), 'problem') if health.problems else 'sound'}: {counts}")
    return Result(health, "\n".join(lines), failed_if(health.problems))


def check_policy(policy: Annotated[str, Argument(metavar="NAME")], settings: list[str] | None = None) -> Result:
    """Check that a model can write a memory, before anything is trained or read.

    Renders a prompt with the memory tools, writes two calls in the model's own form and reads them back through its
    tokenizer. Only tokenizer and configuration are loaded. An endpoint is asked once. Exits with 2 and the reason if
    the policy cannot work.

    Example: memalpha check-policy Qwen/Qwen3-4B --set max_new_tokens=512

    Args:
        policy: A policy: smol, a directory, a hub id, a run directory, an endpoint.

    Raises:
        ConfigError: A setting does not fit.
        PolicyError: The policy cannot be loaded, or cannot write a memory.
    """
    from memalpha.agent import policy_check

    config = parse_writer_settings(settings)
    result = policy_check.check_policy(load_policy(policy, device="meta"), config)
    error = None
    try:
        result.raise_if_broken()
    except PolicyError as problem:
        error = problem
    return Result(result, "\n".join(_format_check(result)), error)


def _format_check(result: PolicyCheck) -> list[str]:
    rows = {
        "chat template": result.template or "none",
        "tools in the prompt": {True: "yes", False: "no", None: "by the server"}[result.tools_shown],
        "calls read back": "yes" if result.calls_read_back else "no",
        "form of calls": result.format,
        "thinking": result.thinking,
        "prompt tokens": result.prompt_tokens,
        "room for a chunk": None if result.chunk_room is None else max(result.chunk_room, 0),
    }
    lines = [result.policy, *(f"  {name:<20} {value}" for name, value in rows.items() if value is not None)]
    return lines + [f"  note: {note}" for note in result.notes]
