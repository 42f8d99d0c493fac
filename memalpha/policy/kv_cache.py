"""Key/value caches for decoding token by token."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from memalpha.errors import PolicyError

IDLE_BYTES = 1 << 26
"""Most memory that stays reserved without rows: to fill new memory with zeros costs a tiny model a twentieth."""
ROOM = 64
"""Columns by which a cache grows."""


class _PreallocatedLayer(DynamicLayer):
    """Key/value layer with spare room, so that a step writes one column in place.

    `DynamicLayer` copies the whole cache at every token instead.
    """

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Append the new states and return views of all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.length, self.stores = 0, None
        end, states = self.length + key_states.shape[-2], (key_states, value_states)
        if self.stores is None or self.stores[0].shape[-2] < end:
            # Keys and values may differ in width (multi-head latent attention of DeepSeek).
            grown = [state.new_empty(*state.shape[:2], end + ROOM, state.shape[-1]) for state in states]
            for new, old in zip(grown, self.stores or (), strict=False):
                new[..., : self.length, :] = old[..., : self.length, :]
            self.stores = grown
        for store, state in zip(self.stores, states, strict=True):
            store[..., self.length : end, :] = state
        self.length = end
        self.keys, self.values = (store[..., :end, :] for store in self.stores)
        return self.keys, self.values

    def repeated(self, rows: int, columns: int) -> _PreallocatedLayer:
        """Return a layer with several copies of the only row.

        Args:
            rows: Number of copies.
            columns: Columns to have space for.
        """
        assert self.keys is not None and self.values is not None and self.stores is not None
        layer = _PreallocatedLayer()
        layer.lazy_initialization(self.keys, self.values)
        layer.length, layer.stores = self.length, []
        for store in self.stores:
            state = store.new_empty(rows, store.shape[1], columns, store.shape[3])
            state[..., : self.length, :] = store[..., : self.length, :]
            layer.stores.append(state)
        layer.keys, layer.values = (store[..., : self.length, :] for store in layer.stores)
        return layer

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Select (or repeat) rows of the batch."""
        if self.is_initialized and self.stores is not None:
            self.stores = [store.index_select(0, beam_idx) for store in self.stores]
            self.keys, self.values = (store[..., : self.length, :] for store in self.stores)


def make_cache(model: PreTrainedModel) -> DynamicCache:
    """Return the model's cache with preallocated layers in place of growing ones.

    Other layer kinds, such as sliding windows, stay as the model defines them.
    """
    cache = DynamicCache(config=model.config)
    cache.layers = [_PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def cache_argument(model: Any) -> str:
    """Return the name under which the model's forward pass takes its cache.

    `cache` from transformers 5.24 on; before, `cache_params` for pure state-space models (Mamba), which ignored
    `past_key_values` without a word.

    Raises:
        PolicyError: It takes none of them (RWKV): a step would see its own token only.
    """
    parameters = signature(model.forward).parameters
    name = next((name for name in ("cache", "cache_params") if name in parameters), "past_key_values")
    if name in parameters or "input_ids" not in parameters:
        return name
    raise PolicyError(
        f"{type(model).__name__} keeps its state in a form of its own, which cannot be sampled here: take a model with "
        "attention, or a Mamba"
    )


def takes_positions(model: Any) -> bool:
    """Return True if the model's forward pass takes each token's position, so that padding may stand anywhere."""
    parameters = signature(model.forward).parameters
    return "position_ids" in parameters or "input_ids" not in parameters


def is_state_space(model: PreTrainedModel) -> bool:
    """Return True if no layer keeps keys and values, but each a state of fixed size (Mamba)."""
    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) is LinearAttentionLayer for layer in layers)


def has_plain_cache(model: PreTrainedModel) -> bool:
    """Return True if every layer keeps the keys and values of all tokens, one column per token."""
    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


class SlotLayer:
    """Keys and values of one layer, (rows, heads, columns, width) each.

    Token t of a row is in its column t, so rows of any length stand side by side and enter or leave at any time.
    """

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)

    def reserve(self, rows: int, columns: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Make space, keeping what is there.

        Args:
            rows: rows needed.
            columns: columns needed.
            key: keys whose heads, width, dtype and device the layer has, (_, heads, _, width).
            value: values likewise.
        """
        self.keys = _grown(self.keys, rows, columns, key)
        self.values = _grown(self.values, rows, columns, value)


def bias_after(positions: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return (*positions, columns) for attention scores: 0 up to each position, -inf after it."""
    after = torch.arange(columns, device=positions.device) > positions[..., None]
    return torch.zeros(after.shape, dtype=dtype, device=positions.device).masked_fill_(after, -torch.inf)


def _grown(old: torch.Tensor, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    # Zeros, because a masked column is still multiplied by its weight of 0: what is there must be finite.
    grown = like.new_zeros(rows, like.shape[1], columns, like.shape[3])
    if old.numel():
        kept_rows, kept_columns = min(rows, old.shape[0]), min(columns, old.shape[2])
        grown[:kept_rows, :, :kept_columns] = old[:kept_rows, :, :kept_columns]
    return grown


class KeyValueSlots:
    """Keys and values of the rows under way, in `SlotLayer`s.

    Args:
        layers: number of layers.
        batch_tokens: most rows x columns to hold, unless one row alone needs more.
    """

    def __init__(self, layers: int, batch_tokens: int) -> None:
        self.layers = [SlotLayer() for _ in range(layers)]
        self.batch_tokens = batch_tokens
        self.lengths: list[int] = []
        self.limits: list[int] = []
        self.rows = self.columns = 0

    def enter(self, lengths: Sequence[int], limits: Sequence[int]) -> tuple[int, bool]:
        """Add rows behind those under way.

        Args:
            lengths: prompt tokens of each new row.
            limits: most tokens of each new row, prompt included.

        Returns:
            Index of the first new row, and True if the layers must `reserve` rows and columns.
        """
        first = len(self.lengths)
        self.lengths += lengths
        self.limits += limits
        rows, columns = len(self.lengths), max(self.limits)
        if rows <= self.rows and columns <= self.columns:
            return first, False
        roomy = max(rows, self.rows), max(-(-columns // ROOM) * ROOM, self.columns)
        self.rows, self.columns = roomy if roomy[0] * roomy[1] <= self.batch_tokens else (rows, columns)
        return first, True

    def keep(self, order: Sequence[int]) -> None:
        """Keep the rows of `order`: new row i is old row `order[i]`, which is i or comes after all new rows."""
        tensors = [part for layer in self.layers for part in (layer.keys, layer.values)]
        if not order and sum(part.nbytes for part in tensors) > IDLE_BYTES:
            for layer in self.layers:
                layer.keys = layer.values = torch.empty(0)
            self.rows = self.columns = 0
        for target, source in enumerate(order):
            if source != target:
                length = self.lengths[source]
                for part in tensors:
                    part[target, :, :length] = part[source, :, :length]
        self.lengths = [self.lengths[row] for row in order]
        self.limits = [self.limits[row] for row in order]
