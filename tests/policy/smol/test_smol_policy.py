"""`load_policy("smol")` and "smol-base", on a random Llama in a cache of its own and a random adapter."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_llama, tiny_tokenizer

from memalpha.agent.agent import MemoryAgent
from memalpha.agent.policy_check import check_policy
from memalpha.config import AgentConfig
from memalpha.config.groups import LoadingConfig
from memalpha.errors import PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.smol import base_model
from memalpha.policy.smol.base_model import GGUF_SHA256, base_folder, write_base_record
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.systems import SystemSettings, load_system
from memalpha.store.embedding import load_embedder
from memalpha.store.store import MemoryStore
from memalpha.train.api import train
from memalpha.train.plan import ModelShape
from memalpha.types import Chunk, Question, SpeakerTurn, Task

IDS = torch.arange(24)[None] * 7 % 200
RUN = {
    "world": {"preset": "demo"},
    "tasks": 1,
    "max_steps": 1,
    "evaluate": False,
    "validation_tasks": 1,
    "batch_rows": 2,
    "lora": {"r": 2},
}


def logits(policy: object) -> torch.Tensor:
    assert isinstance(policy, TransformersPolicy)
    with torch.no_grad():
        return policy.model(input_ids=IDS).logits


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """A random Llama in the place of SmolLM2, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tiny_llama()
    model.generation_config.eos_token_id = 0
    model.save_pretrained(base_folder())
    tiny_tokenizer().save_pretrained(base_folder())
    write_base_record(base_folder())
    return base_folder()


@pytest.fixture
def adapter(base, tmp_path, monkeypatch) -> Path:
    """A random adapter in the place of the trained one; its logits over the base lie beside it."""
    folder = tmp_path / "package" / "smol"
    monkeypatch.setattr(base_model, "adapter_folder", lambda: folder)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    tuned = peft.get_peft_model(tiny_llama(), config)
    tuned.peft_config["default"].base_model_name_or_path = "smol-base"
    tuned.peft_config["default"].save_pretrained(str(folder))
    tensors = peft.get_peft_model_state_dict(tuned, save_embedding_layers=False)
    save_file(
        {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    write_record(folder)
    return folder


def write_record(folder: Path, **changes: object) -> None:
    record = {"gguf_sha256": GGUF_SHA256, "memalpha_prompt": "compact", "memalpha_form": "lines", **changes}
    (folder / "memalpha.json").write_text(json.dumps(record))


def merged_by_hand(folder: Path) -> dict[str, torch.Tensor]:
    """Return the base's weights plus (alpha / r) B A in float64."""
    weights = {name: tensor.double() for name, tensor in load_policy("smol-base").model.state_dict().items()}
    factors = load_file(folder / "adapter_model.safetensors")
    for name, factor in factors.items():
        if name.endswith("lora_B.weight"):
            other = factors[name.replace("lora_B", "lora_A")]
            target = name.removeprefix("base_model.model.").replace("lora_B.weight", "weight")
            weights[target] += 8 / 4 * factor.double() @ other.double()
    return weights


def test_without_the_base_nothing_is_loaded_and_nothing_downloaded(adapter, base, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    for name in ("smol", "smol-base"):
        with pytest.raises(PolicyError, match=r"'smol-base' .* is not on this machine .*memalpha fetch smol"):
            load_policy(name)
    assert not (tmp_path / "empty").exists()


def test_without_a_trained_adapter_it_says_so(base, tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "adapter_folder", lambda: tmp_path / "package" / "smol")
    with pytest.raises(PolicyError, match=r"no trained adapter for 'smol' .*'smol-base', the untrained model"):
        load_policy("smol")
    assert torch.allclose(logits(load_policy("smol-base")), tiny_llama()(input_ids=IDS).logits, atol=1e-5)


def test_the_adapter_is_merged_and_brings_its_prompt_style(adapter):
    policy = load_policy("smol")
    assert (policy.name, policy.prompt, policy.form) == ("smol", "compact", "lines")
    expected = merged_by_hand(adapter)
    for name, tensor in policy.model.state_dict().items():
        assert torch.allclose(tensor.double(), expected[name], atol=1e-6), name
    assert not policy.quotes
    write_record(adapter, memalpha_quotes=True)
    assert load_policy("smol").quotes
    untrained = load_policy("smol-base")
    assert (untrained.name, untrained.prompt, untrained.form) == ("smol-base", "full", "native")
    assert not torch.allclose(logits(policy), logits(untrained), atol=1e-2)
    system = load_system("smol")
    assert system.policy.form == "lines"
    result = check_policy(load_policy("smol", device="meta"), AgentConfig(max_new_tokens=64))
    assert (result.format, result.calls_read_back, result.problems) == ("lines", True, ())


def test_an_agent_takes_the_sizes_of_the_rows_unless_it_is_given_others(adapter):
    write_record(adapter, memalpha_sizes={"view_tokens": 90, "max_new_tokens": 4, "chunk_tokens": 20})
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent("smol", store, AgentConfig(max_new_tokens=3))
        assert (agent.config.view_tokens, agent.config.max_new_tokens) == (90, 3)
        lines = tuple(SpeakerTurn(speaker="Ana", text=f"{number} " + "la " * 20) for number in range(3))
        agent.read(Chunk(turns=lines, timestamp="2025-01-10"))
        agent.read("short")
        agent.read(Chunk(text=" "))
        agent.read("One sentence. " * 12)
        assert agent.chunks_read == 3 + 1 + 1 + 3
        assert list(agent.stream([Chunk(text="One sentence. " * 6)])) == []
        assert agent.chunks_read == 10
        long = Task(id="t", chunks=(Chunk(turns=lines),), questions=(Question(id="q", question="What?"),))
        settings = SystemSettings(500, 4, load_embedder("hash"), AgentConfig(max_new_tokens=3))
        assert len(evaluate(agent, [long]).groups[0].trajectories[0].turns) == 3, "an evaluation reads the same parts"
        retrievals = load_system("smol").retrieve([long], settings)
        assert len(retrievals.groups[0].task.chunks) == 3 and retrievals.by_task[0][0].question is long.questions[0]


def test_a_plan_reads_the_style_of_adapters(adapter):
    shape = ModelShape("smol", "float32", LoadingConfig())
    assert (shape.policy.prompt, shape.policy.form, shape.policy.name) == ("compact", "lines", "smol")


def test_another_base_is_refused_by_name(adapter, base, tmp_path):
    config = json.loads((adapter / "adapter_config.json").read_text())
    other = tmp_path / "other"
    tiny_llama().save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(other)}))
    with pytest.raises(PolicyError, match=rf"belongs to .*b179c9523d0e.*{other}' does not record .*'smol-base'"):
        load_policy("smol")
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for changes, message in (
        ({"gguf_sha256": "f" * 64}, r"belongs to .*ffffffffffff.* and 'smol-base' was made from b179c9523d0e"),
        ({"memalpha_form": "haiku"}, r"memalpha_form 'haiku' .* is none of native, hermes, lines"),
        ({"memalpha_sizes": {"view_tokens": "256"}}, r"memalpha_sizes .* numbers of tokens under view_tokens"),
    ):
        write_record(adapter, **changes)
        with pytest.raises(PolicyError, match=message):
            load_policy("smol")
    (adapter / "memalpha.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"memalpha\.json lacks 'gguf_sha256'"):
        load_policy("smol")


def test_a_damaged_base_is_refused(adapter, base):
    with (base / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    for name in ("smol", "smol-base"):
        with pytest.raises(PolicyError, match=r"model\.safetensors is damaged .*--force"):
            load_policy(name)


@pytest.mark.parametrize(("name", "agent"), [("smol", {}), ("smol-base", {"prompt": "compact", "form": "lines"})])
def test_a_run_trains_from_it_and_resumes(adapter, tmp_path, name, agent):
    out = tmp_path / "run"
    agent = {"max_new_tokens": 300, **agent}
    settings = {**RUN, "policy": name, "out": out, "agent": agent}
    train("sft", **settings)
    step = out / "checkpoints" / "step-1"
    assert json.loads((step / "adapter_config.json").read_text())["base_model_name_or_path"] == name
    first = load_policy(out)
    assert (first.prompt, first.form) == ("compact", "lines")
    assert not torch.equal(logits(first), logits(load_policy(name)))
    assert train("sft", **{**settings, "max_steps": 2})["steps"] == 2
