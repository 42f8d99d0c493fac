"""`AsyncMemoryStore`: the methods of `MemoryStore`, awaited.

All calls run one after the other, in call order, in one thread per store. So the event loop waits for neither disk nor
embedder. A call that the thread has started is completed even if its awaiting task is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from memalpha.errors import StoreError
from memalpha.forks import ForkAware
from memalpha.store.checks.audit import audit as audit_of
from memalpha.store.state import MemoryState
from memalpha.store.store import FIXED, MemoryStore
from memalpha.types import Operation

P = ParamSpec("P")
T = TypeVar("T")
_PAGE = 1000


class _Worker(ForkAware):
    """Thread of a store and of its namespaces."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "memalpha")
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Start another thread with the next call."""
        if self._thread is not None:
            self._thread = ThreadPoolExecutor(1, "memalpha")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the thread and return its result, or raise its exception."""
        if self._thread is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, copy_context().run, partial(work, *args, **kwargs)
        )

    def shut_down(self) -> None:
        """Accept no further work; calls that were started complete first."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


def _as_async(
    method: Callable[Concatenate[MemoryStore, P], T],
) -> Callable[Concatenate[AsyncMemoryStore, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncMemoryStore, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._worker.run(method, self._store, *args, **kwargs)

    call.__doc__ = inspect.getdoc(method)  # also an inherited one
    return call


class AsyncMemoryStore:
    """`MemoryStore` for an event loop: `await AsyncMemoryStore.open(...)`, then close it or use `async with`.

    It has the attributes `path`, `schema`, `embedder`, `namespace_name` and `max_content` of its store.
    """

    def __init__(self, store: MemoryStore, worker: _Worker, *, is_scope: bool = False) -> None:
        self._store, self._worker, self._is_scope = store, worker, is_scope
        self.path, self.schema, self.embedder = store.path, store.schema, store.embedder
        self.namespace_name, self.max_content = store.namespace_name, store.max_content

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("path", "schema", "embedder", "namespace_name", "max_content") and name in vars(self):
            raise AttributeError(FIXED.format(name))
        super().__setattr__(name, value)

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> AsyncMemoryStore:
        """Open a store as `MemoryStore.open` does, with the same arguments."""
        worker = _Worker()
        try:
            return cls(await worker.run(MemoryStore.open, *args, **kwargs), worker)
        except BaseException:
            worker.shut_down()
            raise

    async def close(self) -> None:
        """Close the store after all started calls. Closing again, or closing a namespace, does nothing."""
        if not self._is_scope:
            await self._worker.run(self._store.close)  # cancelled while it waits its turn, it can be called again
            self._is_scope = True
            self._worker.shut_down()

    async def __aenter__(self) -> AsyncMemoryStore:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._store!r}"

    def namespace(self, name: str) -> AsyncMemoryStore:
        """Return another namespace of the same store, in the same thread."""
        return AsyncMemoryStore(self._store.namespace(name), self._worker, is_scope=True)

    async def fork(
        self, namespace: str | None = None, *, path: str | Path | None = None, as_of: int | str | None = None
    ) -> AsyncMemoryStore:
        """Copy the namespace as `MemoryStore.fork` does.

        A copy in a file of its own has its own thread and must be closed separately.

        Args:
            namespace: Name of the copy in this file, or in the new file at `path`.
            path: New file or URL for the copy; None copies within this store.
            as_of: Log position or ISO time of the copy's end; None copies everything.
        """
        copy = await self._worker.run(self._store.fork, namespace, path=path, as_of=as_of)
        return AsyncMemoryStore(copy, self._worker if path is None else _Worker(), is_scope=path is None)

    async def core(self) -> str:
        """Return the core memory text; "" without one."""
        return await self.core_at(None)

    async def transaction(self, work: Callable[[MemoryStore], T]) -> T:
        """Call `work` with the store, inside one transaction (see `MemoryStore.transaction`), and return its result.

        Args:
            work: Function that reads and writes, in the store's thread. If it raises, nothing of it is stored.
        """
        return await self._worker.run(self._within, self._store.transaction(), work)

    async def read_transaction(self, work: Callable[[MemoryStore], T]) -> T:
        """Call `work` with the store, its reads all of one moment (see `MemoryStore.read_transaction`).

        Args:
            work: Function that reads, in the store's thread; its result is returned.
        """

        return await self._worker.run(self._within, self._store.read_transaction(), work)

    def _within(self, block: AbstractContextManager[None], work: Callable[[MemoryStore], T]) -> T:
        with block:
            result = work(self._store)
            if inspect.iscoroutine(result):  # nothing of it has run, and later would be outside the transaction
                result.close()
                raise StoreError("work: a function that is not async is needed: it gets the store, not to be awaited")
            return result

    async def log(self, after: int = 0) -> AsyncIterator[tuple[int, str, Operation]]:
        """Iterate over the operations after a position: position, time (ISO, UTC), operation as applied."""
        lines = self._store.log(after)
        while page := await self._worker.run(list, islice(lines, _PAGE)):
            for line in page:
                yield line

    async def pending_scrub(self) -> bool:
        """Return True if content was erased whose bytes may still lie in the file."""
        return await self._worker.run(lambda: self._store.pending_scrub)

    async def state(self) -> MemoryState:
        """Return the current memory as an immutable value, equal to the replay of the log."""
        return await self._worker.run(lambda: self._store.state)

    namespaces = _as_async(MemoryStore.namespaces)
    change = _as_async(MemoryStore.change)
    apply = _as_async(MemoryStore.apply)
    apply_all = _as_async(MemoryStore.apply_all)
    apply_each = _as_async(MemoryStore.apply_each)
    insert = _as_async(MemoryStore.insert)
    insert_many = _as_async(MemoryStore.insert_many)
    add = _as_async(MemoryStore.add)
    add_many = _as_async(MemoryStore.add_many)
    upsert = _as_async(MemoryStore.upsert)
    update = _as_async(MemoryStore.update)
    update_many = _as_async(MemoryStore.update_many)
    delete_many = _as_async(MemoryStore.delete_many)
    delete = _as_async(MemoryStore.delete)
    core_update = _as_async(MemoryStore.core_update)
    core_at = _as_async(MemoryStore.core_at)
    get = _as_async(MemoryStore.get)
    get_many = _as_async(MemoryStore.get_many)
    count = _as_async(MemoryStore.count)
    to_pandas = _as_async(MemoryStore.to_pandas)
    backup = _as_async(MemoryStore.backup)
    find = _as_async(MemoryStore.find)
    recent = _as_async(MemoryStore.recent)
    created_at = _as_async(MemoryStore.created_at)
    list = _as_async(MemoryStore.list)
    load_embedder = _as_async(MemoryStore.load_embedder)
    search = _as_async(MemoryStore.search)
    search_many = _as_async(MemoryStore.search_many)
    audit = _as_async(audit_of)
    around = _as_async(MemoryStore.around)
    history = _as_async(MemoryStore.history)
    history_many = _as_async(MemoryStore.history_many)
    snapshot = _as_async(MemoryStore.snapshot)
    undo = _as_async(MemoryStore.undo)
    redo = _as_async(MemoryStore.redo)
    restore = _as_async(MemoryStore.restore)
    diff = _as_async(MemoryStore.diff)
    revert = _as_async(MemoryStore.revert)
    quarantined = _as_async(MemoryStore.quarantined)
    review = _as_async(MemoryStore.review)
    writing_as = staticmethod(MemoryStore.writing_as)
    erase = _as_async(MemoryStore.erase)
    erase_all = _as_async(MemoryStore.erase_all)
    erase_core_history = _as_async(MemoryStore.erase_core_history)
    drop_namespace = _as_async(MemoryStore.drop_namespace)
    export_jsonl = _as_async(MemoryStore.export_jsonl)
    import_jsonl = _as_async(MemoryStore.import_jsonl)
