"""The fast maker of a record makes what its constructor makes."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from memalpha.store.fields import fast_maker
from memalpha.types import MemoryEntry


def test_it_makes_the_same() -> None:
    make = fast_maker(MemoryEntry)
    entry = make("a#b", "semantic", "c")
    assert type(entry) is MemoryEntry and entry == MemoryEntry("a#b", "semantic", "c")
    assert repr(entry) == repr(MemoryEntry("a#b", "semantic", "c")) and entry.metadata is not make("", "", "").metadata
    assert replace(entry, version=2).version == 2 and pickle.loads(pickle.dumps(entry)) == copy.deepcopy(entry) == entry
    with pytest.raises(FrozenInstanceError):
        entry.version = 4  # pyright: ignore
