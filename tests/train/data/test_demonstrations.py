"""Rows to imitate: what they say is what the parser reads, ids are those of the sampler, bad files are named."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_policy

from memalpha.agent.parsing import format_call, parse_calls
from memalpha.agent.prompts import writer_messages
from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.errors import DataError
from memalpha.policy.chat.template import ChatTemplate
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.schema import load_schema
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.data.chat_format import encode_reply, end_of_turn_id
from memalpha.train.data.demonstrations import Demonstrator, imitation_rows, load_best_rollouts, load_rows
from memalpha.types import Chunk, Observation, Reward, Task, Trajectory, ViewEntry

AGENT = AgentConfig(prompt="compact", embedder="hash", max_new_tokens=900)
SCHEMA = load_schema(AGENT.memory_schema)
END = 0


@lru_cache(maxsize=1)
def policy():
    return tiny_policy()


def said(ids) -> str:
    return policy().tokenizer.decode(list(ids), skip_special_tokens=False)


def gold_groups(count: int):
    """The oracle's rollouts over tasks of which the last ends with a chunk where nothing is to do."""
    *tasks, last = synthetic.tasks(WorldConfig(), 0, 0, count)
    last = last.model_copy(update={"chunks": (*last.chunks, Chunk(text="Bye!", index=len(last.chunks)))})
    return memory_engine(Demonstrator(ScriptedPolicy("oracle"), policy()), AGENT).roll_out([*tasks, last])


def test_gold_rows_are_the_policy_s_prompt_and_the_oracle_s_calls():
    groups = gold_groups(3)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rows, left_out = imitation_rows(trajectories)
    turns = [(trajectory, turn) for trajectory in trajectories for turn in trajectory.turns]
    assert not left_out and len(rows) == len(turns)
    for row, (trajectory, turn) in zip(rows, turns, strict=True):
        before = trajectory.states[turn.chunk - 1].list() if turn.chunk else []
        seen = tuple(ViewEntry(entry.id, entry.category, entry.content, entry.timestamp) for entry in before)
        observation = Observation(trajectory.task.chunks[turn.chunk], "", seen)
        assert list(row.prompt_ids) == policy().render(*writer_messages(observation, AGENT, SCHEMA))
        *reply, end = row.completion_ids
        assert end == END
        read = [(call.name, call.arguments) for call in parse_calls(said(reply))]
        gold = trajectory.task.gold_at(turn.chunk)
        assert [call.arguments.get("content") for call in turn.calls if call.name != "memory_skip"] == [
            operation.content or None for operation in gold
        ]
        assert read == [(call.name, call.arguments) for call in turn.calls]
        assert (row.task, row.chunk) == (trajectory.task.id, turn.chunk)
        assert np.all(row.ce == 1) and not any(np.any(getattr(row, name)) for name in ("pg", "kl", "ent", "advantages"))
    assert said(rows[-1].completion_ids[:-1]) == format_call("memory_skip", {}), "nothing to do is said"


def test_a_reply_longer_than_the_agent_may_say_is_refused():
    agent = AGENT.model_copy(update={"max_new_tokens": 20})
    with pytest.raises(DataError, match=r"task 'demo-.*chunk 0: .*agent.max_new_tokens=20 would cut it short"):
        memory_engine(Demonstrator(ScriptedPolicy("oracle"), policy()), agent).roll_out(
            synthetic.tasks(WorldConfig(), 0, 0, 1)
        )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["memory_insert", "memory_update"]), TEXT, TEXT), min_size=1, max_size=3))
def test_what_is_rendered_is_what_is_read(calls):
    asked = [(name, {"category": one, "content": two}) for name, one, two in calls]
    text = "".join(format_call(name, arguments) for name, arguments in asked)
    ids = encode_reply(policy(), text, "here")
    assert [(call.name, call.arguments) for call in parse_calls(said(ids[:-1]))] == asked
    assert ids[-1] == END and END not in ids[:-1]


def test_what_cannot_be_said_is_refused():
    with pytest.raises(DataError, match="here: the completion holds an end token"):
        encode_reply(policy(), format_call("memory_insert", {"content": "a <|end|> b"}), "here")
    with pytest.raises(DataError, match="here: the completion is empty"):
        encode_reply(policy(), "", "here")


def test_a_tokenizer_that_loses_characters_is_found():
    lossy = tiny_policy()
    decode = lossy.tokenizer.decode
    lossy.tokenizer.decode = lambda *args, **kwargs: decode(*args, **kwargs).replace("é", "e")
    encode_reply(lossy, format_call("memory_insert", {"content": "cafe"}), "here")
    with pytest.raises(DataError, match=r"here: the tokenizer .* does not give the completion's tool calls back"):
        encode_reply(lossy, format_call("memory_insert", {"content": "café"}), "here")


def test_the_end_is_the_one_that_the_template_writes():
    other = tiny_policy()
    assert end_of_turn_id(other) == END
    user = other.tokenizer.convert_tokens_to_ids("<|user|>")
    other.eos_ids = frozenset({END, user})
    other.chat = ChatTemplate(other.tokenizer, "other")
    assert end_of_turn_id(other) == user, "here the template writes nothing after a turn but a user's next one"
    other.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    other.chat = ChatTemplate(other.tokenizer, "other")
    assert end_of_turn_id(other) == END


def rollout(number: int, total: float, task: Task) -> Trajectory:
    return Trajectory(task, number, (), (), Reward((total,), {}, {}, total))


def test_failed_and_cut_turns_are_not_imitated():
    [group] = gold_groups(1)
    [trajectory] = group.trajectories
    one, two, *rest = trajectory.turns
    failed = replace(one, results=tuple(replace(result, ok=False) for result in one.results))
    cut = replace(two, completion=replace(two.completion, stop_reason="length"))
    rows, left_out = imitation_rows([replace(trajectory, turns=(failed, cut, *rest))])
    assert left_out == 2 and [row.chunk for row in rows] == [turn.chunk for turn in rest]


# ------------------------------------------------------------------------------------------------- logged trajectories


def turn_lines(task: str, rewards: list[list[float]], step: int = 0, agent: AgentConfig = AGENT) -> list[dict]:
    """Turns of a group with these rewards per turn and rollout; what is said names rollout and chunk."""
    found = []
    for number, values in enumerate(rewards):
        for chunk, reward in enumerate(values):
            seen = Observation(Chunk(text=f"{task} {chunk}"), "", (ViewEntry("a#b", "semantic", f"seen {number}"),))
            prompt = policy().render(*writer_messages(seen, agent, SCHEMA))
            completion = [*policy().tokenizer(f"r{number}c{chunk}")["input_ids"], END]
            place = {"step": step, "task": task, "rollout": number, "chunk": chunk, "reward": reward, "ok": True}
            found.append({**place, "prompt_ids": prompt, "completion_ids": completion, "logprobs": [], "advantage": 0})
    return found


def write(path, lines) -> None:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def test_logged_turns_give_the_best_rollouts(tmp_path):
    cut = turn_lines("cut", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    cut[0]["completion_ids"].pop()
    cut[1]["ok"] = False
    lines = [
        *turn_lines("a", [[0.0, 1.0], [1.0, 1.0]]),
        *turn_lines("a", [[0.5], [0.1]]),  # a task that comes twice in one step: two groups
        *turn_lines("b", [[0.5], [0.5]]),  # no spread
        *turn_lines("a", [[0.1], [0.2], [0.9]], step=1),
        *cut,
        *({**line, "role": "retry", "prompt_ids": [1, 2]} for line in turn_lines("c", [[9.0], [0.0]])),
    ]
    write(tmp_path / "turns.jsonl", lines)
    by_task, left_out = load_best_rollouts(tmp_path, policy(), AGENT, SCHEMA)
    told = [[said(row.completion_ids[:-1]) for row in rows] for rows in by_task]
    assert told == [["r1c0", "r1c1", "r0c0", "r2c0"], ["r0c2"]] and left_out == 2
    assert list(by_task[0][0].prompt_ids) == lines[2]["prompt_ids"]


def test_turns_of_another_policy_are_refused(tmp_path):
    good = turn_lines("a", [[0.0], [1.0]])

    def refused(lines, match, agent=AGENT):
        write(tmp_path / "turns.jsonl", lines)
        with pytest.raises(DataError, match=match):
            load_best_rollouts(tmp_path, policy(), agent, SCHEMA)

    refused([good[0], {**good[1], "completion_ids": [5, 9999]}], r"turns\.jsonl:2: holds ids that are none of policy")
    refused([{**good[0], "prompt_ids": good[0]["prompt_ids"][3:]}], r"jsonl:1: the prompt does not begin and end")
    refused(good, r"jsonl:1: the prompt does not begin and end", AGENT.model_copy(update={"prompt": "full"}))
    refused(["{}\n"], r"jsonl:1: step: Field required: not a turn that a run wrote \(keep_tokens=true\)")
    refused(["{\n"], r"jsonl:1: .*Invalid JSON")
    refused([], "holds no line")
    broken = policy().tokenizer.convert_tokens_to_ids(list("<tool_call>0"))
    assert None not in broken  # twelve single bytes, where this tokenizer has one token for the text
    ids = [*good[0]["prompt_ids"][:-1], *broken, good[0]["prompt_ids"][-1]]
    refused([{**good[0], "prompt_ids": ids}], r"jsonl:1: the prompt is not in the tokens of policy")
    with pytest.raises(DataError, match=r"nowhere/turns\.jsonl: cannot be read"):
        load_best_rollouts(tmp_path / "nowhere", policy(), AGENT, SCHEMA)


# ---------------------------------------------------------------------------------------------------- a user's own rows


def test_a_user_s_rows(tmp_path):
    calls = [{"type": "function", "function": {"name": "memory_delete", "arguments": '{"id": "x"}'}}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    more = [{"role": "user", "content": "c"}, {"role": "assistant", "tool_calls": calls}]
    lines = [
        {"prompt": "<|user|>raw<|assistant|>", "completion": "one"},
        {"prompt": messages[:1], "completion": "two"},
        {"prompt": messages[:1], "completion": [{"role": "assistant", "content": "three"}]},
        "\n",
        {"messages": messages + more},
    ]
    write(tmp_path / "mine.jsonl", lines)
    found = load_rows(tmp_path / "mine.jsonl", policy())
    told = [[(said(row.prompt_ids), said(row.completion_ids)) for row in rows] for rows in found]
    assert told == [
        [("<|user|>raw<|assistant|>", "one<|end|>")],
        [("<|user|>a<|assistant|>", "two<|end|>")],
        [("<|user|>a<|assistant|>", "three<|end|>")],
        [
            ("<|user|>a<|assistant|>", "b<|end|>"),
            ("<|user|>a<|assistant|>b<|user|>c<|assistant|>", format_call("memory_delete", {"id": "x"}) + "<|end|>"),
        ],
    ]


USER, REPLY = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ('{"prompt": "a", "completion": "b", "completion": "c"}', "not JSON: completion: the key occurs twice"),
        ("[" * 100_000, "not JSON: maximum recursion"),
        ("[1]", "not a JSON object"),
        ('{"prompt": "\\ud800", "completion": "b"}', "not text.*surrogates"),
        ({"prompt": "a"}, "completion: missing"),
        ({"prompt": "a", "completion": "b", "task": ["t"]}, r"task: the id of a task is needed, not \['t'\]"),
        ({"completion": "a"}, "prompt: missing"),
        ({}, "write either prompt and completion, or messages"),
        ({"messages": [USER, REPLY], "prompt": "a"}, "write either prompt and completion, or messages"),
        ({"prompt": "a", "completion": "b", "label": 1}, "label: unknown key"),
        ({"prompt": "", "completion": "b"}, "completion: there is no prompt before it"),
        ({"prompt": "a", "completion": ""}, "completion: the completion is empty"),
        ({"prompt": "a", "completion": "b<|end|>"}, "completion: the completion holds an end token"),
        ({"prompt": [{"role": "user", "content": 3}], "completion": "b"}, r"prompt\[0\]\.content: Input should be"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "completion": "b"}, None),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "completion": "b"},
            r"prompt\[0\]\.content: a part of the type 'image': only words",
        ),
        ({"prompt": [{"content": "a"}], "completion": "b"}, r"prompt\[0\]\.role: Field required"),
        ({"prompt": 3, "completion": "b"}, "prompt: Input should be a valid list"),
        ({"prompt": [USER], "completion": [USER]}, "completion: give a text or one message of the assistant"),
        ({"prompt": [USER], "completion": 3}, "completion: Input should be a valid list"),
        ({"prompt": "a", "completion": "b", "tools": []}, None),
        ({"prompt": "a", "completion": "b", "tools": [{"function": {}}]}, "tools: they go with messages"),
        ({"prompt": [USER], "completion": "b", "tools": [{}]}, r"tools\[0\]\.function: Field required"),
        ({"messages": [USER]}, "messages: none is the assistant's"),
        ({"messages": [REPLY]}, r"messages\[0\]: there is no prompt before it"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "}"}}]}]},
            r"messages\[1\]\.tool_calls: each is an object",
        ),
        *(
            ({"messages": [USER, {**REPLY, field: value}]}, rf"messages\[1\]\.{field}: what is learnt of a reply")
            for field, value in (("reasoning_content", "since"), ("weight", 0), ("function_call", {"name": "x"}))
        ),
        ({"messages": [USER, {**REPLY, "refusal": None, "name": "Bo"}]}, None),
        ({"messages": [USER, {"role": "assistant"}]}, r"messages\[1\]: the completion is empty"),
        ({"prompt": "a" * 4000, "completion": "b" * 200}, "4201 tokens with its prompt, policy .* takes 4096: shorten"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    path = tmp_path / "mine.jsonl"
    write(path, [{"prompt": "a", "completion": "b"}, line if isinstance(line, dict) else line + "\n"])
    if told is None:
        assert len(load_rows(path, policy())) == 2
        return
    with pytest.raises(DataError, match=rf"mine\.jsonl:2: {told}"):
        load_rows(path, policy())


def test_a_json_list_of_rows_is_read(tmp_path):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "c"}]
    (tmp_path / "mine.json").write_text(json.dumps(rows, indent=1), encoding="utf-16")
    assert [said(row.completion_ids) for [row] in load_rows(tmp_path / "mine.json", policy())] == [
        "b<|end|>",
        "c<|end|>",
    ]
    (tmp_path / "mine.json").write_text(json.dumps([rows[0], {"prompt": "a"}]))
    with pytest.raises(DataError, match=r"mine\.json: row 1: completion: missing"):
        load_rows(tmp_path / "mine.json", policy())


def test_a_token_without_an_embedding_is_named(tmp_path):
    own = tiny_policy()
    own.tokenizer.add_tokens(["<extra>"])
    for line in (
        {"prompt": "a", "completion": "<extra>"},
        {"prompt": [{**USER, "content": "<extra>"}], "completion": "b"},
    ):
        write(tmp_path / "mine.jsonl", [line])
        with pytest.raises(DataError, match=r"mine\.jsonl:1: .*'<extra>' is number \d+: it was added to the tokenizer"):
            load_rows(tmp_path / "mine.jsonl", own)


def test_a_template_s_own_refusal_is_passed_on(tmp_path):
    own = tiny_policy()
    own.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    write(tmp_path / "mine.jsonl", [{"prompt": [USER], "completion": "b"}])
    with pytest.raises(DataError, match=r"jsonl:1: prompt: the chat template .* refuses .*: roles must alternate"):
        load_rows(tmp_path / "mine.jsonl", own)
