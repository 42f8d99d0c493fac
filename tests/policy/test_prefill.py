"""Prompts that enter together: what they have in front and their like lengths are computed once, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import SHAPE, VOCABULARY, tiny_llama, tiny_model
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
)

from memalpha.policy.decoding_rows import PASS_TOKENS, SlotRows, length_groups

TOLERANCES = {"deepseek": 1e-7}
"""DeepSeek's rotations and softmax are float32 in a float64 model, too."""

PLAIN_FAMILIES = {
    "llama": lambda: tiny_llama(),
    "qwen3": lambda: tiny_model(),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32)),
    "falcon": lambda: FalconForCausalLM(FalconConfig(**SHAPE, alibi=True)),
    "deepseek": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **SHAPE | {"num_key_value_heads": 4},
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=12,
            q_lora_rank=None,
            first_k_dense_replace=2,
        )
    ),
}


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
@settings(max_examples=8)
@example(prefix=80, tails=[[1], [2, 3], [4], [2, 3]])
@example(prefix=80, tails=[[1], [1], [2, 3], list(range(1, 151)), list(range(3, 151))])
@given(
    prefix=st.integers(0, 90),
    tails=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=5),
)
def test_what_all_prompts_have_in_front_is_computed_once(family, prefix, tails):
    """Logits after the prompts and after a further token are those of each prompt alone; no token is computed twice."""
    torch.manual_seed(0)
    bound = TOLERANCES.get(family, 1e-9)
    model = PLAIN_FAMILIES[family]().double().eval()
    prompts = [[*(i % 40 + 1 for i in range(prefix)), *tail] for tail in tails]
    computed = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: computed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    rows = SlotRows(model, 10_000)
    with torch.inference_mode():
        logits = rows.enter(prompts, [len(prompt) + 2 for prompt in prompts])
        distinct, shortest = len({tuple(prompt) for prompt in prompts}), min(map(len, prompts))
        front = next((i for i in range(shortest - 1) if len({p[i] for p in prompts}) > 1), shortest - 1)
        shared = front if front * (distinct - 1) >= PASS_TOKENS else 0
        groups = computed[1:] if shared else computed
        assert not shared or computed[0] == (1, shared)
        assert sum(rows for rows, _ in groups) == distinct
        cost = sum(rows * width + PASS_TOKENS for rows, width in groups)
        assert cost <= distinct * (max(map(len, prompts)) - shared) + PASS_TOKENS
        after = rows.step([7] * len(prompts))
        for index, prompt in enumerate(prompts):
            alone = model(input_ids=torch.tensor([[*prompt, 7]]), use_cache=False).logits[0, -2:]
            torch.testing.assert_close(logits[index], alone[0], rtol=bound, atol=bound)
            torch.testing.assert_close(after[index], alone[1], rtol=bound, atol=bound)


@pytest.mark.parametrize("make", [tiny_llama, tiny_model], ids=["llama", "qwen3"])
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), padding=st.integers(0, 3))
@settings(max_examples=10)
def test_a_step_of_fixed_shape_gives_the_logits_of_a_plain_one(make, lengths, padding):
    """As a CUDA graph runs it: all columns read, rows of padding behind, which leave no trace in rows under way."""
    torch.manual_seed(0)
    model = make().double().eval()
    prompts = [[(7 * row + i) % 40 + 1 for i in range(length)] for row, length in enumerate(lengths)]
    plain, fixed = SlotRows(model, 10_000), SlotRows(model, 10_000)
    with torch.inference_mode():
        for rows in (plain, fixed):
            rows.enter(prompts + [[1]] * padding, [45] * (len(prompts) + padding))
            rows.keep(list(range(len(prompts))))
        for token in (3, 5, 7):
            inputs = torch.tensor([[token] * len(prompts), fixed.slots.lengths])
            logits = fixed.padded_pass(torch.nn.functional.pad(inputs, (0, padding)))[: len(prompts)]
            fixed.slots.lengths = [length + 1 for length in fixed.slots.lengths]
            torch.testing.assert_close(logits, plain.step([token] * len(prompts)), rtol=1e-9, atol=1e-9)


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=7))
def test_prompts_are_grouped_by_length_at_the_least_cost(lengths):
    """Against all ways to cut the sorted lengths."""

    def cost(groups):
        return sum(max(group) * len(group) + PASS_TOKENS for group in groups)

    groups = [[lengths[index] for index in group] for group in length_groups(lengths, PASS_TOKENS)]
    assert sorted(length for group in groups for length in group) == sorted(lengths)
    ordered, cuts = sorted(lengths), range(1, len(lengths))
    ways = itertools.chain.from_iterable(itertools.combinations(cuts, count) for count in range(len(lengths)))
    assert cost(groups) == min(
        cost([ordered[start:end] for start, end in itertools.pairwise((0, *way, len(ordered)))]) for way in ways
    )
