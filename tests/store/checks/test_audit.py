"""The audit finds what was planted, and nothing else; each rule by itself, its other side too."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_faults import Planter, as_faults, clean_store

from memalpha.config import WorldConfig
from memalpha.errors import StoreError
from memalpha.store.checks.audit import KINDS, audit
from memalpha.store.embedding import HashEmbedder
from memalpha.store.store import MemoryStore
from memalpha.tasks.synthetic.worlds import generate
from memalpha.types import Operation


@pytest.fixture
def store():
    with MemoryStore.open(":memory:") as store:
        yield store


def findings_of(store: MemoryStore, **options) -> list[tuple[str, str, list[str]]]:
    return [
        (finding.kind, finding.reason, [entry.content for entry in finding.entries])
        for finding in audit(store, **options).findings
    ]


@pytest.mark.parametrize("index", range(4))
def test_exactly_what_was_planted_is_found(index: int) -> None:
    task = generate(WorldConfig(preset="full", split="test", tokens=8_000), 7, index)
    with clean_store(task) as store:
        assert audit(store).findings == []
        planter = Planter(store, Random(index))
        planter.plant(index)
        before = store.snapshot()
        report = audit(store)
        assert sorted(map(repr, as_faults(report))) == sorted(map(repr, planter.faults))
        assert report == audit(store) and store.snapshot() == before
        ranks = [KINDS.index(finding.kind) for finding in report.findings]
        assert ranks == sorted(ranks)
        assert report.counts["stale"] == 4 and report.counts["entries"] == len(store.list())


def test_lines_of_a_chat_are_no_values_of_their_speaker(store) -> None:
    lines = ("Ana: I like tea", "Ana: hello", "user: hi. We moved", "user: ok", "Mary Ann: my dog", "Mary Ann: yes")
    for day, content in enumerate(lines, 1):
        store.insert("semantic", content, timestamp=f"2024-05-0{day}")
    with store.writing_as(speaker="Jos\u00e9"):
        store.insert("semantic", "jos\u00e9: me gusta", timestamp="2024-05-01")
        store.insert("semantic", "jos\u00e9: ya no", timestamp="2024-05-02")
    assert findings_of(store) == []
    for content in (
        "favourite film: I Am Legend",
        "favourite film: Alien",
        "Illness: type I diabetes",
        "Illness: none",
    ):
        store.insert("semantic", content)
    assert [kind for kind, _, _ in findings_of(store)] == ["contradiction"] * 2


def test_stale_by_date(store) -> None:
    store.insert("semantic", "city: Oslo", timestamp="2024-01-01")
    rome = store.insert("semantic", "city: Rome", timestamp="2024-06-01")
    store.insert("semantic", "city: Bern")  # no date: nothing is claimed of it
    assert [item for item in findings_of(store) if item[0] == "stale"] == [("stale", "later", ["city: Oslo"])]
    store.update(rome.id, "job: nurse")
    assert [item for item in findings_of(store) if item[0] == "stale"] == [("stale", "ended", ["city: Oslo"])]
    store.undo()
    store.insert("semantic", "City: Oslo", timestamp="2024-09-01")  # said again: then Rome is what is old
    assert [item for item in findings_of(store) if item[0] == "stale"] == [("stale", "later", ["city: Rome"])]
    assert audit(store).findings[1].against[0].content == "City: Oslo"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("Ana likes tea.", "ana  likes TEA", "text"),
        ("安娜喜欢茶。", "安娜喜欢茶", "text"),
        ("Tom's sister is Ana.", "Ana is the sister of Tom", "words"),
        ("city: Oslo", "City:  OSLO", "text"),
        ("Ana's friend: Tom", "Tom's friend: Ana", None),
        ("Ana lives in Lisbon.", "These days Ana lives in Lisbon.", "meaning"),
        ("My favorite food is now dumplings.", "The favorite food of Lola is now dumplings.", None),
        ("My car is a Fiat.", "Lola car: Fiat", None),
        ("Ana lives in Lisbon with Tom and two cats.", "Ana lives in Porto with Tom and two cats.", None),
        ("Ana has paid the rent of 350 euros.", "Ana has paid the rent of 360 euros.", None),
        ("Ana likes to drink black tea in the morning.", "Ana doesn't like to drink black tea in the morning.", None),
        ("Ana likes to drink black tea in the morning.", "Ana likes not to drink black tea in the morning.", None),
        ("Ana writes her tools in C", "Ana writes her tools in C++", None),
        ("Ana uses c# for all of her tools.", "Ana uses c++ for all of her tools.", None),
        ("Bo takes a dose of 3.5 mg of iron.", "Bo takes a dose of 35 mg of iron.", None),
        ("At night it was -5 degrees in Oslo.", "At night it was 5 degrees in Oslo.", None),
        ("!!!", "???", None),
    ],
)
def test_duplicates(store, first: str, second: str, reason: str | None) -> None:
    store.insert("semantic", first)
    store.insert("episodic", second)
    assert findings_of(store) == ([("duplicate", reason, [first, second])] if reason else [])


def test_categories_that_no_query_retrieves(store) -> None:
    store.insert_many([{"category": "semantic", "content": f"Ana likes tea number {n}."} for n in range(5)])
    store.insert("episodic", "Tom ran a marathon.")
    assert findings_of(store, k=1) == []  # each is the best hit for its own text
    assert audit(store).retrieval.categories["episodic"] == {"entries": 1, "asked": 1, "found": 1}
    assert findings_of(store, queries=["tea", "Ana"], k=3) == [("unretrieved", "queries", ["Tom ran a marathon."])]
    counts = audit(store, queries=["tea", "marathon"], k=1).retrieval.categories
    assert counts["episodic"] == {"entries": 1, "asked": 2, "found": 1} == {**counts["semantic"], "entries": 1}


def test_orphans(store) -> None:
    store.insert("semantic", "Ana's home town is a big city.", source="a.jsonl", chunk=0, turn="1")
    assert findings_of(store) == []
    store.insert("semantic", "From nowhere.")
    store.insert("semantic", "From some chunk.", chunk=0)
    assert findings_of(store) == [
        ("orphan", "no origin", ["From nowhere."]),
        ("orphan", "no source", ["From some chunk."]),
    ]


def test_an_empty_memory_and_wrong_options(store) -> None:
    report = audit(store, queries=["x"])
    assert report.findings == [] and report.counts["entries"] == 0
    with pytest.raises(StoreError):
        audit(store, k=0)


TEXTS = st.sampled_from(["city: Oslo", "City: oslo", "city: Rome", "Ana ran", "ran Ana", "Ana", "!", "x 1", "x 2"])
STEPS = st.lists(
    st.tuples(st.sampled_from("iud"), TEXTS, st.sampled_from([None, "2024-01-01", "2024-02-01"]), st.integers(0, 3))
)


@settings(max_examples=25)
@given(STEPS)
def test_findings_are_of_live_entries_and_an_audit_of_their_copy_is_the_same(steps) -> None:
    """Contradictions are those that the plain rule gives, and no exact duplicate is missed."""
    with MemoryStore.open(":memory:", embedder=HashEmbedder(32)) as store:
        for kind, content, timestamp, index in steps:
            live = store.list()
            if kind == "i":
                store.insert("semantic", content, timestamp=timestamp)
            elif live:
                id = live[index % len(live)].id
                if kind == "d":
                    store.delete(id)
                elif store.find("semantic", content) is None:
                    store.apply(Operation("update", id=id, content=content, timestamp=timestamp))
        live = {entry.id: entry for entry in store.list()}
        findings = audit(store).findings
        assert all(live[entry.id] == entry for finding in findings for entry in finding.entries)
        cities = {entry.content[6:].lower() for entry in live.values() if ":" in entry.content}
        assert [finding.kind for finding in findings].count("contradiction") == (len(cities) > 1)
        texts = [finding for finding in findings if finding.reason == "text"]
        assert sum(len(finding.entries) - 1 for finding in texts) == len(live) - len(
            {e.content.lower() for e in live.values()}
        )
        for finding in findings:
            if finding.reason == "later":
                [entry], [other] = finding.entries, finding.against
                assert other.id in live and entry.timestamp < other.timestamp
