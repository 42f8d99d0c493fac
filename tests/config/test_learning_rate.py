"""The default learning rate: its ends, its rounding, and what a shipped configuration's rate holds for."""

import pytest

from memalpha.config import training_config
from memalpha.config.learner import default_learning_rate
from memalpha.errors import ConfigError

TINY, BILLIONS = 787_840, 4_022_468_096


def test_the_law_passes_through_the_measured_and_the_published_rates():
    assert default_learning_rate(TINY) == default_learning_rate(739_456) == default_learning_rate(1_000) == 4e-4
    assert default_learning_rate(BILLIONS) == 1e-6, "Mem-alpha, TRL's GRPO"
    assert default_learning_rate(BILLIONS, lora=True) == 1e-5
    assert default_learning_rate(BILLIONS, supervised=True) == 2e-5, "TRL's SFTTrainer"
    assert default_learning_rate(BILLIONS, supervised=True, lora=True) == 2e-4, "QLoRA"


@pytest.mark.parametrize(("name", "rate"), [("demo", 1e-6), ("sft", 2e-5), ("arithmetic", 1e-6)])
def test_another_policy_brings_the_default_back(name, rate):
    assert training_config(name).optimizer.learning_rate == 4e-4
    config = training_config(name, {"policy": "owner/large"})
    assert config.optimizer.learning_rate is None
    assert config.with_learning_rate(BILLIONS).optimizer.peak_rate == rate
    config = training_config(name, {"policy": "owner/large", "learning_rate": 3e-6})
    assert config.with_learning_rate(BILLIONS).optimizer.peak_rate == 3e-6


def test_the_constant_of_dr_grpo_is_the_longest_reply():
    config = training_config("demo", {"policy": "owner/large"})
    assert config.loss.loss_constant is None and config.reply_tokens == config.agent.max_new_tokens == 64
    assert training_config("demo").loss.loss_constant == 16
    assert training_config("demo", {"loss_type": "grpo"}).loss.loss_type == "grpo", "16 is recorded, and not read"
    with pytest.raises(ConfigError, match="loss_constant: has no effect with loss_type=grpo"):
        training_config("demo", {"loss_type": "grpo", "loss_constant": 8})


def test_a_rate_that_depends_on_a_model_is_not_guessed():
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate"):
        _ = training_config("demo", {"policy": "owner/large"}).optimizer.peak_rate
