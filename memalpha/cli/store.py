"""Commands on a store: add, search, ask, show, export, import, copy; and on its log.

Those on the log are history, diff, undo, redo, revert, review, fork and erase.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from typer import Argument, Option

from memalpha.arguments import check_path, counted
from memalpha.cli.options import (
    Result,
    Route,
    failed_if,
    format_entry,
    load_policy,
    open_store,
    parse_json_object,
    parse_reader_settings,
    print_note,
    resolve_position,
    to_json_value,
)
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, DuplicateContent, ScrubPending, StoreError
from memalpha.store.fields import check_timestamp
from memalpha.types import MemoryEntry, Operation

Source = Literal["jsonl", "markdown"]
_MARKDOWN = (".md", ".markdown")


def add(
    store: str,
    content: Annotated[str, Argument(metavar="TEXT")],
    category: str = "semantic",
    timestamp: str | None = None,
    importance: float = 1.0,
    source: str | None = None,
    metadata: Annotated[str | None, Option(metavar="JSON")] = None,
    expires: str | None = None,
    schema: str | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Add one fact to STORE.

    A missing STORE is created. Prints the id of the new entry, or `duplicate` and the id of the entry that states
    the same.

    Example: memalpha add ana.db "Ana lives in Lisbon." --category semantic --timestamp 2024-05-01

    Args:
        content: The fact to store.
        category: One of the schema's categories.
        timestamp: ISO date of the fact.
        importance: Weight stored with the entry.
        source: Name of the text or conversation it comes from.
        metadata: Extra fields as a JSON object.
        expires: ISO date or time at which the entry expires.

    Raises:
        StoreError: The store cannot be opened, or a field does not fit.
    """
    check_timestamp(timestamp)
    operation = Operation(
        "insert",
        category=category,
        content=content,
        timestamp=timestamp,
        importance=importance,
        source=source,
        metadata=parse_json_object("--metadata", metadata),
        expires=expires,
    )
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        try:
            entry, outcome = memory.change(operation).entry, "inserted"
        except DuplicateContent as duplicate:
            entry, outcome = memory.get(duplicate.entry_id), "duplicate"
    assert entry is not None
    text = entry.id if outcome == "inserted" else f"duplicate {entry.id}"
    return Result({"outcome": outcome, **to_json_value(entry)}, text)


def search(
    store: str,
    query: str,
    k: int = 5,
    category: str | None = None,
    where: str | None = None,
    route: Route = "soft",
    boost: Annotated[str | None, Option(metavar="JSON")] = None,
    around: Annotated[int, Option(min=0, metavar="TOKENS")] = 0,
    min_score: Annotated[float | None, Option(metavar="SCORE")] = None,
    reranker: Annotated[str | None, Option(metavar="NAME")] = None,
    as_of: str | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Search STORE.

    Example: memalpha search ana.db "Where does Ana live?" -k 3 --json

    Args:
        k: Number of hits.
        category: Search only this category.
        route: soft: two layers; the other routes are for comparison.
        boost: Terms added to scores: '{"importance": 0.3, "recency": 1, "now": "2025-01-10"}'.
        around: Show this much source text around each hit.
        min_score: Leave out hits below it. Routes that add parts score relative to the other entries; the scores of
            dense and bm25 are not relative.
        reranker: Orders the first hits anew: "spans", which ships, or a cross-encoder, by name or folder.

    Raises:
        StoreError: There is no store, or an option does not fit.
    """
    with open_store(store, embedder, namespace, reads=True) as memory:
        from memalpha.store.search.ranking import Boost

        terms = parse_json_object("--boost", boost)
        names = [field.name for field in dataclasses.fields(Boost)]
        for name in terms or ():
            if name not in names:
                raise StoreError(f"--boost: {name}: the terms are {', '.join(names)}")
        hits = memory.search(
            query,
            k,
            category=category,
            as_of=resolve_position(as_of, memory),
            where=parse_json_object("--where", where),
            boost=None if terms is None else Boost(**terms),
            route=route,
            around=around,
            min_score=min_score,
            reranker=reranker,
        )
    lines = []
    for hit in hits:
        lines += [f"{hit.score:6.3f}  {format_entry(hit.entry)}", *(f"        {span.content}" for span in hit.around)]
    return Result(hits, "\n".join(lines))


def ask(
    store: str,
    question: str,
    k: int = 8,
    policy: str | None = None,
    settings: list[str] | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Answer a question from STORE alone.

    Prints `unknown` if STORE has no answer. A note on stderr says if the answer was cut off.

    Example: memalpha ask ana.db "Where does Ana live?" --policy Qwen/Qwen3-4B

    Args:
        k: Entries that the reader sees.
        policy: The model that answers (default: sentences of the memory are quoted, without a model).
        settings: A key of ReaderConfig, as in a run's reader: max_new_tokens, thinking_tokens ...; repeat for more.

    Raises:
        ConfigError: A setting does not fit.
        PolicyError: The policy cannot be loaded or asked.
        StoreError: There is no store.
    """
    from memalpha.agent.agent import default_reader, prompted_config
    from memalpha.agent.reader import QuotingReader

    reader_settings = parse_reader_settings(settings)
    if reader_settings is not None and policy is None:
        raise ConfigError("--set: settings of the model that answers: name it with --policy")
    with open_store(store, embedder, namespace, reads=True) as memory:
        reader = QuotingReader()
        if policy:
            model = load_policy(policy)
            reader = default_reader(model, prompted_config(AgentConfig(), model), reader_settings)
        [answer] = reader.answer([(question, memory)], k=k)
    if answer.truncated:
        remedy = "raise it with --set max_new_tokens=N, or set thinking_tokens=N for a model that thinks first"
        print_note(f"the answer was cut at max_new_tokens: {remedy}")
    elif not answer.text.strip():
        print_note("the model's answer is empty: it may have thoughts alone, or its server failed")
    return Result(answer, "unknown" if answer.abstained else answer.text)


def show(
    store: str,
    entry_id: Annotated[str | None, Argument(metavar="[ID]")] = None,
    category: str | None = None,
    where: str | None = None,
    limit: int | None = None,
    after: Annotated[str | None, Option(metavar="ID")] = None,
    as_of: str | None = None,
    embedder: str | None = None,
    namespace: str = "default",
    html: Annotated[Path | None, Option(metavar="FILE")] = None,
) -> Result:
    """List the entries of STORE, oldest first, and its core memory.

    Example: memalpha show ana.db --category semantic --as-of 2024-05-01
    A page for a browser, with all versions: memalpha show ana.db --html ana.html

    Args:
        entry_id: Show only this entry.
        category: Show only this category.
        limit: Maximum number of entries.
        after: Start after this entry, to get the next page.
        html: Write one page of all entries, versions and moments, for a browser.

    Raises:
        StoreError: There is no store, no such entry, or an option does not fit.
    """
    if html is not None:
        if any(option is not None for option in (entry_id, category, where, limit, after, as_of)):
            raise StoreError("show: --html shows a whole namespace at any moment: leave out ID and the other choices")
        from memalpha.report.memory_page import write_memory_page

        with open_store(store, embedder, namespace, reads=True) as memory:
            written = write_memory_page(memory, html)
        text = f"{written['file']}: {counted(written['live'], 'entry')}, {counted(written['operations'], 'operation')}"
        for name in ("entries", "operations"):
            if written[name] < written[f"all_{name}"]:
                text += f"\n(the last {written[name]} of {written[f'all_{name}']} {name}: a page holds no more)"
        return Result(written, text)
    with open_store(store, embedder, namespace, reads=True) as memory:
        position = resolve_position(as_of, memory)
        if entry_id is not None:
            entries = [memory.get(entry_id, as_of=position)]
        else:
            conditions = parse_json_object("--where", where)
            entries = memory.list(category, where=conditions, limit=limit, after=after, as_of=position)
        core = memory.core_at(position)
    lines = ([f"core: {core}"] if core and entry_id is None else []) + [format_entry(entry) for entry in entries]
    return Result({"core": core, "entries": entries}, "\n".join(lines))


def export(store: str, file: Path, namespace: str = "default") -> Result:
    """Write STORE to a file.

    JSON Lines hold the whole log, one operation per line; `memalpha import` restores the memory and its past states.
    Markdown (.md) holds the current entries, to read, edit and import again.

    Example: memalpha export ana.db notes.md

    Args:
        file: File to write: Markdown if it ends in .md.

    Raises:
        StoreError: There is no store, or the file cannot be written.
    """
    from memalpha.store.io.markdown import export_markdown

    with open_store(store, None, namespace, reads=True) as memory:
        if file.suffix.lower() in _MARKDOWN:
            count, noun, key = export_markdown(memory, file), "entry", "entries"
        else:
            count, noun, key = memory.export_jsonl(file), "operation", "operations"
    return Result({key: count, "path": str(file)}, f"{counted(count, noun)}: {file}")


def import_(
    store: str,
    file: Path,
    source: Annotated[Source | None, Option("--from")] = None,
    schema: str | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Import memories into STORE.

    An exported log, facts of your own (one JSON object per line with a category and a content), or Markdown. All is
    imported or nothing; a missing STORE is created.

    Example: memalpha import copy.db ana.jsonl

    Args:
        file: An export, or facts of your own.
        source: Format of FILE (default: Markdown if it ends in .md).

    Raises:
        DataError: The file does not fit; nothing is imported then.
        StoreError: The store cannot be opened.
    """
    from memalpha.store.io import jsonl, markdown

    is_markdown = source == "markdown" or (source is None and file.suffix.lower() in _MARKDOWN)
    # Refuse an unreadable file before a store is created; read it once, for it may be a pipe.
    check_path("FILE", file)
    if is_markdown:
        apply = partial(markdown.import_markdown, path=file, document=markdown.read_markdown(file))
    else:
        apply = partial(jsonl.import_lines, path=file, lines=jsonl.read_jsonl(file))
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        count = apply(memory)
    return Result({"operations": count, "path": str(store)}, f"{counted(count, 'operation')}: {store}")


def copy(source: Annotated[str, Argument(metavar="SRC")], target: Annotated[str, Argument(metavar="DST")]) -> Result:
    """Copy a whole store: all namespaces, each with its log.

    Works between files and PostgreSQL databases in both directions. Ids, positions and times stay the same, and no
    text is embedded again. DST is complete or absent; SRC is not changed.

    Example: memalpha copy ana.db "postgresql://app@localhost/memories?schema=team"

    Args:
        source: The store: a file, or a postgresql:// URL.
        target: The copy: a new file, or a postgresql:// URL.

    Raises:
        StoreError: The source is missing, or the target holds a store.
    """
    from memalpha.store.open import copy_store

    counts = copy_store(source, target)
    lines = [f"{counted(count, 'operation')}: namespace {name}" for name, count in counts.items()]
    return Result({"namespaces": counts}, "\n".join(lines) or "the store has no namespaces")


def history(
    store: str,
    entry_id: Annotated[str, Argument(metavar="ID")],
    embedder: str | None = None,
    namespace: str = "default",
) -> Result:
    """Show every version of an entry.

    Each with the log positions between which it was valid, and who wrote it: speaker, source and key.

    Example: memalpha history ana.db ana-lives#k --json

    Args:
        entry_id: The entry; it may be deleted.

    Raises:
        StoreError: There is no store, or it never held the entry.
    """
    with open_store(store, embedder, namespace, reads=True) as memory:
        versions = memory.history(entry_id)
    spans = [(v, f"{v.valid_from:>5} to {'now' if v.valid_to is None else v.valid_to:<5}") for v in versions]
    lines = [f"v{v.version}  {span}  {v.content}{_writer(v)}" for v, span in spans]
    return Result(versions, "\n".join(lines))


def _writer(record: MemoryEntry | Operation) -> str:
    """Return who wrote an entry or operation, in brackets; "" if nobody is recorded."""
    key = f"key {record.key}" if record.key else None
    names = ", ".join(name for name in (record.speaker, record.source, key) if name)
    return f"  [{names}]" if names else ""


def diff(
    store: str,
    start: Annotated[str, Argument(metavar="FROM")],
    end: Annotated[str | None, Argument(metavar="[TO]")] = None,
    namespace: str = "default",
) -> Result:
    """Show the difference between two states of STORE.

    Entries added (+), removed (-) and changed (- before, + after), and the core memory.

    Example: memalpha diff ana.db 2024-05-01 2024-06-01

    Args:
        start: Log position, or ISO date or time.
        end: The same; by default the current state.

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
    return Result(changes, "\n".join(lines) or "no difference")


def undo(
    store: str, to: Annotated[int | None, Option(min=0, metavar="POSITION")] = None, namespace: str = "default"
) -> Result:
    """Undo the last operation of STORE, or all since a position.

    The log keeps both: undo appends the inverse operation, and `memalpha redo` applies the undone one again.

    Example: memalpha undo ana.db

    Args:
        to: Go back to this log position in one step.

    Raises:
        StoreError: There is no store, no such position, or nothing to undo.
    """
    if to is None:
        return _undo_or_redo(store, namespace, "undo")
    with open_store(store, None, namespace) as memory:
        count = memory.restore(to)
    text = f"the memory is as it was at position {to}: {counted(count, 'operation')}"
    return Result({"operations": count}, text)


def redo(store: str, namespace: str = "default") -> Result:
    """Redo the operation that the last undo took back.

    Possible until another operation is written.

    Example: memalpha redo ana.db

    Raises:
        StoreError: There is no store, or nothing to redo.
    """
    return _undo_or_redo(store, namespace, "redo")


def _undo_or_redo(store: str, namespace: str, command: Literal["undo", "redo"]) -> Result:
    with open_store(store, None, namespace) as memory:
        operation = memory.undo() if command == "undo" else memory.redo()
    if operation is None:
        text = f"nothing to {command}"
    else:
        text = " ".join(filter(None, (command, operation.kind, operation.id, operation.content)))
    return Result(operation, text)


def revert(
    store: str,
    source: str | None = None,
    speaker: str | None = None,
    key: Annotated[str | None, Option(metavar="NAME")] = None,
    since: Annotated[str | None, Option(metavar="POSITION")] = None,
    dry_run: bool = False,
    namespace: str = "default",
) -> Result:
    """Take back what a source, a speaker or a key wrote, and restore what it overwrote or deleted.

    What somebody else changed since stays as it is and is listed. The log keeps everything.

    Example: memalpha revert ana.db --source web-page --dry-run

    Args:
        source: Writes of this text or conversation.
        speaker: Writes on the word of this person.
        key: Writes with this key of the server.
        since: Writes after this log position, or ISO date or time.
        dry_run: Show what would change; write nothing.

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
    verb = "reverted" if report.applied else "would be reverted"
    lines.append(f"{counted(len(report.changes), 'entry')} {verb}, {len(report.conflicts)} left as before")
    if report.applied and report.changes:
        option = "" if namespace == "default" else f" --namespace {quote(namespace)}"
        lines.append(f"to take this back: memalpha undo {quote(store)} --to {report.position}{option}")
    return Result(report, "\n".join(lines))


def review(
    store: str,
    accept: Annotated[list[int] | None, Option(metavar="POSITION")] = None,
    reject: Annotated[list[int] | None, Option(metavar="POSITION")] = None,
    everything: Annotated[bool, Option("--all")] = False,
    namespace: str = "default",
) -> Result:
    """List the operations that a trust rule put into quarantine, and accept or reject them.

    Example: memalpha review ana.db --accept 17

    Args:
        accept: Apply this operation; repeat for more.
        reject: Leave this operation out; repeat for more.
        everything: List reviewed operations, too.

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
    return Result(items, "\n".join(lines) or "nothing awaits a review")


def fork(
    store: str,
    name: Annotated[str | None, Argument()] = None,
    path: str | None = None,
    as_of: str | None = None,
    namespace: str = "default",
) -> Result:
    """Copy a namespace of STORE with its history.

    The copy is independent: another namespace of STORE, or a store of its own.

    Example: memalpha fork ana.db what-if --as-of 2024-05-01

    Args:
        name: The new namespace.
        path: A new file, or a PostgreSQL URL, instead of a namespace of STORE.

    Raises:
        StoreError: There is no store, no such position, or the target exists.
    """
    with (
        open_store(store, None, namespace) as memory,
        memory.fork(name, path=path, as_of=resolve_position(as_of, memory)) as copy,
    ):
        count = copy.snapshot()
        target = {"store": copy.path, "namespace": name or namespace, "operations": count}
    text = f"{counted(count, 'operation')}: namespace {target['namespace']} of {target['store']}"
    return Result(target, text)


def erase(
    store: str,
    ids: Annotated[list[str] | None, Option("--id", metavar="ID")] = None,
    where: str | None = None,
    namespace: str | None = None,
    core_history: bool = False,
    drop: bool = False,
    yes: bool = False,
) -> Result:
    """Erase entries, or a whole namespace, for good.

    `--where` takes every entry of which any version passes: live, deleted, expired, undone or quarantined. Their
    content leaves the log, past states, vectors and the free space of the file. Operations without content stay in
    their place, so that log positions do not change. Forks, exports and copies of the file are not touched; forks in
    this file are named. Exits with 1 if bytes may still lie in the file; the next opening of STORE goes on.

    Example: memalpha erase ana.db --where '{"user": "ana"}' --yes

    Args:
        ids: An entry; several: --id A --id B.
        namespace: Namespace of the entries (default: default); without --id or --where, all is erased.
        core_history: Erase all texts of the core memory but the current one.
        drop: Delete the namespace with its name and log, not its content alone.
        yes: Confirm: erased content cannot be restored.

    Raises:
        StoreError: Nothing is chosen, `yes` is missing, or an entry is unknown.
    """
    if not ids and where is None and namespace is None and not core_history:
        raise StoreError("erase: choose entries or a namespace: --id ID or --namespace NAME or --where JSON")
    has_entries = bool(ids) or where is not None
    if has_entries + core_history + drop > 1:
        raise StoreError("erase: choose one of --id or --where, --core-history and --drop")
    if not yes:
        raise StoreError("erase: erased content cannot be restored: add --yes to confirm")
    with open_store(store, None, namespace) as memory:
        count = memory.snapshot()
        pending, erasure = None, None
        try:
            if has_entries:
                erasure = memory.erase(*ids or (), where=parse_json_object("--where", where))
            elif core_history:
                count = memory.erase_core_history()
            elif drop:
                memory.drop_namespace(memory.namespace_name)
            else:
                count = memory.erase_all()
        except ScrubPending as error:
            pending, erasure = str(error), error.erasure if has_entries else None
    result: dict[str, Any] = {"operations": count}
    text = f"{counted(count, 'operation')} erased"
    if erasure is not None:
        result = {"erased": list(erasure.ids), "same_content": list(erasure), "forks": list(erasure.forks)}
        text = f"{counted(len(erasure.ids), 'entry')} erased"
        text += "".join(f"\nthe same content is, or was, in {id}" for id in erasure)
        text += "".join(f"\nnamespace {name} is a fork and still has it" for name in erasure.forks)
    if pending:
        result, text = {**result, "pending_scrub": pending}, f"{text}\n{pending}"
    return Result(result, text, failed_if(pending))
