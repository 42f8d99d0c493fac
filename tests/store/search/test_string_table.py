"""Texts by number and numbers by text: a dict, whatever has been settled, saved or given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.store.search import string_table as module
from memalpha.store.search.string_table import StringTable

TEXTS = st.sampled_from(["", "a", "b\0", "b", "città#e", "\ud800", "a" * 300]) | st.text(max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "pop", "settle", "save"]), TEXTS), max_size=40)


@pytest.mark.parametrize("collide", [False, True])
@given(STEPS)
def test_names_are_a_dict(collide: bool, steps: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        if collide:  # texts decide, not their hashes
            patch.setattr(module, "_hash", lambda raw: len(raw) % 2)
        names, right, free = StringTable(), dict[str, int](), list(range(60, -1, -2))
        for kind, text in steps:
            if kind == "set" and text not in right:
                right[text] = free.pop()
                names.set(text, right[text])
            elif kind == "pop" and text in right:
                free.append(right.pop(text))  # the next to be given out
                assert names.pop(text) == free[-1]
            elif kind == "settle":
                names.settle()
            elif kind == "save":
                names = StringTable.from_arrays("x", names.to_arrays("x"))
            assert dict(names) == right and len(names) == len(right) and (text in names) == (text in right)
            assert all(names.text(number) == text for text, number in right.items())
            if text not in right:
                with pytest.raises(KeyError):
                    names.pop(text)


def test_a_text_without_a_number_is_given_the_next() -> None:
    names = StringTable()
    assert [names.id_of(text) for text in "abcab"] == [0, 1, 2, 0, 1]
    names.settle()
    assert [names.id_of(text) for text in "cadbd"] == [2, 0, 3, 1, 3] and names["d"] == 3
