"""FilterColumns give what `matches` gives, entry by entry, however the entries came."""

from dataclasses import replace

from filter_strategies import entries, wheres
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.store.filters import parse_filter
from memalpha.store.search import corpus
from memalpha.store.search.corpus import FilterColumns
from memalpha.types import MemoryEntry


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), entries), min_size=1, max_size=12), st.lists(wheres, max_size=4))
def test_a_mask_is_what_matches_says(program, filters) -> None:
    live: dict[str, MemoryEntry] = {}
    slots = {f"n{slot}": slot for slot in range(7)}
    some = FilterColumns(lambda: [replace(entry, id=id) for id, entry in live.items()])
    for number, (slot, entry) in enumerate(program):
        live[f"n{slot}"] = entry
        some.set(slot, entry)
        if filters and number % 2:
            check(some, filters[number % len(filters)], live, slots)
    for where in filters:
        check(some, where, live, slots)


mixed = st.one_of(
    st.integers(2**53 - 2, 2**53 + 2),
    st.floats(allow_nan=True),
    st.booleans(),
    st.none(),
    st.text("a\0\ud800z", max_size=3),
)
days = st.sampled_from(["2024-05-01", "2024-05-01T02:00+02:00", "2024-04-30T23:59:59.999999", "May 1st", "", None])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(mixed, days), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte"]), mixed, days), min_size=1, max_size=4),
)
def test_ranges_are_what_matches_says_whatever_the_kinds(values, bounds) -> None:
    live: dict[str, MemoryEntry] = {}
    slots = {f"n{slot}": slot for slot in range(7)}
    some = FilterColumns(lambda: [replace(entry, id=id) for id, entry in live.items()])
    for number, (value, day) in enumerate(values):
        live[f"n{number % 7}"] = MemoryEntry("i", "semantic", "c", timestamp=day, metadata={"x": value})
        some.set(number % 7, live[f"n{number % 7}"])
        for operator, bound, moment in bounds:
            check(some, {"x": {operator: bound}}, live, slots)
            if (moment and moment != "May 1st") or operator == "$eq":
                check(some, {"timestamp": {operator: moment or None}}, live, slots)


def check(some: FilterColumns, where, live, slots) -> None:
    chosen = parse_filter(where)
    assert chosen is not None
    mask = some.mask(chosen, slots, 7)
    assert {id: bool(mask[slots[id]]) for id in live} == {id: chosen.matches(entry) for id, entry in live.items()}


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(corpus, "_MOST_COLUMNS", 3)
    monkeypatch.setattr(corpus, "_MOST_VERDICTS", 3)
    entry = MemoryEntry("n0", "semantic", "a", metadata={"x": "0123456789"})
    some = FilterColumns(lambda: [entry])
    for number in range(10):
        for field in ("x", f"y{number}", "x"):
            chosen = parse_filter({field: {"$contains": str(number)}})
            assert chosen is not None
            assert some.mask(chosen, {"n0": 0}, 1).tolist() == [field == "x"]
    chosen = parse_filter({f"z{number}": None for number in range(5)})
    assert chosen is not None and some.mask(chosen, {"n0": 0}, 1).tolist() == [True]
    assert len(some._columns) <= 5
    assert all(len(column._verdicts) <= 3 for column in some._columns.values())
    for number in range(4000):  # one entry whose value keeps changing
        entry = MemoryEntry("n0", "semantic", "a", metadata={"x": number})
        some.set(0, entry)
    chosen = parse_filter({"x": 3999})
    assert chosen is not None and some.mask(chosen, {"n0": 0}, 1).tolist() == [True]
    assert len(some._columns["x"]._values) == 1
