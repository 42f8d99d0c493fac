"""`AsyncMemoryStore`: the methods of a `MemoryStore`, awaited.

They run one after the other, in the order they were called, in one thread of the store's own, so an event loop waits
for neither disk nor embedder. What the thread has begun is done even if whoever awaits it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from memalpha.errors import StoreError
from memalpha.store.checks.audit import audit as audit_of
from memalpha.store.schema import MemorySchema
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

P = ParamSpec("P")
T = TypeVar("T")
_PAGE = 1000


class _Worker:
    """The thread of a store and of its namespaces."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "memalpha")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises, done in the thread."""
        if self._thread is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    def shut_down(self) -> None:
        """Take no more work; what was begun is done first."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


def _as_async(
    method: Callable[Concatenate[MemoryStore, P], T],
) -> Callable[Concatenate[AsyncMemoryStore, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncMemoryStore, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._worker.run(method, self._store, *args, **kwargs)

    return call


class AsyncMemoryStore:
    """`MemoryStore` for an event loop: `await AsyncMemoryStore.open(...)`, then close it or use `async with`."""

    def __init__(self, store: MemoryStore, worker: _Worker, *, is_scope: bool = False) -> None:
        self._store, self._worker, self._is_scope = store, worker, is_scope

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> AsyncMemoryStore:
        """`MemoryStore.open`, with its arguments."""
        worker = _Worker()
        try:
            return cls(await worker.run(MemoryStore.open, *args, **kwargs), worker)
        except BaseException:
            worker.shut_down()
            raise

    async def close(self) -> None:
        """Close the file when all that was begun is done; a second time, or for a namespace, nothing happens."""
        if not self._is_scope:
            worker, self._is_scope = self._worker, True
            await worker.run(self._store.close)
            worker.shut_down()

    async def __aenter__(self) -> AsyncMemoryStore:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._store!r}"

    def namespace(self, name: str) -> AsyncMemoryStore:
        """Another namespace of the same file, in the same thread."""
        return AsyncMemoryStore(self._store.namespace(name), self._worker, is_scope=True)

    @property
    def path(self) -> str:
        """Where it lies: the file's path, ":memory:", or the URL without its password."""
        return self._store.path

    @property
    def schema(self) -> MemorySchema:
        """The schema recorded in the file."""
        return self._store.schema

    @property
    def embedder(self) -> str:
        """The name of the embedder recorded in the file."""
        return self._store.embedder

    async def fork(
        self, namespace: str | None = None, *, path: str | Path | None = None, as_of: int | str | None = None
    ) -> AsyncMemoryStore:
        """`MemoryStore.fork`; a copy in a file of its own has a thread of its own, and is closed by itself."""
        copy = await self._worker.run(self._store.fork, namespace, path=path, as_of=as_of)
        return AsyncMemoryStore(copy, self._worker if path is None else _Worker(), is_scope=path is None)

    async def core(self) -> str:
        """The core memory text; "" where there is none."""
        return await self.core_at(None)

    async def log(self, after: int = 0) -> AsyncIterator[tuple[int, str, Operation]]:
        """The operations beyond position `after`: position, time (ISO, UTC), operation as applied."""
        lines = self._store.log(after)
        while page := await self._worker.run(list, islice(lines, _PAGE)):
            for line in page:
                yield line

    async def state(self) -> MemoryState:
        """The memory as it is now, as a value: the state that replaying the log gives."""
        return await self._worker.run(lambda: self._store.state)

    namespaces = _as_async(MemoryStore.namespaces)
    change = _as_async(MemoryStore.change)
    apply = _as_async(MemoryStore.apply)
    insert = _as_async(MemoryStore.insert)
    insert_many = _as_async(MemoryStore.insert_many)
    update = _as_async(MemoryStore.update)
    delete = _as_async(MemoryStore.delete)
    core_update = _as_async(MemoryStore.core_update)
    core_at = _as_async(MemoryStore.core_at)
    get = _as_async(MemoryStore.get)
    find = _as_async(MemoryStore.find)
    recent = _as_async(MemoryStore.recent)
    created_at = _as_async(MemoryStore.created_at)
    list = _as_async(MemoryStore.list)
    load_embedder = _as_async(MemoryStore.load_embedder)
    search = _as_async(MemoryStore.search)
    search_many = _as_async(MemoryStore.search_many)
    audit = _as_async(audit_of)
    around = _as_async(MemoryStore.around)
    build_index = _as_async(MemoryStore.build_index)
    history = _as_async(MemoryStore.history)
    snapshot = _as_async(MemoryStore.snapshot)
    undo = _as_async(MemoryStore.undo)
    redo = _as_async(MemoryStore.redo)
    restore = _as_async(MemoryStore.restore)
    diff = _as_async(MemoryStore.diff)
    erase = _as_async(MemoryStore.erase)
    erase_all = _as_async(MemoryStore.erase_all)
    export_jsonl = _as_async(MemoryStore.export_jsonl)
    import_jsonl = _as_async(MemoryStore.import_jsonl)
