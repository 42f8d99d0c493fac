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

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises, done in the thread."""
        if self._thread is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    def end(self) -> None:
        """Take no more work; what was begun is done first."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


def _awaited(
    method: Callable[Concatenate[MemoryStore, P], T],
) -> Callable[Concatenate[AsyncMemoryStore, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncMemoryStore, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._worker.do(method, self._store, *args, **kwargs)

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
            return cls(await worker.do(MemoryStore.open, *args, **kwargs), worker)
        except BaseException:
            worker.end()
            raise

    async def close(self) -> None:
        """Close the file when all that was begun is done; a second time, or for a namespace, nothing happens."""
        if not self._is_scope:
            worker, self._is_scope = self._worker, True
            await worker.do(self._store.close)
            worker.end()

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
        copy = await self._worker.do(self._store.fork, namespace, path=path, as_of=as_of)
        return AsyncMemoryStore(copy, self._worker if path is None else _Worker(), is_scope=path is None)

    async def core(self) -> str:
        """The core memory text; "" where there is none."""
        return await self.core_at(None)

    async def log(self, after: int = 0) -> AsyncIterator[tuple[int, str, Operation]]:
        """The operations beyond position `after`: position, time (ISO, UTC), operation as applied."""
        lines = self._store.log(after)
        while page := await self._worker.do(list, islice(lines, _PAGE)):
            for line in page:
                yield line

    async def state(self) -> MemoryState:
        """The memory as it is now, as a value: the state that replaying the log gives."""
        return await self._worker.do(lambda: self._store.state)

    namespaces = _awaited(MemoryStore.namespaces)
    change = _awaited(MemoryStore.change)
    apply = _awaited(MemoryStore.apply)
    insert = _awaited(MemoryStore.insert)
    insert_many = _awaited(MemoryStore.insert_many)
    update = _awaited(MemoryStore.update)
    delete = _awaited(MemoryStore.delete)
    core_update = _awaited(MemoryStore.core_update)
    core_at = _awaited(MemoryStore.core_at)
    get = _awaited(MemoryStore.get)
    find = _awaited(MemoryStore.find)
    recent = _awaited(MemoryStore.recent)
    created_at = _awaited(MemoryStore.created_at)
    list = _awaited(MemoryStore.list)
    load_embedder = _awaited(MemoryStore.load_embedder)
    search = _awaited(MemoryStore.search)
    search_many = _awaited(MemoryStore.search_many)
    audit = _awaited(audit_of)
    around = _awaited(MemoryStore.around)
    build_index = _awaited(MemoryStore.build_index)
    history = _awaited(MemoryStore.history)
    snapshot = _awaited(MemoryStore.snapshot)
    undo = _awaited(MemoryStore.undo)
    redo = _awaited(MemoryStore.redo)
    restore = _awaited(MemoryStore.restore)
    diff = _awaited(MemoryStore.diff)
    erase = _awaited(MemoryStore.erase)
    erase_all = _awaited(MemoryStore.erase_all)
    export_jsonl = _awaited(MemoryStore.export_jsonl)
    import_jsonl = _awaited(MemoryStore.import_jsonl)
