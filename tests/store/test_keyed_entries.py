"""Keyed entries: texts are stored exactly, whatever they contain, and remain ordinary entries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import MemoryStore
from memalpha.errors import StoreError
from memalpha.store.keyed_entries import KeyedEntries, escape_key, original_text

TEXTS = st.sampled_from(
    ["", " ", "a", "a\n", " a", "a\n(x)", "a\n(y)", "a\n(x)\n(x)", "b\n\nc ", "\0", "a\0", "\ud800"]
)
TEXTS |= st.text(max_size=8)
KEYS = st.sampled_from(["x", "y", "x y", "z" * 130, "%-", "é/ü"])


@settings(max_examples=40)
@given(st.lists(st.tuples(KEYS, TEXTS | st.none(), st.integers(0, 2)), max_size=14))
def test_keyed_entries_behave_like_a_dict(steps):
    with MemoryStore.open(":memory:", embedder="hash") as store:
        keyed, model = KeyedEntries(store, "note"), {}
        store.insert("semantic", "a")  # of somebody else
        for key, text, value in steps:
            if text is None:
                assert keyed.delete(key) == (key in model)
                model.pop(key, None)
            else:
                keyed.put(key, text, [key, value])
                model[key] = (text, value)
            assert {key: keyed.get(key) is not None for key in model} == dict.fromkeys(model, True)
        pairs = {entry.metadata["note"][0]: (original_text(entry), entry.metadata["note"][1]) for entry in keyed.list()}
        assert pairs == model and len(keyed.list()) == len(store.list()) - 1


def test_an_entry_without_the_kind_is_left_alone():
    with MemoryStore.open(":memory:") as store:
        other = store.insert("semantic", "city: Oslo")
        keyed = KeyedEntries(store, "note")
        assert keyed.get(other.id) is None and not keyed.delete(other.id)
        with pytest.raises(StoreError, match="in use"):
            keyed.put(other.id, "x", 1)


@settings(max_examples=50)
@given(st.text(max_size=6), st.text(max_size=6))
def test_escaping_keeps_texts_apart(left, right):
    assert (escape_key(left, "./") == escape_key(right, "./")) == (left == right)
    assert not set(escape_key(left, "./")) & set(" \n\t\0./")


def test_other_objects_are_refused():
    with pytest.raises(StoreError, match=r"store 'ana\.db': MemoryStore is needed"):
        KeyedEntries("ana.db", "note")  # type: ignore[arg-type]
