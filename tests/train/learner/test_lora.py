"""Adapters: their layers, their start, trained weights, and the reference."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
from test_engine import config, relative_error, sampled_rows
from tiny import tiny_model

from memalpha.config import LoraConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls transformers by names on their way out


def factors(model) -> dict[str, torch.Tensor]:
    return {name: part for name, part in model.named_parameters() if "lora_" in name}


def test_adapters_start_from_the_seed_alone():
    first = factors(add_lora(tiny_model(), LoraConfig(r=4), "tiny", seed=3))
    second = factors(add_lora(tiny_model(seed=9), LoraConfig(r=4), "tiny", seed=3))
    model, noise = tiny_model(), torch.random.get_rng_state()
    other = factors(add_lora(model, LoraConfig(r=4), "tiny", seed=4))
    assert len(first) == 2 * 7 * 2 and not any("lm_head" in name for name in first)
    assert all(torch.equal(part, second[name]) for name, part in first.items())
    assert any(not torch.equal(part, other[name]) for name, part in first.items())
    assert torch.equal(noise, torch.random.get_rng_state())


def test_invalid_targets_are_refused():
    with pytest.raises(ConfigError, match=r"no linear layer 'q_prj'; it has down_proj, gate_proj, k_proj"):
        add_lora(tiny_model(), LoraConfig(target_modules=("v_proj", "q_prj")), "tiny")
    for tied in (True, False):
        with pytest.raises(ConfigError, match="output embedding"):
            add_lora(tiny_model(tied=tied), LoraConfig(target_modules=("lm_head",)), "tiny")
    foreign = peft.get_peft_model(tiny_model(tied=False), peft.LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(PolicyError, match="after the output embedding"):
        Engine(foreign, config())
    chosen = factors(add_lora(tiny_model(), LoraConfig(target_modules=("v_proj", "mlp.up_proj")), "tiny"))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in chosen} == {"v_proj", "up_proj"}


def test_only_adapters_train_and_the_reference_is_the_model_without_them():
    model, rows = sampled_rows(10)
    before = copy.deepcopy(model)
    learner = Engine(add_lora(model, LoraConfig(r=4), "tiny"), config(lora=LoraConfig(r=4)), reference=True)
    start = learner.forward(rows)
    for _ in range(2):
        learner.update(rows, 1e-2)
    assert set(learner.trainable) == set(factors(learner.model))
    frozen = {name.replace(".base_layer", ""): part for name, part in model.named_parameters() if "lora_" not in name}
    assert all(torch.equal(part, frozen[name]) for name, part in before.named_parameters())
    for now, then, reference in zip(learner.forward(rows), start, learner.forward(rows, reference=True), strict=True):
        assert (reference == then).all() and abs(now - then).max() > 1e-3
    assert all(part.requires_grad for part in learner.trainable.values())
    assert {key.rpartition("/")[0] for key in learner.optimizer_tensors()} == set(learner.trainable)


def test_frozen_weights_rest_in_bfloat16_and_adapters_in_float32():
    model, rows = sampled_rows(10)
    exact = Engine(add_lora(copy.deepcopy(model), LoraConfig(r=4), "tiny"), config())
    low = Engine(add_lora(model, LoraConfig(r=4), "tiny"), config(dtype="bfloat16"))
    assert {part.dtype for part in low.trainable.values()} == {torch.float32}
    assert {part.dtype for part in low.model.parameters() if not part.requires_grad} == {torch.bfloat16}
    grads = []
    for learner in (exact, low):
        learner.forward_backward(rows)
        grads.append(torch.cat([part.grad.flatten() for part in learner.trainable.values()]))
        assert grads[-1].dtype == torch.float32
    assert relative_error(grads[1], grads[0]) < 0.1


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"gradient_checkpointing": True}])
def test_adapters_of_the_last_layers_get_the_gradient_they_get_among_all(settings):
    model, rows = sampled_rows(10)
    all_layers = Engine(add_lora(copy.deepcopy(model), LoraConfig(r=4), "tiny"), config(**settings))
    top = Engine(add_lora(model, LoraConfig(r=4, layers=1), "tiny"), config(**settings))
    assert {name.split("layers.")[1][0] for name in top.trainable} == {"1"} and len(top.trainable) == 7 * 2
    for name, parameter in top.trainable.items():
        parameter.data.copy_(all_layers.trainable[name].data)
    has_graph = []
    for learner in (all_layers, top):
        layer = learner.model.get_base_model().model.layers[1]
        layer.input_layernorm.register_forward_pre_hook(lambda _, inputs: has_graph.append(inputs[0].requires_grad))
        learner.forward_backward(rows)
    count = len(has_graph) // 2
    assert has_graph == [True] * count + [False] * count, "the layers below the adapters have no graph"
    for name, parameter in top.trainable.items():
        assert torch.equal(parameter.grad, all_layers.trainable[name].grad), name


def test_too_many_last_layers_are_refused_and_adapters_load_again(tmp_path):
    with pytest.raises(ConfigError, match=r"lora\.layers: 'tiny' has 2 layers, not 3"):
        add_lora(tiny_model(), LoraConfig(layers=3), "tiny")
    model, rows = sampled_rows(6)
    learner = Engine(add_lora(copy.deepcopy(model), LoraConfig(r=4, layers=1), "tiny"), config())
    learner.update(rows, 1e-2)
    learner.write(tmp_path)
    loaded = peft.PeftModel.from_pretrained(model, tmp_path, is_trainable=True)
    for ours, theirs in zip(learner.forward(rows), Engine(loaded, config()).forward(rows), strict=True):
        assert (ours == theirs).all()
