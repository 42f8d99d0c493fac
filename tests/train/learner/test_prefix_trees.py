"""Rows packed as trees: the log-probs and gradients of separate rows."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from oracle import relative_error
from test_engine import SINGLE_ROWS, UNSPLIT, config, sampled_rows
from tiny import tiny_llama, tiny_model, tiny_policy
from transformers import MistralConfig, MistralForCausalLM

from memalpha.config import RewardModelConfig
from memalpha.errors import ConfigError
from memalpha.train.data.samples import build_trees, cross_entropy_sample, pack, split_tree_batches, tree_layout
from memalpha.train.learner.distributed import SINGLE_PROCESS
from memalpha.train.learner.engine import Engine
from memalpha.train.trainers.preferences import build_reward_engine


def gradient(engine: Engine) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in engine.trainable.values()])


@pytest.mark.parametrize(
    ("tokens", "settings"),
    [(SINGLE_ROWS, {}), (90, {}), (UNSPLIT, {}), (90, {"gradient_checkpointing": True}), (90, {"head_tokens": 7})],
)
def test_trees_have_the_log_probs_and_gradients_of_rows(tokens, settings):
    model, rows = sampled_rows(24)
    rows += rows[:3]  # equal rows, which keep their own advantages
    plain = Engine(copy.deepcopy(model).double(), config(microbatch_tokens=UNSPLIT))
    trees = Engine(model.double(), config(microbatch_tokens=tokens, share_prefixes=True, **settings))
    for ours, theirs in zip(trees.forward(rows), plain.forward(rows), strict=True):
        assert np.abs(ours - theirs).max() < 1e-6
    stats = [engine.forward_backward(engine.normalized(rows)) for engine in (plain, trees)]
    assert stats[0] == pytest.approx(stats[1], rel=1e-5, abs=1e-6)
    assert relative_error(gradient(trees), gradient(plain)) < 1e-7


def test_each_prefix_of_a_tree_is_one_node():
    prompts = [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9), (1, 2, 3)]
    replies = [(5, 6, 0), (5, 7, 0), (5, 0), (4, 5, 8, 0)]
    samples = [cross_entropy_sample(*pair) for pair in zip(prompts, replies, strict=True)]
    [tree] = build_trees(samples, 100)
    paths = {(*prompt, *reply)[:end] for prompt, reply in zip(prompts, replies, strict=True) for end in range(1, 7)}
    prefixes = {path for path in paths if not any((*p, *r) == path for p, r in zip(prompts, replies, strict=True))}
    assert len(tree.tokens) == len(prefixes)
    samples = [samples[index] for index in tree.samples]
    layout = tree_layout(samples, [tree])
    batch = pack(samples, layout=layout)
    assert batch.attended is not None and batch.depths is not None
    for path, sample in zip(layout.nodes, samples, strict=True):
        node = int(path[-1])
        visible = np.flatnonzero(batch.attended[0, 0, node].numpy())
        order = visible[np.argsort(batch.depths[0, visible].numpy())]
        ids = (*sample.prompt_ids, *sample.completion_ids[:-1])
        assert tuple(batch.input_ids[0, order].tolist()) == ids
    parts = split_tree_batches(samples, 7)
    assert sorted(index for trees in parts for tree in trees for index in tree.samples) == [0, 1, 2, 3]
    assert len(parts) > 1


def test_a_model_that_cannot_attend_along_trees_is_refused():
    eager = tiny_model()
    eager.config._attn_implementation = "eager"
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 3}
    sliding = MistralForCausalLM(MistralConfig(**shape))
    for model in (eager, sliding):
        with pytest.raises(ConfigError, match=r"compute\.share_prefixes: .* cannot attend along a tree"):
            Engine(model, config(share_prefixes=True))
    Engine(tiny_llama(), config(share_prefixes=True))


def test_a_reward_model_has_no_trees():
    settings = RewardModelConfig(out="unused", data="unused.jsonl", share_prefixes=True)
    with pytest.raises(ConfigError, match=r"compute\.share_prefixes: a reward model"):
        build_reward_engine(tiny_policy(), settings, SINGLE_PROCESS)
