"""Tasks of the synthetic worlds by number; `generate(world, seed, index)` is a pure function."""

from __future__ import annotations

from pathlib import Path
from random import Random

from memalpha.config import WorldConfig
from memalpha.errors import ConfigError
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.synthetic import full_world, state_world
from memalpha.tasks.synthetic.demo_world import DEMO, DRILL, Shape, build_task
from memalpha.types import Task

DATA = shipped_card("synthetic")
DEFAULT_LIMIT = 200
"""Number of tasks that `load` generates without a limit."""

_LONG_WORLDS = {
    "full": (full_world.build_stream_task, full_world.DEFAULT_TOKENS),
    "state": (state_world.build_state_task, state_world.DEFAULT_TOKENS),
}
"""Worlds with a length: what builds a task, and its length in tokens if none is set."""


def load(
    path: Path | None,
    variant: str | None = None,
    limit: int | None = None,
    *,
    world: WorldConfig | None = None,
    seed: int = 0,
) -> list[Task]:
    """Generate tasks 0 to `limit - 1` of a world.

    Args:
        path: Not used, the set is generated.
        variant: Not used, the set has no variants.
        limit: Number of tasks; default `DEFAULT_LIMIT`.
        world: World to generate from; default: the demo's.
        seed: Seed of the tasks.
    """
    return tasks(world or WorldConfig(), seed, 0, DEFAULT_LIMIT if limit is None else limit)


def generate(world: WorldConfig, seed: int, index: int) -> Task:
    """Generate task number `index` of the world; equal arguments give equal bytes.

    Pseudo-words replace values in split "train" only: split "test" ignores `world.pseudo_values`. So a training world
    with `split="test"` is its held-out evaluation.

    Args:
        world: Preset, split, length and share of pseudo-words.
        seed: Seed of the tasks.
        index: Number of the task.

    Raises:
        ConfigError: `world.tokens` is set with preset "demo", or `world.drills` with another.
    """
    if world.drills and world.preset != "demo":
        raise ConfigError("world.drills: only preset 'demo' has conversations that drill changes; leave it out")
    if world.preset in _LONG_WORLDS:
        build, default_tokens = _LONG_WORLDS[world.preset]
        tokens = world.tokens or default_tokens
        parts = [str(part) for part in (world.preset, world.split, tokens, seed, index)]
        return build(Random("|".join(parts)), tokens, "-".join(parts), split=world.split, pseudo=world.pseudo_values)
    if world.tokens is not None:
        raise ConfigError("world.tokens: presets 'full' and 'state' have a length in tokens; leave it out for 'demo'")
    is_drill = world.drills and Random(f"drill|{seed}|{index}").random() < world.drills
    return drill(world, seed, index) if is_drill else shaped(world, seed, index, DEMO, "demo")


def shaped(world: WorldConfig, seed: int, index: int, shape: Shape, name: str) -> Task:
    """Generate a task of a demo world of another shape.

    Args:
        world: Split, pseudo-words and temporal questions.
        seed: Seed of the tasks.
        index: Number of the task.
        shape: How much the task holds.
        name: Beginning of the task's id; it also enters the randomness.
    """
    return build_task(
        Random(f"{name}|{world.split}|{seed}|{index}"),
        shape,
        f"{name}-{world.split}-{seed}-{index}",
        split=world.split,
        pseudo=world.pseudo_values,
        temporal=world.temporal_questions,
    )


def drill(world: WorldConfig, seed: int, index: int) -> Task:
    """Generate a short task: chunk 0 fills the memory, chunk 1 changes facts (`DRILL`).

    Args:
        world: Split, pseudo-words and temporal questions.
        seed: Seed of the tasks.
        index: Number of the task.
    """
    return shaped(world, seed, index, DRILL, "drill")


def tasks(world: WorldConfig, seed: int, start: int, count: int) -> list[Task]:
    """Generate tasks `start` to `start + count - 1`.

    Args:
        world: World to generate from.
        seed: Seed of the tasks.
        start: Number of the first task.
        count: Number of tasks.
    """
    return [generate(world, seed, index) for index in range(start, start + count)]
