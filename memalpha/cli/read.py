"""The command read: a text, chat messages, or the conversations of a task file over worker processes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from memalpha.arguments import counted
from memalpha.cli.options import (
    Result,
    failed_if,
    load_policy,
    open_store,
    parse_store_writer,
    parse_trust,
    print_note,
    read_chunks,
    show_status,
    split_settings,
    to_json_value,
)
from memalpha.errors import ConfigError, PolicyError, PromptTooLong
from memalpha.workers import LocalPool

if TYPE_CHECKING:
    from memalpha.agent.conversations import ConversationResult, ReadingSummary

DEFAULT_CHUNK_SIZE = 4000
DEFAULT_NAMESPACE = "default"
_REPORT_SECONDS = 10.0  # time between two lines of progress
_MAX_LISTED = 20  # failed conversations that the summary lists


def read(
    store: str,
    file: Path,
    policy: Annotated[str, Option()],
    schema: str | None = None,
    embedder: str | None = None,
    speaker: str | None = None,
    timestamp: str | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    instructions: str | None = None,
    settings: list[str] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    namespaces: Literal["task"] | None = None,
    workers: Annotated[int | None, Option(min=1)] = None,
    shard: Annotated[str | None, Option(metavar="I/M")] = None,
    max_errors: Annotated[int | None, Option(min=1)] = None,
) -> Result:
    """Write a text, chat messages or many conversations into STORE with a policy.

    The policy reads the text chunk by chunk, each in a fresh context. A missing STORE is created.

    With --namespaces task each conversation of a task file is written whole or not at all. The same command again reads
    what is missing. The exit code is 1 if a conversation failed.

    Example: memalpha read ana.db chat.txt --policy add_all --timestamp 2024-05-01

    Args:
        file: Text, chat messages (.json, .jsonl) or tasks; - is stdin.
        policy: The writer: add_all, smol, tiny, a run, an endpoint, a hub id.
        speaker: Who said or wrote the text (default: its labels and messages).
        timestamp: ISO date of the text, or of messages and chunks without one.
        chunk_size: Maximum characters of a chunk.
        namespaces: task: each task of a task file is a conversation, in the namespace of its id.
        workers: Processes that read conversations (with --namespaces; default: 1).
        shard: Read shard I of M, from 0/M to M-1/M (with --namespaces).
        max_errors: Failed conversations after which reading stops (default: 100).

    Raises:
        ConfigError: A setting does not fit, or the writer cannot use it.
        DataError: The file cannot be read or is empty.
        PolicyError: The policy cannot be loaded, or a chunk is too long for it.
        StoreError: The store cannot be opened.
        WorkerError: A worker process cannot work.
    """
    from memalpha.agent.agent import MemoryAgent, prompted_config
    from memalpha.agent.conversations import MAX_ERRORS, read_conversations
    from memalpha.policy.base import RULE_POLICIES

    if namespaces is not None:
        single_options = {"--namespace": namespace != DEFAULT_NAMESPACE, "--timestamp": timestamp is not None}
        single_options |= {"--speaker": speaker is not None, "--set trust": bool(split_settings(settings, "trust")[0])}
        single_options["--chunk"] = chunk_size != DEFAULT_CHUNK_SIZE
        _refuse(single_options, "belongs to a single text, not to --namespaces")
        config = parse_store_writer(settings, instructions)
        if file.suffix != ".jsonl":
            raise ConfigError(f"{file}: --namespaces task needs a task file (.jsonl)")
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", "0/1" if shard is None else shard, re.ASCII)
        if match is None:
            raise ConfigError(f"--shard {shard}: give index and number, such as 0/8 for the first of eight")
        reporter, part = _ProgressReporter(), (int(match[1]), int(match[2]))
        pool = LocalPool(workers) if workers is not None and workers > 1 else None
        options = {"schema": schema, "embedder": embedder, "max_errors": max_errors or MAX_ERRORS}
        summary = read_conversations(
            store, file, policy, config=config, shard=part, pool=pool, progress=reporter, **options
        )
        seconds = round(time.monotonic() - reporter.start, 1)
        value = {**to_json_value(summary), "seconds": seconds}
        return Result(value, _format_summary(summary, seconds), failed_if(summary.failed))
    many_options = {"--workers": workers, "--shard": shard, "--max-errors": max_errors}
    _refuse({name: value is not None for name, value in many_options.items()}, "needs --namespaces task")
    # Check every input before a store is created.
    is_rule = policy in {*RULE_POLICIES, *RULE_POLICIES.values()}  # by name: a bad file fails before a model is loaded
    chunks, writer = read_chunks(file, timestamp, chunk_size, exact_times=is_rule), load_policy(policy)
    trust_pairs, writer_pairs = split_settings(settings, "trust")
    trust, config = parse_trust(trust_pairs), parse_store_writer(writer_pairs, instructions)
    config = prompted_config(config, writer, schema or config.memory_schema)
    results, problems = [], Counter[str]()
    with open_store(store, embedder, namespace, schema=schema, create=True) as memory:
        agent = MemoryAgent(writer, memory, config, trust=trust)
        for index, chunk in enumerate(chunks):
            try:
                with show_status(f"reading chunk {index + 1} of {len(chunks)}"):
                    turn = agent.read(chunk, source=str(file), speaker=speaker)
                results, problems = [*results, *turn.results], problems + Counter(turn.problems)
            except PromptTooLong as error:
                remedy = "split that chunk" if file.suffix == ".jsonl" else f"lower --chunk (now {chunk_size})"
                done = f"; the {index} chunks before it are in the store" if index else ""
                problem = f"{file}: chunk {index + 1} of {len(chunks)}: {error.problem}: {remedy}{done}"
                raise PolicyError(problem) from error
    if problems:
        print_note(
            f"of {len(chunks)} replies {problems['no_call']} held no readable call, {problems['cut_off']} "
            "were cut off (--set max_new_tokens=N gives them more room): what they would have kept is not in the store"
        )
    lines = [
        f"{result.code:<18} {result.entry_id or '-':<26} "
        f"{result.content or result.message or 'nothing to keep' * (result.code == 'skipped')}"
        for result in results
    ]
    return Result(results, "\n".join(lines))


def _refuse(are_set: Mapping[str, bool], problem: str) -> None:
    for option, is_set in are_set.items():
        if is_set:
            raise ConfigError(f"{option}: {problem}")


class _ProgressReporter:
    """Prints failed conversations at once, and counts every few seconds, on stderr."""

    def __init__(self) -> None:
        self.start = self._last = time.monotonic()
        self._counts = {"read": 0, "present": 0, "failed": 0}

    def __call__(self, result: ConversationResult) -> None:
        self._counts[result.status] += 1
        if result.status == "failed":
            print_note(f"failed: {result.error}")
        now = time.monotonic()
        if now - self._last >= _REPORT_SECONDS:
            self._last = now
            rate = self._counts["read"] / (now - self.start)
            counts = ", ".join(f"{count} {status}" for status, count in self._counts.items())
            print_note(f"{counts}; {rate:.1f} conversations/s")


def _format_summary(summary: ReadingSummary, seconds: float) -> str:
    lines = [
        f"{counted(summary.read, 'conversation')} read in {seconds} s: {counted(summary.chunks, 'chunk')}, "
        f"{counted(summary.operations, 'operation')}, {counted(summary.failed_calls, 'failed call')}",
        f"{summary.present} were in the store already, {len(summary.failed)} failed",
        *([f"{summary.unread} replies held no readable call or were cut off"] if summary.unread else []),
        *(f"  {result.error}" for result in summary.failed[:_MAX_LISTED]),
    ]
    if len(summary.failed) > _MAX_LISTED:
        lines.append(f"  and {len(summary.failed) - _MAX_LISTED} more")
    if summary.stopped:
        lines.append("stopped: too many failed (--max-errors); what was read is in the store")
    return "\n".join(lines)
