"""`AsyncMemoryStore`: same answers, call order, and an event loop that never blocks."""

import asyncio
import inspect
import time

import pytest

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store.async_store import AsyncMemoryStore
from memalpha.store.checks.audit import audit
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.store import MemoryStore


class Slow(HashEmbedder):
    """Embedder that takes its time over the texts in `begun`."""

    begun = None

    def encode(self, texts):
        self.begun = texts
        time.sleep(0.05)
        return super().encode(texts)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_no_method_is_missing() -> None:
    # What reads in an event loop's own thread needs no thread of the asynchronous store; `exclusive` is the package's.
    assert public(MemoryStore) - public(AsyncMemoryStore) == {"reading_at_once", "exclusive"}
    for kind in (AsyncMemoryStore, MemoryStore, WorkingMemory):
        assert [name for name in public(kind) if not inspect.getdoc(getattr(kind, name))] == []


def test_async_answers_equal_sync_answers(tmp_path) -> None:
    async def use() -> tuple:
        async with await AsyncMemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
            entry = await store.insert("semantic", "pet: cat", metadata={"user": "ana"})
            await store.insert_many([{"category": "semantic", "content": f"fact {i}"} for i in range(5)])
            await store.update(entry.id, "pet: dog")
            await store.core_update("Ana")
            with pytest.raises(UnknownEntry):
                await store.transaction(lambda memory: (memory.insert("semantic", "a"), memory.delete("nobody")))
            with pytest.raises(StoreError, match="not async"):
                await store.transaction(lambda memory: asyncio.sleep(0, memory.add("b")))  # pyright: ignore
            facts = await store.transaction(lambda memory: [memory.insert("semantic", text) for text in "ab"])
            assert (await store.read_transaction(lambda memory: memory.list()))[-2:] == facts
            async with store.namespace("other") as other:
                await other.insert("semantic", "pet: parrot")
            with pytest.raises(UnknownEntry):
                await store.get("nobody#x")
            async with await store.fork(path=tmp_path / "b.db") as copy:
                await copy.erase_all()
                assert await copy.list() == []
            assert await (await store.fork("copy")).list() == await store.list()
            return (
                [line[2] async for line in store.log()],
                await store.list(),
                await store.search("pet", 3, where={"content": {"$contains": "dog"}}),
                await store.core(),
                await store.state(),
                await store.namespaces(),
                (await store.audit(queries=["pet"])).counts,
                store.schema,
                store.embedder,
            )

    results = asyncio.run(use())
    with MemoryStore.open(tmp_path / "a.db") as store:
        log = [line[2] for line in store.log()]
        hits = store.search("pet", 3, where={"content": {"$contains": "dog"}})
        state, names = store.state, store.namespaces()
        counts = audit(store, queries=["pet"]).counts
        assert results == (log, store.list(), hits, "Ana", state, names, counts, store.schema, "hash")
    with pytest.raises(StoreError, match="no such store"):
        asyncio.run(AsyncMemoryStore.open(tmp_path / "none.db", create=False))


def test_the_event_loop_goes_on_while_the_embedder_works() -> None:
    """A heartbeat counts; whatever blocked the loop would leave it at most one beat a call."""

    async def use() -> int:
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        async with await AsyncMemoryStore.open(":memory:", embedder=Slow()) as store:
            pulse = asyncio.create_task(heart())
            before = beats
            await asyncio.gather(*(store.insert("semantic", f"pet {i}") for i in range(3)))
            assert [entry.content for entry in await store.list()] == ["pet 0", "pet 1", "pet 2"]  # in order
            await store.search("pet")
            pulse.cancel()
            return beats - before

    assert asyncio.run(use()) > 10


def test_started_calls_complete_and_waiting_calls_are_cancelled() -> None:
    async def use() -> list[str]:
        embedder = Slow()
        async with await AsyncMemoryStore.open(":memory:", embedder=embedder) as store:
            first = asyncio.create_task(store.insert("semantic", "pet: cat"))
            second, third = map(asyncio.create_task, (store.insert("semantic", "pet: dog"), store.close()))
            while embedder.begun != ["pet: cat"]:
                await asyncio.sleep(0.001)
            for task in (first, second, third):
                task.cancel()
            await asyncio.wait([first, second, third])
            contents = [entry.content for entry in await store.list()]
            await asyncio.gather(store.close(), store.close())  # the one that was cancelled closed nothing
            with pytest.raises(StoreError, match="closed"):
                await store.namespace("other").list()
            return contents

    assert asyncio.run(use()) == ["pet: cat"]
