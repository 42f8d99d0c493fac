"""Every recipe for real models takes its first step, shrunk: an impossible combination of keys cannot ship."""

from __future__ import annotations

import math
from importlib import resources

import pytest
from hostile import HostileServer, whimsical
from recipes import SMOLLM2, first_step, smollm2_tokenizer
from runs import lines
from transformers import AutoTokenizer, LlamaConfig, Qwen3Config

from memalpha.config import WorldConfig, training_config
from memalpha.config.files import read_config, shipped_configs
from memalpha.policy.load import policy_path
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.plan import plan_run

WRITERS = ("writer-24gb", "writer-80gb", "writer-8gpus")
MEM_ALPHA = {"mem-alpha": "mem-alpha", "mem-alpha-repaired": "full"}
SMOL = ("smollm2-sft", "smollm2")
CARDS = {"writer-24gb": ("4090", 1), "writer-80gb": ("h100", 1), "writer-8gpus": ("h100", 8), "mem-alpha": ("h100", 8)}
QWEN3 = {  # the published shapes: width, layers, heads, width of the inner layers
    "Qwen/Qwen3-1.7B": (2048, 28, 16, 6144),
    "Qwen/Qwen3-4B": (2560, 36, 32, 9728),
}
SMOLLM2_PARAMETERS = 134_515_008


def assert_stepped(summary, folder):
    [metrics] = lines(folder / "run" / "metrics.jsonl")
    assert summary["steps"] == 1 and metrics["sampled_tokens"] > 0
    assert math.isfinite(metrics["reward"]) and math.isfinite(metrics["loss"])
    return metrics


@pytest.mark.parametrize("recipe", [*WRITERS, "smollm2"])
def test_the_first_step_runs(recipe, tmp_path):
    assert_stepped(first_step(recipe, tmp_path), tmp_path)


@pytest.mark.parametrize("recipe", MEM_ALPHA)
def test_the_first_step_of_mem_alpha_runs(recipe, tmp_path):
    """The data are other conversations; reader and judge are behind a server, as in the recipe."""
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 6), tmp_path / "train.jsonl")
    save_jsonl(synthetic.tasks(WorldConfig(split="test"), 0, 0, 1), tmp_path / "test.jsonl")
    changes = {"data": str(tmp_path / "train.jsonl"), "agent": {"embedder": "hash", "max_new_tokens": 8}}
    changes["evaluation"] = {"data": str(tmp_path / "test.jsonl")}
    with HostileServer(whimsical) as server:
        changes |= {"reader": {"policy": server.name}, "reward": {"judge": {"judges": [server.name]}}}
        changes |= {"compute": {"sharding": "ddp"}, "optimizer": {"minibatches": 2}}
        metrics = assert_stepped(first_step(recipe, tmp_path, **changes), tmp_path)
        assert server.bodies
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.bodies)
    assert "reader_truncated" in metrics and "reader_cached" not in metrics
    settings = read_config(recipe)
    assert settings["agent"]["prompt"] == MEM_ALPHA[recipe] and settings["optimizer"]["learning_rate"] == 1e-6


def test_the_supervised_start_of_smollm2_runs(tmp_path):
    """The prompt names no tools: rows teach their line form."""
    assert first_step("smollm2-sft", tmp_path)["steps"] == 1
    [metrics] = lines(tmp_path / "run" / "metrics.jsonl")
    assert metrics["train_loss"] > 0 and metrics["grad_norm"] > 0
    [row, *_] = lines(tmp_path / "run" / "rows.jsonl")
    tokenizer = smollm2_tokenizer().from_pretrained(tmp_path / "policy")
    prompt, reply = tokenizer.decode(row["prompt_ids"]), tokenizer.decode(row["completion_ids"])
    assert prompt.startswith("<|im_start|>system\n") and prompt.endswith("<|im_start|>assistant\n")
    assert "memory_insert" not in prompt and reply.endswith("<|im_end|>")
    adapter = tmp_path / "run" / "checkpoints" / "step-1" / "adapter_model.safetensors"
    assert adapter.is_file()


@pytest.mark.parametrize("recipe", [*WRITERS, *MEM_ALPHA, *SMOL])
def test_a_recipe_says_first_what_was_run(recipe):
    assert recipe in shipped_configs() and read_config(recipe)["out"] == f"runs/{recipe}"
    first = (resources.files("memalpha") / "config" / "presets" / f"{recipe}.yaml").read_text().splitlines()[0]
    assert first.startswith("# Measured:" if recipe in SMOL else "# Not run on real hardware")


def planned(folder, shape, tokenizer, recipe, hardware, **changes):
    """Plan a recipe for a model of a published shape."""
    shape.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return plan_run(training_config(recipe, {"policy": str(folder), **changes}), **hardware)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", CARDS)
def test_a_recipe_fits_its_cards(recipe, tmp_path):
    width, layers, heads, inner = QWEN3[read_config(recipe)["policy"]]
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    shape |= {
        "intermediate_size": inner,
        "vocab_size": 151936,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    }
    changes: dict[str, object] = {}
    if recipe == "mem-alpha":
        changes = {"data": "synthetic", "evaluation": {"data": None}, "reader": {"policy": str(tmp_path)}}
    gpu, processes = CARDS[recipe]
    tokenizer = AutoTokenizer.from_pretrained(policy_path("tiny"))
    config = Qwen3Config(**shape, tie_word_embeddings=True)
    plan = planned(tmp_path, config, tokenizer, recipe, {"gpu": gpu, "processes": processes}, **changes)
    assert plan["memory"]["fits"], plan["memory"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SMOL)
def test_smollm2_fits_a_small_machine(recipe, tmp_path):
    plan = planned(tmp_path, LlamaConfig(**SMOLLM2), smollm2_tokenizer(), recipe, {})
    assert plan["model"]["parameters"] == SMOLLM2_PARAMETERS > 20 * plan["model"]["trained"] > 0
    assert SMOLLM2_PARAMETERS * 4 < plan["memory"]["peak"]["bytes"] < 16e9
