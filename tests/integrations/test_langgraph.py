"""LangGraphStore: the same results as LangGraph's `InMemoryStore` for random operations, and its additions."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import MemoryStore
from memalpha.errors import ConfigError, InvalidContent, StoreError
from memalpha.store.fields import format_utc

pytest.importorskip("langgraph")
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from memalpha.integrations.langgraph import LangGraphStore

NAMESPACES = st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("a/b",), ("x y", "b"), ("c",)])
KEYS = st.sampled_from(["k", "k/l", "b/k", "K k", "z" * 200])
LEAVES = st.integers(0, 2) | st.sampled_from(["p", "q r", ""])
VALUES = st.fixed_dictionaries(
    {}, optional={"text": st.sampled_from(["one", "two", " one"]), "n": st.integers(0, 3), "in": LEAVES, "a.b": LEAVES}
) | st.fixed_dictionaries({"sub": st.fixed_dictionaries({"x": LEAVES, "y": LEAVES}), "list": st.lists(LEAVES)})
OPERATORS = st.dictionaries(st.sampled_from(["$eq", "$ne"]), LEAVES, min_size=1)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "in": LEAVES | OPERATORS,
        "a.b": LEAVES,
        "sub": st.fixed_dictionaries({"x": LEAVES}),
        "list": st.lists(LEAVES, max_size=1),
    },
)
PATHS = st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=2).map(tuple)
CONDITIONS = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), PATHS)
OPS = st.one_of(
    st.builds(PutOp, NAMESPACES, KEYS, VALUES, st.none(), st.none()),
    st.builds(PutOp, NAMESPACES, KEYS, VALUES | st.none(), st.none(), st.none()),
    st.builds(GetOp, NAMESPACES, KEYS),
    st.builds(SearchOp, st.just(()) | NAMESPACES, FILTERS | st.none(), st.just(100), st.just(0), st.none()),
)
LISTS = st.builds(
    ListNamespacesOp,
    st.none() | st.lists(CONDITIONS, max_size=2).map(tuple),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([2, 100]),
    st.sampled_from([0, 1]),
)


def plain(result):
    if isinstance(result, list):
        items = [plain(item) for item in result]
        return items if result and isinstance(result[0], tuple) else sorted(items, key=str)
    if result is None or isinstance(result, tuple):
        return result
    return result.namespace, result.key, json.dumps(result.value, sort_keys=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(OPS, min_size=1, max_size=4), LISTS), max_size=6))
def test_results_equal_those_of_in_memory_store(batches):
    reference = InMemoryStore()
    with MemoryStore.open(":memory:", embedder="hash") as store:
        store.insert("semantic", "one")  # entries without an item are ignored
        ours = LangGraphStore(store)
        for batch, listed in batches:
            assert list(map(plain, ours.batch(batch))) == list(map(plain, reference.batch(batch)))
            for namespace in [name for name, items in reference._data.items() if not items]:
                del reference._data[namespace]  # it lists empty namespaces
            assert ours.batch([listed]) == reference.batch([listed])


class Time:
    now = datetime(2024, 5, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def store():
    with MemoryStore.open(":memory:", clock=Time()) as memory:
        yield memory


def test_an_item_is_an_entry(store, monkeypatch):
    items = LangGraphStore(store)
    items.put(("users", "ana"), "home", {"text": "Ana lives in Lisbon.", "source": "chat"})
    monkeypatch.setattr(Time, "now", Time.now + timedelta(hours=1))
    items.put(("users", "ana"), "home", {"text": "Ana lives in Porto.", "source": "chat"})
    item = items.get(("users", "ana"), "home")
    assert item is not None and item.value == {"text": "Ana lives in Porto.", "source": "chat"}
    assert item.updated_at - item.created_at == timedelta(hours=1) and item.updated_at == Time.now
    versions = store.history("users.ana/home")
    assert [version.content for version in versions] == ["Ana lives in Lisbon.", "Ana lives in Porto."]
    store.undo()
    assert items.get(("users", "ana"), "home").value["text"] == "Ana lives in Lisbon."
    items.delete(("users", "ana"), "home")
    assert items.get(("users", "ana"), "home") is None and items.list_namespaces() == []
    store.undo()
    assert items.list_namespaces() == [("users", "ana")]


def test_search_covers_the_namespaces_below_the_prefix(store):
    items = LangGraphStore(store)
    for number, who in enumerate(("ana", "tom")):
        for fact in ("has a dog called Rex", "works as a baker", "plays the violin"):
            items.put(("users", who), f"{fact[:4]}{number}", {"memory": f"{who} {fact}", "n": number})
    items.put(("other",), "x", {"memory": "a dog"})
    hits = items.search(("users", "ana"), query="Who has a dog?", limit=2)
    assert hits[0].value["memory"] == "ana has a dog called Rex" and hits[0].score > hits[1].score
    with MemoryStore.open(":memory:", clock=Time()) as alone:
        beside = LangGraphStore(alone)
        for item in items.search(("users", "ana")):
            beside.put(item.namespace, item.key, item.value)
        same = beside.search((), query="Who has a dog?", limit=2)
        assert [(item.key, item.score) for item in same] == [(item.key, item.score) for item in hits]
    everybody = items.search(("users",), query="dog", filter={"n": {"$gte": 1}}, limit=9)
    assert {item.namespace for item in everybody} == {("users", "tom")} and len(everybody) == 3
    pages = [items.search(("users",), query="dog", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert len({item.key for page in pages for item in page}) == 6 and pages[3] == []


def test_fields_choose_the_searched_text(store):
    items = LangGraphStore(store, fields=["title", "parts[*].text"])
    items.put(("d",), "a", {"title": "Birds", "parts": [{"text": "Owls"}, {"text": "Gulls"}], "text": "no"})
    items.put(("d",), "b", {"title": "Birds", "note": "Gulls"}, index=["note"])
    items.put(("d",), "c", {"title": "Owls"}, index=False)
    contents = {entry.id: entry.content for entry in store.list()}
    assert contents == {"d/a": "Birds\nOwls\nGulls", "d/b": "Gulls", "d/c": "Owls"}
    hits = [(item.key, item.score is None) for item in items.search(("d",), query="Owls")]
    assert hits == [("a", False), ("b", False), ("c", True)]


def test_items_expire_and_reading_refreshes_them(store, monkeypatch):
    items = LangGraphStore(store, ttl={"default_ttl": 10})
    items.put(("a",), "x", {"text": "one"})
    items.put(("a",), "y", {"text": "two"}, ttl=None)
    items.put(("a",), "z", {"text": "three"}, ttl=5)

    def after(minutes):
        monkeypatch.setattr(Time, "now", Time.now + timedelta(minutes=minutes))

    after(4)
    assert items.get(("a",), "z") is not None
    items.get(("a",), "x", refresh_ttl=False)
    after(4)
    assert items.get(("a",), "z", refresh_ttl=False) is not None  # refreshed by the first read
    after(4)
    assert [item.key for item in items.search(("a",))] == ["y"]
    assert store.history("a/x")[-1].valid_to is not None


@pytest.mark.parametrize("ask", [lambda items: items.get(("a",), "x"), lambda items: items.search(("a",))])
def test_refreshing_reads_the_current_entry(store, monkeypatch, ask):
    """Another writer changes an entry between a read and its refresh."""
    items = LangGraphStore(store, ttl={"default_ttl": 10})
    refresh = items._refresh

    def after(act):
        monkeypatch.setattr(items, "_refresh", lambda entries: (act(), refresh(entries)))

    items.put(("a",), "x", {"text": "old text"})
    after(lambda: items.put(("a",), "x", {"text": "new text"}, ttl=30))
    ask(items)
    entry = store.get("a/x")
    assert (entry.content, entry.metadata["item"]["value"]) == ("new text", {"text": "new text"})
    assert entry.expires == format_utc(Time.now + timedelta(minutes=30))
    after(lambda: items.delete(("a",), "x"))
    ask(items)
    assert items.list_namespaces() == []


@pytest.mark.parametrize(
    ("filter", "expected", "reference"),
    [
        ({"k": 1}, ["1"], ["1", "True"]),
        ({"k": {"$eq": True}}, ["True"], ["1", "True"]),
        ({"k": {}}, ["{}"], ["{'x': 1}", "{}"]),
        ({"k": {"$gt": 0}}, ["1"], None),
    ],
)
def test_filters_that_differ_from_in_memory_store(store, filter, expected, reference):
    both = LangGraphStore(store), InMemoryStore()
    for items in both:
        for value in (True, 1, {}, {"x": 1}, "t", None):
            items.put(("a",), str(value), {"k": value})
    assert sorted(item.key for item in both[0].search((), filter=filter)) == expected
    if reference is None:
        with pytest.raises((TypeError, ValueError)):
            both[1].search((), filter=filter)
    else:
        assert sorted(item.key for item in both[1].search((), filter=filter)) == reference


def test_invalid_items_are_refused_with_their_batch(store):
    items = LangGraphStore(store)
    with pytest.raises(InvalidContent, match="JSON"):
        items.batch([PutOp(("a",), "x", {"n": 1}), PutOp(("a",), "y", {"n": {1, 2}})])
    assert store.snapshot() == 0
    with pytest.raises(InvalidNamespaceError):
        items.put(("a.b",), "x", {"n": 1})
    with pytest.raises(StoreError, match="unknown operator"):
        items.search((), filter={"n": {"$near": 1}})
    with pytest.raises(StoreError, match=r"filter: \$or is no field"):
        items.search((), filter={"$or": [{"n": 1}, {"n": 2}]})
    with pytest.raises(InvalidContent, match=r"^value: the key 1 is no text"):
        items.put(("a",), "x", {"n": {1: 1}})
    for ttl in (1e16, "5"):
        with pytest.raises(InvalidContent, match=r"ttl .*: a number of minutes"):
            items.put(("a",), "x", {"n": 1}, ttl=ttl)  # pyright: ignore[reportArgumentType]
    for page in (lambda: items.search((), offset=-1), lambda: items.list_namespaces(limit=-1)):
        with pytest.raises(ValueError, match="0 or more"):
            page()
    with pytest.raises(ValueError, match="unknown operation"):
        items.batch(["put"])  # type: ignore[list-item]


def test_async_methods(store):
    items = LangGraphStore(store)

    async def go():
        await asyncio.gather(*(items.aput(("a",), str(number), {"n": number}) for number in range(8)))
        return await items.asearch(("a",), limit=20), await items.alist_namespaces()

    hits, names = asyncio.run(go())
    assert sorted(item.value["n"] for item in hits) == list(range(8)) and names == [("a",)]


def test_without_langgraph_the_error_names_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "memalpha.integrations.langgraph")
    monkeypatch.setitem(sys.modules, "langgraph.store.base", None)
    with pytest.raises(ConfigError, match="pip install langgraph"):
        import memalpha.integrations.langgraph  # noqa: F401
