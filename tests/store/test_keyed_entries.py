"""Keyed entries: texts are stored exactly, whatever they contain, and remain ordinary entries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import MemoryStore
from memalpha.errors import StoreError
from memalpha.store.io.markdown import export_markdown, import_markdown
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


def test_content_changed_by_other_means_is_the_text():
    with MemoryStore.open(":memory:") as store:
        keyed = KeyedEntries(store, "note")
        for key, text in (("a", "same\n"), ("b", "same"), ("c", "")):
            entry = store.update(keyed.put(key, text, 1).id, f"edited {key}")
            assert original_text(entry) == f"edited {key}" + ("\n" if key == "a" else "")


def test_texts_of_any_kind_are_exported(tmp_path):
    with MemoryStore.open(tmp_path / "a.db") as store, MemoryStore.open(tmp_path / "b.db") as copy:
        keyed = KeyedEntries(store, "note")
        for key, text in (("a", "one\0"), ("b", "two\ud800\n"), ("c", "é")):
            keyed.put(key, text, 1)
        store.export_jsonl(tmp_path / "a.jsonl")
        copy.import_jsonl(tmp_path / "a.jsonl")
        assert [original_text(entry) for entry in copy.list()] == ["one\0", "two\ud800\n", "é"]
        assert "é" in (tmp_path / "a.jsonl").read_text(encoding="utf-8")
        export_markdown(store, tmp_path / "a.md")
        import_markdown(copy, tmp_path / "a.md")
        assert copy.state == store.state


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
    with pytest.raises(StoreError, match="MemoryStore is needed, not str"):
        KeyedEntries("ana.db", "note")  # type: ignore[arg-type]


def test_default_category():
    with MemoryStore.open(":memory:", schema="life") as store:
        assert KeyedEntries(store, "note").put("a", "x", 1).category == "sensory_lifestyle"
        assert KeyedEntries(store, "note", "values").put("b", "x", 1).category == "values"
