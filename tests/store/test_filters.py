"""Filters: rule by rule, against an independent evaluation, and refused ones."""

import json
from datetime import datetime

import numpy as np
import pytest
from filter_strategies import entries, wheres
from hypothesis import given, settings
from hypothesis import strategies as st

import memalpha.store.backends.namespace
from memalpha.errors import StoreError
from memalpha.store.embedding import load_embedder
from memalpha.store.filters import parse_filter
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import Category, MemorySchema
from memalpha.store.search.ranking import Boost
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry

ENTRY = MemoryEntry(
    id="pet#e",
    category="semantic",
    content="pet: cat",
    timestamp="2024-05-01T18:30",
    importance=0.5,
    metadata={
        "user": "ana", "n": 3, "ok": True, "tags": ["a", "b", 1], "deep": {"x": {"y": 2}}, "a.b": 7, "null": None,
        "source": "mine", "range": {"gte": 1}, "huge": 10**400,
    },
    source="chat-7",
    chunk=4,
    turn="D1:3",
)  # fmt: skip


PASS = [
    None,
    {},
    {"$and": [{}, {"$or": [{"n": 4}, {}]}], "n": {"$nin": []}},
    {"tags": {"$contains": 1.0}},
    {"huge": {"$gt": np.float64(1.5), "$ne": np.float64(1.5)}},
    {"user": {"$in": ("ben", "ana")}},
    {"deep": {"x": {"y": 2.0}}},
    {"range": {"$eq": {"gte": 1}}},
    {"metadata.deep.x.y": 2},
    {"a.b": 7},
    {"user.ana": None},
    {"id": "pet#e", "category": "semantic", "source": "chat-7", "chunk": 4, "turn": "D1:3", "importance": 0.5},
    {"metadata.source": "mine", "content": {"$contains": "cat"}},
    {"timestamp": "20240501T1830"},
    {"timestamp": {"$in": ["2024-05-01T20:30+02:00"]}},
    {"timestamp": {"$contains": "2024-05"}},
]
FAIL = [{"n": {"$gt": float("nan")}}, {"deep": {"$contains": "x"}}, {"source": "mine"}, {"$not": {"$and": [{}]}}]
FAIL += [{"timestamp": condition} for condition in ({"$gt": "2024-05-01T18:30Z"}, None)]


@pytest.mark.parametrize(
    ("where", "expected"), [*((where, True) for where in PASS), *((where, False) for where in FAIL)]
)
def test_filters_that_no_strategy_draws(where, expected) -> None:
    chosen = parse_filter(where)
    assert (chosen is None or chosen.matches(ENTRY)) == expected


def test_an_old_timestamp_that_is_no_time_is_a_text() -> None:
    entry = MemoryEntry("a", "semantic", "a", timestamp="May 1st")
    for where, passes in (({"timestamp": "May 1st"}, True), ({"timestamp": {"$lt": "2024-05-01"}}, False)):
        chosen = parse_filter(where)
        assert chosen is not None and chosen.matches(entry) == passes


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"n": {"$near": 3}}, r"unknown operator '\$near' for 'n': there are \$eq, .*\$not"),
        ({"n": {"$gt": 3, "lt": 4}}, "unknown operator 'lt' for 'n'"),
        ({"n": {"gte": 3, "lt": 4}}, r"'n' \{'gte': 3, 'lt': 4\}: an operator begins with \"\$\""),
        ({"$not": {"user": {"in": ["ana"]}}}, "an operator begins"),
        ({"n": {"$gt": 3, 4: 4}}, "unknown operator 4 for 'n'"),
        ({"$nor": []}, r"unknown operator '\$nor'"),
        ({"$eq": 3}, r"\$eq stands without a field"),
        ({"$and": []}, r"\$and needs a list"),
        ({"$or": {"n": 3}}, r"\$or needs a list"),
        ({"$and": [3]}, "a mapping of fields"),
        ({"$not": [3]}, "a mapping of fields"),
        ({"n": {"$in": "abc"}}, "'n' \\$in: a list is needed"),
        ({"n": {"$nin": "abc"}}, "'n' \\$nin: a list is needed"),
        ({"n": {"$exists": 1}}, "true or false is needed"),
        ({"n": {3}}, "no JSON value"),
        ({"n": [object()]}, "no JSON value"),
        ({3: 4}, "3 is no field"),
        ({"": 4}, "'' is no field"),
        ("user", "a mapping of fields"),
        ({"timestamp": {"$gt": "2024"}}, "no ISO 8601"),
        ({"expires": {"$lt": 1714521600}}, "1714521600 is no ISO 8601"),
        ({"importance": {"$gte": "high"}}, "a number is needed, not 'high'"),
        ({"chunk": {"$lt": True}}, "a number is needed, not True"),
        ({"turn": {"$gt": 3}}, "a text is needed, not 3"),
        ({"turn": 3}, "'turn' \\$eq: a text is needed, not 3"),
        ({"chunk": {"$nin": [None, 3, "3"]}}, "'chunk' \\$nin: a number is needed, not '3'"),
        ({"$not": {"importance": {"$ne": True}}}, "a number is needed, not True"),
    ],
)
def test_invalid_filters_are_named(where, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        parse_filter(where)


def nested(form: str, depth: int) -> dict:
    """`n` is 3, negated `depth` times, around the field or inside it."""
    where: dict = {"n": 3}
    for _ in range(depth):
        where = {"$not": where} if form == "around" else {"n": {"$not": where["n"]}}
    return where


@pytest.mark.parametrize("form", ["around", "inside"])
def test_fifty_levels_pass_and_more_are_refused(form: str) -> None:
    three, four = (MemoryEntry("a", "b", "c", metadata={"n": n}) for n in (3, 4))
    for depth in (0, 1, 49, 50):
        parsed = parse_filter(nested(form, depth))
        assert parsed is not None and (parsed.matches(three), parsed.matches(four)) == (depth % 2 == 0, depth % 2 == 1)
    for depth in (51, 52, 5000):
        with pytest.raises(StoreError, match="nested deeper than 50 levels"):
            parse_filter(nested(form, depth))


# ---------------------------------------------------------------------------------------- an independent evaluation


def canonical(value, time=False):
    """A JSON text that is equal where the values are: the numbers all as floats."""
    if time and value is not None:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else datetime.fromisoformat(value + "T00:00+00:00")).timestamp()
    numbers = json.loads(json.dumps(value), parse_int=float)
    return json.dumps(numbers, sort_keys=True)


def expected(where, entry: MemoryEntry) -> bool:
    results = []
    for key, condition in where.items():
        if key == "$and":
            results.append(False not in [expected(part, entry) for part in condition])
        elif key == "$or":
            results.append(True in [expected(part, entry) for part in condition])
        elif key == "$not":
            results.append(not expected(condition, entry))
        else:
            value = {"timestamp": entry.timestamp, "category": entry.category, "importance": entry.importance}
            value |= {"chunk": entry.chunk, "source": entry.source, **entry.metadata}
            for step in key.split("."):
                value = value.get(step) if isinstance(value, dict) else None
            results.append(expected_of(condition, value, key == "timestamp"))
    return all(results)


def expected_of(condition, value, time: bool) -> bool:
    if not (isinstance(condition, dict) and any(key.startswith("$") for key in condition)):
        return canonical(value, time) == canonical(condition, time)
    results = []
    for operator, operand in condition.items():
        if operator == "$not":
            results.append(not expected_of(operand, value, time))
        elif operator in ("$eq", "$ne"):
            results.append((canonical(value, time) == canonical(operand, time)) == (operator == "$eq"))
        elif operator in ("$in", "$nin"):
            is_in = canonical(value, time) in [canonical(item, time) for item in operand]
            results.append(is_in == (operator == "$in"))
        elif operator == "$exists":
            results.append((value is not None) == operand)
        elif operator == "$contains":
            if type(value) is str:
                results.append(type(operand) is str and value.find(operand) >= 0)
            else:
                results.append(type(value) is list and canonical(operand) in [canonical(item) for item in value])
        else:
            kinds = {type(value), type(operand)}
            if not (kinds == {str} or kinds <= {int, float}):
                results.append(False)
                continue
            left, right = (canonical(value, True), canonical(operand, True)) if time else (value, operand)
            sign = (left > right) - (left < right)
            results.append(sign in {"$gt": [1], "$gte": [0, 1], "$lt": [-1], "$lte": [0, -1]}[operator])
    return all(results)


@settings(max_examples=400, deadline=None)
@given(wheres, entries)
def test_agrees_with_an_independent_evaluation(where, entry) -> None:
    chosen = parse_filter(where)
    assert chosen is not None
    assert chosen.matches(entry) == expected(where, entry)
    opposite = parse_filter({"$not": where})
    assert opposite is not None and opposite.matches(entry) != chosen.matches(entry)


# ------------------------------------------------------------------------------------------------------- in a memory


@pytest.mark.filterwarnings("ignore::memalpha.errors.UnknownFieldWarning")
@settings(max_examples=60, deadline=None)
@given(st.lists(entries, max_size=12, unique_by=lambda entry: (entry.category, str(entry.metadata))), wheres)
def test_lists_and_searches_of_a_memory(facts, where) -> None:
    """Compare filtered lists and searches with those of a memory of only the matches."""
    schema = MemorySchema("own", (Category("a", ""), Category("semantic", "")))
    store = MemoryStore.open(":memory:", schema, "hash")
    matching: list[MemoryEntry] = []
    for fact in facts:
        fields = {name: getattr(fact, name) for name in ("timestamp", "importance", "metadata", "source", "chunk")}
        entry = store.insert(fact.category, f"pet {len(matching)}: {fact.source} {fact.chunk}", **fields)
        if expected(where, entry):
            matching.append(entry)
    position, working = store.snapshot(), WorkingMemory(store.state, load_embedder("hash"))
    assert store.list(where=where) == working.list(where=where) == matching
    assert store.list(where=where, limit=2) == matching[:2]
    assert store.list("a", where=where) == working.list("a", where=where) == [e for e in matching if e.category == "a"]
    hits = store.search("pet 3 of a", 20, where=where)
    assert hits == working.search("pet 3 of a", 20, where=where)
    assert {hit.entry.id for hit in hits} == {entry.id for entry in matching}
    both = store.search("pet 3 of a", 20, category="a", where=where)
    assert both == store.search("pet 3 of a", 20, where={"$and": [where, {"category": "a"}]})
    for entry in store.list():
        store.delete(entry.id)
    assert store.search("pet 3 of a", 20, where=where) == store.list(where=where) == []
    assert store.list(where=where, as_of=position) == matching
    assert store.search("pet 3 of a", 20, where=where, as_of=position) == hits
    boost = Boost(importance=1, recency=1, now="2025-01-01")
    boosted = store.search("pet 3 of a", 20, where=where, boost=boost, as_of=position)
    assert boosted == working.search("pet 3 of a", 20, where=where, boost=boost)
    store.close()


def test_pages_of_a_filtered_list(monkeypatch) -> None:
    monkeypatch.setattr(memalpha.store.backends.namespace, "_PAGE", 3)
    store = MemoryStore.open(":memory:", embedder="hash")
    for number in range(20):
        store.insert("semantic", f"fact {number}", chunk=number % 4)
    ids = [entry.id for entry in store.list(where={"chunk": {"$gte": 2}})]
    assert len(ids) == 10
    pages: list[str] = []
    while page := store.list(where={"chunk": {"$gte": 2}}, limit=4, after=pages[-1] if pages else None):
        pages += [entry.id for entry in page]
    assert pages == ids
    assert store.list(where={"chunk": 2}, limit=0) == []
    with pytest.raises(StoreError, match="unknown operator"):
        store.search("fact", where={"chunk": {"$about": 2}})
