"""Style of Mem-alpha's checkpoints: messages, view, recorded replies, prompt files."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memories import SCHEMA, working_memory

from memalpha.agent import mem_alpha
from memalpha.agent.agent import MemoryAgent, build_request
from memalpha.agent.mem_alpha import ARGS, FUNCTION, RESULT, format_block
from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import observe, writer_messages
from memalpha.agent.replies import act, format_calls, parse_reply
from memalpha.config import AgentConfig, ReaderConfig, RewardConfig, build_config
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import ConfigError
from memalpha.policy.base import with_prompt_style
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.schema import load_schema
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Completion, Observation, Task, ToolCall, Trajectory, ViewEntry

AGENT = AgentConfig(prompt="mem-alpha", embedder="hash")
CHUNK = Chunk(text="Ana: I moved to Porto.", timestamp="2024-05-01")


def insert(content, kind="semantic_memory", **more) -> str:
    return format_block("new_memory_insert", {"memory_type": kind, "content": content, **more})


def codes(reply: str) -> list[str]:
    return [result.code for result in act(working_memory(), CHUNK, Completion(reply), form="mem-alpha").results]


# ------------------------------------------------------------------------------------------------------------ messages


def test_messages_hold_memory_tools_and_chunk():
    view = (ViewEntry("city#e", "semantic", "Ana lives in {{core}}"), ViewEntry("trip#a", "episodic", "Rome in May"))
    seen = Observation(CHUNK, "Ana, a nurse", view, entry_counts={"semantic": 7, "episodic": 1})
    (system, user), tools = writer_messages(seen, AGENT, SCHEMA)
    assert tools == () and (system["role"], user["role"]) == ("system", "user")
    assert "<core_memory>\nAna, a nurse\n</core_memory>" in system["content"]
    assert "most recent 1 out of 7 memories)\n[city#e] Ana lives in {{core}}\n</semantic_memory>" in system["content"]
    assert "most recent 1 out of 1 memories)\n[trip#a] Rome in May\n</episodic_memory>" in system["content"]
    assert system["content"].endswith("✿RETURN✿: Your reply once the results are there")
    assert "<new_chunk>\n[2024-05-01]\nAna: I moved to Porto.\n</new_chunk>" in user["content"]
    assert "1638 tokens" in user["content"]  # 0.8 x 2048, as published


def test_an_empty_memory_and_a_chunk_with_its_own_header():
    chunk = Chunk(text="[Dialogue on 2024-05-01]\nhi", timestamp="2024-05-01")
    (system, user), _ = writer_messages(Observation(chunk, advice="Dates!"), AGENT, SCHEMA)
    assert "<core_memory>\n\n</core_memory>" in system["content"]
    assert "0 out of 0 memories)\nEmpty.\n</episodic_memory>" in system["content"]
    assert "<new_chunk>\n[Dialogue on 2024-05-01]\nhi\n</new_chunk>" in user["content"]
    assert user["content"].startswith("Your advice from an earlier attempt:\nDates!\n\n")


def test_tools_have_the_published_names_parameters_and_order():
    published = {
        "new_memory_insert": (["memory_type", "content"], ["memory_type", "content"], 2),
        "memory_update": (["memory_type", "new_content", "memory_id"], ["memory_type", "new_content"], 3),
        "memory_delete": (["memory_type", "memory_id"], ["memory_type"], 3),
    }
    tools = re.findall(r"^### (\w+)\n\n\1: .* Parameters: (\{.*\}) Write", mem_alpha.load_prompt(None).system, re.M)
    assert tuple(name for name, _ in tools) == tuple(published) == mem_alpha.TOOL_NAMES
    for name, schema in tools:
        properties, required, kinds = published[name]
        parameters = json.loads(schema)
        assert (list(parameters["properties"]), parameters["required"]) == (properties, required)
        enum = parameters["properties"]["memory_type"]["enum"]
        assert enum == ["core_memory", "semantic_memory", "episodic_memory"][3 - kinds :]
        assert all(list(value)[:2] == ["type", "description"] for value in parameters["properties"].values())


def test_the_view_is_the_last_five_of_each_kind():
    store = working_memory()
    for number in range(8):
        store.insert("semantic", f"fact {number}")
    store.insert("episodic", "event")
    store.update(store.list("semantic")[0].id, "fact 0 anew")
    seen = observe(store, CHUNK, AGENT, lambda text: len(text.split()))
    assert [entry.content for entry in seen.entries] == [*(f"fact {number}" for number in range(3, 8)), "event"]
    assert seen.entry_counts == {"semantic": 8, "episodic": 1}
    small = observe(store, CHUNK, AGENT.model_copy(update={"view_tokens": 15}), lambda text: len(text.split()))
    assert [entry.content for entry in small.entries] == ["fact 6", "fact 7", "event"], "5, then 2, 1, 0"
    none = observe(store, CHUNK, AGENT.model_copy(update={"view_tokens": 1}), lambda text: len(text.split()))
    assert none.entries == () and none.entry_counts["semantic"] == 8


# --------------------------------------------------------------------------------------------------- recorded replies


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (insert("a", "semantic"), "inserted"),  # without the suffix
        (insert("a", confidence="high"), "inserted"),  # an argument that no tool has
        (insert("a", "core_memory"), "unknown_category"),
        (insert("a", "procedural_memory"), "invalid_arguments"),
        (insert(""), "invalid_content"),
        (insert(5), "invalid_arguments"),
        (format_block("new_memory_insert", {"content": "a"}), "invalid_arguments"),
        (format_block("memory_update", {"memory_type": "semantic_memory", "new_content": "a"}), "invalid_arguments"),
        (
            format_block("memory_update", {"memory_type": "semantic_memory", "new_content": "a", "memory_id": "3f2a"}),
            "unknown_id",
        ),
        (format_block("memory_delete", {"memory_type": "semantic_memory", "memory_id": 1234}), "unknown_id"),
        (format_block("memory_delete", {"memory_type": "episodic_memory"}), "invalid_arguments"),
        (format_block("memory_delete", {"memory_id": "3f2a"}), "invalid_arguments"),
        (format_block("search_memory", {"memory_type": "semantic_memory", "query": "a"}), "unknown_tool"),
        (f'{FUNCTION}: new_memory_insert\n{ARGS}: {{"memory_type": "semantic_memory", "content": "cut', "malformed"),
        (f"{insert('a')}\n{RESULT}: ok\n{insert('b')}", "inserted"),
        (f"<think>\n{insert('b')}\n</think>\n\n{insert('a')}", "inserted"),
        (format_call("memory_insert", {"category": "semantic", "content": "a"}), "inserted"),  # Hermes
    ],
)
def test_one_recorded_call(reply, code):
    assert codes(reply) == [code]


def test_published_rewards_count_calls_as_their_executor_does():
    replies = [
        insert(""),
        insert(7),
        format_block("memory_delete", {"memory_type": "semantic_memory", "memory_id": "3f2a"}),
        format_block("memory_delete", {"memory_type": "semantic_memory"}),
        insert("a", "core_memory"),
        format_block("memory_update", {"memory_type": "semantic_memory", "new_content": "a", "memory_id": "3f2a"}),
        "Done",
    ]
    store = working_memory()
    turns = tuple(act(store, CHUNK, Completion(reply), form="mem-alpha") for reply in replies)
    trajectory = Trajectory(
        Task(id="t", chunks=(CHUNK,) * len(replies)), 0, turns, states=(store.state,) * len(replies), reward=None
    )
    rewards = {
        preset: MemoryReward(RewardConfig(preset=preset), len).reward(trajectory, ()).components["r2"]
        for preset in ("published", "default")
    }
    assert rewards["published"] == (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    assert rewards["default"] == (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


CONTENT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
OURS = st.one_of(
    st.builds(
        lambda category, content: ToolCall("memory_insert", {"category": category, "content": content}),
        st.sampled_from(["semantic", "episodic"]),
        CONTENT,
    ),
    st.builds(lambda id, content: ToolCall("memory_update", {"id": id, "content": content}), CONTENT, CONTENT),
    st.builds(lambda id: ToolCall("memory_delete", {"id": id}), CONTENT),
    st.builds(lambda content: ToolCall("core_memory_update", {"content": content}), st.text()),
)


@given(st.lists(OURS, max_size=4))
def test_our_calls_in_either_style_read_back(calls):
    hermes = "\n".join(format_call(call.name, call.arguments) for call in calls)
    for reply in (format_calls(calls, "mem-alpha"), hermes):
        assert [(call.name, call.arguments, call.error) for call in parse_reply(reply, "mem-alpha")] == [
            (call.name, call.arguments, None) for call in calls
        ]


@given(st.text() | st.builds(lambda a, b: f"{a}{FUNCTION}: new_memory_insert\n{ARGS}: {b}", st.text(), st.text()))
def test_no_reply_raises(text):
    codes(text)


def test_updates_name_the_kind_that_the_view_shows():
    view = (ViewEntry("trip#a", "episodic", "Rome"),)
    calls = [ToolCall("memory_delete", {"id": "trip#a"}), ToolCall("memory_skip")]
    assert format_calls(calls, "mem-alpha", view) == (
        f'{FUNCTION}: memory_delete\n{ARGS}: {{"memory_type": "episodic_memory", "memory_id": "trip#a"}}'
    )
    assert format_calls(calls[1:], "mem-alpha") == "Done"


# ------------------------------------------------------------------------------------------------------------ settings


def test_the_style_brings_its_defaults_and_they_do_not_count_as_set():
    assert (AGENT.view_recent, AGENT.view_related, AGENT.view_tokens, AGENT.max_new_tokens) == (5, 0, 3072, 2048)
    assert AGENT.model_fields_set == {"prompt", "embedder"}
    assert AgentConfig(prompt="mem-alpha", view_recent=3).view_recent == 3
    policy = ScriptedPolicy("add-all")
    policy.prompt = "mem-alpha"  # type: ignore[attr-defined]
    assert with_prompt_style(AgentConfig(view_tokens=99), policy) == AgentConfig(prompt="mem-alpha", view_tokens=99)
    assert with_prompt_style(ReaderConfig(kind="policy"), policy).prompt == "full", "it was trained to write only"
    with pytest.raises(ConfigError, match="agent: view_related: prompt=mem-alpha"):
        with_prompt_style(AgentConfig(view_related=8), policy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "mem-alpha", "view_related": 2}, "view_related: prompt=mem-alpha shows"),
        ({"prompt_file": "a.yaml"}, "prompt_file: has no effect with prompt=full"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_config(AgentConfig, settings, "test")


def test_another_schema_is_refused():
    life = load_schema("life")
    with pytest.raises(ConfigError, match="style mem-alpha knows a core memory, semantic and episodic entries, not"):
        MemoryWriting(AGENT, len, schema=life)
    with pytest.raises(ConfigError, match="use memory_schema=mem-alpha, or prompt=full"):
        MemoryAgent(ScriptedPolicy("add-all"), MemoryStore.open(":memory:", schema="life", embedder="hash"), AGENT)


# --------------------------------------------------------------------------------------------------------- prompt files


def test_a_prompt_file_gives_the_exact_messages(tmp_path):
    path = tmp_path / "prompt.json"
    texts = {
        "system": "S {x} {{core}}|{{semantic}} {{semantic_shown}}/{{semantic_total}}|{{episodic}}\n",
        "user": "U {{chunk}} {{response_limit}} ",
    }
    path.write_text(json.dumps(texts), encoding="utf-8")
    config = AgentConfig(prompt="mem-alpha", prompt_file=path, max_new_tokens=100)
    seen = Observation(Chunk(text="hi {{core}}"), "c", (ViewEntry("a", "semantic", "b"),), entry_counts={"semantic": 4})
    request = build_request(seen, config, SCHEMA)
    assert [message["content"] for message in request.messages] == ["S {x} c|[a] b 1/4|Empty.\n", "U hi {{core}} 80 "]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("[", "neither YAML nor JSON"),
        ("system: 2024-13-45", "neither YAML nor JSON"),  # no such month
        ("system: a", "must hold the texts 'system' and 'user'"),
        ("{system: [], user: a}", "system: a text is needed"),
        (
            "{system: '{{core}} {{semantic}} {{episodic}} {{tools}}', user: a}",
            "no placeholder {{tools}}: there are core",
        ),
        ("{system: '{{core}} {{semantic}}', user: '{{chunk}}'}", "has no {{episodic}}"),
        ("{system: '{{core}} {{semantic}} {{episodic}}', user: a}", "user: has no {{chunk}}"),
    ],
)
def test_a_bad_prompt_file_is_refused_before_anything_starts(tmp_path, text, message):
    path = tmp_path / "prompt.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        MemoryWriting(AgentConfig(prompt="mem-alpha", prompt_file=path, embedder="hash"), len)
    assert f"agent.prompt_file: {path}" in str(error.value) and message in str(error.value)
