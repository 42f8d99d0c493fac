"""The command `memalpha`: a thin skin over the library's functions.

Results go to stdout (with `--json` as one JSON value), progress to stderr. Whatever the user can mend (a bad key, file,
name or value) is a message on stderr and exit code 2; anything else is a fault of ours and keeps its traceback.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from pydantic import ValidationError

from memalpha import __version__
from memalpha.config import EvalConfig, TrainConfig, load_config, parse_overrides
from memalpha.errors import DataError, DuplicateContent, MemalphaError, StoreError
from memalpha.types import Chunk, MemoryEntry, Operation

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

app = typer.Typer(
    name="memalpha",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List and prepare data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Route = Literal["soft", "hard", "flat", "dense", "bm25"]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="The store's file.")]
Namespace = Annotated[str, typer.Option(help="Scope inside the store; scopes never see each other.")]
SchemaName = Annotated[
    str | None, typer.Option(help="Categories of a new store: mem-alpha (default), life, a YAML file.")
]
EmbedderName = Annotated[
    str | None, typer.Option(help="Only a new store may choose: static (default), hash, or a model.")
]
AsOf = Annotated[
    str | None,
    typer.Option(help="A past state: a position of the log (digits alone; eight are a date), or an ISO time."),
]
Pairs = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, nested keys with dots.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train, evaluate and use memory agents."""


def main() -> NoReturn:
    """Entry point of the console script: runs the command and turns a `MemalphaError` into exit code 2."""
    try:
        app()
    except MemalphaError as error:
        _refuse(str(error))
    except ValidationError as error:
        _refuse("; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()))
    sys.exit(0)


def _refuse(message: str) -> NoReturn:
    print(f"memalpha: {message}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------------------------------------------------- training


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of tasks, sampling and order.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory; one that holds a checkpoint is resumed.")] = Path(
        "runs/demo"
    ),
    policy: Annotated[str, typer.Option(help="The policy to start from.")] = "tiny",
) -> None:
    """Train a tiny memory writer, offline.

    It starts from weights that come with memalpha, practises on made-up conversations, is tested on others before and
    after, and leaves a page with the results in the run directory.

    Example: memalpha demo --seed 1 --out runs/demo-1
    """
    from memalpha.report.demo import run_demo

    run_demo(seed=seed, out=out, policy=policy, say=typer.echo)


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped configuration's name or a YAML file.")],
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Train a memory writer.

    A run directory that holds a checkpoint is resumed. Ctrl-C leaves one.

    Example: memalpha train demo seed=7 reward.beta=0.1 out=runs/seed-7
    """
    settings = load_config(TrainConfig, config, parse_overrides(pairs or []))
    import memalpha
    from memalpha.report.page import write_report

    summary = memalpha.train(settings)
    page = write_report(settings.out)
    _print(summary, as_json, f"{_one_line(summary)}\n{page}")


@app.command(name="eval")
def evaluate(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped configuration's name or a YAML file.")],
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a writer, or search on LoCoMo.

    Example: memalpha eval locomo data=locomo10.json --json
    """
    settings = load_config(EvalConfig, config, parse_overrides(pairs or []))
    if settings.benchmark == "locomo":
        from memalpha.qa.locomo import format_locomo, run_locomo

        result = run_locomo(settings)
        _print(result, as_json, format_locomo(result))
        return
    from memalpha.qa.run import run_evaluation

    report = run_evaluation(settings)
    if as_json:
        _print(report.summary, as_json, "")
    else:
        report.table()


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: AsJson = False,
) -> None:
    """Write a run's page, RUN/report.html.

    One file that needs no network: before and after, curves, one conversation walked through.

    Example: memalpha report runs/demo
    """
    from memalpha.report.page import write_report

    page = write_report(run)
    _print({"report": str(page)}, as_json, str(page))


# ------------------------------------------------------------------------------------------------------------- store


@app.command()
def read(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text, or a task file (.jsonl); - reads stdin.")],
    policy: Annotated[str, typer.Option(help="The writer: a directory, a hub id, tiny, or scripted:add-all.")],
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    timestamp: Annotated[str | None, typer.Option(help="ISO date of the text.")] = None,
    size: Annotated[int, typer.Option("--chunk", min=1, help="Longest chunk of a text, in characters.")] = 4000,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Let a writer read a text into STORE.

    Chunk by chunk, each in a fresh context; STORE is made when it is not there.

    Example: memalpha read ana.db chat.txt --policy scripted:add-all --timestamp 2024-05-01
    """
    from memalpha.agent.agent import MemoryAgent
    from memalpha.policy.base import load_policy

    # All that can be refused before a store is made is looked at before.
    chunks, writer = _chunks(file, timestamp, size), load_policy(policy)
    with _open(store, embedder, namespace, schema=schema, create=True) as memory:
        agent = MemoryAgent(writer, memory)
        results = [result for chunk in chunks for result in agent.read(chunk, source=str(file)).results]
    lines = [f"{result.code:<18} {result.entry_id or '-':<26} {result.content or result.message}" for result in results]
    _print([_plain(result) for result in results], as_json, "\n".join(lines))


@app.command()
def add(
    store: StoreFile,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="The fact to remember.")],
    category: Annotated[str, typer.Option("--category", "-c", help="One of the schema's categories.")] = "semantic",
    timestamp: Annotated[str | None, typer.Option(help="ISO date of the fact.")] = None,
    importance: Annotated[float, typer.Option(help="Your own weight, kept with the entry.")] = 1.0,
    source: Annotated[str | None, typer.Option(help="Where it came from.")] = None,
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
    from memalpha.store.state import check_timestamp

    check_timestamp(timestamp)
    fact = Operation(
        "insert", category=category, content=content, timestamp=timestamp, importance=importance, source=source
    )
    with _open(store, embedder, namespace, schema=schema, create=True) as memory:
        try:
            id, outcome = memory.apply(fact).id, "inserted"
        except DuplicateContent as known:
            id, outcome = known.entry_id, "duplicate"
        entry = memory.get(id or "")
    text = entry.id if outcome == "inserted" else f"duplicate {entry.id}"
    _print({"outcome": outcome, **_plain(entry)}, as_json, text)


@app.command()
def search(
    store: StoreFile,
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 5,
    category: Annotated[str | None, typer.Option("--category", "-c", help="Only this category.")] = None,
    route: Annotated[Route, typer.Option(help="soft: two layers; the others to compare.")] = "soft",
    as_of: AsOf = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Search STORE.

    Example: memalpha search ana.db "Where does Ana live?" -k 3 --json
    """
    with _open(store, embedder, namespace) as memory:
        hits = memory.search(query, k, category=category, route=route, as_of=_position(as_of, memory))
    lines = [f"{hit.score:6.3f}  {_line(hit.entry)}" for hit in hits]
    _print([_plain(hit) for hit in hits], as_json, "\n".join(lines))


@app.command()
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
    from memalpha.agent.answer import ExtractiveReader
    from memalpha.policy.base import load_policy

    with _open(store, embedder, namespace) as memory:
        if policy:
            answer = MemoryAgent(load_policy(policy), memory).ask(question, k)
        else:
            answer = ExtractiveReader().answer([(question, memory)], k=k)[0]
    _print(_plain(answer), as_json, "unknown" if answer.abstained else answer.text)


@app.command()
def show(
    store: StoreFile,
    entry_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this entry.")] = None,
    category: Annotated[str | None, typer.Option("--category", "-c", help="Only this category.")] = None,
    as_of: AsOf = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what STORE holds, oldest first.

    Example: memalpha show ana.db --category semantic --as-of 2024-05-01
    """
    with _open(store, embedder, namespace) as memory:
        position = _position(as_of, memory)
        entries = [memory.get(entry_id, as_of=position)] if entry_id else memory.list(category, as_of=position)
        core = memory.core_at(position)
    lines = ([f"core: {core}"] if core and not entry_id else []) + [_line(entry) for entry in entries]
    _print({"core": core, "entries": [_plain(entry) for entry in entries]}, as_json, "\n".join(lines))


@app.command()
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
    with _open(store, embedder, namespace) as memory:
        versions = memory.history(entry_id)
    lines = [
        f"v{v.version}  {v.valid_from:>5} to {v.valid_to if v.valid_to is not None else 'now':<5}  {v.content}"
        for v in versions
    ]
    _print([_plain(version) for version in versions], as_json, "\n".join(lines))


# -------------------------------------------------------------------------------------------------------------- data


@data_app.command(name="list")
def data_list(as_json: AsJson = False) -> None:
    """List data sets and how to get them.

    Example: memalpha data list --json
    """
    from memalpha.tasks.load import DATA_SETS

    lines = [f"{name:<12} {about}" for name, about in DATA_SETS.items()]
    _print(dict(DATA_SETS), as_json, "\n".join(lines))


@data_app.command(name="prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set's name, or a task file to check.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The task file to write (JSON Lines).")],
    data: Annotated[
        Path | None, typer.Option(help="The downloaded file, for data sets that are not made here.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first tasks.")] = None,
    seed: Annotated[int, typer.Option(help="Of the synthetic world.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Turn a data set into a task file.

    A task file given as NAME is checked line by line and copied. Says what the tasks hold.

    Example: memalpha data prepare locomo locomo.jsonl --data locomo10.json
    """
    from memalpha.tasks.jsonl import overview, save_jsonl
    from memalpha.tasks.load import load_tasks

    tasks = load_tasks(name, limit, data=data, seed=seed)
    save_jsonl(tasks, out)
    held = overview(tasks)
    kinds = ", ".join(f"{name} {count}" for name, count in held["categories"].items())
    lines = [
        f"{held['tasks']} tasks: {out}",
        f"{held['chunks']} chunks, the longest of {held['longest_chunk']} characters",
        f"{held['questions']} questions, {held['to_abstain']} of them without an answer",
        f"gold operations in {held['with_gold']} of {held['tasks']} tasks" + (f": {kinds}" if kinds else ""),
    ]
    _print({**held, "path": str(out)}, as_json, "\n".join(lines))


# ----------------------------------------------------------------------------------------------------------- helpers


def _open(
    path: Path, embedder: str | None, namespace: str, *, schema: str | None = None, create: bool = False
) -> MemoryStore:
    """Open a store. Only a writing command makes a new one: a slip of the finger must not."""
    from memalpha.store.store import MemoryStore

    return MemoryStore.open(path, schema, embedder, namespace, create=create)


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


def _chunks(file: Path, timestamp: str | None, size: int) -> list[Chunk]:
    """The chunks of a task file, or of a text cut at line ends into pieces of at most `size` characters."""
    from memalpha.store.state import check_timestamp

    check_timestamp(timestamp)
    if file.suffix == ".jsonl":
        from memalpha.tasks.jsonl import load_jsonl

        return [chunk for task in load_jsonl(file) for chunk in task.chunks]
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text: {error}") from error
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        if pieces and len(pieces[-1]) + len(line) <= size:
            pieces[-1] += line
        else:
            pieces.extend(line[start : start + size] for start in range(0, len(line), size))
    chunks = [piece.strip() for piece in pieces if piece.strip()]
    if not chunks:
        raise DataError(f"{file} is empty: there is nothing to read")
    return [Chunk(text=chunk, timestamp=timestamp, index=number) for number, chunk in enumerate(chunks)]


def _line(entry: MemoryEntry) -> str:
    date = f"  ({entry.timestamp})" if entry.timestamp else ""
    return f"{entry.id:<26} {entry.category:<10} {entry.content}{date}"


def _one_line(summary: Mapping[str, Any]) -> str:
    before, after = summary.get("before"), summary.get("after")
    if not before or not after:
        return "stopped before the evaluation; the same command goes on from the last checkpoint"
    return f"accuracy {before['accuracy']:.3f} before, {after['accuracy']:.3f} after"


def _plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value


def _print(value: Any, as_json: bool, text: str) -> None:
    if as_json:
        text = json.dumps(_plain(value), ensure_ascii=False, default=str)
        # A model's text may hold half a surrogate pair, which only an escape can carry.
        text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    typer.echo(text)
