"""The same pairs through trl's RewardTrainer and through our engine: the same rows, the same loss, the same gradient;
and each loads what the other wrote, to the same scores."""

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
from memalpha.policy.reward_model import Head, RewardModel, with_head
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.api import train
from memalpha.train.data.rewards import ComparedReplies, read_reward_examples
from memalpha.train.learner.reward_engine import RewardEngine

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(RewardTrainer, "_send_telemetry", lambda self: None)


def rows():
    """Prompt, chosen, rejected: random tokens of ragged lengths; replies end with the end token, which pads too."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 20, (5, 3))
    return [
        tuple((*random.integers(3, VOCABULARY, n).tolist(), *([0] * (k > 0))) for k, n in enumerate(of))
        for of in lengths
    ]


def trainer(model, tmp_path, lora=None, data=None, tokenizer=None, **settings):
    return RewardTrainer(
        model,
        args=RewardConfig(
            str(tmp_path / "trl"),
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            use_cpu=True,
            per_device_train_batch_size=4,
            **settings,
        ),
        train_dataset=Dataset.from_list(
            data
            or [
                {"chosen_ids": [*p, *c], "rejected_ids": [*p, *r], "margin": n / 10}
                for n, (p, c, r) in enumerate(rows())
            ]
        ),
        processing_class=tokenizer or tiny_tokenizer(),
        peft_config=lora,
    )


@pytest.mark.parametrize("center", [None, 0.05])
def test_loss_and_gradient_equal_trl(policy_path, tmp_path, center):
    theirs = trainer(str(policy_path), tmp_path, center_rewards_coefficient=center)
    model = theirs.model.train()
    torch.manual_seed(0)
    head = torch.randn_like(model.score.weight)
    model.score.weight.data.copy_(head)
    batch = theirs.data_collator([theirs.train_dataset[number] for number in range(5)])
    loss = theirs.compute_loss(model, dict(batch))
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}

    ours = with_head(tiny_model(), Head("last", {"reward": 1.0}), tiny_tokenizer(), "tiny")
    ours.score.weight.data.copy_(head)
    settings = {"out": "unused", "data": "unused", "microbatch_tokens": 60, "center_rewards_coefficient": center}
    engine = RewardEngine(ours, build_config(RewardModelConfig, settings, "test"), Head("last", {"reward": 1.0}))
    items = [ComparedReplies("", ((p, c), (p, r)), number / 10) for number, (p, c, r) in enumerate(rows())]
    figures = engine.compute_metrics(items, engine.forward_backward(items))
    assert figures["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    metrics = theirs._metrics["train"]
    assert figures["accuracies"] == pytest.approx(metrics["accuracy"][0])
    assert figures["margins"] == pytest.approx(metrics["margin"][0], rel=1e-5)
    assert relative({name: parameter.grad for name, parameter in engine.trainable.items()}, expected) < 1e-5


def test_transformers_and_trl_load_what_we_wrote(policy_path, tmp_path):
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no {n} not"} for n in range(8)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "policy": str(policy_path),
        "data": data,
        "out": tmp_path / "run",
        "learning_rate": 1e-2,
        "warmup_steps": 0,
    }
    train(build_config(RewardModelConfig, {**settings, "batch_pairs": 4}, "test"))
    ours = load_reward_model(tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best"
    model = AutoModelForSequenceClassification.from_pretrained(best, dtype=torch.float32)
    found = []
    for line in lines:
        prompt, reply = ours.encode(line["prompt"], line["chosen"])
        found.append(float(model(input_ids=torch.tensor([[*prompt, *reply]])).logits.detach()))
    assert max(map(abs, found)) > 0.01
    assert ours.score([line["prompt"] for line in lines], [line["chosen"] for line in lines]) == pytest.approx(
        found, abs=1e-6
    )
    theirs = trainer(str(best), tmp_path)
    assert torch.equal(theirs.model.score.weight, model.score.weight)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_we_load_what_trl_trained(policy_path, tmp_path, lora):
    adapters = peft.LoraConfig(r=4, task_type="SEQ_CLS", target_modules="all-linear", modules_to_save=["score"])
    theirs = trainer(str(policy_path), tmp_path, adapters if lora else None, max_steps=2, learning_rate=1e-2)
    theirs.train()
    theirs.save_model(str(tmp_path / "saved"))
    ours = load_reward_model(tmp_path / "saved")
    assert dict(ours.objectives) == {"reward": 1.0} and ours.head.pooling == "last"
    model = theirs.model.eval()
    expected = []
    for prompt, reply, _ in rows():
        with torch.no_grad():
            expected.append(float(model(input_ids=torch.tensor([[*prompt, *reply]])).logits))
    assert ours.score_ids([(prompt, reply) for prompt, reply, _ in rows()])[:, 0] == pytest.approx(expected, abs=1e-5)


CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize(("template", "begins"), [(None, False), (CHATML, True)], ids=["plain", "begun and ended"])
def test_rows_are_those_of_trl(policy_path, tmp_path, template, begins):
    """Also of templates that go on after the end token, and of tokenizers that begin every text with one."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    if begins:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|user|> $A", special_tokens=[("<|user|>", 1)]
        )
    user, said = [{"role": "user", "content": "Hi there"}], [{"role": "assistant", "content": "no"}]
    lines = [{"prompt": "What? ", "chosen": "yes", "rejected": "no, not"}]
    chats = [{"prompt": user, "chosen": [{"role": "assistant", "content": "Hello."}], "rejected": said}]
    policy = TransformersPolicy(tiny_model(), tokenizer)
    for rows in (lines, chats):
        theirs = trainer(str(policy_path), tmp_path, data=rows, tokenizer=tokenizer).train_dataset[0]
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(rows[0]) + "\n")
        [ours] = read_reward_examples(path, policy, ["reward"])
        assert [[*prompt, *reply] for prompt, reply in ours.rows] == [theirs["chosen_ids"], theirs["rejected_ids"]]
        head = Head("last", {"reward": 1.0})
        model = RewardModel(with_head(tiny_model(), head, tokenizer, "x"), tokenizer, head)
        assert model.encode(rows[0]["prompt"], rows[0]["chosen"]) == ours.rows[0]
        text = tokenizer.decode(ours.rows[1][1])
        assert text.startswith("no")
