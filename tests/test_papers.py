"""docs/guides/papers.md: every command is a valid configuration, and every algorithm has a paper."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from memalpha.config import SHORT_NAMES, LossConfig, TrainConfig, parse_overrides, shipped_configs, training_config
from memalpha.config.algorithms import VETTED

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "papers.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`memalpha train ([^`]+)`", PAGE.split("| paper |")[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_valid_configuration(command):
    preset, *words = command.split()
    settings = training_config(preset, parse_overrides(words)).model_dump()
    for word in words:  # the run's settings equal those of the page
        name, _, value = word.partition("=")
        key = SHORT_NAMES.get(name, name)
        actual = functools.reduce(lambda node, part: node[part], key.split("."), settings)
        assert actual == yaml.safe_load(value) or float(value) == actual, word


def test_every_algorithm_and_loss_has_a_paper():
    configs = [training_config(words.split()[0], parse_overrides(words.split()[1:])) for words in COMMANDS]
    runs = [config for config in configs if isinstance(config, TrainConfig)]
    assert {run.algorithm for run in runs} == set(VETTED)
    for key in ("loss_type", "importance_sampling_level", "scale_rewards"):
        assert {getattr(run.loss, key) for run in runs} == set(get_args(LossConfig.model_fields[key].annotation)), key


def test_every_algorithm_is_a_shipped_configuration():
    for name in VETTED:
        assert name in shipped_configs()
        assert training_config(name).algorithm == name
