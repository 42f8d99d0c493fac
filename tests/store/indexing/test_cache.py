"""Index files are caches: missing, torn, stale or foreign ones are made anew, never trusted."""

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import DamagedStore, StoreError
from memalpha.store.backends.temporary import locked_file
from memalpha.store.checks.integrity import examine
from memalpha.store.indexing import cache
from memalpha.store.indexing.cache import index_files
from memalpha.store.indexing.corpus_arrays import corpus_to_arrays
from memalpha.store.indexing.file_format import pack_strings, read_arrays, unpack_strings, write_arrays
from memalpha.store.indexing.namespace_index import NamespaceIndex
from memalpha.store.search.corpus import Corpus
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite  # about its files

QUERIES = ["Which city is it?", "value 7", "zyxomma"]


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_ENTRIES", 1)


def new(path: str | Path, namespace: str = "default") -> MemoryStore:
    return MemoryStore.open(path, embedder="hash", namespace=namespace, durability="normal")


def fill(path: Path, *, seed: str = "", count: int = 12, spans: bool = True) -> Path:
    """A store of a few facts, deleted and changed ones too, searched and closed; its index file."""
    with new(path) as store:
        for index in range(count):
            category = "semantic" if index % 3 else "episodic"
            origin = {"source": f"chat-{index % 2}", "turn": str(index)} if spans and index % 5 else {}
            store.insert(category, f"fact {index}: {seed} value {index}", **origin)
        store.update(store.list()[3].id, "city: Oslo")
        store.delete(store.list()[1].id)
        store.search("x")
    [file] = index_files(str(path))
    return file


def search_results(path: Path, *, by_hand: bool = False) -> list:
    """Return every answer with all digits; with `by_hand`, without an index file."""
    with new(path) as store:
        if by_hand:
            store._index._cache.path = None
        return [store.search(query, 20, category=c) for query in QUERIES for c in (None, "semantic")]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time an index was built from the rows."""
    times: list[int] = []
    make = NamespaceIndex._build_corpus

    def counted(self: NamespaceIndex) -> Corpus:
        times.append(1)
        return make(self)

    monkeypatch.setattr(NamespaceIndex, "_build_corpus", counted)
    return times


@pytest.mark.parametrize("spans", [True, False])
def test_an_index_file_gives_the_very_answers_and_is_caught_up(tmp_path: Path, built: list[int], spans: bool) -> None:
    path = tmp_path / "a.db"
    file = fill(path, spans=spans)
    built.clear()
    right = search_results(path, by_hand=True)
    assert built == [1] and search_results(path) == right and built == [1]
    before = file.read_bytes()
    with new(path) as store:  # what came after it is caught up, and too little to write it again
        store._index._cache.path = None  # as another process that leaves no index
        id = store.insert("semantic", "zyxomma: a word of its own").id
        store.insert("semantic", "beside it", source="chat-1", turn="z")
        store.insert("semantic", "a value", source="chat-1", turn="z")
        store.delete(store.list()[0].id)
    assert search_results(path) == search_results(path, by_hand=True) != right
    assert built == [1, 1] and search_results(path)[4][0].entry.id == id
    with new(path) as store:
        store.insert_many({"category": "semantic", "content": f"new {index}"} for index in range(30))
        store.search("x")
    assert file.read_bytes() != before and built == [1, 1]
    assert search_results(path) == search_results(path, by_hand=True)
    assert examine(path).problems == []


def test_what_is_read_has_room_for_more(tmp_path: Path) -> None:
    fill(tmp_path / "a.db")
    with new(tmp_path / "a.db") as store:
        store.search("x")
        corpus = store._index._corpus
        assert corpus is not None
        arrays = [corpus._live, corpus._orders, corpus._groups, corpus._spans, corpus._vectors._storage]
        arrays += [corpus._lexical.lengths]
        store.insert("semantic", "one more")
        store.search("x")
        now = [corpus._live, corpus._orders, corpus._groups, corpus._spans, corpus._vectors._storage]
        assert all(a is b for a, b in zip([*now, corpus._lexical.lengths], arrays, strict=True))
        assert store._index._corpus is corpus and store.search("more")[0].entry.content == "one more"


def test_a_small_memory_and_one_in_memory_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_ENTRIES", 100)
    with new(tmp_path / "a.db") as store, new(":memory:") as other:
        for memory in (store, other):
            memory.insert("semantic", "city: Oslo")
            memory.search("Oslo")
        monkeypatch.setattr(cache, "MIN_ENTRIES", 1)
        other.close()
        monkeypatch.setattr(cache, "MIN_ENTRIES", 100)
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes, list]:
    """A store, its index file's bytes, those of another store of the same shape, and the right answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "MIN_ENTRIES", 1)
        folder = tmp_path_factory.mktemp("stores")
        other = fill(folder / "b.db", seed="other").read_bytes()
        file = fill(folder / "a.db")
        return folder / "a.db", file.read_bytes(), other, search_results(folder / "a.db", by_hand=True)


def is_sound(file: Path, path: Path) -> bool:
    """Return True if the index file is as the store at `path` wrote it."""
    with closing(sqlite3.connect(path)) as rows:
        (key,) = rows.execute("SELECT value FROM meta WHERE key = 'index key'").fetchone()
    return read_arrays(file, key.encode()) is not None


def test_a_forged_file_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = fill(path)
    right = search_results(path, by_hand=True)
    with closing(sqlite3.connect(path)) as rows:
        (key,) = rows.execute("SELECT value FROM meta WHERE key = 'index key'").fetchone()
    header, arrays = read_arrays(file, key.encode()) or ({}, {})
    for forged_key in (b"", b"guess", hashlib.sha256(key.encode()).digest()):
        with file.open("wb") as target:
            write_arrays(target, header, {**arrays, "vectors": np.roll(arrays["vectors"], 1, 0)}, forged_key)
        assert search_results(path) == right
    assert key not in file.read_bytes().decode("latin-1")


def test_a_file_with_the_right_key_points_nowhere_outside(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.db"
    file = fill(path)
    with MemoryStore.open(path) as store:  # long enough for passages
        store.insert("semantic", " ".join(f"word{index % 9}" for index in range(400)))
    with closing(sqlite3.connect(path)) as rows:
        key = rows.execute("SELECT value FROM meta WHERE key = 'index key'").fetchone()[0].encode()
    header, arrays = read_arrays(file, key) or ({}, {})
    outcomes = set()
    monkeypatch.setattr("os.fsync", lambda _: None)
    for name, array in arrays.items():
        largest = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
        for forged in (array * 0 + largest, array * 0 - 1, array[:-1], array[:0], array.astype("<f8"), array[:, None]):
            with file.open("wb") as target:
                write_arrays(target, header, {**arrays, name: forged.astype(forged.dtype.str)}, key)
            try:
                with MemoryStore.open(path, read_only=True) as store:
                    outcomes.add(len(store.search("fact value word7", 20)))
            except DamagedStore:
                outcomes.add("refused")
    assert 12 in outcomes


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_happens_to_the_file_the_answers_are_right(
    two_stores: tuple[Path, bytes, bytes, list], data: st.DataObject
) -> None:
    path, own_file, other, right = two_stores
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "swap", "splice", "delete", "nothing"]))
    offset = data.draw(st.integers(0, len(own_file) - 1) | st.integers(0, 900))
    changed = {
        "flip": own_file[:offset] + bytes([own_file[offset] ^ data.draw(st.integers(1, 255))]) + own_file[offset + 1 :],
        "cut": own_file[:offset],
        "grow": own_file + bytes(offset),
        "swap": other,
        "splice": own_file[:offset] + other[offset:],
        "nothing": own_file,
    }
    [file] = index_files(str(path)) or [path.with_name(cache.IndexCache(new(path)._namespace).path.name)]  # pyright: ignore
    file.unlink(missing_ok=True)
    if kind != "delete":
        file.write_bytes(changed[kind])
        assert is_sound(file, path) == (changed[kind] == own_file)  # the other's key is another
        assert bool(examine(path).problems) == (changed[kind] != own_file)
    assert search_results(path) == right
    assert file.read_bytes() == own_file or is_sound(file, path)  # and a sound one is there again


def test_a_copy_that_went_its_own_way_is_another_store(tmp_path: Path, built: list[int]) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "b.db"
    with new(path) as store:
        store.insert_many({"category": "semantic", "content": f"fact {index}"} for index in range(10))
    shutil.copy(path, copy)
    for store_path, text in ((path, "zyxomma: mine"), (copy, "zyxomma: of the copy")):
        with new(store_path) as store:
            store.insert("semantic", text)
            store.search("x")
    built.clear()
    [own_file], [copy_file] = index_files(str(path)), index_files(str(copy))
    shutil.copy(copy_file, own_file)
    assert search_results(path)[4][0].entry.content == "zyxomma: mine" and built == [1]
    # An older copy of the file in the place of a newer one: the index is ahead of its log.
    shutil.copy(path, copy)
    shutil.copy(own_file, copy_file)
    with new(copy) as store:
        store.insert_many({"category": "semantic", "content": f"more {index}"} for index in range(10))
        store.search("x")
    shutil.copy(path, copy)
    assert search_results(copy) == search_results(path) and len(built) == 2
    with new(tmp_path / "c.db") as store:  # an index under another namespace's name
        store.namespace("other").insert("semantic", "city: Rome")
        other = store.namespace("other")._index._cache.path
    assert other is not None
    shutil.copy(own_file, other)
    with new(tmp_path / "c.db", "other") as store:
        assert [hit.entry.content for hit in store.search("zyxomma", 9)] == ["city: Rome"]


def test_each_namespace_has_its_own(tmp_path: Path, built: list[int]) -> None:
    path = tmp_path / "a.db"
    with new(path) as store:
        first, second = store.namespace("one"), store.namespace("two")
        first.insert("semantic", "city: Oslo")
        second.insert("semantic", "city: Rome")
        assert first.search("city") and second.search("city")
    built.clear()
    assert len(index_files(str(path))) == 2
    with new(path) as store:
        assert [hit.entry.content for hit in store.namespace("two").search("city")] == ["city: Rome"]
        assert store.namespace("one").erase_all() == 1 and len(index_files(str(path))) == 0
    with new(path, "two") as store:
        assert store.search("city") and built == [1]


def test_erasing_removes_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    fill(path, seed="zyxomma")
    store = new(path)
    store.search("x")
    aside = index_files(str(path))[0]
    aside = aside.with_name(f"{aside.name}.0123")  # what a killed writer leaves
    aside.write_bytes(b"zyxomma")
    reader = new(path)
    reader.search("x")
    removed: list[list[Path]] = []
    erase = type(store._namespace).erase
    monkeypatch.setattr(
        type(store._namespace), "erase", lambda self, ids: (removed.append(index_files(str(path))), erase(self, ids))[1]
    )
    for entry in store.list():
        store.erase(entry.id)
    assert removed[0] == [] and index_files(str(path)) == []
    reader.close()  # it knows what was erased, and must not write it down
    assert index_files(str(path)) == []
    store.erase_all()
    store.close()
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"zyxomma" not in data and b"Oslo" not in data
    fill(path, seed="again")
    assert examine(path).problems == []


def test_doctor_names_and_removes_what_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = fill(path)
    assert examine(path).problems == [] and file.exists()
    file.with_name(f"{file.name}.0123").write_bytes(b"x")
    file.write_bytes(file.read_bytes()[:-1])
    assert [problem.part for problem in examine(path).problems] == ["index", "index"]
    health = examine(path, repair=True)
    assert health.problems == [] and len(health.repaired) == 2 and index_files(str(path)) == []


def test_what_a_killed_process_left_of_an_index_is_removed_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = fill(path)
    left = file.with_name(f"{file.name}.0123abcd")
    left.write_bytes(b"half an index")
    with locked_file(file.with_name(f"{file.name}.89abcdef")), new(path):  # another process is just writing that one
        assert not left.exists() and len(index_files(str(path))) == 2


def test_a_handle_saves_no_index_of_a_namespace_that_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, second = new(path), new(path)
    first.namespace("ana").add("pet: qwobblefrotz")
    idle = second.namespace("ana")
    idle.search("pet")
    first.drop_namespace("ana")
    first.namespace("ana").add("city: Oslo")  # a new one of the same name, at the same position
    for handle in (second, first):
        handle.close()
    assert not [file for file in tmp_path.iterdir() if b"qwobblefrotz" in file.read_bytes()]
    assert new(path, "ana").search("qwobblefrotz")[0].entry.content == "city: Oslo"


def test_a_handle_saves_no_index_of_what_was_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, second = new(path), new(path)
    with pytest.raises(ZeroDivisionError), first.transaction():
        first.add("pet: cat")
        first.search("pet")
        raise ZeroDivisionError
    second.add("city: Oslo")  # at the position of what was rolled back
    first.close()
    second.close()
    assert [hit.entry.content for hit in new(path).search("pet")] == ["city: Oslo"]


def test_two_processes_that_close_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    fill(path).unlink()
    right = search_results(path, by_hand=True)
    first, second = new(path), new(path)
    for store in (first, second):
        store.search("x")
    save, corpus = first._index._cache.save, first._index._corpus  # pyright: ignore
    first._index.save = lambda: save(1, 14, 11, lambda: (second.close(), corpus_to_arrays(corpus))[1])  # pyright: ignore
    first.close()  # the other closes while this one writes
    [file] = index_files(str(path))
    assert is_sound(file, path) and search_results(path) == right


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    fill(path).unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_arrays", full)
    store = new(path)
    store.search("x")
    with pytest.warns(UserWarning, match="No space left"):
        store.close()
    assert index_files(str(path)) == []
    with pytest.raises(StoreError, match="closed"):
        store.search("x")
    store.close()


@given(st.lists(st.text()), st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_parts_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, strings: list[str], numbers: list[int]
) -> None:
    path = tmp_path_factory.mktemp("parts") / "x"
    parts = {**pack_strings("s", strings), "n": np.array(numbers, np.int64), "e": np.zeros((0, 3), np.float32)}
    with path.open("wb") as file:
        write_arrays(file, {"any": "thing"}, parts, b"secret")
    assert read_arrays(path, b"guess") is None
    header, again = read_arrays(path, b"secret") or ({}, {})
    assert header == {"any": "thing"} and unpack_strings("s", again) == strings
    assert {name: (part.dtype, part.tolist()) for name, part in again.items()} == {
        name: (part.dtype, part.tolist()) for name, part in parts.items()
    }


def test_an_index_file_keeps_its_name(tmp_path: Path) -> None:
    """A later version finds, catches up and removes the files of this one."""
    path = tmp_path / "ana.db"
    with MemoryStore.open(path, embedder="hash") as store, store.namespace("user-42") as scope:
        scope.insert("semantic", "Ana lives in Lisbon.")
        scope.search("Where?")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["ana.db", "ana.db-index-6d894aa3ee802549"]


def test_an_index_is_built_of_entries_with_and_without_stored_vectors(tmp_path: Path, built: list[int]) -> None:
    """Vectors are a cache too: those that the file lacks are made anew, in whatever order the rows come."""
    path = tmp_path / "a.db"
    fill(path, count=40)
    right = search_results(path, by_hand=True)
    for remaining in ("rowid % 3 = 0", "rowid % 3 != 0", "0"):
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"DELETE FROM vectors WHERE NOT ({remaining})")
            database.commit()
        built.clear()
        assert search_results(path, by_hand=True) == right and built == [1]
