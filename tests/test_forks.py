"""Forks beside threads: a child neither waits for the parent's threads nor disturbs what the parent has open."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standin import StandIn

from memalpha.agent.agent import MemoryAgent
from memalpha.config import EndpointConfig
from memalpha.errors import StoreError
from memalpha.policy.endpoint import EndpointPolicy
from memalpha.rewards.base import LOOP
from memalpha.store.async_store import AsyncMemoryStore
from memalpha.store.backends import sqlite as sqlite_transactions
from memalpha.store.embedding import CachedEmbedder, HashEmbedder
from memalpha.store.store import MemoryStore
from memalpha.types import SampleRequest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def in_child(work: Callable[[], Any]) -> str:
    """Run `work` in a forked child; return what it returned or raised as text, after 20 seconds where it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        signal.alarm(0)
        faulthandler.dump_traceback_later(20, exit=True, file=write)
        try:
            output = repr(work())
        except StoreError as error:
            output = f"StoreError: {error}"
        except Exception:  # noqa: BLE001 - the parent says what it was
            output = traceback.format_exc()
        os.write(write, output.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        output = pipe.read().decode()
    os.waitpid(child, 0)
    return output


@contextmanager
def busy(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in another thread during the block."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    time.sleep(0.05)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def contents(store: MemoryStore) -> set[str]:
    return {entry.content for entry in store.list()}


def test_parent_and_children_go_on_writing(tmp_path: Path) -> None:
    store = MemoryStore.open(tmp_path / "s.db", embedder="hash", durability="normal")
    numbers = iter(range(10**6))
    store.add("before")
    store.search("before")
    with busy(lambda: store.add(f"parent {next(numbers)}")):
        for child in range(3):
            assert "'child" in in_child(lambda child=child: (store.add(f"child {child}"), store.search("child")))
    store.namespace("other").add("after")
    expected = {"before", *(f"parent {number}" for number in range(next(numbers))), "child 0", "child 1", "child 2"}
    assert contents(store) == expected
    with sqlite3.connect(tmp_path / "s.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()
    assert "is closed" in in_child(lambda: store.add("after the end"))


@pytest.mark.parametrize("kind", ["memory", "own transaction", "other thread's transaction"])
def test_what_no_child_can_use_is_refused_in_words(tmp_path: Path, kind, monkeypatch) -> None:
    monkeypatch.setattr(sqlite_transactions, "_FORK_WAIT", 0.1)
    store = MemoryStore.open(":memory:" if kind == "memory" else tmp_path / "s.db", embedder="hash")
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            store.add("in the transaction")
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    if kind == "own transaction":
        with store.transaction():
            store.add("in the transaction")
            output = in_child(lambda: store.add("child"))
    else:
        if kind != "memory":
            thread.start()
            entered.wait(30)
        output = in_child(lambda: store.add("child"))
        if kind == "memory":
            store.add("in the transaction")
        else:
            leave.set()
            thread.join()
    assert output.startswith("StoreError") and "open a store in the new process" in output
    assert contents(store) == {"in the transaction"}


@pytest.mark.parametrize("error", [None, ValueError("of the child")])
def test_a_child_that_leaves_the_parents_transaction_does_not_end_it(tmp_path: Path, error) -> None:
    store = MemoryStore.open(tmp_path / "s.db", embedder="hash")
    block = store.transaction()
    block.__enter__()
    store.add("kept")
    output = in_child(lambda: block.__exit__(error and type(error), error, None))
    assert output == "False" if error else output.startswith("StoreError")
    store.add("kept as well")
    block.__exit__(None, None, None)
    assert contents(store) == {"kept", "kept as well"}


def test_read_only_stores_are_read_in_children(tmp_path: Path) -> None:
    MemoryStore.open(tmp_path / "s.db", embedder="hash").add("Ana skis.", expires="2020-01-01")
    with MemoryStore.open(tmp_path / "s.db", read_only=True) as store, busy(store.list):
        assert in_child(lambda: contents(store)) == "set()"
        assert contents(store) == set()


def test_async_stores_get_threads_of_their_own(tmp_path: Path) -> None:
    runner = asyncio.Runner()
    store = runner.run(AsyncMemoryStore.open(tmp_path / "s.db", embedder="hash"))
    runner.run(store.add("parent"))
    assert in_child(lambda: asyncio.Runner().run(store.add("child")).content) == "'child'"
    assert {entry.content for entry in runner.run(store.list())} == {"parent", "child"}
    runner.run(store.close())


def test_agents_read_in_children(tmp_path: Path) -> None:
    store = MemoryStore.open(tmp_path / "s.db", embedder="hash")
    agent = MemoryAgent("add_all", store)
    with busy(lambda: agent.read("user: I ski.")):
        assert in_child(lambda: len(agent.read("user: I swim.").operations)) == "1"


def test_embedders_keep_no_lock_of_another_thread() -> None:
    embedder = CachedEmbedder(HashEmbedder())
    with busy(lambda: embedder.encode([str(time.monotonic_ns())])):
        for _ in range(5):
            assert in_child(lambda: embedder.encode(["Ana"]).shape) == "(1, 256)"


def test_loops_of_rewards_start_anew() -> None:
    async def answer() -> int:
        return 7

    assert LOOP.start(answer()).result(10) == 7
    assert in_child(lambda: LOOP.start(answer()).result(10)) == "7"


def test_endpoints_are_asked_by_children_while_the_parent_asks(tmp_path: Path) -> None:
    def ask() -> str:
        request = SampleRequest(({"role": "user", "content": str(time.monotonic_ns())},))
        return policy.sample([request])[0].text

    with StandIn(lambda body: "answer") as server:
        policy = EndpointPolicy(f"{server.url}#m", EndpointConfig(concurrency=1, cache=tmp_path / "answers.db"))
        ask()  # a fork beside a first import would be another matter
        with busy(ask):
            for _ in range(3):
                assert in_child(ask) == "'answer'"
        assert ask() == "answer"
        policy.client.close()
