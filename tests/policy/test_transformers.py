"""The token record of `TransformersPolicy`: exact log-probs, keyed noise, batch independence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from huggingface_hub import constants
from standin import HttpStandIn
from tiny import exact_logprobs, tiny_model, tiny_policy, tiny_tokenizer

from memalpha.errors import PolicyError
from memalpha.hub import hub_reachable
from memalpha.policy import model_files
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import SampleRequest


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def request(text: str, *key: int, temperature: float = 1.0, new: int = 24) -> SampleRequest:
    return SampleRequest(
        messages=({"role": "user", "content": text},), key=key, temperature=temperature, max_new_tokens=new
    )


def mixed(count: int = 13, temperature: float = 1.0) -> list[SampleRequest]:
    texts = ["a", "the same prompt", "Ana moved to Porto " * 4, "müde", "x" * 70]
    return [request(texts[i % 5], 7, i, temperature=temperature, new=6 + 5 * (i % 4)) for i in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_equal_a_float64_forward(policy, temperature):
    for completion in policy.sample(mixed(temperature=temperature)):
        heat = completion.temperature or 1.0
        expected = exact_logprobs(policy.model, completion.prompt_ids, completion.completion_ids, heat)
        assert len(completion.logprobs) == len(completion.completion_ids)
        assert torch.allclose(torch.tensor(completion.logprobs, dtype=torch.float64), expected, atol=1e-5, rtol=0)


def test_render_is_what_is_sampled_from(policy):
    asked = request("Grüße {}", 1)
    assert tuple(policy.render(asked.messages)) == policy.sample([asked])[0].prompt_ids
    assert policy.count_tokens("Grüße") == len("Grüße".encode())
    assert policy.sample([]) == []


def test_a_prompt_beyond_the_model_is_refused(policy):
    with pytest.raises(PolicyError, match="smaller chunks"):
        policy.sample([request("x" * 5000)])
    short = request("x")
    room = policy.positions - len(policy.render(short.messages))
    with pytest.raises(PolicyError, match=f"{room + 1} new ones are more than the 4096"):
        policy.sample([short, replace(short, max_new_tokens=room + 1)])
    fits = TransformersPolicy(tiny_model(), tiny_tokenizer())
    fits.positions = policy.positions - room + 5
    assert len(fits.sample([replace(short, max_new_tokens=5)])) == 1


def test_the_prompt_style_is_what_the_model_was_trained_on(policy, tmp_path):
    assert policy.prompt == "full"
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.config.memalpha_prompt = "compact"
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert TransformersPolicy.from_pretrained(tmp_path).prompt == "compact"
    model.config.memalpha_prompt = "terse"
    with pytest.raises(PolicyError, match=r"'terse' .* none of full, compact"):
        TransformersPolicy(model, tokenizer)
    tokenizer.init_kwargs["memalpha_prompt"] = "compact"
    assert TransformersPolicy(tiny_model(), tokenizer).prompt == "compact"
    assert load_policy("tiny").prompt == "compact"  # type: ignore[attr-defined]


def test_loading_says_what_is_wrong(tmp_path):
    with pytest.raises(PolicyError, match=r"config\.json"):
        TransformersPolicy.from_pretrained(tmp_path / "nothing")
    with pytest.raises(PolicyError, match=r"config\.json"):
        TransformersPolicy.from_pretrained("runs/no such run/checkpoints/best")
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors in here")
    with pytest.raises(PolicyError, match="cannot load"):
        TransformersPolicy.from_pretrained(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(PolicyError, match="chat template"):
        TransformersPolicy(tiny_model(), tokenizer)


def test_saved_and_loaded_is_the_same(policy, tmp_path):
    policy.save(tmp_path)
    again = TransformersPolicy.from_pretrained(tmp_path)
    assert again.sample(mixed()) == policy.sample(mixed())


@pytest.mark.parametrize("name", ["nope", "./nope", "a/b/c", "-x/y"])
def test_a_name_that_nobody_has_is_refused_without_a_request(monkeypatch, name):
    monkeypatch.setattr(model_files, "AutoTokenizer", None)
    with pytest.raises(PolicyError, match=r"expected .*tiny.*config\.json.*owner/name"):
        load_policy(name)


def test_a_hub_is_asked_if_it_answers_and_else_said_to_be_out_of_reach(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    asked = []

    def load(path, dtype, *, offline, **_):
        asked.append(offline)
        raise OSError("not cached" if offline else "no such repository")

    monkeypatch.setattr(model_files, "_load", load)
    with pytest.raises(PolicyError, match="hub cannot be reached: connect and try again, or give a directory"):
        load_policy("some-owner/some-name")
    assert asked == [True], "the hub's own client, with its retries, is not tried"
    monkeypatch.setattr(model_files, "hub_reachable", lambda: True)
    with pytest.raises(PolicyError, match="no such repository"):
        load_policy("some-owner/some-name")
    assert asked == [True, True, False]


def test_any_answer_of_the_hub_counts(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with HttpStandIn(lambda method, path, body: (401, {}, b"")) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        assert hub_reachable()
    assert not hub_reachable()
