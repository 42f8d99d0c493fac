"""A key/value cache with spare room, for decoding token by token."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class _PreallocatedLayer(DynamicLayer):
    """A growing key/value layer that keeps spare room, so that a step writes one column and copies nothing.

    `DynamicLayer` concatenates the whole cache at every token.
    """

    room = 64

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Append the new states; returns views of all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.length, self.store = 0, None
        end = self.length + key_states.shape[-2]
        if self.store is None or self.store.shape[-2] < end:
            batch, heads, _, width = key_states.shape
            grown = key_states.new_empty(2, batch, heads, end + self.room, width)
            if self.store is not None:
                grown[..., : self.length, :] = self.store[..., : self.length, :]
            self.store = grown
        self.store[0, ..., self.length : end, :] = key_states
        self.store[1, ..., self.length : end, :] = value_states
        self.length = end
        self.keys, self.values = self.store[0, ..., :end, :], self.store[1, ..., :end, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep (or repeat) these rows of the batch."""
        if self.is_initialized and self.store is not None:
            self.store = self.store.index_select(1, indices)
            self.keys, self.values = self.store[0, ..., : self.length, :], self.store[1, ..., : self.length, :]


def make_cache(model: PreTrainedModel) -> DynamicCache:
    """The model's own cache (sliding windows and the like kept) with its plain growing layers made roomy."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
