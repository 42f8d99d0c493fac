"""`recent`: newest entries first, equal in every memory, without listing the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import tamper

from memalpha.store.backends.sqlite import definitions
from memalpha.store.embedding import load_embedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

HASH = load_embedder("hash")
COMMANDS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "update", "update", "delete", "core"]), st.integers(0, 5)),
    max_size=40,
)


@settings(max_examples=40)
@given(COMMANDS)
def test_recent_is_the_newest_first_after_any_program(program: list[tuple[str, int]]) -> None:
    """Of a working memory; `test_programs.py` has that of a store."""
    memory = WorkingMemory(MemoryState.empty(MEM_ALPHA), HASH)
    for number, (kind, index) in enumerate(program):
        entries = memory.list()
        if kind == "insert" or not entries:
            memory.insert("semantic", f"fact {number}")
        elif kind == "update":
            memory.update(entries[index % len(entries)].id, f"value {number}")
        elif kind == "delete":
            memory.delete(entries[index % len(entries)].id)
        else:
            memory.core_update(f"core {number}")
        newest_first = sorted(memory.list(), key=lambda entry: -entry.valid_from)
        for n in (0, 1, 2, 5, 100):
            assert memory.recent(n) == newest_first[:n] == WorkingMemory(memory.state, HASH).recent(n)


@pytest.mark.sqlite
def test_a_damaged_log_with_a_gap_does_not_keep_it_busy(tmp_path) -> None:
    with MemoryStore.open(tmp_path / "a.db", embedder="hash") as store:
        store.add_many(["Ana lives in Oslo", "Ben likes tea"])
    gap = "UPDATE operations SET seq = 9223372036854775807 WHERE seq = 2"
    tamper(tmp_path / "a.db", f"DROP TRIGGER operations_stay; {gap}; {definitions()['operations_stay'][1]}")
    with MemoryStore.open(tmp_path / "a.db", read_only=True) as store:
        assert [entry.content for entry in store.recent(3)] == ["Ben likes tea", "Ana lives in Oslo"]
