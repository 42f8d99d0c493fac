"""Large memories are searched without looking at every document: near enough, and with the very scores."""

import threading

import numpy as np
import pytest
from corpus_search import search, search_many

from memalpha.store.indexing import cache
from memalpha.store.indexing.cache import index_files
from memalpha.store.search import ann as approximate
from memalpha.store.search.background import Background, Stopped
from memalpha.store.search.boost import Boost
from memalpha.store.search.corpus import Corpus
from memalpha.store.search.documents import Document
from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.sqlite  # about its files

TOPICS = ["cat pet fur", "city Oslo fjord", "piano music score", "bread oven flour"]
QUERIES = ["Which pet has fur?", "fjord 17", "piano", "flour 250 oven bread", "nothing of this"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a few hundred documents count as many."""
    monkeypatch.setattr(approximate, "EXACT_LIMIT", 200)
    monkeypatch.setattr(approximate, "NEAREST", 100)
    monkeypatch.setattr(approximate, "BEST_BY_WORDS", 100)
    monkeypatch.setattr(approximate, "FARTHEST", 20)
    monkeypatch.setattr(approximate, "MAX_RECENT", 20)


class Embedder:
    """Directions of the topics, and a little of each text's own."""

    name, dim = "topics", 64

    def encode(self, texts):
        rows = []
        for text in texts:
            own_vector = np.random.default_rng(list(text.encode())).normal(size=64)
            of_topics = [sum(word in text for word in topic.split()) for topic in TOPICS]
            rows.append(own_vector * 0.15 + np.pad(of_topics, (0, 60)))
        rows = np.array(rows, np.float32).reshape(len(texts), 64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def document(number: int) -> Document:
    words = TOPICS[number % 4].split()
    return Document(f"d{number}", f"{words[number % 3]} {words[number % 2]} {number}", f"g{number % 3}", number)


def corpus_from_arrays(count: int, background: Background | None = None) -> Corpus:
    return Corpus(Embedder(), map(document, range(count)), background=background)


def recall(corpus: Corpus, **options) -> float:
    shares = []
    for query in QUERIES:
        right = search_many(corpus, [query], 10, exact=True, **options)[0]
        recalled = search_many(corpus, [query], 10, **options)[0]
        shares.append(len({hit.id for hit in right} & {hit.id for hit in recalled}) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("route", ["soft", "flat", "dense", "bm25", "hard"])
def test_the_best_are_found_with_the_scores_of_the_exact_search(route) -> None:
    corpus = corpus_from_arrays(600, Background())
    corpus.build()
    for number in range(0, 600, 7):  # holes, which the lists do not know of
        corpus.remove(f"d{number}")
    corpus.add_many(map(document, range(600, 615)))  # beside the lists
    assert recall(corpus, route=route) >= 0.95
    assert len(search(corpus, "pet", 150, route="soft")) == 150  # more than there are candidates
    for query in QUERIES:
        exact = {hit.id: hit for hit in search_many(corpus, [query], 700, route=route, exact=True)[0]}
        hits = search_many(corpus, [query], 10, route=route)[0]
        assert hits == sorted(hits, key=lambda hit: (-hit.score, -int(hit.id[1:])))
        for hit in hits:
            assert hit.explain == exact[hit.id].explain
            assert hit.score == pytest.approx(exact[hit.id].score, abs=0.02)  # where the scale of dense begins
    everything = search_many(corpus, QUERIES, 10, route=route)
    assert everything == [search(corpus, query, 10, route=route) for query in QUERIES]


def test_it_looks_at_candidates_alone_and_exactly_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, counts = corpus_from_arrays(600, Background()), []
    rank = Corpus._rank

    def counted(self, selection, *rest):
        counts.append(len(selection.slots))
        return rank(self, selection, *rest)

    monkeypatch.setattr(Corpus, "_rank", counted)
    corpus.build()
    search(corpus, "pet fur")
    assert 100 <= counts[0] < 400
    search_many(corpus, ["pet fur"], exact=True)
    search(corpus, "pet fur", route="hard")
    small = corpus_from_arrays(200, Background())
    small.build()
    search(small, "pet fur")
    alone = corpus_from_arrays(600)  # the memory of a rollout has nothing in the background
    alone.build()
    search(alone, "pet fur")
    assert counts[1:] == [600, 600, 200, 600]


def test_a_boost_counts_among_the_candidates() -> None:
    corpus = corpus_from_arrays(600, Background())
    corpus.build()
    hits = search(corpus, "piano", 5, boost=Boost(importance=1.0))
    assert all(set(hit.explain) == {"dense", "bm25", "group", "importance"} for hit in hits)


def test_lists_are_built_beside_the_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, build, build_sizes = threading.Event(), approximate.InvertedLists.build, []

    def slow(rows, slots, stopped):
        build_sizes.append(len(slots))
        gate.wait(20)
        return build(rows, slots, stopped)

    monkeypatch.setattr(approximate.InvertedLists, "build", slow)
    background = Background()
    corpus = corpus_from_arrays(300, background)
    right = search_many(corpus, QUERIES, 10, exact=True)
    assert search_many(corpus, QUERIES, 10) == right and build_sizes == [300]  # exact, and it does not wait
    corpus.add(Document("new", "zyxomma alone", "g0", 1000))
    corpus.remove("d299")
    assert search(corpus, "zyxomma")[0].id == "new" and background.is_busy
    gate.set()
    corpus.build()
    assert build_sizes == [300] and not background.is_busy and corpus._approximate.ready_lists().size == 301  # pyright: ignore
    assert search(corpus, "zyxomma")[0].id == "new"
    # A few that came since are looked at one by one, many are put in as well, beside again; after more, all anew.
    corpus.add_many(map(document, range(300, 320)))
    search(corpus, "x")
    assert not background.is_busy and corpus._approximate.live_recent_slots().tolist() == [*range(301, 321)]  # pyright: ignore
    corpus.add(document(320))
    search(corpus, "x")
    background._thread.join()  # pyright: ignore
    search(corpus, "x")
    assert corpus._approximate.ready_lists().size == 322 and not len(corpus._approximate.live_recent_slots())  # pyright: ignore
    for number in range(120):
        corpus.remove(f"d{number}")
    corpus.build()
    assert build_sizes == [300, 201] and corpus._approximate.ready_lists().size == 201  # pyright: ignore


def test_lists_that_were_begun_before_an_erasure_do_not_find_the_entry(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, build = threading.Event(), approximate.InvertedLists.build

    def slow(rows, slots, stopped):
        gate.wait(20)
        return build(rows, slots, lambda: False)

    monkeypatch.setattr(approximate.InvertedLists, "build", slow)
    with MemoryStore.open(tmp_path / "a.db", embedder=Embedder()) as store:
        texts = [document(number).text for number in range(300)]
        entries = store.insert_many({"category": "semantic", "content": text} for text in texts)
        store.search("piano")
        store.erase(entries[7].id)
        gate.set()
        store._index._background._thread.join()  # pyright: ignore
        for _ in range(2):  # the first takes the lists
            assert entries[7].id not in {hit.entry.id for hit in store.search(texts[7], 20)}
        assert store._index._corpus._approximate._lists is not None  # pyright: ignore
        store.build_index()  # anew, without the erased vector
        assert store._index._corpus._approximate.ready_lists().size == 299  # pyright: ignore


def test_the_same_memory_gives_the_same_lists() -> None:
    first, second = corpus_from_arrays(400, Background()), corpus_from_arrays(400, Background())
    first.build()
    second.build()
    assert first._approximate.to_arrays()["lists"].tobytes() == second._approximate.to_arrays()["lists"].tobytes()  # pyright: ignore


def test_what_goes_wrong_in_the_background_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise MemoryError("no room for lists")

    monkeypatch.setattr(approximate.InvertedLists, "build", broken)
    background = Background()
    corpus = corpus_from_arrays(300, background)
    assert search(corpus, "piano")
    background._thread.join()  # pyright: ignore
    with pytest.raises(MemoryError, match="no room"):
        search(corpus, "piano")


def test_stopping_ends_the_thread() -> None:
    background, work_ran = Background(), threading.Event()

    def work(stopped):
        work_ran.set()
        while not stopped():
            pass
        raise Stopped

    before = set(threading.enumerate())
    background.start(work)
    assert work_ran.wait(20) and background.is_busy and background.fetch() is None
    background.start(lambda stopped: "second")
    assert background.fetch(wait=True) == "second" and background.fetch() is None and not background.is_busy
    background.start(work)
    background.stop()
    assert not background.is_busy and set(threading.enumerate()) <= before


def test_a_store_keeps_its_lists_in_its_index_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_ENTRIES", 100)
    path, texts = tmp_path / "a.db", [document(number).text for number in range(400)]
    with MemoryStore.open(path, embedder=Embedder()) as store:
        store.insert_many({"category": "semantic", "content": text} for text in texts)
        store.build_index()
        right = store.search_many(QUERIES, 10, exact=True)
        recalled = store.search_many(QUERIES, 10)
        assert [[hit.entry for hit in hits] for hits in recalled] == [[hit.entry for hit in hits] for hits in right]
    assert len(index_files(str(path))) == 1

    def never(*_):
        raise AssertionError("built again")

    monkeypatch.setattr(approximate.InvertedLists, "build", never)
    with MemoryStore.open(path, embedder=Embedder()) as store:
        assert store.search_many(QUERIES, 10) == recalled
        new = store.insert("semantic", "zyxomma alone")
        assert store.search("zyxomma")[0].entry == new
        store.delete(new.id)
        assert store.search_many(QUERIES, 10) == recalled
        exact = store.search("piano", 10, where={"content": {"$contains": "piano"}})
        assert exact == store.search("piano", 10, where={"content": {"$contains": "piano"}}, exact=True)
    assert not any(thread.name == "memalpha-index" for thread in threading.enumerate())


def test_an_index_file_is_written_again_only_for_new_lists(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is searched without a change, with lists or without, leaves the file alone; new lists do not wait."""
    monkeypatch.setattr(cache, "MIN_ENTRIES", 100)
    path = tmp_path / "a.db"

    def use(*, build: bool = False) -> tuple[int, int]:
        """Search and close; return the file's inode and time of writing."""
        with MemoryStore.open(path, embedder=Embedder()) as store:
            if build:
                store.build_index()
            store.search("piano", exact=True)
        [file] = index_files(str(path))
        return file.stat().st_ino, file.stat().st_mtime_ns

    with MemoryStore.open(path, embedder=Embedder()) as store:
        store.insert_many({"category": "semantic", "content": document(number).text} for number in range(300))
    without_lists = use()
    assert use() == without_lists
    with_lists = use(build=True)
    assert with_lists != without_lists
    monkeypatch.setattr(approximate.InvertedLists, "build", lambda *_: pytest.fail("built again"))
    assert use(build=True) == use() == with_lists


def test_a_corpus_without_a_background_never_has_new_lists() -> None:
    corpus = corpus_from_arrays(300)
    corpus.build()
    assert not corpus.has_new_lists and search_many(corpus, QUERIES, 10) == search_many(corpus, QUERIES, 10, exact=True)
