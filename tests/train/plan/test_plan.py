"""A plan counts what a run would need, loads no weights and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen3Config
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.config import LoraConfig, parse_overrides, training_config
from memalpha.config.groups import ComputeConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.token_logprobs import TokenScorer
from memalpha.train.plan.allocation import count_learning, extrapolate_layers
from memalpha.train.plan.devices import Device
from memalpha.train.plan.memory import _cut, _learning_parts, _update_batches
from memalpha.train.plan.model import build_shape
from memalpha.train.plan.plan import plan_run
from memalpha.train.plan.table import format_plan
from memalpha.train.plan.workload import Row, Workload

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 2000,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
FOUR_BILLION = SHAPE | {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cpu", 10**10, 1e10, 1e10, 0.0, "fixed")
    monkeypatch.setattr("memalpha.train.plan.plan.measure_device", lambda *_: device)


def _shape_folder(folder: Path, shape: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return folder


def _plan(name: str, *overrides: str, gpu: str | None = None) -> dict[str, Any]:
    return plan_run(training_config(name, parse_overrides(list(overrides))), gpu=gpu)


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
    compute = ComputeConfig(gradient_checkpointing=checkpointing, head_tokens=128)
    shape = build_shape(str(_shape_folder(tmp_path, SHAPE)), "float32", compute, lora)
    rows, width, targets = 6, 90, 240
    counted, _ = count_learning(
        shape.trained,
        shape.mode,
        compute,
        rows=rows,
        width=width,
        targets=targets,
        accumulated=False,
        entropy=not checkpointing,
    )
    model: Any = AutoModelForCausalLM.from_config(Qwen3Config.from_pretrained(tmp_path)).eval()
    model = model if lora is None else add_lora(model, lora, "model")
    scorer = TokenScorer(model, head_tokens=128, checkpointing=checkpointing)
    ids, indices = torch.zeros(rows, width, dtype=torch.long), torch.zeros(targets, dtype=torch.long)

    def step() -> None:
        logprobs, entropies, _ = scorer(ids, indices, indices, torch.ones(targets))
        loss = logprobs.sum() if checkpointing else logprobs.sum() + entropies.sum()
        del logprobs, entropies
        loss.backward()

    assert counted == pytest.approx(_allocated_peak(step), rel=0.05)


@pytest.mark.slow
def test_layers_are_extrapolated_exactly(tmp_path: Path) -> None:
    shape = build_shape(str(_shape_folder(tmp_path, SHAPE | {"num_hidden_layers": 8})), "float32", ComputeConfig())

    def count() -> int:
        return count_learning(
            shape.trained, shape.mode, ComputeConfig(), rows=2, width=40, targets=20, accumulated=True
        )[0]

    whole = count()
    held = sum(parameter.nbytes for parameter in shape.trained.parameters() if parameter.requires_grad)
    assert extrapolate_layers(shape.trained, count) == pytest.approx(whole, rel=0.02)
    assert len(shape.policy.model.model.layers) == shape.layers == 8
    assert held < whole
    adapted = build_shape(
        str(_shape_folder(tmp_path, SHAPE | {"num_hidden_layers": 12})),
        "float32",
        ComputeConfig(),
        LoraConfig(r=4, layers=8),
    )

    def count_adapted() -> int:
        peak, gradients = count_learning(
            adapted.trained, adapted.mode, ComputeConfig(), rows=2, width=40, targets=20, accumulated=True
        )
        return peak - gradients

    assert extrapolate_layers(adapted.trained, count_adapted, last=8) == pytest.approx(count_adapted(), rel=0.02)


def test_the_demo_plan_fits_its_model_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "demo", f"out={out}", "--plan", "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["model"]["parameters"] == load_policy("tiny").parameters  # type: ignore[attr-defined]
    assert plan["model"]["bytes"] == {"float32": 4 * plan["model"]["parameters"]}
    step = plan["step"]
    assert step["prompts"] == 8 * 8 * 3
    assert step["completion_tokens"]["most"] == step["prompts"] * 64 > step["completion_tokens"]["expected"] > 0
    assert step["reader"]["calls"] > 0
    assert plan["memory"]["fits"]
    assert plan["time"]["step_seconds"] == pytest.approx(sum(plan["time"]["phases"].values()))
    assert not out.exists()


def test_rows_decoded_together_are_planned_as_set() -> None:
    def cache(*overrides: str) -> int:
        [sampling] = [phase for phase in _plan("demo", *overrides)["memory"]["phases"] if phase["name"] == "sampling"]
        return sampling["parts"]["keys and values"]

    assert cache("decode_rows=4") * 2 == cache("decode_rows=8") < cache()


def test_the_largest_micro_batch_is_that_of_rows_as_a_run_draws_them() -> None:
    config = training_config("arithmetic", {"compute": {"microbatch_tokens": 1024}, "optimizer": {"minibatches": 2}})
    work = Workload("answers", [Row(prompt, 96) for prompt in (26, 32, 42, 24) for _ in range(4)], updates=2)
    even, *drawn = _update_batches(config, work, 1)
    assert even == [(4, 137, 384), (4, 121, 384)]
    most = max(rows * width for update in drawn for rows, width, _ in update)
    real = []
    for step in range(40):  # as the trainer shuffles the rows of a step
        order = list(range(len(work.rows)))
        Random(f"0|{step}|0").shuffle(order)
        real += _cut([work.rows[index] for index in order[::2]], 1024)
    assert 4 * 137 < most <= 1024
    assert sum(rows * width <= most for rows, width, _ in real) >= 0.95 * len(real)


def test_gradients_stand_beside_the_later_micro_batches_alone() -> None:
    config = training_config("arithmetic", {})
    model = build_shape(config.policy, config.compute.dtype, config.compute)
    work = Workload("answers", [Row(32, 96)], updates=1)

    def peak(*microbatches: tuple[int, int, int]) -> int:
        return sum(_learning_parts(config, model, work, [microbatches], 1, is_sharded=False).values())

    large, small = (16, 128, 16 * 96), (2, 128, 2 * 96)
    gradients = sum(parameter.nbytes for parameter in model.trained.parameters())
    assert peak(large) == peak(large, small)
    assert peak(large) < peak(large, large) <= peak(large) + gradients


def test_a_file_that_is_packed_or_cast_on_a_cpu_is_planned_beside_the_weights(tmp_path: Path) -> None:
    policy = f"policy={_shape_folder(tmp_path, SHAPE | {'dtype': 'bfloat16'})}"

    def loading(*overrides: str) -> dict[str, int] | None:
        plan = _plan("arithmetic", policy, "lora={r: 2}", "microbatch_tokens=256", *overrides)
        phases = {phase["name"]: phase["parts"] for phase in plan["memory"]["phases"]}
        assert phases.get("loading the policy", {}).get("weights", 0) <= phases["learning"]["weights"]
        return phases.get("loading the policy")

    parameters = _plan("arithmetic", policy)["model"]["parameters"]
    for overrides in ([], ["compute.load_in_4bit=true"]):
        parts = loading(*overrides)
        assert parts is not None
        assert parts["mapped file"] == 2 * parameters
    assert loading("compute.dtype=bfloat16") is None


def test_a_run_beside_a_server_is_planned_without_a_sampler_in_the_process(tmp_path: Path) -> None:
    policy = f"policy={_shape_folder(tmp_path, SHAPE)}"
    server = "sampler.url=vllm:http://127.0.0.1:8000"

    def phases(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
        return {phase["name"]: phase["parts"] for phase in plan["memory"]["phases"]}

    local, remote = _plan("arithmetic", policy), _plan("arithmetic", policy, server)
    weights = remote["model"]["bytes"]["float32"]
    assert local["memory"]["phases"][0]["parts"]["sampler's copy"] == weights
    assert "sampling" in phases(local)
    assert "sampling" not in phases(remote)
    assert all("sampler's copy" not in parts for parts in phases(remote).values())
    assert phases(remote)["handing over weights"]["written weights"] == weights
    assert (local["disk"]["sampler_bytes"], remote["disk"]["sampler_bytes"]) == (0, 2 * weights)
    assert "http://127.0.0.1:8000 samples" in remote["notes"][-1]
    times = remote["time"]["phases"]
    ahead = _plan("arithmetic", policy, server, "sampling.staleness=1")["time"]["step_seconds"]
    assert ahead == max(times["sampling"], times["learning"]) < remote["time"]["step_seconds"] == sum(times.values())
    adapters = _plan("arithmetic", policy, server, "lora={r: 2}")
    assert adapters["disk"]["sampler_bytes"] == 2 * 4 * adapters["model"]["trained"]
    assert "on their way to the server" in format_plan(remote)


def test_a_learner_that_is_sharded_beside_a_server_keeps_no_whole_weights(tmp_path: Path) -> None:
    config = ["policy=" + str(_shape_folder(tmp_path, SHAPE)), "compute.sharding=fsdp"]

    def plan(*overrides: str) -> dict[str, Any]:
        settings = training_config("arithmetic", parse_overrides([*config, *overrides]))
        return plan_run(settings, processes=2)

    whole, sharded = plan(), plan("sampler.url=vllm:http://127.0.0.1:8000")
    weights = whole["model"]["bytes"]["float32"]
    [learning] = [phase["parts"] for phase in whole["memory"]["phases"] if phase["name"] == "learning"]
    assert learning["weights"] + learning["shard of the weights"] == weights + weights // 2
    [learning] = [phase["parts"] for phase in sharded["memory"]["phases"] if phase["name"] == "learning"]
    assert learning["weights"] == weights // 2
    assert "shard of the weights" not in learning
    names = [phase["name"] for phase in sharded["memory"]["phases"]]
    assert names == ["handing over weights", "learning", "loading the policy"]
    assert sharded["memory"]["phases"][-1]["parts"]["whole weights"] == weights
    adapters = plan("sampler.url=vllm:http://127.0.0.1:8000", "lora={r: 2}")["memory"]["phases"][0]["parts"]
    assert adapters["weights"] + adapters["shard of the weights"] > weights * 1.5


@pytest.mark.slow
def test_a_model_of_four_billion_weights_is_planned_without_them(tmp_path: Path) -> None:
    policy = f"policy={_shape_folder(tmp_path, FOUR_BILLION)}"
    settings = ("sampling.max_new_tokens=128", "compute.dtype=bfloat16", "compute.gradient_checkpointing=true")
    full = _plan("arithmetic", policy, *settings, gpu="l4")
    assert full["model"]["parameters"] == pytest.approx(4.02e9, rel=0.01)
    assert full["memory"]["peak"]["bytes"] > 16 * 4e9  # weights, gradients and two averages in float32
    assert full["memory"]["fits"] is False
    assert "lora" in full["memory"]["advice"]
    packed = _plan("arithmetic", policy, *settings, "lora={r: 16}", "compute.load_in_4bit=true", gpu="l4")
    assert packed["model"]["bytes"]["nf4"] == pytest.approx(3.63e9 * 0.516, rel=0.01)
    assert packed["memory"]["fits"] is True
    assert "DOES NOT FIT" in format_plan(full)


def _preference_file(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    lines = [{"prompt": f"say {index}", "chosen": "yes " * index, "rejected": "no"} for index in range(1, 11)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["preferences", "reward"])
def test_runs_on_pairs_are_planned_from_their_file(tmp_path: Path, name: str) -> None:
    plan = _plan(name, f"data={_preference_file(tmp_path)}", "policy=tiny-text", "batch_pairs=4")
    assert plan["step"]["rows"] == 8
    assert not plan["step"]["sampled"]
    parts = plan["memory"]["phases"][0]["parts"]
    assert ("reference" in parts) == (name == "preferences")


@pytest.mark.parametrize("name", ["sft", "arithmetic", "ppo"])
def test_every_kind_of_run_has_a_plan(name: str) -> None:
    plan = _plan(name)
    assert plan["step"]["rows"] > 0
    assert plan["memory"]["peak"]["bytes"] > plan["model"]["bytes"]["float32"]
    assert "time (an estimate)" in format_plan(plan)


def test_what_cannot_be_planned_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--gpu z80: .*h100"):
        _plan("arithmetic", gpu="z80")
    with pytest.raises(PolicyError, match=r"config\.json"):
        _plan("arithmetic", f"policy={tmp_path}")
    result = CliRunner().invoke(app, ["train", "demo", "--gpu", "l4"])
    assert isinstance(result.exception, ConfigError)
    plan = _plan("arithmetic", "compute.device=cuda") if not torch.cuda.is_available() else None
    assert plan is None or (plan["memory"]["fits"] is None and "--gpu" in plan["notes"][-1])
