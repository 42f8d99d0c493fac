"""A reward model as a component: of memory runs (`reward.model`), and of text tasks (`kind: model`)."""

from __future__ import annotations

import pytest
import torch
from runs import lines
from tiny import tiny_model, tiny_tokenizer

from memalpha.config import RewardConfig, TextConfig
from memalpha.config.rewards import MathPart, ModelPart
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.reward_model import Head, RewardModel, add_reward_head
from memalpha.qa.memory_pairs import conversation_messages, memory_text
from memalpha.rewards.base import score_texts
from memalpha.rewards.environments import TextGeneration, load_rewards
from memalpha.train.api import train
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.types import TextTask


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A reward model with a random head, on disk, and as it is."""
    model = add_reward_head(tiny_model(), Head("mean", {"reward": 1.0}), tiny_tokenizer(), "tiny")
    torch.manual_seed(0)
    model.score.weight.data.normal_(0, 0.2)
    made = RewardModel(model, tiny_tokenizer(), Head("mean", {"reward": 1.0}))
    path = tmp_path_factory.mktemp("judge")
    made.save(path)
    return path, made


ALONE = {"accuracy": 0.0, "calls": 0.0, "beta": 0.0, "gamma": 0.0}


def test_a_memory_run_learns_from_the_model_alone(small, judge):
    path, model = judge
    settings = small(reward={**ALONE, "model": {"path": str(path), "weight": 0.5}}, schedule_steps=1, validate_every=1)
    summary = train(settings)
    [line] = lines(settings.out / "metrics.jsonl")
    rollouts = lines(settings.out / "trajectories.jsonl")
    tasks = {task.id: task for task in TaskSource(settings).batch(0)}
    for rollout in rollouts:
        task = tasks[rollout["task"]]
        assert rollout["memory"] == [], "random weights write nothing that can be stored"
        expected = model.score([conversation_messages(task)], [memory_text([])])[0]
        assert rollout["components"]["model"] == pytest.approx([expected] * len(rollout["turns"]), abs=1e-5)
        assert rollout["reward"] == pytest.approx(0.5 * expected, abs=1e-5)
    assert line["reward"] == pytest.approx(0.5 * line["model"], abs=1e-5)
    assert summary["before"]["reward"] != 0


def test_a_model_that_is_not_there_is_refused_before_anything_is_sampled(small, tmp_path):
    with pytest.raises(PolicyError, match="no reward model at"):
        train(small(reward={"model": {"path": str(tmp_path / "none")}}))
    assert RewardConfig().model is None and (RewardConfig().accuracy, RewardConfig().calls) == (1.0, 1.0)


def test_a_text_task_is_scored_by_the_model(judge):
    path, model = judge
    bare = load_rewards([ModelPart(kind="model", path=str(path), chat=False)])
    assert [one.total for one in score_texts(bare, ["a"], ["x"], {})] == pytest.approx(model.score(["a"], ["x"]))
    functions = load_rewards([ModelPart(kind="model", path=str(path), weight=2.0)])
    rewards = score_texts(functions, ["a", "b"], ["x", "yes"], {})
    shown = [[{"role": "user", "content": text}] for text in ("a", "b")]  # as the policy is shown a text
    expected = model.score(shown, ["x", "yes"])
    assert [reward.components["model"][0] for reward in rewards] == pytest.approx(expected, abs=1e-6)
    assert [reward.total for reward in rewards] == pytest.approx([2 * value for value in expected], abs=1e-6)
    chat = [[{"role": "user", "content": "a"}]]
    [reward] = score_texts(functions, chat, ["x"], {})
    assert reward.total == pytest.approx(2 * model.score(chat, ["x"])[0], abs=1e-6)
    assert functions[0].maximum == float("inf")


def test_erl_needs_a_part_that_says_what_a_success_is(judge, tmp_path):
    path, _ = judge
    settings = {"policy": "tiny-text", "out": tmp_path / "run", "data": "arithmetic", "algorithm": "erl"}
    with pytest.raises(ConfigError, match="a reward model has no maximum"):
        train(TextConfig(**settings, rewards=[{"kind": "model", "path": str(path)}]))
    environment = TextGeneration(
        load_rewards([ModelPart(kind="model", path=str(path)), MathPart(kind="math", weight=0.0)])
    )
    task = TextTask(id="a", prompt="1+1?", columns={"answer": "2"})
    assert [environment.success(reward) for reward in environment.score([task, task], ["2", "3"])] == [1.0, 0.0]
