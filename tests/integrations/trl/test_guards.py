"""Unsupported releases and batches of TRL, invalid settings, and the row helpers."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import metadata
from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from memalpha.errors import ConfigError, TrainingError, install_command
from memalpha.integrations.trl import ERLConfig
from memalpha.integrations.trl.attempts import (
    AdviceMemory,
    FirstAttempts,
    ReflectedAttempt,
    SampledCompletion,
    build_reflection_prompt,
    message_text,
    replace_text,
)
from memalpha.integrations.trl.base import (
    TRL_METHODS,
    add_dead_rows,
    check_batch,
    check_rows,
    concat_rows,
    require_methods,
    require_trl,
    round_up,
    rows_from_ids,
    select_rows,
)


@pytest.mark.parametrize("version", ["1.15.0", "1.17.0", "1.17.0.dev0", "2.0.0"])
def test_another_release_is_refused(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(TrainingError, match=rf"tested with trl>=.*installed is trl {version}: pip install 'trl>="):
        require_trl()


@pytest.mark.parametrize("version", ["1.16.0", "1.16.3.dev1"])
def test_releases_in_the_range_are_accepted(monkeypatch, version):
    asked = []
    monkeypatch.setattr(metadata, "version", lambda name: asked.append(name) or version)
    require_trl()
    assert asked == ["trl"]


def test_without_trl_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(TrainingError, match=re.escape(install_command("train"))):
        require_trl()


def test_methods_with_other_parameters_are_refused():
    require_methods(GRPOTrainer, tuple(TRL_METHODS))

    class Other(GRPOTrainer):
        def _generate(self, prompts, images):
            raise NotImplementedError

        def _compute_loss(self, inputs, model):
            raise NotImplementedError

    for name in ("_generate", "_compute_loss"):
        with pytest.raises(TrainingError, match=rf"trl [\d.]+ differs from what .* expects: Other.{name}"):
            require_methods(Other, (name,))
    with pytest.raises(TrainingError, match="_generate is missing"):
        require_methods(object, ("_generate",))


def prepare_batch(trainer):
    trainer.model.train()
    trainer._prepare_inputs([{**trainer.train_dataset[i // 4]} for i in range(8)])


def test_unexpected_batches_of_trl_are_refused(make_trainer, monkeypatch):
    trainer = make_trainer()
    original = GRPOTrainer._generate_and_score_completions

    def extra_tensor(self, inputs):
        return {**original(self, inputs), "pixel_values": torch.zeros(8)}

    def narrower(self, inputs):
        output = original(self, inputs)
        return {**output, "completion_mask": output["completion_mask"][:, 1:]}

    def unscored(self, inputs):
        return {"prompt_ids": torch.zeros(8, 1)}

    for changed, message in (
        (extra_tensor, "pixel_values"),
        (narrower, "completion_mask of the shape"),
        (unscored, "rewards"),
    ):
        monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", changed)
        with pytest.raises(TrainingError, match=message):
            prepare_batch(trainer)
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", original)
    scores = GRPOTrainer._calculate_rewards
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: scores(self, *args).sum(1))
    with pytest.raises(TrainingError, match="rewards of the shape"):
        prepare_batch(trainer)
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", scores)
    generate = GRPOTrainer._generate
    calls = []

    def shorter(self, prompts):
        calls.append(prompts)
        result = generate(self, prompts)
        return result if len(calls) == 1 else result[:5]

    monkeypatch.setattr(GRPOTrainer, "_generate", shorter)
    with pytest.raises(TrainingError, match="eight values"):
        prepare_batch(trainer)


def test_a_batch_is_a_list_of_rows():
    check_batch([{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}])
    for wrong in ([], ["a"], {"prompt": ["a"], "n": [1]}):
        with pytest.raises(TrainingError, match="batch"):
            check_batch(wrong)


def test_the_settings_of_grpo_keep_their_defaults():
    for field in fields(GRPOConfig):
        assert ERLConfig.__dataclass_fields__[field.name].default == field.default


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reflection_system_prompt": "{prompt} {attempt} {memory} {answer}"}, "no field {answer}"),
        ({"reflection_system_prompt": "{prompt} {memory}"}, "lacks {attempt}"),
        ({"reflection_system_prompt": "{prompt} {attempt}"}, "lacks {memory}.*enable_memory=False"),
        ({"reflection_system_prompt": "{prompt} {attempt} {memory} {"}, "cannot be filled"),
        ({"reflection_system_prompt": "{prompt} {attempt} {memory:d}"}, "cannot be filled"),
        ({"retry_system_prompt": "{prompt}"}, "lacks {reflection}"),
        ({"retry_system_prompt": "{prompt} {reflection.__class__}"}, "no field {reflection.__class__}"),
        ({"retry_system_prompt": "{} {reflection}"}, "no field {}"),
        ({"algorithm": 3}, "algorithm: 3 is neither"),
        ({"algorithm": 2, "enable_internalization": False}, "algorithm: 2 has nothing to do"),
        ({"algorithm": 2, "fp16": True}, "fp16: updates with nothing"),
        (
            {"steps_per_generation": 4, "gradient_accumulation_steps": 3, "algorithm": 2},
            "steps_per_generation: algorithm=2",
        ),
        ({"memory_size": 0}, "memory_size: 0 must be above 0"),
        ({"memory_top_k": 51}, "memory_top_k: more than memory_size=50"),
        ({"memory_top_k": 2.5}, "memory_top_k 2.5: a whole number from 0"),
        ({"enable_memory": "no"}, "enable_memory 'no': True or False"),
        ({"algorithm": "1"}, "algorithm: '1' is neither"),
        ({"reward_threshold": float("nan")}, "reward_threshold: nan"),
        ({"reward_threshold": "1"}, "reward_threshold: '1' is not a number"),
        ({"internalization_coef": 0.0}, "internalization_coef"),
        ({"enable_memory": False, "memory_top_k": 2}, "memory_top_k: has no effect with enable_memory=False"),
        ({"enable_internalization": False, "internalization_coef": 2.0}, "internalization_coef: has no effect"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ERLConfig("unused", bf16=False, **changes)


def test_numbers_of_numpy_are_numbers():
    numbers: dict[str, Any] = {"reward_threshold": np.float32(0.5), "memory_size": np.int64(7)}
    config = ERLConfig("unused", bf16=False, **numbers)
    assert (config.reward_threshold, config.memory_size) == (0.5, 7)


def test_templates_replace_the_last_user_message():
    ERLConfig("unused", bf16=False, reflection_system_prompt='{prompt} {attempt} {memory} {{"a": 1}} {reward:.1f}')
    chat = [{"role": "system", "content": "Brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi {x}"}]}]
    assert message_text(chat) == "Hi {x}" and replace_text("a", "b") == "b"
    assert replace_text(chat, "b") == [chat[0], {"role": "user", "content": "b"}]
    longer = [*chat, {"role": "assistant", "content": None}, {"role": "user", "content": "Well?"}]
    assert message_text(longer) == "Well?"
    assert replace_text(longer, "b") == [*longer[:3], {"role": "user", "content": "b"}]
    reply = [{"role": "assistant", "content": "<think>hm</think> Count. "}]
    assert ReflectedAttempt(0, 0.0, reflection=SampledCompletion([1], [2], reply, None)).advice == "Count."


def test_the_oldest_advice_is_dropped_until_the_prompt_fits():
    first = FirstAttempts(["Q"], ["A"], [[1]], torch.zeros(1, 1))

    def build(longest):
        attempt, template = ReflectedAttempt(0, 0.0), "{prompt} {attempt} {memory}"
        return build_reflection_prompt(attempt, first, ["old", "new"], template, lambda text: len(text) <= longest)

    whole = build(99)
    assert whole.index("old") < whole.index("new")
    assert build(len(whole) - 1) == whole.replace("- old\n", "") and build(4) == "Q A " and build(3) is None


def test_the_reflection_memory_is_first_in_first_out():
    memory = AdviceMemory(3)
    for text in ("a", "b", "c", "a", "d"):
        memory.add(text)
    assert memory.newest(9) == ["c", "a", "d"] and memory.newest(2) == ["a", "d"] and len(memory) == 3


def test_rows_are_concatenated_and_padded():
    """Padding is neutral: ratios of 1, log-probs of 0, one prompt token per dead row."""
    first = {**rows_from_ids([[5, 6], [7]], [[8], [9, 9]], 0, "cpu"), "advantages": torch.tensor([1.0, 2.0])}
    second = {**rows_from_ids([[1, 2, 3]], [[4, 4, 4]], 0, "cpu"), "advantages": torch.tensor([3.0])}
    for part, width in ((first, 2), (second, 3)):
        part["importance_sampling_ratio"] = torch.full((len(part["prompt_ids"]), width), 0.5)
        part["old_per_token_logps"] = -torch.ones(len(part["prompt_ids"]), width)
    rows = add_dead_rows(concat_rows([select_rows(first, [1]), second], 0), round_up(2, 4), 0)
    assert check_rows(rows, 4).keys() == rows.keys()
    assert rows["prompt_ids"].tolist() == [[0, 0, 7], [1, 2, 3], [0, 0, 0], [0, 0, 0]]
    assert rows["prompt_mask"].tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]
    assert rows["completion_ids"].tolist() == [[9, 9, 0], [4, 4, 4], [0, 0, 0], [0, 0, 0]]
    assert rows["completion_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert rows["advantages"].tolist() == [2, 3, 0, 0]
    assert rows["importance_sampling_ratio"].tolist() == [[0.5, 0.5, 1], [0.5] * 3, [1] * 3, [1] * 3]
    assert rows["old_per_token_logps"].tolist() == [[-1, -1, 0], [-1] * 3, [0] * 3, [0] * 3]
    for part in (first, second):
        part["importance_sampling_ratio"] = torch.ones(len(part["prompt_ids"]), 1)
    assert concat_rows([first, second], 0)["importance_sampling_ratio"].shape == (3, 1)
