"""Two real processes (gloo, CPU) against one: gradients, weights, full runs, checkpoints, a Ctrl-C, an error.

The two processes run all their work once (`two_processes.py`), because each takes seconds to start.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import HostileServer, whimsical
from run_kinds import small_config, write_lines
from safetensors.torch import load_file
from tiny import tiny_policy
from transformers import AutoModelForCausalLM
from two_processes import CASES, UNEVEN, measure, rows, step_and_save, tensors_of

from memalpha.config import PreferenceConfig, SFTConfig, TextConfig, TrainConfig
from memalpha.errors import CheckpointError, ConfigError
from memalpha.train.api import train
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, join_world
from memalpha.train.trainers.directory import load_checkpoint

pytestmark = pytest.mark.slow  # CI runs it
ERL = {
    "algorithm": "erl",
    "erl": {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8, "keep_advice": "success"},
}
LORA = {"lora": {"r": 2}}
VALUES = {"algorithm": "ppo", "group_size": 1}

TOLERANCE = 1e-6
"""Relative tolerance of weights and optimizer state after two steps: six times the largest measured error.

Adapters and value heads start with gradients near 0, by whose size Adam divides: their tolerance is ten times that.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("two")
    tiny_policy().save(path / "policy")
    return path


@pytest.fixture(scope="module")
def configure(folder):
    """Return a function from a kind of run, its name and changes to its configuration."""

    def build(kind, name: str, **changes):
        return small_config(kind, folder / "policy", folder, out=str(folder / name), **changes)

    return build


@pytest.fixture(scope="module")
def run(configure):
    """Return a function from a name and changes to the configuration of a memory run."""
    base = {"tasks_per_step": 3, "schedule_steps": 2, "eval_tasks": 1, "validation_tasks": 1, "validate_every": 1}
    base |= {"save_every": 1, "keep_checkpoints": 3, "microbatch_tokens": 1024, "sample_dtype": "float64"}
    return lambda name, **changes: configure(TrainConfig, name, **{**base, **changes})


@pytest.fixture(scope="module")
def imitation_config(folder, configure):
    """Return a function from a name to the configuration of a supervised run."""
    rows = [{"prompt": f"<|user|>{n}", "completion": f"{n} it is" * (1 + n % 3)} for n in range(20)]
    base = {"source": write_lines(folder / "rows.jsonl", rows), "agent": {"max_new_tokens": 12}, "evaluate": True}
    base |= {"batch_rows": 5, "schedule_steps": 2, "eval_tasks": 3, "validation_tasks": 3, "microbatch_tokens": 64}
    return lambda name: configure(SFTConfig, name, **base)


@pytest.fixture(scope="module")
def preference_config(folder, configure):
    """Return a function from a name to the configuration of a run on pairs."""
    rows = [
        {"prompt": f"<|user|>{n}", "chosen": f"{n} it is" * (1 + n % 3), "rejected": f"no {n}" * (1 + n % 2)}
        for n in range(12)
    ]
    data = write_lines(folder / "ragged.jsonl", rows)
    return lambda name: configure(
        PreferenceConfig, name, data=data, batch_pairs=3, epochs=0.6, learning_rate=1e-2, microbatch_tokens=64
    )


@pytest.fixture(scope="module")
def text_config(configure):
    """Return a function from a name to the configuration of a text run that reflects on its replies."""
    base = {"data": "arithmetic", "rewards": [{"kind": "format", "pattern": "[a-z]", "match": "search"}], **ERL}
    base |= {"group_size": 3, "schedule_steps": 2, "eval_tasks": 3, "validation_tasks": 2, "max_new_tokens": 6}
    base |= {"save_every": 1, "keep_checkpoints": 3, "microbatch_tokens": 1024, "sample_dtype": "float64"}
    return lambda name: configure(TextConfig, name, **base)


@pytest.fixture(scope="module")
def judge() -> Iterator[HostileServer]:
    with HostileServer(whimsical) as server:
        yield server


@pytest.fixture(scope="module")
def two_process_results(folder, run, imitation_config, preference_config, text_config, judge) -> dict:
    """Return the results of two processes; runs of one process lie beside theirs in `folder`."""
    train(run("uninterrupted 2", **VALUES))
    for changes in ({}, LORA):
        train(run(f"uninterrupted {len(changes)}", **changes))
        shutil.copytree(folder / f"uninterrupted {len(changes)}", folder / f"1-2 {len(changes)}", symlinks=True)
        shutil.rmtree(folder / f"1-2 {len(changes)}" / "checkpoints" / "step-2")
        (folder / f"1-2 {len(changes)}" / "summary.json").unlink()
    runs = [
        run("2-1 ddp", max_steps=1),
        run("2-1 fsdp", max_steps=1, sharding="fsdp", **LORA),
        run("2-1 values", max_steps=1, sharding="fsdp", **VALUES),
        run("1-2 0", sharding="fsdp"),
        run("1-2 1", **LORA),
        imitation_config("imitation of two"),
        preference_config("pairs of two"),
        run("dpo of two", algorithm="dpo"),
        run("erl of two", **ERL),
        text_config("text of two"),
    ]
    judged = {"reward": {"metric": "judge", "judge": {"judges": [judge.name], "endpoint": {"retries": 0}}}}
    judged |= {"minibatches": 2, "beta": 0.1}
    train(run("judged of one", **judged))
    runs.append(run("judged of two", **judged))
    step_and_save(folder / "saved by one", SINGLE_PROCESS)
    plan = {"runs": runs, "interrupted": run("interrupted", sharding="fsdp", save_every=100, validate_every=100)}
    (folder / "plan.pickle").write_bytes(pickle.dumps(plan))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[2] / "support" / "two_processes.py"), str(folder)],
            env={**os.environ, **shared, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        stderr = [process.communicate(timeout=280)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert (folder / "results.pickle").exists(), "\n".join(stderr)
    results = pickle.loads((folder / "results.pickle").read_bytes())
    return {**results, "stderr": stderr, "codes": [process.returncode for process in processes]}


def distance(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference over the norm of `expected`, over all tensors."""
    assert tensors.keys() == expected.keys()
    gap = sum(float((tensors[name].double() - expected[name].double()).square().sum()) for name in tensors)
    return (gap / sum(float(value.double().square().sum()) for value in expected.values())) ** 0.5


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_gradient_of_one(two_process_results, name):
    parallel, single = two_process_results["cases"][name], measure(CASES[name])
    assert distance(parallel["gradient"], single["gradient"]) < 1e-6
    assert parallel["norm"] == pytest.approx(single["norm"], rel=1e-5)
    for key in ("forward", "reference"):
        if key in single:
            assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(parallel[key], single[key], strict=True))
    for a, b in zip(parallel.get("values", []), single.get("values", []), strict=True):
        assert np.allclose(a, b, atol=1e-4) and np.abs(a).max() > 1e-3
    assert parallel["stats"] == pytest.approx(single["stats"], rel=1e-4, abs=1e-6)
    assert distance(parallel["weights"], single["weights"]) < 1e-5
    assert distance(parallel["optimizer"], single["optimizer"]) < 1e-5
    for before, after in zip(parallel["forward"], parallel["after_step"], strict=True):
        assert not np.allclose(before, after, atol=1e-3), "the next pass must have the new weights"
    assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(parallel["after_step"], single["after_step"], strict=True))


def test_checkpoints_without_a_whole_copy_go_to_any_number_of_processes(two_process_results, folder, tmp_path):
    exchanged = two_process_results["exchanged"]
    shards = sorted((folder / "saved by two" / "optimizer").iterdir())
    assert len(shards) == 2 and all(path.suffix == ".safetensors" for path in shards)
    assert (folder / "saved by two" / "model.safetensors").exists()
    assert (folder / "saved by one" / "optimizer.safetensors").exists()
    engine, _ = step_and_save(tmp_path / "again", SINGLE_PROCESS)
    same = tensors_of(engine)
    assert distance(exchanged["two"], same) < TOLERANCE
    assert all(torch.equal(value, same[name]) for name, value in exchanged["one"].items()), "two load what one saved"
    assert load_checkpoint(folder / "saved by two", engine)["step"] == 1
    loaded = tensors_of(engine)
    for tensors in (loaded, exchanged["again"]):
        assert tensors.keys() == exchanged["two"].keys()
        assert all(torch.equal(value, exchanged["two"][name]) for name, value in tensors.items())
    for a, b in zip(engine.forward(rows(UNEVEN, 0.0)), exchanged["logprobs"], strict=True):
        assert np.allclose(a, b, atol=1e-5)
    model = AutoModelForCausalLM.from_pretrained(folder / "saved by two")
    assert type(model).__name__ == "Qwen3ForCausalLM" and all(
        torch.equal(parameter, loaded[name]) for name, parameter in model.named_parameters()
    )
    for index, shard in enumerate(shards):
        shutil.copytree(folder / "saved by two", tmp_path / f"half {index}")
        (tmp_path / f"half {index}" / "optimizer" / shard.name).unlink()
        with pytest.raises(CheckpointError, match=r"lacks a part of|Size mismatch"):
            load_checkpoint(tmp_path / f"half {index}", engine)


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION"])
def test_settings_of_accelerate_are_refused(monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "bf16" if "MIXED" in name else "true")
    with pytest.raises(ConfigError, match=rf"{name}=.*leave it out and set (sharding|dtype)="):
        join_world("cpu")


def test_a_model_without_layers_is_not_sharded():
    with pytest.raises(ConfigError, match="set sharding=ddp"):
        World(0, 2).wrap_module(torch.nn.Linear(2, 2), ["Block"], "fsdp")


def test_work_is_assigned_and_gathered_in_order(two_process_results):
    assert two_process_results["ranks"] == [0, 1]
    for first, second in zip(two_process_results["shards"][:4], two_process_results["shards"][4:], strict=True):
        (start, first_shard), (second_start, second_shard) = first, second
        assert (
            start == 0
            and second_start == len(first_shard)
            and [*first_shard, *second_shard] == list(range(len(first_shard) + len(second_shard)))
        )
        assert abs(len(first_shard) - len(second_shard)) <= 1
    parts = [[5, 6], [4], [3], [2], [1, 0]]
    dealt = [World(rank, 2).assign_microbatches(parts) for rank in (0, 1)]
    assert dealt[0] == [([5, 6], True), ([2], True), ([1, 0], True)]
    assert dealt[1] == [([4], True), ([3], True), ([0], False)]
    assert SINGLE_PROCESS.assign_microbatches(parts) == [(part, True) for part in parts]
    assert World(1, 2).assign_microbatches([]) == []


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{step}"
    tensors = load_file(folder / "optimizer.safetensors")
    del tensors["rng/torch"]
    for head in folder.glob("value_head.safetensors"):
        tensors |= load_file(head)
    return {**load_file(next(folder.glob("*model.safetensors"))), **tensors}


@pytest.mark.parametrize(
    "name, changes", [("2-1 ddp", {}), ("2-1 fsdp", LORA), ("2-1 values", VALUES), ("1-2 0", {}), ("1-2 1", LORA)]
)
def test_runs_resume_with_another_number_of_processes(two_process_results, run, folder, name, changes):
    """Steps of two processes differ from those of one only by the order of sums."""
    uninterrupted, config = folder / f"uninterrupted {len(changes)}", run(name, **changes)
    tolerance = 10 * TOLERANCE if changes else TOLERANCE
    if name.startswith("2-1"):
        assert distance(weights(config.out, 1), weights(uninterrupted, 1)) < tolerance
        train(config)
    assert distance(weights(config.out, 2), weights(uninterrupted, 2)) < tolerance
    assert distance(weights(uninterrupted, 2), weights(uninterrupted, 1)) > 1e-2


def test_two_processes_ask_a_judge_as_one(two_process_results, folder):
    assert distance(weights(folder / "judged of two", 2), weights(folder / "judged of one", 2)) < TOLERANCE
    assert distance(weights(folder / "judged of two", 2), weights(folder / "judged of two", 1)) > 1e-2


def test_two_processes_reflect_as_one(two_process_results, run):
    """Second attempts are exchanged between the processes, and both keep the same advice."""
    single = run("erl of one", **ERL)
    summary = train(single)
    first, second = two_process_results["advice"]["erl of two"]
    assert first == second and len(first) == 2 and first[-1]["reflections"] != first[0]["reflections"] != []
    states = [
        json.loads((config.out / "checkpoints" / "step-2" / "state.json").read_text())["algorithm"]
        for config in (single, run("erl of two", **ERL))
    ]
    assert states[0] == states[1] == first[-1]
    assert distance(weights(run("erl of two", **ERL).out, 2), weights(single.out, 2)) < 1e-4
    parallel_summary = json.loads((run("erl of two", **ERL).out / "summary.json").read_text())
    assert parallel_summary["after"]["accuracy"] == summary["after"]["accuracy"]


def test_two_processes_train_on_text_as_one(two_process_results, text_config):
    parallel, single = text_config("text of two").out, text_config("text of one").out
    summary = train(text_config("text of one"))
    assert distance(weights(parallel, 2), weights(single, 2)) < 1e-4
    assert distance(weights(single, 2), weights(single, 1)) > 1e-2
    assert (parallel / "trajectories.jsonl").read_text() == (single / "trajectories.jsonl").read_text()
    assert json.loads((parallel / "summary.json").read_text())["after"] == summary["after"]
    assert two_process_results["sampled"]["text of two"][0] and two_process_results["advice"]["text of two"][0]


def test_two_processes_imitate_as_one(two_process_results, imitation_config):
    parallel, single = imitation_config("imitation of two"), imitation_config("imitation of one")
    summary = train(single)
    assert distance(weights(parallel.out, 2), weights(single.out, 2)) < 1e-4
    assert (parallel.out / "rows.jsonl").read_text() == (single.out / "rows.jsonl").read_text()
    parallel_summary = json.loads((parallel.out / "summary.json").read_text())
    for when in ("before", "after"):
        assert parallel_summary[when]["validation_loss"] == pytest.approx(summary[when]["validation_loss"], rel=1e-4)
        assert parallel_summary[when]["accuracy"] == summary[when]["accuracy"]


def test_two_processes_train_on_pairs_as_one(two_process_results, preference_config, run):
    for parallel, single in (
        (preference_config("pairs of two"), preference_config("pairs of one")),
        (run("dpo of two", algorithm="dpo"), run("dpo of one", algorithm="dpo")),
    ):
        summary = train(single)
        assert distance(weights(parallel.out, 2), weights(single.out, 2)) < 1e-4
        parallel_summary = json.loads((parallel.out / "summary.json").read_text())
        assert {k: v for k, v in parallel_summary["after"].items() if isinstance(v, float)} == pytest.approx(
            {k: v for k, v in summary["after"].items() if isinstance(v, float)}, rel=1e-4
        )


def test_a_ctrl_c_in_one_process_stops_both_with_a_checkpoint(two_process_results, folder):
    assert two_process_results["interrupted"] == [0, 1]
    assert {path.name for path in (folder / "interrupted" / "checkpoints").glob("step-*")} == {"step-0", "step-1"}


def test_errors_end_all_processes(two_process_results):
    assert two_process_results["refused"] == ["raised in the main process"] * 2
    assert two_process_results["codes"][1] == 1 and "TrainingError: only here" in two_process_results["stderr"][1]
    assert two_process_results["codes"][0] != 0
