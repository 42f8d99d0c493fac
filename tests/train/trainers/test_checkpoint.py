"""Files of a run: what a kill may leave in them, and what is refused."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import save_file

from memalpha.config import training_config
from memalpha.errors import CheckpointError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.model_files import weights_fingerprint
from memalpha.train.api import train
from memalpha.train.trainers.directory import RunDirectory

LINES = [{"step": 0, "text": "one\u2028line"}, {"step": 1, "text": "müde\x85"}, {"step": 2, "text": "\ud800"}]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_lines_are_cut_by_step_whatever_they_hold(tmp_path):
    path = tmp_path / "lines.jsonl"
    RunDirectory(tmp_path).append(path.name, LINES)
    RunDirectory(tmp_path).truncate(path.name, 2)
    assert read(path) == LINES[:2]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES[:2]), encoding="utf-8")
    RunDirectory(tmp_path).truncate(path.name, 5)
    assert read(path) == LINES[:2], "as other writers may have put it: not ASCII"
    RunDirectory(tmp_path).truncate("missing.jsonl", 0)


def test_a_kill_may_leave_any_part_of_the_last_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    whole = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES[:2])
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        RunDirectory(tmp_path).truncate(path.name, 9)
        assert read(path) in (LINES[:1], LINES[:2])
        assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"no": 1}', b'{"step": null}', b"\xff"])
def test_a_bad_line_before_others_is_never_dropped_in_silence(tmp_path, bad):
    path = tmp_path / "lines.jsonl"
    content = b'{"step": 0}\n' + bad + b'\n{"step": 1}\n'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"lines\.jsonl:2: "):
        RunDirectory(tmp_path).truncate(path.name, 9)
    assert path.read_bytes() == content


def test_a_fingerprint_is_of_the_bits_of_the_weights():
    """Runs record it, so its value stays; every bit of a value counts, those of its high bytes as well."""
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).view(2, 3) / 7)
        layer.bias.copy_(torch.tensor([-1.0, 2.5]))
    sums = [
        int(value.numpy().view(np.int16).sum(dtype=np.int64)) for value in (layer.bias.detach(), layer.weight.detach())
    ]
    text = f"bias (2,) {sums[0]}\nweight (2, 3) {sums[1]}\n"
    assert weights_fingerprint(layer) == hashlib.sha256(text.encode()).hexdigest()[:16] == "f2116af042d9dbb6"


def test_pruning_that_was_killed_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    for step in range(4):
        directory.checkpoint(step).mkdir(parents=True)
        (directory.checkpoint(step) / "state.json").touch()

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            directory.prune_checkpoints(1, [1])
    assert directory.saved_steps() == [1, 3]
    directory.prune_checkpoints(1, [1])
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-1", "step-3"}


def test_a_run_directory_is_held_by_one(tmp_path):
    first, second = (RunDirectory(tmp_path / "run") for _ in range(2))
    with first:
        first.lock()
        with pytest.raises(CheckpointError, match=r"in use by another.*another out"):
            second.lock()
    with second:
        second.lock()
    first.lock()


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(24)[None] * 7 % 200).logits


def test_where_adapters_train_a_checkpoint_holds_nothing_else(small, policy_path, tmp_path):
    """Read by peft itself, by load_policy, and as the start of further runs, of adapters or of all weights."""
    first = small(lora={"r": 2}, max_steps=2, group_size=3, sample_dtype="float64")
    train(first)
    folder = RunDirectory(first.out).checkpoint(2)
    assert {path.name for path in folder.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "state.json",
    }
    assert not (folder / "model.safetensors").exists() and not (folder / "config.json").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(policy_path)
    for line in read(first.out / "metrics.jsonl"):
        assert line["mismatch_max"] < 1e-4 < line["ratio_deviation"], "the sampler has the adapters as they are"
    base = load_policy(policy_path).model
    start = logits(base)
    theirs = logits(PeftModel.from_pretrained(base, folder))
    assert not torch.allclose(theirs, start, atol=1e-2)
    ours = load_policy(folder)
    assert torch.allclose(logits(ours.model), theirs, atol=1e-4)

    best = first.out / "checkpoints" / "best"
    second = small(out=str(tmp_path / "second"), policy=str(best), lora={"r": 3}, max_steps=1)
    train(second)
    named = json.loads((RunDirectory(second.out).checkpoint(1) / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == str(best.resolve())
    steps = [logits(load_policy(RunDirectory(second.out).checkpoint(step)).model) for step in (0, 1)]
    assert torch.allclose(steps[0], logits(load_policy(best).model), atol=1e-5), "new adapters change nothing"
    assert not torch.allclose(steps[1], steps[0], atol=1e-3)
    third = small(out=str(tmp_path / "third"), policy=str(second.out / "checkpoints" / "step-1"), max_steps=0)
    train(third)
    assert torch.allclose(logits(load_policy(RunDirectory(third.out).checkpoint(0)).model), steps[1], atol=1e-4)

    with pytest.raises(CheckpointError, match=r"lora\.r: 2 there, None now"):
        train(first.model_copy(update={"lora": None}))
    (first.out / "summary.json").unlink()
    save_file({"other": torch.zeros(1)}, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"weights of .*step-2 cannot be loaded"):
        train(first)
    shutil.rmtree(first.out)
    with pytest.raises(PolicyError, match=r"second.*holds a LoRA adapter for .*step-.*no policy at"):
        load_policy(RunDirectory(second.out).checkpoint(1))


def test_a_run_from_before_a_key_existed_goes_on_with_its_default(tmp_path):
    settings = training_config("demo", {"out": tmp_path, "reader": {"kind": "extractive"}})
    directory = RunDirectory(tmp_path)
    directory.write_settings(settings)
    directory.begin_run()
    kept = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    assert directory.saved_steps()
    del kept["reward"]["content"], kept["reader"]["cite"]
    kept["reader"]["policy"] = "tiny"  # beside a rule, which is refused now
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    directory.check_settings(settings)
    directory.check_settings(training_config(settings, {"stop_below": None}))  # as the message of that stop says
    kept["reward"]["beta"] = 0.5
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    with pytest.raises(CheckpointError, match=r"reward\.beta: 0\.5 there"):
        directory.check_settings(settings)
    kept["reward"]["betas"] = 0.5  # a key that there is not: nothing is made of it
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    with pytest.raises(CheckpointError, match="other settings"):
        directory.check_settings(settings)


def test_logged_steps_without_a_checkpoint_are_never_wiped(tmp_path):
    directory, settings = RunDirectory(tmp_path), training_config("demo", {"out": tmp_path})
    directory.append("metrics.jsonl", [])
    directory.check_settings(settings)  # interrupted before its first step
    directory.append("metrics.jsonl", LINES)
    with pytest.raises(CheckpointError, match=r"holds 3 steps in metrics\.jsonl but no checkpoint: restore"):
        directory.check_settings(settings)
    assert read(tmp_path / "metrics.jsonl") == LINES


class Decorated:
    """A function that is an object, as decorators make them: it has no name."""

    def __call__(self, completions):
        return [0.0] * len(completions)

    def __get__(self, owner, kind=None):
        return self


def test_code_that_is_half_written_or_has_no_name_stops_no_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own_rewards.py"
    path.write_text("def score():\n    return 1\n\n\nclass Score:\n    pass\n")
    own = importlib.import_module("own_rewards")
    path.write_text("def score():\n    return (\n")  # as an editor leaves it while weights are loaded
    code = {"score": own.score, "Score": own.Score, "decorated": Decorated()}
    with RunDirectory(tmp_path / "run") as directory:
        directory.claim(training_config("demo", {"out": tmp_path / "run"}), code=code)
        assert [name for name, hash in directory.origin["code"].items() if hash] == ["decorated"]
