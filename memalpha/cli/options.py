"""Shared by all commands: option types, opening a store, reading input files, printing results."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Argument, Option

from memalpha.config import AgentConfig, ReaderConfig, TrustConfig, build_config, parse_overrides
from memalpha.errors import ConfigError, DataError, StoreError
from memalpha.store.fields import check_timestamp, visible
from memalpha.tasks.chunking import split_lines
from memalpha.tasks.formats.chats import count_left_out, load_exports
from memalpha.tasks.formats.message_tables import find_columns, find_fields
from memalpha.tasks.formats.messages import holds_conversations, is_message_file, is_messages, load_messages
from memalpha.text_files import decode_text, parse_json_or_none
from memalpha.text_files import read_text as read_text_file
from memalpha.types import Chunk, MemoryEntry

if TYPE_CHECKING:
    from rich.status import Status

    from memalpha.policy.base import Policy
    from memalpha.store.store import MemoryStore

Route = Literal["soft", "hard", "flat", "dense", "bm25"]

PARAMETERS: Mapping[str, Any] = {
    "store": Argument(help="The store: a file, or postgresql://user:password@host/database."),
    "namespace": Option(help="Namespace in the store; namespaces never see each other."),
    "schema": Option(help="Categories of a new store: mem-alpha (default), life, or a YAML file."),
    "embedder": Option(
        help="Embedder of a new store: static (default), hash, minilm, openai:MODEL, http://HOST/v1#MODEL, or a "
        "model's name or folder. An existing store has its own; name that only if it is a model, which is not loaded "
        "otherwise."
    ),
    "category": Option("--category", "-c"),
    "where": Option(metavar="JSON", help='Filter entries: \'{"user": "ana", "importance": {"$gte": 0.5}}\'.'),
    "as_of": Option(help="Past state: a log position (digits; eight digits are a date), or an ISO date or time."),
    "k": Option("-k", min=1),
    "limit": Option(min=1),
    "chunk_size": Option("--chunk", min=1),
    "instructions": Option(metavar="TEXT", help="Your words on what to remember, shown to the writer."),
    "settings": Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of AgentConfig, as in a run's agent: prompt, max_new_tokens, thinking_tokens ...; or trust.KEY.",
    ),
    "overrides": Argument(metavar="[KEY=VALUE]...", help="Configuration overrides; dots for nested keys."),
    "held_out": Option(
        metavar="FILE", help="Write a fifth of the tasks to this file instead, for evaluation (eval_data=FILE)."
    ),
    "price": Option(
        metavar="IN,OUT", help="Price of a million prompt and of a million generated tokens at the endpoint."
    ),
    "keys": Option(metavar="FILE", help="File of the keys; by default STORE.keys beside the file."),
    "as_json": Option("--json", help="Print one JSON value instead of text."),
}
"""Arguments and options by the name of a parameter, for all commands; a docstring may describe them in other words."""

PROCESS_RANK = int(os.environ.get("RANK", "0"))
"""Rank of this process among those of a launcher such as `accelerate launch`."""
MAX_POSITION_DIGITS = 18


def open_store(
    path: str,
    embedder: str | None,
    namespace: str | None,
    *,
    schema: str | None = None,
    create: bool = False,
    reads: bool = False,
) -> MemoryStore:
    """Open a namespace of a store; if nothing was ever written to it, but to others, stderr names these.

    Args:
        path: File, or PostgreSQL URL.
        embedder: Embedder name; None takes the store's own.
        namespace: Namespace in the store; None for a command that looks at all of them.
        schema: Categories of a new store.
        reads: The command only reads, so that a store that cannot be written is opened read-only.
        create: Create a missing store. Commands that only read leave it False, so that a typo creates no file.
    """
    from memalpha.store.store import MemoryStore

    read_only = "if needed" if reads else False
    opened = "default" if namespace is None else namespace
    store = MemoryStore.open(path, schema, embedder, opened, create=create, read_only=read_only)
    if reads and namespace is not None and namespace not in (names := store.namespaces()) and names:
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        print_note(f"nothing was written to namespace {namespace}, but to {some} (--namespace)")
    return store


def print_note(text: str) -> None:
    """Print a line on stderr, with control characters made visible."""
    print(f"memalpha: {visible(text)}", file=sys.stderr)


def show_status(text: str) -> Status:
    """Show a line on a terminal's stderr while the block runs."""
    from rich.console import Console

    return Console(stderr=True).status(text)


def load_policy(name: str, *, device: str = "cpu") -> Policy:
    """Load a policy and say so, which takes seconds with torch; see `policy.load.load_policy`."""
    with show_status(f"loading {name}"):
        from memalpha.policy.load import load_policy

        return load_policy(name, device=device)


_EXAMPLE = """write '{"key": "value"}' in single quotes"""


def parse_json_object(option: str, text: str | None) -> dict[str, Any] | None:
    """Parse the JSON object passed to `option`; None stays None."""
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{option}: no JSON ({error}): {_EXAMPLE}") from error
    if value is not None and not isinstance(value, dict):
        raise StoreError(f"{option}: a JSON object is needed, not {text:.80}: {_EXAMPLE}")
    return value


def parse_writer_settings(pairs: Sequence[str] | None) -> AgentConfig:
    """Return the writer's settings of `--set`.

    Args:
        pairs: Words `key=value`; a key may also be written as in a run, `agent.key`.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    return build_config(AgentConfig, parse_overrides([pair.removeprefix("agent.") for pair in pairs or ()]), "--set")


def split_settings(pairs: Sequence[str] | None, group: str) -> tuple[list[str], list[str]]:
    """Return the words `group.key=value` of `--set`, and the others."""
    chosen = [pair for pair in pairs or () if pair.startswith(f"{group}.")]
    return chosen, [pair for pair in pairs or () if pair not in chosen]


def parse_trust(pairs: Sequence[str]) -> TrustConfig | None:
    """Return the trust rule of words `trust.key=value`; None without any.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    fields = parse_overrides(list(pairs)).get("trust")
    return None if fields is None else build_config(TrustConfig, fields, "--set trust")


def parse_store_writer(pairs: Sequence[str] | None, instructions: str | None) -> AgentConfig:
    """Return the settings of a writer that fills a store: `--set` and `--instructions`.

    Args:
        pairs: Words `key=value` of `--set`.
        instructions: The user's words of `--instructions`.

    Raises:
        ConfigError: A setting does not fit, is given twice, or belongs to the store.
    """
    settings = parse_writer_settings(pairs)
    for name, option in (("memory_schema", "--schema"), ("embedder", "--embedder")):
        if name in settings.model_fields_set:
            raise ConfigError(f"--set {name}: belongs to the store, not to its writer: use {option}")
    if instructions is None:
        return settings
    if not instructions.strip():
        raise ConfigError("instructions: empty: say what to remember, or leave them out")
    if settings.instructions is not None:
        raise ConfigError("--set instructions: given by --instructions too: leave one out")
    fields = settings.model_dump(exclude_unset=True)
    return build_config(AgentConfig, {**fields, "instructions": instructions}, "--set")


def parse_reader_settings(pairs: Sequence[str] | None) -> ReaderConfig | None:
    """Return the settings of the policy as a reader; None without any.

    Args:
        pairs: Words `key=value` of `--set`; a key may also be written as in a run, `reader.key`.

    Raises:
        ConfigError: A key is unknown, a value does not fit, or an option of its own says the same.
    """
    if not pairs:
        return None
    fields = parse_overrides([pair.removeprefix("reader.") for pair in pairs])
    for name, remedy in (("kind", "name the model with --policy"), ("policy", "use --policy"), ("k", "use -k")):
        if name in fields:
            raise ConfigError(f"--set {name}: is not set here: {remedy}")
    return build_config(ReaderConfig, {"kind": "policy", **fields}, "--set")


def resolve_position(text: str | None, memory: MemoryStore, option: str = "--as-of") -> int | str | None:
    """Parse a log position or a time. Raises `StoreError` for a position beyond the end of the log.

    Args:
        text: Digits are a position, but eight digits are a date (20240501). Other text is an ISO date or time.
        memory: Store whose log the position belongs to.
        option: Option or argument that messages name.

    Returns:
        The position, the unparsed time, or None for None.
    """
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) == 8:
        return text
    if len(text) > MAX_POSITION_DIGITS:
        raise StoreError(f"{option} {text[:MAX_POSITION_DIGITS]}...: no log has a position of {len(text)} digits")
    position, last = int(text), memory.snapshot()
    if position > last:
        raise StoreError(f"{option} {position}: the log ends at position {last}")
    return position


def read_text(file: Path) -> str:
    """Return the text of a file, or of stdin for `-`."""
    return decode_text(_read_stdin(), "stdin").replace("\r\n", "\n") if str(file) == "-" else read_text_file(file)


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise DataError("stdin: closed: pipe a text into the command, or name a file")
    return sys.stdin.buffer.read()


_CLOCK = re.compile(r"\b\d{1,2}:\d{2}\b")


def read_chunks(file: Path, timestamp: str | None, size: int = 4000, *, exact_times: bool = False) -> list[Chunk]:
    """Return the chunks of a task file, of chat messages, of an exported chat, or of a text cut at line ends.

    Args:
        file: A text, a task file (`.jsonl`, `.json`, `.csv`), chat messages (a message a line in `.jsonl`, a list in
            `.json`), an export (`tasks.formats.chats`: chats, mails, transcripts, tables of messages), or `-` for
            all but a table of tasks on stdin.
        timestamp: ISO date of the text, or of messages and chunks without one.
        size: Maximum characters of a chunk of a text or of messages.
        exact_times: A chunk of messages or of an exported chat holds those of one timestamp.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    check_timestamp(timestamp)
    if str(file) != "-":
        return _read_file(file, str(file), timestamp, size, exact_times)
    with TemporaryDirectory() as folder:
        file = Path(folder, "stdin")
        file.write_bytes(_read_stdin())
        kinds = {".csv": find_columns, ".json": _is_read_as_json, ".jsonl": _is_read_as_json, "": Path.is_file}
        try:
            suffix = next(end for end, is_kind in kinds.items() if is_kind(file := file.rename(f"{folder}/stdin{end}")))
            return _read_file(file, f"stdin{suffix}", timestamp, size, exact_times)
        except DataError as error:
            raise DataError(str(error).replace(f"{folder}/", "")) from error


def _is_read_as_json(file: Path) -> bool:
    """Return True for chat messages, conversations and tasks."""
    data = file.read_bytes()
    first = parse_json_or_none(data if file.suffix == ".json" else data.lstrip().partition(b"\n")[0])
    row = first[0] if isinstance(first, list) and first else first
    has_chunks = isinstance(row, Mapping) and is_messages(row.get("chunks"))
    return has_chunks or holds_conversations(first) or is_message_file(file) or find_fields(row) is not None


def _read_file(file: Path, name: str, timestamp: str | None, size: int, exact_times: bool) -> list[Chunk]:
    from memalpha.tasks.load import holds_tasks, load_tasks

    if file.is_dir():
        raise DataError(
            f"{file}: is a folder: name one file at a time; memalpha data prepare {quote(str(file))} chats.jsonl makes "
            "one file of exported chats, which memalpha read --namespaces task reads"
        )
    suffix, tasks = file.suffix.lower(), load_exports(file, size=size, exact_times=exact_times)
    if tasks is None and suffix in (".json", ".jsonl") and is_message_file(file):
        return load_messages(file, timestamp=timestamp, size=size, exact_times=exact_times)
    if tasks is None and suffix in (".json", ".jsonl", ".ndjson", ".csv", ".tsv") and holds_tasks(file):
        tasks = load_tasks(file)
    if tasks is not None:
        if len(tasks) > 1:
            number, remedy = f"{len(tasks)} conversations", "--namespaces task"
            if suffix != ".jsonl" or tasks[0].meta.get("source") in ("messages", "table"):
                saved = quote(name) if name == str(file) else "FILE"  # stdin has to be saved first
                remedy = f"memalpha data prepare {saved} chats.jsonl, then read chats.jsonl {remedy},"
            print_note(f"{name}: its {number} go into one namespace; {remedy} gives each its own")
        if left_out := format_left_out(count_left_out(tasks)):
            print_note(f"{name}: left out {left_out}")
        chunks = [chunk for task in tasks for chunk in task.chunks]
        return [chunk.model_copy(update={"timestamp": chunk.timestamp or timestamp}) for chunk in chunks]
    texts = split_lines(read_text_file(file), size)
    if not texts:
        raise DataError(f"{file} is empty: there is nothing to read")
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    timed = sum(_CLOCK.search(line) is not None for line in lines)
    if suffix not in ("", ".txt", ".md") or (len(lines) > 1 and 2 * timed >= len(lines)):
        print_note(
            f"{name}: no export that memalpha knows: it is read as plain text, its times as words of their lines"
        )
    return [Chunk(text=text, timestamp=timestamp, index=index) for index, text in enumerate(texts)]


def format_left_out(counts: Mapping[str, int]) -> str:
    """Format what exported chats lost; "" if nothing."""
    singular = {"edited branches": "edited branch", "lines before the first message": "line before the first message"}
    return ", ".join(
        f"{count:,} {singular.get(kind, kind.removesuffix('s')) if count == 1 else kind}"
        for kind, count in counts.items()
    )


def format_entry(entry: MemoryEntry) -> str:
    """Format an entry as one line: id, category, content, date."""
    date = f"  ({entry.timestamp})" if entry.timestamp else ""
    return f"{entry.id:<26} {entry.category:<10} {entry.content}{date}"


def to_json_value(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [to_json_value(item) for item in value]
    return value


@dataclasses.dataclass(frozen=True)
class Result:
    """Hold what a command prints on stdout when it has ended.

    Attributes:
        value: Dataclasses, mappings and sequences, printed as one JSON value with `--json`.
        text: Printed otherwise, with control characters made visible; or a function that prints.
        error: Raised afterwards.
    """

    value: Any
    text: str | Callable[[], None]
    error: Exception | None = None


def failed_if(problems: object) -> typer.Exit | None:
    """Return the end of a command that found problems (exit code 1); None without any."""
    return typer.Exit(1) if problems else None


def print_result(result: Result, as_json: bool) -> None:
    """Print a command's result on stdout, and raise its error.

    Args:
        result: Result of the command.
        as_json: Print its value as one JSON value.
    """
    text = result.text
    if as_json:
        from memalpha.store.io.jsonl import to_json

        text = to_json(to_json_value(result.value), default=str)
        try:
            text.encode((sys.stdout and sys.stdout.encoding) or "utf-8")
        except UnicodeEncodeError:  # JSON has escapes for what an encoding lacks
            text = json.dumps(json.loads(text))
    if isinstance(text, str):
        typer.echo(visible(text))
    else:
        text()
    if result.error is not None:
        raise result.error


def write_page(run: Path) -> Path:
    """Write the page of a run or an evaluation to `run/report.html` and return its path."""
    from memalpha.report.page import write_report

    return write_report(run)
