"""Seeded epoch order over a fixed list, and the schedule length that `epochs` implies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from memalpha.config import SFTConfig
from memalpha.config.preferences import PairsConfig
from memalpha.errors import ConfigError

T = TypeVar("T")


def shuffled_item(items: Sequence[T], index: int, seed: str) -> T:
    """Return item `index` of an endless stream that reshuffles `items` every epoch.

    Args:
        items: Items of one epoch; must not be empty.
        index: Position in the stream, from 0. `index // len(items)` is the epoch.
        seed: Seed of the order; each epoch derives its own from it.
    """
    epoch, offset = divmod(index, len(items))
    return items[_epoch_order(f"{seed}|{epoch}", len(items))[offset]]


def split_last(items: Sequence[T], most: int, *, least: int = 1) -> tuple[list[T], list[T]]:
    """Split off the last fifth of a list, to validate or evaluate on.

    Args:
        items: Items in order.
        most: Limit of the part that is split off; 0 splits off nothing.
        least: Size of the part where a fifth is less.

    Returns:
        First part, last part.
    """
    cut = len(items) - min(most, max(least, len(items) // 5))
    return list(items[:cut]), list(items[cut:])


def schedule_steps(config: SFTConfig | PairsConfig, item_count: int, batch_size: int) -> int:
    """Return the number of optimizer steps of the whole schedule.

    Args:
        config: `epochs` wins over `schedule_steps` if it is set.
        item_count: Items of one epoch.
        batch_size: Items per step.

    Raises:
        ConfigError: `max_steps` is larger than the steps that `epochs` gives.
    """
    if config.optimizer.epochs is None:
        return config.optimizer.schedule_steps
    steps = math.ceil(config.optimizer.epochs * item_count / batch_size)
    if config.max_steps is not None and config.max_steps > steps:
        raise ConfigError(
            f"max_steps: {config.max_steps} is beyond the {steps} steps of epochs={config.optimizer.epochs}"
        )
    return steps


@lru_cache(maxsize=2)
def _epoch_order(seed: str, count: int) -> list[int]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return order
