"""A policy behind an endpoint: what it asks, what it makes of the answers, and a real server from end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hostile import HostileServer
from hypothesis import given
from hypothesis import strategies as st
from standin import HttpStandIn

from memalpha.agent.parsing import from_openai, parse_calls
from memalpha.config import AgentConfig, EndpointConfig, ReaderConfig, WorldConfig
from memalpha.errors import PolicyError
from memalpha.policy.base import Policy, open_queue
from memalpha.policy.endpoint import EndpointPolicy, Reply, completion_text
from memalpha.policy.load import load_policy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.reader import load_reader
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.types import SampleRequest

MESSAGES = ({"role": "system", "content": "s"}, {"role": "user", "content": "a"})


def calls(*pairs) -> list[dict]:
    return [{"id": "x", "type": "function", "function": {"name": name, "arguments": text}} for name, text in pairs]


def test_what_is_asked():
    tools = ({"type": "function", "function": {"name": "memory_skip", "parameters": {}}},)
    with HostileServer() as server:
        policy = EndpointPolicy(server.name)
        assert isinstance(policy, Policy) and policy.name == server.name
        policy.sample(
            [
                SampleRequest(MESSAGES, tools, key=(1, 2), max_new_tokens=7),
                SampleRequest(MESSAGES, key=(1, 2), temperature=0.5),
                SampleRequest(MESSAGES, key=(1, 3), temperature=0.5),
            ]
        )
        greedy, one, two = sorted(server.bodies, key=lambda body: (body["temperature"], body.get("seed", 0)))
    assert greedy == {
        "model": "m",
        "messages": list(MESSAGES),
        "temperature": 0.0,
        "max_tokens": 7,
        "tools": list(tools),
    }
    assert one.pop("seed") != two.pop("seed") and one == two and one["temperature"] == 0.5


def ask(text: str) -> SampleRequest:
    return SampleRequest(({"role": "user", "content": text},))


def test_a_queue_returns_answers_as_they_come(tmp_path):
    with HostileServer() as server:
        held = {"slow"}
        server.hold = lambda prompt: prompt in held
        policy = EndpointPolicy(server.name, EndpointConfig(cache=tmp_path / "a.sqlite"))
        queue = open_queue(policy)
        assert queue.collect() == []
        assert queue.submit([ask("slow"), ask("a"), ask("a")]) == [0, 1, 2]
        found = dict(queue.collect())
        assert queue.submit([ask("b")]) == [3]
        while len(found) < 3:
            found.update(queue.collect())
        assert sorted(found) == [1, 2, 3], "the slow one holds nobody up"
        held.clear()
        found.update(queue.collect())
        assert queue.collect() == []
        assert [found[ticket] for ticket in range(4)] == policy.sample([ask("slow"), ask("a"), ask("a"), ask("b")])
        bill = policy.statistics()
        assert bill["paid"] == 3 and bill["shared"] == 1 + 1 - bill["cached"] + 3
        assert not policy.client.waiting


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_queue_sends_within_the_concurrency_and_retries(concurrency):
    with HostileServer(fault=lambda prompt, nth: "503 0.01" if nth == 1 else None) as server:
        server.hold = lambda prompt: server.most_at_once < concurrency
        queue = open_queue(EndpointPolicy(server.name, EndpointConfig(concurrency=concurrency, max_wait=0.05)))
        queue.submit([ask(str(number)) for number in range(9)])
        found = {}
        while ended := queue.collect():
            assert [ticket for ticket, _ in ended] == sorted(ticket for ticket, _ in ended)
            found.update(ended)
        assert [found[ticket].text for ticket in range(9)] == [f"echo {number}" for number in range(9)]
        assert server.most_at_once == concurrency and sum(server.seen.values()) == 18


def test_a_queue_that_is_left_sends_nothing_more(tmp_path):
    with HostileServer() as server:
        held = {"0"}
        server.hold = lambda prompt: prompt in held
        policy = EndpointPolicy(server.name, EndpointConfig(concurrency=1, cache=tmp_path / "a.sqlite"))
        queue = open_queue(policy)
        queue.submit([ask(str(number)) for number in range(4)])
        while not server.seen:
            time.sleep(0.001)
        queue.close()
        assert queue.collect() == []
        held.clear()
        assert [reply.text for reply in policy.sample([ask("0"), ask("new")])] == ["echo 0", "echo new"]
        assert dict(server.seen) == {"0": 1, "new": 1}, "what was in flight is finished and cached"
        assert queue.submit([ask("new")]) == [4] and [ticket for ticket, _ in queue.collect()] == [4]


def test_what_an_answer_becomes():
    insert = '{"category": "semantic", "content": "Ann\'s \\"city\\" is Rome </tool_call>"}'
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": calls(("memory_insert", insert), ("memory_skip", "")),
    }
    with HostileServer(reply=lambda *_: message) as server:
        (completion,) = EndpointPolicy(server.name).sample([SampleRequest(MESSAGES, temperature=0.25)])
    found = parse_calls(completion.text)
    assert [(call.name, call.error) for call in found] == [("memory_insert", None), ("memory_skip", None)]
    assert found[0].arguments == {"category": "semantic", "content": 'Ann\'s "city" is Rome </tool_call>'}
    assert completion.stop_reason == "eos" and completion.temperature == 0.25
    assert completion.completion_ids == () and completion.logprobs == ()


def test_why_it_ended():
    replies = [Reply({"content": "x"}, reason, 1, 1) for reason in ("length", "max_tokens", "tool_calls", None)]
    completions = EndpointPolicy("http://127.0.0.1:1/v1#m").finish([SampleRequest(MESSAGES)] * 4, replies)
    assert [completion.stop_reason for completion in completions] == ["length", "length", "eos", "eos"]


FACT = {"category": "semantic", "content": "Porto"}
INSERT = {"name": "memory_insert", "arguments": json.dumps(FACT)}


@pytest.mark.parametrize(
    "message",
    [
        {"function_call": INSERT},
        {"tool_calls": {"function": INSERT}},
        {"tool_calls": [INSERT]},
        {"tool_calls": [{"function": {**INSERT, "arguments": json.dumps(json.dumps(FACT))}}]},
        {"tool_calls": [{"function": {**INSERT, "arguments": FACT}}]},
        {"tool_calls": [{"function": INSERT}], "content": "draft </think> so:"},
        {"tool_calls": [{"function": INSERT}], "content": "<think>so"},
        {"tool_calls": [], "function_call": INSERT},
    ],
)
def test_a_call_in_any_form_of_a_message_is_one(message):
    (call,) = parse_calls(completion_text(Reply(message, "stop", 1, 1)))
    assert (call.name, call.arguments, call.error) == ("memory_insert", FACT, None)
    (call,) = parse_calls(completion_text(Reply({"function_call": {"name": "f", "arguments": None}}, "stop", 1, 1)))
    assert call.arguments == {} and call.error is None
    twice = {"name": "f", "arguments": '{"a": 1, "a": 2}'}
    (call,) = parse_calls(completion_text(Reply({"function_call": twice}, "stop", 1, 1)))
    assert call.error == "malformed"


def test_nesting_without_end_is_a_malformed_call(tmp_path):
    request = SampleRequest(MESSAGES, max_new_tokens=8)
    endless = {"name": "f", "arguments": "[" * 100_000}
    (call,) = parse_calls(completion_text(Reply({"function_call": endless}, "stop", 1, 1)))
    assert call.error == "malformed"
    deep: Any = 1
    for _ in range(600):
        deep = {"a": deep}
    message = {"tool_calls": [{"function": {"name": "f", "arguments": deep}}]}
    with HostileServer(reply=lambda prompt, body: message) as server:
        policy = EndpointPolicy(server.name, EndpointConfig(cache=tmp_path / "a.sqlite"))
        assert policy.sample([request]) == policy.sample([request])
        assert (policy.client.bill.paid, policy.client.bill.cached) == (1, 1)
        policy.client.close()
    body = b'{"choices": [' + b"[" * 100_000
    with HttpStandIn(lambda *request: (200, {}, body)) as server:
        policy = EndpointPolicy(f"{server.url}/v1#m", EndpointConfig(retries=0))
        with pytest.raises(PolicyError, match="half an answer"):
            policy.sample([request])
        policy.client.close()


def test_text_and_thinking_around_calls():
    two = calls(("a", "{}"), ("b", '{"x": 1}'))

    def names(content):
        return [
            call.name
            for call in parse_calls(completion_text(Reply({"content": content, "tool_calls": two}, None, 1, 1)))
        ]

    assert names(None) == names("I shall do it.") == names("<think>never closed") == ["a", "b"]
    assert names("<think>maybe <tool_call> {} </tool_call></think>now:") == ["a", "b"]
    assert completion_text(Reply({"content": "plain", "tool_calls": []}, None, 1, 1)) == "plain"
    assert completion_text(Reply({"refusal": "I will not"}, None, 1, 1)) == "I will not"
    assert completion_text(Reply({}, None, 1, 1)) == ""


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_objects = st.dictionaries(st.text(max_size=3), _values, max_size=3)
_functions = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["memory_skip", ""]) | st.text(max_size=4) | st.none(),
        "arguments": st.builds(json.dumps, _objects) | st.text(max_size=8) | _values,
    }
)


@given(st.lists(st.fixed_dictionaries({"function": _functions | _values}), max_size=3))
def test_the_text_holds_the_calls_that_the_message_had(tool_calls):
    """By whatever a server sends: read from text or from the message, the calls are the same."""
    text = completion_text(Reply({"tool_calls": tool_calls}, None, 1, 1))
    found = [(call.name, call.arguments, call.error) for call in parse_calls(text)]
    assert found == [(call.name, call.arguments, call.error) for call in from_openai(tool_calls)]


RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|end\|>", "content": "text"},
    },
}
"""How the server finds the parts of a reply in the tiny policy's tokens; else it takes those of a Qwen3 for granted."""

SERVING = ("fastapi", "uvicorn", "openai")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The shipped tiny policy behind `transformers serve`."""
    missing = [name for name in SERVING if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"transformers serve needs {', '.join(missing)}")
    home = tmp_path_factory.mktemp("hub")
    weights = str(shutil.copytree(str(resources.files("memalpha") / "weights" / "tiny"), home / "tiny"))
    described = Path(weights) / "tokenizer_config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "response_template": RESPONSE}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", weights]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with (home / "log").open("w") as log:
        environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not _healthy(port):
            assert process.poll() is None and time.monotonic() < deadline, (home / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1#{weights}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(port: int) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_writer_and_reader_behind_a_real_server(served):
    """The served tiny policy builds the memories and gives the answers that the same weights do here."""
    tasks = synthetic.tasks(WorldConfig(split="test"), -1, 0, 2)
    agent = AgentConfig(prompt="compact", max_new_tokens=96)
    here, there = load_policy("tiny"), load_policy(served, endpoint=EndpointConfig(concurrency=2))
    settings = ReaderConfig(kind="policy", prompt="compact", max_new_tokens=8)
    reports = [
        evaluate(policy, tasks, load_reader(settings, policy), config=agent, name="tiny") for policy in (here, there)
    ]
    for one, two in zip(reports[0].groups, reports[1].groups, strict=True):
        assert [t.calls for t in one.trajectories[0].turns] == [t.calls for t in two.trajectories[0].turns]
    said = [[(r.question_id, r.answer, r.retrieved, r.correct) for r in report.records] for report in reports]
    assert said[0] == said[1]
    assert sum(len(turn.calls) for group in reports[1].groups for turn in group.trajectories[0].turns) > 5
    bill = there.statistics()
    assert bill["doubted"] == 0 and bill["paid"] == bill["asked"] - bill["shared"], bill
