"""What a writer is shown, what its reply does, and that many rollouts at once are the same as one by one."""

from datetime import datetime

import pytest
from fake_policy import FakePolicy
from hypothesis import example, given
from hypothesis import strategies as st
from memories import working_memory

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.prompts import CORE_CUT, observe, render_view
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, DataError, InvalidContent
from memalpha.policy.chat.text import format_call
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.schema import load_schema
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Completion

CONFIG = AgentConfig(prompt="compact", embedder="hash", view_related=2, view_recent=3)
FACTS = ["city: Oslo", "pet: cat", "job: nurse", "car: Volvo", "book: Dune", "band: Blur"]


WORDS = st.lists(st.text("abcé", min_size=1, max_size=15), max_size=300).flatmap(
    lambda words: st.sampled_from([" ", "\n", "  \n"]).map(lambda gap: gap.join(words))
)
COUNTS = {"characters": len, "bytes": lambda text: len(text.encode()), "words": lambda text: len(text.split())}


@pytest.mark.parametrize("style", ["compact", "full"])
@given(budget=st.integers(1, 1200), core=WORDS, count=st.sampled_from(list(COUNTS)))
@example(budget=1, core="Ana", count="characters")
@example(budget=1024, core=" ".join(["abcdefghijklmno"] * 300), count="bytes")
def test_view_keeps_the_budget_whatever_the_core_memory(style, budget, core, count):
    target = working_memory(*FACTS)
    target.core_update(core)
    config = CONFIG.model_copy(update={"view_tokens": budget, "prompt": style})
    seen = observe(target, Chunk(text="my pet"), config, COUNTS[count])
    size = COUNTS[count](render_view(seen.core, seen.entries, style))
    assert size <= max(budget, COUNTS[count](render_view(CORE_CUT, (), style)))
    if budget >= 700 and count != "words":
        assert seen.entries and "pet: cat" in [entry.content for entry in seen.entries]
    kept, cut, _ = seen.core.partition(CORE_CUT)
    assert seen.core == target.core or (cut and target.core.startswith(kept.rstrip()) and len(target.core) > 3)
    assert not cut or target.core[len(kept.rstrip()) :][:1].isspace() or len(kept.split()) <= 1


def test_a_core_memory_is_cut_after_a_line_or_else_a_word():
    target = working_memory(*FACTS)
    config = CONFIG.model_copy(update={"view_tokens": 400, "prompt": "full"})
    for gap, word in (("\n", "one two three"), (" ", "four-five")):
        target.core_update(gap.join([word] * 60))
        kept = observe(target, Chunk(text="my pet"), config, len).core.removesuffix(CORE_CUT)
        assert kept and set(kept.strip().split(gap)) == {word}


def script(*texts: str, prompt: str = "full") -> FakePolicy:
    """A policy that replies with given texts in turn."""
    remaining = list(texts)
    return FakePolicy(lambda _: remaining.pop(0), "script", prompt)


def test_an_id_with_the_brackets_of_the_view_and_a_category_in_other_case_are_understood():
    store = MemoryStore.open(":memory:", embedder="hash")
    city, key = store.insert("semantic", "city: Rome"), store.upsert("[x]", "pet: cat").id
    calls = (
        ("memory_update", {"id": f" [{city.id}]", "content": "city: Porto"}),
        ("memory_delete", {"id": key}),
        ("memory_delete", {"id": "[]"}),
        ("memory_insert", {"category": "Episodic ", "content": "moved"}),
    )
    turn = MemoryAgent(script("".join(format_call(*call) for call in calls)), store).read("I moved to Porto.")
    assert [result.code for result in turn.results] == ["updated", "deleted", "unknown_id", "inserted"]
    assert {entry.content: entry.category for entry in store.list()} == {"city: Porto": "semantic", "moved": "episodic"}


def test_metadata_of_a_read_stand_beside_what_an_entry_has():
    store = MemoryStore.open(":memory:", embedder="hash")
    entry = store.insert("semantic", "Ana lives in Rome", metadata={"topic": "home", "user": "?"})
    reply = "".join(
        format_call(name, arguments)
        for name, arguments in (
            ("memory_update", {"id": entry.id, "content": "Ana lives in Porto"}),
            ("memory_insert", {"category": "semantic", "content": "Ana has a dog"}),
        )
    )
    agent = MemoryAgent(ScriptedPolicy("fixed", text=reply), store)
    agent.read("I moved to Porto. I have a dog.", metadata={"user": "ana"})
    assert [dict(kept.metadata) for kept in store.list()] == [{"topic": "home", "user": "ana"}, {"user": "ana"}]
    with pytest.raises(InvalidContent, match="metadata"):
        agent.read("Hello.", metadata={"user": object()})
    assert agent.chunks_read == 1, "nothing is asked for what cannot be stored"


@pytest.mark.parametrize("fact", [{"category": "semantic"}, {"category": "episodic"}])
def test_a_fact_of_two_users_is_two_entries_and_read_again_one(fact):
    store = MemoryStore.open(":memory:", embedder="hash")
    reply = format_call("memory_insert", {**fact, "content": "Likes tea."})
    for user, code in (("ana", "inserted"), ("ben", "inserted"), ("ana", "duplicate")):
        agent = MemoryAgent(ScriptedPolicy("fixed", text=reply), store)
        assert [result.code for result in agent.read("I like tea.", metadata={"user": user}).results] == [code]
    assert [store.count(where={"user": user}) for user in ("ana", "ben")] == [1, 1]


def test_a_chunk_whose_timestamp_is_no_date_is_the_callers_mistake():
    policy = script()
    with pytest.raises(InvalidContent, match="'May 1st' is no ISO 8601"):
        MemoryAgent(policy, working_memory(), CONFIG).read("I moved to Rome.", timestamp="May 1st")
    assert policy.batches == []


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"memory_schema": "mem-alpha"}, "memory_schema: the store has schema 'life'"),
        ({"embedder": "static"}, "embedder: the store was made with 'hash'"),
    ],
)
@pytest.mark.parametrize("durable", [False, True])
def test_the_store_decides_its_schema_and_embedder(named, says, durable):
    life = load_schema("life")
    store = MemoryStore.open(":memory:", life, "hash") if durable else working_memory(schema=life)
    with pytest.raises(ConfigError, match=says):
        MemoryAgent(ScriptedPolicy("add-all"), store, AgentConfig(**named))
    own = AgentConfig(memory_schema="life", embedder="hash")
    for config in (None, AgentConfig(view_recent=3), own):
        policy = script(format_call("memory_insert", {"category": "values", "content": f"honesty {config}"}))
        agent = MemoryAgent(policy, store, config)
        assert [result.code for result in agent.read("I value honesty.").results] == ["inserted"]
        [[asked]] = policy.batches
        assert "psychological_defense" in asked.messages[0]["content"]
        category = asked.tools[0]["function"]["parameters"]["properties"]["category"]
        assert category["enum"] == list(life.category_names)


@pytest.mark.parametrize("backend", ["state", "store"])
def test_what_was_changed_since_it_was_shown_is_not_changed_by_a_proposal(backend):
    class Fixed(ScriptedPolicy):
        def sample(self, requests):
            calls = [
                ("memory_update", {"id": ids[0], "content": "Ana lives in Faro."}),
                ("memory_update", {"id": ids[1], "content": "Tom has two dogs."}),
                ("memory_update", {"id": ids[1], "content": "Tom has three dogs."}),
                ("memory_delete", {"id": ids[2]}),
                ("memory_delete", {"id": ["no id"]}),
                ("core_memory_update", {"content": "the writer's"}),
            ]
            return [Completion("".join(format_call(*call) for call in calls)) for _ in requests]

    memory = MemoryStore.open(":memory:", embedder="hash") if backend == "store" else working_memory()
    ids = [memory.insert("semantic", text).id for text in ("Ana lives in Porto.", "Tom has a dog.", "Eva sings.")]
    agent = MemoryAgent(Fixed("add-all"), memory)
    proposal = agent.propose("Ana: Faro it is.")
    assert memory.list()[0].content == "Ana lives in Porto.", "nothing is written yet"
    memory.update(ids[0], "Ana lives in Oslo.")
    memory.delete(ids[2])
    memory.core_update("the user's")
    turn = agent.apply(proposal, source="chat")
    codes = [result.code for result in turn.results]
    assert codes == ["conflict", "updated", "updated", "unknown_id", "invalid_arguments", "conflict"]
    assert [entry.content for entry in memory.list()] == ["Ana lives in Oslo.", "Tom has three dogs."]
    assert memory.core == "the user's" and {op.source for op in turn.operations} == {"chat"}
    again = agent.read("Ana: Faro it is.")
    assert again.results[0].code == "updated" and again.results[-1].code == "core_updated"


MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "I live in Porto."}], "timestamp": "2024-05-01"},
    {"role": "assistant", "content": "A fine city."},
    {"role": "user", "content": "I have a dog.", "timestamp": "2024-05-03"},
]


def test_every_message_of_a_day_keeps_its_time_without_a_model():
    times = ("2024-05-01T09:00", "2024-05-01T09:00+02:00", "2024-05-01T18:30", None)
    messages = [{"role": "user", "content": "Ok.", **({"timestamp": time} if time else {})} for time in times]
    store = MemoryStore.open(":memory:", embedder="hash")
    MemoryAgent("add_all", store).read([*messages, {"role": "user", "content": "Good night."}])
    assert [(entry.content, entry.timestamp) for entry in store.list()] == [
        *(("Ok.", time) for time in times[:3]),
        ("Good night.", times[2]),
    ]


@pytest.mark.parametrize("odd", ["a\0b", "half \ud800"])
def test_what_no_memory_takes_is_refused_before_anything_is_written(odd: str):
    store = MemoryStore.open(":memory:", embedder="hash")
    agent = MemoryAgent("add_all", store)
    texts = ("Ana: Hello.", f"Ana: {odd}")
    for text in ("\n".join(texts), [{"role": "user", "content": text} for text in texts]):
        with pytest.raises((InvalidContent, DataError), match="holds"):
            agent.read(text)
    assert store.list() == []


def test_chat_messages_are_read_and_streamed():
    store = MemoryStore.open(":memory:", embedder="hash")
    agent = MemoryAgent("add_all", store)
    agent.read("Tom: Hello.")
    turn = agent.read(MESSAGES, source="chat-7")
    assert [(entry.content, entry.timestamp, entry.chunk, entry.source) for entry in store.list()[1:]] == [
        ("I live in Porto.", "2024-05-01", 1, "chat-7"),
        ("I have a dog.", "2024-05-03", 2, "chat-7"),
    ]
    assert len(turn.calls) == len(turn.results) == len(turn.operations) == 2 and turn.chunk == 2
    streamed = MemoryAgent("add_all", MemoryStore.open(":memory:", embedder="hash")).stream(MESSAGES)
    assert [operation.content for operation in streamed] == ["I live in Porto.", "I have a dog."]
    with pytest.raises(DataError, match=r"messages\[0\]\.content: is missing"):
        agent.read([{"role": "user"}])
    for nothing, says in (([], "^the list of messages is empty: "), ({"role": "user"}, "^"), (None, "^")):
        with pytest.raises(DataError, match=f"{says}a text, a Chunk or a list of chat messages is needed"):
            agent.read(nothing)
    with pytest.raises(InvalidContent, match=r"text is needed, not list; MemoryAgent.* takes chat messages"):
        store.add(MESSAGES)
    with pytest.raises(InvalidContent, match=r"expires: text is needed, not datetime; give its isoformat\(\)"):
        store.add("A day", expires=datetime(2030, 1, 1))
    with pytest.raises(DataError, match="no words of a user"):
        agent.read([{"role": "system", "content": "Be kind."}])
