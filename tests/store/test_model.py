"""Random programs on a store, compared with the naive memory and the brute-force search of `eval/store/model/`."""

from pathlib import Path

import pytest
from stores import import_file

pytestmark = pytest.mark.sqlite
MACHINE = Path(__file__).parents[2] / "eval" / "store" / "model" / "machine.py"


@pytest.fixture(scope="module")
def machine():
    return import_file(MACHINE)


def test_a_store_is_what_a_naive_memory_says(machine) -> None:
    counts = machine.run(150, 6, shrink=False, steps=50)
    assert counts["operations"] > 80 and counts["searches with hits"] > 50 and len(counts) > 20


def test_a_store_that_is_wrong_fails(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    search = machine.MemoryStore.search
    monkeypatch.setattr(
        machine.MemoryStore, "search", lambda store, *args, **options: search(store, *args, **options)[1:]
    )
    with pytest.raises(AssertionError):
        machine.run(150, 6, shrink=False, steps=50)
