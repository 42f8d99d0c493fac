"""Official files of data sets: corrupted copies of small ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from memalpha.types import SpeakerTurn, Task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
"""Any small JSON value."""


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every path into nested lists and objects."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from value_paths(item, (*path, key))


def replace_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of the value with `new` at a path.

    Args:
        value: Nested lists and objects.
        path: Keys and indices of the part to replace.
        new: New part.
    """
    if not path:
        return new
    copied = copy.deepcopy(value)
    node = copied
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = new
    return copied


def turns(task: Task) -> dict[str | None, SpeakerTurn]:
    """Return the turns of a task by id."""
    return {turn.id: turn for chunk in task.chunks for turn in chunk.turns}
