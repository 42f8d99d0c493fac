"""OpenAI client with memory against a server on a real socket: requests, stored exchanges, failures."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest
from standin import StandIn

from memalpha import MemoryAgent, MemoryStore
from memalpha.errors import ConfigError, PolicyError, StoreError
from memalpha.integrations.openai import client as openai_
from memalpha.integrations.openai.client import with_memory
from memalpha.types import Completion

openai = pytest.importorskip("openai")
NOW = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)


class RecordingPolicy:
    """Policy that records the texts it reads."""

    name = "hearing"

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.error: Exception | None = None

    def sample(self, requests):
        if self.error is not None:
            raise self.error
        self.heard += [request.observation.chunk.render() for request in requests]
        return [Completion("") for _ in requests]

    def count_tokens(self, text):
        return len(text)


@pytest.fixture
def store():
    with MemoryStore.open(":memory:") as memory:
        yield memory


@pytest.fixture
def server():
    with StandIn(lambda body: "I see your point.") as stand_in:
        yield stand_in


def client_of(server: StandIn, memory, **more):
    plain = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
    return with_memory(plain, memory, clock=lambda: NOW, **more)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_exchanges_are_stored_and_become_notes(server, store):
    client = client_of(server, store, source="chat-7")
    assert isinstance(client, openai.OpenAI)
    answer = client.chat.completions.create(model="m", messages=[user("I live in Porto.")])
    assert answer.choices[0].message.content == "I see your point."
    assert server.bodies[0]["messages"] == [user("I live in Porto.")]  # there were no notes to add
    [entry] = store.list()
    assert (entry.content, entry.source, entry.timestamp) == ("I live in Porto.", "chat-7", "2024-05-01T12:30+00:00")
    messages = [{"role": "developer", "content": "Be kind."}, user("Where do I live?")]
    client.chat.completions.create(model="m", messages=messages)
    first, notes, last = server.bodies[1]["messages"]
    assert [first, last] == messages and notes["role"] == "developer"
    assert notes["content"].splitlines()[1:] == ["- I live in Porto. (2024-05-01T12:30+00:00)"]
    assert len(messages) == 2


def test_only_new_messages_are_stored_and_no_note_repeats_the_request(server, store):
    policy = RecordingPolicy()
    client = client_of(server, MemoryAgent(policy, store))
    store.insert("semantic", "I live in Porto.")
    talk = [user("Hello."), {"role": "assistant", "content": "Hi!"}, user("I live in Porto."), user("And you?")]
    client.chat.completions.create(model="m", messages=iter(talk))
    assert policy.heard == ["user: I live in Porto.\nuser: And you?\nassistant: I see your point."]
    assert server.bodies[0]["messages"] == talk
    image = {"type": "image_url", "image_url": {"url": "x"}}
    client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "Look:"}, image]}]
    )
    assert policy.heard[-1].startswith("user: Look:\nassistant:")


def test_notes_go_into_every_request_of_a_tool_loop_and_each_text_is_read_once(store):
    store.insert("semantic", "The user's time zone is Lisbon's.")
    call = {"id": "t", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    policy = RecordingPolicy()
    with StandIn(lambda body: "It is noon." if body["messages"][-1]["role"] == "tool" else asking) as server:
        client = client_of(server, MemoryAgent(policy, store))
        messages = [user("What time is it?")]
        reply = client.chat.completions.create(model="m", messages=messages).choices[0].message
        messages += [reply, {"role": "tool", "tool_call_id": "t", "content": "12:00"}]
        client.chat.completions.create(model="m", messages=messages)
    assert policy.heard == ["user: What time is it?", "assistant: It is noon."]
    for body in server.bodies:
        notes, *rest = body["messages"]
        assert notes["role"] == "system" and "- The user's time zone is Lisbon's." in notes["content"]
        assert [message["role"] for message in rest] == ["user", "assistant", "tool"][: len(rest)]
    assert [len(body["messages"]) for body in server.bodies] == [2, 4]


def test_notes_accompany_a_tool_result_with_the_users_text(server, store):
    store.insert("semantic", "Ana lives in Porto.")
    policy = RecordingPolicy()
    client = client_of(server, MemoryAgent(policy, store))
    call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "x", "output": "12:00"}
    client.responses.create(model="m", input=[user("Where does Ana live?"), call, output])
    assert server.bodies[0]["instructions"].endswith("- Ana lives in Porto.")
    client.responses.create(model="m", input=[output], previous_response_id="r")  # no text of the user
    assert "instructions" not in server.bodies[1]
    assert policy.heard == ["assistant: I see your point."] * 2


def test_responses_take_notes_as_instructions(server, store):
    store.insert("semantic", "Ana lives in Porto.")
    store.core_update("Ana is a baker.")
    client = client_of(server, store)
    answer = client.responses.create(model="m", input="Where does Ana live?", instructions="Be kind.")
    assert answer.output_text == "I see your point."
    request = server.bodies[0]
    assert request["input"] == "Where does Ana live?" and request["instructions"].startswith("Be kind.\n\nNotes from")
    assert request["instructions"].splitlines()[-2:] == ["- Ana is a baker.", "- Ana lives in Porto."]
    client.responses.create(
        model="m",
        input=[
            user("Old."),
            {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
            {"role": "user", "content": [{"type": "input_text", "text": "I like tea."}]},
        ],
    )
    assert [entry.content for entry in store.list()][1:] == ["Where does Ana live?", "I like tea."]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_stream_is_recorded_when_it_ends(server, store, api):
    policy = RecordingPolicy()
    client = client_of(server, MemoryAgent(policy, store))
    stream = ask(client, api, stream=True)
    for _ in stream:
        assert policy.heard == []
    assert policy.heard == ["user: I like tea.\nassistant: I see your point. "]
    with ask(client, api, stream=True) as stream:
        assert stream.response.status_code == 200
        next(event for event in stream if "I " in (event.choices[0].delta.content if api == "chat" else str(event)))
    assert policy.heard[1:] == ["user: I like tea.\nassistant: I "]  # the text so far
    stream.close()
    assert len(policy.heard) == 2


def ask(client, api, **more):
    if api == "chat":
        return client.chat.completions.create(model="m", messages=[user("I like tea.")], **more)
    return client.responses.create(model="m", input="I like tea.", **more)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_interrupted_stream_is_not_recorded(store, api):
    policy = RecordingPolicy()
    with StandIn(lambda body: "I see your point.", cut=2) as server:
        client = client_of(server, MemoryAgent(policy, store))
        with pytest.raises(openai.APIConnectionError), ask(client, api, stream=True) as stream:
            list(stream)
    assert policy.heard == []


def test_parse_raw_responses_and_copied_clients(server, store):
    policy = RecordingPolicy()
    client = client_of(server, MemoryAgent(policy, store)).with_options(timeout=5)
    messages = [user("I like tea.")]
    client.chat.completions.parse(model="m", messages=messages)
    client.beta.chat.completions.create(model="m", messages=messages)
    with client.chat.completions.stream(model="m", messages=messages) as stream:
        assert stream.get_final_completion()
    with client.responses.stream(model="m", input="I like tea.") as stream:
        stream.until_done()
    client.responses.parse(model="m", input="I like tea.")
    raw = client.chat.completions.with_raw_response.create(model="m", messages=messages)
    assert raw.headers["content-type"] == "application/json" and raw.parse().choices
    assert [line.strip() for line in policy.heard] == ["user: I like tea.\nassistant: I see your point."] * 6
    with (
        pytest.raises(ConfigError, match="cannot be recorded"),
        client.chat.completions.with_streaming_response.create(model="m", messages=messages),
    ):
        pass


def test_the_original_client_is_unchanged(server, store):
    plain = openai.OpenAI(base_url=server.url, api_key="k")
    with_memory(plain, store)
    plain.chat.completions.create(model="m", messages=[user("I like tea.")])
    assert store.list() == []


def test_scopes_do_not_see_each_other(server, store):
    ana, tom = (client_of(server, store.namespace(name)) for name in ("ana", "tom"))
    ask(ana, "chat")
    tom.chat.completions.create(model="m", messages=[user("What do I like?")])
    assert len(server.bodies[-1]["messages"]) == 1
    ana.chat.completions.create(model="m", messages=[user("What do I like?")])
    assert "I like tea." in server.bodies[-1]["messages"][0]["content"]


def test_a_failing_memory_loses_no_answer(server, store, caplog):
    policy = RecordingPolicy()
    policy.error = PolicyError("the writer is away")
    client = client_of(server, MemoryAgent(policy, store))
    for _ in range(2):
        with caplog.at_level(logging.ERROR, "memalpha"):
            assert ask(client, "chat").choices
    assert [record.getMessage() for record in caplog.records] == [
        "memory: an exchange was not stored: PolicyError: the writer is away"
    ] * 2
    with pytest.raises(PolicyError, match="away") as failure:
        ask(client_of(server, MemoryAgent(policy, store), errors="raise"), "chat")
    assert failure.value.answer.choices[0].message.content == "I see your point."


@pytest.mark.parametrize("kind", [ValueError, OSError, RuntimeError])
def test_no_exception_type_loses_an_answer(server, store, caplog, monkeypatch, kind):
    policy = RecordingPolicy()
    policy.error = kind("its own bug")
    client = client_of(server, MemoryAgent(policy, store))
    with caplog.at_level(logging.ERROR, "memalpha"):
        assert ask(client, "chat").choices and list(ask(client, "responses", stream=True))

        async def talk():
            async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as plain:
                return await ask(with_memory(plain, MemoryAgent(policy, store)), "chat")

        assert asyncio.run(talk()).choices
    reason = f"policy 'hearing' raised {kind.__name__}: its own bug"
    message = f"memory: an exchange was not stored: PolicyError: {reason}"
    assert [record.getMessage() for record in caplog.records] == [message] * 3
    assert all(record.exc_info and isinstance(record.exc_info[1].__cause__, kind) for record in caplog.records)
    with pytest.raises(PolicyError, match="its own bug") as failure:
        ask(client_of(server, MemoryAgent(policy, store), errors="raise"), "chat")
    assert failure.value.answer.choices[0].message.content == "I see your point."

    def fail(*arguments, **more):
        raise kind("no disk")

    monkeypatch.setattr(MemoryStore, "search", fail)
    caplog.clear()
    with caplog.at_level(logging.ERROR, "memalpha"):
        assert ask(client_of(server, store), "chat").choices
    assert f"the request is sent without notes: {kind.__name__}: no disk" in caplog.text


def test_an_answer_with_missing_parts_is_returned(server, store, caplog, monkeypatch):
    def no_text(result):
        raise AttributeError("no message")

    for form in (openai_._Chat, openai_._Responses):
        monkeypatch.setattr(form, "answer", staticmethod(no_text))
        monkeypatch.setattr(form, "delta", staticmethod(no_text))
    client = client_of(server, store)
    with caplog.at_level(logging.ERROR, "memalpha"):
        for api in ("chat", "responses"):
            assert ask(client, api).id and list(ask(client, api, stream=True))
    assert [record.getMessage() for record in caplog.records] == [
        "memory: an exchange was not stored: AttributeError: no message"
    ] * 4


def test_a_memory_that_cannot_be_read_is_logged(server, store, caplog, monkeypatch):
    def fail(*arguments, **more):
        raise StoreError("damaged")

    monkeypatch.setattr(MemoryStore, "search", fail)
    with pytest.raises(StoreError, match="damaged"):
        ask(client_of(server, store, errors="raise"), "chat")
    assert server.bodies == []
    with caplog.at_level(logging.ERROR, "memalpha"):
        assert ask(client_of(server, store), "chat").choices
    assert "the request is sent without notes: StoreError: damaged" in caplog.text


def test_other_objects_than_clients_are_refused(store):
    with pytest.raises(ConfigError, match="OpenAI or AsyncOpenAI client is needed, not str"):
        with_memory("client", store)
    with pytest.raises(ConfigError, match="use log or raise"):
        with_memory(openai.OpenAI(api_key="k"), store, errors="ignore")  # type: ignore[arg-type]


def test_the_async_client(server, store):
    policy = RecordingPolicy()

    async def talk():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as plain:
            client = with_memory(plain, MemoryAgent(policy, store))
            assert (await ask(client, "chat")).choices and (await ask(client, "responses")).output_text
            for api in ("chat", "responses"):
                async for _ in await ask(client, api, stream=True):
                    pass
            async with await ask(client, "chat", stream=True) as stream:
                await anext(stream)
            async with client.chat.completions.stream(model="m", messages=[user("I like tea.")]) as stream:
                await stream.until_done()
            await client.with_options(timeout=5).chat.completions.with_raw_response.create(
                model="m", messages=[user("I like tea.")]
            )
            policy.error = PolicyError("away")
            with pytest.raises(PolicyError, match="away"):
                await ask(with_memory(plain, MemoryAgent(policy, store), errors="raise"), "chat")

    asyncio.run(talk())
    exchange = "user: I like tea.\nassistant: I see your point."
    assert [line.strip() for line in policy.heard] == [exchange] * 4 + ["user: I like tea.\nassistant: I"] + [
        exchange
    ] * 2
