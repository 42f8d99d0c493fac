"""Ctrl-C at any line of the store's code: writes are complete, and later answers correct."""

import linecache
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from memalpha.store.embedding import load_embedder
from memalpha.store.memory import Memory, WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore

HASH = load_embedder("hash")
FOLDER = str(Path(sys.modules[MemoryStore.__module__].__file__ or "").parent)
QUERY = "what is the value of a pet?"


def interrupted(run: Callable[[], object], at: int) -> bool:
    """Run with a KeyboardInterrupt at the line of memalpha.store that is executed as number `at`; whether it came."""
    lines = count()

    def trace(frame, event, _):
        file = frame.f_code.co_filename
        # The cache of vectors has a lock: between a block and its release no signal can come, but a tracer's interrupt.
        if not file.startswith(FOLDER) or file.endswith("embedding.py"):
            return None
        # No signal comes at a `try:`: CPython compiles it to nothing, which no handler around it covers.
        is_step = event == "line" and linecache.getline(file, frame.f_lineno).strip() != "try:"
        if is_step and next(lines) == at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def on_disk(path: Path) -> MemoryStore:
    return MemoryStore.open(path, embedder="hash", durability="normal")


@pytest.mark.parametrize("make", [on_disk, lambda _: WorkingMemory(MemoryState.empty(MEM_ALPHA), HASH)])
def test_an_interrupt_at_any_line(tmp_path: Path, make: Callable[[Path], Memory]) -> None:
    at, step, was_interrupted = 0, 1, True
    while was_interrupted:
        memory = make(tmp_path / f"{at}.db")
        ids = [memory.insert("semantic", f"pet {index}: cat").id for index in range(3)]
        memory.search(QUERY)

        def run(memory: Memory = memory, ids: list[str] = ids) -> None:
            memory.insert("episodic", "trip: Rome")
            memory.search(QUERY)
            memory.update(ids[0], "pet 0: dog")
            memory.delete(ids[1])
            if isinstance(memory, MemoryStore):
                memory.undo()
                memory.redo()
                memory.restore(3)
                memory.erase(ids[1])
            memory.search_many([QUERY, "trip"], category="semantic")

        was_interrupted = interrupted(run, at)
        if isinstance(memory, MemoryStore):
            log = [operation for _, _, operation in memory.log()]
            assert MemoryState.replay(memory.schema, log) == memory.state and len(log) == memory.snapshot()
        assert memory.search(QUERY) == WorkingMemory(memory.state, HASH).search(QUERY)
        assert memory.list() == memory.state.list()
        memory.update(ids[2], "pet 2: bird")
        fresh = WorkingMemory(memory.state, HASH)
        assert memory.search(QUERY, category="semantic") == fresh.search(QUERY, category="semantic")
        at, step = at + step, step + 1
