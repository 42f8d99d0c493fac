"""Settings in groups: short names, synonyms, and `memalpha config`."""

from __future__ import annotations

import json

import pytest
import yaml

from memalpha.cli.config import KINDS
from memalpha.config import SHORT_NAMES, TrainConfig, build_config, load_config, shipped_configs, training_config
from memalpha.config.files import SYNONYMS, settings_of
from memalpha.errors import ConfigError


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_at_most_25_settings_stand_at_the_top(kind):
    assert len(kind.model_fields) <= 25


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_setting_has_a_meaning(kind):
    assert not [name for name, setting in settings_of(kind) if not setting.meaning]


@pytest.mark.parametrize("names", [SHORT_NAMES, SYNONYMS], ids=["short names", "synonyms"])
def test_every_name_leads_to_a_setting(names):
    settings = {name for kind in KINDS.values() for name, _ in settings_of(kind)} | {"reward.reader"}
    assert not set(names.values()) - settings


def test_short_and_full_names_are_the_same_setting():
    short = training_config("demo", {"learning_rate": 1e-3, "group_size": 4, "save_every": 7, "epsilon": 0.3})
    full = training_config(
        "demo",
        {
            "optimizer": {"learning_rate": 1e-3},
            "sampling": {"group_size": 4},
            "checkpoint": {"save_steps": 7},
            "loss": {"epsilon": 0.3},
        },
    )
    assert short == full and short.optimizer.learning_rate == 1e-3 and short.checkpoint.save_steps == 7
    assert short.sampling.tasks_per_step == training_config("demo").sampling.tasks_per_step


def test_two_values_for_one_setting_are_refused():
    with pytest.raises(ConfigError, match=r"learning_rate: is optimizer\.learning_rate, which is given too"):
        build_config(TrainConfig, {"out": "x", "learning_rate": 1, "optimizer": {"learning_rate": 2}}, "test")
    with pytest.raises(ConfigError, match="demo: learning_rate: is "):
        load_config(TrainConfig, "demo", {"learning_rate": 1, "optimizer": {"learning_rate": 2}})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lr", "optimizer.learning_rate"),
        ("num_generations", "sampling.group_size"),
        ("learning_rat", "optimizer.learning_rate"),
        ("clip_range", "loss.epsilon"),
        ("optimizer.lr", "optimizer.learning_rate"),
    ],
)
def test_unknown_settings_come_with_the_nearest_name(memalpha, key, hint):
    code, _, error = memalpha("train", "demo", f"{key}=1")
    assert code == 2 and f"did you mean '{hint}'" in error


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_configuration_prints_what_a_run_would_record(memalpha, name):
    code, output, _ = memalpha("config", name)
    assert code == 0 and isinstance(yaml.safe_load(output), dict)


def test_keys_have_type_default_meaning_and_value(memalpha):
    code, output, _ = memalpha("config", "demo", "--keys", "--json")
    rows = json.loads(output)
    assert (
        code == 0 and rows["checkpoint.save_steps"]["default"] == "10" and rows["checkpoint.save_steps"]["value"] == 5
    )
    assert rows["loss.epsilon"]["type"] == "float" and "clip range" in rows["loss.epsilon"]["meaning"]
    code, output, _ = memalpha("config")
    assert code == 0 and all(name in output for name in shipped_configs())
    assert memalpha("config", "nothing-there")[0] == 2
