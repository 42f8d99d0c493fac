"""Passes over a fixed list: a seeded order that is new in every pass, and how long a schedule the passes make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Protocol, TypeVar

from memalpha.errors import ConfigError

T = TypeVar("T")


class EpochConfig(Protocol):
    """A configuration whose schedule `epochs` may set."""

    epochs: float | None
    max_steps: int | None
    schedule_steps: int


def shuffled_item(items: Sequence[T], index: int, seed: str) -> T:
    """The item of place `number`, from 0 on and without end, in passes over `items` shuffled by `key`."""
    turn, place = divmod(index, len(items))
    return items[_epoch_order(f"{seed}|{turn}", len(items))[place]]


def schedule_steps(config: EpochConfig, item_count: int, batch_size: int) -> int:
    """Steps of `batch` items in `epochs` passes over `count` of them, or `schedule_steps` where no epochs are set.

    Raises `ConfigError` for a `max_steps` beyond them.
    """
    if config.epochs is None:
        return config.schedule_steps
    steps = math.ceil(config.epochs * item_count / batch_size)
    if config.max_steps is not None and config.max_steps > steps:
        raise ConfigError(f"max_steps: {config.max_steps} is beyond the {steps} steps of epochs={config.epochs}")
    return steps


@lru_cache(maxsize=2)
def _epoch_order(key: str, count: int) -> list[int]:
    order = list(range(count))
    Random(key).shuffle(order)
    return order
