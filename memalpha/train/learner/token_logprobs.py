"""Log-probs, entropies and values of completion tokens, as one module that a launcher may wrap.

All parameters are used inside its `forward`, as DDP and FSDP need. Only hidden states that predict a completion token
reach the LM head, block by block. At most the logits of `head_tokens` tokens exist at once. Those of the last tokens
are saved for the backward pass, which costs no extra memory; the others are projected again there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from peft.utils.other import ModulesToSaveWrapper, TrainableTokensWrapper
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.kv_cache import has_plain_cache
from memalpha.policy.reward_model import unwrap_peft


def find_trunk(model: Any) -> Any:
    """Return the part of a causal language model below its output embedding.

    transformers' `base_model` is the model itself where the prefix in its class names another attribute (Llama 4).
    """
    trunk = model.base_model
    return trunk if trunk is not model else next(part for part in model.children() if isinstance(part, PreTrainedModel))


class TokenScorer(nn.Module):
    """Compute log-probs, entropies and values of completion tokens.

    The value head is a float32 linear map of the hidden state that predicts a token. It starts at 0, so all values do.

    Args:
        model: A `PreTrainedModel` or a `PeftModel`.
        head_tokens: Maximum number of completion tokens whose logits exist at once.
        autocast: Run passes in bfloat16, whatever the weights' type.
        checkpointing: Recompute each layer's activations in the backward pass. Unlike transformers' own switch it
            leaves dropout off and the generation cache on.
        values: Add a value head.
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
        self.value_head: nn.Linear | None = None
        if values:
            base: Any = unwrap_peft(model)
            self.value_head = nn.Linear(base.get_output_embeddings().weight.shape[1], 1, device=base.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.head_tokens = head_tokens
        self.autocast = autocast
        self._layers = checkpointed_layers(model) if checkpointing else []

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        targets: torch.Tensor,
        temperature: torch.Tensor,
        depths: torch.Tensor | None = None,
        attended: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Compute log-probs, entropies and values of N target tokens; all carry a gradient.

        Args:
            input_ids: Right-padded ids (B, L).
            positions: Indices (N,) into the flattened hidden states that predict `targets`.
            targets: Token ids (N,).
            temperature: Sampling temperature (N,) that divides the logits.
            depths: Positions (B, L) of the nodes of trees; None for plain rows.
            attended: True (B, 1, L, L) where a node attends to another; None for plain rows.

        Returns:
            Log-probs (N,), entropies (N,), and values (N,) before the targets, None without a value head. float32 at
            least.
        """
        model = unwrap_peft(self.model)
        precision = torch.autocast(input_ids.device.type, torch.bfloat16) if self.autocast else nullcontext()
        with precision, recompute_activations(self._layers):
            trees = {} if depths is None else {"position_ids": depths, "attention_mask": attended}
            hidden = find_trunk(model)(input_ids=input_ids, use_cache=False, **trees).last_hidden_state
        head: Any = model.get_output_embeddings()
        weight, bias = head.weight, getattr(head, "bias", None)  # peft's layer of trained tokens has no bias
        # With a device map the last layers may be elsewhere than the inputs and the head.
        selected = hidden.flatten(0, 1).index_select(0, positions.to(hidden.device)).to(positions.device)
        logprobs, entropy = head_logprobs(
            selected, weight, bias, targets, temperature, max_rows=self.head_tokens, bfloat16=self.autocast
        )
        if self.value_head is None:
            return logprobs, entropy, None
        return logprobs, entropy, self.value_head(selected.to(self.value_head.weight.dtype)).squeeze(-1)


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers whose activations can be recomputed. Raises `ConfigError` if there are none."""
    layers: list[nn.Module] = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"gradient_checkpointing: {type(unwrap_peft(model)).__name__} has no layers that can be recomputed; "
            "leave it out"
        )
    return layers


@contextmanager
def recompute_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Recompute these layers' activations in the backward pass of what runs inside, if gradients are on."""
    if not torch.is_grad_enabled():
        layers = []
    own_forwards = [vars(layer).get("forward") for layer in layers]  # set by this function or a library's hooks
    try:
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for layer, forward in zip(layers, own_forwards, strict=True):
            if forward is not None:
                layer.forward = forward
            elif "forward" in vars(layer):
                del layer.forward


PROBE_SCALE = 1000.0
"""Factor that makes the probe's logits large enough for any soft cap to show."""


def check_head(model: nn.Module) -> None:
    """Check that the model's logits are exactly those of its output embedding.

    Soft caps, scales and adapters on the embedding fail the check.

    Raises:
        PolicyError: The logits differ.
    """
    base: Any = unwrap_peft(model)
    probe = torch.arange(8, device=base.device)[None] * 7 % base.config.get_text_config().vocab_size
    head, is_same = base.get_output_embeddings(), False
    if isinstance(head, nn.Linear | ModulesToSaveWrapper | TrainableTokensWrapper):
        with torch.no_grad():
            projected = PROBE_SCALE * head(find_trunk(base)(input_ids=probe, use_cache=False).last_hidden_state)
            hook = head.register_forward_hook(lambda *call: call[-1] * PROBE_SCALE)
            logits = base(input_ids=probe, use_cache=False).logits
            hook.remove()
        is_same = projected.shape == logits.shape and torch.allclose(
            projected.float(), logits.float(), atol=1e-3 * PROBE_SCALE, rtol=1e-3
        )
    if not is_same:
        raise PolicyError(
            f"{type(base).__name__} changes its logits after the output embedding; the learner projects completion "
            "positions itself and cannot train this architecture"
        )


def check_trees(model: nn.Module) -> None:
    """Check that the model computes two rows with a common prefix as one tree (`data.samples`).

    Other attention than sdpa, sliding windows and state-space layers cannot.

    Raises:
        ConfigError: They cannot; names the setting.
    """
    base: Any = unwrap_peft(model)
    rows = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]], device=base.device)
    rows = rows * 7 % base.config.get_text_config().vocab_size
    nodes, depths = torch.cat([rows[0], rows[1, 3:]])[None], torch.tensor([[0, 1, 2, 3, 4, 3, 4]], device=base.device)
    attended = torch.ones(7, 7, dtype=torch.bool, device=base.device).tril()
    attended[5:, 3:5] = False
    is_same = base.config._attn_implementation == "sdpa" and has_plain_cache(base)
    if is_same:
        with torch.no_grad():
            expected = find_trunk(base)(input_ids=rows, use_cache=False).last_hidden_state.float()
            tree = find_trunk(base)(
                input_ids=nodes, position_ids=depths, attention_mask=attended[None, None], use_cache=False
            ).last_hidden_state.float()
        expected = torch.cat([expected[0], expected[1, 3:]])
        tolerance = 0.1 if base.dtype == torch.bfloat16 else 1e-3
        is_same = torch.allclose(tree[0], expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    if not is_same:
        raise ConfigError(
            f"compute.share_prefixes: {type(base).__name__} cannot attend along a tree of rows (it needs plain "
            "attention with attn_implementation=sdpa): leave it out"
        )


BLOCK_ROWS = 256
"""Rows per product with the head: large enough for speed, small enough for the cache."""


def head_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    max_rows: int = 1024,
    bfloat16: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probs of `targets` and entropies of softmax((hidden weight^T + bias) / temperature).

    Args:
        hidden: Hidden states (N, H).
        weight: Output embedding (V, H).
        bias: (V,) or None.
        targets: Token ids (N,).
        temperature: (N,).
        max_rows: Rows whose logits may exist at once, beside one block.
        bfloat16: Multiply in bfloat16; else in the wider of the two types. Everything else is float32 at least.

    Returns:
        Log-probs (N,) and entropies (N,).
    """
    saved_rows = max_rows if torch.is_grad_enabled() else 0  # inside a Function it is always False
    result: Any = _Head.apply(
        hidden, weight, bias, targets, temperature, saved_rows, min(BLOCK_ROWS, max_rows), bfloat16
    )
    return result


class _Head(torch.autograd.Function):
    """Function behind `head_logprobs` with its own backward pass.

    With z = logits / T, p = softmax(z), H its entropy: d log p[target] / dz = onehot - p, dH / dz = -p (log p + H). For
    that, exp(z - max z) of the last `saved_rows` rows is saved; earlier rows are projected again. The gradient of z is
    summed in float32 and rounded once. The target's 1 - p comes from log p: where p is near 1, a difference of rounded
    numbers would be noise.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: torch.Tensor,
        saved_rows: int,
        block: int,
        bfloat16: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute log-probs and entropies block by block.

        Args:
            hidden, weight, bias, targets, temperature: See `head_logprobs`.
            saved_rows: Number of last rows whose exponentials are saved for the backward pass.
            block: Rows per block.
            bfloat16: Multiply in bfloat16.
        """
        count = len(hidden)
        first_saved = max(0, count - saved_rows)  # of the rows to keep
        project = _Projection(hidden, weight, bias, temperature, bfloat16)
        saved = hidden.new_empty(count - first_saved, len(weight), dtype=project.product)
        scaled, scratch = project.new_buffer(block), project.new_buffer(block)
        norm, total, chosen, entropies = hidden.new_empty(4, count, dtype=project.wide)
        for part in _blocks(count, first_saved, block):
            z = project(part, scaled)
            row_max = z.amax(1, keepdim=True)
            z.sub_(row_max)
            chosen[part] = z.gather(1, targets[part, None])[:, 0]
            saved_part = (
                saved[part.start - first_saved : part.stop - first_saved] if part.start >= first_saved else None
            )
            writes_directly = saved_part is not None and saved_part.dtype == z.dtype
            exps = torch.exp(z, out=saved_part if writes_directly else scratch[: len(z)])
            if saved_part is not None and not writes_directly:
                saved_part.copy_(exps)
            total[part] = exps.sum(1)
            entropies[part] = z.mul_(exps).sum(1)
            norm[part] = row_max[:, 0]
        log_total = total.log()
        norm += log_total
        entropies = log_total - entropies / total
        logprobs = chosen - log_total
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, logprobs, norm, total, entropies, saved)
        ctx.bfloat16, ctx.first, ctx.block = bfloat16, first_saved, block
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropies: torch.Tensor | None) -> Any:
        """Compute gradients of `hidden`, `weight` and `bias`.

        Args:
            grad_logprobs: Gradient of the log-probs (N,), or None.
            grad_entropies: Gradient of the entropies (N,), or None.
        """
        hidden, weight, bias, targets, temperature, logprobs, norm, total, entropies, saved = ctx.saved_tensors
        project = _Projection(hidden, weight, bias, temperature, ctx.bfloat16)
        scaled_logprobs = torch.zeros_like(norm) if grad_logprobs is None else grad_logprobs / temperature
        scaled_entropies = None if grad_entropies is None else grad_entropies / temperature
        wide = project.wide
        grad_hidden = torch.zeros_like(hidden, dtype=wide) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and ctx.needs_input_grad[2] else None
        parts = _blocks(len(hidden), ctx.first, ctx.block)
        has_gradient = (
            (scaled_logprobs != 0) if scaled_entropies is None else (scaled_logprobs != 0) | (scaled_entropies != 0)
        )
        buffer = project.new_buffer(min(ctx.block, len(hidden)))
        for part, block_has_gradient in zip(
            parts, torch.stack([has_gradient[part].any() for part in parts]).tolist(), strict=True
        ):
            if not block_has_gradient:
                continue
            part_grad, part_logprobs = scaled_logprobs[part, None], logprobs[part, None]
            at_target = -part_grad * torch.expm1(part_logprobs)
            if part.start >= ctx.first and scaled_entropies is None:
                exps = saved[part.start - ctx.first : part.stop - ctx.first]
                grad_z = torch.mul(exps, -part_grad / total[part, None], out=buffer[: len(exps)])
            else:
                grad_z = project(part, buffer).sub_(norm[part, None])  # log p as yet
                if scaled_entropies is None:
                    grad_z.exp_().mul_(-part_grad)
                else:
                    entropy_grad, part_entropy = scaled_entropies[part, None], entropies[part, None]
                    factor = (grad_z + part_entropy).mul_(entropy_grad).add_(part_grad)
                    grad_z.exp_().mul_(factor).neg_()
                    at_target -= entropy_grad * (part_logprobs + part_entropy) * part_logprobs.exp()
            grad_z.scatter_(1, targets[part, None], at_target)
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            grad_z = grad_z.to(project.product)
            if grad_hidden is not None:
                grad_hidden[part] = grad_z @ project.weight
            if grad_weight is not None and project.product == wide:
                grad_weight.addmm_(grad_z.t(), project.hidden[part])
            elif grad_weight is not None:
                grad_weight += grad_z.t() @ project.hidden[part]
        pairs: Any = ((grad_hidden, hidden), (grad_weight, weight), (grad_bias, bias))
        grads = (None if g is None else g.to(x.dtype) for g, x in pairs)
        return (*grads, None, None, None, None, None)


class _Projection:
    """Scaled logits of a block of rows, and the types of products and of everything else."""

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

    def new_buffer(self, rows: int) -> torch.Tensor:
        """Allocate logits of `rows` rows for reuse: on CPU, fresh memory costs more than most of the computation."""
        return self.hidden.new_empty(rows, len(self.weight), dtype=self.wide)

    def __call__(self, part: slice, buffer: torch.Tensor) -> torch.Tensor:
        """Return logits / T of the rows `part`, computed in `buffer`."""
        rows = self.hidden[part]
        z = buffer[: len(rows)]
        if self.product == self.wide:
            torch.mm(rows, self.weight.t(), out=z)
        else:
            z.copy_(rows @ self.weight.t())
        if self.bias is not None:
            z += self.bias
        return z.div_(self.temperature[part, None])


def _blocks(count: int, first: int, block: int) -> list[slice]:
    """Split `count` rows into blocks; no block spans `first`."""
    ends = ((0, first), (first, count))
    return [slice(start, min(start + block, end)) for begin, end in ends for start in range(begin, end, block)]
