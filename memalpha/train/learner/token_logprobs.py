"""Log-probs and entropies of chosen tokens, and the values before them where there is a value head, as the one module
that a launcher may wrap: all parameters are read inside its `forward`.

Only the hidden states that predict a completion token reach the LM head, block by block. The logits of `head_tokens`
tokens exist at most: those of the last ones wait for the backward pass, which costs no memory (nothing else is made in
between), the others are projected again there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from memalpha.errors import ConfigError, PolicyError


def bare(model: Any) -> PreTrainedModel:
    """The transformers model itself; under peft, with the adapters in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class TokenScorer(nn.Module):
    """`model`, a `PreTrainedModel` or a `PeftModel`, as a function from rows to log-probs of their tokens.

    `head_tokens` bounds the completion tokens whose logits exist at once. `autocast`: passes in bfloat16, whatever the
    weights are in. `checkpointing`: each layer's activations are computed again in the backward pass; nothing else of
    the model changes (transformers' own switch would turn dropout on and the cache of generation off).

    `values`: with a `value_head`, a linear map of the hidden state that predicts a token to the value before it. It is
    0 at first, so all values are, and float32 whatever the passes are in.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head_tokens: int = 1024,
        autocast: bool = False,
        checkpointing: bool = False,
        values: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.value_head = _value_head(bare(model)) if values else None
        self.head_tokens = head_tokens
        self.autocast = autocast
        self._layers = checkpointed_layers(model) if checkpointing else []

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Log-probs (N,) of `targets`, entropies (N,) of their distributions, both at `temperature` (N,), and values
        (N,) of what comes before the targets (None without a value head).

        `input_ids` (B, L) are right-padded; `positions` (N,) index the flattened hidden states that predict `targets`.
        float32 at least. All results carry a gradient.
        """
        model = bare(self.model)
        low = torch.autocast(input_ids.device.type, torch.bfloat16) if self.autocast else nullcontext()
        with low, recomputing(self._layers):
            hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, positions)
        head: Any = model.get_output_embeddings()
        logprobs, entropy = head_logprobs(
            chosen, head.weight, head.bias, targets, temperature, tokens=self.head_tokens, bfloat16=self.autocast
        )
        if self.value_head is None:
            return logprobs, entropy, None
        return logprobs, entropy, self.value_head(chosen.to(self.value_head.weight.dtype)).squeeze(-1)


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that can be computed again. Raises `ConfigError` where it names none."""
    layers: list[nn.Module] = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"gradient_checkpointing: {type(bare(model)).__name__} names no layers that can be recomputed; leave it out"
        )
    return layers


@contextmanager
def recomputing(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Where gradients are made, these layers' activations are computed again in the backward pass."""
    layers = layers if torch.is_grad_enabled() else []
    try:
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for layer in layers:
            del layer.forward


def _value_head(model: PreTrainedModel) -> nn.Linear:
    """A linear map from the model's hidden states to one number, 0 for all of them."""
    embeddings: Any = model.get_output_embeddings()
    head = nn.Linear(embeddings.weight.shape[1], 1, device=model.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


LOUD = 1000.0
"""How much louder than they are logits must be for any soft cap to show."""


def check_head(model: nn.Module) -> None:
    """Refuse models whose logits are not those of their output embedding: soft caps, scales, adapters on it.

    Raises `PolicyError`.
    """
    plain: Any = bare(model)
    probe = torch.arange(8, device=plain.device)[None] * 7 % plain.config.get_text_config().vocab_size
    head, same = plain.get_output_embeddings(), False
    if isinstance(head, nn.Linear):
        with torch.no_grad():
            ours = LOUD * head(plain.base_model(input_ids=probe, use_cache=False).last_hidden_state)
            hook = head.register_forward_hook(lambda *call: call[-1] * LOUD)
            whole = plain(input_ids=probe, use_cache=False).logits
            hook.remove()
        same = ours.shape == whole.shape and torch.allclose(ours.float(), whole.float(), atol=1e-3 * LOUD, rtol=1e-3)
    if not same:
        raise PolicyError(
            f"{type(plain).__name__} changes its logits after the output embedding; the learner projects completion "
            "positions itself and cannot train this architecture"
        )


BLOCK = 256
"""Rows of one product with the head: enough for its speed, few enough for the cache."""


def head_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    tokens: int = 1024,
    bfloat16: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `targets` and entropies (N,) of softmax((hidden weight^T + bias) / temperature).

    `hidden` (N, H), `weight` (V, H), `bias` (V,), `targets` and `temperature` (N,); logits of `tokens` rows and a block
    exist at most. Products are in bfloat16 where asked, else in the wider of the two types; all else, the sums of
    gradients included, is float32 at least.
    """
    keep = tokens if torch.is_grad_enabled() else 0  # inside a Function it always says no
    result: Any = _Head.apply(hidden, weight, bias, targets, temperature, keep, min(BLOCK, tokens), bfloat16)
    return result


class _Head(torch.autograd.Function):
    """With z = logits / T, p = softmax(z), H its entropy: d log p[target] / dz = onehot - p, dH / dz = -p (log p + H).

    For that, exp(z - max z) of the last `keep` rows is kept; the rows before are projected again. The gradient of z is
    put together in float32 and rounded once, its target's 1 - p taken from log p: where p is near 1, the difference of
    what is rounded already would be noise.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: torch.Tensor,
        keep: int,
        block: int,
        bfloat16: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(hidden)
        first = max(0, count - keep)  # of the rows to keep
        project = _Projection(hidden, weight, bias, temperature, bfloat16)
        kept = hidden.new_empty(count - first, len(weight), dtype=project.product)
        scaled, spare = project.space(block), project.space(block)
        norm, total, chosen, entropies = hidden.new_empty(4, count, dtype=project.wide)
        for part in _blocks(count, first, block):
            z = project(part, scaled)
            top = z.amax(1, keepdim=True)
            z.sub_(top)
            chosen[part] = z.gather(1, targets[part, None])[:, 0]
            own = kept[part.start - first : part.stop - first] if part.start >= first else None
            direct = own is not None and own.dtype == z.dtype
            power = torch.exp(z, out=own if direct else spare[: len(z)])
            if own is not None and not direct:
                own.copy_(power)
            total[part] = power.sum(1)
            entropies[part] = z.mul_(power).sum(1)
            norm[part] = top[:, 0]
        log_total = total.log()
        norm += log_total
        entropies = log_total - entropies / total
        logprobs = chosen - log_total
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, logprobs, norm, total, entropies, kept)
        ctx.bfloat16, ctx.first, ctx.block = bfloat16, first, block
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_logprobs: torch.Tensor | None, for_entropies: torch.Tensor | None) -> Any:
        hidden, weight, bias, targets, temperature, logprobs, norm, total, entropies, kept = ctx.saved_tensors
        project = _Projection(hidden, weight, bias, temperature, ctx.bfloat16)
        a = torch.zeros_like(norm) if for_logprobs is None else for_logprobs / temperature
        b = None if for_entropies is None else for_entropies / temperature
        wide = project.wide
        to_hidden = torch.zeros_like(hidden, dtype=wide) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and ctx.needs_input_grad[2] else None
        parts = _blocks(len(hidden), ctx.first, ctx.block)
        busy = (a != 0) if b is None else (a != 0) | (b != 0)
        space = project.space(min(ctx.block, len(hidden)))
        for part, works in zip(parts, torch.stack([busy[part].any() for part in parts]).tolist(), strict=True):
            if not works:
                continue
            pull, own = a[part, None], logprobs[part, None]
            at_target = -pull * torch.expm1(own)
            if part.start >= ctx.first and b is None:
                power = kept[part.start - ctx.first : part.stop - ctx.first]
                to_z = torch.mul(power, -pull / total[part, None], out=space[: len(power)])
            else:
                to_z = project(part, space).sub_(norm[part, None])  # log p as yet
                if b is None:
                    to_z.exp_().mul_(-pull)
                else:
                    push, level = b[part, None], entropies[part, None]
                    factor = (to_z + level).mul_(push).add_(pull)
                    to_z.exp_().mul_(factor).neg_()
                    at_target -= push * (own + level) * own.exp()
            to_z.scatter_(1, targets[part, None], at_target)
            if to_bias is not None:
                to_bias += to_z.sum(0)
            to_z = to_z.to(project.product)
            if to_hidden is not None:
                to_hidden[part] = to_z @ project.weight
            if to_weight is not None and project.product == wide:
                to_weight.addmm_(to_z.t(), project.hidden[part])
            elif to_weight is not None:
                to_weight += to_z.t() @ project.hidden[part]
        pairs: Any = ((to_hidden, hidden), (to_weight, weight), (to_bias, bias))
        grads = (None if g is None else g.to(x.dtype) for g, x in pairs)
        return (*grads, None, None, None, None, None)


class _Projection:
    """Scaled logits of a block of rows, and the precision of the products and of all else."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        temperature: torch.Tensor,
        bfloat16: bool,
    ) -> None:
        self.product = torch.bfloat16 if bfloat16 else torch.promote_types(hidden.dtype, weight.dtype)
        self.wide = torch.promote_types(self.product, torch.float32)
        self.hidden, self.weight = hidden.to(self.product), weight.to(self.product)
        self.bias, self.temperature = bias, temperature

    def space(self, rows: int) -> torch.Tensor:
        """Room for the logits of `rows` rows: on CPU, fresh memory costs more than most of what is computed in it."""
        return self.hidden.new_empty(rows, len(self.weight), dtype=self.wide)

    def __call__(self, part: slice, space: torch.Tensor) -> torch.Tensor:
        """Logits / T of the rows of `part`, in `space`."""
        rows = self.hidden[part]
        z = space[: len(rows)]
        if self.product == self.wide:
            torch.mm(rows, self.weight.t(), out=z)
        else:
            z.copy_(rows @ self.weight.t())
        if self.bias is not None:
            z += self.bias
        return z.div_(self.temperature[part, None])


def _blocks(count: int, first: int, block: int) -> list[slice]:
    """`count` rows in blocks, of which none holds rows on both sides of `first`."""
    ends = ((0, first), (first, count))
    return [slice(at, min(at + block, end)) for begin, end in ends for at in range(begin, end, block)]
