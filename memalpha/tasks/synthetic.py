"""Tasks of the synthetic worlds, by number: `generate(world, seed, index)` is a pure function of its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from memalpha.config import WorldConfig
from memalpha.tasks.demo import DEMO, DRILL, Shape, build_task
from memalpha.types import Task


def generate(world: WorldConfig, seed: int, index: int) -> Task:
    """Task number `index` of the world under `seed`; equal arguments give equal bytes, whatever was made before.

    Pseudo-words replace values in split "train" only: split "test" ignores `world.pseudo_values`, so that a training
    world with `split="test"` is its held-out evaluation.
    """
    return shaped(world, seed, index, DEMO, world.preset)


def shaped(world: WorldConfig, seed: int, index: int, shape: Shape, name: str) -> Task:
    """`generate` for a demo world of another shape; `name` begins the task's id and enters its randomness."""
    return build_task(
        Random(f"{name}|{world.split}|{seed}|{index}"),
        shape,
        f"{name}-{world.split}-{seed}-{index}",
        split=world.split,
        pseudo=world.pseudo_values,
        temporal=world.temporal_questions,
    )


def drill(world: WorldConfig, seed: int, index: int) -> Task:
    """A short task of shape `DRILL`: chunk 0 fills the memory, chunk 1 changes one to three of its facts."""
    return shaped(world, seed, index, DRILL, "drill")


def tasks(world: WorldConfig, seed: int, start: int, count: int) -> list[Task]:
    """Tasks `start` to `start + count - 1`."""
    return [generate(world, seed, index) for index in range(start, start + count)]


def stream(world: WorldConfig, seed: int) -> Iterator[Task]:
    """Tasks 0, 1, 2, … without end."""
    index = 0
    while True:
        yield generate(world, seed, index)
        index += 1
