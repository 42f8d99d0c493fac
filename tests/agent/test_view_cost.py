"""The view of the memory: the same as one made from the whole list, at a cost that does not grow with the memory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memories import working_memory

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.prompts import observe, render_view
from memalpha.config import AgentConfig
from memalpha.store.embedding import load_embedder
from memalpha.store.memory import Memory
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, ViewEntry

WORDS = ("Oslo", "cat", "nurse", "Volvo", "Dune", "Blur", "tea")


def new_memory(kind: str) -> Memory:
    return MemoryStore.open(":memory:", embedder="hash") if kind == "store" else working_memory()


@contextmanager
def count_work(memory: Memory) -> Iterator[list[int]]:
    """Count calls of Python and C functions and, in a store, steps of SQLite's virtual machine."""
    counts = [0, 0]

    def profile(frame: object, event: str, arg: object) -> None:
        counts[0] += event in ("call", "c_call")

    def step() -> None:
        counts[1] += 1

    connection = memory.database.connection if isinstance(memory, MemoryStore) else None
    if connection is not None:
        connection.set_progress_handler(step, 1)
    sys.setprofile(profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        if connection is not None:
            connection.set_progress_handler(None, 1)


@pytest.mark.sqlite
@pytest.mark.parametrize("kind", ["memory", "store"])
def test_a_view_of_a_larger_memory_takes_no_more_work(kind: str) -> None:
    config = AgentConfig(embedder="hash")
    work = []
    for size in (250, 1000):
        memory = new_memory(kind)
        for number in range(size):
            memory.insert("semantic", f"fact {number}: {WORDS[number % 7]}")
        for number in range(3):  # the first two make the index and settle it
            memory.insert("semantic", f"news {number}")
            chunk = Chunk(text=f"I saw {WORDS[number]}.")
            with count_work(memory) as counts:
                observe(memory, chunk, config, len)
        work.append(counts)
    (calls, steps), (more_calls, more_steps) = work
    assert more_calls <= 1.2 * calls + 50
    assert more_steps <= 1.2 * steps + 50


@pytest.mark.sqlite
def test_reading_a_chunk_is_one_write_and_one_embedding_whatever_the_memory_holds() -> None:
    work: dict[tuple[int, int], tuple[int, ...]] = {}
    for size in (200, 800):
        memory = new_memory("store")
        assert isinstance(memory, MemoryStore)
        memory.add_many(f"fact {number}: {WORDS[number % 7]}" for number in range(size))
        agent = MemoryAgent("add_all", memory)
        agent.read("Ana: hello")
        for lines in (10, 40):
            texts: list[int] = []
            statements: list[str] = []
            with pytest.MonkeyPatch.context() as patch, count_work(memory) as counts:
                embedder, encode = load_embedder("hash"), load_embedder("hash").encode
                patch.setattr(embedder, "encode", lambda batch, e=encode, t=texts: (t.append(len(batch)), e(batch))[1])
                memory.database.connection.set_trace_callback(statements.append)
                text = "\n".join(
                    f"{'Ana' if n % 2 else 'Bob'}: my news {n} of {lines} is {n * n}" for n in range(lines)
                )
                assert len(agent.read(text).operations) == lines
            memory.database.connection.set_trace_callback(None)
            assert texts == [lines]
            assert sum(statement.startswith("BEGIN IMMEDIATE") for statement in statements) == 1
            selects = sum(statement.startswith("SELECT") for statement in statements)
            work[size, lines] = (counts[0], selects, counts[1])
    for lines in (10, 40):  # flat in the memory
        assert work[800, lines][0] <= 1.1 * work[200, lines][0] + 50
        assert work[800, lines][2] <= 1.1 * work[200, lines][2] + 50
    for size in (200, 800):  # linear in the lines, with as many queries
        assert work[size, 40][0] <= 4 * work[size, 10][0]
        assert work[size, 40][1] <= work[size, 10][1] + 2


def view_of_whole_list(memory: Memory, chunk: Chunk, config: AgentConfig, count: Callable[[str], int]) -> list[str]:
    """Make the view from the list of all entries; returns the ids."""
    entries = memory.list()

    def fits(some: list) -> bool:
        view = [ViewEntry(entry.id, entry.category, entry.content, entry.timestamp) for entry in some]
        return count(render_view(memory.core, view, config.prompt)) <= config.view_tokens

    if len(entries) > config.view_recent or not fits(entries):
        hits = memory.search(chunk.render(), config.view_related) if config.view_related else []
        related = [hit.entry for hit in hits]
        recent = sorted(entries, key=lambda entry: -entry.valid_from)[: config.view_recent]
        ranked = {}
        for number in range(max(len(related), len(recent))):
            for some in (related, recent):
                if number < len(some):
                    ranked.setdefault(some[number].id, some[number])
        best = list(ranked.values())
        while best and not fits(sorted(best, key=entries.index)):
            best.pop()
        entries = sorted(best, key=entries.index)
    return [entry.id for entry in entries]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["insert"] * 3 + ["update", "delete"]), st.integers(0, 20)), max_size=25),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(30, 250),
)
def test_the_view_is_that_of_the_whole_list(program, related: int, recent: int, budget: int) -> None:
    config = AgentConfig(embedder="hash", view_related=related, view_recent=recent, view_tokens=budget)
    for kind in ("memory", "store"):
        memory = new_memory(kind)
        for number, (command, index) in enumerate(program):
            entries = memory.list()
            if command == "insert" or not entries:
                memory.insert("semantic", f"{WORDS[index % 7]} {number}")
            elif command == "update":
                memory.update(entries[index % len(entries)].id, f"{WORDS[index % 7]} new {number}")
            else:
                memory.delete(entries[index % len(entries)].id)
            chunk = Chunk(text=f"my {WORDS[number % 7]}")
            view = observe(memory, chunk, config, len).entries
            assert [entry.id for entry in view] == view_of_whole_list(memory, chunk, config, len)
