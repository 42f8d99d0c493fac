"""Directories that hold a LoRA adapter: the base is found, the adapter merged, and what is wrong is named."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import save_file
from tiny import tiny_model, tiny_policy
from transformers import AutoModelForCausalLM

from memalpha.cli import main
from memalpha.errors import PolicyError
from memalpha.policy.load import absolute_policy_name, load_policy
from memalpha.policy.transformers import TransformersPolicy

IDS = torch.arange(24)[None] * 7 % 200


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def adapter(folder: Path, base: str | Path, model, seed: int = 1, rank: int = 4) -> torch.Tensor:
    """Write a random adapter for `model` with `base` as its base; returns the logits of both together."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=rank, lora_alpha=3.0, target_modules="all-linear", init_lora_weights=False)
    tuned = peft.get_peft_model(model, config)
    tuned.peft_config["default"].base_model_name_or_path = str(base)
    tuned.peft_config["default"].save_pretrained(str(folder))
    tensors = peft.get_peft_model_state_dict(tuned, save_embedding_layers=False)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return logits(tuned)


@pytest.fixture
def whole(tmp_path) -> Path:
    policy = tiny_policy()
    policy.model.config.memalpha_prompt = "compact"
    for part in (policy.model, policy.tokenizer):
        part.save_pretrained(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_chain_of_adapters_is_merged_in_order(whole, tmp_path, recwarn):
    first = adapter(tmp_path / "one", whole, tiny_model())
    one = load_policy(tmp_path / "one")
    assert isinstance(one, TransformersPolicy) and one.name == str(tmp_path / "one")
    assert torch.allclose(logits(one.model), first, atol=1e-4)
    assert not torch.allclose(logits(one.model), logits(tiny_model()), atol=1e-2)
    assert all(parameter.requires_grad for parameter in one.model.parameters()), "it can be trained further, whole"
    assert "lora" not in " ".join(one.model.state_dict())
    second = adapter(tmp_path / "two", tmp_path / "one", one.model, seed=2, rank=2)
    two = load_policy(tmp_path / "two")
    assert torch.allclose(logits(two.model), second, atol=1e-4)
    assert two.prompt == "compact", "the base's style"
    assert not [warning for warning in recwarn if "peft" in str(warning.message).lower()]


def test_an_adapter_of_a_shipped_policy(tmp_path):
    model = load_policy("tiny").model
    together = adapter(tmp_path, "tiny", model)
    assert torch.allclose(logits(load_policy(tmp_path).model), together, atol=1e-4)


def test_its_own_tokenizer_goes_first(whole, tmp_path):
    adapter(tmp_path / "one", whole, tiny_model())
    tokenizer = tiny_policy().tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}!"
    tokenizer.save_pretrained(tmp_path / "one")
    policy = load_policy(tmp_path / "one")
    assert policy.render([{"role": "user", "content": "a"}]) == tokenizer("a!")["input_ids"]


def test_what_is_wrong_with_an_adapter_is_named(whole, tmp_path):
    folder = tmp_path / "one"
    adapter(folder, whole, tiny_model())
    config = json.loads((folder / "adapter_config.json").read_text())

    def rewrite(**changes):
        (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))

    def refused(message, name=folder):
        with pytest.raises(PolicyError, match=message):
            load_policy(name)

    for changes, message in (
        ({"base_model_name_or_path": str(tmp_path / "gone")}, r"one holds a LoRA adapter for .*gone.*no policy at"),
        ({"base_model_name_or_path": None}, r"adapter_config\.json: base_model_name_or_path is .* another policy"),
        ({"base_model_name_or_path": str(folder)}, r"config\.json: base_model_name_or_path is .* another policy"),
        ({"r": 3}, "cannot merge the LoRA adapter"),
        ({"target_modules": ["q_proj"]}, r"not those that adapter_config\.json asks for"),
        ({"peft_type": "IA3"}, "LoRA"),
    ):
        rewrite(**changes)
        refused(message)
    (folder / "adapter_config.json").write_text("{")
    refused(r"adapter_config\.json does not name the adapter's base")
    rewrite()
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    refused("cannot merge the LoRA adapter")
    (folder / "adapter_model.safetensors").unlink()
    refused("cannot merge the LoRA adapter")
    shutil.rmtree(folder)
    refused("no policy at")
    refused("policy '': name a policy: add_all", "")


def run(monkeypatch, capsys, *words: object) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["memalpha", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


def test_merge_writes_a_plain_directory_and_no_other(whole, tmp_path, monkeypatch, capsys):
    together = adapter(tmp_path / "one", whole, tiny_model())
    out = tmp_path / "made" / "here"
    code, said, _ = run(monkeypatch, capsys, "merge", tmp_path / "one", out)
    assert code in (0, None) and str(out) in said and "model.safetensors" in said
    assert not [path.name for path in out.iterdir() if "adapter" in path.name]
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(out)), together, atol=1e-4)
    merged = load_policy(out)
    assert isinstance(merged, TransformersPolicy) and merged.prompt == "compact"
    code, _, said = run(monkeypatch, capsys, "merge", tmp_path / "one", out)
    assert code == 2 and "is there already" in said
    (tmp_path / "file").write_text("mine")
    assert run(monkeypatch, capsys, "merge", whole, tmp_path / "file")[0] == 2
    assert run(monkeypatch, capsys, "merge", "scripted:oracle", tmp_path / "script")[0] == 2
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, capsys, "merge", whole, tmp_path / "empty", "--json")[0] in (0, None)
    assert (tmp_path / "empty" / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "made", "one", "whole"]


def test_a_directory_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-3").mkdir()
    (tmp_path / "best").symlink_to("step-3")
    assert absolute_policy_name("best") == str((tmp_path / "step-3").resolve())
    (tmp_path / "tiny").mkdir()
    assert [absolute_policy_name(name) for name in ("tiny", "owner/name")] == ["tiny", "owner/name"]
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best").symlink_to(tmp_path / "step-3")
    assert absolute_policy_name("run") == str((tmp_path / "step-3").resolve())
