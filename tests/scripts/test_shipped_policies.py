"""The shipped policies: plain files of bounded size; their tokenizers, calls and replies do what training needs."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memalpha import train  # noqa: E402
from memalpha.config import AgentConfig, BabiConfig, ReaderConfig, WorldConfig, training_config  # noqa: E402
from memalpha.errors import ConfigError  # noqa: E402
from memalpha.policy.load import load_policy  # noqa: E402
from memalpha.policy.scripted import ScriptedPolicy  # noqa: E402
from memalpha.policy.transformers import TransformersPolicy  # noqa: E402
from memalpha.qa.evaluate import evaluate  # noqa: E402
from memalpha.qa.reader import load_reader  # noqa: E402
from memalpha.tasks.datasets import babi  # noqa: E402
from memalpha.tasks.formats.jsonl import save_jsonl  # noqa: E402
from memalpha.tasks.synthetic import arithmetic, programs, worlds  # noqa: E402
from memalpha.train.rollouts.memory_tasks import TaskSource  # noqa: E402
from memalpha.types import SampleRequest  # noqa: E402

WEIGHTS = Path(str(resources.files("memalpha"))) / "weights"


@pytest.fixture(scope="module", params=["tiny", "babi", "tiny-text"])
def policy(request) -> TransformersPolicy:
    torch.set_num_threads(1)
    policy = load_policy(request.param)
    assert isinstance(policy, TransformersPolicy)
    return policy


writers = pytest.mark.parametrize("policy", ["tiny", "babi"], indirect=True)


def test_weights_are_small_and_plain(policy: TransformersPolicy) -> None:
    files = [path for path in (WEIGHTS / policy.name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4 * 2**20
    assert policy.model.dtype == torch.float32
    assert 0.5e6 < policy.parameters < 0.9e6


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_decode_undoes_encode(policy: TransformersPolicy, text: str) -> None:
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert policy.tokenizer.decode(ids) == text


@writers
def test_a_writer_starts_with_valid_calls_and_selects_badly(policy: TransformersPolicy) -> None:
    if policy.name == "babi":
        config = training_config("babi")
        tasks = babi.streams(BabiConfig(stories=6), "test", 0, 100, 3)
        reader = load_reader(config.reader.model_copy(update={"conflicts": "refuse"}), policy)
        agent, least_update_hit, most_update_hit = config.agent, 0.35, 1.0  # less: learning goes over to inserting only
    else:
        tasks = worlds.tasks(WorldConfig(split="test"), 7, 0, 15)
        reader = load_reader(ReaderConfig(kind="policy", prompt="compact"), policy)
        agent, least_update_hit, most_update_hit = AgentConfig(prompt="compact", max_new_tokens=64), 0.0, 0.65
    before = evaluate(policy, tasks, reader, config=agent).summary
    perfect = evaluate(ScriptedPolicy("oracle"), tasks, reader, config=agent).summary
    assert before["valid_calls"] >= 0.85, json.dumps(before)
    assert perfect["accuracy"] >= 0.9
    assert 0.25 <= before["accuracy"] <= 0.8
    assert least_update_hit <= before["update_hit"] <= most_update_hit


@pytest.mark.parametrize("task_set", [arithmetic, programs])
def test_a_start_on_text_tasks_has_room_to_learn(task_set) -> None:
    tasks = task_set.tasks("test", 5, 0, 90)
    requests = [SampleRequest(({"role": "user", "content": task.text},), max_new_tokens=48) for task in tasks]
    replies = [completion.text for completion in load_policy("tiny-text").sample(requests)]
    right = sum(reply == task.columns["solution"] for reply, task in zip(replies, tasks, strict=True))
    assert 0.2 < right / len(tasks) < 0.7


def test_training_streams_are_refused_as_held_out_ones(tmp_path: Path) -> None:
    save_jsonl(babi.streams(BabiConfig(), "train", 3, 2, 2), tmp_path / "mine.jsonl")
    config = training_config("babi", {"seed": 3, "eval_data": str(tmp_path / "mine.jsonl")})
    with pytest.raises(ConfigError, match="among the training tasks"):
        TaskSource(config)


def test_train_babi_takes_a_step(tmp_path: Path) -> None:
    """One step offline, from the shipped weights and the shipped stories; held out are longer streams of test ones."""
    small = {"max_steps": 1, "eval_tasks": 1, "validation_tasks": 1, "tasks_per_step": 1, "group_size": 2}
    summary = train("babi", out=str(tmp_path / "run"), babi={"stories": 2}, eval_babi={"stories": 3}, **small)
    assert summary["steps"] == 1
    assert set(summary["baselines"]) == {"oracle", "append_only"}
    assert any(name.startswith("qa") for name in summary["after"]["by_ability"])
