"""One namespace of a store and its writer behind an event loop: what MCP and HTTP serve.

No method blocks the loop. What writes is done by one thread, one thing after the other in the order of asking: an edit,
or one chunk of a text, which a policy may take long over. What only looks has threads of its own and waits for neither;
questions have one more. A policy does one thing at a time. What a thread has begun is done even if whoever asked has
gone; what waits then is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer, ExtractiveReader
from memalpha.agent.tools import execute
from memalpha.errors import (
    ConfigError,
    DuplicateContent,
    InvalidContent,
    MemalphaError,
    PolicyError,
    StoreError,
    UnknownCategory,
    UnknownEntry,
)
from memalpha.integrations.server.schemas import MAX_CONTENT, List, Logged, Outcome, Page, Read, Reading, Refused
from memalpha.policy.base import Policy
from memalpha.store.filters import Where, parse
from memalpha.store.schema import MemorySchema
from memalpha.store.store import MemoryStore
from memalpha.tasks.chunking import cut
from memalpha.types import Hit, MemoryEntry, Operation, ToolCall, ToolResult, Turn

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, int], Awaitable[None]]

LOOKING = 4
"""Threads for what only looks."""

log = logging.getLogger("memalpha.serve")

_STATUS = {UnknownEntry: 404, DuplicateContent: 409, UnknownCategory: 422, InvalidContent: 422}


class MemoryService:
    """What is served of `store`, whose owner it becomes: `close` closes it.

    `chunk`: the longest piece that the policy reads at once, in characters; it has to fit the policy's window beside
    the memory view. `read_only`: nothing is written, and no policy is needed; questions are then answered by the
    extractive floor.
    Raises `ConfigError` where nobody could write. Its methods raise `Refused`, and nothing else that is meant.
    """

    def __init__(
        self, store: MemoryStore, policy: Policy | None, *, chunk: int = 4000, read_only: bool = False
    ) -> None:
        if policy is None and not read_only:
            raise ConfigError("policy: a writer is needed, unless the memory is served read-only")
        self._store, self._chunk = store, chunk
        self._agent = None if policy is None else MemoryAgent(policy, store)
        self._reader = ExtractiveReader() if self._agent is None else self._agent.reader
        self._one_at_a_time = Lock()  # for the policy, which writes in one thread and answers in another
        self._writing = ThreadPoolExecutor(1, "memalpha-write")
        self._asking = ThreadPoolExecutor(1, "memalpha-ask")
        self._looking = ThreadPoolExecutor(LOOKING, "memalpha-look")
        self.read_only = read_only

    @property
    def schema(self) -> MemorySchema:
        """The categories of the memory."""
        return self._store.schema

    async def close(self) -> None:
        """Take nothing more, finish what was begun, and close the store. A second time does nothing."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for pool in (self._writing, self._asking, self._looking):
            pool.shutdown(cancel_futures=True)
        self._store.close()

    # ------------------------------------------------------------------------------------------------ the writer

    async def read(self, asked: Read, *, source: str, progress: Progress | None = None) -> Reading:
        """Let the policy read a text, chunk by chunk; `progress` is told (chunks read, chunks) where there are several.

        Another's edit may come between two chunks. Where a chunk fails, what those before it wrote stays.
        """
        pieces, outcomes = cut(asked.text, self._chunk), []
        for number, piece in enumerate(pieces):
            try:
                turn = await self._write(self._read_chunk, piece, asked.timestamp, asked.source or source)
            except Refused as refused:
                kept = f" ({number} of {len(pieces)} chunks were read, and what came of them is kept)" if number else ""
                raise Refused(refused.code, f"{refused.message}{kept}", refused.status) from refused
            outcomes += map(Outcome.of, turn.results)
            if progress is not None and len(pieces) > 1:
                await progress(number + 1, len(pieces))
        return Reading(len(pieces), tuple(outcomes))

    def _read_chunk(self, text: str, timestamp: str | None, source: str) -> Turn:
        """The agent numbers its chunks on from one request to the next, so that no two have one place."""
        assert self._agent is not None
        with self._one_at_a_time:
            return self._agent.read(text, timestamp=timestamp, source=source)

    async def ask(self, question: str, k: int) -> Answer:
        """An answer from the `k` entries nearest to the question."""
        return await self._in(self._asking, self._answer, question, k)

    def _answer(self, question: str, k: int) -> Answer:
        with self._one_at_a_time:
            return self._reader.answer([(question, self._store)], k=k)[0]

    # ------------------------------------------------------------------------------------------------ what writes

    async def call(self, name: str, arguments: Mapping[str, Any], *, source: str) -> Outcome:
        """Run one of the writer's tools, just as if a policy had called it."""
        call = ToolCall(name, dict(arguments))
        for key, value in arguments.items():
            if isinstance(value, str) and len(value) > MAX_CONTENT:
                message = f"{key}: of {len(value)} characters; {MAX_CONTENT} is the limit"
                return Outcome.of(ToolResult(call, False, "invalid_arguments", message))
        result, _ = await self._write(partial(execute, self._store, call, chunk=None, source=source, timestamp=None))
        return Outcome.of(result)

    async def insert(self, fact: Mapping[str, Any]) -> tuple[MemoryEntry, bool]:
        """Store a fact (arguments of `MemoryStore.insert`), and say whether it is new: else the entry that says it."""

        def insert() -> tuple[MemoryEntry, bool]:
            try:
                entry = self._store.change(Operation("insert", **fact)).entry
            except DuplicateContent as known:
                return self._store.get(known.entry_id), False
            assert entry is not None
            return entry, True

        return await self._write(insert)

    async def update(self, id: str, change: Mapping[str, Any]) -> MemoryEntry:
        """Give an entry new content (arguments of `MemoryStore.update`)."""
        return await self._write(partial(self._store.update, id, **change))

    async def delete(self, id: str, source: str) -> MemoryEntry:
        """End an entry, and return it as it was."""
        return await self._write(partial(self._store.delete, id, source=source))

    async def set_core(self, text: str, source: str) -> str:
        """Rewrite the core memory, and return it as stored."""
        if not self.schema.core:
            raise Refused("no_core_memory", f"the schema {self.schema.name!r} has no core memory")

        def rewrite() -> str:
            self._store.core_update(text, source=source)
            return self._store.core

        return await self._write(rewrite)

    # ------------------------------------------------------------------------------------------------- what looks

    async def position(self) -> int:
        """The log's last position: the store answers."""
        return await self._in(self._looking, self._store.snapshot)

    async def search(
        self, query: str, k: int, *, category: str | None = None, where: Where = None, as_of: int | str | None = None
    ) -> list[Hit]:
        """The k best entries, best first."""
        self._check(category, where)
        search = partial(self._store.search, query, k, category=category, where=where, as_of=as_of)
        return await self._in(self._looking, search)

    async def page(self, asked: List, *, as_of: int | str | None = None) -> Page:
        """A page of entries, and the core memory."""
        self._check(asked.category, None)

        def look() -> Page:
            found = self._store.list(asked.category, limit=asked.limit + 1, after=asked.after, as_of=as_of)
            entries = tuple(found[: asked.limit])
            next = entries[-1].id if len(found) > asked.limit else None
            return Page(self._store.core_at(as_of), entries, next)

        return await self._in(self._looking, look)

    async def get(self, id: str, as_of: int | str | None = None) -> MemoryEntry:
        """A live entry, or as it was at `as_of`."""
        return await self._in(self._looking, partial(self._store.get, id, as_of=as_of))

    async def history(self, id: str) -> list[MemoryEntry]:
        """All versions of an entry, oldest first."""
        return await self._in(self._looking, self._store.history, id)

    async def core(self, as_of: int | str | None = None) -> str:
        """The core memory."""
        return await self._in(self._looking, self._store.core_at, as_of)

    async def log(self, after: int, limit: int) -> list[Logged]:
        """At most `limit` operations beyond position `after`."""
        return await self._in(self._looking, lambda: [Logged(*line) for line in islice(self._store.log(after), limit)])

    async def export(self, file: Path) -> int:
        """Write the whole log to a file of the server's own, as `memalpha export` does."""
        return await self._in(self._looking, self._store.export_jsonl, file)

    # ------------------------------------------------------------------------------------------------------ inside

    def _check(self, category: str | None, where: Where) -> None:
        """Refuse what the store would: there, a bad filter cannot be told from a database that fails."""
        try:
            if category is not None:
                self.schema.check(category)
            parse(where)
        except UnknownCategory as error:
            raise _refused(error) from error
        except StoreError as error:
            raise Refused("invalid_arguments", str(error)) from error

    async def _write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.read_only:
            raise Refused("read_only", "this memory is served read-only", 403)
        return await self._in(self._writing, work, *args, **kwargs)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with _telling():
            try:
                done = asyncio.get_running_loop().run_in_executor(pool, partial(work, *args, **kwargs))
            except RuntimeError as error:  # the pool was shut down
                raise Refused("closing", "the server is shutting down", 503) from error
            return await done


@contextmanager
def _telling() -> Iterator[None]:
    """Every failure as `Refused`. What is not the sender's doing is told in general words, and in full on stderr."""
    try:
        yield
    except Refused:
        raise
    except MemalphaError as error:
        raise _refused(error) from error
    except Exception as error:
        log.exception("a request failed")
        raise Refused("internal_error", "the server failed; its log says why", 500) from error


def _refused(error: MemalphaError) -> Refused:
    if isinstance(error, StoreError) and type(error) in _STATUS:
        return Refused(error.code, str(error), _STATUS[type(error)])
    log.error("a request failed", exc_info=error)
    if isinstance(error, PolicyError):
        return Refused("policy_error", "the policy did not answer; the server's log says why", 502)
    return Refused("store_error", "the store did not do it; the server's log says why", 503)
