"""Tools of a user's own: checked when they are named, read in every form, done whole or not at all."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from memories import SCHEMA, working_memory
from merge_tool import Merge
from pydantic import Field, ValidationError

from memalpha import MemoryAgent
from memalpha.agent.prompts import check_style, writer_messages
from memalpha.agent.replies import format_calls, parse_reply
from memalpha.agent.tools import TOOLS, Tool, execute, load_tools, read_call
from memalpha.config import AgentConfig
from memalpha.errors import ConfigError, InvalidContent
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.store import MemoryStore
from memalpha.train.algorithms.credit import operations_by_call
from memalpha.types import Chunk, Observation, Operation, ToolCall


class NoLine(Merge):
    """Join two entries, without a line form."""

    name, line = "memory_join", ""


def changed(**attributes):
    return type("Changed", (Merge,), {"__doc__": Merge.__doc__, **attributes})


class Listed(Merge):
    """Join many entries."""

    name, line = "memory_list", ""
    many: list[str] = Field(description="ids")


class NoOperations(Tool):
    """Do nothing that anybody knows."""

    name, rule = "memory_nothing", "does nothing."


FAULTS = {
    "needs apply, which returns the operations": NoOperations,
    "is no class": Chunk,
    "needs a name": changed(name=""),
    "needs a name, a rule": changed(rule=""),
    "needs a name, a rule (": changed(name=7),
    "parameter 'many' needs a description and one of the types": Listed,
    "line: 'whole' is none of its parameters": changed(line="&id whole"),
    "'memory_update' is the name of another tool (Update)": changed(name="memory_update"),
    "name 'a b': 1 to 64 of the characters": changed(name="a b"),
    "hints: destructiveHint 7: True or False is needed": changed(hints={"destructiveHint": 7}),
    "line: '~' is the mark of memory_update": changed(line="~id other content"),
}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = ModuleType("tools_of_a_test")
    vars(made).update(Merge=Merge, NoLine=NoLine, text="x", **{f"Fault{i}": c for i, c in enumerate(FAULTS.values())})
    monkeypatch.setitem(sys.modules, "tools_of_a_test", made)
    load_tools.cache_clear()
    yield
    load_tools.cache_clear()


NAMES = ("tools_of_a_test:Merge",)


@pytest.mark.parametrize(("number", "message"), enumerate(FAULTS))
def test_an_unusable_class_is_refused(number, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_tools((f"tools_of_a_test:Fault{number}",))
    assert str(caught.value).startswith(f"agent.tools: 'tools_of_a_test:Fault{number}'")


def test_what_cannot_be_found_or_shown_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.tools: 'nowhere:Merge' cannot be found"):
        load_tools(("nowhere:Merge",))
    with pytest.raises(ConfigError, match="memory_join has no line form"):
        check_style(AgentConfig(tools=("tools_of_a_test:NoLine",), form="lines"), SCHEMA)
    with pytest.raises(ValidationError, match="tools: has no effect with prompt=mem-alpha, which has its own"):
        AgentConfig(tools=NAMES, prompt="mem-alpha")


@pytest.mark.parametrize("form", ["native", "hermes", "lines"])
def test_the_prompt_shows_it(form):
    messages, tools = writer_messages(Observation(Chunk(text="hi")), AgentConfig(tools=NAMES, form=form), SCHEMA)
    shown = "&ID OTHER TEXT" if form == "lines" else "memory_merge"
    assert f"- {shown} joins two entries.\n" in messages[0]["content"]
    assert ("memory_merge" in [tool["function"]["name"] for tool in tools]) == (form == "native")


@pytest.mark.parametrize("form", ["hermes", "lines"])
def test_calls_are_read_back(form):
    tools = load_tools(NAMES)
    call = ToolCall("memory_merge", {"id": "a#1", "other": "b#2", "content": "both\nof them"})
    [read] = parse_reply(format_calls([call], form, tools=tools), form, tools)
    assert (read.name, read.arguments) == (call.name, call.arguments)


def test_a_line_of_too_few_words_is_malformed():
    assert [call.error for call in parse_reply("&a\n&a b\n& a b c", "lines", load_tools(NAMES))] == [
        "malformed",
        None,  # an empty content, which the memory refuses
        "malformed",
    ]
    [call] = parse_reply("&a b c", "lines")
    assert call.error == "malformed", "without the tool the mark means nothing"


@pytest.mark.parametrize("kind", ["store", "value"])
def test_operations_happen_together_or_not_at_all(kind):
    memory = MemoryStore.open(":memory:", embedder="hash") if kind == "store" else working_memory()
    first, second = memory.insert("semantic", "tea").id, memory.insert("semantic", "milk").id
    before = memory.state

    def merge(other):
        call = ToolCall("memory_merge", {"id": first, "other": other, "content": "tea with milk"})
        read = read_call(call, memory.schema, load_tools(NAMES))
        return execute(memory, call, read, chunk=1, source="s", timestamp="2024-05-01", metadata={"a": 1})

    result, operations = merge("nobody")
    assert (result.code, operations, memory.state) == ("unknown_id", (), before)
    result, operations = merge(first)
    assert (result.code, operations, memory.state) == ("invalid_content", (), before), "an entry with itself"
    result, operations = merge(second)
    assert [operation.kind for operation in operations] == ["update", "delete"]
    assert (result.ok, result.code, result.operations) == (True, "changed", 2)
    assert (result.entry_id, result.before, result.content) == (first, "tea", "tea with milk")
    [entry] = memory.list()
    assert (entry.content, entry.timestamp, entry.source, entry.metadata) == (
        "tea with milk",
        "2024-05-01",
        "s",
        {"a": 1},
    )


def test_operations_belong_to_their_calls_and_what_changed_meanwhile_stays():
    store = MemoryStore.open(":memory:", embedder="hash")
    first, second = store.insert("semantic", "tea").id, store.insert("semantic", "milk").id
    writer = ScriptedPolicy("fixed", text=f"+semantic rain\n&{first} {second} tea with milk\n.\n-{first}")
    agent = MemoryAgent(writer, store, AgentConfig(tools=NAMES, form="lines"))
    proposal = agent.propose("Ana: hi")
    store.update(second, "oat milk")
    turn = agent.apply(proposal)
    assert [result.code for result in turn.results] == ["inserted", "conflict", "skipped", "deleted"]
    store.undo()
    turn = agent.read("Ana: hi")
    assert [result.code for result in turn.results] == ["duplicate", "changed", "skipped", "deleted"]
    assert [[item.kind for item in of_call] for of_call in operations_by_call(turn)] == [
        ["update", "delete"],
        ["delete"],
    ]
    assert len(TOOLS) == 5 and SimpleNamespace(**agent.tools).memory_merge is Merge


def read_with(monkeypatch, **attributes):
    """Read a reply with one call of a tool with other methods; return the store and the turn."""
    monkeypatch.setattr(sys.modules["tools_of_a_test"], "Merge", changed(**attributes))
    load_tools.cache_clear()
    store = MemoryStore.open(":memory:", embedder="hash")
    first, second = (store.insert("semantic", text, metadata={"old": 1}).id for text in ("tea", "milk"))
    writer = ScriptedPolicy("fixed", text=f"&{first} {second} tea with milk")
    agent = MemoryAgent(writer, store, AgentConfig(tools=NAMES, form="lines"))
    return store, agent.read("Ana: hi", source="chat", metadata={"by": "agent"})


def update(call, **fields):
    return Operation("update", call.id, **{"content": "x", **fields})


MISTAKES = {
    "apply gives a list of Operations, not NoneType": lambda call: None,
    "apply gives a list of Operations, not Operation": update,
    "apply gives a list of Operations, not generator": lambda call: (update(call) for _ in "1"),
    "apply gives a list of Operations, not one with 'x'": lambda call: ["x"],
    "apply gives an Operation 'undo': use insert": lambda call: [Operation("undo")],
    "apply gives update with content 5: a text": lambda call: [update(call, content=5)],
    "apply gives update with id None: a text": lambda call: [Operation("update")],
    "apply gives update with metadata [1]: not": lambda call: [update(call, metadata=[1])],
    "apply gives update with a source, which the agent sets": lambda call: [update(call, source="mine")],
    f"ZeroDivisionError: division by zero ({__file__}, line ": lambda call: 1 / 0,
}


@pytest.mark.parametrize(("message", "function"), MISTAKES.items())
def test_mistakes_in_apply_name_the_tool(monkeypatch, message, function):
    with pytest.raises(ConfigError, match=re.escape(f"tool memory_merge: {message}")):
        read_with(monkeypatch, apply=lambda call, memory: function(call))


@pytest.mark.parametrize(
    ("message", "function"),
    {
        "changes gives a tuple of ids, not NoneType": lambda call: None,
        "changes gives a tuple of ids, not str": lambda call: call.id,
        "changes gives ids, which are texts, not 5": lambda call: (5,),
        f"ZeroDivisionError: division by zero ({__file__}, line ": lambda call: 1 / 0,
    }.items(),
)
def test_mistakes_in_changes_name_the_tool(monkeypatch, message, function):
    with pytest.raises(ConfigError, match=re.escape(f"tool memory_merge: {message}")):
        read_with(monkeypatch, changes=function)


def test_errors_of_the_memory_refuse_the_call(monkeypatch):
    def refuse(call, memory):
        raise InvalidContent("too short")

    [result] = read_with(monkeypatch, apply=refuse)[1].results
    assert (result.ok, result.code, result.message) == (False, "invalid_content", "too short")
    [result] = read_with(monkeypatch, apply=lambda call, memory: [update(call, metadata={"n": {1}})])[1].results
    assert result.code == "invalid_content" and result.message.startswith("metadata.n cannot be written as JSON")


def test_metadata_of_a_tool_joins_that_of_the_agent(monkeypatch):
    def apply(call, memory):
        own = {"own": 2, "by": "tool"}
        return [update(call, metadata=own), Operation("insert", None, "semantic", "new", metadata=own)]

    store, _ = read_with(monkeypatch, apply=apply)
    metadata = {entry.content: entry.metadata for entry in store.list()}
    assert metadata["x"] == {"old": 1, "own": 2, "by": "agent"} and metadata["new"] == {"own": 2, "by": "agent"}
    assert {entry.source for entry in store.list() if entry.content != "milk"} == {"chat"}
