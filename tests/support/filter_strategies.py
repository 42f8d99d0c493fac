"""Hypothesis strategies for filters and for the entries they are tried on."""

from __future__ import annotations

from hypothesis import strategies as st

from memalpha.types import MemoryEntry

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2, 2.5, "", "a", "ab", "b", "1"])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)),
    max_leaves=4,
)
names = st.sampled_from(["p", "q", "p.x", "p.x.y", "category", "timestamp", "importance", "chunk", "source"])
times = st.sampled_from([None, "2024-05-01", "2024-05-01T00:00Z", "2024-05-01T01:00+02:00", "2025-01-01"])
bounds = {
    "timestamp": times.filter(bool),
    **dict.fromkeys(("importance", "chunk"), scalars.filter(lambda value: type(value) in (int, float))),
    **dict.fromkeys(("category", "source"), scalars.filter(lambda value: isinstance(value, str))),
}
"""Of the entry's own fields, for which a value of another type is refused."""


def conditions(name: str) -> st.SearchStrategy:
    operand = st.none() | bounds[name] if name in bounds else values
    plain = operand.filter(lambda value: not isinstance(value, dict))
    order = st.sampled_from(["$gt", "$gte", "$lt", "$lte"])
    comparison = (
        st.tuples(st.sampled_from(["$eq", "$ne"]), operand)
        | st.tuples(st.just("$contains"), values)
        | st.tuples(order, bounds.get(name, operand))
        | st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(operand, max_size=3))
        | st.tuples(st.just("$exists"), st.booleans())
    )
    operators = st.lists(comparison, min_size=1, max_size=2).map(dict)
    return plain | operators | operators.map(lambda inner: {"$not": inner})


leaves = names.flatmap(lambda name: conditions(name).map(lambda condition: {name: condition}))
wheres = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
        inner.map(lambda part: {"$not": part}),
        st.tuples(inner, inner).map(lambda two: {**two[0], **two[1]}),
    ),
    max_leaves=5,
)
entries = st.builds(
    MemoryEntry,
    id=st.just("i"),
    category=st.sampled_from(["a", "semantic"]),
    content=st.just("c"),
    timestamp=times,
    importance=st.sampled_from([0.0, 1.0, 2.5]),
    metadata=st.dictionaries(st.sampled_from("pq"), values, max_size=2),
    source=st.sampled_from([None, "a", "ab"]),
    chunk=st.sampled_from([None, 0, 1]),
    turn=st.sampled_from([None, "5"]),
)
