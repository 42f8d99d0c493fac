"""What every kind of run promises, one run of each: it resumes bit for bit, ends once, and refuses other settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_kinds import LEVELS, python_inputs, small_config
from runs import interrupted, lines
from safetensors.torch import load_file
from torch import equal

from memalpha.config import LearnerConfig, PreferenceConfig, RewardModelConfig, SFTConfig, TextConfig, TrainConfig
from memalpha.errors import CheckpointError
from memalpha.train.api import train

ERL = {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8}
KINDS: dict[str, tuple[type[LearnerConfig], dict[str, Any]]] = {
    "memory": (TrainConfig, {}),
    "memory, chunk groups": (
        TrainConfig,
        {"groups": "chunk", "conversation_share": 0.5, "tasks_per_step": 2, "target_kl": 1e-4, "staleness": 1},
    ),
    "memory, credit per call": (
        TrainConfig,
        {"reward": {"credit": "calls"}, "group_size": 4, "staleness": 1, "keep_tokens": True},
    ),
    "memory, two epochs": (
        TrainConfig,
        {"beta": 0.5, "sample_dtype": "float64", "num_iterations": 2, "questions_per_task": 2},
    ),
    "memory, rloo, lora": (
        TrainConfig,
        {"algorithm": "rloo", "lora": {"r": 2}, "beta": 0.5, "kl_in": "reward", "entropy_coef": 0.01},
    ),
    "memory, bfloat16": (
        TrainConfig,
        {"dtype": "bfloat16", "sample_dtype": "bfloat16", "old_logprobs": "recomputed", "importance_cap": 2.0},
    ),
    "memory, ppo": (
        TrainConfig,
        {"algorithm": "ppo", "beta": 0.5, "kl_in": "reward", "ppo": {"kl_target": 0.1, "kl_horizon": 9, "lam": 0.9}},
    ),
    "memory, dpo": (
        TrainConfig,
        {"algorithm": "dpo", "dpo": {"beta": 0.2}, "num_iterations": 2, "tasks_per_step": 3, "group_size": 3},
    ),
    "memory, erl": (
        TrainConfig,
        {"algorithm": "erl", "keep_tokens": True, "erl": {**ERL, "memory_retrieval": "similarity", "memory_top_k": 1}},
    ),
    "text": (TextConfig, {"curriculum": {"order": list(LEVELS), "threshold": 0.3, "window": 8}}),
    "text, erl": (TextConfig, {"algorithm": "erl", "erl": {"reflection_tokens": 3}}),
    "text, resampled": (TextConfig, {"resample_flat": 2, "group_size": 2}),
    "sft": (SFTConfig, {}),
    "sft, best rollouts": (
        SFTConfig,
        {"source": "best", "agent": {"max_new_tokens": 24}, "group_size": 3, "rounds": 2},
    ),
    "preferences": (PreferenceConfig, {}),
    "preferences, lora": (PreferenceConfig, {"lora": {"r": 4}}),
    "reward model": (RewardModelConfig, {"pooling": "attention"}),
    "reward model, lora": (RewardModelConfig, {"pooling": "attention", "lora": {"r": 4}}),
}
TRAINERS = ("memory, erl", "text", "sft", "preferences", "reward model")
"""One kind of each trainer; the first keeps a state of its own."""


@dataclass(frozen=True)
class Whole:
    """A run in one go, and how to start another like it."""

    kind: type[LearnerConfig]
    changes: dict[str, Any]
    policy: Path
    folder: Path
    summary: dict[str, Any]

    def config(self, folder: Path, **more: Any) -> Any:
        return small_config(self.kind, self.policy, self.folder, **{**self.changes, "out": str(folder / "run"), **more})

    @property
    def out(self) -> Path:
        return self.folder / "run"


@pytest.fixture(scope="module")
def whole(request, policy_path, ending_policy, tmp_path_factory):
    kind, changes = KINDS[request.param]
    policy = ending_policy if changes.get("source") == "best" else policy_path
    folder = tmp_path_factory.mktemp("whole")
    config = small_config(kind, policy, folder, **changes)
    return Whole(kind, changes, policy, folder, train(config, **python_inputs(config)))


def tensors(run: Path, step: int) -> dict[str, Any]:
    """Return every tensor of a checkpoint: weights, heads, optimizer."""
    files = sorted((run / "checkpoints" / f"step-{step}").glob("*.safetensors"))
    return {f"{file.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_end(one: Path, two: Path) -> None:
    """Assert that weights, optimizer and the algorithm's state after the last step agree bit for bit."""
    first, second = (tensors(run, 4) for run in (one, two))
    assert first.keys() == second.keys() and any("optimizer" in name for name in first)
    assert [name for name in first if not equal(first[name], second[name])] == []
    states = [json.loads((run / "checkpoints/step-4/state.json").read_text()) for run in (one, two)]
    for key in ("algorithm", "curriculum"):
        assert states[0].get(key) == states[1].get(key)


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "whole",
    [kind if kind in TRAINERS else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],  # CI runs all
    indirect=True,
)
def test_stopping_and_resuming_equals_one_go(whole, tmp_path):
    parts = whole.config(tmp_path)
    summaries = [train(parts.model_copy(update={"max_steps": stop}), **python_inputs(parts)) for stop in (1, 3, None)]
    assert summaries[-1].get("tokens") == whole.summary.get("tokens")
    assert_same_end(whole.out, parts.out)
    one, two = (lines(run / "metrics.jsonl") for run in (whole.out, parts.out))
    assert [line["step"] for line in one] == [line["step"] for line in two] == [0, 1, 2, 3]
    assert ("resampled" in one[0]) == ("resample_flat" in whole.changes)
    assert sum(line["grad_norm"] > 0 for line in one) > 1, "steps on both sides of a stop learnt something"
    for whole_line, line in zip(one, two, strict=True):  # an early stop validates, too
        assert {name: line[name] for name in whole_line if "second" not in name} == {
            name: value for name, value in whole_line.items() if "second" not in name
        }
    for rows in whole.out.glob("*.jsonl"):
        if rows.name not in ("metrics.jsonl", "starts.jsonl"):  # which hold times and starts
            assert rows.read_bytes() == (parts.out / rows.name).read_bytes(), rows.name


@pytest.mark.parametrize("whole", ("memory, erl", "preferences"), indirect=True)  # a loop that all trainers share
def test_ctrl_c_leaves_a_checkpoint_that_resumes(whole, tmp_path, capfd):
    stopped = whole.config(tmp_path, save_every=100, validate_every=100)
    interrupted(stopped, **python_inputs(stopped))
    assert "resumes it" in capfd.readouterr().err
    assert {path.name for path in (stopped.out / "checkpoints").glob("step-*")} - {"step-0"}
    assert not (stopped.out / "summary.json").exists()
    starts = stopped.out / "starts.jsonl"
    starts.write_bytes(starts.read_bytes()[:-9])  # as a full disk may leave it
    (stopped.out / "metrics.jsonl").unlink()
    train(stopped, **python_inputs(stopped))
    told = capfd.readouterr().err
    assert "step 4/4" in told and "metrics.jsonl holds 0 of " in told
    assert_same_end(whole.out, stopped.out)
    assert len(lines(starts)) == 1


@pytest.mark.parametrize("whole", TRAINERS, indirect=True)
def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(whole, capfd):
    before, config = contents(whole.out), whole.config(whole.folder)
    assert train(config, **python_inputs(config)) == whole.summary
    assert "this run is finished" in capfd.readouterr().err
    other = whole.config(whole.folder, learning_rate=0.5, seed=1)
    with pytest.raises(CheckpointError, match=r"learning_rate: 0\.\d+ there, 0\.5 now.*seed: 0 there, 1 now"):
        train(other, **python_inputs(other))
    after = contents(whole.out)
    assert [path for path in before | after if before.get(path) != after.get(path)] == []


@pytest.mark.parametrize("whole", ("memory, erl", "sft"), indirect=True)
def test_the_seed_decides_the_run(whole, tmp_path):
    other = whole.config(tmp_path, seed=1, max_steps=2)
    train(other, **python_inputs(other))
    first, second = (tensors(run, 2) for run in (whole.out, other.out))
    assert any(not equal(first[name], second[name]) for name in first if "optimizer" not in name)
