"""Every recipe for real models takes its first step, shrunk: an impossible combination of keys cannot ship."""

from __future__ import annotations

import math
from importlib import resources

import pytest
from recipes import first_step
from runs import lines

from memalpha.config.files import read_config, shipped_configs

RECIPES = ("writer-24gb", "writer-80gb", "writer-8gpus")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_first_step_runs(recipe, tmp_path):
    summary = first_step(recipe, tmp_path)
    [metrics] = lines(tmp_path / "run" / "metrics.jsonl")
    assert summary["steps"] == 1 and metrics["sampled_tokens"] > 0 and math.isfinite(metrics["reward"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_first_what_was_not_run(recipe):
    assert recipe in shipped_configs() and read_config(recipe)["out"] == f"runs/{recipe}"
    first = (resources.files("memalpha") / "config" / "presets" / f"{recipe}.yaml").read_text().splitlines()[0]
    assert first.startswith("# Not run on real hardware yet:")
