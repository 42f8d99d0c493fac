"""TRL as a back end for rollouts of many contexts: the gradient equals the learner's for any number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import peft
import pytest
import torch
from tiny import VOCABULARY
from trl import GRPOConfig
from trl_toy import COMMON

from memalpha.config import TextConfig, TrainConfig
from memalpha.environments import RolloutEngine
from memalpha.errors import ConfigError, TrainingError
from memalpha.integrations.trl import MultiContextGRPOTrainer, memory_collector
from memalpha.policy.transformers import TransformersPolicy
from memalpha.rewards.environments import TextGeneration
from memalpha.rewards.evaluate import TextScorer
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import Chunk, Completion, Reward, Task, TextTask, Trajectory, TrajectoryGroup, Turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
LONGEST = 12
SETTINGS = {name: value for name, value in COMMON.items() if name not in ("max_completion_length", "model_init_kwargs")}
QUICK = {("dapo", 0.0, False), ("grpo", 0.3, True), ("grpo", 0.3, False)}


def perturb(parameters: dict[str, torch.Tensor]) -> None:
    """Add noise to adapters and weights, the same for the same names."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name in sorted(parameters):
            noise = torch.randn(parameters[name].shape)
            parameters[name].copy_(0.1 * noise if "lora_" in name else parameters[name] + 0.02 * noise)


@dataclass
class RecordedCollector:
    """Collector of four recorded rollouts per task, with 1 to 4 turns of random lengths and rewards."""

    policy: Any
    config: Any

    def sample(self, tasks, step, first=0, turn=0):
        random = np.random.default_rng(2)

        def make_turn(chunk):
            prompt, ids = (tuple(random.integers(3, VOCABULARY, random.integers(1, n)).tolist()) for n in (30, LONGEST))
            old_logprobs = (-5 + random.normal(size=len(ids))).tolist()
            return Turn(chunk, Completion("", prompt, ids, tuple(old_logprobs), self.config.sampling.temperature))

        def make_rollout(task, number):
            turns = tuple(make_turn(chunk) for chunk in range(random.integers(1, 5)))
            values = tuple(random.normal(size=len(turns)).tolist())
            return Trajectory(task, number, turns, (), Reward(values, {"r2": values}, {"r2": 1.0}, sum(values)))

        return [TrajectoryGroup(task, tuple(make_rollout(task, n) for n in range(4))) for task in tasks]

    def score(self, groups):
        return groups, []


def make_trainer(policy, tmp_path, lora, config, **settings):
    args = GRPOConfig(str(tmp_path / "run"), **{**SETTINGS, "gradient_accumulation_steps": 2, **settings})
    tasks = [Task(id=str(n), chunks=(Chunk(text="."),)) for n in range(2)]
    collector = RecordedCollector(TransformersPolicy.from_pretrained(policy), config)
    return MultiContextGRPOTrainer(collector, tasks, args, peft_config=peft.LoraConfig(**LORA) if lora else None)


@pytest.mark.parametrize(
    ("loss", "beta", "lora"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in product(("dapo", "grpo", "dr_grpo"), (0.0, 0.3), (False, True))
    ],
)
def test_the_gradient_equals_the_learners(policy, tmp_path, loss, beta, lora):
    common = {"temperature": 0.7, "group_size": 4}
    shared = {"beta": beta, "loss_type": loss, "epsilon": 0.1, "epsilon_high": 0.3}
    longest = {"max_completion_length": LONGEST} if loss == "dr_grpo" else {}
    collected = TrainConfig(out="unused", **common)
    trainer = make_trainer(policy, tmp_path, lora, collected, **shared, temperature=0.7, **longest)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    trainer.state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
    trained = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    perturb(trained)
    counts = []
    for _ in range(2):
        inputs = trainer._prepare_inputs([{"prompt": str(n // 4)} for n in range(8)])
        trainer.compute_loss(trainer.model, inputs).backward()
        trainer._step += 1
        counts.append(len(inputs["prompt_ids"]))

    constant = {"loss_constant": LONGEST} if loss == "dr_grpo" else {}
    config = TrainConfig(
        out="unused", microbatch_tokens=100, lora=LORA if lora else None, **common, **shared, **constant
    )
    model = TransformersPolicy.from_pretrained(policy).model
    model = add_lora(model, config.lora, "tiny") if lora else model
    engine = Engine(model, config, LossSettings.from_config(config.loss, 16), reference=beta > 0)
    perturb(engine.trainable)
    groups = RecordedCollector(None, config).sample(trainer.tasks, 0)
    samples = ALGORITHMS["grpo"](config).annotate(groups, engine)
    assert sum(counts) > len(samples), "there must be dead rows"
    stats = engine.forward_backward(engine.normalized(samples))
    assert 0.05 < stats["clipped"] < 0.95
    assert trained.keys() == engine.trainable.keys()
    gap = sum(float((trained[name].grad - engine.trainable[name].grad).double().square().sum()) for name in trained)
    size = sum(float(weight.grad.double().square().sum()) for weight in engine.trainable.values())
    assert (gap / size) ** 0.5 < 1e-5


def test_memory_tasks_train(policy, tmp_path):
    """Rollouts over real tasks use the current weights: the first ratio of each update is 1."""
    agent = {"prompt": "compact", "embedder": "hash", "max_new_tokens": 8}
    config = TrainConfig(out=tmp_path / "run", policy=policy, agent=agent, group_size=4, temperature=0.9)
    args = GRPOConfig(str(tmp_path / "trl"), **{**SETTINGS, "temperature": 0.9, "max_steps": 2, "num_iterations": 1})
    tasks = synthetic.tasks(config.world, 0, 0, 3)
    trainer = MultiContextGRPOTrainer(memory_collector(config), tasks, args)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.train()
    assert any(not torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())
    for line in trainer.state.log_history[:2]:
        assert line["rows"] >= 8 and line["clip_ratio/region_mean"] == 0 and line["reward_std"] > 0
    with pytest.raises(TrainingError, match=r"memalpha\.evaluate"):
        trainer.model.eval()
        trainer._generate_and_score_completions([{"prompt": "0"}] * 4)


@pytest.mark.slow
def test_text_tasks_train(policy, tmp_path):
    """A text run's worker works; a rollout without a reward gives no row."""
    config = TextConfig(out=str(tmp_path / "run"), group_size=4, rewards=[], max_new_tokens=8)

    def odd_length(prompts, completions, **columns):
        return [None if i == 1 else float(len(completion) % 2) for i, completion in enumerate(completions)]

    environment = TextGeneration([odd_length])
    engine = RolloutEngine(TransformersPolicy.from_pretrained(policy), environment, max_new_tokens=8)
    args = GRPOConfig(str(tmp_path / "trl"), **{**SETTINGS, "max_steps": 2})
    tasks = [TextTask(id=str(number), prompt=f"Say {number}") for number in range(4)]
    trainer = MultiContextGRPOTrainer(RolloutWorker(engine, TextScorer(environment), config), tasks, args)
    trainer.train()
    assert [line["rows"] for line in trainer.state.log_history[:2]] == [7, 7]


@pytest.mark.parametrize(
    ("changes", "trl_changes", "message"),
    [
        ({"temperature": 0.5}, {}, "temperature: rollouts are sampled with 0.5, GRPOConfig says 1.0"),
        ({"group_size": 3}, {}, "num_generations: rollouts are sampled with 3"),
        ({"algorithm": "ppo", "group_size": 4}, {}, "algorithm: ppo is not a pure policy gradient"),
        ({"beta": 0.1}, {}, "beta: is TRL's here"),
        ({}, {"scale_rewards": "none"}, "scale_rewards: is the collector's here"),
        ({}, {"max_completion_length": 9}, "max_completion_length: is the collector's here"),
        ({}, {"pad_to_multiple_of": 8}, "pad_to_multiple_of"),
        ({}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}, "batch_size"),
    ],
)
def test_settings_that_disagree_are_refused(policy, tmp_path, changes, trl_changes, message):
    config = TrainConfig(out="unused", **{"group_size": 4, **changes})
    with pytest.raises((ConfigError, ValueError), match=message):
        make_trainer(policy, tmp_path, False, config, **trl_changes)
