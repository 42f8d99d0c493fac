"""Asynchronous access to a store and its writer, shared by MCP and HTTP; one service for each namespace.

No method blocks the event loop. One thread writes: edits, and what the policy wants written, run one after the other.
The policy has a thread of its own and is asked outside the writes: nobody's edit waits for it, and what it wants to
change is refused with the code "conflict" if somebody changed it meanwhile. Reads that take milliseconds are done at
once; others have threads of their own and never wait for writes, and questions have one more thread. The policy runs
one request at a time, and a bounded number may wait.
What waits for a caller that is cancelled is dropped, what the policy proposed for one too. A started write finishes.

A request of a store in PostgreSQL may wait long for two reasons: it has much to do, or the server has gone without a
word (a cut network, a stopped machine). So a request that takes longer than `PATIENCE` looks whether a new connection
is answered. If it is not, the client is told to come back; the thread ends with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from functools import lru_cache, partial
from itertools import islice
from threading import Event, Lock
from typing import Any, Literal, TypeVar
from weakref import WeakSet

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.reader import Answer, QuotingReader, RetrievedMemory, check_answers, default_reader
from memalpha.agent.tools import TOOLS, execute, read_call
from memalpha.agent.trust import AttributedMemory
from memalpha.config import AgentConfig, ReaderConfig, TrustConfig
from memalpha.errors import (
    ConfigError,
    DataError,
    DeadlineExceeded,
    DuplicateContent,
    InvalidArgument,
    InvalidContent,
    MemalphaError,
    PolicyError,
    ReviewConflict,
    ScrubPending,
    StoreError,
    StoreUnavailable,
    UnknownCategory,
    UnknownEntry,
)
from memalpha.integrations.server import schemas
from memalpha.integrations.server.auth import Access, Right, log
from memalpha.integrations.server.schemas import ServiceError
from memalpha.integrations.server.telemetry import traced_store, work_span
from memalpha.policy.base import Policy
from memalpha.policy.scripted import ignores_memory
from memalpha.store.backends.base import deadline
from memalpha.store.filters import Where, parse_filter
from memalpha.store.io.jsonl import to_json
from memalpha.store.memory import Memory
from memalpha.store.quarantine import WRITER
from memalpha.store.store import MemoryStore
from memalpha.tasks.chunking import split_lines
from memalpha.tasks.formats.messages import chunk_messages
from memalpha.types import Chunk, Hit, MemoryEntry, Operation, ToolCall, ToolResult, Turn

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
PATIENCE = 0.75
"""Seconds that a request may take before the database is looked at, and between two looks."""
PING_SECONDS = 1.0
"""Seconds for the database to answer a new connection."""
LATE_SECONDS = 0.1
"""Seconds for an answer that has come to be noticed."""
AWAY_RETRY_SECONDS = 2
"""After how long a client may ask again while the database is away."""

_STATUS = {
    UnknownEntry: 404,
    DuplicateContent: 409,
    UnknownCategory: 422,
    InvalidContent: 422,
    InvalidArgument: 422,
    ReviewConflict: 409,
    DeadlineExceeded: 504,
}


class Availability:
    """Wait for requests of one database; all requests of a server share the looks at it."""

    def __init__(self, ping: Callable[[], None] | None) -> None:
        """Watch a database.

        Args:
            ping: Returns if the database answers, and raises `StoreError` if it does not. None for a file, which is
                never away.
        """
        self._ping = ping
        self._look: asyncio.Task[None] | None = None
        self._is_away = False

    async def check(self) -> None:
        """Look before a thread is used, if the last look got no answer. Raises `ServiceError` (503)."""
        if self._is_away and not await self._is_answering():
            raise _away("nothing was done")

    async def wait(self, work: Future[T]) -> T:
        """Return the result of `work`, which runs in a thread. Work that has not begun is dropped on every failure.

        Raises:
            ServiceError: The database is away (503). A write that had begun may be stored, and the message says so.
        """
        result = asyncio.wrap_future(work)
        try:
            while self._ping is not None and not (await asyncio.wait({result}, timeout=PATIENCE))[0]:
                if not await self._is_answering() and not result.done():
                    state = "nothing was done" if work.cancel() else "whether a write was stored is not known"
                    raise _away(state)
            return await result
        except BaseException:
            result.cancel()
            raise

    async def _is_answering(self) -> bool:
        assert self._ping is not None
        if self._look is None or self._look.done() or self._look.get_loop() is not asyncio.get_running_loop():
            self._look = asyncio.create_task(asyncio.to_thread(self._ping))
            self._look.add_done_callback(lambda look: look.cancelled() or look.exception())  # read: it is no surprise
        look = self._look
        done, _ = await asyncio.wait({look}, timeout=PING_SECONDS)
        if not done:  # a loop that was late itself has not yet heard of an answer that came in time
            done, _ = await asyncio.wait({look}, timeout=LATE_SECONDS)
        self._is_away = not done or look.cancelled() or look.exception() is not None
        return not self._is_away


@contextmanager
def service_errors() -> Iterator[None]:
    """Convert every exception to `ServiceError`.

    Errors that the client did not cause get a general message; the log has the traceback.
    """
    try:
        yield
    except ServiceError:
        raise
    except Exception as error:
        raise to_service_error(error) from error


def to_service_error(error: Exception) -> ServiceError:
    """Return the error for the client."""
    if isinstance(error, StoreUnavailable):
        log.error("the database is away: %s", error)
        return _away(error.outcome)
    if isinstance(error, StoreError) and type(error) in _STATUS:
        return ServiceError(error.code, str(error), _STATUS[type(error)])
    log.error("a request failed", exc_info=error)
    if isinstance(error, PolicyError):
        return ServiceError("policy_error", "the policy did not answer; the server's log says why", 502)
    if isinstance(error, MemalphaError) and not isinstance(error, ConfigError):  # of the operator's own tool
        return ServiceError("store_error", "the store did not do it; the server's log says why", 503)
    return ServiceError("internal_error", "the server failed; its log says why", 500)


def _away(outcome: str) -> ServiceError:
    message = "the database is away" + (f" ({outcome})" if outcome else "") + ": try again later"
    return ServiceError(StoreUnavailable.code, message, 503, retry_after=AWAY_RETRY_SECONDS)


class MemoryService:
    """Serve a store and its writer. Methods raise `ServiceError`; `close` closes the store.

    Attributes:
        name: Name of the namespace.
        schema: Categories of the memory.
        tools: The writer's tools by name.
    """

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
            read_only: Refuse writes. Without a policy, `QuotingReader` answers questions.
            config: Sizes of the writer's prompts and the user's instructions.
            reader: Settings of the policy as a reader.
            trust: Rule of what a speaker may change; None lets all pass.

        Raises:
            ConfigError: there is no policy and `read_only` is False, or the policy cannot use the settings.
        """
        if policy is None and not read_only:
            raise ConfigError("policy: a writer is needed, unless the memory is served read-only")
        self._chunk_size = chunk_size
        agent = None if policy is None else MemoryAgent(policy, store, config, trust=trust)
        self.serve(store, agent)
        self._reader = QuotingReader() if agent is None else default_reader(agent.policy, agent.config, reader)
        self._open = lru_cache(MAX_NAMESPACES)(self._open_namespace)
        self._siblings: WeakSet[MemoryService] = WeakSet()
        self._policy_lock = Lock()  # the policy writes in one thread and answers in another
        self._waiting: list[str] = []  # namespaces of the requests that run or wait for the policy
        self._model_pool = ThreadPoolExecutor(1, "memalpha-model")
        self._ask_pool = ThreadPoolExecutor(1, "memalpha-ask")
        self._read_pool = ThreadPoolExecutor(READ_THREADS, "memalpha-read")
        self._availability = Availability(store.database.ping if store.database.is_remote else None)
        self.is_closing = False
        self.read_only = read_only

    def namespace(self, name: str) -> MemoryService:
        """Return the service of another namespace of the same store, with the same policy.

        Threads and requests for the policy are shared, the turn of writes is not. Closing the first closes all.
        """
        return self if name == self.name else self._open(name)

    def _open_namespace(self, name: str) -> MemoryService:
        """Make the service of another namespace. It ends once others have taken its place, after its last request."""
        service, store = copy(self), self._store.namespace(name)
        service.serve(store, None if self._agent is None else self._agent.with_store(store))
        self._siblings.add(service)
        return service

    def serve(self, store: MemoryStore, agent: MemoryAgent | None) -> None:
        """Set what the services of two namespaces do not share: the store, its writer and the thread of its writes."""
        self._store, self._agent, self.name = store, agent, store.namespace_name
        # With a trust rule, the reader sees the words of others after their names.
        self._view: Memory = store if agent is None else agent.view
        self.schema, self.tools = store.schema, TOOLS if agent is None else agent.tools
        self.write_pool = ThreadPoolExecutor(1, "memalpha-write")

    def granted(self, access: Access, right: Right) -> MemoryService:
        """Return the memory of a request's namespace.

        Every route gets its memory here, so no route can forget to ask for a right.

        Args:
            access: Rights of the request.
            right: The right that the request uses.

        Raises:
            ServiceError: The request lacks the right, or its quota is spent.
        """
        access.check(right)
        WRITER.set({} if access.key is None else {"key": access.key.name})  # of this request's task
        return self.namespace(access.namespace)

    async def close(self) -> None:
        """Refuse new requests, finish started ones, and close the store. Closing twice is harmless."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for service in (self, *self._siblings):
            service.is_closing = True
        write_pools = [service.write_pool for service in (self, *self._siblings)]
        for pool in (self._model_pool, *write_pools, self._ask_pool, self._read_pool):  # the model's writes last
            pool.shutdown(cancel_futures=True)
        self._store.close()

    # ------------------------------------------------------------------------------------------------ the writer

    async def read(
        self, request: schemas.ReadRequest, *, source: str, progress: Progress | None = None
    ) -> schemas.ReadResponse:
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
        outcomes: list[schemas.CallOutcome] = []
        problems: list[str] = []
        with self._model_request():
            assert self._agent is not None
            chunks = [part for chunk in self._split(request) for part in self._agent.parts(chunk)]
            for index, chunk in enumerate(chunks):
                try:
                    origin = {"source": request.source or source, "metadata": request.metadata}
                    turn = await self._read_chunk(chunk, request.timestamp, origin)
                except ServiceError as error:
                    note = f" ({index} of {len(chunks)} chunks were read and stay written)" if index else ""
                    message, wait = f"{error.message}{note}", error.retry_after
                    raise ServiceError(error.code, message, error.status, retry_after=wait) from error
                outcomes += map(schemas.CallOutcome.from_result, turn.results)
                problems += turn.problems
                if progress is not None and len(chunks) > 1:
                    await progress(index + 1, len(chunks))
        return schemas.ReadResponse(len(chunks), tuple(outcomes), tuple(problems))

    def _split(self, request: schemas.ReadRequest) -> Sequence[str | Chunk]:
        if request.text is not None:
            return split_lines(request.text, self._chunk_size)
        try:
            chunks = chunk_messages(
                request.messages or (),
                timestamp=request.timestamp,
                size=self._chunk_size,
                exact_times=self._agent is not None and ignores_memory(self._agent.policy),
            )
        except DataError as error:
            raise ServiceError("invalid_arguments", str(error)) from error
        size = sum(len(turn.text) for chunk in chunks for turn in chunk.turns)
        if not chunks:
            raise ServiceError("invalid_arguments", "messages: no words of a user or an assistant")
        if size > schemas.MAX_TEXT:
            raise ServiceError("invalid_arguments", f"messages: of {size} characters; {schemas.MAX_TEXT} is the limit")
        return chunks

    async def _read_chunk(self, text: str | Chunk, timestamp: str | None, origin: Mapping[str, Any]) -> Turn:
        """Ask the policy to read one chunk, then write in the turn of the writes. Chunks are numbered across requests.

        If the caller is cancelled meanwhile, what the policy proposes is dropped.
        """
        agent, dropped = self._agent, Event()
        assert agent is not None

        def propose_and_apply() -> Turn:
            chunk = text.model_copy(update={"index": agent.chunks_read}) if isinstance(text, Chunk) else text
            with self._policy_lock, work_span("model", "propose"):
                proposal = agent.propose(chunk, timestamp=timestamp)
            if dropped.is_set():
                raise ServiceError("gone", "the client has gone", 499)
            apply = partial(traced_store, partial(agent.apply, proposal, **origin), WRITE_SECONDS)
            return self.write_pool.submit(copy_context().run, apply).result()

        try:
            return await self._submit(self._model_pool, propose_and_apply)
        except BaseException:
            dropped.set()
            raise

    async def ask(self, question: str, k: int, *, where: Where = None) -> Answer:
        """Answer a question from the `k` entries nearest to it.

        Args:
            question: The question.
            k: Number of entries.
            where: Filter over fields and metadata of the entries. The core memory is not filtered.

        Raises:
            ServiceError: The filter is invalid, or too many requests wait.
        """

        def read_answer() -> Answer:
            with self._policy_lock, work_span("model", "answer"):
                memory = self._view
                if where is not None:
                    memory = RetrievedMemory(tuple(memory.search(question, k, where=where)), self._store.core)
                return check_answers(self._reader, 1, lambda: self._reader.answer([(question, memory)], k=k))[0]

        self._check(None, where)
        with self._model_request():
            answer = await self._submit(self._ask_pool, read_answer)
        check_answer_size((hit.entry for hit in answer.hits), "ask with fewer entries (k)")
        return answer

    @contextmanager
    def _model_request(self) -> Iterator[None]:
        """Count a request for the policy; refuse it if too many run or wait."""
        if len(self._waiting) >= schemas.MAX_MODEL_REQUESTS:
            raise ServiceError(
                "too_many_requests", f"{schemas.MAX_MODEL_REQUESTS} requests wait for the model already", 429
            )
        self._waiting.append(self.name)
        try:
            yield
        finally:
            self._waiting.remove(self.name)

    # ------------------------------------------------------------------------------------------------ writes

    async def call(self, name: str, arguments: Mapping[str, Any], *, source: str) -> schemas.CallOutcome:
        """Run one of the writer's tools as if the policy had called it.

        Args:
            name: Name of the tool.
            arguments: Its arguments; invalid ones give an outcome with an error code.
            source: Source of the written entry.
        """
        call = ToolCall(name, dict(arguments))
        for key, value in arguments.items():
            if isinstance(value, str) and len(value) > schemas.MAX_CONTENT:
                message = f"{key}: of {len(value)} characters; {schemas.MAX_CONTENT} is the limit"
                return schemas.CallOutcome.from_result(ToolResult(call, False, "invalid_arguments", message))
        read = read_call(call, self.schema, self.tools)
        write = partial(execute, call=call, read=read, chunk=None, source=source, timestamp=None)
        result, _ = await self.writing(write)
        return schemas.CallOutcome.from_result(result)

    async def erase(self, id: str | None = None, *, where: Mapping[str, Any] | None = None) -> schemas.EraseResponse:
        """Erase an entry for good, with all of its past, or all entries of which any version passes a filter."""

        def erase(store: MemoryStore) -> schemas.EraseResponse:
            try:
                erasure, is_pending = store.erase(*() if id is None else (id,), where=where), False
            except ScrubPending as pending:
                erasure, is_pending = pending.erasure, True
            return schemas.EraseResponse(id, list(erasure), is_pending, list(erasure.ids))

        self._check(None, where)
        return await self.writing(erase)

    async def writing(self, work: Callable[[MemoryStore], T]) -> T:
        """Run `work`, which writes, on the store in the turn of the writes."""
        self._check_writable()
        return await self._submit(self.write_pool, partial(traced_store, partial(work, self._store), WRITE_SECONDS))

    # ------------------------------------------------------------------------------------------------- reads

    async def reading(
        self,
        work: Callable[[MemoryStore], T],
        *,
        at_once: Literal["read", "search"] | None = None,
        has_deadline: bool = True,
    ) -> T:
        """Run `work`, which only reads, on the store.

        Args:
            work: Called with the store, in a thread of the reads.
            at_once: Call it in the loop's own thread if it takes milliseconds: it reads little, or searches a warm
                index, of the current state.
            has_deadline: Stop its statements after `READ_SECONDS`.
        """
        if at_once and not self.is_closing:
            is_search = at_once == "search"
            with service_errors(), deadline(READ_SECONDS), self._store.reading_at_once(search=is_search) as is_ready:
                if is_ready:
                    return traced_store(partial(work, self._store))
        seconds = READ_SECONDS if has_deadline else None
        return await self._submit(self._read_pool, partial(traced_store, partial(work, self._store), seconds))

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

        def search(store: MemoryStore) -> list[Hit]:
            return self._view.search(query, k, category=category, where=where, as_of=as_of)

        hits = await self.reading(search, at_once="search" if where is None and as_of is None else None)
        check_answer_size((hit.entry for hit in hits), "ask for fewer hits (k)")
        return hits

    def as_read(self, entry: MemoryEntry) -> MemoryEntry:
        """Return an entry as the reader sees it."""
        return self._view.name(entry) if isinstance(self._view, AttributedMemory) else entry

    async def page(
        self, category: str | None, limit: int, after: str | None, *, as_of: int | str | None = None
    ) -> schemas.EntryPage:
        """Return a page of entries, and the core memory. It has at least one entry, if there are any.

        Args:
            category: Only this category.
            limit: Maximum number of entries.
            after: Id after which the page begins.
            as_of: A past state; None is the current one.

        Raises:
            ServiceError: No entry ever had the id, or the category or the state does not exist.
        """
        self._check(category, None)

        def read_page(store: MemoryStore) -> schemas.EntryPage:
            entries: list[MemoryEntry] = []
            size, last_id, is_last = 0, after, False
            with store.read_transaction():  # core and entries of one moment
                core = store.core_at(as_of)
                while not is_last and len(entries) <= limit and size <= MAX_ANSWER:
                    step = min(PAGE_STEP, limit + 1 - len(entries))
                    rows = store.list(category, limit=step, after=last_id, as_of=as_of)
                    is_last = len(rows) < step
                    entries += rows
                    size += sum(map(_count_bytes, rows))
                    last_id = entries[-1].id if entries else None
            while len(entries) > 1 and (size > MAX_ANSWER or len(entries) > limit):
                size -= _count_bytes(entries.pop())
                is_last = False
            return schemas.EntryPage(core, tuple(entries), None if is_last else entries[-1].id)

        return await self.reading(read_page)

    # ------------------------------------------------------------------------------------------------------ helpers

    def _check(self, category: str | None, where: Where) -> None:
        """Refuse a bad category or filter here: the store's error could not be told from a failing database."""
        try:
            if category is not None:
                self.schema.check_category(category)
            if where is not None and (count := schemas.count_conditions(where)) > schemas.MAX_CONDITIONS:
                raise ServiceError(
                    "invalid_arguments", f"where: of {count} conditions; {schemas.MAX_CONDITIONS} is the limit"
                )
            parse_filter(where)
        except UnknownCategory as error:
            raise to_service_error(error) from error
        except StoreError as error:
            raise ServiceError("invalid_arguments", str(error)) from error

    def _check_writable(self) -> None:
        if self.read_only:
            raise ServiceError("read_only", "this memory is served read-only", 403)

    async def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        with service_errors():
            try:
                await self._availability.check()
                result = pool.submit(copy_context().run, work)
            except RuntimeError as error:  # the pool was shut down
                raise ServiceError("closing", "the server is shutting down", 503) from error
            return await self._availability.wait(result)


def read_log(store: MemoryStore, after: int, limit: int) -> list[schemas.LoggedOperation]:
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
        lines.append(schemas.LoggedOperation(*line))
    return lines


def check_answer_size(entries: Iterable[MemoryEntry], how: str) -> None:
    """Raise `ServiceError` if an answer with the entries would be too large.

    Args:
        entries: Entries of the answer.
        how: What to ask for instead.
    """
    entries = list(entries)
    sizes = (128 + len(entry.content) + len(repr(dict(entry.metadata))) for entry in entries)
    if 4 * sum(sizes) > MAX_ANSWER and sum(map(_count_bytes, entries)) > MAX_ANSWER:  # JSON has 4 bytes a character
        raise ServiceError("answer_too_large", f"the answer is larger than {MAX_ANSWER} bytes: {how}")


def _count_bytes(entry: MemoryEntry | Operation) -> int:
    """Return about how many bytes an entry or an operation has in an answer."""
    metadata = len(to_json(dict(entry.metadata))) if entry.metadata else 0
    return 512 + len((entry.content or "").encode("utf-8", "surrogatepass")) + metadata
