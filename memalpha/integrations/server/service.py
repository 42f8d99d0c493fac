"""Asynchronous access to a store and its writer, shared by MCP and HTTP; one service for each namespace.

No method blocks the event loop. One thread writes: edits, and what the policy wants written, run one after the other.
The policy has a thread of its own and is asked outside the writes: nobody's edit waits for it, and what it wants to
change is refused with the code "conflict" if somebody changed it meanwhile. Reads have threads of their own and never
wait for writes; questions have one more thread. The policy runs one request at a time, and a bounded number may wait.
What waits for a caller that is cancelled is dropped, what the policy proposed for one too. A started write finishes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event, Lock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer, ExtractiveReader, Reading, check_answers, default_reader
from memalpha.agent.tools import TOOLS, Tools, execute, read_call
from memalpha.agent.trust import AttributedMemory
from memalpha.config import AgentConfig, ReaderConfig, TrustConfig
from memalpha.errors import (
    ConfigError,
    DataError,
    DuplicateContent,
    ScrubPending,
    StoreError,
    UnknownCategory,
)
from memalpha.integrations.server.availability import Availability, service_errors, to_service_error
from memalpha.integrations.server.schemas import (
    MAX_CONDITIONS,
    MAX_CONTENT,
    MAX_MODEL_REQUESTS,
    MAX_TEXT,
    CallOutcome,
    EntryPage,
    EraseResponse,
    ListRequest,
    LoggedOperation,
    ReadRequest,
    ReadResponse,
    ServiceError,
    count_conditions,
)
from memalpha.integrations.server.tracing import traced_store, work_span
from memalpha.policy.base import Policy
from memalpha.store.filters import Where, parse_filter
from memalpha.store.io.jsonl import to_json
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema
from memalpha.store.store import MemoryStore
from memalpha.tasks.chunking import split_text
from memalpha.tasks.formats.messages import chunk_messages
from memalpha.types import Chunk, Hit, MemoryEntry, Operation, ToolCall, ToolResult, Turn

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, int], Awaitable[None]]

READ_THREADS = 4
"""Threads for requests that only read."""
READ_SECONDS, WRITE_SECONDS = 20.0, 60.0
"""Time of a request's statements from the moment it begins; then the database stops them (504)."""
MAX_NAMESPACES = 256
"""Namespaces, beside the first, whose service is kept for the next request."""
MAX_ANSWER = 8 << 20
"""Bytes of entries in an answer, about."""
PAGE_STEP = 128
"""Entries that a page reads at once, so that large ones do not fill the memory."""


class MemoryService:
    """Serve a store and its writer. Methods raise `ServiceError`; `close` closes the store."""

    def __init__(
        self,
        store: MemoryStore,
        policy: Policy | None,
        *,
        chunk_size: int = 4000,
        read_only: bool = False,
        config: AgentConfig | None = None,
        reader: ReaderConfig | None = None,
        trust: TrustConfig | None = None,
    ) -> None:
        """Take ownership of `store`.

        Args:
            store: The namespace to serve.
            policy: The writer; it also answers questions. None needs `read_only`.
            chunk_size: Maximum characters that the policy reads at once; a chunk and the memory view must fit its
                context window.
            read_only: Refuse writes. Without a policy, an extractive reader answers questions.
            config: Sizes of the writer's prompts and the user's instructions.
            reader: Settings of the policy as a reader.
            trust: Rule of what a speaker may change; None lets all pass.

        Raises:
            ConfigError: there is no policy and `read_only` is False, or the policy cannot use the settings.
        """
        if policy is None and not read_only:
            raise ConfigError("policy: a writer is needed, unless the memory is served read-only")
        self._store, self._chunk_size = store, chunk_size
        self._agent = None if policy is None else MemoryAgent(policy, store, config, trust=trust)
        self._reader = ExtractiveReader() if self._agent is None else self._agent.reader
        if self._agent is not None and reader is not None:
            self._reader = default_reader(self._agent.policy, self._agent.config, reader)
        self._namespaces: OrderedDict[str, MemoryService] = OrderedDict()  # others of the same store, last used last
        self._siblings: WeakSet[MemoryService] = WeakSet()
        self._policy_lock = Lock()  # the policy writes in one thread and answers in another
        self._waiting: list[str] = []  # namespaces of the requests that run or wait for the policy
        self._model_pool = ThreadPoolExecutor(1, "memalpha-model")
        self._write_pool = ThreadPoolExecutor(1, "memalpha-write")
        self._ask_pool = ThreadPoolExecutor(1, "memalpha-ask")
        self._read_pool = ThreadPoolExecutor(READ_THREADS, "memalpha-read")
        self._availability = Availability(store._database.ping if store._database.is_remote else None)
        self.read_only = read_only

    @property
    def schema(self) -> MemorySchema:
        """Categories of the memory."""
        return self._store.schema

    @property
    def tools(self) -> Tools:
        """The writer's tools by name."""
        return TOOLS if self._agent is None else self._agent.tools

    @property
    def _view(self) -> Memory:
        """The memory as the reader sees it: with a trust rule, the words of others after their names."""
        return self._store if self._agent is None else self._agent.view

    @property
    def name(self) -> str:
        """Name of the namespace."""
        return self._store.namespace_name

    def namespace(self, name: str) -> MemoryService:
        """Return the service of another namespace of the same store, with the same policy.

        Threads and requests for the policy are shared, the turn of writes is not. Closing the first closes all.
        """
        if name == self.name:
            return self
        if (service := self._namespaces.get(name)) is None:
            service = copy(self)
            service._store = self._store.namespace(name)
            if self._agent is not None:
                service._agent = self._agent.with_store(service._store)
            service._write_pool = ThreadPoolExecutor(1, "memalpha-write")
            self._namespaces[name] = service
            self._siblings.add(service)
            if len(self._namespaces) > MAX_NAMESPACES:
                self._namespaces.popitem(last=False)  # it ends with the last request that uses it
        self._namespaces.move_to_end(name)
        return service

    async def close(self) -> None:
        """Refuse new requests, finish started ones, and close the store. Closing twice is harmless."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        write_pools = [service._write_pool for service in (self, *self._siblings)]
        for pool in (self._model_pool, *write_pools, self._ask_pool, self._read_pool):  # the model's writes last
            pool.shutdown(cancel_futures=True)
        self._store.close()

    # ------------------------------------------------------------------------------------------------ the writer

    async def read(self, request: ReadRequest, *, source: str, progress: Progress | None = None) -> ReadResponse:
        """Let the policy read a text or chat messages, chunk by chunk.

        Edits of other clients may come between two chunks, and while the policy thinks. If a chunk fails, the chunks
        before it stay written.

        Args:
            request: Text or messages, timestamp, source and metadata.
            source: Source of the entries if the request names none.
            progress: Awaited with (chunks read, chunks) if there are several.

        Raises:
            ServiceError: A message is invalid, none has words of a user or an assistant, or too many requests wait.
        """
        self._check_writable()
        with self._model_request():
            return await self._read(request, source, progress)

    async def _read(self, request: ReadRequest, source: str, progress: Progress | None) -> ReadResponse:
        outcomes: list[CallOutcome] = []
        problems: list[str] = []
        chunks = self._split(request)
        for index, chunk in enumerate(chunks):
            try:
                origin = {"source": request.source or source, "metadata": request.metadata}
                turn = await self._read_chunk(chunk, request.timestamp, origin)
            except ServiceError as error:
                note = f" ({index} of {len(chunks)} chunks were read and stay written)" if index else ""
                message, wait = f"{error.message}{note}", error.retry_after
                raise ServiceError(error.code, message, error.status, retry_after=wait) from error
            outcomes += map(CallOutcome.from_result, turn.results)
            problems += turn.problems
            if progress is not None and len(chunks) > 1:
                await progress(index + 1, len(chunks))
        return ReadResponse(len(chunks), tuple(outcomes), tuple(problems))

    def _split(self, request: ReadRequest) -> Sequence[str | Chunk]:
        if request.text is not None:
            return split_text(request.text, self._chunk_size)
        try:
            chunks = chunk_messages(request.messages or (), timestamp=request.timestamp, size=self._chunk_size)
        except DataError as error:
            raise ServiceError("invalid_arguments", str(error)) from error
        size = sum(len(turn.text) for chunk in chunks for turn in chunk.turns)
        if not chunks:
            raise ServiceError("invalid_arguments", "messages: no words of a user or an assistant")
        if size > MAX_TEXT:
            raise ServiceError("invalid_arguments", f"messages: of {size} characters; {MAX_TEXT} is the limit")
        return chunks

    async def _read_chunk(self, text: str | Chunk, timestamp: str | None, origin: Mapping[str, Any]) -> Turn:
        """Let the policy read one chunk; drop what it proposes if the caller is cancelled meanwhile."""
        dropped = Event()
        try:
            return await self._run_in(self._model_pool, self._propose_and_apply, text, timestamp, origin, dropped)
        except BaseException:
            dropped.set()
            raise

    def _propose_and_apply(
        self, text: str | Chunk, timestamp: str | None, origin: Mapping[str, Any], dropped: Event
    ) -> Turn:
        """Ask the policy, then write in the turn of the writes. Chunks are numbered across requests."""
        assert self._agent is not None
        if isinstance(text, Chunk):
            text = text.model_copy(update={"index": self._agent.chunks_read})
        with self._policy_lock, work_span("model", "propose"):
            proposal = self._agent.propose(text, timestamp=timestamp)
        if dropped.is_set():
            raise ServiceError("gone", "the client has gone", 499)
        apply = partial(traced_store, partial(self._agent.apply, proposal, **origin), WRITE_SECONDS)
        return self._write_pool.submit(copy_context().run, apply).result()

    async def ask(self, question: str, k: int, *, where: Where = None) -> Answer:
        """Answer a question from the `k` entries nearest to it.

        Args:
            question: The question.
            k: Number of entries.
            where: Filter over fields and metadata of the entries. The core memory is not filtered.

        Raises:
            ServiceError: The filter is invalid, or too many requests wait.
        """
        self._check(None, where)
        with self._model_request():
            answer = await self._run_in(self._ask_pool, self._answer, question, k, where)
        _check_answer_size((hit.entry for hit in answer.hits), "ask with fewer entries (k)")
        return answer

    @contextmanager
    def _model_request(self) -> Iterator[None]:
        """Count a request for the policy; refuse it if too many run or wait."""
        if len(self._waiting) >= MAX_MODEL_REQUESTS:
            raise ServiceError("too_many_requests", f"{MAX_MODEL_REQUESTS} requests wait for the model already", 429)
        self._waiting.append(self.name)
        try:
            yield
        finally:
            self._waiting.remove(self.name)

    def _answer(self, question: str, k: int, where: Where) -> Answer:
        with self._policy_lock, work_span("model", "answer"):
            if where is not None:
                hits = tuple(self._view.search(question, k, where=where))
                readings = [Reading(question, hits, core=self._store.core)]
                return check_answers(self._reader, 1, lambda: self._reader.read(readings))[0]
            return check_answers(self._reader, 1, lambda: self._reader.answer([(question, self._view)], k=k))[0]

    # ------------------------------------------------------------------------------------------------ writes

    async def call(self, name: str, arguments: Mapping[str, Any], *, source: str) -> CallOutcome:
        """Run one of the writer's tools as if the policy had called it.

        Args:
            name: Name of the tool.
            arguments: Its arguments; invalid ones give an outcome with an error code.
            source: Source of the written entry.
        """
        call = ToolCall(name, dict(arguments))
        for key, value in arguments.items():
            if isinstance(value, str) and len(value) > MAX_CONTENT:
                message = f"{key}: of {len(value)} characters; {MAX_CONTENT} is the limit"
                return CallOutcome.from_result(ToolResult(call, False, "invalid_arguments", message))
        read = read_call(call, self.schema, self.tools)
        write = partial(execute, self._store, call, read, chunk=None, source=source, timestamp=None)
        result, _ = await self._write(write)
        return CallOutcome.from_result(result)

    async def insert(self, fact: Mapping[str, Any]) -> tuple[MemoryEntry, bool]:
        """Store a fact (arguments of `MemoryStore.insert`).

        Returns:
            The new entry and True, or the entry with the same content and False.
        """

        def insert() -> tuple[MemoryEntry, bool]:
            try:
                entry = self._store.change(Operation("insert", **fact)).entry
            except DuplicateContent as duplicate:
                return self._store.get(duplicate.entry_id), False
            assert entry is not None
            return entry, True

        return await self._write(insert)

    async def update(self, id: str, change: Mapping[str, Any]) -> MemoryEntry:
        """Replace the content of an entry (arguments of `MemoryStore.update`)."""
        return await self._write(partial(self._store.update, id, **change))

    async def delete(self, id: str, source: str) -> MemoryEntry:
        """Delete an entry and return its last version."""
        return await self._write(partial(self._store.delete, id, source=source))

    async def erase(self, id: str | None = None, *, where: Mapping[str, Any] | None = None) -> EraseResponse:
        """Erase an entry for good, with all of its past, or all entries of which any version passes a filter."""

        def erase() -> EraseResponse:
            try:
                erasure, is_pending = self._store.erase(*() if id is None else (id,), where=where), False
            except ScrubPending as pending:
                erasure, is_pending = pending.erasure, True
            return EraseResponse(id, list(erasure), is_pending, list(erasure.ids))

        self._check(None, where)
        return await self._write(erase)

    async def set_core(self, text: str, source: str) -> str:
        """Replace the core memory and return it as stored."""
        if not self.schema.core:
            raise ServiceError("no_core_memory", f"the schema {self.schema.name!r} has no core memory")

        def rewrite() -> str:
            self._store.core_update(text, source=source)
            return self._store.core

        return await self._write(rewrite)

    async def writing(self, work: Callable[[MemoryStore], T]) -> T:
        """Run `work`, which writes, on the store in the turn of the writes."""
        return await self._write(work, self._store)

    # ------------------------------------------------------------------------------------------------- reads

    async def reading(self, work: Callable[[MemoryStore], T]) -> T:
        """Run `work`, which only reads, on the store in a thread of the reads."""
        return await self._run_in(None, work, self._store)

    async def position(self) -> int:
        """Return the last position of the log."""
        return await self._run_in(None, self._store.snapshot)

    async def search(
        self, query: str, k: int, *, category: str | None = None, where: Where = None, as_of: int | str | None = None
    ) -> list[Hit]:
        """Return the best entries, best first; with a trust rule those of others named and ranked lower.

        Args:
            query: A question or a few words.
            k: Number of entries.
            category: Only this category.
            where: Filter over fields and metadata.
            as_of: A past state; None is the current one.
        """
        self._check(category, where)
        search = partial(self._view.search, query, k, category=category, where=where, as_of=as_of)
        hits = await self._run_in(None, search)
        _check_answer_size((hit.entry for hit in hits), "ask for fewer hits (k)")
        return hits

    def as_read(self, entry: MemoryEntry) -> MemoryEntry:
        """Return an entry as the reader sees it."""
        return self._view.name(entry) if isinstance(self._view, AttributedMemory) else entry

    async def page(self, request: ListRequest, *, as_of: int | str | None = None) -> EntryPage:
        """Return a page of entries, and the core memory."""
        self._check(request.category, None)
        return await self._run_in(None, _read_page, self._store, request, as_of)

    async def get(self, id: str, as_of: int | str | None = None) -> MemoryEntry:
        """Return an entry of the current state, or of a past one."""
        return await self._run_in(None, partial(self._store.get, id, as_of=as_of))

    async def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first."""
        versions = await self._run_in(None, self._store.history, id)
        _check_answer_size(versions, "read it with as_of, or /v1/log")
        return versions

    async def core(self, as_of: int | str | None = None) -> str:
        """Return the core memory."""
        return await self._run_in(None, self._store.core_at, as_of)

    async def log(self, after: int, limit: int) -> list[LoggedOperation]:
        """Return at most `limit` operations after position `after`, fewer if they are large."""
        return await self._run_in(None, _read_log, self._store, after, limit)

    async def export(self, file: Path) -> int:
        """Write the whole log to a temporary file of the server, as `memalpha export` does."""
        return await self._run_in(None, self._store.export_jsonl, file)

    # ------------------------------------------------------------------------------------------------------ helpers

    def _check(self, category: str | None, where: Where) -> None:
        """Refuse a bad category or filter here: the store's error could not be told from a failing database."""
        try:
            if category is not None:
                self.schema.check_category(category)
            if where is not None and (count := count_conditions(where)) > MAX_CONDITIONS:
                raise ServiceError("invalid_arguments", f"where: of {count} conditions; {MAX_CONDITIONS} is the limit")
            parse_filter(where)
        except UnknownCategory as error:
            raise to_service_error(error) from error
        except StoreError as error:
            raise ServiceError("invalid_arguments", str(error)) from error

    async def _write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_writable()
        return await self._run_in(self._write_pool, work, *args, **kwargs)

    def _check_writable(self) -> None:
        if self.read_only:
            raise ServiceError("read_only", "this memory is served read-only", 403)

    async def _run_in(
        self, pool: ThreadPoolExecutor | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in a thread of `pool`; None is that of the reads."""
        with service_errors():
            call = partial(work, *args, **kwargs)
            if pool in (None, self._write_pool):
                seconds = READ_SECONDS if pool is None else WRITE_SECONDS
                call = partial(traced_store, call, seconds if work != self._store.export_jsonl else None)
            try:
                await self._availability.check()
                result = (pool or self._read_pool).submit(copy_context().run, call)
            except RuntimeError as error:  # the pool was shut down
                raise ServiceError("closing", "the server is shutting down", 503) from error
            return await self._availability.wait(result)


def _read_page(store: MemoryStore, request: ListRequest, as_of: int | str | None) -> EntryPage:
    """Return a page of entries, and the core memory. It has at least one entry, if there are any.

    Args:
        store: Store of the namespace.
        request: Category, limit and the id after which the page begins.
        as_of: A past state; None is the current one.

    Raises:
        StoreError: No entry ever had the id, or the state does not exist.
    """
    entries: list[MemoryEntry] = []
    size, after, is_last = 0, request.after, False
    with store.read_transaction():  # core and entries of one moment
        core = store.core_at(as_of)
        while not is_last and len(entries) <= request.limit and size <= MAX_ANSWER:
            step = min(PAGE_STEP, request.limit + 1 - len(entries))
            rows = store.list(request.category, limit=step, after=after, as_of=as_of)
            is_last = len(rows) < step
            entries += rows
            size += sum(map(_count_bytes, rows))
            after = entries[-1].id if entries else None
    while len(entries) > 1 and (size > MAX_ANSWER or len(entries) > request.limit):
        size -= _count_bytes(entries.pop())
        is_last = False
    return EntryPage(core, tuple(entries), None if is_last else entries[-1].id)


def _read_log(store: MemoryStore, after: int, limit: int) -> list[LoggedOperation]:
    """Return operations of the log, fewer if they are large, and at least one if there is one.

    Args:
        store: Store to read.
        after: Position before the first.
        limit: Most operations.
    """
    lines, size = [], 0
    for line in islice(store.log(after), limit):
        size += _count_bytes(line[2])
        if lines and size > MAX_ANSWER:
            break
        lines.append(LoggedOperation(*line))
    return lines


def _check_answer_size(entries: Iterable[MemoryEntry], how: str) -> None:
    """Raise `ServiceError` if an answer with the entries would be too large.

    Args:
        entries: Entries of the answer.
        how: What to ask for instead.
    """
    if sum(map(_count_bytes, entries)) > MAX_ANSWER:
        raise ServiceError("answer_too_large", f"the answer is larger than {MAX_ANSWER} bytes: {how}")


def _count_bytes(entry: MemoryEntry | Operation) -> int:
    """Return about how many bytes an entry or an operation has in an answer."""
    metadata = len(to_json(dict(entry.metadata))) if entry.metadata else 0
    return 512 + len((entry.content or "").encode("utf-8", "surrogatepass")) + metadata
