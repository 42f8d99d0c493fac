"""Tasks of the synthetic worlds by number; `generate(world, seed, index)` is a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from memalpha.config import WorldConfig
from memalpha.errors import ConfigError
from memalpha.tasks.dataset_info import shipped_card
from memalpha.tasks.synthetic import state_world
from memalpha.tasks.synthetic.demo_world import DEMO, DRILL, Shape, build_task
from memalpha.tasks.synthetic.full_world import DEFAULT_TOKENS, Session, build_stream_task, stream_sessions
from memalpha.types import Task

DATA = shipped_card("synthetic")
DEFAULT_LIMIT = 200
"""Number of tasks that `load` generates without a limit."""


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
    if world.preset == "state":
        tokens, pseudo = world.tokens or state_world.DEFAULT_TOKENS, world.pseudo_values
        id, rng = f"state-{world.split}-{tokens}-{seed}-{index}", Random(f"state|{world.split}|{tokens}|{seed}|{index}")
        return state_world.build_state_task(rng, tokens, id, split=world.split, pseudo=pseudo)
    if world.preset == "full":
        tokens, pseudo = _tokens(world), world.pseudo_values
        id = f"full-{world.split}-{tokens}-{seed}-{index}"
        return build_stream_task(_rng(world, seed, index), tokens, id, split=world.split, pseudo=pseudo)
    if world.tokens is not None:
        raise ConfigError("world.tokens: presets 'full' and 'state' have a length in tokens; leave it out for 'demo'")
    is_drill = world.drills and Random(f"drill|{seed}|{index}").random() < world.drills
    return drill(world, seed, index) if is_drill else shaped(world, seed, index, DEMO, "demo")


def stream(world: WorldConfig, seed: int, index: int = 0) -> Iterator[Session]:
    """Yield the sessions of the full world's task `index`, each in constant time.

    `generate` collects the same sessions into one task.

    Args:
        world: World with preset "full".
        seed: Seed of the tasks.
        index: Number of the task.

    Raises:
        ConfigError: The preset is another, whose tasks are planned as a whole.
    """
    if world.preset != "full":
        raise ConfigError(f"world.preset: only preset 'full' streams; use generate() for {world.preset!r}")
    return stream_sessions(_rng(world, seed, index), _tokens(world), split=world.split, pseudo=world.pseudo_values)


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


def _tokens(world: WorldConfig) -> int:
    return DEFAULT_TOKENS if world.tokens is None else world.tokens


def _rng(world: WorldConfig, seed: int, index: int) -> Random:
    return Random(f"full|{world.split}|{_tokens(world)}|{seed}|{index}")
