"""Weights go from the learner to a server's workers without files; NCCL itself needs GPUs, gloo stands for it."""

from __future__ import annotations

import pytest
import torch
from gloo_transfer import GlooGroup, TransferWorker
from vllm_server import VllmServer

from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.train.data.samples import policy_gradient_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.rollouts.weight_sync import WeightSync, make_sampler
from memalpha.train.rollouts.weight_transfer import WeightTransfer
from memalpha.types import SampleRequest, Turn

PROMPT = SampleRequest(({"role": "user", "content": "Who?"},), key=(1,), temperature=1.0, max_new_tokens=6)


@pytest.fixture
def synced(small, policy_path, tmp_path):
    """A function: server -> sync over gloo of a fresh engine with it, and the policy on it."""

    def connect(server: VllmServer, dtype=None, timeout=30.0, tolerance=None):
        sampler = {"url": server.url, "retries": 0, "max_wait": 0.01, "timeout": timeout, "tolerance": tolerance}
        config = small(sampler=sampler)
        local = load_policy(policy_path)
        policy = make_sampler(local, config)
        sync = WeightSync(policy, Engine(local.model, config), config, [PROMPT], tmp_path / "handed over")
        sync.transfer = WeightTransfer(policy.client, sync.engine, GlooGroup(), dtype)
        return sync, policy

    return connect


def test_a_server_follows_the_learner_without_files(policy_path, synced, tmp_path):
    with VllmServer(policy_path, transfer=TransferWorker()) as server:
        sync, policy = synced(server)
        rows = [policy_gradient_sample(Turn(0, policy.sample([PROMPT])[0]), 1.0)]
        first = server.transfer.version
        sync.engine.update(rows, 1e-2)
        sync.engine.weights_step += 1
        [completion] = policy.sample([PROMPT])
        [row] = [policy_gradient_sample(Turn(0, completion))]
        [truth] = sync.engine.forward([row])
        assert abs(row.logprobs - truth).max() < 1e-5 and completion.weights_step == 1
        here, there = sync.engine.model.state_dict(), server.policy.model.state_dict()
        assert all(torch.equal(here[name], there[name]) for name in here)
        assert server.transfer.groups == 1 and len(server.transfer.updates) == 2 and server.loads == []
        assert server.transfer.version != first and not (tmp_path / "handed over").exists()
        server.transfer.version = "default"  # as after a start
        with pytest.raises(PolicyError, match="has lost the weights of step 1"):
            policy.sample([PROMPT])


def test_weights_are_sent_in_the_precision_of_the_passes(policy_path, synced):
    with VllmServer(policy_path, transfer=TransferWorker()) as server:
        sync, policy = synced(server, torch.bfloat16, tolerance=0.1)
        policy.sample([PROMPT])
        [update] = server.transfer.updates
        assert set(update["dtype_names"]) == {"bfloat16"}
        head, sent = sync.engine.model.lm_head.weight, server.policy.model.lm_head.weight
        assert torch.equal(sent, head.bfloat16().float()) and not torch.equal(sent, head)


def test_a_weight_that_the_server_did_not_load_is_seen_by_the_canary(policy_path, synced):
    with VllmServer(policy_path, transfer=TransferWorker()) as server:
        sync, policy = synced(server)
        rows = [policy_gradient_sample(Turn(0, policy.sample([PROMPT])[0]), 1.0)]
        sync.engine.update(rows, 1e-2)
        sync.engine.weights_step += 1
        server.transfer.skips = "model.embed_tokens.weight"
        with pytest.raises(PolicyError, match="after the sync of step 1 its log-probs are off"):
            policy.sample([PROMPT])


def test_a_transfer_that_breaks_leaves_no_weights_that_pass(policy_path, synced):
    with VllmServer(policy_path, transfer=TransferWorker()) as server:
        sync, policy = synced(server)
        rows = [policy_gradient_sample(Turn(0, policy.sample([PROMPT])[0]), 1.0)]
        before = server.transfer.version
        sync.confirm()
        sync.engine.update(rows, 1e-2)
        sync.engine.weights_step += 1
        server.transfer.breaks_at = 3
        with pytest.raises(PolicyError, match=r"update_weights .status 500: a worker failed"):
            policy.sample([PROMPT])
        assert server.transfer.version == before  # the server itself does not tell
        with pytest.raises(PolicyError, match="has lost the weights"):
            sync.confirm()
        server.transfer.breaks_at = None
        policy.sample([PROMPT])  # over a new group
        sync.confirm()
        assert server.transfer.groups == 2


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/update_weights", "/start_weight_update"])
def test_a_server_that_refuses_ends_the_wait_for_its_workers(policy_path, synced, path):
    with VllmServer(policy_path, transfer=TransferWorker()) as server:
        server.transfer.refuses = path
        with pytest.raises(PolicyError, match=rf"{path} .status 500: failed to load.*weight-transfer-config"):
            synced(server)[1].sample([PROMPT])


def test_a_server_without_the_routes_is_told_how_to_start(policy_path, synced):
    with VllmServer(policy_path) as server, pytest.raises(PolicyError, match=r"get_world_size .status 404.*DEV_MODE"):
        synced(server)[1].sample([PROMPT])


def test_nccl_needs_gpus_and_all_weights(small, policy_path, tmp_path):
    local = load_policy(policy_path)
    config = small(sampler={"url": "vllm:http://127.0.0.1:1", "transport": "nccl"})
    policy = make_sampler(local, config)
    with pytest.raises(ConfigError, match="the learner is on cpu"):
        WeightSync(policy, Engine(local.model, config), config, [PROMPT], tmp_path)
    config = small(sampler={"url": "vllm:http://127.0.0.1:1", "transport": "nccl"}, lora={"r": 2})
    model = add_lora(load_policy(policy_path).model, config.lora, str(policy_path))
    with pytest.raises(ConfigError, match="adapters go to the server as files"):
        WeightSync(policy, Engine(model, config), config, [PROMPT], tmp_path)
