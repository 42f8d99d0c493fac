"""Training runs related to each other: equal rewards teach nothing and change nothing."""

from __future__ import annotations

import json
from functools import partial

import pytest
from run_kinds import small_config
from runs import lines, same, weights

from memalpha.config import TextConfig
from memalpha.train.api import train
from memalpha.types import TextTask

ALGORITHMS = {
    "grpo": {},
    "grpo, scaled over the step": {"scale_rewards": "batch"},
    "grpo, two epochs": {"num_iterations": 2, "minibatches": 3, "old_logprobs": "recomputed"},
    "rloo": {"algorithm": "rloo"},
    "dpo": {"algorithm": "dpo"},
    "erl": {"algorithm": "erl", "erl": {"reflection_tokens": 3}},
}
EQUAL = 0.3
"""A reward whose mean over three rollouts is another float."""


class Rewards:
    """Reward replies by the sum of their bytes, or all alike once `flat` is set."""

    flat = False

    def of_bytes(self, completions):
        return [EQUAL if self.flat else sum(text.encode()) % 7 / 7 for text in completions]


@pytest.fixture
def text(policy_path, tmp_path):
    base = {"group_size": 3, "tasks_per_step": 4, "warmup_steps": 0, "eval_tasks": 1, "validation_tasks": 0}
    base |= {"save_every": 1, "keep_checkpoints": 9}
    return partial(small_config, TextConfig, policy_path, tmp_path, **base)


def run_text(config: TextConfig, rewards: Rewards):
    return train(config, tasks=[TextTask(id=f"t{n}", prompt=f"{n}?") for n in range(30)], rewards=[rewards.of_bytes])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_of_equal_rewards_changes_no_state(text, name):
    rewards = Rewards()
    run_text(text(max_steps=1, **ALGORITHMS[name]), rewards)
    rewards.flat = True
    out = text().out
    run_text(text(max_steps=2, **ALGORITHMS[name]), rewards)
    for part in ("model", "optimizer"):
        assert same(weights(out, 1, part), weights(out, 2, part)), part
    states = [json.loads((out / f"checkpoints/step-{step}/state.json").read_text()) for step in (1, 2)]
    assert states[0]["algorithm"] == states[1]["algorithm"]
    first, line = lines(out / "metrics.jsonl")
    assert first["tokens"] > 0 and first["grad_norm"] > 0 and first["skipped_updates"] == 0
    assert line["tokens"] == 0 == line.get("grad_norm", 0) and line["reward"] == pytest.approx(EQUAL)
    if name != "dpo":  # which has no rows then
        epochs, parts = ALGORITHMS[name].get("num_iterations", 1), ALGORITHMS[name].get("minibatches", 2)
        assert line["skipped_updates"] == epochs * parts
        assert line["rows_without_weight"] >= epochs * 12
        assert line["entropy"] is None and line.keys() == first.keys(), "no pass, the same names"


@pytest.mark.parametrize("changes", [{"beta": 0.1}, {"entropy_coef": 0.1}, {"algorithm": "ppo", "group_size": 1}])
def test_what_is_not_flat_alone_moves_weights(text, changes):
    """With a KL or an entropy bonus rows keep a weight without any advantage; ppo's value head learns the returns."""
    rewards = Rewards()
    rewards.flat = True
    config = text(max_steps=1, **changes)
    run_text(config, rewards)
    [line] = lines(config.out / "metrics.jsonl")
    assert line["rows_without_weight"] == 0 == line["skipped_updates"] and line["tokens"] > 0
    assert "algorithm" not in changes or not same(weights(config.out, 0), weights(config.out, 1))
