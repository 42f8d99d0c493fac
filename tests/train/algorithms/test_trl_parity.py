"""The same rows through TRL's trainers and through the learner: the same loss, gradient and advantages.

Three policies, all different, so that no two log-probs of a token can be taken for each other: the reference (the start
weights; adapter off), the sampler, and the one that trains. trl takes padded micro-batches and accumulates over three
of them, the learner its own length-sorted ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import peft
import pytest
import torch
from datasets import Dataset
from test_advantages import make_group
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer.utils import pad

from memalpha.config import TrainConfig
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.advantages import group_advantages
from memalpha.train.algorithms.base import mask_truncated
from memalpha.train.data.samples import policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.types import Completion, Turn

ROWS, STEPS, LONGEST = 12, 3, 20
SAMPLER, CURRENT = 1, 2
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 0.01, "epsilon_high": 0.02}
LOSSES = {
    "grpo": {},
    "dapo": {},
    "dr_grpo": {},
    "delta": {"loss_type": "dapo", "delta": 1.5},
    "cispo": {"epsilon_high": 1.4},
    "gspo": {"loss_type": "grpo", **SEQUENCE},
    "gspo-delta": {"loss_type": "dapo", **SEQUENCE, "delta": 1.05},
}
"""By name: settings of both sides (those without a `loss_type` are named after it)."""
KL = [(name, 0.3, True) for name in LOSSES] + [("dapo", 0.0, True), ("dapo", 0.3, False)]
"""A loss, `beta` and `use_bias_correction_kl`, which uses the ratio as the loss does."""
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers' own names on their way out


def learner(lora: bool, **changes) -> Engine:
    """On the start weights; its micro-batches hold 100 tokens."""
    settings = {"lora": LORA if lora else None, "epsilon_high": 0.3}
    if changes.get("loss_type") != "cispo":
        settings["epsilon"] = 0.1
    if changes.get("loss_type", "dr_grpo") == "dr_grpo":
        settings["loss_constant"] = LONGEST
    config = TrainConfig(out="unused", microbatch_tokens=100, **{**settings, **changes})
    model = tiny_model()
    if config.lora is not None:
        model = add_lora(model, config.lora, "tiny")
    return Engine(model, config, ALGORITHMS[config.algorithm](config).loss_settings, reference=config.loss.beta > 0)


def move(parameters: dict[str, torch.Tensor], seed: int) -> None:
    """A random step of full weights, random values of adapters: equal for equal names, whoever owns them."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name in sorted(parameters):
            noise = torch.randn(parameters[name].shape)
            parameters[name].copy_(0.1 * noise if "lora_" in name else parameters[name] + 0.02 * noise)


@cache
def ids() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ragged prompts and completions of random tokens."""
    random = np.random.default_rng(0)
    lengths = zip(random.integers(1, 60, ROWS), np.linspace(1, LONGEST, ROWS).astype(int), strict=True)
    return [
        (tuple(random.integers(3, VOCABULARY, p).tolist()), tuple(random.integers(0, VOCABULARY, c).tolist()))
        for p, c in lengths
    ]


@cache
def logprobs(lora: bool, seed: int | None, temperature: float) -> list[torch.Tensor]:
    """Return float64 log-probs of every completion, one unpadded row at a time; `seed` None is the start."""
    ours = learner(lora)
    if seed is not None:
        move(ours.trainable, seed)
    model = ours.model.double()
    result = []
    for prompt, completion in ids():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        result.append(torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    return result


def advantages() -> list[float]:
    return np.random.default_rng(1).normal(size=ROWS).tolist()


def make_trainer(kind, config_kind, policy_path, path, *, reward=lambda **_: [], lora: bool = False, **settings):
    """Build a trainer of TRL on the start weights."""
    plain = {"bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True}
    sizes = {"max_completion_length": LONGEST, "gradient_accumulation_steps": STEPS}
    sizes |= {"per_device_train_batch_size": ROWS // STEPS, "num_generations": ROWS // STEPS}
    trainer = kind(
        str(policy_path),
        reward,
        config_kind(str(path), model_init_kwargs={"dtype": "float32"}, **plain, **sizes, **settings),
        train_dataset=Dataset.from_dict({"prompt": [""]}),
        processing_class=tiny_tokenizer(),
        peft_config=peft.LoraConfig(**LORA) if lora else None,
    )
    trainer.current_gradient_accumulation_steps = STEPS  # what `train` sets before each window
    return trainer


def run_trl(trainer, lora: bool, temperature: float, cut=(), scale: float = 1.0):
    """Loss and gradient by name of one accumulation window: three padded micro-batches, each times `scale`.

    Completions of the rows `cut` are masked as TRL masks truncated ones.
    """
    model = trainer.model.train()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    move(parameters, CURRENT)

    def padded(values, side: str) -> torch.Tensor:
        return pad([torch.as_tensor(value) for value in values], padding_value=0, padding_side=side)

    prompts, completions = zip(*ids(), strict=True)
    old = logprobs(lora, SAMPLER, temperature)
    window = {
        "prompt_ids": padded(prompts, "left"),
        "prompt_mask": padded([[1] * len(row) for row in prompts], "left"),
        "completion_ids": padded(completions, "right"),
        "completion_mask": padded([[int(i not in cut)] * len(row) for i, row in enumerate(completions)], "right"),
        "old_per_token_logps": padded(old, "right").float(),
        "old_logps": torch.stack([row.sum() for row in old]).float(),
        "ref_per_token_logps": padded(logprobs(lora, None, temperature), "right").float(),
        "advantages": torch.tensor(advantages()),
    }
    count = window["completion_mask"].sum()
    loss = 0.0
    for step in range(STEPS):
        inputs = {name: rows[step::STEPS] for name, rows in window.items()}
        part = trainer._compute_loss(model, {**inputs, "num_items_in_batch": count}) * scale
        part.backward()
        loss += float(part.detach())
    return loss, {name: parameter.grad for name, parameter in parameters.items()}


def of_trl(policy_path, tmp_path, lora: bool, loss: dict, temperature: float, beta: float, corrected: bool, cut=()):
    """Loss and gradient of `GRPOTrainer`."""
    settings = {"epsilon": 0.1, "epsilon_high": 0.3, **loss, "temperature": temperature, "beta": beta}
    settings["use_bias_correction_kl"] = corrected
    trainer = make_trainer(GRPOTrainer, GRPOConfig, policy_path, tmp_path, lora=lora, **settings)
    return run_trl(trainer, lora, temperature, cut)


def run_ours(lora: bool, temperature: float, cut=(), **changes) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The same through the learner, whose reference is what it was constructed on."""
    ours = learner(lora, **changes)
    move(ours.trainable, CURRENT)
    samples = [
        policy_gradient_sample(Turn(0, Completion("", prompt, completion, tuple(old.tolist()), temperature)), advantage)
        for (prompt, completion), old, advantage in zip(
            ids(), logprobs(lora, SAMPLER, temperature), advantages(), strict=True
        )
    ]
    if beta := changes.get("beta"):
        references = ours.forward(samples, reference=True)
        samples = [
            replace(sample, reference=row, kl=sample.pg * np.float32(beta))
            for sample, row in zip(samples, references, strict=True)
        ]
    samples = [replace(sample, truncated=number in cut) for number, sample in enumerate(samples)]
    stats = ours.forward_backward(ours.normalized(mask_truncated(samples, ours.config)))
    return stats, {name: parameter.grad for name, parameter in ours.trainable.items()}


def relative(weight: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert weight.keys() == two.keys()
    gap = sum(float((weight[name] - two[name]).double().square().sum()) for name in weight)
    return (gap / sum(float(tensor.double().square().sum()) for tensor in two.values())) ** 0.5


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for kind in (GRPOTrainer, RLOOTrainer):
        monkeypatch.setattr(kind, "_send_telemetry", lambda self: None)


@pytest.mark.parametrize(("name", "beta", "corrected"), KL)
def test_loss_and_gradient_equal_trl(policy_path, tmp_path, name, beta, corrected):
    """Adapters at T 1 and whole weights at T .7 take turns."""
    lora = list(LOSSES).index(name) % 2 == 0
    temperature = 1.0 if lora else 0.7
    settings = {"loss_type": name, **LOSSES[name]}
    loss, expected = of_trl(policy_path, tmp_path, lora, settings, temperature, beta, corrected)
    stats, gradient = run_ours(lora, temperature, beta=beta, use_bias_correction_kl=corrected, **settings)
    assert 0.1 < stats["clipped"] < 0.9, "some tokens clipped, some not"
    assert stats["loss"] == pytest.approx(loss, rel=1e-5)
    assert relative(gradient, expected) < 1e-5


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_masked_truncated_completions_count_as_in_trl(policy_path, tmp_path, name):
    """Their tokens leave every sum and divisor, their rows stay in the divisors that count rows."""
    cut, beta, settings = (1, 3, 4), 0.3, {"loss_type": name, **LOSSES.get(name, {})}
    loss, expected = of_trl(policy_path, tmp_path, False, settings, 1.0, beta, True, cut)
    stats, gradient = run_ours(False, 1.0, cut, mask_truncated_completions=True, beta=beta, **settings)
    assert stats["rows_without_weight"] == len(cut)
    assert stats["loss"] == pytest.approx(loss, rel=1e-5)
    assert relative(gradient, expected) < 1e-5
    assert relative(run_ours(False, 1.0, cut, beta=beta, **settings)[1], expected) > 1e-2, "off by default"


def test_rloo_with_one_ratio_a_completion_equals_trl(policy_path, tmp_path):
    clip = {"epsilon": 0.3, "epsilon_high": 0.6}
    trainer = make_trainer(RLOOTrainer, RLOOConfig, policy_path, tmp_path, beta=0.0, temperature=0.7, **clip)
    loss, expected = run_trl(trainer, False, 0.7, scale=1 / STEPS)
    changes = {"algorithm": "rloo", "importance_sampling_level": "sequence", "loss_type": "grpo"}
    stats, gradient = run_ours(False, 0.7, **changes, **clip)
    assert 0.1 < stats["clipped"] < 0.9, "some completions clipped, some not"
    assert stats["loss"] == pytest.approx(loss, rel=1e-5)
    assert relative(gradient, expected) < 1e-5


@pytest.mark.parametrize(
    ("kind", "config_kind", "settings", "baseline"),
    [(GRPOTrainer, GRPOConfig, {"scale_rewards": "none"}, "mean"), (RLOOTrainer, RLOOConfig, {}, "leave_one_out")],
    ids=["grpo", "rloo"],
)
def test_advantages_equal_trl(policy_path, tmp_path, kind, config_kind, settings, baseline):
    rewards = np.random.default_rng(0).normal(size=ROWS)
    trainer = make_trainer(kind, config_kind, policy_path, tmp_path, reward=lambda **_: rewards.tolist(), **settings)
    prompts = [{"prompt": prompt} for prompt in "abc" for _ in range(ROWS // STEPS)]
    actual = trainer._generate_and_score_completions(prompts)["advantages"].numpy()
    for part, expected in zip(np.split(rewards, STEPS), np.split(actual, STEPS), strict=True):
        group = make_group(part.tolist(), [[0.0]] * len(part))
        assert [row[0] for row in group_advantages(group, baseline=baseline, scale="none")] == pytest.approx(
            expected.tolist(), abs=1e-5
        )
