"""Seeded epoch order over a fixed list, its splits, its fingerprint, and the schedule length that `epochs` implies."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from memalpha.config import SFTConfig
from memalpha.config.training import PairsConfig
from memalpha.errors import ConfigError
from memalpha.types import Task, TextTask

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


def split_by_content(items: Sequence[T], contents: Sequence[str], most: int, purpose: str) -> tuple[list[T], list[T]]:
    """Split off a fifth of a list by hashes of the contents, to validate or evaluate on.

    Items of equal content stay together. A content keeps its side whatever else the list holds: none that was in the
    first part of a shorter list is in the second part of a longer one. Beyond the limit as many contents again are in
    neither part, so that contents that are added later push none into the first part.

    Args:
        items: Items in order.
        contents: Content of each item.
        most: Limit of the part that is split off; 0 splits off nothing.
        purpose: Name of the split; splits of other names are independent.

    Returns:
        First part, second part. Each has a content at least; of a single one the second part is empty.
    """
    if not most:
        return list(items), []
    ranks = {
        content: hashlib.sha256(f"{purpose}|{content}".encode(errors="surrogatepass")).digest() for content in contents
    }
    ordered = sorted(ranks, key=ranks.__getitem__)
    fifth = [content for content in ordered if ranks[content][0] < 51] or ordered[:1]  # 51 of 256
    fifth = fifth[: len(ordered) - 1]
    chosen, dropped = set(fifth[:most]), set(fifth[most : 2 * most])
    pairs = list(zip(items, contents, strict=True))
    first = [item for item, content in pairs if content not in chosen and content not in dropped]
    return first, [item for item, content in pairs if content in chosen][:most]


def describe_repetitions(contents: Sequence[str], noun: str) -> list[str]:
    """Return a sentence on items whose content another one has; [] if there are none."""
    count = len(contents) - len(set(contents))
    return [f"data: {count} of {len(contents)} tasks repeat {noun} under another id; equal ones are on one side"] * (
        count > 0
    )


def fingerprint_tasks(tasks: Iterable[Task | TextTask]) -> str:
    """Return a hash of tasks in order, their ids and all else included."""
    digest = hashlib.sha256()
    for task in tasks:
        text = json.dumps(task.model_dump(), default=lambda value: type(value).__name__)
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()[:16]


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
