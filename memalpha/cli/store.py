"""The commands on a store, and what they share with the others: option types, opening, printing.

`cli` registers them. Only a writing command makes a new store: a slip of the finger must not.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from memalpha.errors import DataError, DuplicateContent, StoreError
from memalpha.types import Chunk, MemoryEntry, Operation

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Boost
    from memalpha.store.store import MemoryStore

Route = Literal["soft", "hard", "flat", "dense", "bm25"]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
StoreFile = Annotated[
    str, typer.Argument(metavar="STORE", help="The store: a file, or postgresql://user:password@host/database.")
]
Namespace = Annotated[str, typer.Option(help="Scope inside the store; scopes never see each other.")]
SchemaName = Annotated[
    str | None, typer.Option(help="Categories of a new store: mem-alpha (default), life, a YAML file.")
]
EmbedderName = Annotated[
    str | None,
    typer.Option(
        help="Of a new store: static (default), hash, minilm, or a model's name or folder. An existing store keeps its "
        "own: name it only where it is a model, which is not loaded otherwise."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(metavar="JSON", help='Only what passes: \'{"user": "ana", "importance": {"$gte": 0.5}}\'.'),
]
AsOf = Annotated[
    str | None,
    typer.Option(help="A past state: a position of the log (digits alone; eight are a date), or an ISO time."),
]


def read(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text, or a task file (.jsonl); - reads stdin.")],
    policy: Annotated[str, typer.Option(help="The writer: add_all, heuristic, tiny, a run, an endpoint, a hub id.")],
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    timestamp: Annotated[str | None, typer.Option(help="ISO date of the text.")] = None,
    size: Annotated[int, typer.Option("--chunk", min=1, help="Longest chunk of a text, in characters.")] = 4000,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Let a writer read a text into STORE.

    Chunk by chunk, each in a fresh context; STORE is made when it is not there.

    Example: memalpha read ana.db chat.txt --policy add_all --timestamp 2024-05-01
    """
    from memalpha.agent.agent import MemoryAgent
    from memalpha.policy.base import load_policy

    # All that can be refused before a store is made is looked at before.
    chunks, writer = chunks_of(file, timestamp, size), load_policy(policy)
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        agent = MemoryAgent(writer, memory)
        results = [result for chunk in chunks for result in agent.read(chunk, source=str(file)).results]
    lines = [f"{result.code:<18} {result.entry_id or '-':<26} {result.content or result.message}" for result in results]
    print_result([plain(result) for result in results], as_json, "\n".join(lines))


def add(
    store: StoreFile,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="The fact to remember.")],
    category: Annotated[str, typer.Option("--category", "-c", help="One of the schema's categories.")] = "semantic",
    timestamp: Annotated[str | None, typer.Option(help="ISO date of the fact.")] = None,
    importance: Annotated[float, typer.Option(help="Your own weight, kept with the entry.")] = 1.0,
    source: Annotated[str | None, typer.Option(help="Where it came from.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="What else is known: a JSON object.")] = None,
    expires: Annotated[str | None, typer.Option(help="ISO date or time from which it is gone.")] = None,
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Add one fact to STORE.

    STORE is made when it is not there. Prints the new entry's id, or `duplicate` and the id of the entry that already
    holds exactly this.

    Example: memalpha add ana.db "Ana lives in Lisbon." --category semantic --timestamp 2024-05-01
    """
    from memalpha.store.validation import check_timestamp

    check_timestamp(timestamp)
    fact = Operation(
        "insert",
        category=category,
        content=content,
        timestamp=timestamp,
        importance=importance,
        source=source,
        metadata=_json("--metadata", metadata),
        expires=expires,
    )
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        try:
            entry, outcome = memory.change(fact).entry, "inserted"
        except DuplicateContent as known:
            entry, outcome = memory.get(known.entry_id), "duplicate"
    assert entry is not None
    text = entry.id if outcome == "inserted" else f"duplicate {entry.id}"
    print_result({"outcome": outcome, **plain(entry)}, as_json, text)


def search(
    store: StoreFile,
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 5,
    category: Annotated[str | None, typer.Option("--category", "-c", help="Only this category.")] = None,
    where: Where = None,
    route: Annotated[Route, typer.Option(help="soft: two layers; the others to compare.")] = "soft",
    boost: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='What else counts: \'{"importance": 0.3, "recency": 1, "now": "2025-01-10"}\'.'
        ),
    ] = None,
    around: Annotated[int, typer.Option(min=0, metavar="TOKENS", help="With this much raw text around each hit.")] = 0,
    as_of: AsOf = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Search STORE.

    Example: memalpha search ana.db "Where does Ana live?" -k 3 --json
    """
    with open_store(store, embedder, namespace) as memory:
        position = _position(as_of, memory)
        chosen = _json("--where", where)
        terms = _boost(boost)
        hits = memory.search(
            query, k, category=category, where=chosen, route=route, boost=terms, as_of=position, around=around
        )
    lines = []
    for hit in hits:
        lines += [f"{hit.score:6.3f}  {line_of(hit.entry)}", *(f"        {span.content}" for span in hit.around)]
    print_result([plain(hit) for hit in hits], as_json, "\n".join(lines))


def ask(
    store: StoreFile,
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    k: Annotated[int, typer.Option("-k", min=1, help="Entries the reader sees.")] = 8,
    policy: Annotated[str | None, typer.Option(help="A model that answers; without: the extractive floor.")] = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Answer a question from STORE alone.

    Prints `unknown` where STORE holds no answer.

    Example: memalpha ask ana.db "Where does Ana live?" --policy Qwen/Qwen3-4B
    """
    from memalpha.agent.agent import MemoryAgent
    from memalpha.agent.reader import ExtractiveReader
    from memalpha.policy.base import load_policy

    with open_store(store, embedder, namespace) as memory:
        if policy:
            answer = MemoryAgent(load_policy(policy), memory).ask(question, k)
        else:
            answer = ExtractiveReader().answer([(question, memory)], k=k)[0]
    print_result(plain(answer), as_json, "unknown" if answer.abstained else answer.text)


def show(
    store: StoreFile,
    entry_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this entry.")] = None,
    category: Annotated[str | None, typer.Option("--category", "-c", help="Only this category.")] = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Those after this one: the next page.")] = None,
    as_of: AsOf = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what STORE holds, oldest first.

    Example: memalpha show ana.db --category semantic --as-of 2024-05-01
    """
    with open_store(store, embedder, namespace) as memory:
        position = _position(as_of, memory)
        if entry_id:
            entries = [memory.get(entry_id, as_of=position)]
        else:
            chosen = _json("--where", where)
            entries = memory.list(category, where=chosen, limit=limit, after=after, as_of=position)
        core = memory.core_at(position)
    lines = ([f"core: {core}"] if core and not entry_id else []) + [line_of(entry) for entry in entries]
    print_result({"core": core, "entries": [plain(entry) for entry in entries]}, as_json, "\n".join(lines))


def history(
    store: StoreFile,
    entry_id: Annotated[str, typer.Argument(metavar="ID", help="The entry; a deleted one has a history too.")],
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show every version of an entry.

    With the positions of the log between which each held.

    Example: memalpha history ana.db ana-lives#k --json
    """
    with open_store(store, embedder, namespace) as memory:
        versions = memory.history(entry_id)
    lines = [
        f"v{v.version}  {v.valid_from:>5} to {v.valid_to if v.valid_to is not None else 'now':<5}  {v.content}"
        for v in versions
    ]
    print_result([plain(version) for version in versions], as_json, "\n".join(lines))


def diff(
    store: StoreFile,
    a: Annotated[str, typer.Argument(metavar="FROM", help="A position of the log, or an ISO time.")],
    b: Annotated[str | None, typer.Argument(metavar="[TO]", help="Another; without: now.")] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what changed between two states of STORE.

    Entries added (+), removed (-) and changed (- before, + after), and the core memory.

    Example: memalpha diff ana.db 2024-05-01 2024-06-01
    """
    with open_store(store, None, namespace) as memory:
        found = memory.diff(_position(a, memory) or 0, _position(b, memory))
    lines = [f"- core: {found.core[0]}", f"+ core: {found.core[1]}"] if found.core else []
    lines += [f"- {line_of(entry)}" for entry in found.removed]
    lines += [f"{sign} {line_of(entry)}" for pair in found.changed for sign, entry in zip("-+", pair, strict=True)]
    lines += [f"+ {line_of(entry)}" for entry in found.added]
    print_result(found, as_json, "\n".join(lines) or "no difference")


def undo(store: StoreFile, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Take back the last operation of STORE.

    Nothing is destroyed: the log grows by the opposite operation, and `memalpha redo` brings it back.

    Example: memalpha undo ana.db
    """
    _step(store, namespace, as_json, "undo")


def redo(store: StoreFile, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Bring back what the last undo took.

    Possible until something else is written.

    Example: memalpha redo ana.db
    """
    _step(store, namespace, as_json, "redo")


def fork(
    store: StoreFile,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The new namespace.")] = None,
    path: Annotated[str | None, typer.Option(help="A new file, or a PostgreSQL URL, in the place of STORE.")] = None,
    as_of: AsOf = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Copy a namespace of STORE, past states included.

    The copy goes on by itself, as another namespace or in a file of its own.

    Example: memalpha fork ana.db what-if --as-of 2024-05-01
    """
    with (
        open_store(store, None, namespace) as memory,
        memory.fork(name, path=path, as_of=_position(as_of, memory)) as copy,
    ):
        count = copy.snapshot()
        where = {"store": copy.path, "namespace": name or namespace, "operations": count}
    print_result(where, as_json, f"{count} operations: namespace {where['namespace']} of {where['store']}")


def erase(
    store: StoreFile,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="An entry; several: --id A --id B.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="The scope of the ids (default: default); without --id, all of it is erased.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: nothing brings back what was erased.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove entries, or a namespace, for good.

    All that they ever held goes from the log, past states, vectors and free space of the file; stubs without content
    keep the log's count. Forks, exports and copies of the file are untouched.

    Example: memalpha erase ana.db --id ana-lives#k --yes
    """
    if not ids and namespace is None:
        raise StoreError("erase: say what, --id ID or --namespace NAME")
    if not yes:
        raise StoreError("erase: nothing brings back what was erased: say --yes to do it")
    with open_store(store, None, namespace or "default") as memory:
        if not ids:
            count = memory.erase_all()
            print_result({"operations": count}, as_json, f"{count} operations erased")
            return
        others = memory.erase(*ids)
    text = f"{len(ids)} entries erased" + "".join(f"\nthe same content is, or was, in {id}" for id in others)
    print_result({"erased": ids, "same_content": others}, as_json, text)


def doctor(
    store: StoreFile,
    repair: Annotated[bool, typer.Option("--repair", help="Make anew what follows from the log.")] = False,
    embedder: EmbedderName = None,
    as_json: AsJson = False,
) -> None:
    """Check STORE, and mend what can be.

    The file itself, the log, and whether versions and vectors are what the log gives. Exit code 1 where something is
    wrong (or stays wrong after --repair).

    Example: memalpha doctor ana.db --repair
    """
    from memalpha.store.checks.integrity import examine

    health = examine(store, repair=repair, embedder=embedder)
    lines = [f"repaired: {problem}" for problem in health.repaired]
    lines += [*map(str, health.problems), *(f"note: {note}" for note in health.notes)]
    looked_at = ", ".join(f"{count} {name}" for name, count in health.counts.items())
    lines.append(f"{f'{len(health.problems)} problems' if health.problems else 'sound'}: {looked_at}")
    print_result(health, as_json, "\n".join(lines))
    if health.problems:
        raise typer.Exit(1)


COMMANDS = (read, add, search, ask, show, history, diff, undo, redo, fork, erase, doctor)


# ----------------------------------------------------------------------------------------------------------- helpers


def open_store(
    path: str, embedder: str | None, namespace: str, *, schema: str | None = None, create: bool = False
) -> MemoryStore:
    """Open a store. Only a writing command makes a new one: a slip of the finger must not."""
    from memalpha.store.store import MemoryStore

    return MemoryStore.open(path, schema, embedder, namespace, create=create)


def _json(option: str, text: str | None) -> dict[str, Any] | None:
    """The JSON object that an option holds."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise StoreError(f"{option}: no JSON: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise StoreError(f"{option}: a JSON object is needed, not {text}")
    return value


def _boost(text: str | None) -> Boost | None:
    from memalpha.store.search.corpus import Boost

    terms = _json("--boost", text)
    known = [item.name for item in dataclasses.fields(Boost)]
    for name in terms or ():
        if name not in known:
            raise StoreError(f"--boost: {name}: the terms are {', '.join(known)}")
    return None if terms is None else Boost(**terms)


def _step(store: str, namespace: str, as_json: bool, way: Literal["undo", "redo"]) -> None:
    with open_store(store, None, namespace) as memory:
        done = memory.undo() if way == "undo" else memory.redo()
    text = f"nothing to {way}" if done is None else " ".join(filter(None, (way, done.kind, done.id, done.content)))
    print_result(done, as_json, text)


def _position(as_of: str | None, memory: MemoryStore) -> int | str | None:
    """Digits alone are a position of the log, but eight of them a date (20240501); everything else is an ISO time.

    A position that the log has not reached means now, and stderr says so."""
    if as_of is None or not (as_of.isascii() and as_of.isdecimal()) or len(as_of) == 8:
        return as_of
    if len(as_of) > 18:
        raise StoreError(f"--as-of {as_of[:18]}...: no log has a position of {len(as_of)} digits")
    position, last = int(as_of), memory.snapshot()
    if position > last:
        print(f"memalpha: --as-of {position}: the log ends at {last}; this is the memory as it is now", file=sys.stderr)
    return position


def text_of(file: Path) -> str:
    """The text of a file, or of stdin for `-`."""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text: {error}") from error


def chunks_of(file: Path, timestamp: str | None, size: int = 4000) -> list[Chunk]:
    """The chunks of a task file, or of a text cut at line ends into pieces of at most `size` characters."""
    from memalpha.store.validation import check_timestamp

    check_timestamp(timestamp)
    if file.suffix == ".jsonl":
        from memalpha.tasks.formats.jsonl import load_jsonl

        return [chunk for task in load_jsonl(file) for chunk in task.chunks]
    pieces: list[str] = []
    for line in text_of(file).splitlines(keepends=True):
        if pieces and len(pieces[-1]) + len(line) <= size:
            pieces[-1] += line
        else:
            pieces.extend(line[start : start + size] for start in range(0, len(line), size))
    chunks = [piece.strip() for piece in pieces if piece.strip()]
    if not chunks:
        raise DataError(f"{file} is empty: there is nothing to read")
    return [Chunk(text=chunk, timestamp=timestamp, index=number) for number, chunk in enumerate(chunks)]


def line_of(entry: MemoryEntry) -> str:
    """An entry in one line."""
    date = f"  ({entry.timestamp})" if entry.timestamp else ""
    return f"{entry.id:<26} {entry.category:<10} {entry.content}{date}"


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def print_result(value: Any, as_json: bool, text: str) -> None:
    if as_json:
        from memalpha.store.io.jsonl import json_text

        text = json_text(plain(value), default=str)
    typer.echo(text)
