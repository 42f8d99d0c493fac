"""The shipped bAbI policy: plain files of bounded size; its tokenizer, calls and reader do what they must."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memalpha import train  # noqa: E402
from memalpha.agent.parsing import format_call, parse_calls  # noqa: E402
from memalpha.config import BabiConfig, TrainConfig, load_config  # noqa: E402
from memalpha.errors import ConfigError  # noqa: E402
from memalpha.policy.load import load_policy  # noqa: E402
from memalpha.policy.scripted import ScriptedPolicy  # noqa: E402
from memalpha.policy.transformers import TransformersPolicy  # noqa: E402
from memalpha.qa.evaluate import evaluate  # noqa: E402
from memalpha.qa.reader import load_reader  # noqa: E402
from memalpha.tasks.datasets import babi  # noqa: E402
from memalpha.tasks.formats.jsonl import save_jsonl  # noqa: E402
from memalpha.train.rollouts.memory_tasks import TaskSource  # noqa: E402

FOLDER = Path(str(resources.files("memalpha"))) / "weights" / "babi"


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    torch.set_num_threads(1)
    policy = load_policy("babi")
    assert isinstance(policy, TransformersPolicy)
    return policy


def test_weights_are_small_and_plain(policy: TransformersPolicy) -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 2 * 2**20
    assert policy.name == "babi"
    assert policy.model.dtype == torch.float32
    assert 0.7e6 < policy.parameters < 0.9e6


CALLS = [
    format_call("memory_insert", {"category": "semantic", "content": "mary: kitchen; has football, milk"}),
    format_call("memory_update", {"id": "mary#e", "content": "mary: not garden"}),
    format_call("memory_delete", {"id": "football#e"}),
    format_call("memory_skip", {}),
]


def test_calls_take_few_tokens_and_decode_to_themselves(policy: TransformersPolicy) -> None:
    for call in CALLS:
        ids = policy.tokenizer(call, add_special_tokens=False)["input_ids"]
        assert policy.tokenizer.decode(ids) == call
        assert len(ids) <= 8
        assert not parse_calls(call)[0].error


def test_names_and_phrases_are_one_token(policy: TransformersPolicy) -> None:
    for name in (*babi.FEMALE, *babi.MALE, *babi.THINGS):
        for text in (f" {name}", name.lower(), f" {name.lower()}", f" {name} went back to the"):
            assert policy.count_tokens(text) == 1 + text.endswith(" the"), text


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_decode_undoes_encode(policy: TransformersPolicy, text: str) -> None:
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert policy.tokenizer.decode(ids) == text


def test_start_writes_valid_calls_selects_badly_and_reads_well(policy: TransformersPolicy) -> None:
    config = load_config(TrainConfig, "babi")
    tasks = babi.streams(BabiConfig(stories=6), "test", 0, 100, 6)
    reader = load_reader(config.reader.model_copy(update={"conflicts": "refuse"}), policy)
    before = evaluate(policy, tasks, reader, config=config.agent).summary
    perfect = evaluate(ScriptedPolicy("oracle"), tasks, reader, config=config.agent).summary
    assert before["valid_calls"] >= 0.95, json.dumps(before)
    assert perfect["accuracy"] >= 0.93
    assert 0.4 <= before["accuracy"] <= 0.8
    assert before["update_hit"] >= 0.35  # less, and reinforcement learning goes over to inserting only


def test_training_streams_are_refused_as_held_out_ones(tmp_path: Path) -> None:
    save_jsonl(babi.streams(BabiConfig(), "train", 3, 2, 2), tmp_path / "mine.jsonl")
    config = load_config(TrainConfig, "babi", {"seed": 3, "eval_data": str(tmp_path / "mine.jsonl")})
    with pytest.raises(ConfigError, match="among the training tasks"):
        TaskSource(config)


def test_train_babi_takes_a_step(tmp_path: Path) -> None:
    """One step offline, from the shipped weights and the shipped stories; held out are longer streams of test ones."""
    small = {"max_steps": 1, "eval_tasks": 2, "validation_tasks": 1, "tasks_per_step": 1, "group_size": 2}
    summary = train("babi", out=str(tmp_path / "run"), babi={"stories": 2}, eval_babi={"stories": 3}, **small)
    assert summary["steps"] == 1
    assert set(summary["baselines"]) == {"oracle", "append_only"}
    assert any(name.startswith("qa") for name in summary["after"]["by_ability"])
