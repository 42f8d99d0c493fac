"""The head in blocks against full float64 logits, its memory, checkpointing, precision."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from tiny import VOCABULARY, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, GraniteConfig, GraniteForCausalLM

from memalpha.config import LoraConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.token_logprobs import TokenScorer, check_head, head_logprobs


def inputs(rows: int, dtype=torch.float64, vocabulary: int = 60):
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((rows, 16), (vocabulary, 16), (vocabulary,))
    )
    targets, heat = torch.randint(vocabulary, (rows,)), torch.rand(rows, dtype=dtype) + 0.5
    return hidden, weight, bias, targets, heat


def plain(hidden, weight, bias, targets, heat):
    """Compute log-probs and entropies from full logits with autograd."""
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    table = torch.log_softmax(logits / heat[:, None], -1)
    return table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)


@pytest.mark.parametrize("tokens", [1, 7, 300, 1024])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_head_equals_full_logits(tokens, entropy, with_bias):
    hidden, weight, bias, targets, heat = inputs(600 if tokens > 7 else 20)
    leaves = [hidden, weight, bias] if with_bias else [hidden, weight]
    bias = bias if with_bias else None
    pull, push = torch.randn(2, len(hidden), dtype=hidden.dtype)
    pull[: len(pull) // 2] = push[: len(pull) // 2] = 0  # whole blocks without a gradient
    results = []
    for outputs in (
        head_logprobs(hidden, weight, bias, targets, heat, max_rows=tokens),
        plain(hidden, weight, bias, targets, heat),
    ):
        loss = (outputs[0] * pull).sum() + ((outputs[1] * push).sum() if entropy else 0.0)
        results.append((*outputs, *torch.autograd.grad(loss, leaves)))
    for actual, expected in zip(*results, strict=True):
        assert torch.allclose(actual, expected, atol=1e-12)


class Shapes(TorchDispatchMode):
    """Count the shapes of all created tensors, and the calls that created them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls[str(func)] += 1
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, torch.Tensor):
                self.seen[tuple(value.shape)] += 1
        return result


def test_full_logits_never_exist():
    hidden, weight, bias, targets, heat = inputs(900, torch.float32, vocabulary=50)
    with Shapes() as shapes:
        logprobs, entropy = head_logprobs(hidden, weight, bias, targets, heat, max_rows=300)
        (logprobs.sum() + entropy.sum()).backward()
    rows = max(shape[0] for shape in shapes.seen if len(shape) == 2 and shape[1] == 50)
    assert rows == 300
    with Shapes() as shapes, torch.no_grad():
        head_logprobs(hidden, weight, bias, targets, heat, max_rows=300)
    assert max(shape[0] for shape in shapes.seen if len(shape) == 2 and shape[1] == 50) == 256


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("tokens", [64, 1024])
def test_a_bfloat16_head_keeps_the_gradient_of_confident_tokens(tokens, entropy):
    """Most tokens of a trained writer are nearly certain, so 1 - p must survive the rounding of p."""
    torch.manual_seed(0)
    targets, heat = torch.randint(60, (400,)), torch.rand(400) * 0.1 + 1
    weight = torch.linalg.qr(torch.randn(64, 64))[0][:60]
    hidden = 12.5 * weight[targets] + 0.5 * torch.randn(400, 64)
    low = [tensor.bfloat16().requires_grad_() for tensor in (hidden, weight)]
    exact = [tensor.detach().double().requires_grad_() for tensor in low]
    with torch.no_grad():  # logits are rounded too, which is no fault of the gradient's: both get the same
        rounding = (low[0] @ low[1].T).double() - exact[0] @ exact[1].T
    table = torch.log_softmax((exact[0] @ exact[1].T + rounding) / heat[:, None], -1)
    pairs = (
        head_logprobs(*low, None, targets, heat, max_rows=tokens),
        (table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)),
    )
    grads = [
        torch.autograd.grad(logprobs.sum() + (0.3 * spread.sum() if entropy else 0.0), leaves)
        for (logprobs, spread), leaves in zip(pairs, (low, exact), strict=True)
    ]
    logprobs = pairs[0][0]
    assert logprobs.exp().mean() > 0.999
    for actual, expected in zip(*grads, strict=True):
        assert (actual.double() - expected).norm() / expected.norm() < 0.05


def scored(model, **settings):
    """Return the gradient of a sum over some tokens, and how often each module ran."""
    scorer, calls = TokenScorer(model, **settings), Counter()
    hooks = [
        part.register_forward_hook(lambda *_, name=name: calls.update([name])) for name, part in model.named_modules()
    ]
    ids = torch.arange(60).reshape(3, 20) % VOCABULARY
    logprobs, _, _ = scorer(ids, torch.tensor([5, 12, 25, 47]), torch.tensor([1, 2, 3, 4]), torch.ones(4))
    logprobs.sum().backward()
    for hook in hooks:
        hook.remove()
    grads = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad(set_to_none=True)
    return grads, calls


@pytest.mark.parametrize("lora", [False, True])
def test_checkpointing_runs_each_layer_again_and_changes_nothing_else(lora):
    model = tiny_model().eval()
    model = add_lora(model, LoraConfig(r=4), "tiny").eval() if lora else model
    if lora:  # the second factors start at 0, and then the first ones have no gradient
        for part in model.parameters():
            part.data.add_(0.01 if part.requires_grad else 0.0)
    stored, once = scored(model)
    again, twice = scored(model, checkpointing=True)
    layers = [name for name in once if name.endswith("self_attn")]
    assert len(layers) == 2 and all((once[name], twice[name]) == (1, 2) for name in layers)
    assert stored.keys() == again.keys()
    for name, grad in stored.items():
        assert torch.allclose(grad, again[name], rtol=1e-6, atol=1e-9)
    assert not any(part.training or "forward" in vars(part) for part in model.modules())


def test_checkpointing_leaves_dropout_off():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2)).eval()
    assert model.config.resid_pdrop > 0
    stored, _ = scored(model)
    again, _ = scored(model, checkpointing=True)
    assert all(torch.allclose(grad, again[name], rtol=1e-5, atol=1e-7) for name, grad in stored.items())


def test_checkpointing_needs_layers():
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        TokenScorer(torch.nn.Linear(2, 2), checkpointing=True)


@pytest.mark.parametrize(
    ("model", "config", "allowed"),
    [
        (Gemma2ForCausalLM, Gemma2Config(final_logit_softcapping=None), True),
        (Gemma2ForCausalLM, Gemma2Config(final_logit_softcapping=30.0), False),
        (GraniteForCausalLM, GraniteConfig(logits_scaling=8.0), False),
    ],
)
def test_logits_changed_after_the_head_are_refused_however_small_they_are(model, config, allowed):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config.update({**sizes, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16})
    config.layer_types = ["full_attention"]
    instance = model(config).eval()
    with nullcontext() if allowed else pytest.raises(PolicyError, match="after the output embedding"):
        check_head(instance)
