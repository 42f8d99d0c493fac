"""Tasks of the synthetic worlds, by number: `generate(world, seed, index)` is a pure function of its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from memalpha.config import WorldConfig
from memalpha.errors import ConfigError
from memalpha.tasks.dataset_info import DataSet
from memalpha.tasks.synthetic.demo_world import DEMO, DRILL, Shape, build_task
from memalpha.tasks.synthetic.full_world import DEFAULT_TOKENS, Session, build_stream_task, stream_sessions
from memalpha.types import Task

DATA = DataSet(
    name="synthetic",
    about="made-up conversations without end, from a seed",
    source="made here",
    licence="Apache-2.0",
    counts="as many as asked for (200 without a limit); of 8,000 to a million tokens each with world.preset=full",
    metric="exact",
    ships=True,
    training_options={"world": {"split": "train"}},
)
UNLIMITED = 200
"""How many tasks `load` gives when no limit is named: the world has no end."""


def load(
    path: Path | None,
    variant: str | None = None,
    limit: int | None = None,
    *,
    world: WorldConfig | None = None,
    seed: int = 0,
) -> list[Task]:
    """Tasks 0 to `limit - 1` of a world (default: the demo's); nothing is read."""
    return tasks(world or WorldConfig(), seed, 0, UNLIMITED if limit is None else limit)


def generate(world: WorldConfig, seed: int, index: int) -> Task:
    """Task number `index` of the world under `seed`; equal arguments give equal bytes, whatever was made before.

    Pseudo-words replace values in split "train" only: split "test" ignores `world.pseudo_values`, so that a training
    world with `split="test"` is its held-out evaluation. Raises `ConfigError` for `tokens` with preset "demo".
    """
    if world.preset == "full":
        tokens = _tokens(world)
        return build_stream_task(
            _rng(world, seed, index),
            tokens,
            f"full-{world.split}-{tokens}-{seed}-{index}",
            split=world.split,
            pseudo=world.pseudo_values,
        )
    if world.tokens is not None:
        raise ConfigError("world.tokens: only preset 'full' has a length in tokens; leave it out for 'demo'")
    return shaped(world, seed, index, DEMO, "demo")


def stream(world: WorldConfig, seed: int, index: int = 0) -> Iterator[Session]:
    """The full world's task `index` session by session, in constant time each: what `generate` collects.

    Raises `ConfigError` for preset "demo", whose tasks are planned as a whole.
    """
    if world.preset != "full":
        raise ConfigError("world.preset: only preset 'full' streams; use generate() for 'demo'")
    return stream_sessions(_rng(world, seed, index), _tokens(world), split=world.split, pseudo=world.pseudo_values)


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


def _tokens(world: WorldConfig) -> int:
    return DEFAULT_TOKENS if world.tokens is None else world.tokens


def _rng(world: WorldConfig, seed: int, index: int) -> Random:
    return Random(f"full|{world.split}|{_tokens(world)}|{seed}|{index}")
