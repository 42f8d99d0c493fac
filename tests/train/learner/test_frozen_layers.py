"""Hidden states below the adapters, computed once per row: the gradients of a run without it, its limit, refusals."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from test_engine import SINGLE_ROWS, relative_error
from tiny import tiny_llama, tiny_model
from transformers import MistralConfig, MistralForCausalLM

from memalpha.config import LoraConfig, PreferenceConfig, RewardModelConfig, SFTConfig, TrainConfig
from memalpha.errors import ConfigError
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.frozen_layers import FrozenLayers
from memalpha.train.learner.lora import add_lora

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls transformers by names on their way out

PLAIN = LoraConfig(r=4, layers=1)
CACHED = LoraConfig(r=4, layers=1, frozen_cache_gb=1)


def sliding_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    return MistralForCausalLM(MistralConfig(vocab_size=265, num_hidden_layers=3, sliding_window=5, **sizes))


def rows_of(count: int = 9):
    rng = np.random.default_rng(0)
    shared = tuple(rng.integers(3, 250, 6).tolist())
    sizes = zip(rng.integers(1, 30, count), rng.integers(1, 12, count), strict=True)
    rows = [
        cross_entropy_sample((*shared, *rng.integers(3, 250, prompt)), tuple(rng.integers(3, 250, reply)))
        for prompt, reply in sizes
    ]
    return [*rows, rows[0]]


def config_of(lora: LoraConfig, **settings) -> SFTConfig:
    return SFTConfig(**{"out": "unused", "warmup_steps": 0, "learning_rate": 1e-3, "lora": lora, **settings})


def engine_of(model, lora: LoraConfig, **settings) -> Engine:
    engine = Engine(add_lora(copy.deepcopy(model), lora, "tiny"), config_of(lora, **settings))
    torch.manual_seed(1)
    for parameter in engine.trainable.values():  # the second factors start at 0
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return engine


def count_calls(engine: Engine) -> list[int]:
    """Return a list that gets a 1 for each pass of the lowest layer."""
    calls: list[int] = []
    frozen = engine.frozen
    assert frozen is not None
    own = frozen._compute
    frozen._compute = lambda ids: calls.append(1) or own(ids)  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("model", [tiny_model, tiny_llama, sliding_model])
@pytest.mark.parametrize(
    "settings", [{}, {"gradient_checkpointing": True}, {"microbatch_tokens": SINGLE_ROWS}], ids=["", "ckpt", "single"]
)
def test_loss_and_gradient_are_those_without_it(model, settings):
    base, rows = model(), rows_of()
    plain, cached = engine_of(base, PLAIN, **settings), engine_of(base, CACHED, **settings)
    calls = count_calls(cached)
    for _ in range(3):  # the second and third pass take what the first has kept
        stats = [engine.forward_backward(engine.normalized(rows)) for engine in (plain, cached)]
        assert stats[1] == pytest.approx(stats[0], rel=1e-6, abs=1e-6)
        gradients = [torch.cat([part.grad.flatten() for part in e.trainable.values()]) for e in (plain, cached)]
        assert gradients[0].norm() > 0 and relative_error(gradients[1], gradients[0]) < 1e-6
        for engine in (plain, cached):
            engine.optim_step(1e-3)
    assert len(calls) == len(rows) - 1, "equal rows are one"
    for ours, theirs in zip(cached.forward(rows), plain.forward(rows), strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
    for layer in cached.model.get_base_model().model.layers:
        assert "forward" not in vars(layer), "the model is as it was"


def test_trees_and_bfloat16_and_the_reference_take_the_states_too():
    base, rows = tiny_model(), rows_of()
    for settings, tolerance in (({"share_prefixes": True}, 1e-6), ({"dtype": "bfloat16"}, 1e-2)):
        plain, cached = engine_of(base, PLAIN, **settings), engine_of(base, CACHED, **settings)
        for engine in (plain, cached):
            engine.forward(rows)
            engine.forward_backward(engine.normalized(rows))
        gradients = [torch.cat([part.grad.flatten() for part in e.trainable.values()]) for e in (plain, cached)]
        assert relative_error(gradients[1], gradients[0]) < tolerance
    cached = Engine(add_lora(copy.deepcopy(base), CACHED, "tiny"), config_of(CACHED), reference=True)
    start = cached.forward(rows)
    cached.update(rows, 1e-2)
    for now, then, reference in zip(cached.forward(rows), start, cached.forward(rows, reference=True), strict=True):
        assert (reference == then).all() and abs(now - then).max() > 1e-4


def test_rows_above_the_limit_are_computed_in_each_pass_and_give_the_same_bits():
    base, rows = tiny_model(), rows_of()
    token_bytes = 32 * 4
    limit = token_bytes * (rows[0].length + rows[1].length)
    whole, bounded = (
        engine_of(base, CACHED),
        engine_of(base, CACHED.model_copy(update={"frozen_cache_gb": limit / 1e9})),
    )
    calls = count_calls(bounded)
    for engine in (whole, bounded):
        for part in (rows, rows[::-1], rows[3:]):  # other batches
            engine.update(part, 1e-3)
    for name, parameter in whole.trainable.items():
        assert torch.equal(parameter, bounded.trainable[name]), name
    assert bounded.frozen is not None and 0 < bounded.frozen.bytes <= limit
    assert whole.frozen is not None and whole.frozen.bytes == token_bytes * sum(row.length - 1 for row in rows[:-1])
    assert len(calls) > 2 * (len(rows) - 3)
    assert "the other" not in whole.frozen.describe(rows)
    assert f"for {len(rows) - 1} rows" in bounded.frozen.describe(rows)
    assert "% are computed in every pass" in bounded.frozen.describe(rows)


def test_what_is_not_exact_is_refused():
    below = LoraConfig(r=4, layers=1, modules_to_save=("input_layernorm",), frozen_cache_gb=1)
    with pytest.raises(
        ConfigError, match=r"frozen_cache_gb: weights below layer 1 are trained \(lora\.modules_to_save"
    ):
        engine_of(tiny_model(), below)
    engine_of(tiny_model(), below.model_copy(update={"modules_to_save": ("norm",)}))  # the last norm is above
    with pytest.raises(ConfigError, match=r"lora\.layers=2 adapts all layers"):
        engine_of(tiny_model(), CACHED.model_copy(update={"layers": 2}))


def test_a_model_whose_upper_layers_read_more_is_refused():
    adapted = add_lora(tiny_model(), PLAIN, "tiny")
    FrozenLayers(adapted, 1, 10**9)
    first, last = adapted.get_base_model().model.layers
    outputs: list[torch.Tensor] = []
    first.input_layernorm.register_forward_hook(lambda *call: outputs.append(call[-1]))
    last.register_forward_pre_hook(lambda _, inputs: (inputs[0] + outputs.pop() if outputs else inputs[0], *inputs[1:]))
    with pytest.raises(ConfigError, match="computes something else from the hidden states of layer 1"):
        FrozenLayers(adapted, 1, 10**9)


def test_settings_that_do_not_fit_are_refused():
    base = {"out": "unused", "data": "unused.jsonl"}
    cached = {"layers": 2, "frozen_cache_gb": 0.5}
    assert PreferenceConfig(**base, lora=cached).lora.frozen_cache_gb == 0.5
    for kind, changes, message in (
        (SFTConfig, {"lora": {"frozen_cache_gb": 1}}, "without lora.layers all layers are adapted"),
        (SFTConfig, {"lora": {**cached, "trainable_tokens": ["<a>"]}}, "trainable_tokens changes embeddings"),
        (SFTConfig, {"lora": cached, "sharding": "fsdp"}, "does not work with compute.sharding=fsdp"),
        (SFTConfig, {"lora": cached, "device_map": "auto"}, "does not work with compute.device_map"),
        (SFTConfig, {"lora": cached, "source": "best", "rounds": 2}, "each round samples new rows"),
        (TrainConfig, {"lora": cached}, "each step samples new rows"),
        (RewardModelConfig, {"lora": cached}, "has no effect with algorithm=reward"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**{**base, **changes})
