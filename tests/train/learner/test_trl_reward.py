"""Same pairs, same rows, loss and gradient: TRL's RewardTrainer and our engine; each loads the other's models."""

from __future__ import annotations

import json

import numpy as np
import peft
import pytest
import torch
from datasets import Dataset
from test_trl_parity import relative
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from tokenizers import processors
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from memalpha import load_reward_model
from memalpha.config import RewardModelConfig, build_config
from memalpha.policy.reward_model import Head, RewardModel, add_reward_head
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.api import train
from memalpha.train.data.preferences import ComparedReplies, read_reward_examples
from memalpha.train.learner.reward_engine import RewardEngine

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(RewardTrainer, "_send_telemetry", lambda self: None)


def rows():
    """Return random (prompt, chosen, rejected) tokens; replies end with the end token, which pads too."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 20, (5, 3))
    return [
        tuple((*random.integers(3, VOCABULARY, n).tolist(), *([0] * (k > 0))) for k, n in enumerate(of))
        for of in lengths
    ]


def trainer(model, tmp_path, lora=None, data=None, tokenizer=None, **settings):
    plain = {"bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True}
    data = data or [
        {"chosen_ids": [*p, *c], "rejected_ids": [*p, *r], "margin": n / 10} for n, (p, c, r) in enumerate(rows())
    ]
    return RewardTrainer(
        model,
        args=RewardConfig(str(tmp_path / "trl"), per_device_train_batch_size=4, **plain, **settings),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer or tiny_tokenizer(),
        peft_config=lora,
    )


@pytest.mark.parametrize("center", [None, 0.05])
def test_loss_and_gradient_equal_trl(policy_path, tmp_path, center):
    trl_trainer = trainer(str(policy_path), tmp_path, center_rewards_coefficient=center)
    model = trl_trainer.model.train()
    torch.manual_seed(0)
    head = torch.randn_like(model.score.weight)
    model.score.weight.data.copy_(head)
    batch = trl_trainer.data_collator([trl_trainer.train_dataset[number] for number in range(5)])
    loss = trl_trainer.compute_loss(model, dict(batch))
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}

    reward_model = add_reward_head(tiny_model(), Head("last", {"reward": 1.0}), tiny_tokenizer(), "tiny")
    reward_model.score.weight.data.copy_(head)
    settings = {"out": "unused", "data": "unused", "microbatch_tokens": 60, "center_rewards_coefficient": center}
    engine = RewardEngine(
        reward_model, build_config(RewardModelConfig, settings, "test"), Head("last", {"reward": 1.0})
    )
    items = [ComparedReplies("", ((p, c), (p, r)), number / 10) for number, (p, c, r) in enumerate(rows())]
    figures = engine.compute_metrics(items, engine.forward_backward(items))
    assert figures["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    metrics = trl_trainer._metrics["train"]
    assert figures["accuracies"] == pytest.approx(metrics["accuracy"][0])
    assert figures["margins"] == pytest.approx(metrics["margin"][0], rel=1e-5)
    assert relative({name: parameter.grad for name, parameter in engine.trainable.items()}, expected) < 1e-5


def test_transformers_and_trl_load_our_models(policy_path, tmp_path):
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no {n} not"} for n in range(8)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"policy": str(policy_path), "data": data, "out": tmp_path / "run"}
    settings |= {"learning_rate": 1e-2, "warmup_steps": 0, "batch_pairs": 4}
    train(build_config(RewardModelConfig, settings, "test"))
    reward_model = load_reward_model(tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best"
    model = AutoModelForSequenceClassification.from_pretrained(best, dtype=torch.float32)
    scores = []
    for line in lines:
        prompt, reply = reward_model.encode(line["prompt"], line["chosen"])
        scores.append(float(model(input_ids=torch.tensor([[*prompt, *reply]])).logits.detach()))
    assert max(map(abs, scores)) > 0.01
    assert reward_model.score([line["prompt"] for line in lines], [line["chosen"] for line in lines]) == pytest.approx(
        scores, abs=1e-6
    )
    trl_trainer = trainer(str(best), tmp_path)
    assert torch.equal(trl_trainer.model.score.weight, model.score.weight)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_we_load_trl_models(policy_path, tmp_path, lora):
    adapters = peft.LoraConfig(r=4, task_type="SEQ_CLS", target_modules="all-linear", modules_to_save=["score"])
    trl_trainer = trainer(str(policy_path), tmp_path, adapters if lora else None, max_steps=2, learning_rate=1e-2)
    trl_trainer.train()
    trl_trainer.save_model(str(tmp_path / "saved"))
    reward_model = load_reward_model(tmp_path / "saved")
    assert dict(reward_model.objectives) == {"reward": 1.0} and reward_model.head.pooling == "last"
    model = trl_trainer.model.eval()
    expected = []
    for prompt, reply, _ in rows():
        with torch.no_grad():
            expected.append(float(model(input_ids=torch.tensor([[*prompt, *reply]])).logits))
    assert reward_model.score_ids([(prompt, reply) for prompt, reply, _ in rows()])[:, 0] == pytest.approx(
        expected, abs=1e-5
    )


CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize(("template", "begins"), [(None, False), (CHATML, True)], ids=["plain", "start and end tokens"])
def test_rows_equal_trl(policy_path, tmp_path, template, begins):
    """Rows agree for templates with text after the end token and for tokenizers that add a start token."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    if begins:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|user|> $A", special_tokens=[("<|user|>", 1)]
        )
    user, rejected = [{"role": "user", "content": "Hi there"}], [{"role": "assistant", "content": "no"}]
    lines = [{"prompt": "What? ", "chosen": "yes", "rejected": "no, not"}]
    chats = [{"prompt": user, "chosen": [{"role": "assistant", "content": "Hello."}], "rejected": rejected}]
    policy = TransformersPolicy(tiny_model(), tokenizer)
    for rows in (lines, chats):
        trl_row = trainer(str(policy_path), tmp_path, data=rows, tokenizer=tokenizer).train_dataset[0]
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(rows[0]) + "\n")
        [example] = read_reward_examples(path, policy, ["reward"])
        assert [[*prompt, *reply] for prompt, reply in example.rows] == [trl_row["chosen_ids"], trl_row["rejected_ids"]]
        head = Head("last", {"reward": 1.0})
        model = RewardModel(add_reward_head(tiny_model(), head, tokenizer, "x"), tokenizer, head)
        assert model.encode(rows[0]["prompt"], rows[0]["chosen"]) == example.rows[0]
        text = tokenizer.decode(example.rows[1][1])
        assert text.startswith("no")
