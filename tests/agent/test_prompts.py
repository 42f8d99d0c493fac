"""The compact prompts byte for byte (a shipped policy is trained on them), and what the full ones must hold."""

from memalpha.agent.prompts import reader_messages, reflection_messages, writer_messages
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.store.schema import load_schema
from memalpha.types import Chunk, Hit, MemoryEntry, Observation, SpeakerTurn, ViewEntry

COMPACT, FULL = AgentConfig(prompt="compact"), AgentConfig()
SCHEMA = load_schema("mem-alpha")
CHUNK = Chunk(
    turns=(
        SpeakerTurn(speaker="user", text="I moved to Rome last week."),
        SpeakerTurn(speaker="assistant", text="Nice!"),
    ),
    timestamp="2024-05-01",
)
VIEW = (ViewEntry("city#e", "semantic", "city: Oslo", "2024-04-01"), ViewEntry("pet#k", "semantic", "pet: cat"))


def test_compact_writer():
    messages, tools = writer_messages(Observation(CHUNK, "", VIEW), COMPACT, SCHEMA)
    assert tools == ()
    assert messages == (
        {
            "role": "user",
            "content": "memory\ncity#e city: Oslo\npet#k pet: cat\nchunk 2024-05-01\n"
            "user: I moved to Rome last week.\nassistant: Nice!",
        },
    )


def test_compact_writer_with_core_without_memory_or_date():
    (message,), _ = writer_messages(Observation(Chunk(text="hi")), COMPACT, SCHEMA)
    assert message["content"] == "memory\nchunk\nhi"
    (message,), _ = writer_messages(Observation(Chunk(text="hi"), "Ana"), COMPACT, SCHEMA)
    assert message["content"] == "memory\ncore: Ana\nchunk\nhi"


def _hit(content: str, timestamp: str | None, position: int) -> Hit:
    return Hit(MemoryEntry(f"id{position}", "semantic", content, timestamp, valid_from=position), 1.0)


def test_compact_reader_is_dated_and_oldest_first():
    hits = [
        _hit("trip: Rome", "2024-05-03", 1),
        _hit("city: Oslo", "2024-05-01", 2),
        _hit("b", None, 4),
        _hit("a", None, 3),
    ]
    (message,) = reader_messages("Where do I live?", hits, ReaderConfig(prompt="compact"))
    assert message == {
        "role": "user",
        "content": "facts\na\nb\ncity: Oslo (2024-05-01)\ntrip: Rome (2024-05-03)\nask: Where do I live?",
    }


def test_full_reader_shows_core_and_notes():
    hits = [_hit("city: Oslo", "2024-05-01", 1)]
    system, user = reader_messages("Where?", hits, ReaderConfig(prompt="full"), core="Ana")
    assert "unknown" in system["content"]
    assert "Ana" in user["content"] and "city: Oslo (2024-05-01)" in user["content"]
    assert user["content"].endswith("Question: Where?")
    assert "(none)" in reader_messages("Where?", [], ReaderConfig(prompt="full"))[1]["content"]


def test_advice_stands_between_memory_and_chunk_and_nothing_else_changes():
    plain, advised = Observation(CHUNK, "", VIEW), Observation(CHUNK, "", VIEW, advice="city, no pet\nchunk x")
    (without,), _ = writer_messages(plain, COMPACT, SCHEMA)
    (message,), _ = writer_messages(advised, COMPACT, SCHEMA)
    assert message["content"].replace("advice\ncity, no pet chunk x\n", "") == without["content"]
    assert "pet: cat\nadvice\ncity, no pet chunk x\nchunk 2024-05-01\n" in message["content"]
    (system, user), tools = writer_messages(plain, FULL, SCHEMA)
    (again, told), same_tools = writer_messages(advised, FULL, SCHEMA)
    assert (system, tools) == (again, same_tools)
    said = "Your advice from an earlier attempt:\ncity, no pet\nchunk x\n\n"
    assert told["content"].replace(said, "") == user["content"] != told["content"]


def test_compact_reflection_has_earlier_advice_and_what_went_wrong():
    (message,) = reflection_messages("a core", VIEW, "ask: a?\nright: b", ["city", "no pet\nask: x"], COMPACT)
    assert message == {"role": "user", "content": "reflect\nadvice\ncity\nadvice\nno pet ask: x\nask: a?\nright: b"}
    (message,) = reflection_messages("", (), "", [], COMPACT)
    assert message["content"] == "reflect\nall right"


def test_full_reflection_shows_the_memory_that_the_attempt_left():
    system, user = reflection_messages("Ana", VIEW, "Question: a?", ["Note cities."], FULL)
    assert "Do not write the answers themselves" in system["content"]
    for part in (
        "Core memory:\nAna",
        "[pet#k] (semantic) pet: cat",
        "- Note cities.",
        "What went wrong:\nQuestion: a?",
    ):
        assert part in user["content"]
    _, user = reflection_messages("", (), "", [], FULL)
    assert "helped" not in user["content"] and user["content"].endswith("All answers were right.")
