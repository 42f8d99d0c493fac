"""Continuous batching against one row decoded alone by full float64 forwards, for any order of submit and collect."""

from __future__ import annotations

import pytest
import torch
from fake_policy import FakePolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import SHAPE, nudged, tiny_llama, tiny_model, tiny_policy, tiny_tokenizer
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM

from memalpha.errors import PromptTooLong
from memalpha.policy.base import BatchQueue, open_queue
from memalpha.policy.decoding import BLOCK, draw_by_blocks, ends_in_repeats, sampling_uniforms
from memalpha.policy.decoding_rows import PaddedRows, SlotRows
from memalpha.policy.flat_qwen3 import FlatRows
from memalpha.policy.kv_cache import has_plain_cache
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import Completion, SampleRequest


def sliding_model():
    """Every other layer sees 8 tokens only."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        **SHAPE, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    )
    return nudged(Gemma3ForCausalLM(config), 1, 0.1)


def convolution_model():
    """A layer with a state in place of keys and values."""
    torch.manual_seed(0)
    return nudged(Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"])), 1, 0.1)


MODELS = {"qwen3": tiny_model, "llama": tiny_llama, "sliding": sliding_model, "convolution": convolution_model}
PLAIN = ("qwen3", "llama")


def request(text: str, *key: int, temperature: float = 1.0, new: int = 12) -> SampleRequest:
    return SampleRequest(({"role": "user", "content": text},), key=key, temperature=temperature, max_new_tokens=new)


TEXTS = ("a", "the same prompt", "Ana moved to Porto, then to Lisbon", "müde", "x" * 60)


def ragged(count: int = 8) -> list[SampleRequest]:
    """Prompts, lengths and temperatures of all kinds, some prompts twice."""
    temperatures = (1.0, 0.7, 0.0, 1.0, 1.3)
    return [request(TEXTS[i % 5], 3, i, temperature=temperatures[i % 5], new=1 + 4 * (i % 4)) for i in range(count)]


def decode_alone(policy: TransformersPolicy, asked: SampleRequest) -> tuple[list[int], list[float]]:
    """Ids and log-probs of one request: a full float64 forward without a cache for each token."""
    model = type(policy.model)(policy.model.config).double().eval()
    model.load_state_dict(policy.model.state_dict())
    ids, logprobs = policy.render(asked.messages), []
    start = len(ids)
    for uniform in sampling_uniforms(asked.key, asked.max_new_tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        row = torch.log_softmax(logits / (asked.temperature or 1.0), -1)
        cdf = row.exp().cumsum(-1)
        drawn = int(torch.searchsorted(cdf, uniform * cdf[-1], right=True)) if asked.temperature else int(row.argmax())
        ids.append(drawn)
        logprobs.append(float(row[drawn]))
        if drawn in policy.eos_ids:
            break
    return ids[start:], logprobs


def drain(queue) -> dict[int, Completion]:
    completions: dict[int, Completion] = {}
    while ended := queue.collect():
        completions.update(ended)
    return completions


@pytest.fixture(scope="module", params=MODELS)
def known(request):
    """A policy, requests, and what each decodes to alone."""
    policy = TransformersPolicy(MODELS[request.param](), tiny_tokenizer(), request.param)
    policy.set_sampling_dtype("float64")
    return policy, ragged(), [decode_alone(policy, asked) for asked in ragged()]


def test_ids_and_logprobs_are_those_of_rows_alone(known):
    policy, requests, expected = known
    completions = policy.sample(requests)
    assert len({len(ids) for ids, _ in expected}) > 3, "lengths should differ"
    for completion, asked, (ids, logprobs) in zip(completions, requests, expected, strict=True):
        assert list(completion.completion_ids) == ids
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-6)
        assert completion.prompt_ids == tuple(policy.render(asked.messages))
        assert completion.temperature == asked.temperature
        assert completion.stop_reason == ("eos" if ids[-1] in policy.eos_ids else "length")
        text_ids = ids[:-1] if completion.stop_reason == "eos" else ids
        assert completion.text == policy.tokenizer.decode(text_ids)


_events = st.lists(st.integers(0, 4), max_size=14)
"""Each event: submit that many requests, or collect once."""


@settings(max_examples=6)
@given(events=_events, rows=st.integers(1, 6), tokens=st.sampled_from((40, 150, 10_000)))
def test_any_arrivals_give_the_same_ids(known, events, rows, tokens):
    policy, requests, expected = known
    policy.batch_rows, policy.batch_tokens = rows, tokens
    queue, waiting, completions = policy.open_queue(), list(requests), {}
    for event in events:
        if event:
            first = len(requests) - len(waiting)
            assert queue.submit(waiting[:event]) == list(range(first, first + len(waiting[:event])))
            waiting = waiting[event:]
        else:
            completions.update(queue.collect())
    queue.submit(waiting)
    completions.update(drain(queue))
    assert [list(completions[ticket].completion_ids) for ticket in range(len(requests))] == [ids for ids, _ in expected]
    policy.batch_rows, policy.batch_tokens = 128, 65536


def count_steps(monkeypatch) -> list[int]:
    """Rows of each decode step from now on."""
    rows: list[int] = []
    for kind in (FlatRows, SlotRows, PaddedRows):
        step = kind.step

        def counted(self, tokens, step=step):
            rows.append(len(tokens))
            return step(self, tokens)

        monkeypatch.setattr(kind, "step", counted)
    return rows


def test_rows_enter_while_others_run(monkeypatch):
    """Two chains of a long and short turns take the steps of the longer chain, not the sum of the longest turns."""
    rows = count_steps(monkeypatch)
    policy = TransformersPolicy(tiny_llama(), tiny_tokenizer())
    policy.eos_ids = frozenset()
    turns = [[20, 2, 2], [2, 2, 20]]
    queue = policy.open_queue()
    running = {
        ticket: (chain, 0)
        for chain, ticket in enumerate(queue.submit([request("a", 0, 0, new=20), request("a", 1, 0, new=2)]))
    }
    while ended := queue.collect():
        for ticket, completion in ended:
            chain, turn = running.pop(ticket)
            assert len(completion.completion_ids) == turns[chain][turn]
            if turn < 2:
                [ticket] = queue.submit([request("a", chain, turn + 1, new=turns[chain][turn + 1])])
                running[ticket] = chain, turn + 1
    assert sum(rows) == 2 * (19 + 1 + 1)
    assert len(rows) <= 23 < 3 * 19


@pytest.mark.parametrize("name", MODELS)
def test_limits_hold(monkeypatch, name):
    """No step has more rows than `batch_rows`; rows x longest row never exceed `batch_tokens`."""
    model = MODELS[name]()
    policy = TransformersPolicy(model, tiny_tokenizer())
    rows = count_steps(monkeypatch)
    policy.batch_rows = 5
    policy.sample([request("a", i) for i in range(17)])
    assert max(rows) == 5
    rows.clear()
    policy.batch_rows, policy.batch_tokens = 100, 100
    length = len(policy.render(request("a").messages)) + 12
    policy.sample([request("a", i) for i in range(17)])
    assert max(rows) == 100 // length
    policy.batch_tokens = 1
    rows.clear()
    assert len(policy.sample([request("a", i) for i in range(3)])) == 3
    assert max(rows) == 1, "a row beyond the limit runs alone"


def test_a_queue_closed_half_way_leaves_the_policy_usable(known):
    policy, requests, expected = known
    queue = policy.open_queue()
    queue.submit(requests)
    queue.collect()
    queue.close()
    assert queue.collect() == []
    assert [list(completion.completion_ids) for completion in policy.sample(requests)] == [ids for ids, _ in expected]
    [ticket] = queue.submit(requests[:1])
    assert list(dict(queue.collect())[ticket].completion_ids) == expected[0][0]


def test_two_queues_of_one_policy_do_not_meet(known):
    policy, requests, expected = known
    one, two = policy.open_queue(), policy.open_queue()
    one.submit(requests)
    found_one, found_two = dict(one.collect()), {}
    two.submit(requests[::-1])
    for _ in range(4):
        found_two.update(two.collect())
        found_one.update(one.collect())
    found_one.update(drain(one))
    found_two.update(drain(two))
    ids = [ids for ids, _ in expected]
    assert [list(found_one[ticket].completion_ids) for ticket in range(len(ids))] == ids
    assert [list(found_two[ticket].completion_ids) for ticket in range(len(ids))] == ids[::-1]


def test_a_prompt_too_long_adds_nothing():
    policy = tiny_policy()
    queue = policy.open_queue()
    queue.submit([request("a", 1)])
    with pytest.raises(PromptTooLong):
        queue.submit([request("a", 2), request("x" * 5000, 3)])
    assert list(drain(queue)) == [0]
    assert queue.submit([request("a", 2)]) == [1]


@pytest.mark.parametrize("name", MODELS)
def test_the_kind_of_rows_follows_the_models_cache(name):
    policy = TransformersPolicy(MODELS[name](), tiny_tokenizer())
    assert has_plain_cache(policy.model) == (name in PLAIN)
    assert policy._make_rows().joinable == (name in PLAIN)


def test_a_policy_without_a_queue_of_its_own_samples_batches():
    queue = open_queue(FakePolicy(lambda asked: asked.messages[0]["content"]))
    assert isinstance(queue, BatchQueue)
    assert queue.submit([request("a"), request("b")]) == [0, 1]
    assert [(ticket, completion.text) for ticket, completion in queue.collect()] == [(0, "a"), (1, "b")]
    queue.submit([request("c")])
    queue.close()
    assert queue.collect() == []
    assert queue.submit([request("d")]) == [3]


def test_the_noise_is_the_recorded_one():
    """The stream is fixed by the key's digits: a changed hash would break every resumed run."""
    assert sampling_uniforms((1, 2, 3), 2).tolist() == [0.044489604323897924, 0.691142907640049]
    noise = sampling_uniforms((4, 5), 4000)
    assert (noise[:7] == sampling_uniforms((4, 5), 7)).all()
    assert noise.min() >= 0 and noise.max() < 1
    lower = noise * 2.0**24 % 1
    assert (lower * 2**29 % 1 == 0).all() and len(set(lower.tolist())) == 4000
    assert abs(lower.mean() - 0.5) < 0.03 and abs(noise.mean() - 0.5) < 0.03
    assert (noise != sampling_uniforms((4, 6), 4000)).all()


@pytest.mark.parametrize("vocabulary", [5000, 20 * BLOCK])
def test_drawing_by_blocks_is_the_float64_inverse_cdf(vocabulary):
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(512, vocabulary, generator=random)
    logits[:, :BLOCK] = -torch.inf  # a block that is never drawn
    logits[:256, -3:] += 12  # most of the probability at the very end
    noise = torch.rand(512, 1, generator=random, dtype=torch.float64)
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    cdf = logprobs.exp().cumsum(dim=-1)
    token, log_total = draw_by_blocks(logits, noise)
    assert int((token == torch.searchsorted(cdf, noise, right=True)).sum()) >= 510  # two may be at a rounded boundary
    lower = (cdf - logprobs.exp()).gather(1, token)
    assert bool((lower - 1e-7 <= noise).all() and (noise <= cdf.gather(1, token) + 1e-7).all())
    expected = logprobs.gather(1, token)
    assert torch.allclose(logits.gather(1, token) - log_total, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_drawing_by_blocks_takes_no_impossible_token(uniform):
    random = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(64, 5000, generator=random)
    logits[:, :300] = logits[:, 4700:] = -torch.inf
    token, _ = draw_by_blocks(logits, torch.full((64, 1), uniform, dtype=torch.float64))
    assert bool(((token >= 300) & (token < 4700)).all())


@pytest.mark.parametrize(
    ("ids", "is_repeated"),
    [
        ([1] * 24, True),
        ([1] * 23, False),
        ([5, 6] + [1, 2, 3, 4] * 6, True),
        ([1, 2, 3, 4] * 6 + [1], True),
        ([1, 2, 3, 4] * 6 + [9], False),
        (list(range(10)) * 3, True),
        (list(range(10)) * 2 + list(range(9)), False),
        ([], False),
    ],
)
def test_three_equal_blocks_of_24_tokens_are_a_repetition(ids, is_repeated):
    assert ends_in_repeats(ids) is is_repeated


def test_a_reply_that_repeats_itself_is_cut_and_counts_as_truncated():
    policy = tiny_policy()
    requests = [request("x" * length, length, temperature=0.0, new=120) for length in range(1, 9)]
    whole = policy.sample(requests)
    policy.stop_repeats = True
    cut = policy.sample(requests)
    assert any(len(ours.completion_ids) < len(theirs.completion_ids) for ours, theirs in zip(cut, whole, strict=True))
    for ours, theirs in zip(cut, whole, strict=True):
        count = len(ours.completion_ids)
        assert ours.completion_ids == theirs.completion_ids[:count]
        assert ours.logprobs == pytest.approx(theirs.logprobs[:count], abs=1e-5)
        assert not any(ends_in_repeats(theirs.completion_ids[:end]) for end in range(count))
        if count < len(theirs.completion_ids):
            assert ends_in_repeats(ours.completion_ids) and ours.stop_reason == "length"
