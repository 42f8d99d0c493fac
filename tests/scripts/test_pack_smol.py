"""The shipped adapter holds what was trained: the sum of a chain's adapters, its style and its chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pack_smol
import pytest
import torch
from safetensors.torch import load_file
from tiny_smol import write_random_base

from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.smol import base_model
from memalpha.policy.smol import fetch as fetching
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.api import train

SETTINGS = {
    "world": {"preset": "demo"},
    "tasks": 1,
    "max_steps": 2,
    "schedule_steps": 2,
    "learning_rate": 0.05,
    "evaluate": False,
    "validation_tasks": 1,
    "batch_rows": 2,
}
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}<|assistant|>"


def weights(name: str | Path) -> dict[str, torch.Tensor]:
    policy = load_policy(name)
    assert isinstance(policy, TransformersPolicy)
    return policy.model.state_dict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A folder with a base in its cache, a supervised run with another chat template, and a run from its adapter."""
    folder = tmp_path_factory.mktemp("smol")
    with pytest.MonkeyPatch.context() as patch:
        base = write_random_base(folder / "cache", patch)
        patch.setattr(fetching, "WEIGHTS_SHA256", fetching.weights_sha256(base))
        patch.setattr(base_model, "adapter_folder", lambda: folder / "package" / "smol")
        other = folder / "template"
        shutil.copytree(base, other)
        (other / "chat_template.jinja").write_text(TEMPLATE)
        agent = {"max_new_tokens": 300, "prompt": "compact", "form": "lines"}
        train("sft", **SETTINGS, policy=str(other), out=folder / "first", lora={"r": 2, "lora_alpha": 6}, agent=agent)
        second = {"out": folder / "second", "init_from": folder / "first", "lora": {"r": 3, "layers": 1}}
        train("sft", **SETTINGS, **second, agent={"max_new_tokens": 300})
        yield folder


@pytest.fixture
def chain(folder) -> Path:
    return folder / "second"


@pytest.fixture
def out(folder) -> Path:
    return folder / "package" / "smol"


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_a_chain_of_adapters_becomes_one(chain, out):
    error = pack_smol.pack(chain, out, ["memalpha train a", "memalpha train b"])
    assert 0 < error < 0.01, "bfloat16"
    policy = load_policy("smol")
    assert isinstance(policy, TransformersPolicy)
    trained, untrained = weights(chain), weights("smol-base")
    change = largest_difference(trained, untrained)
    assert change > 1e-3 and largest_difference(policy.model.state_dict(), trained) < 0.01 * change
    assert (policy.prompt, policy.form) == ("compact", "lines")
    assert policy.render([{"role": "user", "content": "a"}]) == policy.tokenizer("<|user|>a<|assistant|>")["input_ids"]
    names = {path.name for path in out.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "memalpha.json"}
    record = json.loads((out / "memalpha.json").read_text())
    assert [run["rows"] for run in record["runs"]] == [4, 4] and record["rank"] == 5
    assert record["runs"][1]["command"] == "memalpha train b"
    tensors = load_file(out / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    ranks = {name.split(".")[4]: len(tensor) for name, tensor in tensors.items() if "lora_A" in name}
    assert ranks == {"0": 2, "1": 5}, "a layer has the ranks of the adapters that change it"


def test_a_packed_adapter_can_be_trained_on_and_packed_again(chain, out, tmp_path):
    pack_smol.pack(chain, out, ["memalpha train a", "memalpha train b"])
    third = tmp_path / "third"
    train("sft", **SETTINGS, policy="smol", out=third, lora={"r": 2}, agent={"max_new_tokens": 300})
    trained = weights(third)
    pack_smol.pack(third, tmp_path / "again", ["", "memalpha train c"])
    shutil.rmtree(out)
    (tmp_path / "again").rename(out)
    assert largest_difference(weights("smol"), trained) < 0.01 * largest_difference(trained, weights("smol-base"))
    runs = json.loads((out / "memalpha.json").read_text())["runs"]
    assert [run.get("command") for run in runs] == ["memalpha train a", "memalpha train b", None, "memalpha train c"]
    assert runs[2]["packed_to_rank"] == 5


def test_a_lower_rank_is_the_best_of_its_rank(chain, out):
    errors = [pack_smol.pack(chain, out, [], rank) for rank in (1, 3, 5)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.01
    torch.manual_seed(0)
    update = pack_smol.Factors(torch.randn(4, 9, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64))
    whole, cut = update.b @ update.a, update.cut(2)
    assert cut.a.shape == (2, 9) and cut.b.shape == (7, 2)
    lost = torch.linalg.svdvals(whole)[2:].square().sum().sqrt()
    assert torch.allclose(torch.linalg.norm(whole - cut.b @ cut.a), lost, atol=1e-12)


def test_eight_bits_take_half_the_bytes(chain, out):
    pack_smol.pack(chain, out, [])
    size = (out / "adapter_model.safetensors").stat().st_size
    error = pack_smol.pack(chain, out, [], float8=True)
    assert 0 < error < 0.06, "3 mantissa bits in each factor"
    tensors = load_file(out / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float8_e4m3fn}
    assert (out / "adapter_model.safetensors").stat().st_size < 0.75 * size
    trained = weights(chain)
    assert largest_difference(weights("smol"), trained) < 0.1 * largest_difference(trained, weights("smol-base"))


def test_what_cannot_be_shipped_is_refused(chain, tmp_path, monkeypatch):
    out = tmp_path / "smol"
    with pytest.raises(PolicyError, match="1 commands for 2 runs"):
        pack_smol.pack(chain, out, ["memalpha train"])
    with pytest.raises(PolicyError, match="holds no LoRA adapter"):
        pack_smol.pack("smol-base", out, [])
    config = chain / "checkpoints" / "best" / "adapter_config.json"
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "use_dora": True}))
    with pytest.raises(PolicyError, match="use_dora cannot be packed"):
        pack_smol.pack(chain, out, [])
    config.write_text(text)
    monkeypatch.setattr(pack_smol, "MAX_BYTES", 1000)
    with pytest.raises(PolicyError, match=r"rank 5 takes .* more than 1,000: cut it with --rank"):
        pack_smol.pack(chain, out, [])
    monkeypatch.setattr(fetching, "WEIGHTS_SHA256", "0")
    with pytest.raises(PolicyError, match="holds other weights than 'smol-base'"):
        pack_smol.pack(chain, out, [])
    assert not out.exists() and not list(out.parent.glob(".*"))
