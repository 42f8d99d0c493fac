"""A reward model's scores: by row alone, of texts and messages, saved and loaded, merged; and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import tiny_model, tiny_policy, tiny_tokenizer
from transformers import AutoModelForSequenceClassification

from memalpha import load_reward_model
from memalpha.errors import PolicyError
from memalpha.policy.reward_model import Head, RewardModel, add_reward_head

PROMPTS = ["a", "what is it, then?", "Where does Ana live? " * 9, "", "b"]
REPLIES = ["yes", "", "In Porto. " * 7, "no", "it is what it is"]


def made(pooling="last", objectives=("reward",), tokenizer=None):
    """A random model with a random head."""
    tokenizer = tokenizer or tiny_tokenizer()
    head = Head(pooling, dict(zip(objectives, (1.0, -0.5), strict=False)))
    model = add_reward_head(tiny_model(), head, tokenizer, "tiny")
    torch.manual_seed(1)
    model.score.weight.data.normal_(0, 0.2)
    if pooling == "attention":
        model.pool.weight.data.normal_()
    return RewardModel(model, tokenizer, head)


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_a_score_does_not_depend_on_the_batch(pooling, monkeypatch):
    model = made(pooling)
    alone = [model.score([prompt], [reply])[0] for prompt, reply in zip(PROMPTS, REPLIES, strict=True)]
    assert len({round(value, 3) for value in alone}) == len(alone)
    assert model.score(PROMPTS, REPLIES) == pytest.approx(alone, abs=1e-6)
    monkeypatch.setattr("memalpha.policy.reward_model.BATCH_TOKENS", 300)
    assert model.score(PROMPTS[::-1], REPLIES[::-1]) == pytest.approx(alone[::-1], abs=1e-6)
    assert model.score([], []) == []
    assert model.score(PROMPTS[:1] * 3, REPLIES[:1] * 3) == pytest.approx(alone[:1] * 3, abs=1e-6)


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_saved_and_loaded_it_scores_the_same(pooling, tmp_path):
    model = made(pooling, ("truth", "size"))
    model.save(tmp_path / "one")
    again = load_reward_model(tmp_path / "one")
    assert again.scores(PROMPTS, REPLIES) == model.scores(PROMPTS, REPLIES)
    one = again.scores(PROMPTS[:1], REPLIES[:1])[0]
    assert again.score(PROMPTS[:1], REPLIES[:1])[0] == pytest.approx(one["truth"] - 0.5 * one["size"])
    if pooling == "last":
        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "one")
        assert plain.config.id2label == {0: "truth", 1: "size"}
    else:
        with pytest.raises(OSError, match=r"model\.safetensors"):
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "one")


def test_messages_go_through_the_chat_template():
    model = made()
    chat = [[{"role": "user", "content": "Hi"}]]
    said = [{"role": "assistant", "content": "Hello."}]
    expected = model.score(["<|user|>Hi<|assistant|>"], ["Hello."])  # the end token after a text is padding here
    assert model.score(chat, [said]) == model.score(chat, ["Hello."]) == pytest.approx(expected, abs=1e-6)
    assert model.encode("a", "b")[1][-1] == 0 and 0 not in model.encode(chat[0], said)[1]
    for wrong in ([*said, *said], [{"role": "user", "content": "x"}], [{"role": "assistant", "content": None}], []):
        with pytest.raises(PolicyError, match="a completion is a text or one message of the assistant"):
            model.score(chat, [wrong])
    bare = tiny_tokenizer()
    bare.chat_template = None
    with pytest.raises(PolicyError, match="no chat template: give prompts as texts"):
        made(tokenizer=bare).score(chat, [said])
    assert made(tokenizer=bare).score(["a"], ["b"]) == model.score(["a"], ["b"])


def test_what_is_no_reward_model_is_refused(tmp_path):
    tiny_policy().save(tmp_path / "policy")
    with pytest.raises(PolicyError, match="language model without the head of a reward model"):
        load_reward_model(tmp_path / "policy")
    with pytest.raises(PolicyError, match="'tiny' is a policy: train a reward model on it"):
        load_reward_model("tiny")
    with pytest.raises(PolicyError, match="no reward model at"):
        load_reward_model(tmp_path / "nothing")
    model = made("attention")
    model.save(tmp_path / "one")
    (tmp_path / "one" / "pool.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"pool\.safetensors"):
        load_reward_model(tmp_path / "one")
    head = tmp_path / "one" / "reward_model.json"
    for value in ({"pooling": "first"}, {"objectives": {}}, {"objectives": ["a"]}):
        head.write_text(json.dumps({"pooling": "mean", "objectives": {"a": 1}, "end_token_id": 0} | value))
        with pytest.raises(PolicyError, match=r"reward_model\.json"):
            load_reward_model(tmp_path / "one")
    with pytest.raises(PolicyError, match="takes 4096 tokens"):
        model.score(["a" * 5000], ["b"])
