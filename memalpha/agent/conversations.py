"""Read many conversations of a task file, each into a namespace of its own, here or over worker processes.

A worker reads a conversation into a memory in RAM and writes its whole log in one transaction. So the store is the
ledger: a namespace is there if its conversation was read to the end, and nothing of an interrupted one remains. Running
the same command again reads what is missing. Two workers that read the same conversation cannot double it: the second
transaction finds the namespace.

Because whatever is lost is read again, the store is opened with `durability="normal"`: a killed process loses
nothing, and a power failure loses whole conversations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from memalpha.agent.agent import MemoryAgent, prompted_config
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, DataError, PolicyError, StoreError
from memalpha.policy.load import load_policy
from memalpha.store.backends.base import system_clock
from memalpha.store.memory import WorkingMemory
from memalpha.store.open import is_url, is_written, open_database, write_log
from memalpha.store.state import MemoryState
from memalpha.tasks.formats.jsonl import iterate_lines, parse_task
from memalpha.text_files import parse_json_or_none
from memalpha.types import Operation
from memalpha.workers import Killed, LocalPool, run_jobs

MAX_ERRORS = 100
"""Failed conversations after which reading stops."""


@dataclass(frozen=True, slots=True)
class ConversationLine:
    """Job of a worker: one line of the task file.

    Attributes:
        task: Id of the task, which is the namespace.
        location: `file:line`.
        raw: The line.
    """

    task: str
    location: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """Result of one conversation.

    Attributes:
        task: Id of the task; "" for a line without one.
        status: "read", "present" (the store had the namespace already) or "failed".
        chunks: Chunks read.
        operations: Operations written.
        failed_calls: Tool calls that were refused.
        unread: Replies that held no readable call or were cut off.
        error: Reason of a failure.
    """

    task: str
    status: Literal["read", "present", "failed"]
    chunks: int = 0
    operations: int = 0
    failed_calls: int = 0
    unread: int = 0
    error: str = ""


@dataclass(slots=True)
class ReadingSummary:
    """Counts over all conversations of a call.

    Attributes:
        read: Conversations read by this call.
        present: Conversations whose namespace was there already.
        chunks: Chunks read.
        operations: Operations written.
        failed_calls: Tool calls that were refused.
        unread: Replies that held no readable call or were cut off.
        failed: Conversations that failed.
        stopped: True if `max_errors` conversations failed and reading stopped.
    """

    read: int = 0
    present: int = 0
    chunks: int = 0
    operations: int = 0
    failed_calls: int = 0
    unread: int = 0
    failed: list[ConversationResult] = field(default_factory=list)
    stopped: bool = False

    def add(self, result: ConversationResult) -> None:
        """Count one conversation."""
        self.read += result.status == "read"
        self.present += result.status == "present"
        self.chunks += result.chunks
        self.operations += result.operations
        self.failed_calls += result.failed_calls
        self.unread += result.unread
        if result.status == "failed":
            self.failed.append(result)


def read_conversations(
    store: str | Path,
    tasks: str | Path,
    policy: str,
    *,
    config: AgentConfig | None = None,
    schema: str | None = None,
    embedder: str | None = None,
    shard: tuple[int, int] = (0, 1),
    pool: LocalPool | None = None,
    progress: Callable[[ConversationResult], None] | None = None,
    max_errors: int = MAX_ERRORS,
) -> ReadingSummary:
    """Read each conversation of a task file into the namespace of its id.

    Conversations whose namespace exists are skipped, so the same call resumes after any interruption. A conversation is
    known by its id alone: a changed text under an old id is not read again.

    Args:
        store: File or PostgreSQL URL; created if missing.
        tasks: Task file (`tasks.formats.jsonl`), read line by line.
        policy: Name of the writer, loaded once in each worker.
        config: Prompts of the writer.
        schema: Categories of a new store.
        embedder: Embedder of a new store, or of an existing one that records a model.
        shard: Index and number of shards; only the conversations of this shard are read (`shard_of`).
        pool: Processes that read; None reads in this process.
        progress: Called with the result of each conversation of this shard, as it ends.
        max_errors: Failed conversations after which reading stops.

    Returns:
        Counts, and the failed conversations with their reasons.

    Raises:
        ConfigError: A setting does not fit.
        DataError: The task file cannot be read.
        PolicyError: The policy cannot be loaded.
        StoreError: The store cannot be opened.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard {index}/{count}: 0/{count} to {count - 1}/{count} are needed")
    location = str(store) if is_url(store) else str(Path(store).absolute())  # workers may have another current folder
    # Whatever a power failure loses is read again.
    open_store = partial(open_database, location, schema, embedder, durability="normal", clock=system_clock)
    worker = partial(start_reading, open_store, policy, config or AgentConfig(), schema)
    summary = ReadingSummary()

    def record(result: ConversationResult) -> None:
        summary.add(result)
        summary.stopped = len(summary.failed) >= max_errors
        if progress is not None:
            progress(result)

    def pending() -> Iterator[ConversationLine]:
        """Create the store, once the first worker has loaded the policy, and yield what it lacks."""
        database, schema, _ = open_store(create=True)
        with closing(database):
            for item in _iterate_shard(Path(tasks), index, count):
                if isinstance(item, ConversationResult):
                    record(item)
                elif is_written(database, item.task, schema):
                    record(ConversationResult(item.task, "present"))
                else:
                    yield item
                if summary.stopped:
                    return

    with closing(run_jobs(worker, pending(), pool)) as results:
        for line, result in results:
            if isinstance(result, Killed):
                result = ConversationResult(line.task, "failed", error=f"{line.location}: {result.reason}")
            record(result)
            if summary.stopped:
                break
    return summary


def shard_of(task: str, count: int) -> int:
    """Return the shard of a task id: the same on every machine, whatever else the file holds."""
    return int.from_bytes(hashlib.sha256(task.encode("utf-8", "surrogatepass")).digest()[:8], "big") % count


def _iterate_shard(path: Path, index: int, count: int) -> Iterator[ConversationLine | ConversationResult]:
    """Iterate over the lines of a shard. A line without an id, or with that of another, is a failed conversation."""
    task_ids: set[str] = set()
    for number, raw in iterate_lines(path):
        location = f"{path}:{number}"
        value = parse_json_or_none(raw)
        task = value.get("id") if isinstance(value, dict) else None
        if not isinstance(task, str) or not task:
            try:
                parse_task(raw, location)
            except DataError as error:
                yield ConversationResult("", "failed", error=str(error))
        elif shard_of(task, count) != index:
            continue
        elif task in task_ids:
            problem = f"{location}: id: task {task!r} is on a line before: ids are unique"
            yield ConversationResult(task, "failed", error=problem)
        else:
            task_ids.add(task)  # about 0.1 kB for each conversation
            yield ConversationLine(task, location, raw)


@contextmanager
def start_reading(
    open_store: Callable[[], tuple[Any, Any, Any]], policy_name: str, config: AgentConfig, schema_name: str | None
) -> Iterator[Callable[[ConversationLine], ConversationResult]]:
    """Load the writer and yield the function that reads one conversation.

    The store is opened by the first conversation: before that the parent may yet have to create it.

    Args:
        open_store: Returns the database, its schema and its embedder.
        policy_name: Name of the writer, for `load_policy`.
        config: Prompts of the writer.
        schema_name: Categories of a new store.

    Raises:
        ConfigError: The writer cannot use its settings.
        PolicyError: The policy cannot be loaded.
    """
    policy = load_policy(policy_name)
    config = prompted_config(config, policy, schema_name)

    def read(line: ConversationLine) -> ConversationResult:
        """Read one conversation into RAM and write it in one transaction."""
        database, schema, embedder = open_once()
        operations: list[Operation] = []
        failed_calls, unread, location = 0, 0, line.location
        try:
            task = parse_task(line.raw, location)
            agent = MemoryAgent(policy, WorkingMemory(MemoryState.empty(schema), embedder.load()), config)
            for index, chunk in enumerate(task.chunks):
                location = f"{line.location}: chunk {index + 1} of {len(task.chunks)}"
                turn = agent.read(chunk, source=task.id)
                operations += turn.operations
                failed_calls += sum(not result.ok for result in turn.results)
                unread += bool(turn.problems)
            location = line.location
            if not write_log(database, task.id, schema, operations, embedder):
                return ConversationResult(task.id, "present")
        except (DataError, PolicyError, StoreError) as error:
            problem = str(error) if str(error).startswith(location) else f"{location}: {error}"
            return ConversationResult(line.task, "failed", error=problem)
        return ConversationResult(task.id, "read", len(task.chunks), len(operations), failed_calls, unread)

    with ExitStack() as files:

        @cache
        def open_once() -> tuple[Any, Any, Any]:
            opened = open_store()
            files.enter_context(closing(opened[0]))
            return opened

        yield read
