"""Adapters: their layers, their start, trained weights, and the reference."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
from oracle import relative_error
from test_engine import config, sampled_rows
from tiny import tiny_model, tiny_policy

from memalpha.config import LoraConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.types import SampleRequest

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


TOKENS = ("<insert>", "<stop>", "<|user|>")
WITH_TOKENS = LoraConfig(r=4, modules_to_save=("norm",), trainable_tokens=TOKENS)


def token_engine(base) -> tuple[Engine, list[int]]:
    """Return an engine on the policy of `base` with trained tokens, and their ids."""
    policy = load_policy(base)
    ids = add_tokens(policy, TOKENS)
    return Engine(add_lora(policy.model, WITH_TOKENS, str(base), token_ids=ids), config(lora=WITH_TOKENS)), ids


@pytest.mark.parametrize("tied", [True, False])
def test_added_tokens_and_whole_layers_are_trained_saved_and_merged(tied, tmp_path):
    tiny_policy(tied=tied).save(tmp_path / "base")
    engine, ids = token_engine(tmp_path / "base")
    rows = [cross_entropy_sample((1, 40 + row, ids[0]), (ids[row % 2], 50 + row, ids[0], ids[1])) for row in range(4)]
    for _ in range(3):
        engine.update(rows, 1e-2)
    engine.forward_backward(rows)
    policy = load_policy(tmp_path / "base")
    assert add_tokens(policy, TOKENS) == ids
    (tmp_path / "adapter").mkdir()
    engine.write(tmp_path / "adapter")
    policy.tokenizer.save_pretrained(tmp_path / "adapter")

    merged = load_policy(tmp_path / "adapter")
    assert merged.render([{"role": "user", "content": "<insert><stop>"}])[1:3] == ids[:2]
    exact = copy.deepcopy(merged.model).double()
    start = policy.model.get_input_embeddings().weight
    changed = (exact.get_input_embeddings().weight - start).abs().amax(1) > 1e-3
    assert changed.nonzero()[:, 0].tolist() == sorted(ids)
    assert (exact.model.norm.weight - policy.model.model.norm.weight).abs().max() > 1e-3
    loss = 0.0
    for row, ours in zip(rows, engine.forward(rows), strict=True):
        tokens = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        logprobs = exact(input_ids=tokens[:, :-1]).logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[0, 2:, 0]
        assert np.abs(ours - logprobs.detach().numpy()).max() < 1e-5
        loss = loss - logprobs.sum()
    loss.backward()
    for layer, part in (("embed_tokens", exact.get_input_embeddings()), ("lm_head", exact.get_output_embeddings())):
        [delta] = [p.grad for n, p in engine.trainable.items() if "trainable_tokens" in n and (tied or layer in n)]
        assert relative_error(delta.double(), part.weight.grad[ids]) < 1e-4

    resumed, _ = token_engine(tmp_path / "base")
    resumed.read(tmp_path / "adapter")
    for now, then in zip(resumed.forward(rows), engine.forward(rows), strict=True):
        assert (now == then).all()
    request = SampleRequest(({"role": "user", "content": "a<insert>"},), key=(1,), temperature=1.0, max_new_tokens=6)
    [completion] = merged.sample([request])
    row = cross_entropy_sample(completion.prompt_ids, completion.completion_ids)
    assert np.abs(engine.forward([row])[0] - completion.logprobs).max() < 1e-4


def test_layers_that_cannot_be_trained_whole_are_refused():
    for target in ("lm_head", "embed_tokens"):
        with pytest.raises(ConfigError, match=rf"lora\.modules_to_save: {target} is an embedding"):
            add_lora(tiny_model(), LoraConfig(modules_to_save=(target,)), "tiny")
    for target in ("mlp", "nrm"):
        with pytest.raises(ConfigError, match=rf"lora\.modules_to_save: 'tiny' has no .* with weights '{target}'"):
            add_lora(tiny_model(), LoraConfig(modules_to_save=(target,)), "tiny")
    with pytest.raises(ConfigError, match=r"lora\.target_modules: down_proj is trained whole"):
        add_lora(tiny_model(), LoraConfig(target_modules=("down_proj",), modules_to_save=("mlp.down_proj",)), "tiny")


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
