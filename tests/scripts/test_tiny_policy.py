"""The shipped tiny policy: plain files of bounded size; its tokenizer, calls and reader do what they must."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memalpha.agent.parsing import format_call, parse_calls  # noqa: E402
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig  # noqa: E402
from memalpha.environments import memory_engine  # noqa: E402
from memalpha.policy.scripted import ScriptedPolicy  # noqa: E402
from memalpha.policy.transformers import TransformersPolicy  # noqa: E402
from memalpha.qa.evaluate import evaluate  # noqa: E402
from memalpha.qa.reader import load_reader  # noqa: E402
from memalpha.tasks.synthetic.worlds import tasks  # noqa: E402

FOLDER = Path(str(resources.files("memalpha"))) / "weights" / "tiny"
AGENT = AgentConfig(prompt="compact", max_new_tokens=64)


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    torch.set_num_threads(1)
    return TransformersPolicy.from_pretrained(FOLDER)


def test_weights_are_small_and_plain() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 4 * 2**20
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    assert model.dtype == torch.float32
    assert 0.7e6 < sum(weight.numel() for weight in model.parameters()) < 0.9e6
    assert transformers.AutoTokenizer.from_pretrained(FOLDER).eos_token == "<|end|>"


CALLS = [
    format_call("memory_insert", {"category": "semantic", "content": 'city: "Oslo" {x}'}),
    format_call("memory_insert", {"category": "episodic", "content": "trip: Rome"}),
    format_call("memory_update", {"id": "city#e", "content": "city: Rome"}),
    format_call("memory_delete", {"id": "city#e"}),
    format_call("memory_skip", {}),
]


def test_calls_take_few_tokens_and_decode_to_themselves(policy: TransformersPolicy) -> None:
    for call in CALLS:
        ids = policy.tokenizer(call, add_special_tokens=False)["input_ids"]
        assert policy.tokenizer.decode(ids) == call
        assert len(ids) <= 16
        assert not parse_calls(call)[0].error
    assert len(policy.tokenizer(CALLS[-1], add_special_tokens=False)["input_ids"]) == 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_decode_undoes_encode(policy: TransformersPolicy, text: str) -> None:
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert policy.tokenizer.decode(ids) == text


def test_chat_template_is_the_compact_one(policy: TransformersPolicy) -> None:
    ids = policy.render([{"role": "user", "content": "memory\nchunk\nuser: Hi."}])
    assert policy.tokenizer.decode(ids) == "<|user|>memory\nchunk\nuser: Hi.<|assistant|>"


def test_start_writes_valid_calls_and_selects_badly(policy: TransformersPolicy) -> None:
    held_out = tasks(WorldConfig(split="test"), 7, 0, 30)
    reader = load_reader(ReaderConfig(kind="policy", prompt="compact"), policy)
    before = evaluate(policy, held_out, reader, config=AGENT).summary
    perfect = evaluate(ScriptedPolicy("oracle"), held_out, reader, config=AGENT).summary
    assert before["valid_calls"] >= 0.85, json.dumps(before)
    assert perfect["accuracy"] >= 0.9
    assert 0.25 <= before["accuracy"] <= 0.7
    assert before["update_hit"] <= 0.65
    assert before["delete_hit"] <= 0.65


def test_completions_end_by_themselves(policy: TransformersPolicy) -> None:
    groups = memory_engine(policy, AGENT).roll_out(tasks(WorldConfig(split="test"), 8, 0, 10))
    turns = [turn for group in groups for turn in group.trajectories[0].turns]
    assert sum(turn.completion.stop_reason == "eos" for turn in turns) >= 0.9 * len(turns)
