"""Model cards and their upload: what a card says, and what reaches a hub on a real socket."""

from __future__ import annotations

import json
import shutil

import pytest
from hub_server import TOKEN, hub_server
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import disable_progress_bars
from run_kinds import small_config

from memalpha.config import PreferenceConfig, RewardModelConfig, SFTConfig, TextConfig, TrainConfig, build_config
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.train.api import train
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.model_card import find_base, push_run, render_card


@pytest.fixture
def hub(monkeypatch):
    disable_progress_bars()
    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its transfers have a protocol of their own
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture(scope="module")
def run(policy_path, tmp_path_factory):
    """A finished run of two steps that began by a command."""
    settings = small_config(TrainConfig, policy_path, tmp_path_factory.mktemp("runs"), max_steps=2, eval_tasks=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/home/ana/.venv/bin/memalpha", "train", "demo", "out=/home/ana/runs/a b"])
        train(settings)
    return settings.out


def test_every_checkpoint_has_a_card_and_the_best_one_the_results(run):
    summary = json.loads((run / "summary.json").read_text())
    best = f"step-{summary['best_step']}"
    for folder in (run / "checkpoints").glob("step-*"):
        text = (folder / "README.md").read_text()
        card = ModelCard(text)
        assert {"memalpha", "grpo", "agent-memory"} == set(card.data.tags) and card.data.library_name == "transformers"
        assert "memalpha train demo 'out=a b'" in text, "paths are shortened"
        assert "/home/ana" not in text and str(run.parent) not in text.replace(f'MemoryAgent("{run}"', "")
        assert "on the set `synthetic` alone" in text and "Training data `synthetic`: Apache-2.0." in text
        assert ("| before | 0." in text) == ("| after | 0." in text) == (folder.name == best)
        assert ("Held-out results come at the end" in text) == (folder.name != best)
    text = (run / "checkpoints" / "best" / "README.md").read_text()
    assert "eprint={2402.03300}" in text and "@software{memalpha" in text, "the method's paper and memalpha are cited"
    assert "tokenizers " in text and "Python 3." in text
    assert f"| after | {summary['after']['accuracy']:.3f} | " in text and "paired by question: 95 % interval" in text
    assert f"{summary['questions']} questions of 12 held-out tasks" in text


def test_a_run_is_pushed_in_one_commit_without_what_only_resuming_needs(run, hub):
    address, files = push_run(run, "ana/writer", private=True)
    assert address == f"{hub.url}/ana/writer" and len(hub.commits) == 1
    assert hub.repositories["ana/writer"]["visibility"] == "private"
    assert set(hub.files) == {f"ana/writer/{name}" for name in files}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert not any(name.startswith(("optimizer", "state")) for name in files)
    best = run / "checkpoints" / "best"
    assert hub.files["ana/writer/model.safetensors"] == (best / "model.safetensors").read_bytes()
    card = hub.files["ana/writer/README.md"].decode()
    assert 'MemoryAgent("ana/writer"' in card and "# ana/writer" in card and "| after | 0." in card
    (entry,) = ModelCard(card).data.eval_results
    assert entry.metric_name == "accuracy" and entry.dataset_type == "synthetic"


def test_what_cannot_be_pushed_is_refused_with_what_to_do(run, small, tmp_path, hub, monkeypatch):
    settings = small(max_steps=1, eval_tasks=3, lora={"r": 2})
    train(settings)
    assert ModelCard.load(settings.out / "checkpoints" / "step-1" / "README.md").data.library_name == "peft"
    text = (settings.out / "checkpoints" / "best" / "README.md").read_text()
    assert "none: 3 conversations" in text and "3 conversations are too few for an interval" in text
    with pytest.raises(ConfigError, match="which nobody else has: write a merged model"):
        push_run(settings.out, "ana/writer")
    with pytest.raises(ConfigError, match="give OWNER/NAME"):
        push_run(settings.out, "writer")
    with pytest.raises(CheckpointError, match=r"holds no config\.yaml"):
        push_run(tmp_path, "ana/writer")
    with pytest.raises(ConfigError, match="is no name of a repository"):
        push_run(run, "ana/--x")
    monkeypatch.setenv("HF_TOKEN", "hf_read")
    with pytest.raises(PolicyError, match=r"the hub refused ana/writer \(401\): log in"):
        push_run(run, "ana/writer")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PolicyError, match="cannot be reached"):
        push_run(run, "ana/writer")
    assert not hub.files


def test_a_connection_that_breaks_is_said(run, hub, monkeypatch):
    """By whatever HTTP client this version of the hub's package has."""

    def hang_up(path, body):
        raise ConnectionAbortedError  # the handler ends without an answer

    monkeypatch.setattr(hub, "answer", hang_up)
    with pytest.raises(PolicyError, match=r"the connection to the hub broke .*: the same command uploads again"):
        push_run(run, "ana/writer")


def test_a_base_says_its_licence_and_where_it_is_from(run, tmp_path):
    copy = tmp_path / "base"
    shutil.copytree(run / "checkpoints" / "best", copy)
    assert find_base(str(copy)).licence is None, "a random policy has none"
    (copy / "README.md").write_text("---\nlicense: mit\nbase_model: org/model\n---\nA card.\n")
    assert (find_base(str(copy)).hub_id, find_base(str(copy)).licence) == ("org/model", "mit")
    (copy / "README.md").write_text("---\n: [\n---\n")
    assert find_base(str(copy)).licence is None
    assert find_base("smol").licence == "apache-2.0" and find_base("org/model").hub_id == "org/model"


def test_a_card_names_the_rows_and_their_teacher_but_no_host(tmp_path):
    rows = tmp_path / "rows.jsonl"
    teacher = "http://10.0.0.7:8000/v1#Qwen/Qwen3-32B"
    line = {"task": "a", "teacher": f"{teacher}, best of 4 at temperature 0.7"}
    rows.with_suffix(".scores.jsonl").write_text(f"{json.dumps(line)}\n")
    command = f"memalpha train sft source=rows.jsonl reader.policy={teacher} data={tmp_path / 'mine.jsonl'}"
    (tmp_path / "starts.jsonl").write_text(json.dumps({"command": command}))
    settings = {"out": tmp_path, "policy": "tiny", "source": str(rows), "data": str(tmp_path / "mine.jsonl")}
    settings["evaluation"] = {"data": str(tmp_path / "held-out.jsonl")}
    scores = {"accuracy": 0.5, "reader": f"policy:{teacher}"}
    text = render_card(build_config(SFTConfig, settings, "test"), {"step": 3}, {"before": scores, "after": scores})
    assert "| rows | `rows.jsonl`; written by http://HOST/v1#Qwen/Qwen3-32B, best of 4" in text
    assert "held-out tasks of `held-out.jsonl`, reader `policy:http://HOST/v1#Qwen/Qwen3-32B`" in text
    assert "'reader.policy=http://HOST/v1#Qwen/Qwen3-32B' data=mine.jsonl" in text and "10.0.0.7" not in text
    rows.with_suffix(".scores.jsonl").write_text("[]")
    assert "| rows | `rows.jsonl` |" in render_card(build_config(SFTConfig, settings, "test"), {"step": 3})


def test_a_card_says_how_the_checkpoint_it_started_from_was_made(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.with_suffix(".scores.jsonl").write_text(f"{json.dumps({'task': 'a', 'teacher': 'openai:gpt-5'})}\n")
    first, start = tmp_path / "first", tmp_path / "first" / "checkpoints" / "step-9"
    start.mkdir(parents=True)
    settings = {"out": tmp_path / "second", "policy": str(start)}
    later = build_config(TrainConfig, settings, "test")
    assert "base made by" not in render_card(later, {"step": 3}), "nothing is known of a checkpoint without its run"
    earlier = build_config(SFTConfig, {"out": first, "policy": "tiny", "source": str(rows)}, "test")
    RunDirectory(first).write_settings(earlier)
    card = render_card(later, {"step": 3})
    made = "run `first` (sft, data the set `synthetic`, rows `rows.jsonl`; written by openai:gpt-5) from `tiny`"
    assert f"| base made by | {made} |" in card
    (first / "config.yaml").write_text("algorithm: sft\nlater_setting: 1\n")
    assert "run `first`, whose settings this version cannot read" in render_card(later, {"step": 3})
    RunDirectory(first).write_settings(earlier.model_copy(update={"policy": str(start)}))
    assert "before it" not in render_card(later, {"step": 3}), "a run that names itself is named once"


def test_cards_of_other_kinds_of_run(tmp_path):
    base = {"out": tmp_path, "policy": "tiny-text"}
    state = {"step": 3, "start_validation": {"validation_accuracy": 0.5}, "best": {"step": 2, "score": 0.75}}
    text = render_card(build_config(TextConfig, base, "test"), state)
    assert "AutoModelForCausalLM" in text and "on tasks given in Python alone" in text
    assert "validation accuracy 0.500 at the start, score 0.750 at the best step so far (2)." in text
    pairs = {**base, "data": tmp_path / "pairs.jsonl"}
    losses = {"before": {"validation_pair_loss": 0.7}, "after": {"validation_pair_loss": 0.6}}
    text = render_card(build_config(RewardModelConfig, pairs, "test"), state, losses)
    assert "load_reward_model" in text and "| validation pair loss | 0.700 | 0.600 |" in text
    assert "`pairs.jsonl`" in text and "(reward model, all weights)" in text
    assert "(preferences, all weights)" in render_card(build_config(PreferenceConfig, pairs, "test"), state, losses)
