"""The flat forward pass against transformers' own, and the weights that a sampler reads."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from tiny import exact_logprobs, nudged, tiny_llama, tiny_model, tiny_policy, tiny_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from memalpha.policy import flat_qwen3
from memalpha.policy.flat_qwen3 import FlatQwen3, FlatRows, PackedPrompts, split_packs, supports_flat
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import SampleRequest

PROMPTS = [
    (5, 6, 7, 8, 9, 10, 11, 12),
    (5, 6, 7),
    (5, 6, 7, 8, 30),
    (40,),
    (5, 6, 7),
    (41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53),
    (5, 6, 7, 8, 9, 10, 11, 13),
]
"""Duplicates, shared prefixes, and one prompt that begins another."""


def exact_norm(values: torch.Tensor, eps: float) -> torch.Tensor:
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)


def largest_error(model, dtype: torch.dtype) -> float:
    """Largest error of logits against one unpadded forward per row, relative to the largest logit.

    Rows enter in two batches, draw tokens, are reordered and dropped.
    """
    reference = copy.deepcopy(model).to(dtype)
    rows = FlatRows(FlatQwen3(model, dtype).load(), 10_000)
    sequences: list[tuple[list[int], list[torch.Tensor]]] = []  # ids, and logits after the last of them

    def enter(prompts) -> None:
        logits = rows.enter(prompts, [len(prompt) + 20 for prompt in prompts])
        sequences.extend([(list(prompt), [row]) for prompt, row in zip(prompts, logits, strict=True)])

    def step() -> None:
        for number, (ids, _) in enumerate(sequences):
            ids.append(20 + 3 * number)
        for (_, found), row in zip(sequences, rows.step([ids[-1] for ids, _ in sequences]), strict=True):
            found.append(row)

    with torch.inference_mode():
        enter(PROMPTS[:4])
        for _ in range(3):
            step()
        enter(PROMPTS[2:])
        step()
        everything, order = list(sequences), [0, 8, 2, 7, 4]
        rows.keep(order)
        sequences[:] = [sequences[row] for row in order]
        for _ in range(10):
            step()
        errors = []
        for ids, found in everything:
            expected = reference(input_ids=torch.tensor([ids])).logits[0, -len(found) :]
            errors.append((torch.stack(found) - expected).abs().amax(-1) / expected.abs().amax(-1))
    return float(torch.cat(errors).max())


SHAPES = {"tied": {}, "untied": {"tied": False}, "wide": {"width": 48, "layers": 3}}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_transformers_forward_pass(monkeypatch, shape):
    model = nudged(tiny_model(**SHAPES[shape], scale=2.0), 5, 0.1)
    assert largest_error(model, torch.float32) < 1e-5
    assert largest_error(model, torch.float64) < 1e-6, "norms are float32 in both"
    monkeypatch.setattr(
        Qwen3RMSNorm, "forward", lambda self, values: self.weight * exact_norm(values, self.variance_epsilon)
    )
    monkeypatch.setattr(FlatQwen3, "_normalize", lambda self, values: exact_norm(values, self.eps))
    assert largest_error(model, torch.float64) < 1e-12


@pytest.mark.parametrize("tokens", [1, 6, 12, 10_000])
def test_packs_do_not_change_the_logits(monkeypatch, tokens):
    model = tiny_model()
    expected = FlatRows(FlatQwen3(model, torch.float64).load(), 10_000).enter(PROMPTS, [20] * 7)
    monkeypatch.setattr(flat_qwen3, "PACK_TOKENS", tokens)
    packs = split_packs(PROMPTS)
    assert sorted(itertools.chain(*packs)) == list(range(7)) and (len(packs) > 1) == (tokens < 30)
    rows = FlatRows(FlatQwen3(model, torch.float64).load(), 10_000)
    assert torch.allclose(rows.enter(PROMPTS, [20] * 7), expected, atol=1e-6, rtol=0)
    assert rows.slots.lengths == [len(prompt) for prompt in PROMPTS]


def test_each_prefix_is_computed_once():
    packed = PackedPrompts(PROMPTS)
    prefixes = {prompt[:end] for prompt in PROMPTS for end in range(1, len(prompt) + 1)}
    assert len(packed.tokens) == len(prefixes) == 24
    for prompt, row in zip(PROMPTS, packed.nodes[packed.owner], strict=True):
        assert packed.tokens[row[: len(prompt)]].tolist() == list(prompt)
        assert packed.positions[row[: len(prompt)]].tolist() == list(range(len(prompt)))
    queries = torch.cat([group.queries[group.is_own] for group in packed.groups])
    assert queries.tolist() == list(range(len(prefixes))), "every node is a query, in order"


def configured(**changes):
    """A random model whose configuration has changes."""
    config = copy.deepcopy(tiny_model().config)
    for name, value in changes.items():
        setattr(config, name, value)
    return nudged(Qwen3ForCausalLM(config), 3, 0.1)


SCALED_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def sliding():
    config = tiny_model().config.to_dict()
    for name in ("layer_types", "use_sliding_window", "sliding_window", "max_window_layers"):
        config.pop(name, None)
    return Qwen3ForCausalLM(Qwen3Config(**config, use_sliding_window=True, sliding_window=6, max_window_layers=1))


def adapted():
    model = tiny_model()
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False), model)
    return model


def hooked():
    model = tiny_model()
    model.model.layers[1].register_forward_hook(lambda module, inputs, output: output * 1.5)
    return model


def replaced():
    model = tiny_model()
    forward = model.model.norm.forward
    model.model.norm.forward = lambda values: 0.5 * forward(values)
    return model


OTHERS = {
    "llama": tiny_llama,
    "scaled rope": lambda: configured(rope_parameters=SCALED_ROPE),
    "sliding": sliding,
    "biased": lambda: configured(attention_bias=True),
    "other activation": lambda: configured(hidden_act="gelu"),
    "adapted": adapted,
    "hooked": hooked,
    "replaced": replaced,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_run_through_transformers(kind):
    model = OTHERS[kind]()
    assert not supports_flat(model, torch.float32)
    policy = TransformersPolicy(model, tiny_tokenizer())
    request = SampleRequest(({"role": "user", "content": "a few words"},), key=(1,), temperature=1.0, max_new_tokens=9)
    [completion] = policy.sample([request])
    expected = exact_logprobs(model, completion.prompt_ids, completion.completion_ids)
    assert torch.allclose(torch.tensor(completion.logprobs, dtype=torch.float64), expected, atol=1e-4)


def test_what_it_takes(monkeypatch):
    model = load_policy("tiny").model  # type: ignore[attr-defined]
    assert supports_flat(model, torch.float32) and supports_flat(model, torch.float64)
    assert not supports_flat(model, torch.bfloat16)
    monkeypatch.setattr(flat_qwen3, "MAX_PARAMETERS", 1000)
    assert not supports_flat(model, torch.float32)


def fused_step(model) -> None:
    """Update as the learner does. This optimizer does not raise the tensors' version counters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def data_copy(model) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 1.3)


def data_swap(model) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.7


UPDATES = {
    "fused step": fused_step,
    "load_state_dict": lambda model: model.load_state_dict(nudged(model, 4, 0.3).state_dict()),
    "data.copy_": data_copy,
    "data": data_swap,
    "module": lambda model: setattr(model.model, "norm", copy.deepcopy(nudged(model, 5, 0.5).model.norm)),
    "adapter": lambda model: inject_adapter_in_model(
        LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False), model
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make_model", [tiny_model, tiny_llama])
def test_no_update_of_the_weights_is_missed(make_model, dtype):
    requests = [
        SampleRequest(({"role": "user", "content": "a"},), key=(i,), temperature=1.0, max_new_tokens=8)
        for i in range(4)
    ]
    policy = TransformersPolicy(make_model(), tiny_tokenizer())
    policy.set_sampling_dtype(dtype)
    before = policy.sample(requests)
    queue = policy.open_queue()
    for name, update in UPDATES.items():
        update(policy.model)
        fresh = TransformersPolicy(copy.deepcopy(policy.model), tiny_tokenizer())
        fresh.set_sampling_dtype(dtype)
        after = policy.sample(requests)
        assert after != before, name
        assert after == fresh.sample(requests), name
        first = queue.submit(requests)[0]
        found = {}
        while ended := queue.collect():
            found.update(ended)
        assert [found[first + i] for i in range(4)] == after, f"{name}: a queue that was idle"
        before = after


def test_a_model_put_in_place_of_another_is_sampled_from():
    policy = tiny_policy()
    policy.set_sampling_dtype("float64")
    request = SampleRequest(({"role": "user", "content": "a"},), key=(1,), temperature=1.0, max_new_tokens=8)
    policy.sample([request])
    policy.model = nudged(tiny_model(), 7, 0.5)
    other = TransformersPolicy(policy.model, tiny_tokenizer())
    other.set_sampling_dtype("float64")
    assert policy.sample([request]) == other.sample([request])
