"""Entries of a small writer in the words of what it read."""

from __future__ import annotations

import pytest
from fake_policy import FakePolicy
from hypothesis import given
from hypothesis import strategies as st

from memalpha import MemoryAgent, MemoryStore
from memalpha.agent.quoting import NOTE, quote_chunk, show_notes
from memalpha.agent.reader import QuotingReader
from memalpha.types import Chunk, Observation, SampleRequest, SpeakerTurn, ToolCall, ViewEntry

VET = "i learned the vet's number by heart, 903 555 0142"


def quoted(content: str, chunk: Chunk) -> str | None:
    [call], notes = quote_chunk([ToolCall("memory_insert", {"category": "semantic", "content": content})], chunk, {})
    assert call.error in (None, "invalid_content") and call.arguments["category"] == "semantic"
    assert notes == [content] or (notes == [None] and call.arguments["content"] == content)
    return None if call.error else call.arguments["content"]


@pytest.mark.parametrize(
    ("content", "text", "expected"),
    [
        ("pet age: 903 555 0142", f"senko ate a whole stick of butter today. {VET}", VET),
        (
            "city: Porto",
            "Ana: I moved to Porto only last week.\nAna: It is warm.",
            "Ana: I moved to Porto only last week.",
        ),
        ("dentist: 8:50", "dentist on tuesday at 9:30... no wait, 8:50", "dentist on tuesday at 9:30... no wait, 8:50"),
        ("dog: Rex", "Yes! Rex. He is a dog, and that is it", "Yes! Rex. He is a dog, and that is it"),
        ("city: Porto", "assistant: Is it Porto?\nuser: yes", "city: Porto"),  # an assistant is not quoted
        ("pets: two cats, a dog", "two cats", "two cats"),
        ("pets: two cats, dog", "a dog", "pets: two cats, dog"),
        ("pets: two cats, dog", "a bird", None),
        ("她: 北京", "我住在北京。天气很好。我们明天去公园。", "我住在北京。"),
        ("", "nothing", None),
    ],
)
def test_the_sentence_with_the_value(content, text, expected):
    assert quoted(content, Chunk(text=text)) == expected


def test_turns_keep_their_speakers():
    turns = (SpeakerTurn(speaker="Ben", text="Rach is 39, at last. See you"), SpeakerTurn(speaker="user", text="ok"))
    assert quoted("age: 39", Chunk(turns=turns)) == "Ben: Rach is 39, at last. See you"


@given(st.text(max_size=60), st.text(max_size=60))
def test_what_is_written_stands_in_the_chunk(content, text):
    chunk = Chunk(turns=(SpeakerTurn(speaker="user", text=text or "-"),))
    result = quoted(content, chunk)
    assert result in (None, content) or "".join(result.split()) in "".join(text.split())


def test_other_calls_stay():
    calls = (
        ToolCall("memory_delete", {"id": "m1"}),
        ToolCall("core_memory_update", {"content": "rich"}),
        ToolCall("", error="malformed", raw="?"),
    )
    assert quote_chunk(calls, Chunk(text="poor"), {}) == (calls, [None] * 3)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("quotes", [False, True])
def test_an_agent_quotes_for_a_policy_that_asks_for_it(quotes, streams):
    policy = FakePolicy(lambda request: "+semantic pet age: 903 555 0142\n+semantic pet: cat", prompt="compact")
    policy.form, policy.sizes, policy.quotes = "lines", {}, quotes
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent(policy, store)
        if streams:
            assert len(list(agent.stream(VET))) == 2 - quotes
        else:
            turn = agent.read(VET)
            messages = [result.message for result in turn.results if not result.ok]
            assert messages == ["the chunk does not say this"] * quotes and turn.problems == ()
        expected = [VET] if quotes else ["pet age: 903 555 0142", "pet: cat"]
        assert [entry.content for entry in store.list()] == expected


@pytest.mark.parametrize("trait", [{"form": "lines"}, {"sizes": {"view_tokens": 64}}, {"quotes": True}])
def test_each_trait_of_a_policy_counts_without_the_others(trait):
    policy = FakePolicy(lambda request: "")
    for name, value in trait.items():
        setattr(policy, name, value)
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent(policy, store)
    assert agent.config.form == trait.get("form", "native")
    assert (agent.config.view_tokens == 64) == ("sizes" in trait)
    assert isinstance(agent.reader, QuotingReader) == ("quotes" in trait)


def test_the_writer_sees_its_notes_and_their_entries_change():
    replies = {
        "I moved to Porto": "+semantic city: Porto\n+semantic home: Porto",
        "now it is Braga": "~city#{} city: Braga",
        "by hand": ".",
        "all over": "-{}",
    }
    views: list[str] = []

    def reply(request: SampleRequest) -> str:
        assert request.observation is not None
        [chunk] = [text for text in replies if text in request.observation.chunk.render()]
        views.append("|".join(f"{entry.id} {entry.content}" for entry in request.observation.entries))
        suffix = views[-1].partition(" ")[0].rpartition("#")[2]
        return replies[chunk].format(suffix if chunk != "all over" else views[-1].partition(" ")[0])

    policy = FakePolicy(reply, prompt="compact")
    policy.form, policy.sizes, policy.quotes = "lines", {}, True
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent(policy, store)
        agent.read("Well, I moved to Porto in May")
        entry, other = store.list()
        assert {entry.content, other.content} == {"Well, I moved to Porto in May"}
        assert (entry.metadata, other.metadata) == ({NOTE: "city: Porto"}, {NOTE: "home: Porto"})
        agent.read("Guess what, now it is Braga", metadata={"chat": 7})
        changed, kept = store.list()
        assert (changed.id, changed.content) == (entry.id, "Guess what, now it is Braga")
        assert changed.metadata == {NOTE: "city: Braga", "chat": 7} and kept == other
        store.update(entry.id, content="We live in a tent")
        agent.read("A change by hand")  # the note is no longer true and not shown
        agent.read("That is all over now")
        assert store.list() == [other]
    city, home = (f"{topic}#{item.id.rpartition('#')[2]}" for topic, item in (("city", entry), ("home", other)))
    assert views[:2] == ["", f"{city} city: Porto|{home} home: Porto"]
    assert views[2:] == [f"{entry.id} We live in a tent|{home} home: Porto"] * 2


def test_an_entry_that_somebody_ended_meanwhile_is_shown_as_it_was_seen():
    with MemoryStore.open(":memory:") as store:
        entry = store.add("We moved to Braga", metadata={NOTE: "city: Braga"})
        seen = Observation(Chunk(text="-"), "", (ViewEntry(entry.id, "semantic", entry.content),))
        shown, ids = show_notes(seen, store)
        assert [item.content for item in shown.entries] == ["city: Braga"] and [*ids.values()] == [entry.id]
        store.delete(entry.id)
        assert show_notes(seen, store) == (seen, {})
