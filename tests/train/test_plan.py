"""A plan counts what a run would need, loads no weights and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.config import LoraConfig, parse_overrides, training_config
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy, policy_path
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.token_logprobs import TokenScorer
from memalpha.train.plan import ModelShape, Row, RunPlan, Work, format_plan, plan_run

SHAPE: dict[str, Any] = {"vocab_size": 2000, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 6}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096}
SHAPE |= {"tie_word_embeddings": True, "eos_token_id": 1}
FOUR_BILLION = SHAPE | {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
FOUR_BILLION |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}


def _policy(folder: Path, config: Any) -> str:
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy_path("tiny-text")).save_pretrained(folder)
    return str(folder)


def _plan(name: str, *overrides: str, gpu: str | None = None, processes: int = 1) -> dict[str, Any]:
    return plan_run(training_config(name, parse_overrides(list(overrides))), gpu=gpu, processes=processes)


def _parts(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {phase["name"]: phase["parts"] for phase in plan["memory"]["phases"]}


def _allocated_peak(step: Any) -> int:
    """Return the peak of torch's own count of allocated bytes during `step`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    live = peak = 0
    for event in record.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)])
def test_a_microbatch_allocates_what_the_plan_counts(
    tmp_path: Path, lora: LoraConfig | None, checkpointing: bool
) -> None:
    policy = _policy(tmp_path, Qwen3Config(**SHAPE))
    compute = {"gradient_checkpointing": checkpointing, "head_tokens": 128, "microbatch_tokens": 600}
    config = training_config("arithmetic", {"policy": policy, "lora": lora and lora.model_dump(), "compute": compute})
    rows, width, reply = 6, 91, 40
    shape = ModelShape(policy, "float32", config.compute, lora)
    work = Work([Row(width - reply, reply)] * rows, 1.0, 1)
    parts = RunPlan(config, shape, work, 1, None).phases()["learning"]
    model: Any = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE)).eval()
    model = model if lora is None else add_lora(model, lora, "model")
    scorer = TokenScorer(model, head_tokens=128, checkpointing=checkpointing)
    ids, indices = torch.zeros(rows, width - 1, dtype=torch.long), torch.zeros(rows * reply, dtype=torch.long)

    def step() -> None:
        logprobs, _, _ = scorer(ids, indices, indices, torch.ones(rows * reply))
        logprobs.sum().backward()

    assert parts["gradients"] + parts["activations"] == pytest.approx(_allocated_peak(step), rel=0.2)


def test_the_demo_plan_fits_its_model_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "demo", f"out={out}", "--plan", "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["model"]["parameters"] == load_policy("tiny").parameters  # type: ignore[attr-defined]
    assert plan["model"]["bytes"] == {"float32": 4 * plan["model"]["parameters"]}
    step = plan["step"]
    assert step["prompts"] == step["rows"] == 8 * 8 * 3
    assert step["completion_tokens"] == step["prompts"] * 64 < step["prompt_tokens"]
    assert step["answers"] > 0
    assert plan["memory"]["fits"]
    assert plan["time"]["step_seconds"] is None
    assert not out.exists()


@pytest.mark.parametrize("name", ["sft", "arithmetic", "ppo", "erl"])
def test_every_kind_of_run_has_a_plan_whose_parts_add_up(name: str) -> None:
    plan = _plan(name, gpu="RTX 4090")
    assert plan["step"]["rows"] > 0
    phases = plan["memory"]["phases"]
    assert all(phase["bytes"] == sum(phase["parts"].values()) > 0 for phase in phases)
    assert plan["memory"]["peak"]["bytes"] == max(phase["bytes"] for phase in phases)
    assert plan["time"]["step_seconds"] == sum(plan["time"]["phases"].values()) > 0
    text = format_plan(plan)
    assert "within 20 % on the sizes measured" in text
    assert "an estimate never checked on a GPU" in text


@pytest.mark.parametrize("name", ["preferences", "reward"])
def test_runs_on_pairs_are_planned_from_their_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"say {index}", "chosen": "yes " * index, "rejected": "no"} for index in range(1, 11)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plan = _plan(name, f"data={path}", "policy=tiny-text", "batch_pairs=4")
    assert plan["step"]["rows"] == 8
    assert ("reference" in _parts(plan)["learning"]) == (name == "preferences")
    assert "sampling" not in _parts(plan)


def test_a_model_of_four_billion_weights_is_planned_without_them(tmp_path: Path) -> None:
    policy = f"policy={_policy(tmp_path, Qwen3Config(**FOUR_BILLION))}"
    settings = ("sampling.max_new_tokens=128", "compute.dtype=bfloat16", "compute.gradient_checkpointing=true")
    full = _plan("arithmetic", policy, *settings, gpu="l4")
    assert full["model"]["parameters"] == pytest.approx(4.02e9, rel=0.01)
    assert full["memory"]["peak"]["bytes"] > 16 * 4e9  # weights, gradients and two averages in float32
    assert full["memory"]["fits"] is False
    assert "DOES NOT FIT in 24 GB" in format_plan(full)
    packed = _plan("arithmetic", policy, *settings, "lora={r: 16}", "compute.load_in_4bit=true", gpu="l4")
    assert packed["model"]["bytes"]["nf4"] == pytest.approx(3.63e9 * 0.516, rel=0.01)
    assert packed["memory"]["fits"] is True


def test_what_cannot_be_planned_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--gpu z80: .*h100, .*4090"):
        _plan("arithmetic", gpu="z80")
    with pytest.raises(PolicyError, match=r"config\.json"):
        _plan("arithmetic", f"policy={tmp_path}")
    with pytest.raises(PolicyError, match="has no weights to train"):
        _plan("arithmetic", "policy=scripted:oracle")
    result = CliRunner().invoke(app, ["train", "demo", "--gpu", "l4"])
    assert isinstance(result.exception, ConfigError)
    if not torch.cuda.is_available():
        assert _plan("arithmetic", "compute.device=cuda")["memory"]["fits"] is None
