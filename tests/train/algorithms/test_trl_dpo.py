"""Same pairs, same loss and gradient: TRL's `DPOTrainer._compute_loss` and the engine.

The reference is the start policy (adapter off), the policy that trains another one. trl has no cDPO: its `aot` is that
where a batch is one pair. It has no reference-free loss either: that is one whose reference gives all replies 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from datasets import Dataset
from test_trl_parity import CURRENT, LORA, move, relative
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from trl import DPOConfig as TRLConfig
from trl import DPOTrainer
from trl.trainer.utils import pad

from memalpha.config import DPOConfig, TrainConfig
from memalpha.train.algorithms.dpo import build_pair_row, weight_pairs
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings

PAIRS = 5
WAYS = {
    "sigmoid": {"beta": 0.2},
    "ipo": {"beta": 0.2, "loss_type": "ipo"},
    "cdpo": {"beta": 0.2, "label_smoothing": 0.15},
    "reference-free": {"beta": 0.2, "reference_free": True},
}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def pairs() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Return random (prompt, chosen, rejected) tokens of ragged lengths; the longer reply alternates sides."""
    random = np.random.default_rng(0)
    lengths = [sorted(random.integers(1, 20, 2), reverse=bool(number % 2)) for number in range(PAIRS)]
    return [
        tuple(tuple(random.integers(3, VOCABULARY, count).tolist()) for count in (random.integers(1, 40), *both))
        for both in lengths
    ]


def of_trl(
    policy_path, tmp_path, lora: bool, beta: float, loss_type="sigmoid", label_smoothing=0.0, reference_free=False
):
    """Return TRL's loss and its gradient by name; cDPO runs one pair at a time, the others one batch."""
    trainer = DPOTrainer(
        str(policy_path),
        args=TRLConfig(
            str(tmp_path / "trl"),
            model_init_kwargs={"dtype": "float32"},
            beta=beta,
            loss_type=["aot" if label_smoothing else loss_type],
            label_smoothing=label_smoothing,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}),
        processing_class=tiny_tokenizer(),
        peft_config=peft.LoraConfig(**LORA) if lora else None,
    )
    trainer.precompute_ref_logps = reference_free
    model = trainer.model.train()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    move(parameters, CURRENT)
    batches = [[pair] for pair in pairs()] if label_smoothing else [pairs()]
    loss = 0.0
    for batch in batches:
        rows = [(prompt, reply) for side in (1, 2) for prompt, reply in ((pair[0], pair[side]) for pair in batch)]

        def padded(values) -> torch.Tensor:
            return pad([torch.as_tensor(value) for value in values], padding_value=0, padding_side="right")

        inputs = {
            "input_ids": padded(prompt + reply for prompt, reply in rows),
            "attention_mask": padded([1] * len(prompt + reply) for prompt, reply in rows),
            "completion_mask": padded([0] * len(prompt) + [1] * len(reply) for prompt, reply in rows),
        }
        if reference_free:
            inputs |= {f"ref_{side}_logps": torch.zeros(len(batch)) for side in ("chosen", "rejected")}
        part = trainer._compute_loss(model, inputs, False) / len(batches)
        part.backward()
        loss += float(part.detach())
    figures = {name: float(np.mean(trainer._metrics["train"][f"rewards/{name}"])) for name in ("margins", "accuracies")}
    return {"loss": loss, **figures}, {name: parameter.grad for name, parameter in parameters.items()}


def of_ours(lora: bool, **changes):
    """Return the engine's loss and gradient; its reference is the start."""
    dpo = DPOConfig(**changes)
    model = add_lora(tiny_model(), TrainConfig(out="unused", lora=LORA).lora, "tiny") if lora else tiny_model()
    config = TrainConfig(out="unused", microbatch_tokens=100)
    ours = Engine(model, config, LossSettings(ce_normalizer="unit"), reference=not dpo.reference_free)
    move(ours.trainable, CURRENT)
    rows = [
        build_pair_row(prompt, reply, str(number), chosen=side)
        for number, (prompt, chosen, rejected) in enumerate(pairs())
        for side, reply in ((True, chosen), (False, rejected))
    ]
    if not dpo.reference_free:
        rows = [replace(row, reference=of) for row, of in zip(rows, ours.forward(rows, reference=True), strict=True)]
    weighed, figures = weight_pairs(rows, ours.forward(rows), dpo)
    ours.forward_backward(ours.normalized(weighed))
    means = {name: float(values.mean()) for name, values in figures.items()}
    return means, {name: parameter.grad for name, parameter in ours.trainable.items()}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(DPOTrainer, "_send_telemetry", lambda self: None)


@pytest.mark.parametrize(("way", "lora"), [*((way, False) for way in WAYS), ("sigmoid", True), ("ipo", True)])
def test_loss_and_gradient_equal_trl(policy_path, tmp_path, way, lora):
    expected, gradient_expected = of_trl(policy_path, tmp_path, lora, **WAYS[way])
    figures, gradient = of_ours(lora, **WAYS[way])
    assert figures == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert 0 < figures["accuracies"] < 1 or way == "reference-free", "some pairs right, some not"
    assert relative(gradient, gradient_expected) < 1e-5
