import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import facts, new

from memalpha.errors import DataError, InvalidContent, StoreError, UnknownCategory
from memalpha.store.embedding import load_embedder
from memalpha.store.filters import freeze
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

HASH = load_embedder("hash")


def memory_of(state: MemoryState) -> WorkingMemory:
    return WorkingMemory(state, HASH)


def fact_lists():
    """Return lists of facts that differ in a few fields, and whose equality a filter could tell."""
    users = st.sampled_from(
        [{}, {"user": "ana"}, {"user": "ben"}, {"user": "ana", "ok": True}, {"user": "ana", "ok": 1}]
    )
    places = {"source": st.sampled_from(["s", "t"]), "chunk": st.sampled_from([0, 1]), "turn": st.sampled_from("ab")}
    times = {"timestamp": st.sampled_from(["2024-05-01", "2024-05-08"]), "expires": st.just("2999-01-01")}
    required = {"category": st.sampled_from(["semantic", "episodic"]), "content": st.sampled_from("xy")}
    return st.lists(st.fixed_dictionaries(required, optional={"metadata": users, **places, **times}), max_size=8)


def number_of_distinct(facts) -> int:
    """Count facts by the rule in words: category, content, metadata, expiry; time and place of events and spans."""
    keys = set()
    for fact in facts:
        names = ["category", "content", "metadata", "expires"]
        if fact["category"] == "episodic" or "turn" in fact:
            names += ["timestamp", "source", "chunk", "turn"]
        keys.add(json.dumps([fact.get(name) or ({} if name == "metadata" else fact.get(name)) for name in names]))
    return len(keys)


@given(fact_lists())
@settings(max_examples=60, deadline=None)
def test_what_a_filter_can_tell_apart_is_never_merged(facts) -> None:
    memory, store = memory_of(MemoryState.empty(MEM_ALPHA)), new()
    for fact in facts:
        first, second = memory.insert(**fact), store.insert(**fact)
        assert first.id == second.id
        for field, value in fact.items():
            if field not in ("timestamp", "source", "chunk"):  # of a lasting fact they may be those of the first
                assert freeze(getattr(second, field)) == freeze(value) or field == "expires"
    expected = number_of_distinct(facts)
    assert len(memory.list()) == store.count() == expected
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "facts.jsonl")
        path.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
        imported = new()
        assert imported.import_jsonl(path) == imported.count() == expected
    assert MemoryState.replay(MEM_ALPHA, [operation for *_, operation in store.log()]) == store.state == memory.state


def test_a_schema_names_its_events(tmp_path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: own\ncategories: {fact: What holds., visit: Who came.}\nevents: [visit]\n")
    for schema, kept, category in (("life", 2, "spatiotemporal_context"), (path, 2, "visit"), (path, 1, "fact")):
        with new(schema=schema) as store:
            for day in ("2024-05-01", "2024-05-08"):
                store.insert(category, "Ben came by.", timestamp=day)
            assert store.count() == kept


@pytest.mark.parametrize("memory", [lambda: new(), lambda: memory_of(MemoryState.empty(MEM_ALPHA))])
def test_a_timestamp_is_iso(memory) -> None:
    store = memory()
    dates = ["2024-05-01", "2024-05-01T18:30", "2024-05-01T18:30:00+02:00", "2024-05-01t10:00:00z", "20240501"]
    for good in (*dates, "", None):
        store.insert("semantic", f"fact of {good}", timestamp=good)
    before = store.state
    [entry] = store.list()[:1]
    for bad in ("May 1st", "2024", "2024-13-01", " ", "\ud800"):
        for change in (
            lambda bad=bad: store.insert("semantic", "new", timestamp=bad),
            lambda bad=bad: store.update(entry.id, "new", timestamp=bad),
            lambda bad=bad: store.apply(Operation("insert", category="semantic", content="new", timestamp=bad)),
        ):
            with pytest.raises(InvalidContent, match="timestamp"):
                change()
    assert store.state.position == before.position


def test_logged_timestamps_stay_and_new_ones_are_checked(tmp_path) -> None:
    log = [
        {"kind": "insert", "category": "semantic", "content": "city: Oslo", "id": "city#x", "timestamp": "May 1st"},
        {"kind": "update", "id": "city#x", "content": "city: Rome", "timestamp": "2025-01-01"},
    ]
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps({"seq": n, "head": n, **row}) + "\n" for n, row in enumerate(log, 1)))
    store = new()
    assert store.import_jsonl(old) == 2
    store.undo()
    assert store.get("city#x").timestamp == "May 1st"
    assert store.restore(2) == 1
    old.write_text(json.dumps(log[0]) + "\n")
    with pytest.raises(DataError, match=r"old\.jsonl:1: timestamp 'May 1st'"):
        new().import_jsonl(old)


def test_as_of_takes_times() -> None:
    store = new()
    facts(store, 3)
    for position, moment, _ in store.log():
        assert store.list(as_of=moment) == store.list(as_of=position)
        assert store.list(as_of=moment.replace("+00:00", "Z")) == store.list(as_of=position)
        assert store.list(as_of=moment.removesuffix("+00:00")) == store.list(as_of=position)
    assert store.list(as_of="2020-01-01") == []
    assert len(store.list(as_of="2999-01-01")) == 3
    for wrong in ("soon", -1, True, 1.5):
        for name, read in {"as_of": store.core_at, "a": store.diff, "position": store.restore}.items():
            with pytest.raises(StoreError, match=f"^{name} "):
                read(wrong)
    assert store.restore("2020-01-01") == 3 and store.list() == []


@pytest.mark.parametrize(
    "read",
    [
        lambda store, at: store.list(as_of=at),
        lambda store, at: store.get(store.list()[0].id, as_of=at),
        lambda store, at: store.count(as_of=at),
        lambda store, at: store.search("fact", as_of=at),
        lambda store, at: store.core_at(at),
        lambda store, at: store.diff(0, at),
        lambda store, at: store.restore(at),
        lambda store, at: store.fork("other", as_of=at),
    ],
    ids=["list", "get", "count", "search", "core_at", "diff", "restore", "fork"],
)
def test_a_position_beyond_the_end_of_the_log_is_refused(read) -> None:
    store = new()
    facts(store, 3)
    for position in (4, 2020, 1 << 70):
        with pytest.raises(StoreError, match=rf"^(as_of|b|position) {position}: the log ends at position 3"):
            read(store, position)
    assert store.namespaces() == ["default"]
    read(store, 3)


def test_add_stores_in_the_default_category(tmp_path):
    with MemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
        entry = store.add(" Ana lives in Rome. ", timestamp="2024-05-01")
        assert (entry.category, entry.content, entry.timestamp) == ("semantic", "Ana lives in Rome.", "2024-05-01")
        assert (
            store.add("Ana lives in Rome.").id == entry.id and store.add("She ran.", category="episodic").version == 1
        )
        entries = store.add_many(["a", "b", "a"], source="chat")
        assert [item.content for item in entries] == ["a", "b", "a"] and {item.source for item in entries} == {"chat"}
        with pytest.raises(StoreError, match="fact 1"):
            store.add_many(["c", " "])
        with pytest.raises(StoreError, match="a list of texts"):
            store.add_many("text")
        assert [item.content for item in store.list()] == ["Ana lives in Rome.", "She ran.", "a", "b"]
    with MemoryStore.open(tmp_path / "life.db", embedder="hash", schema="life") as store:
        assert store.add("x").category == store.schema.category_names[0]


def test_upsert_stores_under_a_key_and_replaces_what_it_holds(tmp_path):
    with MemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
        first = store.upsert("ana:city", " Ana lives in Rome. ", timestamp="2024-05-01", metadata={"user": "ana"})
        assert (first.id, first.category, first.content) == ("ana:city", "semantic", "Ana lives in Rome.")
        position = store.snapshot()
        assert store.upsert("ana:city", "Ana lives in Rome.") == first
        assert store.snapshot() == position
        second = store.upsert("ana:city", "Ana lives in Oslo.")
        assert (second.version, second.timestamp, second.metadata) == (2, None, {"user": "ana"})
        assert [version.content for version in store.history("ana:city")] == [first.content, second.content]
        store.delete("ana:city")
        assert store.upsert("ana:city", "Ana lives in Bonn.").version == 3
        assert [entry.content for entry in store.list()] == ["Ana lives in Bonn."]

        store.upsert("run", "She ran.", category="episodic")
        with pytest.raises(StoreError, match="'run' holds an entry of category 'episodic', not 'semantic'"):
            store.upsert("run", "She ran far.", category="semantic")
        with pytest.raises(UnknownCategory):
            store.upsert("run", "She ran far.", category="no")
        with pytest.raises(InvalidContent, match="without whitespace"):
            store.upsert("two words", "x")
        assert store.upsert("other", "Ana lives in Bonn.").id == "other"  # another entry's content is no obstacle
        for _ in range(2):  # a new key and one that is there
            merged = store.upsert("pet", "A cat.", metadata={"age": 2, "vet": None}, merge_metadata=True)
            assert (merged.metadata, merged.version) == ({"age": 2}, 1)


def test_several_writers_upsert_one_key_one_after_another(tmp_path):
    shared = new(tmp_path / "a.db")

    def write(number):
        with MemoryStore.open(tmp_path / "a.db") if number % 2 else shared.namespace("default") as store:
            version = store.upsert("city", f"City {number}.").version
            assert store.search("city", 1)[0].entry.version >= version
            return version

    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(write, range(8)))
    assert sorted(versions) == list(range(1, 9))


def test_a_closed_store_says_so(tmp_path) -> None:
    store = new(tmp_path / "ana.db")
    with store.namespace("user-42") as scope:
        scope.insert("episodic", "trip: Rome")
    store.close()
    store.close()
    for use in (store.list, lambda: store.insert("semantic", "a"), scope.undo):
        with pytest.raises(StoreError, match="is closed"):
            use()


def test_an_index_is_read_in_pages(tmp_path, monkeypatch) -> None:
    with new(tmp_path / "a.db") as store:
        facts(store, 45)
        store.delete(store.list()[6].id)
        hits = store.search("value of a fact", 60)
    monkeypatch.setattr("memalpha.store.search.index._PAGE", 7)
    with new(tmp_path / "a.db") as store:
        assert store.search("value of a fact", 60) == hits and len(hits) == 44
