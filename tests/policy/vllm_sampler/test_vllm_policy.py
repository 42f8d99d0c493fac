"""Sampling on a server: tokens in, tokens out; answers that cannot be true are asked for again, then end the run."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from standin import HttpStandIn
from tiny import exact_logprobs, tiny_policy
from vllm_server import VllmServer

from memalpha.config.sampling import SamplerConfig
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.vllm.policy import TokenRequest, VllmPolicy
from memalpha.types import SampleRequest

REQUESTS = [
    SampleRequest(({"role": "user", "content": f"What is {n}?"},), key=(0, n), temperature=0.7, max_new_tokens=6)
    for n in range(8)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    tiny_policy().save(path)
    return path


@pytest.fixture
def connected(folder):
    """A function: server -> its policy, without a sync."""

    def connect(server: VllmServer, **settings) -> VllmPolicy:
        defaults = {"retries": 2, "max_wait": 0.01, "timeout": 30.0}
        policy = VllmPolicy(load_policy(folder), SamplerConfig(url=server.url, **{**defaults, **settings}))
        policy.local.eos_ids = frozenset(range(15))  # ends are frequent
        policy.model, policy.version = "tiny", 7
        return policy

    return connect


def test_tokens_and_logprobs_are_the_servers_and_those_of_a_float64_forward(folder, connected):
    with VllmServer(folder) as server:
        policy = connected(server)
        completions = policy.sample(REQUESTS)
    assert {completion.stop_reason for completion in completions} == {"eos", "length"}
    for request, completion in zip(REQUESTS, completions, strict=True):
        assert list(completion.prompt_ids) == policy.local.render_request(request) == policy.render_request(request)
        assert completion.weights_step == 7 and completion.temperature == 0.7
        ids = completion.completion_ids
        assert (ids[-1] < 15) == (completion.stop_reason == "eos") and not any(id < 15 for id in ids[:-1])
        truth = exact_logprobs(policy.local.model, completion.prompt_ids, ids, 0.7)
        np.testing.assert_allclose(completion.logprobs, truth.numpy(), atol=2e-6)
        visible = ids[:-1] if completion.stop_reason == "eos" else ids
        assert completion.text == policy.local.tokenizer.decode(list(visible))
    assert [body["seed"] for body in server.requests] and len({body["seed"] for body in server.requests}) == 8


def test_an_answer_nested_without_end_is_nonsense(connected):
    with HttpStandIn(lambda *request: (200, {}, b"[" * 100_000)) as server:
        policy = connected(SimpleNamespace(url=f"vllm:{server.url}"), retries=1)
        with pytest.raises(PolicyError, match="2 tries, the last: the answer has no"):
            policy.sample(REQUESTS[:1])
        policy.client.close()


def test_nonsense_is_asked_for_again(folder, connected):
    with VllmServer(folder, fault="no-echo", faults=2) as server:
        policy = connected(server)
        [completion] = policy.sample(REQUESTS[:1])
        assert policy.client.retries == 2 and len(server.requests) == 3
        server.fault, server.faults = "", None
        assert policy.sample(REQUESTS[:1]) == [completion]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("no-echo", "does not repeat the ids"), ("no-end", "its ids do not show"), ("hang", "no answer within 0.3 s")],
)
def test_a_server_that_never_gives_a_true_answer_ends_with_the_reason(folder, connected, fault, message):
    with VllmServer(folder, fault=fault) as server:
        policy = connected(server, retries=1, timeout=0.3 if fault == "hang" else 30.0)
        with pytest.raises(PolicyError, match=f"2 tries, the last: .*{message}"):
            policy.sample(REQUESTS)


def test_a_server_that_is_not_there_and_a_model_that_it_lacks(folder, connected):
    with VllmServer(folder) as server:
        policy = connected(server)
        policy.model = "memalpha-1"
        with pytest.raises(PolicyError, match="status 404: The model `memalpha-1` does not exist"):
            policy.sample(REQUESTS[:1])
    with pytest.raises(PolicyError, match="cannot be reached"):
        connected(server).client.base_model()


REQUEST = TokenRequest((5, 6), "m", max_tokens=3, temperature=1.0, seed=1, end_ids=frozenset({0}))
CHOICE = {
    "token_ids": [7, 8, 0],
    "prompt_token_ids": [5, 6],
    "logprobs": {"token_logprobs": [-1.0, -2.0, 0]},
    "finish_reason": "stop",
}


def test_an_answer_is_read():
    reply = REQUEST.read({"model": "m", "choices": [CHOICE]})
    assert (reply.ids, reply.logprobs, reply.is_complete) == ((7, 8, 0), (-1.0, -2.0, 0.0), True)
    body = replace(REQUEST, seed=None).body()
    assert "seed" not in body and (body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, 0, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [7, 8]},
        {"token_ids": [7, 8, 9]},
        {"token_ids": [7, 0, 0]},
        {"token_ids": [7, 8, 0, 0], "logprobs": {"token_logprobs": [-1.0] * 4}},
        {"token_ids": [7, 8.5, 0]},
        {"token_ids": [], "logprobs": {"token_logprobs": []}},
        {"token_ids": None},
        {"prompt_token_ids": [5, 7]},
        {"logprobs": None},
        {"finish_reason": "length"},
        {"finish_reason": "abort", "token_ids": [7, 8, 9]},
        {"token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0] * 2}, "finish_reason": "length"},
    ],
)
def test_an_answer_that_cannot_be_true_is_refused(change):
    with pytest.raises(ValueError, match="the answer"):
        REQUEST.read({"model": "m", "choices": [{**CHOICE, **change}]})


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf"), -9999.0, -1e9, 0.5, None, "-1.0", True])
def test_a_placeholder_is_no_logprob(value):
    change = {"logprobs": {"token_logprobs": [-1.0, value, -1.0]}}
    with pytest.raises(ValueError, match=f"gives {re.escape(repr(value))} for token 1, which is no log-prob"):
        REQUEST.read({"model": "m", "choices": [{**CHOICE, **change}]})


def test_an_answer_of_another_model_or_shape_is_refused():
    for answer in ({"model": "base", "choices": [CHOICE]}, {"model": "m", "choices": []}, "text", None):
        with pytest.raises(ValueError, match="the answer"):
            REQUEST.read(answer)
