"""What each call does to a memory, and that a model's mistake is a code and never an exception."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memories import SCHEMA, working_memory

from memalpha.agent.parsing import parse_calls
from memalpha.agent.tools import TOOLS, execute, read_call, tool_schemas
from memalpha.errors import StoreError
from memalpha.policy.chat.text import describe_tools
from memalpha.store.memory import WorkingMemory
from memalpha.store.store import MemoryStore
from memalpha.types import Operation, ToolCall


def run(target, name, strict=False, **arguments):
    call = ToolCall(name, arguments)
    read = read_call(call, target.schema, strict=strict)
    result, operations = execute(target, call, read, chunk=3, source="s", timestamp="2024-05-01")
    assert len(operations) <= 1
    return result, operations[0] if operations else None


def test_insert_update_delete_and_core():
    target = working_memory()
    result, operation = run(target, "memory_insert", category="semantic", content=" city: Oslo ")
    assert (result.code, result.content, result.category, result.before) == ("inserted", "city: Oslo", "semantic", None)
    entry = target.get(result.entry_id)
    assert (entry.timestamp, entry.chunk, entry.source) == ("2024-05-01", 3, "s")
    assert operation.id == entry.id and target.state.position == 1

    result, operation = run(target, "memory_update", id=entry.id, content="city: Rome")
    assert (result.code, result.before, result.content) == ("updated", "city: Oslo", "city: Rome")
    assert target.get(entry.id).content == "city: Rome"

    result, operation = run(target, "memory_delete", id=entry.id)
    assert (result.code, result.before, result.content, operation.kind) == ("deleted", "city: Rome", None, "delete")
    assert target.list() == []

    result, _ = run(target, "core_memory_update", content="Ana")
    assert (result.code, result.before, target.core) == ("core_updated", "", "Ana")


def test_an_update_takes_the_date_it_was_read_at_and_an_insert_may_name_its_own():
    target = working_memory("city: Oslo", month="2024-01")
    run(target, "memory_update", id=target.list()[0].id, content="city: Rome")
    run(target, "memory_insert", category="episodic", content="trip: Rome", timestamp="2024-04-30")
    assert [entry.timestamp for entry in target.list()] == ["2024-05-01", "2024-04-30"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_duplicate_names_the_entry_that_is_there_and_changes_nothing(durable):
    target = MemoryStore.open(":memory:", embedder="hash") if durable else working_memory(unique_contents=True)
    oslo, cat = (target.insert("semantic", content, timestamp="2024-01-01") for content in ("city: Oslo", "pet: cat"))
    before = target.state
    calls = [
        ("memory_insert", {"category": "semantic", "content": "city: Oslo "}),
        ("memory_update", {"id": oslo.id, "content": " city: Oslo"}),  # the chunk's date alone is no news
    ]
    if not durable:  # the rule of training; in use an entry does not keep a text that the writer replaced
        calls.append(("memory_update", {"id": cat.id, "content": "city: Oslo"}))
    for name, arguments in calls:
        result, operation = run(target, name, **arguments)
        assert (result.ok, result.code, result.entry_id, operation) == (True, "duplicate", oslo.id, None)
        assert oslo.id in result.message
        assert target.state.position == before.position and target.list() == [oslo, cat]


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("memory_write", {}, "unknown_tool"),
        ("memory_insert", {"content": "x"}, "invalid_arguments"),
        ("memory_insert", {"category": "Semantic", "content": "x"}, "unknown_category"),
        ("memory_insert", {"category": "semantic", "content": 3}, "invalid_arguments"),
        ("memory_insert", {"category": "semantic", "content": "x", "mood": "y"}, "invalid_arguments"),
        ("memory_insert", {"category": "semantic", "content": "x", "importance": 2}, "invalid_arguments"),
        ("memory_insert", {"category": "semantic", "content": "x", "timestamp": "yesterday"}, "invalid_arguments"),
        ("memory_insert", {"category": "semantic", "content": "half \ud800 pair"}, "invalid_content"),
        ("memory_insert", {"category": "moods", "content": "x"}, "unknown_category"),
        ("memory_insert", {"category": "semantic", "content": " \n"}, "invalid_content"),
        ("memory_update", {"id": "nope", "content": "x"}, "unknown_id"),
        ("memory_delete", {"id": "nope"}, "unknown_id"),
        ("core_memory_update", {"content": "word " * 600}, "invalid_content"),
    ],
)
def test_mistakes_have_codes_and_change_nothing(name, arguments, code):
    target = working_memory("city: Oslo", month="2024-01")
    before = target.state
    result, operation = run(target, name, strict=True, **arguments)
    assert not result.ok and result.code == code and result.message
    assert operation is None and target.state is before


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("timestamp", value) for value in ("", " ", "2024-05", "2024-02-30", "yesterday", 2024, ["2024-05-01"], {})),
        *(("importance", value) for value in (-1, 2, "high", "", [], {}, float("nan"), None)),
        *((name, value) for name in ("confidence", "id", "metadata", "x y") for value in (0.9, None, {}, "x")),
    ],
)
def test_a_fact_survives_its_optional_arguments_which_are_named(argument, value):
    target = working_memory("city: Oslo", month="2024-01")
    fact = {"category": "semantic", "content": "pet: cat"}
    result, operation = run(target, "memory_insert", **fact, **{argument: value})
    assert result.ok and result.code == "inserted" and operation is not None
    assert (operation.content, operation.timestamp, operation.importance) == ("pet: cat", "2024-05-01", 1.0)
    assert (argument in result.message) == ((argument, value) != ("importance", None))
    strict_result, _ = run(working_memory(), "memory_insert", strict=True, **fact, **{argument: value})
    assert strict_result.ok == ((argument, value) == ("importance", None))
    for name, more in (("memory_update", {"content": "city: Rome"}), ("memory_delete", {})):
        if argument != "id":
            result, operation = run(target, name, id=target.list()[0].id, **more, **{argument: value})
            assert result.ok and operation is not None and argument in result.message


@pytest.mark.parametrize("name", ["memory_insert", "memory_update", "core_memory_update"])
def test_the_example_of_a_prompt_that_spells_tools_out_is_no_fact(name):
    """An untrained SmolLM2 repeated the example; its values are the descriptions of the parameters."""
    target = working_memory("city: Oslo", month="2024-01")
    function = next(tool for tool in tool_schemas(SCHEMA) if tool["function"]["name"] == name)
    (call,) = parse_calls(describe_tools([function]).split("your own values:")[1])
    call = ToolCall(name, call.arguments | ({"id": target.list()[0].id} if "id" in call.arguments else {}))
    result, operation = run(target, name, **call.arguments)
    assert (result.code, operation) == ("invalid_arguments", None)
    assert "content: Value error, repeats the description of the parameter" in result.message
    assert [entry.content for entry in target.list()] == ["city: Oslo"] and target.core == ""


def test_a_broken_store_is_no_mistake_of_the_model(monkeypatch):
    def fail(*_):
        raise StoreError("disk full")

    monkeypatch.setattr(WorkingMemory, "apply", fail)
    with pytest.raises(StoreError, match="disk full"):
        run(working_memory(), "memory_insert", category="semantic", content="x")


@given(
    st.sampled_from(sorted(TOOLS)) | st.text(max_size=5),
    st.dictionaries(
        st.sampled_from(["id", "category", "content", "timestamp", "importance", "x"]),
        st.none()
        | st.booleans()
        | st.floats()
        | st.text(max_size=9)
        | st.sampled_from(["semantic", "city#e"])
        | st.just([1]),
    ),
)
def test_no_arguments_raise_and_operations_replay(name, arguments):
    target = working_memory("city: Oslo", month="2024-01")
    before = target.state
    result, operation = run(target, name, **arguments)
    assert (operation is not None) == (result.code in ("inserted", "updated", "deleted", "core_updated"))
    assert target.state == (before.apply(operation) if isinstance(operation, Operation) else before)


def test_schemas_are_the_models():
    schemas = {tool["function"]["name"]: tool["function"] for tool in tool_schemas(SCHEMA)}
    assert list(schemas) == list(TOOLS)
    insert = schemas["memory_insert"]["parameters"]
    assert insert["properties"]["category"]["enum"] == ["semantic", "episodic"]
    assert insert["required"] == ["category", "content"]
    for name, model in TOOLS.items():
        assert list(schemas[name]["parameters"]["properties"]) == list(model.model_fields)
        assert schemas[name]["description"]
