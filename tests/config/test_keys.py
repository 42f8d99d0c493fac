"""Settings in groups: short names, synonyms, `memalpha config`, and the default learning rate."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from memalpha.cli.config import kinds
from memalpha.config import (
    SHORT_NAMES,
    EvalConfig,
    TrainConfig,
    build_config,
    parse_overrides,
    shipped_configs,
    training_config,
)
from memalpha.config.files import setting_synonyms, settings_of
from memalpha.config.learner import default_learning_rate
from memalpha.errors import ConfigError

TINY, BILLIONS = 787_840, 4_022_468_096


@pytest.mark.parametrize("kind", kinds().values(), ids=kinds())
def test_at_most_25_settings_stand_at_the_top_and_each_has_a_meaning(kind):
    assert len(kind.model_fields) <= 25
    assert not [name for name, setting in settings_of(kind) if not setting.meaning]


@pytest.mark.parametrize("names", [SHORT_NAMES, setting_synonyms()], ids=["short names", "synonyms"])
def test_every_name_leads_to_a_setting(names):
    settings = {name for kind in kinds().values() for name, _ in settings_of(kind)} | {"reward.reader"}
    assert not {name for full in names.values() for name in full.split()} - settings


def test_short_and_full_names_are_the_same_setting():
    short = training_config("demo", {"learning_rate": 1e-3, "group_size": 4, "save_every": 7, "epsilon": 0.3})
    groups = {"optimizer": {"learning_rate": 1e-3}, "sampling": {"group_size": 4}}
    full = training_config("demo", {**groups, "checkpoint": {"save_steps": 7}, "loss": {"epsilon": 0.3}})
    assert short == full and short.optimizer.learning_rate == 1e-3 and short.checkpoint.save_steps == 7
    assert short.sampling.tasks_per_step == training_config("demo").sampling.tasks_per_step


def test_two_values_for_one_setting_are_refused():
    with pytest.raises(ConfigError, match=r"learning_rate: is optimizer\.learning_rate, which is given too"):
        build_config(TrainConfig, {"out": "x", "learning_rate": 1, "optimizer": {"learning_rate": 2}}, "test")
    with pytest.raises(ConfigError, match="demo: learning_rate: is "):
        training_config("demo", {"learning_rate": 1, "optimizer": {"learning_rate": 2}})


def test_a_group_keeps_the_settings_that_were_named_before_it():
    words = ["reward.beta=0.3", "reward={gamma: 0.7, judge: {judges: [a]}}", "reward.judge.context=1"]
    assert parse_overrides(words)["reward"] == {"beta": 0.3, "gamma": 0.7, "judge": {"judges": ["a"], "context": 1}}


def test_null_clears_a_group_and_an_empty_one_keeps_it():
    assert parse_overrides(["lora={r: 4}", "lora={}"]) == {"lora": {"r": 4}}
    assert parse_overrides(["lora={r: 4}", "lora=null"]) == {"lora": None}
    assert parse_overrides(["lora={r: 4}", "lora=null", "lora={}"]) == {"lora": {}}
    assert training_config("demo", parse_overrides(["lora={r: 4}", "lora="])).lora is None


def test_unknown_settings_come_with_the_nearest_name():
    hints = {
        "optimizer.learning_rate": ("lr", "learning_rat", "optimizer.lr"),
        "agent.max_new_tokens": ("max_new_tokens", "max_completion_length"),
        "sampling.group_size": ("num_generations",),
        "loss.epsilon": ("clip_range",),
        "algorithm": ("trainer_type",),
        "compute.device": ("use_gpu",),
        "optimizer.max_grad_norm": ("gradient_clip",),
    }
    for hint, key in ((hint, key) for hint, keys in hints.items() for key in keys):
        with pytest.raises(ConfigError, match=f"did you mean '{hint}'"):
            training_config("demo", parse_overrides([f"{key}=1"]))


def test_a_setting_of_other_runs_and_a_far_name_get_no_suggestion():
    for setting in ("tasks_per_step", "loss.epsilon", "loss"):
        with pytest.raises(ConfigError, match=r"' \(other kinds of runs have it, this one has not\)$"):
            training_config("sft", parse_overrides([f"{setting}=2"]))
    for setting in ("advantages", "zebra"):
        with pytest.raises(ConfigError, match=f"unknown key '{setting}'$"):
            training_config("sft", parse_overrides([f"{setting}=2"]))
    with pytest.raises(ConfigError, match=r"did you mean 'reward\.beta'"):  # rather than one of the loss it lacks
        training_config("sft", {"beta": 1})


@pytest.mark.parametrize(
    ("settings", "key", "hint"),
    [
        ({"sampling.group_size": 2}, "sampling.group_size", "sampling: {group_size: ...}"),
        ({"reward": {"judge.judges": []}}, "reward.judge.judges", "judge: {judges: ...}"),
    ],
)
def test_a_dotted_key_of_a_file_or_python_is_shown_nested(settings, key, hint):
    with pytest.raises(ConfigError, match=re.escape(f"unknown key {key!r} (groups are nested here: {hint})")):
        training_config("demo", settings)


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_configuration_prints_what_a_run_would_record(memalpha, name):
    code, output, _ = memalpha("config", name)
    assert code == 0 and isinstance(yaml.safe_load(output), dict)


def test_keys_have_type_default_meaning_and_value(memalpha):
    code, output, _ = memalpha("config", "demo", "--keys", "--json")
    rows = json.loads(output)
    steps = rows["checkpoint.save_steps"]
    assert code == 0 and (steps["default"], steps["value"]) == ("10", 5)
    assert rows["loss.epsilon"]["type"] == "float" and "clip range" in rows["loss.epsilon"]["meaning"]
    code, output, _ = memalpha("config")
    assert code == 0 and all(name in output for name in shipped_configs())
    assert memalpha("config", "nothing-there")[0] == 2


def test_the_law_passes_through_the_measured_and_the_published_rates():
    assert default_learning_rate(TINY) == default_learning_rate(739_456) == default_learning_rate(1_000) == 4e-4
    assert default_learning_rate(BILLIONS) == 1e-6, "Mem-alpha, TRL's GRPO"
    assert default_learning_rate(BILLIONS, lora=True) == 1e-5
    assert default_learning_rate(BILLIONS, supervised=True) == 2e-5, "TRL's SFTTrainer"
    assert default_learning_rate(BILLIONS, supervised=True, lora=True) == 2e-4, "QLoRA"


@pytest.mark.parametrize(("name", "rate"), [("demo", 1e-6), ("sft", 2e-5), ("arithmetic", 1e-6)])
def test_another_policy_brings_the_default_back(name, rate):
    assert training_config(name).optimizer.learning_rate == 4e-4
    config = training_config(name, {"policy": "owner/large"})
    assert config.optimizer.learning_rate is None
    assert config.with_learning_rate(BILLIONS).optimizer.peak_rate == rate
    config = training_config(name, {"policy": "owner/large", "learning_rate": 3e-6})
    assert config.with_learning_rate(BILLIONS).optimizer.peak_rate == 3e-6


def test_the_constant_of_dr_grpo_is_the_longest_reply():
    config = training_config("demo", {"policy": "owner/large"})
    assert config.loss.loss_constant is None and config.reply_tokens == config.agent.max_new_tokens == 64
    assert training_config("demo").loss.loss_constant == 16
    assert training_config("demo", {"loss_type": "grpo"}).loss.loss_type == "grpo", "16 is recorded, and not read"
    with pytest.raises(ConfigError, match="loss_constant: has no effect with loss_type=grpo"):
        training_config("demo", {"loss_type": "grpo", "loss_constant": 8})


def test_a_rate_that_depends_on_a_model_is_not_guessed():
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate"):
        _ = training_config("demo", {"policy": "owner/large"}).optimizer.peak_rate


def test_names_apart_by_commas_are_a_list():
    assert build_config(EvalConfig, {"systems": "rag, oracle"}, "test").systems == ("rag", "oracle")
    assert build_config(EvalConfig, {"systems": ["rag"]}, "test").systems == ("rag",)


def test_an_evaluation_is_not_trained(memalpha):
    code, _, err = memalpha("train", "locomo", "data=locomo10.json")
    assert code == 2 and "locomo configures an evaluation: `memalpha eval locomo` runs it" in err


def test_a_file_of_tasks_is_no_configuration(memalpha, tmp_path):
    (tmp_path / "mine.jsonl").write_text("{}\n{}\n")
    code, _, err = memalpha("eval", str(tmp_path / "mine.jsonl"))
    assert code == 2 and f"memalpha eval tasks data={tmp_path / 'mine.jsonl'}" in err


def test_a_function_as_the_metric_of_a_run_is_told_where_it_goes():
    with pytest.raises(
        ConfigError, match=r"^reward\.metric: for a function of yours take question, .*: reward\.functions$"
    ):
        training_config("demo", parse_overrides(["reward.metric=mine:score"]))
