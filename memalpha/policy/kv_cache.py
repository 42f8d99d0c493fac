"""Preallocated key/value cache for decoding token by token."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class _PreallocatedLayer(DynamicLayer):
    """Key/value layer with spare room, so that a step writes one column in place.

    `DynamicLayer` copies the whole cache at every token instead.
    """

    room = 64

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """Append the new states and return views of all keys and values."""
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
        """Select (or repeat) rows of the batch."""
        if self.is_initialized and self.store is not None:
            self.store = self.store.index_select(1, indices)
            self.keys, self.values = self.store[0, ..., : self.length, :], self.store[1, ..., : self.length, :]


def make_cache(model: PreTrainedModel) -> DynamicCache:
    """Return the model's cache with preallocated layers in place of growing ones.

    Other layer kinds, such as sliding windows, stay as the model defines them.
    """
    cache = DynamicCache(config=model.config)
    cache.layers = [_PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
