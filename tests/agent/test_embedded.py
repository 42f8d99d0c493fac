"""A `MemoryAgent` in somebody's own code: policies by name, awaited, and operations as they happen."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hostile import HostileServer

from memalpha import AsyncMemoryStore, MemoryAgent, MemoryStore, load_policy
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.chat.text import format_call
from memalpha.types import Chunk, Completion

TALK = "Tom: I live in Rome.\nIt rained.\nTom: My dog is called Rex."


@pytest.fixture
def store():
    with MemoryStore.open(":memory:") as memory:
        yield memory


def contents(memory: MemoryStore) -> list[str]:
    return [entry.content for entry in memory.list()]


def test_an_endpoint_by_its_name_writes_and_answers(store):
    call = {"name": "memory_insert", "arguments": '{"category": "semantic", "content": "Tom lives in Rome."}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": call}]}
    with HostileServer(reply=lambda prompt, body: message if "tools" in body else "Rome") as server:
        agent = MemoryAgent(server.name, store)
        assert [operation.content for operation in agent.stream(TALK)] == ["Tom lives in Rome."]
        assert agent.ask("Where does Tom live?").text == "Rome"
        assert "Tom lives in Rome." in server.bodies[-1]["messages"][-1]["content"]


def test_a_store_that_is_none_is_refused(store):
    with pytest.raises(ConfigError, match="a MemoryStore is needed, not str"):
        MemoryAgent("add_all", "ana.db")  # type: ignore[arg-type]

    async def with_another() -> None:
        async with await AsyncMemoryStore.open(":memory:") as memory:
            MemoryAgent("add_all", memory)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"not AsyncMemoryStore .*aread"):
        asyncio.run(with_another())


class Counting:
    """Writes the number of the chunk and what it says; counts how often it was asked, and by which threads."""

    name = "counting"

    def __init__(self) -> None:
        self.asked = 0
        self.threads: set[int] = set()

    def sample(self, requests):
        self.asked += 1
        self.threads.add(threading.get_ident())
        lines = [f"{self.asked}: {line}" for line in requests[0].observation.chunk.render().splitlines()]
        calls = [format_call("memory_insert", {"category": "semantic", "content": line}) for line in lines]
        return [Completion(format_call("memory_delete", {"id": "none#a"}) + "".join(calls))]

    def count_tokens(self, text):
        return len(text)


def test_operations_come_as_they_happen(tmp_path):
    """Each is on disk when it is yielded, none before, and the next chunk is not read before the last is done."""
    policy, path = Counting(), tmp_path / "a.db"
    with MemoryStore.open(path) as memory, MemoryStore.open(path) as beside:
        agent = MemoryAgent(policy, memory)
        seen = []
        for number, operation in enumerate(agent.stream(["a\nb", Chunk(text="c", timestamp="2024-05-02")], source="s")):
            assert contents(beside)[-1] == operation.content and len(contents(beside)) == number + 1
            assert policy.asked == (1 if number < 2 else 2)
            seen.append((operation.content, operation.source, operation.timestamp, operation.chunk))
        assert seen == [("1: a", "s", None, 0), ("1: b", "s", None, 0), ("2: c", "s", "2024-05-02", 0)]


def test_who_stops_listening_stops_the_reading(store):
    policy = Counting()
    for _ in MemoryAgent(policy, store).stream(["a\nb", "c"]):
        break
    assert contents(store) == ["1: a"] and policy.asked == 1


def test_a_long_text_is_cut(store):
    lines = [f"Line {number} of a long story." for number in range(400)]
    done = list(MemoryAgent("add_all", store).stream("\n".join(lines), timestamp="2024-05-01"))
    assert [operation.content for operation in done] == lines == contents(store)
    assert len({operation.chunk for operation in done}) > 1 and {operation.timestamp for operation in done} == {
        "2024-05-01"
    }
    assert list(MemoryAgent("add_all", store).stream(" \n")) == []


def test_awaited_reads_happen_in_order_and_off_the_loop(store):
    policy = Counting()
    agent = MemoryAgent(policy, store)

    async def go():
        turns = await asyncio.gather(*(agent.aread(f"x{number}") for number in range(8)))
        told = [operation.content async for operation in agent.astream("long")]

        async def talk():
            for word in ("p", "q"):
                await asyncio.sleep(0)
                yield word

        told += [operation.content async for operation in agent.astream(talk(), source="live")]
        return turns, told

    turns, told = asyncio.run(go())
    assert [turn.operations[0].content for turn in turns] == [f"{number + 1}: x{number}" for number in range(8)]
    assert told == ["9: long", "10: p", "11: q"] and store.list()[-1].source == "live"
    assert len(policy.threads) == 1 and threading.get_ident() not in policy.threads


def test_a_question_is_awaited(store):
    store.insert("semantic", "Ana's city: Porto")
    assert asyncio.run(MemoryAgent("add_all", store).aask("What is Ana's city?")).text == "Porto"


def run_directory(folder: Path, *steps: int, best: int | None = None) -> Path:
    """A run's checkpoints, each the shipped tiny policy."""
    shipped = Path(__file__).parents[2] / "memalpha" / "weights" / "tiny"
    (folder / "checkpoints").mkdir(parents=True)
    for step in steps:
        (folder / "checkpoints" / f"step-{step}").symlink_to(shipped)
    if best is not None:
        (folder / "checkpoints" / "best").symlink_to(f"step-{best}")
    return folder


def test_a_run_directory_stands_for_its_best_checkpoint(store, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    loaded = []
    from memalpha.policy.transformers import TransformersPolicy

    load = TransformersPolicy.from_pretrained
    monkeypatch.setattr(
        TransformersPolicy, "from_pretrained", lambda path, **more: loaded.append(Path(path).name) or load(path, **more)
    )
    run = run_directory(tmp_path / "run", 5, 10, best=5)
    agent = MemoryAgent(run, store)
    agent.read("Nice weather.")
    assert loaded == ["best"] and agent.policy.name == str(run)
    load_policy(run_directory(tmp_path / "unvalidated", 9, 10))
    assert loaded == ["best", "step-10"]


def test_a_run_without_what_it_names_is_refused(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(PolicyError, match="run directory without a checkpoint yet"):
        load_policy(run_directory(tmp_path / "new"))
    with pytest.raises(PolicyError, match=r"best names step-3, which is not there"):
        load_policy(run_directory(tmp_path / "gone", best=3))
