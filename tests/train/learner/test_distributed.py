"""Two real processes (gloo, CPU) against one: gradients, weights, whole runs, checkpoints across both, a Ctrl-C, an
error. All that two processes do is done in one go (`two_processes.py`), for each of them takes seconds to start.
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
from safetensors.torch import load_file
from tiny import tiny_policy
from two_processes import CASES, measure

from memalpha.config import PreferenceConfig, SFTConfig, TrainConfig, build_config, merge
from memalpha.errors import ConfigError
from memalpha.train.api import train
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, join_world

ERL = {"algorithm": "erl", "erl": {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8}}
LORA = {"lora": {"r": 2}}
VALUES = {"algorithm": "ppo", "group_size": 1}

TOLERANCE = 1e-6
"""Of weights and optimizer together after two steps, relative: six times the largest seen with all weights. Adapters
and value heads start with gradients near 0, by whose size Adam divides: there it is ten times that."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("two")
    policy = tiny_policy()
    for part in (policy.model, policy.tokenizer):
        part.save_pretrained(path / "policy")
    return path


@pytest.fixture(scope="module")
def run(place):
    base = {
        "policy": str(place / "policy"),
        "agent": {"prompt": "compact", "embedder": "hash", "max_new_tokens": 12},
        "group_size": 3,
        "tasks_per_step": 3,
        "schedule_steps": 2,
        "warmup_steps": 1,
        "eval_tasks": 1,
        "validation_tasks": 1,
        "validate_every": 1,
        "save_every": 1,
        "keep_checkpoints": 3,
        "learning_rate": 1e-2,
        "microbatch_tokens": 1024,
        "sample_dtype": "float64",
    }
    return lambda name, **changes: build_config(TrainConfig, merge({**base, "out": str(place / name)}, changes), name)


@pytest.fixture(scope="module")
def imitation(place):
    """A function: name -> configuration of a supervised run."""
    path = place / "rows.jsonl"
    lines = [
        {"prompt": f"<|user|>{number}", "completion": f"{number} it is" * (1 + number % 3)} for number in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base = {
        "policy": str(place / "policy"),
        "source": str(path),
        "agent": {"prompt": "compact", "embedder": "hash", "max_new_tokens": 12},
        "batch_rows": 5,
        "schedule_steps": 2,
        "eval_tasks": 3,
        "validation_tasks": 3,
        "learning_rate": 1e-2,
        "microbatch_tokens": 64,
    }
    return lambda name: build_config(SFTConfig, {**base, "out": str(place / name)}, name)


@pytest.fixture(scope="module")
def preferring(place):
    """A function: name -> configuration of a run on plain pairs."""
    path = place / "pairs.jsonl"
    lines = [
        {"prompt": f"<|user|>{n}", "chosen": f"{n} it is" * (1 + n % 3), "rejected": f"no {n}" * (1 + n % 2)}
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base = {"policy": str(place / "policy"), "data": str(path), "batch_pairs": 3, "schedule_steps": 2}
    base |= {"learning_rate": 1e-2, "microbatch_tokens": 64}
    return lambda name: build_config(PreferenceConfig, {**base, "out": str(place / name)}, name)


@pytest.fixture(scope="module")
def judge() -> Iterator[HostileServer]:
    with HostileServer(whimsical) as server:
        yield server


@pytest.fixture(scope="module")
def two(place, run, imitation, preferring, judge) -> dict:
    """What two processes found; beside it, what one did before and after them lies in `place`."""
    train(run("whole 2", **VALUES))
    for changes in ({}, LORA):
        train(run(f"whole {len(changes)}", **changes))
        shutil.copytree(place / f"whole {len(changes)}", place / f"1-2 {len(changes)}", symlinks=True)
        shutil.rmtree(place / f"1-2 {len(changes)}" / "checkpoints" / "step-2")
        (place / f"1-2 {len(changes)}" / "summary.json").unlink()
    runs = [
        run("2-1 ddp", max_steps=1),
        run("2-1 fsdp", max_steps=1, sharding="fsdp", **LORA),
        run("2-1 values", max_steps=1, sharding="fsdp", **VALUES),
        run("1-2 0", sharding="fsdp"),
        run("1-2 1", **LORA),
        imitation("imitation of two"),
        preferring("pairs of two"),
        run("dpo of two", algorithm="dpo"),
        run("erl of two", **ERL),
    ]
    judged = {"reward": {"metric": "judge", "judge": {"judges": [judge.name], "endpoint": {"retries": 0}}}}
    judged |= {"overlap": 2, "minibatches": 2, "beta": 0.1}
    train(run("parts of one", **judged))
    runs.append(run("parts of two", **judged))
    judged |= {"overlap": 3, "minibatches": 1, "max_steps": 1}
    runs.append(run("parts of a task", **judged))
    train(run("parts of a task of one", **judged))
    plan = {"runs": runs, "interrupted": run("interrupted", sharding="fsdp", save_every=100, validate_every=100)}
    (place / "plan.pickle").write_bytes(pickle.dumps(plan))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[2] / "support" / "two_processes.py"), str(place)],
            env={**os.environ, **shared, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=280)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert (place / "found.pickle").exists(), "\n".join(said)
    found = pickle.loads((place / "found.pickle").read_bytes())
    return {**found, "said": said, "codes": [process.returncode for process in processes]}


def distance(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, all tensors together."""
    assert one.keys() == two.keys()
    apart = sum(float((one[name].double() - two[name].double()).square().sum()) for name in one)
    return (apart / sum(float(value.double().square().sum()) for value in two.values())) ** 0.5


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_gradient_of_one(two, name):
    ours, one = two["cases"][name], measure(CASES[name])
    assert distance(ours["gradient"], one["gradient"]) < 1e-6
    assert ours["norm"] == pytest.approx(one["norm"], rel=1e-5)
    for key in ("forward", "reference"):
        if key in one:
            assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(ours[key], one[key], strict=True))
    for a, b in zip(ours.get("values", []), one.get("values", []), strict=True):
        assert np.allclose(a, b, atol=1e-4) and np.abs(a).max() > 1e-3
    assert ours["stats"] == pytest.approx(one["stats"], rel=1e-4, abs=1e-6)
    assert distance(ours["weights"], one["weights"]) < 1e-5
    assert distance(ours["optimizer"], one["optimizer"]) < 1e-5
    for before, after in zip(ours["forward"], ours["again"], strict=True):
        assert not np.allclose(before, after, atol=1e-3), "the next pass has the new weights"
    assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(ours["again"], one["again"], strict=True))


def test_shards_get_the_weights_that_are_loaded(two):
    start, after, loaded = two["loaded"]
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(loaded, start, strict=True))
    assert not any(np.allclose(a, b, atol=1e-3) for a, b in zip(after, start, strict=True))


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION"])
def test_settings_of_accelerate_s_own_are_refused(monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "bf16" if "MIXED" in name else "true")
    with pytest.raises(ConfigError, match=rf"{name}=.*leave it out and set (sharding|dtype)="):
        join_world("cpu")


def test_a_model_without_layers_is_not_sharded():
    with pytest.raises(ConfigError, match="set sharding=ddp"):
        World(0, 2).wrap_module(torch.nn.Linear(2, 2), ["Block"], "fsdp")


def test_work_is_dealt_and_gathered_in_order(two):
    assert two["everybody"] == [0, 1]
    for first, second in zip(two["blocks"][:4], two["blocks"][4:], strict=True):
        (at, mine), (next_at, theirs) = first, second
        assert at == 0 and next_at == len(mine) and [*mine, *theirs] == list(range(len(mine) + len(theirs)))
        assert abs(len(mine) - len(theirs)) <= 1
    parts = [[5, 6], [4], [3], [2], [1, 0]]
    dealt = [World(rank, 2).assign_microbatches(parts) for rank in (0, 1)]
    assert dealt[0] == [([5, 6], True), ([3], True), ([1, 0], True)]
    assert dealt[1] == [([4], True), ([2], True), ([0], False)]
    assert SINGLE_PROCESS.assign_microbatches(parts) == [(part, True) for part in parts]
    assert World(1, 2).assign_microbatches([]) == []


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{step}"
    found = load_file(folder / "optimizer.safetensors")
    del found["rng/torch"]
    for head in folder.glob("value_head.safetensors"):
        found |= load_file(head)
    return {**load_file(next(folder.glob("*model.safetensors"))), **found}


@pytest.mark.parametrize(
    "name, changes",
    [("2-1 ddp", {}), ("2-1 fsdp", LORA), ("2-1 values", VALUES), ("1-2 0", {}), ("1-2 1", LORA)],
)
def test_runs_go_on_with_another_number_of_processes(two, run, place, name, changes):
    """Steps of two processes differ from one's by the order of sums alone."""
    whole, config = place / f"whole {len(changes)}", run(name, **changes)
    tolerance = 10 * TOLERANCE if changes else TOLERANCE
    if name.startswith("2-1"):
        assert distance(weights(config.out, 1), weights(whole, 1)) < tolerance
        train(config)
    assert distance(weights(config.out, 2), weights(whole, 2)) < tolerance
    assert distance(weights(whole, 2), weights(whole, 1)) > 1e-2


def test_two_processes_learn_in_parts_as_one(two, place):
    assert distance(weights(place / "parts of two", 2), weights(place / "parts of one", 2)) < TOLERANCE
    assert distance(weights(place / "parts of two", 2), weights(place / "parts of two", 1)) > 1e-2


def test_parts_of_a_task_are_dealt_in_turn(two, place):
    """Three parts of one task each; without turns all would be the last process's."""
    assert two["sampled"]["parts of a task"] == [[0, 1, 0], [1, 0, 1]]
    ours, one = place / "parts of a task", place / "parts of a task of one"
    assert distance(weights(ours, 1), weights(one, 1)) < TOLERANCE
    shown = [(run / "trajectories.jsonl").read_text() for run in (ours, one)]
    assert shown[0] == shown[1]


def test_two_processes_reflect_as_one(two, run):
    """Second attempts, with states and tries, go from one process to the other, and both keep the same advice."""
    of_one = run("erl of one", **ERL)
    summary = train(of_one)
    first, second = two["advice"]["erl of two"]
    assert first == second and len(first) == 2 and first[-1]["reflections"] != first[0]["reflections"] != []
    states = [
        json.loads((config.out / "checkpoints" / "step-2" / "state.json").read_text())["algorithm"]
        for config in (of_one, run("erl of two", **ERL))
    ]
    assert states[0] == states[1] == first[-1]
    assert distance(weights(run("erl of two", **ERL).out, 2), weights(of_one.out, 2)) < 1e-4
    found = json.loads((run("erl of two", **ERL).out / "summary.json").read_text())
    assert found["after"]["accuracy"] == summary["after"]["accuracy"]


def test_two_processes_imitate_as_one(two, imitation):
    of_two, of_one = imitation("imitation of two"), imitation("imitation of one")
    summary = train(of_one)
    assert distance(weights(of_two.out, 2), weights(of_one.out, 2)) < 1e-4
    assert (of_two.out / "rows.jsonl").read_text() == (of_one.out / "rows.jsonl").read_text()
    found = json.loads((of_two.out / "summary.json").read_text())
    for when in ("before", "after"):
        assert found[when]["validation_loss"] == pytest.approx(summary[when]["validation_loss"], rel=1e-4)
        assert found[when]["accuracy"] == summary[when]["accuracy"]


def test_two_processes_prefer_as_one(two, preferring, run):
    for of_two, of_one in (
        (preferring("pairs of two"), preferring("pairs of one")),
        (run("dpo of two", algorithm="dpo"), run("dpo of one", algorithm="dpo")),
    ):
        summary = train(of_one)
        assert distance(weights(of_two.out, 2), weights(of_one.out, 2)) < 1e-4
        found = json.loads((of_two.out / "summary.json").read_text())
        assert {k: v for k, v in found["after"].items() if isinstance(v, float)} == pytest.approx(
            {k: v for k, v in summary["after"].items() if isinstance(v, float)}, rel=1e-4
        )


def test_a_ctrl_c_in_one_process_stops_both_with_a_checkpoint(two, place):
    assert two["interrupted"] == [0, 1]
    assert {path.name for path in (place / "interrupted" / "checkpoints").glob("step-*")} == {"step-0", "step-1"}


def test_errors_end_all_processes(two):
    assert two["refused"] == ["told by the main one"] * 2
    assert two["codes"][1] == 1 and "TrainingError: only here" in two["said"][1]
    assert two["codes"][0] != 0
