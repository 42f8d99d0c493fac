"""memalpha's rewards in TRL's trainer."""

from __future__ import annotations

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl_toy import tasks

from memalpha.config.rewards import FormatPart
from memalpha.rewards.environments import load_rewards


def says_yes(prompts, completions):
    return [float("yes" in str(completion)) for completion in completions]


async def kind_reward(prompts, completions, kind):
    return [float(name == "word") if name else None for name in kind]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_memalpha_rewards_work_in_trl(make_trainer):
    """Names and None are kept, and async functions work."""
    pattern = FormatPart(kind="format", pattern="[a-z]+", match="search")
    functions = list(load_rewards([pattern, kind_reward, says_yes]))
    settings = {"reward_weights": [1.0, 2.0, 0.5], "max_steps": 1}
    trainer = make_trainer(GRPOTrainer, GRPOConfig, data=tasks(True), reward=functions, **settings)
    trainer.train()
    line = trainer.state.log_history[0]
    means = {name: line[f"rewards/{name}/mean"] for name in ("format", "kind_reward", "says_yes")}
    assert 0 < means["format"] < 1
    assert line["reward"] == pytest.approx(means["format"] + 2 * means["kind_reward"] + 0.5 * means["says_yes"])
