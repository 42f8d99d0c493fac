"""A flat forward pass of small Qwen3 models, for decoding on a CPU.

A decode step of the shipped policies (0.8M weights) spends more than half its time between the matrix products: in
modules, masks, casts and copies. Here a layer is 18 tensor operations on fused weights. A prefill computes each
distinct prefix of its prompts once, without padding, and the last layer only for the last token of each prompt.

Any other model, device or dtype runs through transformers; `supports_flat` lists the conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM
from transformers.activations import ACT2FN
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from memalpha.policy.base import shared_length
from memalpha.policy.decoding_rows import Prompt
from memalpha.policy.kv_cache import KeyValueSlots, bias_after

MAX_PARAMETERS = 50_000_000
"""Larger models gain little, and the fused weights are a second copy."""

PACK_TOKENS = 768
"""Tokens of a prefill's matrix products: their activations should fit the cache of a core."""

_MODULES = {
    *(Qwen3ForCausalLM, qwen3.Qwen3Model, qwen3.Qwen3DecoderLayer, qwen3.Qwen3Attention, qwen3.Qwen3MLP),
    *(qwen3.Qwen3RMSNorm, nn.Linear, nn.Embedding, nn.ModuleList, type(ACT2FN["silu"])),
}


def supports_flat(model: Any, dtype: torch.dtype) -> bool:
    """Return True if `FlatQwen3` computes what the model does.

    The model must be a Qwen3 of plain modules on a CPU: no adapters, hooks, quantization, biases, sliding windows or
    scaled positions.

    Args:
        model: any model.
        dtype: dtype to compute in.
    """
    if type(model) is not Qwen3ForCausalLM or dtype not in (torch.float32, torch.float64):
        return False
    config: Any = model.config
    rotary: Any = model.model.rotary_emb
    return (
        {type(module) for module in model.modules() if module is not rotary} <= _MODULES
        and config.hidden_act == "silu"
        and rotary.rope_type == "default"
        and set(config.layer_types) == {"full_attention"}
        and all(parameter.device.type == "cpu" for parameter in model.parameters())
        and sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS
        and not any(name.endswith(".bias") for name, _ in model.named_parameters())
        and not any(
            module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
            for module in model.modules()
        )
    )


class _Layer:
    """Weights of a layer: fused (query, key, value) and (gate, up) projections, norms of all query and key heads."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        def fuse(*modules: Any) -> torch.Tensor:
            return torch.cat([module.weight.to(dtype) for module in modules])

        attention, mlp = layer.self_attn, layer.mlp
        # The scale of the scores is part of the queries' norm.
        query_norm = attention.q_norm.weight.to(dtype) * attention.scaling
        key_norm = attention.k_norm.weight.to(dtype)
        heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        self.input_norm = layer.input_layernorm.weight.to(dtype)
        self.qkv = fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self.head_norm = torch.cat([query_norm.expand(heads[0], -1), key_norm.expand(heads[1], -1)])
        self.output = attention.o_proj.weight.to(dtype)
        self.post_norm = layer.post_attention_layernorm.weight.to(dtype)
        self.gate_up = fuse(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj.weight.to(dtype)


class FlatQwen3:
    """Fused weights of a Qwen3 model in `dtype`, which must not change while rows are under way; `load` reads them.

    Args:
        model: model that `supports_flat`.
        dtype: dtype of the weights and of all computations.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        config = model.config
        self.model = model
        self.dtype = dtype
        self.eps: float = config.rms_norm_eps
        self.queries: int = config.num_attention_heads
        self.groups: int = config.num_key_value_heads
        self.width: int = model.model.layers[0].self_attn.head_dim
        self.inner: int = config.intermediate_size
        self._rotations = (torch.empty(0, 1, self.width, dtype=dtype),) * 2
        self.idle_slots: KeyValueSlots | None = None

    @torch.no_grad()
    def load(self) -> FlatQwen3:
        """Read the model's weights and return self."""
        base, dtype = self.model.model, self.dtype
        self.embedding, self.head = base.embed_tokens.weight.to(dtype), self.model.lm_head.weight.to(dtype)
        self.norm = base.norm.weight.to(dtype)
        self.layers = [_Layer(layer, dtype) for layer in base.layers]
        self._rotary = base.rotary_emb
        return self

    def rotations(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines (tokens, 1, width) of positions, in transformers' float32 precision."""
        longest = int(positions.max()) + 1
        cos, sin = self._rotations
        if longest > len(cos):
            steps = torch.arange(max(longest, 2 * len(cos), 256))[None]
            cos, sin = (table[0, :, None] for table in self._rotary(self.embedding[:1], steps))
            half = self.width // 2
            self._rotations = cos, sin = cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos[positions], sin[positions]

    def heads(
        self, layer: _Layer, hidden: torch.Tensor, rotations: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the inputs of a layer's attention.

        Args:
            layer: Weights of the layer.
            hidden: Hidden states (tokens, hidden).
            rotations: Cosines and sines of the positions, see `rotations`.

        Returns:
            Queries, keys and values, (tokens, heads, width) each.
        """
        normed = self._normalize(hidden) * layer.input_norm
        heads = F.linear(normed, layer.qkv).view(len(hidden), -1, self.width)
        turned = self.queries + self.groups
        normed = self._normalize(heads[:, :turned]) * layer.head_norm
        cos, sin = rotations
        swapped = normed.roll(self.width // 2, -1)
        normed = torch.addcmul(normed * cos, swapped, sin)
        return normed[:, : self.queries], normed[:, self.queries :], heads[:, turned:]

    def feed_forward(self, layer: _Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after a layer.

        Args:
            layer: Weights of the layer.
            hidden: Hidden states before it (tokens, hidden).
            attended: Its attention (tokens, queries x width).
        """
        hidden = torch.addmm(hidden, attended, layer.output.t())
        normed = self._normalize(hidden) * layer.post_norm
        gate, up = F.linear(normed, layer.gate_up).split(self.inner, dim=-1)
        return torch.addmm(hidden, F.silu(gate) * up, layer.down.t())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (rows, vocabulary) of final hidden states (rows, hidden)."""
        return F.linear(self._normalize(hidden) * self.norm, self.head)

    def _normalize(self, values: torch.Tensor) -> torch.Tensor:
        """Divide the last dimension by its root mean square, in float32 as transformers does."""
        return F.rms_norm(values.float(), values.shape[-1:], None, self.eps).to(self.dtype)


class FlatRows:
    """Rows of a `FlatQwen3`, which enter at any time; see `decoding_rows.DecodingRows`.

    Args:
        weights: current weights.
        batch_tokens: most rows x columns of the cache, unless one row alone needs more.
    """

    joinable = True

    def __init__(self, weights: FlatQwen3, batch_tokens: int) -> None:
        self.weights = weights
        self.slots, weights.idle_slots = weights.idle_slots or KeyValueSlots(len(weights.layers), batch_tokens), None

    def enter(self, prompts: Sequence[Prompt], limits: Sequence[int]) -> torch.Tensor:
        """Prefill and add rows behind those under way; see `DecodingRows.enter`."""
        first, grow = self.slots.enter([len(prompt) for prompt in prompts], limits)
        if grow:
            weights = self.weights
            like = torch.empty(0, weights.groups, 0, weights.width, dtype=weights.dtype)
            for slots in self.slots.layers:
                slots.reserve(self.slots.rows, self.slots.columns, like, like)
        packs = split_packs(prompts)
        logits = [self._prefill([prompts[i] for i in pack], torch.tensor(pack) + first) for pack in packs]
        order = torch.tensor([i for pack in packs for i in pack])
        return torch.cat(logits)[order.argsort()]

    def _prefill(self, prompts: Sequence[Prompt], rows: torch.Tensor) -> torch.Tensor:
        """Write the keys and values of prompts into these rows; return the logits after them."""
        weights = self.weights
        packed = PackedPrompts(prompts)
        columns = packed.nodes.shape[1]
        last = packed.last_group()
        groups = [(group, packed.bias(group, weights.dtype)) for group in packed.groups]
        hidden = F.embedding(packed.tokens, weights.embedding)
        rotations = weights.rotations(packed.positions)
        for layer, slots in zip(weights.layers, self.slots.layers, strict=True):
            queries, keys, values = weights.heads(layer, hidden, rotations)
            row_keys, row_values = keys[packed.nodes].transpose(1, 2), values[packed.nodes].transpose(1, 2)
            slots.keys[rows, :, :columns] = row_keys[packed.owner]
            slots.values[rows, :, :columns] = row_values[packed.owner]
            if layer is weights.layers[-1]:
                groups, hidden = [(last, packed.bias(last, weights.dtype))], hidden[last.queries[:, 0]]
            attended = [
                F.scaled_dot_product_attention(
                    queries[group.queries].transpose(1, 2),
                    row_keys[group.rows],
                    row_values[group.rows],
                    attn_mask=bias,
                    scale=1.0,
                    enable_gqa=weights.groups < weights.queries,
                ).transpose(1, 2)[group.is_own]
                for group, bias in groups
            ]
            hidden = weights.feed_forward(layer, hidden, torch.cat(attended).flatten(1))
        return weights.logits(hidden)[packed.owner]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append a token to each row; return the next logits."""
        weights, count = self.weights, len(tokens)
        rows, positions = torch.arange(count), torch.tensor(self.slots.lengths)
        columns = max(self.slots.lengths) + 1
        bias = None
        if min(self.slots.lengths) + 1 < columns:
            bias = bias_after(positions, columns, weights.dtype)[:, None, None]
        hidden = F.embedding(torch.tensor(tokens), weights.embedding)
        rotations = weights.rotations(positions)
        for layer, slots in zip(weights.layers, self.slots.layers, strict=True):
            queries, keys, values = weights.heads(layer, hidden, rotations)
            slots.keys[rows, :, positions] = keys
            slots.values[rows, :, positions] = values
            queries = queries.reshape(count, weights.groups, -1, weights.width)
            scores = queries @ slots.keys[:count, :, :columns].transpose(2, 3)
            if bias is not None:
                scores += bias
            attended = torch.softmax(scores, dim=-1) @ slots.values[:count, :, :columns]
            hidden = weights.feed_forward(layer, hidden, attended.view(count, -1))
        self.slots.lengths = [length + 1 for length in self.slots.lengths]
        return weights.logits(hidden)

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`; see `DecodingRows.keep`. Without any, other `FlatRows` may take the memory."""
        self.slots.keep(order)
        if not order:
            self.weights.idle_slots = self.slots


def split_packs(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Split prompts, in lexicographic order, into packs of about `PACK_TOKENS` distinct prefixes; returns indices."""
    packs: list[list[int]] = []
    size, previous = 0, ()
    for i in sorted(range(len(prompts)), key=lambda i: tuple(prompts[i])):
        prompt = prompts[i]
        new_tokens = len(prompt) - shared_length(previous, prompt)
        if not packs or (new_tokens and size + new_tokens > PACK_TOKENS):
            packs.append([])
            size, new_tokens = 0, len(prompt)
        packs[-1].append(i)
        size, previous = size + new_tokens, prompt
    return packs


@dataclass(slots=True)
class _QueryGroup:
    """Rows of similar numbers of own tokens.

    Attributes:
        rows: range of the distinct prompts.
        queries: node of each query (rows, most own tokens); arbitrary beyond a row's own.
        is_own: bool (rows, most own tokens).
        positions: position of each query, as `queries`.
    """

    rows: slice
    queries: torch.Tensor
    is_own: torch.Tensor
    positions: torch.Tensor


class PackedPrompts:
    """Prompts as the nodes of a prefix tree: a node is a token after a prefix, which no two nodes share.

    Each distinct prompt owns the nodes that it does not share with one before it in lexicographic order. Prompts are
    sorted by that number, nodes by prompt and position.

    Attributes:
        tokens: id of each node (nodes,).
        positions: position of each node (nodes,).
        nodes: node of each distinct prompt's position (prompts, longest); 0 beyond its length.
        owner: index of each given prompt among the distinct ones.
        groups: queries of all nodes, in order.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        unique = sorted(set(map(tuple, prompts)))
        lengths = np.array([len(prompt) for prompt in unique])
        width = int(lengths.max())
        ids = np.full((len(unique), width), -1)
        for row, prompt in enumerate(unique):
            ids[row, : len(prompt)] = prompt
        # Tokens shared with the prompt before: sorting makes it the one with the longest common prefix.
        shared = np.zeros(len(unique), dtype=np.int64)
        shared[1:] = np.cumprod(ids[1:] == ids[:-1], axis=1).sum(axis=1)
        new_tokens = lengths - shared
        order = np.argsort(-new_tokens, kind="stable")
        offsets = np.zeros_like(new_tokens)
        offsets[order] = np.cumsum(new_tokens[order]) - new_tokens[order]
        nodes = np.zeros_like(ids)
        for row, (start, end) in enumerate(zip(shared, lengths, strict=True)):
            nodes[row, :start] = nodes[row - 1, :start]
            nodes[row, start:end] = np.arange(offsets[row], offsets[row] + new_tokens[row])
        index = {unique[row]: i for i, row in enumerate(order)}
        self.owner = torch.tensor([index[tuple(prompt)] for prompt in prompts])
        ids, nodes, starts, self._lengths = ids[order], nodes[order], shared[order], lengths[order]
        column = np.arange(width)
        is_own = (column >= starts[:, None]) & (column < self._lengths[:, None])
        self.tokens = torch.from_numpy(ids[is_own])
        self.positions = torch.from_numpy(np.broadcast_to(column, ids.shape)[is_own])
        self.nodes = torch.from_numpy(nodes)
        # Groups end where the number of own tokens (descending) has halved, so that they have little padding.
        self.groups: list[_QueryGroup] = []
        counts, first = new_tokens[order], 0
        while first < len(counts):
            rows = slice(first, first + int((counts[first:] > counts[first] // 2).sum()))
            steps = np.arange(counts[first])
            positions = np.minimum(starts[rows, None] + steps, self._lengths[rows, None] - 1)
            queries = self.nodes[rows].gather(1, torch.from_numpy(positions))
            own_steps = torch.from_numpy(steps < counts[rows, None])
            self.groups.append(_QueryGroup(rows, queries, own_steps, torch.from_numpy(positions)))
            first = rows.stop

    def last_group(self) -> _QueryGroup:
        """Return the queries of each prompt's last token."""
        positions = torch.from_numpy(self._lengths - 1)[:, None]
        queries = self.nodes.gather(1, positions)
        return _QueryGroup(slice(None), queries, torch.ones_like(queries, dtype=torch.bool), positions)

    def bias(self, group: _QueryGroup, dtype: torch.dtype) -> torch.Tensor:
        """Return (rows, 1, queries, columns): 0 up to the query's position, -inf after it."""
        return bias_after(group.positions, self.nodes.shape[1], dtype)[:, None]
