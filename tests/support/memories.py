"""Memories in RAM, for tests."""

from __future__ import annotations

from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MemorySchema, load_schema
from memalpha.store.state import MemoryState

SCHEMA = load_schema("mem-alpha")


def working_memory(
    *contents: str, category: str = "semantic", month: str = "2024-05", schema: MemorySchema = SCHEMA, **rule: bool
) -> WorkingMemory:
    """Return a memory with these entries, dated from the first of a month on; `rule` is the state's."""
    memory = WorkingMemory(MemoryState.empty(schema, **rule), HashEmbedder(64))
    for day, content in enumerate(contents, 1):
        memory.insert(category, content, timestamp=f"{month}-{day:02}")
    return memory
