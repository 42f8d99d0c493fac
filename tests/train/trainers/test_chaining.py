"""`init_from`: a run starts from another's best checkpoint, whatever either learns; what cannot be is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from run_kinds import pair_rows, small_config, write_lines
from runs import same
from safetensors.torch import load_file

from memalpha.config import (
    PreferenceConfig,
    SFTConfig,
    TrainConfig,
    build_config,
    expand_short_names,
    merge,
    training_config,
)
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.model_files import weights_fingerprint
from memalpha.train.api import train
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.trainer import resolve_init_from


@pytest.fixture
def prefs(tmp_path) -> Path:
    return Path(write_lines(tmp_path / "pairs.jsonl", pair_rows()[:6]))


@pytest.fixture(scope="module")
def supervised(policy_path, tmp_path_factory) -> Path:
    """A supervised run of two steps, whose best checkpoint is its first: the link says so, not the number."""
    folder = tmp_path_factory.mktemp("supervised")
    train(small_config(SFTConfig, policy_path, folder, schedule_steps=2, save_every=1))
    RunDirectory(folder / "run").link_best(1)
    return folder / "run"


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_copy_whose_links_became_folders_goes_on(supervised, tmp_path, is_alone):
    copy = shutil.copytree(supervised, tmp_path / "copy")
    best, step = copy / "checkpoints/best", copy / "checkpoints/step-1"
    if is_alone:
        shutil.rmtree(step)  # then `best` holds the only weights
    RunDirectory(copy).link_best(1)
    assert best.readlink().name == "step-1" and same(weights(best), weights(supervised / "checkpoints/step-1"))


@pytest.fixture
def first(supervised, tmp_path) -> Path:
    """A copy of the supervised run."""
    return shutil.copytree(supervised, tmp_path / "sft", symlinks=True)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def after(run: Path, prefs: Path, **changes) -> PreferenceConfig:
    base = {"out": run, "data": prefs, "batch_pairs": 2, "learning_rate": 1e-2, "save_every": 1, "warmup_steps": 0}
    return build_config(PreferenceConfig, {**base, **changes}, "test")


def test_supervised_then_preferences_then_reinforcement(small, first, prefs, tmp_path):
    second = tmp_path / "second"
    summary = train(after(second, prefs, init_from=str(first)))
    assert same(weights(second / "checkpoints/step-0"), weights(first / "checkpoints/step-1"))
    assert not same(weights(second / "checkpoints/step-0"), weights(first / "checkpoints/step-2"))
    started = weights_fingerprint(load_policy(first / "checkpoints/step-1").model)
    assert summary["started_from"] == started
    assert json.loads((second / "checkpoints/step-2/state.json").read_text())["started_from"] == started
    recorded = yaml.safe_load((second / "config.yaml").read_text())
    assert (recorded["init_from"], recorded["policy"]) == (str(first), f"{first}/checkpoints/step-1")
    third = tmp_path / "third"
    changes = {"init_from": str(second), "out": str(third), "schedule_steps": 1, "beta": 0.1}
    train(small_from(small, **changes))
    best = (second / "checkpoints/best").resolve()
    assert same(weights(third / "checkpoints/step-0"), weights(best))
    [line] = [json.loads(line) for line in (third / "metrics.jsonl").read_text().splitlines()]
    assert line["reference_kl"] < 1.0, "the reference is the start, not the run before it"


def small_from(small, **changes) -> TrainConfig:
    """The small run's settings without its policy."""
    settings = small().model_dump(mode="json", exclude_unset=True)
    settings.pop("policy")
    return build_config(TrainConfig, merge(settings, expand_short_names(changes, TrainConfig)), "test")


def test_it_goes_on_from_the_checkpoint_it_began_with(first, prefs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(after(whole, prefs, init_from=str(first)))
    train(after(parts, prefs, init_from=str(first), max_steps=1))
    RunDirectory(first).link_best(2)  # the run before it went on
    train(after(parts, prefs, init_from=str(first), max_steps=2))
    first = first.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"started from other weights than policy=.*step-2 holds now"):
        train(parts, init_from=str(first), max_steps=3)
    RunDirectory(first).link_best(1)
    train(parts, init_from=str(first), max_steps=3)
    assert same(weights(whole / "checkpoints/step-3"), weights(parts / "checkpoints/step-3"))
    own = training_config(parts / "config.yaml")
    assert own.policy == f"{first}/checkpoints/step-1" and own.init_from == first
    assert train(own)["steps"] == 3, "a run's own settings are those of the run"


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_adapters_are_merged_into_their_base(first, prefs, tmp_path, lora):
    adapted, then = tmp_path / "adapted", tmp_path / "then"
    train(after(adapted, prefs, init_from=str(first), lora={"r": 2}))
    summary = train(after(then, prefs, init_from=str(adapted), lora=lora))
    merged = load_policy(adapted / "checkpoints/best").model
    assert summary["started_from"] == weights_fingerprint(merged)
    assert summary["before"]["validation_margins"] == 0, "the reference is the merged start"
    if lora is None:
        saved, state = weights(then / "checkpoints/step-0"), merged.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in saved.items())


def test_an_override_of_the_start_replaces_the_other(tmp_path):
    settings = training_config("demo", {"init_from": "runs/sft"})
    assert settings.init_from == Path("runs/sft") and "policy" not in settings.model_fields_set
    again = training_config(settings, {"policy": "babi"})
    assert again.init_from is None and again.policy == "babi"
    with pytest.raises(ConfigError, match=r"starts from the best checkpoint of runs/sft, policy from 'tiny'"):
        training_config("demo", {"init_from": "runs/sft", "policy": "tiny"})


def test_what_is_no_run_is_refused(first, prefs, tmp_path):
    for path in (tmp_path / "nowhere", tmp_path, first / "checkpoints" / "step-1"):
        with pytest.raises(ConfigError, match=r"init_from: .* holds no checkpoint: name the directory of"):
            train(after(tmp_path / "out", prefs, init_from=str(path)))
        assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="is this run's own out"):
        train(after(first, prefs, init_from=str(first)))
    RunDirectory(first).prune_checkpoints(1)
    with pytest.raises(ConfigError, match="names step-1, which is not there"):
        train(after(tmp_path / "out", prefs, init_from=str(first)))


@pytest.mark.parametrize("change", [{"model_type": "gpt2"}, {"hidden_size": 64}, {"num_hidden_layers": 3}], ids=str)
def test_weights_of_another_architecture_are_refused(first, prefs, tmp_path, change):
    path = first / "checkpoints" / "step-1" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change, "layer_types": None}))
    with pytest.raises(PolicyError, match="step-1"):
        train(after(tmp_path / "out", prefs, init_from=str(first)))


def test_a_run_that_names_no_start_has_the_default(tmp_path):
    config = TrainConfig(out=tmp_path / "run")
    assert resolve_init_from(config) == config
