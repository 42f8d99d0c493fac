"""Sessions of the OpenAI Agents SDK: the SDK's protocol, and its runner over real HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest
from standin import StandIn

from memalpha import MemoryStore
from memalpha.errors import InvalidContent, StoreError
from memalpha.integrations.agents_session import MemorySession


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def reply(text: str) -> dict:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": parts}


CALL = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "12:00\x00\ud800"}


def test_items_round_trip(store):
    items = [user("Hello."), reply("Hello."), user("Hello."), CALL, OUTPUT, user(""), user("Hello.")]
    session = MemorySession("7", store)

    async def go():
        await session.add_items(items[:2])
        await session.add_items([])
        await session.add_items(items[2:])
        assert await session.get_items() == items
        assert await session.get_items(limit=2) == items[-2:]
        assert await session.get_items(limit=0) == [] and await session.get_items(limit=99) == items
        assert await MemorySession("8", store).get_items() == []
        assert await session.pop_item() == items[-1]
        await session.add_items([user("Bye.")])
        assert await session.get_items() == [*items[:-1], user("Bye.")]
        await session.clear_session()
        assert await session.get_items() == [] and await session.pop_item() is None
        await session.add_items([user("Again."), user("Hello.")])
        assert await MemorySession("7", store).get_items() == [user("Again."), user("Hello.")]

    asyncio.run(go())
    assert store.list() == [] and store.namespaces() == ["session:7"]
    ana, bo = (MemorySession("7", store.namespace(name)) for name in ("ana", "bo"))
    asyncio.run(ana.add_items([user("A secret.")]))
    assert asyncio.run(bo.get_items()) == [] and store.namespaces()[0] == "ana/session:7"


@pytest.mark.parametrize("session_id", [None, "", 7, "\ud800"])
def test_sessions_without_an_id_are_not_one(store, session_id):
    with pytest.raises(StoreError, match=r"session_id .*: a non-empty text is needed"):
        MemorySession(session_id, store)


@pytest.mark.parametrize("limit", [1000, 40])
@pytest.mark.parametrize("item", [user("needle " + "é" * 700), {**OUTPUT, "output": "needle " + "x " * 600}])
def test_items_of_any_size_are_kept_whole_and_found(item, limit):
    with MemoryStore.open(":memory:", embedder="hash", max_content=limit) as store:
        session = MemorySession("7", store)
        between = [reply(f"Bye {number}.") for number in range(6)]
        items = [user("Hello."), item, *between, item, *between]
        asyncio.run(session.add_items(items))
        assert asyncio.run(session.get_items()) == items
        if limit > 40:
            assert {hit.entry.turn for hit in session.store.search("needle", k=2)} == {"000002", "000009"}
        assert all(len(entry.content.encode()) <= limit for entry in session.store.list())


def test_items_are_entries(store):
    session = MemorySession("7", store)
    asyncio.run(session.add_items([user("I live in Porto."), reply("Nice."), user("My dog is called Rex."), CALL]))
    inside = store.namespace("session:7")
    assert [(entry.content, entry.category, entry.source, entry.turn) for entry in inside.list()][:2] == [
        ("user: I live in Porto.", "episodic", "7", "000001"),
        ("assistant: Nice.", "episodic", "7", "000002"),
    ]
    assert inside.search("What is the dog called?")[0].entry.content == "user: My dog is called Rex."
    asyncio.run(session.pop_item())
    inside.undo()
    assert asyncio.run(session.get_items(1)) == [CALL]


def test_all_items_or_none(store):
    session = MemorySession("7", store)
    with pytest.raises(InvalidContent, match="JSON"):
        asyncio.run(session.add_items([user("one"), {"role": "user", "content": "two", "x": {1}}]))
    with pytest.raises(StoreError, match=r"items .*: a list of items is needed"):  # its keys would be the items
        asyncio.run(session.add_items(user("one")))  # pyright: ignore[reportArgumentType]
    assert asyncio.run(session.get_items()) == []


def test_concurrent_sessions_of_one_id_lose_no_items(tmp_path):
    async def go():
        await asyncio.gather(
            *(MemorySession("7", first_store if number % 2 else two).add_items([user("ok")]) for number in range(10))
        )
        return await MemorySession("7", first_store).get_items()

    with MemoryStore.open(tmp_path / "a.db") as first_store, MemoryStore.open(tmp_path / "a.db") as two:
        assert asyncio.run(go()) == [user("ok")] * 10


def test_the_sdk_runs_with_a_session(store):
    """Two runs of the SDK's runner: the second sends the messages of the first, up to the SDK's limit."""
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    from agents.memory import Session, SessionSettings

    session = MemorySession("7", store)
    assert isinstance(session, Session)
    agents.set_tracing_disabled(True)

    async def talk(url, session, *lines):
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            model = agents.OpenAIChatCompletionsModel("m", client)
            agent = agents.Agent(name="a", instructions="Be kind.", model=model)
            return [(await agents.Runner.run(agent, line, session=session)).final_output for line in lines]

    def answer(body):
        return "You live in Porto." if "Porto" in json.dumps(body["messages"][:-1]) else "I see."

    with StandIn(answer) as server:
        answers = asyncio.run(talk(server.url, session, "I live in Porto.", "Where do I live?"))
        assert answers == ["I see.", "You live in Porto."] and len(asyncio.run(session.get_items())) == 4
        short = MemorySession("7", store, session_settings=SessionSettings(limit=1))
        assert asyncio.run(talk(server.url, short, "And you?")) == ["You live in Porto."]
    assert [message["role"] for message in server.bodies[-1]["messages"]] == ["system", "assistant", "user"]
