"""Every recipe for real models takes its first step, shrunk: an impossible combination of keys cannot ship."""

from __future__ import annotations

import math
from importlib import resources

import pytest
from recipes import first_step
from runs import lines
from transformers import Qwen3Config

from memalpha.config import training_config
from memalpha.config.files import read_config, shipped_configs
from memalpha.train.plan.plan import plan_run

RECIPES = ("writer-24gb", "writer-80gb", "writer-8gpus")
CARDS = {"writer-24gb": ("4090", 1), "writer-80gb": ("h100", 1), "writer-8gpus": ("h100", 8), "mem-alpha": ("h100", 8)}
QWEN3 = {  # the published shapes: width, layers, heads, width of the inner layers
    "Qwen/Qwen3-1.7B": (2048, 28, 16, 6144),
    "Qwen/Qwen3-4B": (2560, 36, 32, 9728),
}


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


@pytest.mark.slow
@pytest.mark.parametrize("recipe", CARDS)
def test_a_recipe_fits_its_cards(recipe, tmp_path):
    policy = read_config(recipe)["policy"]
    width, layers, heads, inner = QWEN3[policy]
    Qwen3Config(
        vocab_size=151936,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=inner,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    ).save_pretrained(tmp_path)
    changes: dict[str, object] = {"policy": str(tmp_path)}
    if recipe == "mem-alpha":
        changes |= {"data": "synthetic", "evaluation": {"data": None}, "reader": {"policy": str(tmp_path)}}
    gpu, processes = CARDS[recipe]
    plan = plan_run(training_config(recipe, changes), gpu=gpu, processes=processes)
    assert plan["memory"]["fits"], plan["memory"]
