"""Arguments that no caller should pass: a `StoreError` that names them, and a store that is as it was."""

import asyncio
import inspect
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from memalpha.agent.agent import MemoryAgent
from memalpha.errors import DataError, InvalidContent, StoreError, UnknownFieldWarning
from memalpha.store.async_store import AsyncMemoryStore, _Worker
from memalpha.store.store import MemoryStore
from memalpha.tasks.formats.jsonl import save_jsonl

HUGE = 10**5000  # whose `repr` is a ValueError
CALLS: dict[str, Callable[[Any], object]] = {
    **{f"search {query!r:.9}": lambda s, q=query: s.search(q) for query in (None, 5, b"Ana", ["Ana"])},
    "search_many of a text": lambda s: s.search_many("Ana"),
    **{f"vector {v!r:.9}": lambda s, v=v: s.search("Ana", vector=v) for v in ("x", [1j] * 256, [[1], [2, 3]], ["1"])},
    **{f"limit {n!r:.9}": lambda s, n=n: s.list(limit=n) for n in (-1, "x", 1.5, True)},
    "limit of many digits": lambda s: s.list(limit=-HUGE),
    **{f"recent {n!r:.9}": lambda s, n=n: s.recent(n) for n in (-1, "x", None)},
    "importance beyond floats": lambda s: s.insert("semantic", "a", importance=HUGE),
    "importance beyond floats, negative": lambda s: s.insert("semantic", "a", importance=-HUGE),
    "chunk of many digits": lambda s: s.insert("semantic", "a", chunk=HUGE),
    **{f"erase {id!r:.9}": lambda s, id=id: s.erase(id) for id in (None, "", 5, ["x"], "\ud800")},
    **{f"upsert {key!r:.9}": lambda s, key=key: s.upsert(key, "a") for key in (None, "", 5, "a b", "\ud800")},
    "complex vectors": lambda s: s.insert_many([{"category": "semantic", "content": "a"}], np.ones((1, 256), complex)),
    "vectors of texts": lambda s: s.insert_many([{"category": "semantic", "content": "a"}], np.full((1, 256), "1")),
    **{f"namespace {name!r:.9}": lambda s, n=name: s.namespace(n) for name in ("", None, "\ud800")},
}


def test_a_bad_argument_is_refused_and_changes_nothing() -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.insert("semantic", "Ana lives in Oslo")
        for name, call in CALLS.items():
            with pytest.raises(StoreError):
                call(store)
            assert store.snapshot() == 1 and len(store.search("Ana")) == 1, name


def test_a_datetime_is_answered_with_its_text() -> None:
    day: Any = datetime(2024, 5, 1, tzinfo=UTC)
    with MemoryStore.open(":memory:", embedder="hash") as store:
        for call in (
            lambda: store.add("Ana", timestamp=day),
            lambda: store.list(where={"timestamp": {"$gte": day}}),
            lambda: store.list(where={"day": {"$in": [day.date()]}}),
            lambda: store.search("Ana", as_of=day),
            lambda: store.diff(day),
            lambda: store.restore(day),
        ):
            with pytest.raises(StoreError, match=r"give its isoformat\(\)$"):
                call()
        with pytest.raises(StoreError, match="position None: a log position or an ISO time"):
            store.restore(cast(Any, None))


def test_a_number_of_numpy_or_of_more_than_64_bits_is_a_whole_number() -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        first, *others = [store.add(f"Fact {number}") for number in range(3)]
        one: Any = np.int64(1)  # as a table of pandas has it
        assert store.list(limit=one) == [first] == store.list(as_of=one) and store.recent(one) == others[1:]
        assert [position for position, _, _ in store.log(one)] == [2, 3] and len(store.diff(one).added) == 2
        assert store.list(limit=HUGE) == store.recent(HUGE)[::-1] == [first, *others] and not list(store.log(HUGE))
        assert store.restore(one) == 2 and store.list() == [first]


@pytest.mark.sqlite
@pytest.mark.parametrize("read_only", [False, True, "if needed"])
@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "file/x.db"])
def test_a_path_that_no_file_can_have_is_refused(path: str, read_only: bool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        MemoryStore.open(f"{tmp_path}/{path}", read_only=read_only)


@pytest.mark.sqlite
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    with MemoryStore.open(":memory:", embedder="hash") as store:
        for name in ("pipe", "null"):
            with pytest.raises(StoreError, match="device or a pipe"):
                store.export_jsonl(tmp_path / name)
            with pytest.raises(DataError, match="device or a pipe"):
                save_jsonl([], tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "null").is_symlink()


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda s: s.search("Ana", user_id="ana"), r"^search\(\) .* store\.namespace\(USER\)$"),
        (lambda s: s.add("x", agent_id="a"), r"^add\(\) .* store\.namespace\(USER\)$"),
        (lambda s: s.insert("semantic", "x", user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.upsert("key", "x", user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.add_many(["x"], user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.update("x", "y", user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.count(user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.delete_many(filters={"a": 1}), r"where=\{'key': value\}"),
        (lambda s: cast(Any, MemoryAgent("add_all", s)).read("x", user_id="a"), r"store\.namespace\(USER\)$"),
        (lambda s: s.list(filters={"a": 1}), r"where=\{'key': value\}"),
        (lambda s: s.search("Ana", limit=3), "k= in search"),
        (lambda s: s.search("Ana", whatever=3), "unexpected keyword argument 'whatever'"),
    ],
)
def test_a_keyword_of_other_libraries_names_ours(call: Callable[[Any], object], ours: str) -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        with pytest.raises(TypeError, match=ours):
            call(store)
        store.add("Ana lives in Oslo")
        for field, search in {"one": store.list, "other": partial(store.search, "Ana")}.items():
            with pytest.warns(UnknownFieldWarning) as caught:
                search(where={field: 1})
            assert caught[0].filename == __file__, "the warning names the caller's line"


def test_a_coroutine_that_refuses_keywords_stays_one() -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store:
        agent = cast(Any, MemoryAgent("add_all", store))
        assert inspect.iscoroutinefunction(agent.aread) and inspect.iscoroutinefunction(agent.aask)  # as callers ask
        asyncio.run(agent.aread("Ana lives in Oslo"))
        assert [entry.content for entry in store.list()] == ["Ana lives in Oslo"]
        with pytest.raises(TypeError, match=r"^aread\(\) has no argument 'user_id'"):
            asyncio.run(agent.aread("x", user_id="a"))


def test_what_an_open_store_has_recorded_cannot_be_set() -> None:
    with MemoryStore.open(":memory:", embedder="hash") as store, store.namespace("b") as scope:
        plain = AsyncMemoryStore(store, _Worker())
        for memory, name in [*product((store, scope, plain), ("path", "schema", "embedder")), (plain, "max_content")]:
            with pytest.raises(AttributeError, match=f"{name} of an open store stays as it is: open"):
                setattr(memory, name, getattr(memory, name))
        with pytest.raises(AttributeError, match="namespace_name of an open store"):
            scope.namespace_name = "c"
        for name in ("note", "search") * 2:  # of a subclass, or a test
            setattr(plain, name, None)
        store.max_content = 3
        with pytest.raises(InvalidContent):
            store.namespace(scope.namespace_name).insert("semantic", "tea?")
