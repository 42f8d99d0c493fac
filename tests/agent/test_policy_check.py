"""`check_policy`: what can work is said to, what cannot is refused with its reason."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import trl

from memalpha.agent.policy_check import check_policy
from memalpha.config import AgentConfig
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from tests.support.standin import StandIn
from tests.support.tiny import tiny_model, tiny_tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
ROOM = AgentConfig(view_tokens=64, max_new_tokens=64)


def policy_of(family: str, positions: int = 32768) -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
    model = tiny_model(vocab=len(tokenizer))
    model.config.max_position_embeddings = positions
    return TransformersPolicy(model, tokenizer, family)


def test_a_native_family():
    result = check_policy(policy_of("qwen3_5_think"))
    assert (result.template, result.format, result.thinking) == ("qwen3_5", "native", "switch")
    assert result.tools_shown and result.calls_read_back and not result.problems
    assert json.loads(json.dumps(asdict(result)))["calls_read_back"] is True


def test_no_room_is_refused_and_little_room_is_noted():
    small = policy_of("qwen3", positions=2048)
    result = check_policy(small, ROOM)
    assert result.chunk_room is not None and result.chunk_room < 0 and "lower them" in result.problems[0]
    with pytest.raises(PolicyError, match=r"'qwen3' cannot write a memory: the model takes 2048 tokens"):
        result.raise_if_broken()
    length = result.prompt_tokens
    roomy = policy_of("qwen3", positions=length + 64 + 64 + 63)
    noted = check_policy(roomy, ROOM)
    assert noted.chunk_room == 63 and not noted.problems and "lower them" in noted.notes[-1]
    assert check_policy(policy_of("qwen3", positions=length + 64 + 64 + 64), ROOM).chunk_room == 64


def test_a_tokenizer_that_loses_characters_is_refused():
    lossy = policy_of("qwen3")
    lossy.tokenizer.decode = lambda ids, **_: "".join(chr(65 + id % 26) for id in ids)
    assert any("not read back" in problem for problem in check_policy(lossy).problems)


def test_thinking_in_a_channel_of_its_own_is_noted():
    always = policy_of("gptoss")
    assert any("thinking_tokens" in note for note in check_policy(always).notes)
    budget = AgentConfig(thinking_tokens=100)
    assert not any("set thinking_tokens" in note for note in check_policy(always, budget).notes)


def test_only_the_configuration_is_needed(tmp_path):
    policy_of("qwen3").save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shape = load_policy(tmp_path, device="meta")
    assert check_policy(shape).format == "hermes"
    with pytest.raises(PolicyError, match="cannot load policy"):
        load_policy(tmp_path)


def test_scripted_and_shipped_policies():
    assert check_policy(load_policy("add_all")).calls_read_back
    assert check_policy(load_policy("tiny", device="meta")).format == "compact"


@pytest.mark.parametrize("reads", [True, False])
def test_an_endpoint_is_asked_once(reads):
    call = {"type": "function", "function": {"name": "memory_skip", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    with StandIn(lambda body: message if reads else "I would remember that Ana moved.") as server:
        result = check_policy(load_policy(f"{server.url}#m"))
    assert result.calls_read_back == reads and bool(result.problems) != reads
    assert sum("tools" in body for body in server.bodies) == 1
