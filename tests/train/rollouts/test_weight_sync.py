"""A server follows the learner: weights, adapters, the canary, the probe, and a server that dies in a step."""

from __future__ import annotations

import pytest
from run_kinds import python_inputs, small_config
from runs import lines
from vllm_server import VllmServer

from memalpha.config import TextConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.train.api import train
from memalpha.train.data.samples import TrainingSample, policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.rollouts.weight_sync import WeightSync, make_sampler
from memalpha.types import SampleRequest, Turn

PROMPTS = [SampleRequest(({"role": "user", "content": text},), max_new_tokens=8) for text in ("Who?", "Where is it?")]
SAMPLED = [SampleRequest(prompt.messages, key=(1,), temperature=1.0, max_new_tokens=4) for prompt in PROMPTS]


@pytest.fixture
def synced(small, policy_path, tmp_path):
    """A function: server -> sync of a fresh engine with it, and the policy on it."""

    def connect(server: VllmServer, lora=None, **settings):
        sampler = {"url": server.url, "retries": 1, "max_wait": 0.01, **settings}
        config = small(sampler=sampler, lora=lora)
        local = load_policy(policy_path)
        model = local.model if config.lora is None else add_lora(local.model, config.lora, str(policy_path))
        policy = make_sampler(local, config)
        return WeightSync(policy, Engine(model, config), PROMPTS, tmp_path / "handed over"), policy

    return connect


def learn(sync: WeightSync, rows: list[TrainingSample]) -> None:
    """Take an optimizer step and count it as a training step."""
    for sample in rows:
        sample.advantages[:] = 1.0
    sync.engine.update(rows, 1e-2)
    sync.engine.weights_step += 1


def as_rows(completions) -> list[TrainingSample]:
    return [policy_gradient_sample(Turn(0, completion)) for completion in completions]


@pytest.mark.parametrize(("lora", "is_sharded"), [(None, False), (None, True), ({"r": 2}, False)])
def test_a_server_follows_the_learner(policy_path, synced, tmp_path, lora, is_sharded):
    with VllmServer(policy_path) as server:
        sync, policy = synced(server, lora)
        sync.engine.is_sharded = is_sharded  # weights are then written tensor by tensor
        first = policy.sample(SAMPLED)
        names = list(server.adapters)
        policy.sample(SAMPLED)
        assert len(server.loads) == (0 if lora else 1) and list(server.adapters) == names, "no sync without a change"
        learn(sync, as_rows(first))
        second = policy.sample(SAMPLED)
        rows = as_rows(second)
        for row, truth in zip(rows, sync.engine.forward(rows), strict=True):
            assert abs(row.logprobs - truth).max() < 1e-5
        assert [c.weights_step for c in first + second] == [0, 0, 1, 1] and first[0].logprobs != second[0].logprobs
        assert (len(server.adapters) == (1 if lora else 0) and list(server.adapters) != names) or not lora
        metrics = sync.pop_metrics()
        assert 0 < metrics["sync_gap"] < 1e-5 and metrics["sync_seconds"] > 0 and metrics["sampler_retries"] == 0
        assert len(list((tmp_path / "handed over").iterdir())) == 1, "earlier weights are removed"
        assert sync.pop_metrics()["sync_seconds"] == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raw", "before the temperature: start it with --logprobs-mode processed_logprobs"), ("top-p", "truncates")],
)
def test_the_probe_finds_what_a_client_cannot_see(policy_path, synced, fault, message):
    with VllmServer(policy_path, fault=fault) as server, pytest.raises(PolicyError, match=message):
        synced(server)[1].sample(SAMPLED)


def test_the_canary_finds_a_stale_head(policy_path, synced):
    with VllmServer(policy_path, fault="stale-head") as server:
        sync, policy = synced(server)
        learn(sync, as_rows(policy.sample(SAMPLED)))
        with pytest.raises(PolicyError, match="after the sync of step 1 its log-probs are off by"):
            policy.sample(SAMPLED)


def test_a_server_with_another_base_is_refused(policy_path, synced, tmp_path):
    other = load_policy(policy_path)
    other.model.model.layers[0].mlp.up_proj.weight.data.mul_(1.1)
    other.save(tmp_path / "other")
    refused = pytest.raises(PolicyError, match="does not sample with the learner's weights")
    with VllmServer(tmp_path / "other") as server, refused:
        synced(server, {"r": 2})[1].sample(SAMPLED)


def test_a_server_that_was_started_again_is_found(policy_path, synced):
    with VllmServer(policy_path) as server:
        _, policy = synced(server)
        policy.sample(SAMPLED)
        server.worker._memalpha_version = None
        with pytest.raises(PolicyError, match="has lost the weights of step 0"):
            policy.sample(SAMPLED)


def test_a_text_run_samples_on_a_server(policy_path, tmp_path):
    with VllmServer(policy_path) as server:
        sampling = {"sampler": {"url": f"{server.url}#{tmp_path / 'weights'}"}, "keep_tokens": True}
        config = small_config(TextConfig, policy_path, tmp_path, sampling=sampling, max_steps=1, validation_tasks=0)
        train(config, **python_inputs(config))
    [line] = lines(tmp_path / "run" / "metrics.jsonl")
    assert line["mismatch_max"] < 1e-5 and line["sync_gap"] < 1e-5 and line["sampler_retries"] == 0
    turns = lines(tmp_path / "run" / "turns.jsonl")
    sampled = [body["prompt"] for body in server.requests if body["temperature"] == 1.0]
    assert len(turns) == 12 and all(turn["prompt_ids"] in sampled and turn["weights_step"] == 0 for turn in turns)
    assert len(list((tmp_path / "weights").iterdir())) == 1 and len(server.loads) == 2


def test_settings_that_need_the_sampler_of_this_process_are_refused(small):
    sampler = {"url": "vllm:http://127.0.0.1:8000"}
    tokens = {"lora": {"r": 2, "trainable_tokens": ["<stop>"]}}
    for changes in (
        {"sampling": {"stop_repeats": True}},
        {"agent": {"thinking_tokens": 8}},
        {"algorithm": "erl"},
        tokens,
    ):
        with pytest.raises(ConfigError, match="needs the sampler of this process"):
            small(sampler=sampler, **changes)
    for url in ("http://127.0.0.1:8000", "vllm:127.0.0.1", "vllm:http://a:b@host:1", "vllm:http://host:1/v1"):
        with pytest.raises(ConfigError, match=r"sampler\.url"):
            small(sampler={"url": url})
